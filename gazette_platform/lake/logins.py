"""Passwords, tokens and the like, from the environment or from files that it names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gazette_platform.errors import SetupError, ValidationError

if TYPE_CHECKING:
    from collections.abc import Mapping


def secret_of(environment: Mapping[str, str], name: str) -> str:
    """The value of `name`, or the content of the file that `name`_FILE names; empty: neither is set.

    Files are read at each call, so that they may be renewed.

    Raises: SetupError: the file cannot be read, or is empty. ValidationError: both are set.
    """
    value, path = environment.get(name, ""), environment.get(f"{name}_FILE", "")
    if value and path:
        raise ValidationError(f"set {name} or {name}_FILE, not both", path=name)
    if not path:
        return value
    try:
        text = Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as err:
        raise SetupError(f"cannot read {name}_FILE={path}: {err}") from err
    if not text:
        raise SetupError(f"{name}_FILE={path} is empty")
    return text
