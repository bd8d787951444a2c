"""Lines of JSON as columns, by Arrow; lines that are not records of the schema are found, and left out.

Arrow refuses a block for one bad line, and takes some things wrongly: values over two lines or two in one, texts
that are not UTF-8, `NaN`, a year 0, digits beyond a decimal's. So a block is checked before and after, and if it is
refused, msgspec looks at each line, and Arrow has the last word. A line is kept alone if and only if it is among others.

Blocks of records as the record batches that Spark gets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, final

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyarrow import csv as arrow_csv, json as arrow_json

from gazette_platform.errors import DataError, ValidationError
from gazette_platform.message.arrow_parsers import check_depth

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gazette_platform.spark.columns import Columns
    from gazette_platform.spark.options import Mode

_DAY_US: Final = 86_400_000_000
_YEAR_1_DAY: Final = -719_162
_YEAR_10000_DAY: Final = 2_932_897


class RefusedError(Exception):
    """Lines are not good as a whole; says why."""


@final
class JsonRecords:
    """Makes columns of lines. Not for several threads.

    Args:
        schema: of the columns, at least one, by the keys of records.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        parsed = pa.schema([(field.name, _parsed_type(field.type)) for field in schema])
        self._options = arrow_json.ParseOptions(
            explicit_schema=parsed, unexpected_field_behavior="ignore"
        )
        self._may_be_good = _line_check(schema)

    def fit(self, content: bytes) -> pa.Table:
        """All lines of `content`, which ends with a newline, as columns. Raises: RefusedError."""
        _check_plain(content)
        try:
            check_depth(content)
            table = arrow_json.read_json(
                pa.BufferReader(content),
                read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(content) + 1),
                parse_options=self._options,
            )
            if table.num_rows != content.count(b"\n"):
                raise RefusedError("it is not one JSON object")
            columns = [
                _typed(table.column(field.name).combine_chunks(), field.type)
                for field in self._schema
            ]
        except (pa.ArrowException, DataError) as err:
            raise RefusedError(str(err)) from err
        return pa.Table.from_arrays(columns, schema=self._schema)

    def may_be_good(self, line: bytes) -> bool:
        """Whether a line is worth being given to Arrow among others."""
        return self._may_be_good(line)


def json_uuids(lines: Sequence[bytes], path: tuple[str, ...]) -> pa.Array:
    """The texts at `path` of each line, for all at once where Arrow takes them; null where there is none."""
    kind: pa.DataType = pa.string()
    for key in reversed(path[1:]):
        kind = pa.struct([(key, kind)])
    try:
        table = JsonRecords(pa.schema([(path[0], kind)])).fit(b"\n".join([*lines, b""]))
    except RefusedError:
        return pa.array([_text_at(line, path) for line in lines], pa.string())
    found = table.column(0).combine_chunks()
    for key in path[1:]:
        found = pc.struct_field(found, key)
    return found


def _text_at(line: bytes, path: tuple[str, ...]) -> str | None:
    try:
        value: Any = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    # A lone surrogate, which JSON can name and a column of texts cannot hold, is not a UUID.
    return value if isinstance(value, str) and value.isascii() else None


def _parsed_type(kind: pa.DataType) -> pa.DataType:
    """What Arrow's reader of JSON can make: dates come as texts."""
    if pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _parsed_type(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, _parsed_type(kind.value_type)))
    return kind


def _typed(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column of its type. Raises: RefusedError, pa.ArrowException: a value is not what JSON or Spark has."""
    _check_values(column, kind)
    return column if column.type == kind else pc.cast(column, kind)


def _check_values(column: pa.Array, kind: pa.DataType) -> None:
    types = pa.types
    if types.is_struct(kind):
        for index, field in enumerate(kind):
            _check_values(column.field(index), field.type)
    elif types.is_list(kind):
        _check_values(column.flatten(), kind.value_type)
    elif types.is_decimal(kind):
        # It compares digits before it scales a number: 1234 becomes 1234.00 of a decimal(5,2).
        column.validate(full=True)
    elif types.is_floating(kind):
        if pc.all(pc.is_finite(column)).as_py() is False:
            raise RefusedError("NaN and infinities are not JSON")
    elif types.is_date(kind):
        if pc.any(pc.starts_with(column, "0000")).as_py():
            raise RefusedError("a year before the first")
    else:
        check_years(column)


def check_years(column: pa.Array) -> None:
    """See that days and instants are of years that Python has. Columns of other types are let pass.

    Raises: RefusedError: one is not: there is no year 0, and a zone may lead to the year 10000.
    """
    if pa.types.is_date32(column.type):
        per_day, numbers = 1, pc.cast(column, pa.int32())
    elif pa.types.is_timestamp(column.type):
        per_day, numbers = _DAY_US, pc.cast(column, pa.int64())
    else:
        return
    least, end = (pa.scalar(day * per_day, numbers.type) for day in (_YEAR_1_DAY, _YEAR_10000_DAY))
    if pc.any(pc.less(numbers, least)).as_py():
        raise RefusedError("a year before the first")
    if pc.any(pc.greater_equal(numbers, end)).as_py():
        raise RefusedError("a year behind 9999")


def _check_plain(content: bytes) -> None:
    """Raises: RefusedError: Arrow might take for records what are none, or other ones.

    It takes values from wherever they stand: an object over two lines, two in one, or none (`null` ends the
    process). Between such ends a row never spans lines.
    """
    ends = pa.array([0, len(content)], pa.int64()).buffers()[1]
    text = pa.Array.from_buffers(pa.large_string(), 1, [None, ends, pa.py_buffer(content)])
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        raise RefusedError("it is not UTF-8") from None
    is_plain = content.startswith(b"{") and content.endswith(b"}\n")
    if not is_plain or content.count(b"}\n{") != content.count(b"\n") - 1:
        raise RefusedError("it is not one JSON object")


def _line_check(schema: pa.Schema) -> Callable[[bytes], bool]:
    """Whether a line is an object with values of about the right kinds."""
    decode = msgspec.json.Decoder(_struct(schema)).decode

    def may_be_good(line: bytes) -> bool:
        try:
            decode(line)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return False
        return True

    return may_be_good


def _struct(fields: Any) -> type[msgspec.Struct]:
    """A struct of msgspec. Its attributes are numbered: keys need not be names."""
    listed = list(fields)
    return msgspec.defstruct(
        "Record",
        [(f"f{at}", _kind(field.type) | None, None) for at, field in enumerate(listed)],
        rename={f"f{at}": field.name for at, field in enumerate(listed)},
    )


def _kind(kind: pa.DataType) -> Any:
    types = pa.types
    if types.is_struct(kind):
        return _struct(kind)
    if types.is_list(kind):
        of: Any = _kind(kind.value_type) | None
        return list[of]
    if types.is_boolean(kind):
        return bool
    if types.is_integer(kind):
        return int
    if types.is_floating(kind):
        return float
    return float | str if types.is_decimal(kind) else str


JSON: Final = "application/x-ndjson"
CSV: Final = "text/csv"
FIXED: Final = "application/x-protobuf-fixed"
TEXTS: Final = (JSON, CSV)
"""Content types whose records are lines."""

_MARK: Final = b"\xef\xbb\xbf"

_UUID: Final = re.compile(rb"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\Z")


@final
@dataclass(frozen=True, slots=True)
class Block:
    """Records of a journal, in order."""

    journal: str
    content: bytes
    """All of them; of texts each ends with a newline."""
    begins: pa.Int64Array
    """Byte offset of each."""
    ends: pa.Int64Array
    """Byte offset after each."""
    frames: Sequence[bytes] | None = None
    """Each of them, of content that is not text."""
    uuids: Sequence[str | None] | None = None
    """Those that are known already."""

    def lines(self) -> list[bytes]:
        """Each record, of texts without its newline."""
        return list(self.frames) if self.frames is not None else self.content.split(b"\n")[:-1]


class _Parser(Protocol):
    def fit(self, content: bytes) -> pa.Table:
        """All lines as columns. Raises: RefusedError."""
        ...

    def may_be_good(self, line: bytes) -> bool:
        """Whether a line is worth being tried among others."""
        ...


@final
class Records:
    """Makes record batches of blocks of one content type. Not for several threads.

    Args:
        uuid_path: keys that lead to the UUID of a JSON record.
        mode: what becomes of records that are not of the schema.

    Raises: ValidationError: columns are asked for by name, of records that have no names.
    """

    def __init__(
        self, content_type: str, columns: Columns, *, uuid_path: tuple[str, ...], mode: Mode
    ) -> None:
        self._type = content_type
        self._columns = columns
        self._path = uuid_path
        self._mode = mode
        self._parser: _Parser | None = None
        if columns.data.names:
            self._parser = _parser(content_type, columns.data)

    def batches(self, block: Block) -> list[pa.RecordBatch]:
        """A block as batches of the schema that was asked for, in order.

        Raises: DataError: in mode `failFast`, a record is not of the schema.
        """
        if self._parser is None:
            lines = block.lines()
            # Blank lines are not records, as elsewhere in Spark.
            kept = [at for at, line in enumerate(lines) if block.frames is not None or line.strip()]
            return self._assembled(block, lines, kept, None, [])
        try:
            table = self._parser.fit(block.content)
        except RefusedError as err:
            kept, tables, bad = self._sift(block, err)
            table = pa.concat_tables([self._columns.data.empty_table(), *tables])
            return self._assembled(block, block.lines(), kept, table, bad)
        return self._assembled(block, None, range(len(block.begins)), table, [])

    def _sift(
        self, block: Block, refusal: RefusedError
    ) -> tuple[list[int], list[pa.Table], list[int]]:
        """The places of good lines, these lines as columns, and the places of bad ones."""
        assert self._parser is not None
        good: list[tuple[int, bytes]] = []
        bad: list[int] = []
        for at, line in enumerate(block.lines()):
            text = line.strip(b" \t\r") + b"\n"
            if text == b"\n":
                continue
            if self._parser.may_be_good(text) or self._fits(text):
                good.append((at, text))
            else:
                bad.append(at)
        tables: list[pa.Table] = []
        kept: list[int] = []
        waiting = [good] if good else []
        while waiting:
            part = waiting.pop()
            try:
                tables.append(self._parser.fit(b"".join(text for _, text in part)))
                kept += [at for at, _ in part]
            except RefusedError as err:
                refusal = err
                if len(part) == 1:
                    bad.append(part[0][0])
                    continue
                middle = len(part) // 2
                waiting += [part[middle:], part[:middle]]
        if bad and self._mode == "failFast":
            at = min(bad)
            raise DataError(
                f"{block.journal}: the record at offset {block.begins[at].as_py()} is not of the schema: "
                f"{self._why(block.lines()[at], refusal)} (mode=permissive makes a row of NULLs of it)"
            )
        return kept, tables, sorted(bad) if self._mode == "permissive" else []

    def _fits(self, line: bytes) -> bool:
        assert self._parser is not None
        try:
            self._parser.fit(line)
        except RefusedError:
            return False
        return True

    def _why(self, line: bytes, refusal: RefusedError) -> str:
        assert self._parser is not None
        try:
            self._parser.fit(line.strip(b" \t\r") + b"\n")
        except RefusedError as err:
            return str(err)
        return str(refusal)

    def _assembled(
        self,
        block: Block,
        lines: list[bytes] | None,
        kept: Sequence[int],
        table: pa.Table | None,
        bad: Sequence[int],
    ) -> list[pa.RecordBatch]:
        """Rows of the records `kept`, whose columns are `table`, and of `bad` ones, in order of the journal."""
        places = pa.array([*kept, *bad], pa.int64())
        arrays: list[pa.Array] = []
        taken: list[bytes] | None = None
        for field in self._columns.schema:
            if table is not None and field.name in self._columns.data.names:
                column = table.column(field.name).combine_chunks()
                if bad:
                    column = pa.concat_arrays([column, pa.nulls(len(bad), field.type)])
            else:
                column = self._placed(field.name, block, places)
            if column is None:
                if taken is None:
                    rows = lines if lines is not None else block.lines()
                    taken = [rows[at] for at in (*kept, *bad)]
                column = self._raw(field, taken, len(kept))
            arrays.append(column)
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._columns.schema)
        if bad and kept:
            batch = batch.take(pc.sort_indices(places))
        return [batch] if batch.num_rows else []

    def _placed(self, name: str, block: Block, places: pa.Int64Array) -> pa.Array | None:
        """A column of where messages lie; None: it is made of what they are."""
        if name == "_journal":
            return pa.repeat(block.journal, len(places))
        if name == "_begin":
            return block.begins.take(places)
        if name == "_end":
            return block.ends.take(places)
        if name == "_uuid" and block.uuids is not None:
            return pa.array([block.uuids[at] for at in places.to_pylist()], pa.string())
        return None

    def _raw(self, field: pa.Field, lines: list[bytes], good: int) -> pa.Array:
        """`value`, `_uuid` or `_corrupt` of lines; the first `good` are good ones."""
        if field.name == "_uuid":
            return self._uuids(lines)
        if field.name != "_corrupt":
            return pa.array(lines, field.type)
        bad: list[bytes | None] = [None] * good
        bad += [line.removesuffix(b"\r") for line in lines[good:]]
        if field.type == pa.binary():
            return pa.array(bad, field.type)
        return pa.array([one and one.decode("utf-8", "replace") for one in bad], field.type)

    def _uuids(self, lines: list[bytes]) -> pa.Array:
        if self._type == JSON:
            return json_uuids(lines, self._path)
        firsts = (line.partition(b",")[0].strip(b'"\r') for line in lines)
        texts = [first.decode() if _UUID.match(first) else None for first in firsts]
        return pa.array(texts, pa.string())


def _parser(content_type: str, schema: pa.Schema) -> _Parser:
    if content_type == JSON:
        return JsonRecords(schema)
    if content_type == CSV:
        return _CsvRecords(schema)
    raise ValidationError(
        f"columns {', '.join(schema.names)} are asked for, and only records of {JSON} and {CSV} have "
        f"any (these are of {content_type}: ask for `value binary`)"
    )


@final
class _CsvRecords:
    """Each line is a record of RFC 4180, as in raw tables, whose fields are columns by their places."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def fit(self, content: bytes) -> pa.Table:
        """See `_Parser`."""
        if content.count(b"\r") != content.count(b"\r\n"):
            raise RefusedError("a carriage return stands within a record")
        if content.startswith(_MARK):
            # Of two Arrow drops one: it is part of the record, which may lie within a block as well.
            content = _MARK + content
        # Of the last line Arrow takes one that is left open.
        if b'"' in content and not all(map(self.may_be_good, content.split(b"\n"))):
            raise RefusedError("a quote is left open")
        try:
            table = arrow_csv.read_csv(
                pa.BufferReader(content),
                read_options=arrow_csv.ReadOptions(
                    use_threads=False,
                    block_size=len(content) + 1,
                    column_names=self._schema.names,
                ),
                convert_options=arrow_csv.ConvertOptions(
                    column_types={field.name: field.type for field in self._schema},
                    null_values=[""],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            )
        except pa.ArrowException as err:
            raise RefusedError(str(err)) from err
        # It passes over blank lines, and may take several with a quote that is open for one.
        if table.num_rows != content.count(b"\n"):
            raise RefusedError("it is not one record")
        for column in table.columns:
            check_years(column)
        return table.combine_chunks().cast(self._schema)

    def may_be_good(self, line: bytes) -> bool:
        """See `_Parser`."""
        return line.count(b'"') % 2 == 0
