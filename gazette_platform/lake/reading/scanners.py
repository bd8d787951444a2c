"""Does every value have its column's type? What reading all lines of a fragment finds.

A value *fits* if the file says just what the spec does, so that both engines must read it alike: a
number without fraction for a bigint, ``true`` or ``false`` for a boolean, ``2020-01-31`` for a date. All
others are counted, with an example. A value *breaks* if Trino's SerDe would fail at it rather than
give NULL: an object or list where a scalar is wanted, a scalar where a struct or map is.

Lines are checked in pieces, by decoders and patterns in C that know the types; only a piece with
something unfit in it is taken apart. Cost: about a million rows of a dozen columns a second a core.

Are lines CSV as RFC 4180 has it, with as many fields as the table has columns?

Do the values of JSON lines fit their columns, and would Trino fail at one?
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from datetime import date
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, final

import msgspec
from typing_extensions import override

from gazette_platform.hive import CSV_ESCAPE
from gazette_platform.lake.spec.formats import csv_rows, header_pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gazette_platform.lake.spec.table_spec import Column, TableSpec
    from gazette_platform.lake.spec.types import ColumnType

_PIECE_BYTES = 512 << 10
# Trino refuses longer lines by default (`hive.text.max-line-length`).
_LINE_BYTES_MAX = 100 << 20
_EXAMPLE_BYTES = 40
# A table has at most 2,000 columns; lines may have any number of fields.
_KINDS_MAX = 2000


@final
@dataclass(slots=True)
class Unfit:
    """Values of one column, or lines, that do not fit for one reason."""

    count: int
    example: bytes
    """The beginning of the first one."""
    offset: int = 0
    """Of the first one's line in the content."""

    @property
    def shown(self) -> str:
        """The example as text."""
        text = self.example[:_EXAMPLE_BYTES].decode("utf-8", "replace")
        return repr(text) + ("…" if len(self.example) > _EXAMPLE_BYTES else "")


@final
@dataclass(frozen=True, slots=True)
class ValueReport:
    """What reading all values of a fragment showed."""

    columns: dict[str, Unfit] = field(default_factory=dict)
    """Values that do not fit, by name of their column."""
    lines: dict[str, Unfit] = field(default_factory=dict)
    """Lines that do not fit, by what is wrong with them."""
    records: int = 0
    """Lines with one such value or more, or that do not fit themselves."""
    breaking: frozenset[str] = frozenset()
    """Columns at whose values Trino fails, unless it reads them as text."""
    breaking_unpartitioned: frozenset[str] = frozenset()
    """The same where the table has no Hive partitions, whose columns could be read as text."""

    @property
    def count(self) -> int:
        """Values and lines that do not fit."""
        return sum(u.count for u in (*self.columns.values(), *self.lines.values()))


class LineScanner(ABC):
    """Cuts the content of one fragment into pieces of whole lines, and keeps what is found.

    Formats say what fits. `report` is to be asked for once, at the end.

    Attributes:
        headers: how many lines are headers of CSV, and no rows.
    """

    def __init__(self) -> None:
        self.headers = 0
        self.columns: dict[str, Unfit] = {}
        self.lines: dict[str, Unfit] = {}
        self.records = 0
        self.breaking: set[str] = set()
        self.breaking_unpartitioned: set[str] = set()
        self._rest = bytearray()
        self._is_skipping = False
        # Where the line that is looked at begins, and the last one in which something was found.
        self._line_at = 0
        self._found_at = -1

    def feed(self, block: bytes) -> None:
        """Look at the next bytes of content, cut anywhere."""
        cut = block.rfind(b"\n") + 1
        at = 0
        if cut and (self._rest or self._is_skipping):
            at = block.find(b"\n") + 1
            if self._is_skipping:
                self._line_at += at
            else:
                self._scan(bytes(self._rest) + block[:at])
            self._is_skipping = False
            self._rest.clear()
        while at < cut:
            end = block.rfind(b"\n", at, at + _PIECE_BYTES) + 1 or block.find(b"\n", at) + 1
            self._scan(block[at:end])
            at = end
        if self._is_skipping:
            self._line_at += len(block) - cut
        else:
            self._rest += block[cut:]
            if len(self._rest) > _LINE_BYTES_MAX:
                self.found_line("too long a line (over 100 MiB)", self._rest)
                self._line_at += len(self._rest)
                self._rest.clear()
                self._is_skipping = True

    def report(self, *, is_cut: bool = False) -> ValueReport:
        """What was found in all that was fed.

        Args:
            is_cut: whether more follows, so that what follows the last newline is not a line yet.
        """
        if self._rest and not is_cut:
            self._scan(bytes(self._rest) + b"\n")
            self._rest.clear()
        return ValueReport(
            self.columns,
            self.lines,
            self.records,
            frozenset(self.breaking),
            frozenset(self.breaking_unpartitioned),
        )

    def found_value(self, column: str, value: bytes) -> None:
        """Keep a value that does not fit."""
        self._note(self.columns, column, value)

    def found_line(self, what: str, line: bytes | bytearray) -> None:
        """Keep a line that does not fit."""
        self._note(self.lines, what, bytes(line[: _EXAMPLE_BYTES + 1]))

    def _scan(self, piece: bytes) -> None:
        """Check whole lines; each ends with a newline."""
        if self.is_fit(piece):
            self._line_at += len(piece)
        else:
            for line in piece[:-1].split(b"\n"):
                text = line.removesuffix(b"\r")
                if not text.strip():
                    self.found_line("a blank line", text)
                elif b"\r" in text:
                    self.found_line("a carriage return, which ends a line for the engines", text)
                elif not is_utf8(text):
                    self.found_line("not UTF-8", text)
                else:
                    self.scan_line(text)
                self._line_at += len(line) + 1

    def _note(self, found: dict[str, Unfit], what: str, example: bytes) -> None:
        if self._found_at < self._line_at:
            self._found_at = self._line_at
            self.records += 1
        if what not in found and len(found) >= _KINDS_MAX:
            what = "others"
        if what in found:
            found[what].count += 1
        else:
            found[what] = Unfit(1, example[: _EXAMPLE_BYTES + 1], self._line_at)

    @abstractmethod
    def is_fit(self, piece: bytes) -> bool:
        """Whether all lines of the piece fit; False if in doubt."""

    @abstractmethod
    def scan_line(self, line: bytes) -> None:
        """Return what is wrong with one line, if anything is."""


def is_utf8(text: bytes) -> bool:
    """Whether the bytes are UTF-8."""
    try:
        str(text, "utf-8")
    except UnicodeDecodeError:
        return False
    return True


# A field, where the separator is to be put in.
_FIELD = rb'(?>"(?>[^"\r\n\x01]|"")*+"|[^"%b\r\n\x01]*+)'


@final
class CsvScanner(LineScanner):
    """Lines that are records of RFC 4180, without line breaks in them."""

    def __init__(self, spec: TableSpec) -> None:
        super().__init__()
        self._separator = spec.separator
        self._header = header_pattern(spec)
        self._names = [c.key.lower() for c in spec.columns]
        marks = (self._separator, f'"{self._separator}"')
        self._headers = [mark.join(self._names).encode() for mark in marks]
        mark = re.escape(self._separator).encode()
        field = _FIELD % mark
        record = field + rb"(?>%b%b){%d}" % (mark, field, len(spec.columns) - 1)
        self._record = re.compile(record)
        self._records = re.compile(rb"(?>(?=[^\r\n])%b\r?\n)*+" % record)

    @override
    def _scan(self, piece: bytes) -> None:
        at = 0
        for header in self._header.finditer(piece) if self._header is not None else ():
            if header.start() > at:
                super()._scan(piece[at : header.start()])
            at = header.end()
            self.headers += 1
            self._line_at += len(header[0])
        if at < len(piece):
            super()._scan(piece[at:])

    @override
    def is_fit(self, piece: bytes) -> bool:
        # A header looks like a record.
        lower = piece.lower()
        return (
            not any(header in lower for header in self._headers)
            and self._records.fullmatch(piece) is not None
            and is_utf8(piece)
        )

    @override
    def scan_line(self, line: bytes) -> None:
        if self._is_header(line):
            as_is = " that is not as the spec says" if self._header is not None else ""
            self.found_line(f"a header{as_is}, which the engines show as a row", line)
        elif self._record.fullmatch(line) is not None:
            return
        elif CSV_ESCAPE.encode() in line:
            self.found_line("the control character U+0001, which engines take for an escape", line)
        elif line.count(b'"') % 2:
            self.found_line(
                "a quoted field that is not closed on its line: records of several lines are not "
                "supported",
                line,
            )
        else:
            width = len(next(csv_rows([line.decode()], self._separator)))
            if width != len(self._names):
                self.found_line(f"{width} fields, not {len(self._names)}", line)
            else:
                self.found_line("a quote within a field without quotes", line)

    def _is_header(self, line: bytes) -> bool:
        cells = next(csv_rows([line.decode()], self._separator), [])
        return [cell.strip().lower() for cell in cells] == self._names


_any_json = msgspec.json.Decoder(msgspec.Raw)
# Of a key that a record lacks; it fits any type, as null does.
_ABSENT = msgspec.Raw(b"null")
_FLOAT_MAX = 3.4028234663852886e38
_TAKE_ANY = frozenset({"string", "boolean"})
# Trino reads columns of these types of a Hive partition by way of text, which takes any value.
_READ_AS_TEXT = frozenset({"int", "bigint", "float", "double"})


def breaks(kind: ColumnType, value: Any, *, is_partitioned: bool) -> bool:
    """Whether Trino fails at a JSON value of a column of type `kind`, rather than give NULL.

    Args:
        kind: the column's type.
        value: the value, decoded.
        is_partitioned: whether the table has Hive partitions.
    """
    if kind.name not in ("array", "map", "struct"):
        is_any = kind.name in _TAKE_ANY or (is_partitioned and kind.name in _READ_AS_TEXT)
        return isinstance(value, dict | list) and not is_any
    parts = _parts(kind, value)
    return parts is None or any(breaks(t, v, is_partitioned=is_partitioned) for t, v in parts)


def _parts(kind: ColumnType, value: Any) -> list[tuple[ColumnType, Any]] | None:
    """What Trino takes for the parts of an array, map or struct; None if it fails at the value."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return []
    if kind.name == "array":
        # A value that is not a list is taken for the only element of one.
        items = value if isinstance(value, list) else [value]
        return [(kind.arguments[0], item) for item in items]
    if isinstance(value, dict):
        if kind.name == "map":
            return [(kind.arguments[1], item) for item in value.values()]
        types = {n.lower(): t for n, t in zip(kind.field_names, kind.arguments, strict=True)}
        return [(types[k.lower()], item) for k, item in value.items() if k.lower() in types]
    if isinstance(value, list) and kind.name == "struct":
        # Elements are taken for the fields, in order.
        return list(zip(kind.arguments, value, strict=False))
    return None


@final
@dataclass(frozen=True, slots=True)
class _RowTypes:
    """Decoders of records: of such as fit, and of the values as they are written."""

    rows: msgspec.json.Decoder[Any]
    raw: msgspec.json.Decoder[Any]
    columns: list[tuple[Column, ColumnType, Callable[[Any], bool]]]


@lru_cache(maxsize=256)
def _row_types(columns: tuple[Column, ...]) -> _RowTypes:
    keys = [c.key for c in columns]
    row = _struct([_python_type(c.parsed) for c in columns], keys)
    return _RowTypes(
        msgspec.json.Decoder(row),
        msgspec.json.Decoder(_raw_struct(keys)),
        [(c, c.parsed, _value_test(c.parsed)) for c in columns],
    )


@final
class JsonScanner(LineScanner):
    """Lines that are JSON objects."""

    def __init__(self, spec: TableSpec) -> None:
        super().__init__()
        self._types = _row_types(spec.columns)

    @override
    def is_fit(self, piece: bytes) -> bool:
        # A decoder knows no lines. Where every line begins with a brace and ends with one, and
        # there are as many objects as lines, each line is one object: within an object or list, none
        # of the bytes that may follow a brace is an opening one.
        lines = piece.count(b"\n")
        ends = piece.count(b"}\n")
        if b"\r" in piece:
            returns = piece.count(b"}\r\n")
            if piece.count(b"\r") != returns:
                return False
            ends += returns
        if piece[:1] != b"{" or ends != lines or piece.count(b"\n{") != lines - 1:
            return False
        try:
            # Texts that are skipped are not decoded.
            return is_utf8(piece) and len(self._types.rows.decode_lines(piece)) == lines
        except (msgspec.DecodeError, RecursionError):
            return False

    @override
    def scan_line(self, line: bytes) -> None:
        try:
            self._scan_record(line)
        except RecursionError:
            self.found_line("nested too deep to be looked at", line)

    def _scan_record(self, line: bytes) -> None:
        try:
            self._types.rows.decode(line)
        except msgspec.DecodeError:
            # What is wrong with a value is reported before what is wrong with the rest of the line.
            if not _is_json(line):
                self.found_line("not JSON", line)
            elif line.lstrip()[:1] == b"{":
                self._scan_values(line)
            else:
                self.found_line("no JSON object", line)
                self._scan_list(line)

    def _scan_values(self, line: bytes) -> None:
        values = msgspec.structs.astuple(self._types.raw.decode(line))
        for value_of, (column, kind, is_fit) in zip(values, self._types.columns, strict=True):
            # A short line lacks most columns of a wide table, and there may be many such lines.
            if value_of is _ABSENT:
                continue
            raw = bytes(value_of)
            if not is_fit(raw):
                self.found_value(column.name, raw)
                value = _decoded(raw) if kind.arguments else _outline(raw)
                self._note_breaking(column.name, kind, value)

    def _scan_list(self, line: bytes) -> None:
        """Trino takes the elements of a list for the columns, in order."""
        values = _decoded(line)
        if isinstance(values, list):
            for (column, kind, _), value in zip(self._types.columns, values, strict=False):
                self._note_breaking(column.name, kind, value)

    def _note_breaking(self, column: str, kind: ColumnType, value: Any) -> None:
        if breaks(kind, value, is_partitioned=True):
            self.breaking.add(column)
        if breaks(kind, value, is_partitioned=False):
            self.breaking_unpartitioned.add(column)


def _python_type(kind: ColumnType) -> Any:
    """A type that decodes just the values that fit; null fits any."""
    match kind.name:
        case "string":
            # Any value has a text. Each engine writes it in its own form, and all forms are the same JSON.
            return msgspec.Raw
        case "array":
            made: Any = list[_python_type(kind.arguments[0])]  # type: ignore[misc]
        case "map":
            made = dict[str, _python_type(kind.arguments[1])]  # type: ignore[misc]
        case "struct":
            made = _struct([_python_type(t) for t in kind.arguments], kind.field_names)
        case "decimal":
            # What the last digit would be rounded up to has a digit too many.
            bound = float(10 ** (kind.precision - kind.scale)) - 0.5 * 10.0**-kind.scale
            made = Annotated[float, msgspec.Meta(gt=-bound, lt=bound)]
        case name:
            made = _SCALARS[name]
    return made | None


def _integers(bits: int) -> Any:
    half = 1 << (bits - 1)
    return Annotated[int, msgspec.Meta(ge=-half, le=half - 1)]


_SCALARS: dict[str, Any] = {
    "boolean": bool,
    "tinyint": _integers(8),
    "smallint": _integers(16),
    "int": _integers(32),
    "bigint": _integers(64),
    "float": Annotated[float, msgspec.Meta(ge=-_FLOAT_MAX, le=_FLOAT_MAX)],
    "double": float,
    "date": date,
}


def _struct(types: Sequence[Any], keys: Sequence[str]) -> Any:
    names = [f"c{index}" for index in range(len(keys))]
    return msgspec.defstruct(
        "Row",
        [(name, kind, None) for name, kind in zip(names, types, strict=True)],
        rename=dict(zip(names, keys, strict=True)),
        gc=False,
    )


def _outline(raw: bytes) -> Any:
    """A value that is nested where the JSON value is: more does not matter to a scalar column."""
    return [] if raw[:1] in b"[{" else None


def _decoded(raw: bytes) -> Any:
    """A JSON value, whose numbers do not matter: an `int` has digits enough to be refused."""
    return json.loads(raw, parse_int=float)


def _is_json(line: bytes) -> bool:
    try:
        _any_json.decode(line)
    except msgspec.DecodeError:
        return False
    return True


def _value_test(kind: ColumnType) -> Callable[[Any], bool]:
    """Return a function that tests whether one JSON value, as written, fits."""
    decode = msgspec.json.Decoder(_python_type(kind)).decode

    def is_fit(raw: Any) -> bool:
        try:
            decode(raw)
        except msgspec.DecodeError:
            return False
        return True

    return is_fit


def _raw_struct(keys: Sequence[str]) -> Any:
    names = [f"c{index}" for index in range(len(keys))]
    fields = [(name, msgspec.Raw, _ABSENT) for name in names]
    return msgspec.defstruct("Raw", fields, rename=dict(zip(names, keys, strict=True)), gc=False)
