"""Path postfix templates (being built)."""

from __future__ import annotations

__all__ = ["validate_path_postfix_template"]


def validate_path_postfix_template(text: str) -> None:
    """Check a template."""
    del text
