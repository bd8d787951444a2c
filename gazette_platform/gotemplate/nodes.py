"""The tree of a parsed template."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

__all__ = [
    "Action",
    "Branch",
    "Chain",
    "Command",
    "Constant",
    "Dot",
    "Function",
    "Node",
    "Operand",
    "Pipeline",
    "Text",
    "Variable",
]


@dataclass(frozen=True, slots=True)
class Dot:
    """The value that the enclosing block is about."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal; of ``nil``, the value is None."""

    value: str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Variable:
    """``$name``; ``$`` alone is the template's data."""

    name: str


@dataclass(frozen=True, slots=True)
class Function:
    """A function by name."""

    name: str


@dataclass(frozen=True, slots=True)
class Chain:
    """Fields or methods of a value, one of the other."""

    base: Operand
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Command:
    """An operand and its arguments."""

    operands: tuple[Operand, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Commands; the value of each is the last argument of the next."""

    commands: tuple[Command, ...]
    variables: tuple[str, ...] = ()
    declares: bool = False
    """Whether `variables` are declared here (``:=``) rather than set (``=``)."""


Operand: TypeAlias = Dot | Constant | Variable | Function | Chain | Pipeline


@dataclass(frozen=True, slots=True)
class Text:
    """Text as is."""

    text: str


@dataclass(frozen=True, slots=True)
class Action:
    """A pipeline whose value is printed unless it goes to a variable."""

    pipeline: Pipeline


@dataclass(frozen=True, slots=True)
class Branch:
    """``if``, ``with`` or ``range``."""

    keyword: str
    pipeline: Pipeline
    body: tuple[Node, ...]
    otherwise: tuple[Node, ...]


Node: TypeAlias = Text | Action | Branch
