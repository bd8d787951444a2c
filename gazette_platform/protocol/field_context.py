"""Names of fields in validation errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, ParamSpec

from gazette_platform.errors import ValidationError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["check_field"]

_Args = ParamSpec("_Args")


def check_field(
    context: str, check: Callable[_Args, object], *args: _Args.args, **kwargs: _Args.kwargs
) -> None:
    """Run a check of a field, so that its error names the field: ``<context>.<inner>: …``.

    Raises: ValidationError: of the check, within `context`.
    """
    try:
        check(*args, **kwargs)
    except ValidationError as err:
        raise err.within(context) from None
