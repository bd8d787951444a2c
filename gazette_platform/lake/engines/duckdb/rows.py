"""One JSON value as a value of a column: the rules for what does not fit as it is. Pure.

Content that fits is parsed by Arrow, and gives the same. Here is what Arrow refuses: it would refuse all
of a block for one value.

| column | takes | else NULL |
|---|---|---|
| string | a text; a number or truth value as written; an array or object as JSON text | |
| boolean | `true`, `false`, and the same as texts | numbers |
| integers | `5`, `"5"` | out of range, `5.0`, `1e3` |
| float, double | numbers, also as texts, `NaN`, `Infinity` and `-Infinity` | |
| decimal | numbers, also as texts, rounded half up to the scale | too many digits |
| date | `"2020-01-31"`, `"2020-1-31"`, also with a time behind | all other texts, numbers |
| array, map, struct | arrays, objects, objects; their values by these rules | |

A line that does not begin with a JSON object is a row of NULLs; what follows it is ignored.
Where Trino and Spark agree, so does this, except for texts in single quotes.

Content of a table as Arrow columns: all that fits by Arrow's parsers, the rest value by value.

Arrow parses a block at a quarter of a gigabyte a second and refuses it whole for one value that does not
fit. Such a block is parsed line by line, by the rules of `json_values`, at a tenth of that. Which of both
it was is not to be seen in the rows.
"""

from __future__ import annotations

import json
import re
from datetime import date
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final, Protocol, final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from gazette_platform.errors import DataError
from gazette_platform.lake.spec.formats import csv_rows
from gazette_platform.message.arrow_parsers import arrow_parser
from gazette_platform.message.many import JournalSpan
from gazette_platform.protocol import LabelSet

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gazette_platform.lake.spec.table_spec import TableSpec
    from gazette_platform.lake.spec.types import ColumnType

_BITS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_NUMERAL: Final = re.compile(
    r"[+-]?(\d{1,400}(\.\d{0,400})?|\.\d{1,400})([eE][+-]?\d{1,4})?\Z", re.ASCII
)
_INTEGER: Final = re.compile(r"-?\d{1,400}\Z", re.ASCII)
_DATE: Final = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})(?:[T ]|\Z)", re.ASCII)
_NOT_FINITE: Final = ("NaN", "Infinity", "-Infinity")
_EPOCH: Final = date(1970, 1, 1)
_DAYS_OF_400_YEARS: Final = 146_097
# More digits than any column has: sums and products are never rounded on the way.
_EXACT: Final = Context(prec=1000)


@final
class Numeral(str):
    """A number of JSON, as written: a float would lose digits of decimals."""

    __slots__ = ()


# `NaN` and infinities are not JSON, yet engines take them: the other keys of such a line are read.
_DECODER: Final = json.JSONDecoder(
    parse_float=Numeral, parse_int=Numeral, parse_constant=Numeral, strict=True
)


def parse_line(line: str) -> dict[str, Any] | None:
    """The object that a line begins with, whose numbers are `Numeral`; None: with none."""
    try:
        value, _ = _DECODER.raw_decode(line.removeprefix("\ufeff").lstrip(" \t\r"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def fitted(value: Any, kind: ColumnType) -> Any:
    """A value of `parse_line` as Python value for a column of type `kind`; None if it does not fit.

    Maps are lists of pairs, as Arrow takes them.
    """
    if value is None:
        return None
    return _FITS[kind.name](value, kind)


def _string(value: Any, _: ColumnType) -> str:
    if isinstance(value, str):
        # A lone surrogate, which JSON can name and UTF-8 cannot hold.
        return str(value) if value.isascii() else value.encode("utf-8", "replace").decode()
    return _text(value)


def _text(value: Any) -> str:
    """JSON of a value, with its numbers as they were written. Values lie deeper than calls may."""
    found: list[str] = []
    # What is to come, the next one last; texts of ours are in tuples.
    pending: list[Any] = [value]
    while pending:
        match pending.pop():
            case tuple() as ours:
                found += ours
            case Numeral() as number:
                found.append(number)
            case list() as items:
                pending += _nested("[", [[item] for item in items], "]")
            case dict() as items:
                pending += _nested("{", [[key, (":",), item] for key, item in items.items()], "}")
            case str() as text:
                found.append(json.dumps(_string(text, _STRING), ensure_ascii=False))
            case other:
                found.append(json.dumps(other))
    return "".join(found)


def _nested(begin: str, parts: list[list[Any]], end: str) -> list[Any]:
    """The parts between `begin` and `end`, with commas, the last one first."""
    found: list[Any] = [(begin,)]
    for index, part in enumerate(parts):
        found += [(",",), *part] if index else part
    return [*found, (end,)][::-1]


_STRING: Any = None  # the type is of no account to texts


def _boolean(value: Any, _: ColumnType) -> bool | None:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and not isinstance(value, Numeral):
        return {"true": True, "false": False}.get(value.lower())
    return None


def _number(value: Any) -> Decimal | None:
    if isinstance(value, str) and _NUMERAL.match(value):
        return Decimal(value)
    return None


def _integer(value: Any, kind: ColumnType) -> int | None:
    if not (isinstance(value, str) and _INTEGER.match(value)):
        return None
    number, half = int(value), 1 << (_BITS[kind.name] - 1)
    return number if -half <= number < half else None


def _floating(value: Any, _: ColumnType) -> float | None:
    if isinstance(value, str) and (value in _NOT_FINITE or _NUMERAL.match(value)):
        return float(value)
    return None


def _decimal(value: Any, kind: ColumnType) -> Decimal | None:
    number = _number(value)
    if number is None:
        return None
    try:
        rounded = number.quantize(
            Decimal(1).scaleb(-kind.scale), rounding=ROUND_HALF_UP, context=_EXACT
        )
    except InvalidOperation:  # more digits than fit anywhere
        return None
    return rounded if abs(rounded) < Decimal(10) ** (kind.precision - kind.scale) else None


def _date(value: Any, _: ColumnType) -> date | int | None:
    """A date; of the year 0, which Python has not, its days since 1970."""
    found = _DATE.match(value) if isinstance(value, str) else None
    if found is None:
        return None
    year, month, day = map(int, found.groups())
    try:
        # The calendar repeats itself every 400 years.
        found_date = date(year or 400, month, day)
    except ValueError:
        return None
    return found_date if year else (found_date - _EPOCH).days - _DAYS_OF_400_YEARS


def _array(value: Any, kind: ColumnType) -> list[Any] | None:
    return [fitted(v, kind.arguments[0]) for v in value] if isinstance(value, list) else None


def _map(value: Any, kind: ColumnType) -> list[tuple[str, Any]] | None:
    if not isinstance(value, dict):
        return None
    # DuckDB fails at a repeated key, as two with lone surrogates may be.
    return list({_string(k, kind): fitted(v, kind.arguments[1]) for k, v in value.items()}.items())


def _struct(value: Any, kind: ColumnType) -> dict[str, Any] | None:
    if not isinstance(value, dict):
        return None
    fields = zip(kind.field_names, kind.arguments, strict=True)
    return {name: fitted(value.get(name), of) for name, of in fields}


_FITS: Final[dict[str, Callable[[Any, ColumnType], Any]]] = {
    "string": _string,
    "boolean": _boolean,
    **dict.fromkeys(_BITS, _integer),
    "float": _floating,
    "double": _floating,
    "decimal": _decimal,
    "date": _date,
    "array": _array,
    "map": _map,
    "struct": _struct,
}


_PRIMITIVES: Final = {
    "string": pa.string(),
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
}


def arrow_type(kind: ColumnType) -> pa.DataType:
    """Arrow's type of a column.

    >>> from gazette_platform.lake.spec.types import parse_type
    >>> str(arrow_type(parse_type("array<decimal(5,2)>")))
    'list<element: decimal128(5, 2)>'
    """
    match kind.name:
        case "decimal":
            return pa.decimal128(kind.precision, kind.scale)
        case "array":
            return pa.list_(pa.field("element", arrow_type(kind.arguments[0])))
        case "map":
            return pa.map_(pa.string(), arrow_type(kind.arguments[1]))
        case "struct":
            fields = zip(kind.field_names, kind.arguments, strict=True)
            return pa.struct([(name, arrow_type(of)) for name, of in fields])
        case _:
            return _PRIMITIVES[kind.name]


class RowParser(Protocol):
    """Cuts content into records, and makes columns of them."""

    def cut(self, content: bytes) -> int:
        """How many bytes of `content` are whole records."""
        ...

    def ends(self, content: bytes) -> pa.Int64Array:
        """Where each of the whole records of `content` ends, after its newline."""
        ...

    def count(self, content: bytes) -> int:
        """How many records there are; as many as `ends` gives."""
        ...

    def columns(self, content: bytes, names: Sequence[str]) -> list[pa.Array]:
        """The columns `names`, at least one, of the whole records of `content`."""
        ...


def row_parser(spec: TableSpec) -> RowParser:
    """The parser of a table's format."""
    return _JsonRows(spec) if spec.format == "json" else _CsvRows(spec)


def _span(content_type: str) -> JournalSpan:
    labels = LabelSet.of({"content-type": content_type})
    return JournalSpan("", labels, 0, 0)


def _line_ends(content: bytes) -> pa.Int64Array:
    lines = pc.split_pattern(pa.array([content], pa.large_binary()), "\n").flatten()
    lengths = pc.add(pc.binary_length(lines.slice(0, len(lines) - 1)), 1)
    return pc.cumulative_sum(pc.cast(lengths, pa.int64()))


def _has_open_quote(content: bytes) -> bool:
    """Whether a line has an odd number of quotes."""
    if b'"' not in content:
        return False
    lines = pc.split_pattern(pa.array([content], pa.large_binary()), "\n").flatten()
    return bool(pc.any(pc.equal(pc.bit_wise_and(pc.count_substring(lines, '"'), 1), 1)).as_py())


def _utf8(content: bytes) -> bytes:
    """Content that is UTF-8: what is not becomes U+FFFD, as in engines."""
    if content.isascii():
        return content
    try:
        content.decode()
    except UnicodeDecodeError:
        return content.decode("utf-8", "replace").encode()
    return content


@final
class _JsonRows:
    def __init__(self, spec: TableSpec) -> None:
        self._kinds = {column.name: column.parsed for column in spec.columns}
        self._keys = {column.name: column.key for column in spec.columns}

    def cut(self, content: bytes) -> int:
        """See `RowParser`."""
        return content.rfind(b"\n") + 1

    def count(self, content: bytes) -> int:
        """See `RowParser`."""
        return content.count(b"\n")

    def ends(self, content: bytes) -> pa.Int64Array:
        """See `RowParser`."""
        return _line_ends(content)

    def columns(self, content: bytes, names: Sequence[str]) -> list[pa.Array]:
        """See `RowParser`."""
        content = _utf8(content)
        fast = self._fast(content, names)
        return fast if fast is not None else self._slow(content, names)

    def _fast(self, content: bytes, names: Sequence[str]) -> list[pa.Array] | None:
        """By Arrow; None where that would not give what line by line gives."""
        rows = content.count(b"\n")
        kinds = [self._kinds[name] for name in names]
        if any(map(_has_no_fast_form, kinds)) or not _is_plain(content, rows):
            return None
        schema = pa.schema(
            [
                (self._keys[name], pa.string() if kind.name == "date" else arrow_type(kind))
                for name, kind in zip(names, kinds, strict=True)
            ]
        )
        try:
            batches = arrow_parser(_JSON, schema, None).parse(content)
            table = pa.Table.from_batches(batches, schema)
            if table.num_rows != rows:
                return None
            return [
                _checked(column.combine_chunks(), kind)
                for column, kind in zip(table.columns, kinds, strict=True)
            ]
        except (DataError, pa.ArrowException):
            return None

    def _slow(self, content: bytes, names: Sequence[str]) -> list[pa.Array]:
        kinds = [self._kinds[name] for name in names]
        keys = [self._keys[name] for name in names]
        found: list[list[Any]] = [[] for _ in names]
        for line in content[: self.cut(content)].decode().split("\n")[:-1]:
            row = parse_line(line) or {}
            for values, key, kind in zip(found, keys, kinds, strict=True):
                values.append(fitted(row.get(key), kind))
        return [
            pa.array(values, arrow_type(kind)) for values, kind in zip(found, kinds, strict=True)
        ]


_JSON: Final = _span("application/x-ndjson")


def _checked(column: pa.Array, kind: ColumnType) -> pa.Array:
    """A column as Arrow parsed it. Raises: pa.ArrowException: it took what does not fit."""
    if kind.name == "date":
        return pc.cast(column, arrow_type(kind))
    if "decimal" in kind.hive:
        # It compares digits before it scales a number: 1234 becomes 1234.00 of a decimal(5,2).
        column.validate(full=True)
    return column


def _has_no_fast_form(kind: ColumnType) -> bool:
    """Whether Arrow reads no such JSON: maps, and dates that are not a column of their own."""
    return kind.name == "map" or any(
        of.name == "date" or _has_no_fast_form(of) for of in kind.arguments
    )


def _is_plain(content: bytes, rows: int) -> bool:
    """Whether each line begins with ``{`` and ends with ``}``, and no number may be infinite.

    Arrow takes values from wherever they stand: an object over two lines, two in one, or none, which may
    even end the process (a line ``null``). Between such ends a row never spans lines: behind ``}`` a
    ``{`` begins another value. So with as many rows as lines, each line is one.
    """
    end = b"}\r\n" if content.endswith(b"\r\n") else b"}\n"
    return (
        content.startswith(b"{")
        and content.endswith(end)
        and content.count(end + b"{") == rows - 1
        and b"Inf" not in content  # which Arrow reads as a number
        and b"NaN" not in content
    )


@final
class _CsvRows:
    """Each line is a record of RFC 4180, as in Trino and Spark: one with an odd quote hides no other."""

    def __init__(self, spec: TableSpec) -> None:
        self._names = [column.name for column in spec.columns]
        self._separator = spec.separator
        mark = re.escape(spec.separator).encode()
        # Before a quote, where a field may begin.
        self._blanks = re.compile(rb'(?:\A|%b|\n)[%b]+"' % (mark, _blanks_of(spec).encode()))

    def cut(self, content: bytes) -> int:
        """See `RowParser`."""
        return content.rfind(b"\n") + 1

    def count(self, content: bytes) -> int:
        """See `RowParser`."""
        return content.count(b"\n")

    def ends(self, content: bytes) -> pa.Int64Array:
        """See `RowParser`."""
        return _line_ends(content)

    def columns(self, content: bytes, names: Sequence[str]) -> list[pa.Array]:
        """See `RowParser`."""
        content = _utf8(content)
        fast = self._fast(content, names)
        return fast if fast is not None else self._slow(content, names)

    def _fast(self, content: bytes, names: Sequence[str]) -> list[pa.Array] | None:
        # Arrow ends a line at a carriage return, too, and knows no quote that is left open.
        if content.count(b"\r") != content.count(b"\r\n") or _has_open_quote(content):
            return None
        if _ESCAPE.encode() in content or self._blanks.search(content) is not None:
            return None
        schema = pa.schema([(name, pa.string()) for name in self._names])
        try:
            parser = arrow_parser(_CSV, schema, None, delimiter=self._separator)
            batches = parser.parse(content)
        except DataError:
            return None
        table = pa.Table.from_batches(batches, schema).select(list(names))
        # It skips empty lines, and joins records of several lines, so there are fewer rows.
        if table.num_rows != content.count(b"\n"):
            return None
        return [column.combine_chunks() for column in table.columns]

    def _slow(self, content: bytes, names: Sequence[str]) -> list[pa.Array]:
        separator = self._separator
        places = [self._names.index(name) for name in names]
        found: list[list[str | None]] = [[] for _ in names]
        lines = content[: self.cut(content)].decode().split("\n")[:-1]
        for line in lines:
            plain = line.removesuffix("\r").replace(_ESCAPE, "")
            text = _begun(_closed(plain, separator), separator)
            row = next(csv_rows([text], separator), [])
            for values, place in zip(found, places, strict=True):
                values.append(row[place] if place < len(row) else None)
        return [pa.array(values, pa.string()) for values in found]


def _blanks_of(spec: TableSpec) -> str:
    """Blanks that may stand before a quote; a tab that separates fields is none."""
    return " \t".replace(spec.separator, "")


def _begun(line: str, separator: str = ",") -> str:
    """A line without blanks before a quote that begins a field, as engines have it.

    >>> _begun('1, "x, y",  z,"a, ",b "c"')
    '1,"x, y",  z,"a, ",b "c"'
    """
    parts = line.split('"')
    for index in range(0, len(parts) - 1, 2):
        bare = parts[index].rstrip(" \t".replace(separator, ""))
        if bare.endswith(separator) or (not bare and index == 0):
            parts[index] = bare
    return '"'.join(parts)


def _closed(line: str, separator: str = ",") -> str:
    """A line without the field in which a quote is open at its end, which is NULL in engines.

    >>> _closed('1,"a, b",5" pipe, 2'), _closed('"a, b'), _closed('a,"b"')
    ('1,"a, b"', '', 'a,"b"')
    """
    parts = line.split('"')
    if len(parts) % 2:
        return line
    at = len(line)
    for index in reversed(range(len(parts))):
        at -= len(parts[index])
        if index % 2 == 0 and separator in parts[index]:
            return line[: at + parts[index].rindex(separator)]
        at -= 1  # of the quote before
    return ""


_CSV: Final = _span("text/csv")
# As `hive.CSV_ESCAPE`, which takes long to import: engines drop it.
_ESCAPE: Final = "\x01"
