"""Types of typed tables, and Iceberg's transforms of columns, as specs write them and each system calls them. Pure.

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
from typing import TYPE_CHECKING, Final, final

import msgspec

from gazette_platform.errors import ValidationError
from gazette_platform.lake.spec.rules import shown
from gazette_platform.lake.spec.schema import ColumnType, TypeLanguage, parse_type

if TYPE_CHECKING:
    from collections.abc import Iterator

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
