"""Values of options without pydantic, which Typer has convert each of them since its release 0.26.

To import it takes longer than most commands do their work. What most values are, texts, whole numbers, paths and
names out of a list, needs none of it. Whatever else comes, or does not fit, is left to Typer, and so are its
messages. With another Typer nothing is changed.
"""

import enum
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import typer
from typer import core

__all__ = ["install", "quick_value"]

_INTEGER = re.compile(r"-?[0-9]{1,18}\Z")
# Checks of paths that Typer does.
_CHECKS_OF_PATHS = ("exists", "resolve_path", "writable", "allow_dash", "path_type")


def install() -> None:
    """Have Typer ask `quick_value` first, in this process. Idempotent."""
    parameter: Any = getattr(core, "_TyperParameter", None)
    made = getattr(parameter, "get_runtime_param", None)
    if made is None or hasattr(made, "of_typer"):
        return

    def get_runtime_param(self: Any) -> _Quick:
        return _Quick(self.type_descriptor, lambda: made(self))

    get_runtime_param.of_typer = made  # type: ignore[attr-defined]
    parameter.get_runtime_param = get_runtime_param


class _Quick:
    """What Typer asks to convert the values of one parameter."""

    def __init__(self, descriptor: Any, slow: Callable[[], Any]) -> None:
        self._descriptor = descriptor
        self._slow = slow

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value as the command wants it."""
        annotation = _only(self._descriptor.annotation)
        is_known, found = False, value
        if not param.multiple and param.nargs == 1:
            is_known, found = quick_value(value, annotation, self._descriptor.parameter_info)
        elif value is None:
            is_known, found = True, ()
        elif annotation == list[str] and isinstance(value, list | tuple):
            is_known, found = all(type(each) is str for each in value), list(value)
        if is_known:
            return found
        try:
            return self._slow().coerce(value, param=param, ctx=ctx)
        except typer.BadParameter as err:
            err.message = err.message.removeprefix("Value error, ")  # of pydantic
            raise


def _only(annotation: Any) -> Any:
    """What an annotation says besides None."""
    if get_origin(annotation) not in {Union, UnionType}:
        return annotation
    kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
    return kinds[0] if len(kinds) == 1 else None


def quick_value(value: Any, annotation: Any, info: Any) -> tuple[bool, Any]:
    """Whether a single value is one of the simple kind, and what it is.

    Args:
        value: as given: text, or a default.
        annotation: the type that the command has for it, besides None.
        info: what else its option or argument says.
    """
    if info.parser is not None or getattr(info, "click_type", None) is not None:
        return False, None
    if value is None or (annotation is str and type(value) is str):
        return True, value
    if annotation is int:
        return _integer(value, info)
    if annotation is Path and type(value) is str and _is_plain_path(value, info):
        return True, Path(value)
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return _member(value, annotation)
    return False, None


def _is_plain_path(value: str, info: Any) -> bool:
    """Whether Typer would take the path as it is."""
    if any(getattr(info, name) for name in _CHECKS_OF_PATHS) or "\0" in value:
        return False
    is_any = info.file_okay and info.dir_okay
    return not os.path.lexists(value) or (is_any and os.access(value, os.R_OK))


def _integer(value: Any, info: Any) -> tuple[bool, Any]:
    if type(value) is str and _INTEGER.match(value):
        value = int(value)
    is_good = (
        type(value) is int
        and (info.min is None or value >= info.min)
        and (info.max is None or value <= info.max)
    )
    return is_good, value if is_good else None


def _member(value: Any, annotation: type[enum.Enum]) -> tuple[bool, Any]:
    for member in annotation:
        if value is member or (type(value) is str and value == member.value):
            return True, member
    return False, None
