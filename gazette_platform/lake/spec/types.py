"""Column types of raw and typed tables: one text form in specs, and their forms in each system. Pure.

Raw tables:

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

Typed tables, and Iceberg's transforms of their columns:

| spec | Iceberg | Arrow | Spark | Trino |
|---|---|---|---|---|
| string (varchar) | string | string | string | varchar |
| json | string | string | string | varchar |
| boolean | boolean | bool | boolean | boolean |
| int (integer), bigint (long) | int, long | int32, int64 | int, bigint | integer, bigint |
| float (real), double | float, double | float, double | float, double | real, double |
| decimal(p,s) | decimal(p, s) | decimal128(p, s) | decimal(p,s) | decimal(p,s) |
| date | date | date32 | date | date |
| timestamp (timestamp_ntz) | timestamp | timestamp(us) | timestamp_ntz | timestamp(6) |
| timestamptz (timestamp_ltz) | timestamptz | timestamp(us, UTC) | timestamp | timestamp(6) with time zone |
| binary (varbinary) | binary | binary | binary | varbinary |
| uuid | uuid | uuid | string | uuid |
| array<t>, map<string,t>, struct<a:t,…> | list, map, struct | list, map, struct | same as in the spec | array(t), map(varchar, t), row(a t, …) |

The second and third are made in `iceberg_types`. Names are Iceberg's where systems disagree: Spark's `timestamp` is
`timestamptz` here. A raw table's tinyint and smallint, which Iceberg does not have, become int.

A record whose value does not fit is set aside, and null fits each column that is not required. Which values fit
follows docs/internals/typed-parsing.md; where Arrow's reader of JSON does not do it by itself, whoever parses has to:

- string: texts only. A number, truth value, list or object is not a text; `json` takes them. So does a raw table's
  `string`, so what fits the raw table may be set aside here.
- json: the text of any value, null included, as it was written, so that 12 and "12" are told apart. Arrow has no
  such type: records of tables with such a column go line by line.
- int, bigint: digits without fraction or exponent, not in quotes, of 32 and 64 bits.
- float: what is finite as 32 bits. Arrow makes infinity of 1e39, which has to be looked for, as NaN in both.
- double: 1e400, NaN and Infinity do not fit. 9007199254740993 does, and is rounded, as in any JSON reader.
- decimal: a number or the text of one, with no digit more than fits on either side of the point. Arrow compares
  digits before it scales, so 1234 gets into a decimal(5,2): validate. By `base64` a text of the unscaled number's bytes, the
  largest first, in two's complement, as Kafka Connect writes decimals.
- date: a text `2026-01-02`; Arrow reads none from JSON (read texts, cast them). Year 0 is none. By `epoch_days` an integer.
- timestamptz: by format `iso`, a date with or without a time behind `T` or a blank, with or without a zone, in letters of either
  case; without a zone it is UTC. Digits of a second beyond the sixth are zeros, or cut off where the column says `truncate`. By `epoch_s`, `epoch_ms` and `epoch_us` an integer, of years 1 to 9999.
- timestamp: the same texts without a zone. Arrow turns one that has a zone to UTC and forgets it: look for those. The same integers,
  whose day and time are taken as they are.
- binary: a text in `base64` (with padding, as Go writes bytes) or `hex`. Arrow takes the text itself for the bytes.
- uuid: a text of 36 characters. Arrow reads none from JSON.
- map: Arrow reads none from JSON: such tables go line by line as well. Duplicate keys do not fit.
- struct: keys as they are written; a duplicate one does not fit. An object without any of the keys does.
- segment (of a column, not a type): from the journal's name, the same for all rows of a fragment.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

import msgspec

from gazette_platform.errors import ValidationError
from gazette_platform.lake.spec.rules import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
_BY_WIDTH = ("tinyint", "smallint", "int", "bigint")
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
    if old.name in _BY_WIDTH and new.name in _BY_WIDTH:
        return _BY_WIDTH.index(old.name) <= _BY_WIDTH.index(new.name)
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


_SPARK: Final = {
    "json": "string",
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
    "uuid": "string",
}
_TRINO: Final = {
    "string": "varchar",
    "json": "varchar",
    "int": "integer",
    "float": "real",
    "timestamp": "timestamp(6)",
    "timestamptz": "timestamp(6) with time zone",
    "binary": "varbinary",
}
SCALARS: Final = (
    *("string", "json", "boolean", "int", "bigint", "float", "double"),
    *("date", "timestamp", "timestamptz", "binary", "uuid"),
)
"""Names of scalar types but decimals."""

_NO_SUCH_INTEGER: Final = "is not a type of Iceberg tables (use `int`)"
_NO_TIME_OF_DAY: Final = "is not a type that Spark has (keep the text as `string`)"
_LANGUAGE: Final = TypeLanguage(
    SCALARS,
    {
        "varchar": "string",
        "integer": "int",
        "long": "bigint",
        "real": "float",
        "timestamp_ntz": "timestamp",
        "timestamp_ltz": "timestamptz",
        "varbinary": "binary",
    },
    {
        "tinyint": _NO_SUCH_INTEGER,
        "smallint": _NO_SUCH_INTEGER,
        "time": _NO_TIME_OF_DAY,
        "datetime": "is not a type (use `timestamptz`, or `timestamp` for times without a zone)",
    },
)

FORMATS: Final = {
    "timestamptz": ("iso", "epoch_s", "epoch_ms", "epoch_us"),
    "timestamp": ("iso", "epoch_s", "epoch_ms", "epoch_us"),
    "date": ("iso", "epoch_days"),
    "decimal": ("number", "base64"),
    "binary": ("base64", "hex"),
}
"""How values of a type may be written; the first is meant where nothing is said."""

TRUNCATED: Final = "truncate"
"""At the end of a form in which times are written: digits of a second beyond the sixth are cut off."""

_TEXTS: Final = frozenset({"string", "binary"})
_INTEGERS: Final = frozenset({"int", "bigint"})
_INSTANTS: Final = frozenset({"timestamp", "timestamptz"})

KEY_TYPES: Final = _TEXTS | _INTEGERS | _INSTANTS | {"boolean", "date", "decimal", "uuid"}
"""Types whose equality engines agree on."""

TRANSFORMS: Final = {
    "identity": KEY_TYPES - {"binary"},
    "year": _INSTANTS | {"date"},
    "month": _INSTANTS | {"date"},
    "day": _INSTANTS | {"date"},
    "hour": _INSTANTS,
    "bucket": KEY_TYPES - {"boolean"},
    "truncate": _TEXTS | _INTEGERS | {"decimal"},
}
"""Types that may partition a table, by Iceberg's transforms."""


def parse_typed(text: str) -> ColumnType:
    """The type of a typed table that `text` names.

    >>> trino_name(parse_typed("array<struct<at:timestamptz,n:integer>>"))
    'array(row(at timestamp(6) with time zone, n integer))'

    Raises: ValidationError: unknown or malformed; says which types there are.
    """
    return parse_type(text, _LANGUAGE)


def text_of(kind: ColumnType) -> str:
    """The canonical text, as specs have it."""
    return kind.in_brackets({})


def spark_ddl(kind: ColumnType) -> str:
    """Text for Spark SQL, and for `from_json`."""
    return kind.in_brackets(_SPARK)


def trino_name(kind: ColumnType) -> str:
    """Text as Trino prints it, for example in ``DESCRIBE``."""
    return kind.in_parentheses(_TRINO)


def typed_from_raw(kind: ColumnType) -> ColumnType:
    """The type in a typed table of what is a `kind` in the raw one.

    >>> text_of(typed_from_raw(parse_type("array<struct<a:tinyint,b:date>>")))
    'array<struct<a:int,b:date>>'
    """
    name = "int" if kind.name in ("tinyint", "smallint") else kind.name
    arguments = tuple(typed_from_raw(argument) for argument in kind.arguments)
    return ColumnType(name, arguments, kind.field_names, kind.precision, kind.scale)


def leaf_of(kind: ColumnType) -> ColumnType:
    """What arrays and maps hold in the end, of their elements and values.

    >>> leaf_of(parse_typed("map<string,array<binary>>")).name
    'binary'
    """
    *_, leaf = _inward(kind)
    return leaf


def has_times(kind: ColumnType) -> bool:
    """Return whether a type is of instants, or holds some at any depth."""
    return kind.name in _INSTANTS or any(map(has_times, kind.arguments))


def _inward(kind: ColumnType) -> Iterator[ColumnType]:
    yield kind
    if kind.name in ("array", "map"):
        yield from _inward(kind.arguments[-1])


_IDENTIFIER: Final = r"[A-Za-z_][A-Za-z0-9_]*"
_FORM: Final = re.compile(
    rf"\s*(?:(?P<transform>{_IDENTIFIER})\s*\(\s*(?:(?P<argument>\d+)\s*,\s*)?(?P<of>{_IDENTIFIER})\s*\)|(?P<bare>{_IDENTIFIER}))\s*\Z"
)
# Of each transform that has a number, the largest one that makes sense.
_ARGUMENT_MAX: Final = {"bucket": 100_000, "truncate": 1_000_000}
_EXAMPLES: Final = "`day(departure)`, `bucket(16, origin)`, `truncate(4, zip)`, `carrier`"


@final
class PartitionTransform(msgspec.Struct, frozen=True):
    """One of the values that the rows of a data file have in common."""

    transform: str
    """Iceberg's name, without its number."""
    column: str
    argument: int = 0
    """Number of buckets, or width; else 0."""

    @property
    def text(self) -> str:
        """As specs have it."""
        if self.transform == "identity":
            return self.column
        argument = f"{self.argument}, " if self.argument else ""
        return f"{self.transform}({argument}{self.column})"

    @property
    def iceberg(self) -> str:
        """The transform as Iceberg's metadata have it."""
        return f"{self.transform}[{self.argument}]" if self.argument else self.transform

    @property
    def name(self) -> str:
        """Of the partition field, as Iceberg's clients choose it."""
        match self.transform:
            case "identity":
                return self.column
            case "bucket":
                return f"{self.column}_bucket_{self.argument}"
            case "truncate":
                return f"{self.column}_trunc_{self.argument}"
            case _:
                return f"{self.column}_{self.transform}"

    @property
    def is_time(self) -> bool:
        """Whether a column may have at most one of these."""
        return self.transform in ("year", "month", "day", "hour")


def parse_partition(text: str) -> PartitionTransform:
    """What an entry of `partitions` says.

    >>> parse_partition("bucket( 16, origin)").text
    'bucket(16, origin)'

    Raises: ValidationError: no such form or transform, or its number is missing, too much or out of range.
    """
    found = _FORM.match(text)
    if found is None:
        raise ValidationError(f"{shown(text)} is not a transform of a column: {_EXAMPLES}")
    if found["bare"]:
        return PartitionTransform("identity", found["bare"])
    transform, digits = found["transform"].lower(), found["argument"]
    if transform not in TRANSFORMS:
        hint = f" (`{transform[:-1]}`?)" if transform[:-1] in TRANSFORMS else ""
        raise ValidationError(
            f"{found['transform']} is none of Iceberg's transforms: {', '.join(TRANSFORMS)}{hint}"
        )
    largest = _ARGUMENT_MAX.get(transform)
    if largest is None:
        if digits is not None:
            raise ValidationError(f"{transform} has no number: `{transform}({found['of']})`")
        return PartitionTransform(transform, found["of"])
    if digits is None or len(digits) > len(str(largest)) or not 1 <= int(digits) <= largest:
        raise ValidationError(
            f"{transform} needs a number from 1 to {largest}: `{transform}(16, {found['of']})`"
        )
    return PartitionTransform(transform, found["of"], int(digits))
