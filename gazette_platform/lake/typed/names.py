"""What is called how beside a typed table. Pure."""

from __future__ import annotations

from typing import Final

__all__ = ["SUFFIX"]

SUFFIX: Final = "_quarantine"
"""Of the quarantine table, behind the typed table's name."""
