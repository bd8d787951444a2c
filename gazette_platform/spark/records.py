"""Blocks of records as the record batches that Spark gets; records that are not of the schema are found.

Lines are read as in the lake (`lake.reading`): a block at once, and of one that is refused the good lines. A record is kept alone if
and only if it is kept among others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from gazette_platform.errors import DataError, ValidationError
from gazette_platform.lake.reading.arrow_types import RefusedError
from gazette_platform.lake.reading.json_columns import Field, JsonReader
from gazette_platform.lake.reading.raw_rows import read_csv_lines
from gazette_platform.lake.reading.sifting import BLANKS, Sifter, guess
from gazette_platform.lake.spec.types import ColumnType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gazette_platform.spark.options import Columns, Mode

_DAY_US: Final = 86_400_000_000
_YEAR_1_DAY: Final = -719_162
_YEAR_10000_DAY: Final = 2_932_897

JSON: Final = "application/x-ndjson"
CSV: Final = "text/csv"
FIXED: Final = "application/x-protobuf-fixed"
TEXTS: Final = (JSON, CSV)
"""Content types whose records are lines."""

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
        self._read: Callable[[bytes], pa.Table] | None = None
        if columns.data.names:
            self._read, is_likely = _reader(content_type, columns.data)
            self._sifter: Sifter[pa.Table] = Sifter(self._read, is_likely)

    def batches(self, block: Block) -> list[pa.RecordBatch]:
        """A block as batches of the schema that was asked for, in order.

        Raises: DataError: in mode `failFast`, a record is not of the schema.
        """
        if self._read is None:
            lines = block.lines()
            # Blank lines are not records, as elsewhere in Spark.
            kept = [at for at, line in enumerate(lines) if block.frames is not None or line.strip()]
            return self._assembled(block, lines, kept, None, [])
        try:
            table = self._read(block.content)
        except RefusedError as err:
            kept, table, bad = self._sift(block, err)
            return self._assembled(block, block.lines(), kept, table, bad)
        return self._assembled(block, None, range(len(block.begins)), table, [])

    def _sift(self, block: Block, refusal: RefusedError) -> tuple[list[int], pa.Table, list[int]]:
        """The places of good lines, these lines as columns, and the places of bad ones."""
        found = self._sifter.sift(block.content)
        bad = [at for at in found.bad if found.lines[at].strip(BLANKS)]
        if bad and self._mode == "failFast":
            at = bad[0]
            raise DataError(
                f"{block.journal}: the record at offset {block.begins[at].as_py()} is not of the schema: "
                f"{self._why(found.lines[at], refusal)} (mode=permissive makes a row of NULLs of it)"
            )
        table = pa.concat_tables(
            [self._columns.data.empty_table(), *(piece for _, piece in found.pieces)]
        )
        return found.good, table, bad if self._mode == "permissive" else []

    def _why(self, line: bytes, refusal: RefusedError) -> str:
        assert self._read is not None
        try:
            self._read(line + b"\n")
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
        if places.to_pylist() != sorted(places.to_pylist()):
            batch = batch.take(pc.array_sort_indices(places))
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


def json_uuids(lines: Sequence[bytes], path: tuple[str, ...]) -> pa.Array:
    """The texts at `path` of each line, for all at once where Arrow takes them; null where there is none."""
    try:
        return JsonReader({}, uuid=path).read(b"\n".join([*lines, b""])).uuids
    except RefusedError:
        return pa.array([_text_at(line, path) for line in lines], pa.string())


def _text_at(line: bytes, path: tuple[str, ...]) -> str | None:
    try:
        value: Any = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    # A lone surrogate, which JSON can name and a column of texts cannot hold, is not a UUID.
    return value if isinstance(value, str) and value.isascii() else None


def _reader(
    content_type: str, schema: pa.Schema
) -> tuple[Callable[[bytes], pa.Table], Callable[[bytes], bool]]:
    """What reads lines as columns, all or none, and what guesses whether a line is good."""
    if content_type == JSON:
        fields = {field.name: Field(_column_type(field.type)) for field in schema}
        reader = JsonReader(fields)

        def read_json(content: bytes) -> pa.Table:
            arrays = reader.read(content).arrays
            return pa.table([arrays[name] for name in schema.names], schema.names).cast(schema)

        return read_json, guess(fields)
    if content_type == CSV:

        def read_csv(content: bytes) -> pa.Table:
            table = read_csv_lines(content, schema, nulls=True)
            for column in table.columns:
                check_years(column)
            return table.combine_chunks().cast(schema)

        return read_csv, lambda line: line.count(b'"') % 2 == 0
    raise ValidationError(
        f"columns {', '.join(schema.names)} are asked for, and only records of {JSON} and {CSV} have "
        f"any (these are of {content_type}: ask for `value binary`)"
    )


def _column_type(kind: pa.DataType) -> ColumnType:
    """The type of a column as table specs have it."""
    types = pa.types
    if types.is_struct(kind):
        parts = tuple(_column_type(field.type) for field in kind)
        return ColumnType("struct", parts, tuple(field.name for field in kind))
    if types.is_list(kind):
        return ColumnType("array", (_column_type(kind.value_type),))
    if types.is_decimal(kind):
        return ColumnType("decimal", precision=kind.precision, scale=kind.scale)
    if types.is_timestamp(kind):
        return ColumnType("timestamptz" if kind.tz else "timestamp")
    return ColumnType(_NAMES[kind])


_NAMES: Final = {
    pa.string(): "string",
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
}


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
        raise RefusedError("a year after 9999")
