"""Content of a table as Arrow columns: all that fits by Arrow's parsers, the rest value by value.

Arrow parses a block at a quarter of a gigabyte a second and refuses it whole for one value that does not
fit. Such a block is parsed line by line, by the rules of `json_values`, at a tenth of that. Which of both
it was is not to be seen in the rows.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Protocol, final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from gazette_platform.errors import DataError
from gazette_platform.lake.csv_rows import csv_rows
from gazette_platform.lake.local_sql.json_values import fitted, parse_line
from gazette_platform.message.arrow_parsers import arrow_parser
from gazette_platform.message.many import JournalSpan
from gazette_platform.protocol import LabelSet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gazette_platform.lake.schema import ColumnType
    from gazette_platform.lake.table_spec import TableSpec

__all__ = ["RowParser", "arrow_type", "row_parser"]

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

    >>> from gazette_platform.lake.schema import parse_type
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
        """Where each of the whole records of `content` ends, behind its newline."""
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
        # It passes over empty lines, and takes records of several, of which each makes fewer rows.
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
