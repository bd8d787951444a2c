"""What templates compute with.

Go's strings, booleans, integers, floats, byte arrays and lists are Python's; nil is None. Structs
are `GoObject`; integers that print as words (enums, months, durations) are `NamedInt`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self, TypeAlias

from gazette_platform.errors import ValidationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["GoObject", "Method", "NamedInt", "Value", "is_true", "show", "type_name", "weight"]

Value: TypeAlias = "str | int | float | bool | bytes | Sequence[Value] | GoObject | None"

_ITEM_WEIGHT: Final = 8

_PARAMETER_NAMES = {str: "string", int: "int"}


@dataclass(frozen=True, slots=True)
class Method:
    """A method: its parameters, each str or int, and what computes it."""

    compute: Callable[..., Value]
    parameters: tuple[type, ...] = ()

    def call(self, name: str, arguments: Sequence[Value]) -> Value:
        """Call the method after a check of the arguments.

        Raises: ValidationError: their number or a type is wrong.
        """
        if len(arguments) != len(self.parameters):
            raise ValidationError(
                f"wrong number of args for {name}: want {len(self.parameters)} got {len(arguments)}"
            )
        for argument, wanted in zip(arguments, self.parameters, strict=True):
            if not isinstance(argument, wanted) or isinstance(argument, bool):
                raise ValidationError(
                    f"wrong type for value of {name}; "
                    f"expected {_PARAMETER_NAMES[wanted]}; got {type_name(argument)}"
                )
        return self.compute(*arguments)


class NamedInt(int):
    """An integer with a type name, a text and methods of its own."""

    text: str
    type_name: str
    methods: Mapping[str, Method]

    def __new__(
        cls, number: int, text: str, type_name: str, methods: Mapping[str, Method] | None = None
    ) -> Self:
        """Make `number` print as `text`, which its method String gives too."""
        made = super().__new__(cls, number)
        made.text = text
        made.type_name = type_name
        made.methods = {"String": Method(lambda: text), **(methods or {})}
        return made

    def find(self, name: str) -> Method:
        """A method.

        Raises: ValidationError: there is none.
        """
        method = self.methods.get(name)
        if method is None:
            raise ValidationError(f"can't evaluate field {name} in type {self.type_name}")
        return method


@dataclass(frozen=True, slots=True)
class GoObject:
    """A struct: fields and methods by name, those of embedded fields promoted."""

    type_name: str
    members: Mapping[str, Value | Method]
    embedded: tuple[str, ...] = ()
    """Names of the fields whose own members are promoted, as Go does: the least deep wins."""
    text: str | None = None
    """What it prints as; None if it cannot be printed as a whole."""

    def find(self, name: str) -> Value | Method:
        """A field or method.

        Raises: ValidationError: there is none, or several at the same depth.
        """
        level: list[GoObject] = [self]
        while level:
            holders = [holder for holder in level if name in holder.members]
            if len(holders) > 1:
                raise ValidationError(f"ambiguous field {name} in type {self.type_name}")
            if holders:
                return holders[0].members[name]
            level = [
                member
                for holder in level
                for member in (holder.members[inner] for inner in holder.embedded)
                if isinstance(member, GoObject)
            ]
        raise ValidationError(f"can't evaluate field {name} in type {self.type_name}")


# In order of tests: a boolean is an integer to Python.
_TYPE_NAMES: Final[tuple[tuple[type, str], ...]] = (
    (type(None), "nil"),
    (bool, "bool"),
    (str, "string"),
    (int, "int"),
    (float, "float64"),
    (bytes, "[]uint8"),
)


def type_name(value: Value) -> str:
    """Name of a value's type, for errors."""
    if isinstance(value, (NamedInt, GoObject)):
        return value.type_name
    return next((name for kind, name in _TYPE_NAMES if isinstance(value, kind)), "list")


def is_true(value: Value) -> bool:
    """Whether a condition holds: not zero, not empty, not nil. Structs always are."""
    return isinstance(value, GoObject) or bool(value)


def weight(value: Value) -> int:
    """About the characters that a value shows as; what it costs to copy it.

    >>> weight("four"), weight(["four", 1])
    (4, 21)
    """
    if isinstance(value, (str, bytes)):
        return len(value)
    if value is None or isinstance(value, (int, float, GoObject)):
        return 1
    return sum(_ITEM_WEIGHT + weight(item) for item in value)


def show(value: Value) -> str:
    """The text of a value as Go's ``print`` gives it.

    Raises: ValidationError: a struct that has no text.
    """
    if isinstance(value, (NamedInt, GoObject)):
        if value.text is None:
            raise ValidationError(f"{value.type_name} is a struct, name one of its fields")
        return value.text
    if value is None or isinstance(value, bool):
        return {None: "<nil>", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return value
    if isinstance(value, (int, float)):
        return _show_float(value) if isinstance(value, float) else str(value)
    return "[" + " ".join(show(item) for item in value) + "]"


def _show_float(value: float) -> str:
    if value.is_integer() and abs(value) < 1e21:
        return str(int(value))
    return repr(value).replace("inf", "+Inf").replace("-+", "-")
