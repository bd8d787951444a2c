"""The functions that templates call by name.

``and`` and ``or`` are here by name only: the runtime evaluates their arguments one by one, and no
more than needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import quote_plus

from gazette_platform.errors import ValidationError
from gazette_platform.gotemplate.printf import printf
from gazette_platform.gotemplate.values import (
    GoObject,
    Value,
    is_true,
    show,
    type_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["FUNCTIONS", "LAZY_FUNCTIONS"]

LAZY_FUNCTIONS: Final = frozenset({"and", "or"})


def _require(name: str, arguments: Sequence[Value], least: int, most: int | None = None) -> None:
    count = len(arguments)
    if count < least or (most is not None and count > most):
        wanted = str(least) if least == most else f"at least {least}"
        raise ValidationError(f"wrong number of args for {name}: want {wanted} got {count}")


def _comparable_kind(value: Value) -> str:
    match value:
        case bool():
            return "bool"
        case int():
            return "int"
        case float():
            return "float"
        case str():
            return "string"
        case _:
            raise ValidationError(f"invalid type for comparison ({type_name(value)})")


def _require_same_kind(left: Value, right: Value) -> str:
    kind = _comparable_kind(left)
    if kind != _comparable_kind(right):
        raise ValidationError(
            f"incompatible types for comparison ({type_name(left)} and {type_name(right)})"
        )
    return kind


def _equal(left: Value, right: Value) -> bool:
    if left is None or right is None:
        return left is right
    _require_same_kind(left, right)
    return left == right


def _less(name: str, left: Value, right: Value) -> bool:
    if _require_same_kind(left, right) == "bool":
        raise ValidationError(f"invalid type for comparison by {name} (bool)")
    return left < right  # type: ignore[operator]


def _eq(arguments: Sequence[Value]) -> Value:
    _require("eq", arguments, 2)
    results = [_equal(arguments[0], other) for other in arguments[1:]]
    return any(results)


def _ne(arguments: Sequence[Value]) -> Value:
    _require("ne", arguments, 2, 2)
    return not _equal(*arguments)


def _lt(arguments: Sequence[Value]) -> Value:
    _require("lt", arguments, 2, 2)
    return _less("lt", *arguments)


def _ge(arguments: Sequence[Value]) -> Value:
    _require("ge", arguments, 2, 2)
    return not _less("ge", *arguments)


def _gt(arguments: Sequence[Value]) -> Value:
    _require("gt", arguments, 2, 2)
    return _less("gt", arguments[1], arguments[0])


def _le(arguments: Sequence[Value]) -> Value:
    _require("le", arguments, 2, 2)
    return not _less("le", arguments[1], arguments[0])


def _not(arguments: Sequence[Value]) -> Value:
    _require("not", arguments, 1, 1)
    return not is_true(arguments[0])


def _len(arguments: Sequence[Value]) -> Value:
    _require("len", arguments, 1, 1)
    value = arguments[0]
    if isinstance(value, str):
        return len(value.encode())
    if value is None or isinstance(value, (int, float, GoObject)):
        raise ValidationError(f"len of type {type_name(value)}")
    return len(value)


def _position(value: Value, length: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValidationError(f"cannot index with type {type_name(value)}")
    if not 0 <= value <= length:
        raise ValidationError(f"index out of range: {int(value)}")
    return int(value)


def _index(arguments: Sequence[Value]) -> Value:
    _require("index", arguments, 1)
    value = arguments[0]
    for step in arguments[1:]:
        if isinstance(value, str):
            value = value.encode()
        if value is None or isinstance(value, (int, float, GoObject)):
            raise ValidationError(f"can't index item of type {type_name(value)}")
        position = _position(step, len(value) - 1)
        value = value[position]
    return value


def _slice(arguments: Sequence[Value]) -> Value:
    _require("slice", arguments, 1, 3)
    value = arguments[0]
    if value is None or isinstance(value, (int, float, GoObject)):
        raise ValidationError(f"can't slice item of type {type_name(value)}")
    raw = value.encode() if isinstance(value, str) else value
    begin = _position(arguments[1], len(raw)) if len(arguments) > 1 else 0
    end = _position(arguments[2], len(raw)) if len(arguments) > 2 else len(raw)
    if begin > end:
        raise ValidationError(f"invalid slice index: {begin} > {end}")
    part = raw[begin:end]
    # Of strings Go takes bytes, which may cut a character.
    return part.decode("utf-8", "replace") if isinstance(part, bytes) else part


def _print(arguments: Sequence[Value]) -> Value:
    shown = ""
    for index, argument in enumerate(arguments):
        # Go puts a blank between neighbours if neither is a string.
        if index and not isinstance(argument, str) and not isinstance(arguments[index - 1], str):
            shown += " "
        shown += show(argument)
    return shown


def _println(arguments: Sequence[Value]) -> Value:
    return " ".join(show(argument) for argument in arguments) + "\n"


def _urlquery(arguments: Sequence[Value]) -> Value:
    return quote_plus(str(_print(arguments)))


def _lazy(arguments: Sequence[Value]) -> Value:
    raise AssertionError(f"lazy function was called with {len(arguments)} values")


FUNCTIONS: Final[dict[str, Callable[[Sequence[Value]], Value]]] = {
    "and": _lazy,
    "eq": _eq,
    "ge": _ge,
    "gt": _gt,
    "index": _index,
    "le": _le,
    "len": _len,
    "lt": _lt,
    "ne": _ne,
    "not": _not,
    "or": _lazy,
    "print": _print,
    "printf": printf,
    "println": _println,
    "slice": _slice,
    "urlquery": _urlquery,
}
