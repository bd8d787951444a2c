"""Recognise the format of content from its first bytes, and read rows and header rows of CSV. Pure.

`append` warns by the format, and tables of journals (`infer`, `journal(…)`) are made or refused by it. Magic bytes decide
first, then the encoding, then the shape of the text: JSON values over several lines, JSON lines, CSV.

A header row may stand anywhere, since each file that was appended may begin with one. It is one if its fields are the columns'
keys, as written; a shorter one was written when the table had fewer columns. A byte order mark may precede its first field.

DuckDB's `sniff_csv` is not used: it takes prose for a column, the only row of words for a header, decimal commas for delimiters
and a short line for another dialect, and refuses text in other encodings and lines with a carriage return within.
"""

from __future__ import annotations

import codecs
import csv
import enum
import json
import re
from collections import Counter
from dataclasses import dataclass, replace
from datetime import date
from typing import TYPE_CHECKING, Any, Final, final

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gazette_platform.lake.spec.table_spec import TableSpec

HEAD_BYTES: Final = 64 << 10
"""How many bytes are enough to recognise content."""

_LINES_READ: Final = 1000
# Of lines that are JSON objects: with fewer, CSV is tried first.
_JSON_SHARE: Final = 0.1
# Of rows that have as many fields as most have.
_CSV_SHARE: Final = 0.5
_DELIMITERS: Final = (",", ";", "\t", "|")
_HEADER_CHARACTERS_MAX: Final = 64
# Of UTF-16 without a mark: fewer may be anything.
_GUESSED_BYTES_MIN: Final = 8
_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}\Z")
_DECIMAL_COMMA: Final = re.compile(r"(?<=\d),(?=\d)")


class Kind(enum.StrEnum):
    """What content is."""

    EMPTY = "empty"
    GZIP = "gzip"
    ZSTD = "zstd"
    BZIP2 = "bzip2"
    XZ = "xz"
    ZIP = "zip"
    XLSX = "XLSX"
    PARQUET = "Parquet"
    AVRO = "Avro"
    ORC = "ORC"
    FIXED = "fixed frames"
    JSON_LINES = "JSON lines"
    JSON_ARRAY = "JSON array"
    JSON_VALUES = "JSON values"
    """Values that are not one a line, as pretty-printed ones."""
    CSV = "CSV"
    TEXT = "text"
    BINARY = "binary"


_MAGIC: Final = {
    b"\x1f\x8b": Kind.GZIP,
    b"\x28\xb5\x2f\xfd": Kind.ZSTD,
    b"BZh": Kind.BZIP2,
    b"\xfd7zXZ\0": Kind.XZ,
    b"PK\x03\x04": Kind.ZIP,
    b"PK\x05\x06": Kind.ZIP,  # an empty one
    b"PAR1": Kind.PARQUET,
    b"Obj\x01": Kind.AVRO,
    b"ORC": Kind.ORC,
    b"\x66\x33\x93\x36": Kind.FIXED,
}
_WORDS: Final = frozenset({Kind.BZIP2, Kind.PARQUET, Kind.ORC})
"""Kinds whose magic bytes are letters, with which text may begin: a column `ORCID`, say."""
_BINARY_BYTES: Final = 4 << 10
_COMPRESSED: Final = frozenset({Kind.GZIP, Kind.ZSTD, Kind.BZIP2, Kind.XZ, Kind.ZIP})
_OF_OFFICE: Final = (b"[Content_Types].xml", b"xl/", b"_rels/")
_UTF8: Final = "utf-8"
WINDOWS: Final = "windows-1252"
"""What text of one byte a character is taken for."""
# Longer marks first: that of UTF-32 begins with that of UTF-16.
_MARKS: Final = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


@final
@dataclass(frozen=True, slots=True)
class ContentFormat:
    """What content was recognised as."""

    kind: Kind
    encoding: str = _UTF8
    """Of text: as Python calls it."""
    delimiter: str = ""
    """Of CSV."""
    header: tuple[str, ...] = ()
    """Of CSV: the texts of the row that names the columns, if one does."""
    is_over_lines: bool = False
    """Of CSV: whether quoted fields have line breaks, which no engine reads."""

    @property
    def is_records(self) -> bool:
        """Whether records are lines, so that a last line without a newline is half a record."""
        return self.kind in {Kind.JSON_LINES, Kind.CSV}


def recognize(head: bytes) -> ContentFormat:
    r"""Return the format of content that begins with `head`.

    >>> recognize(b"\x1f\x8b\x08...").kind.value, recognize(b'{"a": 1}\n').kind.value
    ('gzip', 'JSON lines')
    >>> found = recognize(b"id;price\n1;2,50\n2;3,10\n")
    >>> found.kind.value, found.delimiter, found.header
    ('CSV', ';', ('id', 'price'))
    """
    if not head.strip(b" \t\r\n"):
        return ContentFormat(Kind.EMPTY)
    begin = head.lstrip(b"\r\n")
    for magic, kind in _MAGIC.items():
        if begin.startswith(magic):
            if kind in _WORDS and not _HAS_CONTROL.search(begin, 0, _BINARY_BYTES):
                continue
            is_office = kind is Kind.ZIP and any(name in head[:4096] for name in _OF_OFFICE)
            return ContentFormat(Kind.XLSX if is_office else kind)
    encoding = _encoding(head)
    if encoding is None:
        return ContentFormat(Kind.BINARY)
    # A character may be cut at the end.
    text = codecs.getincrementaldecoder(encoding)("replace").decode(head)
    return replace(_of_text(text.removeprefix("\ufeff")), encoding=encoding)


def _encoding(head: bytes) -> str | None:
    """Return the encoding of text; None if it is not text."""
    for mark, encoding in _MARKS.items():
        if head.startswith(mark):
            return encoding
    if b"\0" in head and len(head) >= _GUESSED_BYTES_MIN:
        # Texts of Latin letters have a zero in every other byte.
        half = len(head) // 2
        even, odd = head[::2].count(0), head[1::2].count(0)
        for zeros, others, encoding in ((odd, even, "utf-16-le"), (even, odd, "utf-16-be")):
            if zeros * 10 > half * 4 and others * 20 < half:
                return encoding
    # The last line may be cut within a character.
    lines = head.rpartition(b"\n")[0] or head
    whole = [line for line in lines.split(b"\n")[:_LINES_READ] if line.strip()]
    binary = sum(1 for line in whole if b"\0" in line or not line.strip(_CONTROLS))
    beyond = [line for line in whole if not line.isascii()]
    broken = [line for line in beyond if not _is_utf8(line)]
    if binary * 2 > len(whole):
        return None
    if len(broken) * 2 <= len(beyond):
        return _UTF8
    is_text = not any(byte in _NOT_WINDOWS for line in broken for byte in line)
    if is_text:
        return WINDOWS
    return None if len(broken) * 2 > len(whole) else _UTF8


_CONTROLS: Final = bytes(set(range(32)) - set(b"\t\r\n"))
_HAS_CONTROL: Final = re.compile(b"[%b]" % re.escape(_CONTROLS))
# Bytes that Windows-1252 has no character for, and controls that no text has.
_NOT_WINDOWS: Final = frozenset({0x81, 0x8D, 0x8F, 0x90, 0x9D, 0x7F, *_CONTROLS})


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _of_text(text: str) -> ContentFormat:
    lines = [line for line in text.split("\n")[:_LINES_READ] if line.strip()]
    if not lines:
        return ContentFormat(Kind.EMPTY)
    records = len(decoded(line.encode("utf-8", "replace") for line in lines)[0])
    if records * 2 > len(lines):
        return ContentFormat(Kind.JSON_LINES)
    if found := _over_lines(text.lstrip(), lines):
        return ContentFormat(found)
    if records and records >= _JSON_SHARE * len(lines):
        return ContentFormat(Kind.JSON_LINES)
    if csv := _csv(lines):
        return csv
    return ContentFormat(Kind.JSON_LINES if records else Kind.TEXT)


# ------------------------------------------------------------------ JSON

# Only such a line can hold an integer beyond 64 bits, which orjson reads as a float.
_MANY_DIGITS: Final = re.compile(rb"\d{19}")
_DIGITS_MAX: Final = 60


def decoded(lines: Iterable[bytes]) -> tuple[list[dict[str, Any]], list[bytes]]:
    """The records of JSON lines, and the lines that are not JSON objects. Blank lines are neither.

    A byte order mark before a record is passed over, as Spark does, and Trino at the begin of a file.
    """
    records: list[dict[str, Any]] = []
    others: list[bytes] = []
    for whole in lines:
        line = whole.removeprefix(codecs.BOM_UTF8)
        if not line.strip():
            continue
        try:
            record = orjson.loads(line)
            if _MANY_DIGITS.search(line):
                record = _with_long_integers(line, record)
        except orjson.JSONDecodeError:
            record = None
        if isinstance(record, dict):
            records.append(record)
        else:
            others.append(whole)
    return records, others


def _with_long_integers(line: bytes, record: Any) -> Any:
    try:
        return json.loads(line, parse_int=_integer)
    except (RecursionError, ValueError):
        return record  # nested too deep for the slower parser, or not what it takes for JSON


def _integer(text: str) -> int:
    """The integer; one of many digits is cut to some that no type holds either."""
    return int(text) if len(text) <= _DIGITS_MAX else int(text[:_DIGITS_MAX])


def _over_lines(text: str, lines: Sequence[str]) -> Kind | None:
    """Return the kind of JSON that is not one value a line; None if it is no such JSON."""
    if text[:1] not in {"{", "["} or decoded([lines[0].encode("utf-8", "replace")])[0]:
        return None
    is_array = text[0] == "["
    rest = text[1:].lstrip() if is_array else text
    if is_array and rest[:1] in {"]", ""}:
        return Kind.JSON_ARRAY
    try:
        _, end = json.JSONDecoder(parse_int=str, parse_float=str).raw_decode(rest)
    except (ValueError, RecursionError):
        if not _may_be_cut(rest, lines, is_array=is_array):
            return None
    else:
        if is_array and rest[end:].lstrip()[:1] not in {",", "]", ""}:
            return None
        is_line = "\n" not in rest[:end] and not rest[end:].partition("\n")[0].strip()
        if is_line and not is_array:
            return None
    return Kind.JSON_ARRAY if is_array else Kind.JSON_VALUES


def _may_be_cut(rest: str, lines: Sequence[str], *, is_array: bool) -> bool:
    """Whether text may be JSON that is longer than what is looked at."""
    if decoded(line.encode("utf-8", "replace") for line in lines)[0]:
        return False
    if is_array and rest[:1] not in {"{", "["}:
        return False
    return is_array if len(lines) == 1 else lines[0].rstrip()[-1] in {"{", "[", ",", ":"}


# ------------------------------------------------------------------ CSV


def _csv(lines: Sequence[str]) -> ContentFormat | None:
    """Return the delimiter and header of lines of CSV; None if they are none."""
    texts = [line.removesuffix("\r") for line in lines]
    rows = {each: [row for row in csv_rows(texts, each) if row] for each in _DELIMITERS}
    widths = {each: _width(found) for each, found in rows.items()}
    best = max(share for _, share in widths.values())
    if best < _CSV_SHARE:
        return None
    fit = [each for each, (_, share) in widths.items() if share > best - 0.05]
    if "," in fit and len(fit) > 1 and not _commas_delimit(texts):
        fit.remove(",")
    delimiter = max(fit, key=lambda each: (each == ",", widths[each][0]))
    # A record that the head cuts is one of several lines, too.
    whole = texts[:-1] if len(texts) > 1 else texts
    return ContentFormat(
        Kind.CSV,
        delimiter=delimiter,
        header=header_of(rows[delimiter], widths[delimiter][0]),
        is_over_lines=len(list(csv_rows(whole, delimiter))) < len(whole),
    )


def _width(rows: Sequence[Sequence[str]]) -> tuple[int, float]:
    """Return how many fields most rows have, and the share of those; none if that is one field."""
    counts = Counter(map(len, rows)).most_common(1)
    if not counts or counts[0][0] < 2:
        return 0, 0.0
    width, count = counts[0]
    return width, count / len(rows)


def _commas_delimit(texts: Sequence[str]) -> bool:
    """Whether commas stand elsewhere than in numbers, in the first line as in others."""
    return "," in texts[0] and any("," in _DECIMAL_COMMA.sub("", text) for text in texts)


def header_of(rows: Sequence[Sequence[str]], width: int) -> tuple[str, ...]:
    """Return the texts of the first row that has `width` fields if it names the columns.

    It does if its texts are distinct words over columns with one that has only numbers or dates, or if it comes
    again, as the files that were appended each have one.
    """
    head = next((row for row in rows if len(row) == width), [])
    cells = [cell.removeprefix("\ufeff") for cell in head]
    words = {cell.strip().lower() for cell in cells}
    are_words = all(
        word and not word[0].isdigit() and len(word) < _HEADER_CHARACTERS_MAX for word in words
    )
    if not cells or not are_words or len(words) < width:
        return ()
    rest = [row for row in rows if len(row) == width and not is_header(row, cells)]
    again = sum(is_header(row, cells) for row in rows) > 1
    columns = ([row[index] for row in rest if row[index]] for index in range(width))
    is_over_values = any(values and all(map(_is_value, values)) for values in columns)
    return tuple(cells) if is_over_values or (again and rest) else ()


def is_header(row: Sequence[str], header: Sequence[str]) -> bool:
    """Whether a row is one that names the columns."""
    return [cell.removeprefix("\ufeff") for cell in row] == list(header)


def _is_value(text: str) -> bool:
    """Whether a text is a number or a date, as no name of a column is."""
    try:
        float(_DECIMAL_COMMA.sub(".", text))
    except ValueError:
        return is_date(text[:10])
    return True


def is_date(text: str) -> bool:
    """Whether all engines read the text as one date.

    >>> is_date("2026-02-28"), is_date("2026-02-30"), is_date("20260228")
    (True, False, False)
    """
    if not _DATE.match(text):
        return False
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


# ------------------------------------------------------------------ words

_TITLES: Final = {
    **{kind: f"compressed by {kind}" for kind in _COMPRESSED},
    Kind.PARQUET: "a Parquet file",
    Kind.AVRO: "an Avro file",
    Kind.ORC: "an ORC file",
    Kind.XLSX: "an Office file, such as XLSX",
    Kind.FIXED: "messages of fixed framing (such as protobuf)",
    Kind.BINARY: "not text",
}
_TITLES_OF_TEXT: Final = {
    Kind.JSON_ARRAY: "a JSON array",
    Kind.JSON_VALUES: "JSON values that are not one a line, such as pretty-printed ones",
}
_APPEND: Final = "`gazctl journals append {}`"
_AS_LINES: Final = _APPEND.format("--framing json-array")
_REMEDIES: Final = {
    **dict.fromkeys(_COMPRESSED, f"append it decompressed ({_APPEND.format('--decompress')})"),
    Kind.PARQUET: "write its rows as JSON lines, and append those "
    "(`gazctl sql \"FROM 'FILE.parquet'\" -o json | gazctl journals append NAME`)",
    **dict.fromkeys((Kind.AVRO, Kind.ORC), "write its rows as JSON lines or CSV, and append those"),
    Kind.XLSX: "save each sheet as CSV in UTF-8, and append that",
    Kind.FIXED: "append JSON lines or CSV: tables need one of these",
    Kind.BINARY: "append JSON lines or CSV in UTF-8",
}
OVER_LINES: Final = (
    "append its rows as JSON lines (`gazctl sql \"FROM read_csv('FILE.csv', all_varchar=true)\" -o json | "
    "gazctl journals append NAME`)"
)
"""What to do about CSV with line breaks in its fields."""
_REMEDIES_OF_TEXT: Final = {
    Kind.JSON_ARRAY: f"append its elements, one a line ({_AS_LINES})",
    Kind.JSON_VALUES: f"append them one a line ({_AS_LINES})",
}


def title(found: ContentFormat) -> str:
    r"""Return what to call the content in a sentence that begins with "is".

    >>> title(recognize(b"PAR1\x15")), title(recognize("a;1\nb;2".encode("utf-16")))
    ('a Parquet file', 'text in UTF-16')
    """
    if found.kind in _TITLES:
        return _TITLES[found.kind]
    if found.encoding != _UTF8:
        return f"text in {found.encoding.upper().replace('WINDOWS', 'Windows')}"
    return _TITLES_OF_TEXT.get(found.kind, found.kind.value)


def remedy(found: ContentFormat) -> str:
    """Return what to do about content that cannot be a table as it is; empty if it can.

    >>> remedy(recognize(b'[{"a": 1}]'))
    'append its elements, one a line (`gazctl journals append --framing json-array`)'
    """
    if found.kind in _REMEDIES:
        return _REMEDIES[found.kind]
    if found.encoding != _UTF8:
        return f"append it as UTF-8 ({_APPEND.format(f'--encoding {found.encoding}')})"
    return _REMEDIES_OF_TEXT.get(found.kind, "")


_MARK = "\ufeff"


def header_pattern(spec: TableSpec) -> re.Pattern[bytes] | None:
    r"""Return what matches whole header lines within content; None if the table has none.

    >>> from gazette_platform.lake.spec.table_spec import parse_table_spec
    >>> spec = "{name: a.b, selector: name=x, format: csv, header: true, columns: [%s]}"
    >>> columns = "{name: id, type: string}, {name: unit, from: Unit price, type: string}"
    >>> pattern = header_pattern(parse_table_spec(spec % columns))
    >>> pattern.sub(b"", b'id,"Unit price"\n1,2\nid,Unit price\r\nid\nid,x\n')
    b'1,2\nid,x\n'
    """
    if not spec.header:
        return None
    separator = re.escape(spec.separator).encode()
    first, *others = (_cell(column.key, spec.separator) for column in spec.columns)
    # Groups side by side: the parser of patterns recurses into groups within each other.
    rest = b"".join(rb"(?:%b%b|(?=\r?\n))" % (separator, cell) for cell in others)
    # A further field, which no column has, hides no header.
    more = rb"(?:%b[^\n]*)?" % separator
    return re.compile(rb"^(?:%b)?%b%b%b\r?\n" % (_MARK.encode(), first, rest, more), re.MULTILINE)


def _cell(key: str, separator: str) -> bytes:
    """Return what matches a field, bare or in quotes."""
    quoted = '"{}"'.format(key.replace('"', '""'))
    if '"' in key or separator in key:
        return re.escape(quoted).encode()
    return rb"(?:%b|%b)" % (re.escape(key).encode(), re.escape(quoted).encode())


def header_places(content: bytes, pattern: re.Pattern[bytes]) -> list[int]:
    """Return which lines of `content`, counted from 0, are headers."""
    found: list[int] = []
    line = at = 0
    for match in pattern.finditer(content):
        line += content.count(b"\n", at, match.start())
        at = match.start()
        found.append(line)
    return found


def header_condition(
    spec: TableSpec, quoted: Callable[[str], str], literal: Callable[[str], str]
) -> str:
    """Return a condition of SQL that is true of rows, and false or NULL of headers; empty if the table has none.

    Args:
        spec: of the table.
        quoted: quotes a name.
        literal: quotes a text.
    """
    if not spec.header:
        return ""
    first, *others = spec.columns
    name = quoted(first.name)
    # Behind a mark, quotes are a part of the field to engines.
    marked = (first.key, _MARK + first.key, f'{_MARK}"{first.key}"')
    # A column that a short line lacks is NULL, which decides nothing.
    terms = [f"{name} IS NULL", f"{name} NOT IN ({', '.join(map(literal, marked))})"]
    terms += [f"{quoted(column.name)} <> {literal(column.key)}" for column in others]
    return f"({' OR '.join(terms)})"


# Trino refuses longer lines by default; Python's own limit is 128 KiB.
_FIELD_CHARACTERS_MAX: Final = 100 << 20


def csv_rows(lines: Iterable[str], delimiter: str = ",") -> Iterator[list[str]]:
    r"""Fields of records of RFC 4180. What is none, as for a carriage return in it, has no fields.

    >>> list(csv_rows(['1,"a, b"', "2,a\rb", "3"]))
    [['1', 'a, b'], [], ['3']]
    """
    # Of the process: others may want longer ones.
    csv.field_size_limit(max(csv.field_size_limit(), _FIELD_CHARACTERS_MAX))
    reader = csv.reader(lines, delimiter=delimiter)
    while True:
        try:
            yield next(reader)
        except StopIteration:
            return
        except csv.Error:
            yield []
