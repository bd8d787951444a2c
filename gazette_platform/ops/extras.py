"""Packages that the core goes without, and that an extra of ours installs."""

from __future__ import annotations

import importlib
from typing import Any

from gazette_platform.errors import SetupError

__all__ = ["required"]


def required(package: str, *, extra: str, by: str) -> Any:
    """Import a package.

    Args:
        package: its name; of a module in it, the first part is what is installed.
        extra: of ours, that installs it.
        by: what needs it, in the plural, for the error.

    Raises: SetupError: it is missing; says what to install.
    """
    try:
        return importlib.import_module(package)
    except ImportError as err:
        name = package.partition(".")[0]
        raise SetupError(f"{by} need {name}: pip install 'gazette-platform[{extra}]'") from err
