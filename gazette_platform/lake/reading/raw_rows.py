"""Lines of a raw table as columns: a row a line, and NULL for each value that does not fit. Pure.

Lines that fit are read at once (`json_columns`), and `sifting` finds the others, whose values are taken one by one:

| column | takes | else NULL |
|---|---|---|
| string | a text; a number or truth value as written; an array or object as JSON text | |
| boolean | `true`, `false`, and the same as texts | numbers |
| integers | `5`, `"5"` | out of range, `5.0`, `1e3` |
| float, double | numbers, also as texts, `NaN`, `Infinity` and `-Infinity` | |
| decimal | numbers, also as texts, rounded half up to the scale | too many digits |
| date | `"2020-01-31"`, `"2020-1-31"`, also with a time after it | all other texts, numbers |
| array, map, struct | arrays, objects, objects; their values by these rules | |

A line that does not begin with a JSON object is a row of NULLs; what follows the object is ignored. Where Trino and Spark agree,
so does this, except for texts in single quotes. The rows do not show how a line was read.

`read_csv_lines` makes Arrow columns of lines of CSV, all or none, for raw tables and for Spark's source: each line is a record
of RFC 4180. What happens to a line that is refused is the policy of the caller, as of `json_columns`.
"""

from __future__ import annotations

import json
import re
from datetime import date
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final, Protocol, final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyarrow import csv as arrow_csv

from gazette_platform.lake.reading.arrow_types import RefusedError, arrow_type
from gazette_platform.lake.reading.json_columns import Field, JsonReader, ScalarReader, is_scalar
from gazette_platform.lake.reading.sifting import Sifter, guess, line_ends
from gazette_platform.lake.spec.formats import csv_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gazette_platform.lake.spec.table_spec import TableSpec
    from gazette_platform.lake.spec.types import ColumnType

    _Reader = tuple[Callable[[bytes], list[pa.Array]], Sifter[list[pa.Array]]]

_MARK: Final = b"\xef\xbb\xbf"


def read_csv_lines(
    content: bytes,
    schema: pa.Schema,
    *,
    names: Sequence[str] | None = None,
    delimiter: str = ",",
    nulls: bool = False,
) -> pa.Table:
    """Read lines of CSV.

    Args:
        content: whole lines.
        schema: of all fields, in their order.
        names: those that are wanted, in this order; None: all.
        delimiter: between fields.
        nulls: whether an empty field without quotes is NULL, and not a text.

    Returns: as many rows as lines.
    Raises: RefusedError: a line is not a record with as many fields, or a value is not of its type.
    """
    if content.count(b"\r") != content.count(b"\r\n"):
        raise RefusedError("a carriage return stands within a record")
    # Arrow takes several lines with an open quote for one record, and takes the last one even if it is open.
    if b'"' in content and any(line.count(b'"') % 2 for line in content.split(b"\n")):
        raise RefusedError("a quote is left open")
    if content.startswith(_MARK):
        # Of two marks Arrow drops one: it is part of the record, which may lie within a block as well.
        content = _MARK + content
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(content),
            read_options=arrow_csv.ReadOptions(
                use_threads=False, block_size=len(content) + 1, column_names=schema.names
            ),
            parse_options=arrow_csv.ParseOptions(delimiter=delimiter),
            convert_options=arrow_csv.ConvertOptions(
                column_types={field.name: field.type for field in schema},
                include_columns=None if names is None else list(names),
                null_values=[""],
                strings_can_be_null=nulls,
                quoted_strings_can_be_null=False,
            ),
        )
    except pa.ArrowException as err:
        raise RefusedError(str(err)) from err
    # It passes over blank lines.
    if table.num_rows != content.count(b"\n"):
        raise RefusedError("it is not one record")
    return table


_BITS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_NUMERAL: Final = re.compile(
    r"[+-]?(\d{1,400}(\.\d{0,400})?|\.\d{1,400})([eE][+-]?\d{1,4})?\Z", re.ASCII
)
_INTEGER: Final = re.compile(r"-?\d{1,400}\Z", re.ASCII)
_DATE: Final = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})(?:[T ]|\Z)", re.ASCII)
# Of what stands before a value that is not finite: a sign, and a few blanks.
_BEFORE_VALUE: Final = 16
# CPU for two of nineteen columns of flights: 424 MB/s a core by msgspec, 171 by Arrow; for seven 240 and 140, for twelve 128
# and 120. Arrow uses several cores, and msgspec one at a time: with more columns a query would cost less and take longer.
_QUICK_COLUMNS_MAX: Final = 4
_NEGATIVE_ZERO: Final = re.compile(rb"-0(?![.0-9])")
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


def _utf8(content: bytes) -> bytes:
    """Content that is UTF-8: what is not becomes U+FFFD, as in engines."""
    if content.isascii():
        return content
    try:
        content.decode()
    except UnicodeDecodeError:
        return content.decode("utf-8", "replace").encode()
    return content


class _Lines:
    """Each line is a record."""

    def cut(self, content: bytes) -> int:
        """See `RowParser`."""
        return content.rfind(b"\n") + 1

    def count(self, content: bytes) -> int:
        """See `RowParser`."""
        return content.count(b"\n")

    def ends(self, content: bytes) -> pa.Int64Array:
        """See `RowParser`."""
        return line_ends(content)


@final
class _JsonRows(_Lines):
    def __init__(self, spec: TableSpec) -> None:
        self._columns = {column.name: (column.key, column.parsed) for column in spec.columns}
        # Scans of several queries use one parser, each with columns of its own.
        self._readers: dict[tuple[str, ...], _Reader] = {}

    def columns(self, content: bytes, names: Sequence[str]) -> list[pa.Array]:
        """See `RowParser`."""
        wanted = [self._columns[name] for name in names]
        read, sifter = self._reader(tuple(names), wanted)
        content = _utf8(content)
        try:
            return read(content)
        except RefusedError:
            found = sifter.sift(content, _is_odd)
        rows = [parse_line(found.lines[index].decode()) or {} for index in found.bad]
        odd = [
            pa.array([fitted(row.get(key), kind) for row in rows], arrow_type(kind))
            for key, kind in wanted
        ]
        places = pa.array([*found.good, *found.bad], pa.int64())
        order = pc.array_sort_indices(places)
        return [
            pa.concat_arrays([*(piece[at] for _, piece in found.pieces), odd[at]]).take(order)
            for at in range(len(wanted))
        ]

    def _reader(self, names: tuple[str, ...], wanted: Sequence[tuple[str, ColumnType]]) -> _Reader:
        if names not in self._readers:
            fields = {key: Field(kind) for key, kind in wanted}
            is_quick = len(wanted) <= _QUICK_COLUMNS_MAX and all(is_scalar(k) for _, k in wanted)
            read = _scalars(wanted) if is_quick else _any(wanted)
            self._readers[names] = read, Sifter(read, guess(fields))
        return self._readers[names]


def _scalars(wanted: Sequence[tuple[str, ColumnType]]) -> Callable[[bytes], list[pa.Array]]:
    reader = ScalarReader(dict(wanted))
    if not any(kind.name in ("float", "double") for _, kind in wanted):
        return reader.read

    def read(content: bytes) -> list[pa.Array]:
        # Of ``-0`` msgspec makes an integer, which has no sign, and then a number.
        if b"-0" in content and _NEGATIVE_ZERO.search(content) is not None:
            raise RefusedError
        return reader.read(content)

    return read


def _any(wanted: Sequence[tuple[str, ColumnType]]) -> Callable[[bytes], list[pa.Array]]:
    reader = JsonReader({key: Field(kind) for key, kind in wanted})

    def read(content: bytes) -> list[pa.Array]:
        # Arrow takes more of them than engines do, in keys that are not columns, too.
        if _has_infinite(content):
            raise RefusedError
        arrays = reader.read(content).arrays
        return [arrays[key] for key, _ in wanted]

    return read


def _is_odd(line: bytes) -> bool:
    """Whether the value of a line may be read by itself only."""
    return _has_infinite(line) or (b"-0" in line and _NEGATIVE_ZERO.search(line) is not None)


def _has_infinite(content: bytes) -> bool:
    """Whether a number that is not finite may stand somewhere."""
    return any(_stands_as_value(content, word) for word in (b"Inf", b"NaN"))


def _stands_as_value(content: bytes, word: bytes) -> bool:
    # Most often the word is in a text, such as of a log: only one after a colon, comma or bracket is a value.
    at = content.find(word)
    while at >= 0:
        if content[max(at - _BEFORE_VALUE, 0) : at].rstrip(b"+- \t\r")[-1:] in (
            b":",
            b",",
            b"[",
            b"",
        ):
            return True
        at = content.find(word, at + 1)
    return False


@final
class _CsvRows(_Lines):
    """Each line is a record of RFC 4180, as in Trino and Spark: one with an odd quote hides no other."""

    def __init__(self, spec: TableSpec) -> None:
        self._names = [column.name for column in spec.columns]
        self._separator = spec.separator
        mark = re.escape(spec.separator).encode()
        # Before a quote, where a field may begin.
        self._blanks = re.compile(rb'(?:\A|%b|\n)[%b]+"' % (mark, _blanks_of(spec).encode()))

    def columns(self, content: bytes, names: Sequence[str]) -> list[pa.Array]:
        """See `RowParser`."""
        content = _utf8(content)
        fast = self._fast(content, names)
        return fast if fast is not None else self._slow(content, names)

    def _fast(self, content: bytes, names: Sequence[str]) -> list[pa.Array] | None:
        """By Arrow; None where that would not give what line by line gives."""
        if _ESCAPE.encode() in content:
            return None
        if b'"' in content and self._blanks.search(content) is not None:
            return None
        try:
            table = read_csv_lines(
                content,
                pa.schema([(name, pa.string()) for name in self._names]),
                names=names,
                delimiter=self._separator,
            )
        except RefusedError:
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


# As `hive.CSV_ESCAPE`, which takes long to import: engines drop it.
_ESCAPE: Final = "\x01"
