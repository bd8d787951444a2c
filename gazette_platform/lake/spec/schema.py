"""Column types: one text form in table specs, and their forms in Hive, Spark and Trino.

| spec | Hive | Spark schema JSON | Trino |
|---|---|---|---|
| string (varchar) | string | "string" | varchar |
| boolean | boolean | "boolean" | boolean |
| tinyint, smallint, int (integer), bigint (long) | same | "byte", "short", "integer", "long" | tinyint, smallint, integer, bigint |
| float (real), double | float, double | "float", "double" | real, double |
| decimal(p,s) | decimal(p,s) | "decimal(p,s)" | decimal(p,s) |
| date | date | "date" | date |
| array<t>, map<k,v>, struct<a:t,…> | same | nested objects | array(t), map(k, v), row(a t, …) |

Timestamps are left out on purpose: the engines disagree on the texts that they accept, so raw tables
keep them as written (string or bigint) and typed tables hold real ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from gazette_platform.errors import ValidationError

if TYPE_CHECKING:
    from collections.abc import Mapping

# spec name -> (Spark, Trino); the Hive name is the spec's.
_PRIMITIVES = {
    "string": ("string", "varchar"),
    "boolean": ("boolean", "boolean"),
    "tinyint": ("byte", "tinyint"),
    "smallint": ("short", "smallint"),
    "int": ("integer", "integer"),
    "bigint": ("long", "bigint"),
    "float": ("float", "real"),
    "double": ("double", "double"),
    "date": ("date", "date"),
}
_ALIASES = {"varchar": "string", "integer": "int", "long": "bigint", "real": "float"}
_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_NESTED = frozenset({"array", "map", "struct"})
_DECIMAL_DIGITS_MAX = 38
_FIELD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_DEPTH_MAX = 16
# A struct of a thousand fields fits well.
_TEXT_MAX = 32 << 10
_SHOWN_MAX = 80

_MADE_OF_OTHERS = ("decimal(p,s)", "array<t>", "map<k,v>", "struct<a:t>")


@final
@dataclass(frozen=True, slots=True)
class TypeLanguage:
    """Which types a text may name, besides decimals, arrays, maps and structs."""

    scalars: tuple[str, ...]
    aliases: Mapping[str, str]
    """Other names of scalars."""
    refused: Mapping[str, str]
    """Names that people may well try, and why they are not types here, as what follows the name."""

    @property
    def names(self) -> str:
        """All types, for people."""
        return ", ".join([*self.scalars, *_MADE_OF_OTHERS])


_NO_TIMES = (
    "is not a type of raw tables (keep the text as `string`, or epochs as `bigint`, and cast in SQL or "
    "in a typed table)"
)
RAW: Final = TypeLanguage(
    tuple(_PRIMITIVES), _ALIASES, {"timestamp": _NO_TIMES, "datetime": _NO_TIMES}
)


@final
@dataclass(frozen=True, slots=True)
class ColumnType:
    """A parsed type. ``name`` is a primitive's name, or decimal, array, map, struct."""

    name: str
    arguments: tuple[ColumnType, ...] = ()
    field_names: tuple[str, ...] = ()
    precision: int = 0
    scale: int = 0

    @property
    def hive(self) -> str:
        """Text for the metastore, which is also the canonical text of table specs."""
        return self.in_brackets({})

    @property
    def spark(self) -> str | dict[str, object]:
        """The value of ``type`` in a Spark schema JSON."""
        match self.name:
            case "decimal":
                return self.hive
            case "array":
                return {
                    "type": "array",
                    "elementType": self.arguments[0].spark,
                    "containsNull": True,
                }
            case "map":
                return {
                    "type": "map",
                    "keyType": self.arguments[0].spark,
                    "valueType": self.arguments[1].spark,
                    "valueContainsNull": True,
                }
            case "struct":
                fields = zip(self.field_names, self.arguments, strict=True)
                return {
                    "type": "struct",
                    "fields": [
                        {"name": n, "type": t.spark, "nullable": True, "metadata": {}}
                        for n, t in fields
                    ],
                }
            case _:
                return _PRIMITIVES[self.name][0]

    @property
    def trino(self) -> str:
        """Text as Trino prints it, for example in ``DESCRIBE``."""
        return self.in_parentheses({name: trino for name, (_, trino) in _PRIMITIVES.items()})

    def in_brackets(self, scalars: Mapping[str, str]) -> str:
        """Text as Hive and Spark write types: ``array<int>``, ``struct<a:int>``.

        Args:
            scalars: how scalars are called there, where not as here.
        """
        match self.name:
            case "decimal":
                return f"decimal({self.precision},{self.scale})"
            case "array" | "map":
                return f"{self.name}<{','.join(a.in_brackets(scalars) for a in self.arguments)}>"
            case "struct":
                fields = zip(self.field_names, self.arguments, strict=True)
                return f"struct<{','.join(f'{n}:{t.in_brackets(scalars)}' for n, t in fields)}>"
            case _:
                return scalars.get(self.name, self.name)

    def in_parentheses(self, scalars: Mapping[str, str]) -> str:
        """Text as Trino writes types: ``array(integer)``, ``row(a integer)``; see `in_brackets`."""
        match self.name:
            case "array" | "map":
                parts = (a.in_parentheses(scalars) for a in self.arguments)
                return f"{self.name}({', '.join(parts)})"
            case "struct":
                fields = zip(self.field_names, self.arguments, strict=True)
                return f"row({', '.join(f'{n} {t.in_parentheses(scalars)}' for n, t in fields)})"
            case _:
                return self.in_brackets(scalars)


def parse_type(text: str, language: TypeLanguage = RAW) -> ColumnType:
    """The type that `text` names; of raw tables, if no other language is given.

    >>> parse_type("array<struct<a:int,b:decimal(5,2)>>").trino
    'array(row(a integer, b decimal(5,2)))'

    Raises: ValidationError: unknown or malformed; says which types there are.
    """
    parser = _Parser(text, language)
    parsed = parser.parse(0)
    parser.expect_end()
    return parsed


def widens(old: ColumnType, new: ColumnType) -> bool:
    """Whether every value that reads as `old` also reads as `new`.

    >>> (
    ...     widens(parse_type("int"), parse_type("bigint")),
    ...     widens(parse_type("int"), parse_type("date")),
    ... )
    (True, False)
    """
    if old == new:
        return True
    if new.name == "string":
        return old.name not in _NESTED
    if old.name in _INTEGERS and new.name in _INTEGERS:
        return _INTEGERS.index(old.name) <= _INTEGERS.index(new.name)
    if (old.name, new.name) == ("decimal", "decimal"):
        whole_grows = new.precision - new.scale >= old.precision - old.scale
        return whole_grows and new.scale >= old.scale
    if old.name == new.name and old.name in _NESTED:
        # Fields of a struct may be added at its end only.
        kept = len(old.field_names)
        return new.field_names[:kept] == old.field_names and all(
            widens(a, b) for a, b in zip(old.arguments, new.arguments, strict=False)
        )
    return (old.name, new.name) == ("float", "double")


@final
class _Parser:
    """Recursive descent over the few tokens of a type."""

    _TOKEN = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*|\d+|[<>(),:])")

    def __init__(self, text: str, language: TypeLanguage) -> None:
        self._language = language
        self._text = text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"
        if len(text) > _TEXT_MAX:
            raise ValidationError(f"has {len(text)} characters; a type has at most {_TEXT_MAX}")
        self._tokens: list[str] = []
        text = text.rstrip()
        at = 0
        while at < len(text):
            match = self._TOKEN.match(text, at)
            if match is None:
                raise self._error()
            self._tokens.append(match[1])
            at = match.end()
        self._at = 0

    def _error(self) -> ValidationError:
        return ValidationError(f"unknown type {self._text!r} (use one of {self._language.names})")

    def _next(self) -> str:
        if self._at == len(self._tokens):
            raise self._error()
        self._at += 1
        return self._tokens[self._at - 1]

    def _expect(self, token: str) -> None:
        if self._next() != token:
            raise self._error()

    def expect_end(self) -> None:
        if self._at != len(self._tokens):
            raise self._error()

    def parse(self, depth: int) -> ColumnType:
        word = self._next()
        language = self._language
        name = language.aliases.get(word.lower(), word.lower())
        if depth > _DEPTH_MAX:
            raise self._error()
        if name in language.scalars:
            return ColumnType(name)
        if name in language.refused:
            raise ValidationError(f"{word} {language.refused[name]}")
        match name:
            case "decimal":
                return self._decimal()
            case "array":
                return self._nested(name, 1, depth)
            case "map":
                parsed = self._nested(name, 2, depth)
                if parsed.arguments[0].name != "string":
                    raise ValidationError(f"keys of a map must be string, not {self._text!r}")
                return parsed
            case "struct":
                return self._struct(depth)
            case _:
                raise self._error()

    def _decimal(self) -> ColumnType:
        self._expect("(")
        precision = self._number()
        self._expect(",")
        scale = self._number()
        self._expect(")")
        if not (1 <= precision <= _DECIMAL_DIGITS_MAX and scale <= precision):
            raise ValidationError(f"decimal digits out of range (1..38, scale <= it): {self._text}")
        return ColumnType("decimal", precision=precision, scale=scale)

    def _number(self) -> int:
        token = self._next()
        if not token.isdigit() or len(token) > 4:
            raise self._error()
        return int(token)

    def _nested(self, name: str, count: int, depth: int) -> ColumnType:
        self._expect("<")
        arguments = [self.parse(depth + 1)]
        for _ in range(count - 1):
            self._expect(",")
            arguments.append(self.parse(depth + 1))
        self._expect(">")
        return ColumnType(name, arguments=tuple(arguments))

    def _struct(self, depth: int) -> ColumnType:
        self._expect("<")
        names: list[str] = []
        types: list[ColumnType] = []
        seen: set[str] = set()
        while True:
            name = self._next()
            if not _FIELD_NAME.match(name) or name.lower() in seen:
                raise self._error()
            seen.add(name.lower())
            self._expect(":")
            names.append(name)
            types.append(self.parse(depth + 1))
            match self._next():
                case ">":
                    return ColumnType("struct", arguments=tuple(types), field_names=tuple(names))
                case ",":
                    continue
                case _:
                    raise self._error()
