"""PySpark data sources over fragments: `typed_rows` gives typed rows, `typed_files` writes them as Parquet.

Both read a fragment a task, in Spark's Python workers. Of `typed_files` Spark sees one row a fragment: which file
there is now, and what is in it.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyarrow import parquet
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from benchmarks.typed_data import JOURNAL
from benchmarks.typed_parse import BLOCK_BYTES, Committed, Stages, typed_tables
from benchmarks.typed_table import COLUMNS, ddl, typed_schema
from gazette_platform.protocol.fragments import parse_fragment_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from benchmarks.typed_parse import Block, Repair
    from gazette_platform.protocol import Fragment

__all__ = [
    "FILE_COLUMNS",
    "Found",
    "Options",
    "RowFiles",
    "TypedFiles",
    "TypedRows",
    "Work",
    "fragments_of",
]

FILE_COLUMNS: Final = "path string, bytes bigint, records bigint, bad bigint"
_GROUP_ROWS: Final = 250_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a source, as texts."""

    root: Path
    """Of the fragments."""
    notes: Path
    """A folder, where each task leaves what it found, and what it took."""
    target: Path = Path()
    """A folder, for Parquet."""
    repair: Repair = "lines"
    block_bytes: int = BLOCK_BYTES
    batch_rows: int = 0
    """Of a batch that goes to the JVM; 0: as large as blocks are."""
    codec: str = "zstd"
    level: int = 1
    field_ids: str = "{}"
    """Iceberg's, by path, as JSON."""
    partitions: str = ""
    """Of the table, as specs have them, with blanks between: of the product's worker alone."""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Options:
        """Those of a data source, whose names have no case."""
        kinds = {"root": Path, "notes": Path, "target": Path, "block_bytes": int}
        kinds |= {"batch_rows": int, "level": int}
        return cls(
            **{
                name: kinds.get(name, str)(value)
                for name in cls.__dataclass_fields__
                if (value := options.get(name)) is not None
            }
        )

    def texts(self) -> dict[str, str]:
        """For `DataFrameReader.options`."""
        return {name: str(getattr(self, name)) for name in self.__dataclass_fields__}


@dataclass(slots=True)
class Found:
    """What a task leaves behind."""

    records: int = 0
    bad: int = 0
    sequenced: int = 0


def fragments_of(root: Path) -> list[Fragment]:
    """The fragments below a root, by their names, in order."""
    folder = root / JOURNAL
    paths = (path for path in folder.rglob("*-*-*") if path.is_file())
    found = (parse_fragment_path(JOURNAL, str(path.relative_to(folder))) for path in paths)
    return sorted(found, key=lambda fragment: fragment.begin)


class _Task(InputPartition):
    def __init__(self, fragment: Fragment) -> None:
        super().__init__(fragment.begin)
        self.fragment = fragment


class Work:
    """What is done of a fragment, in whichever process."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def tables(self, fragment: Fragment, stages: Stages, found: Found) -> Iterator[pa.Table]:
        options, committed = self._options, Committed()
        bad: list[Block] = []
        parsed = typed_tables(
            options.root / fragment.content_path,
            fragment,
            stages,
            committed,
            repair=options.repair,
            block_bytes=options.block_bytes,
        )
        for table, lines in parsed:
            bad += lines
            found.records += table.num_rows
            yield table
        found.bad, found.sequenced = len(bad), committed.sequenced
        if bad:
            quarantine = {
                "journal": [JOURNAL] * len(bad),
                "begin": [one.begin for one in bad],
                "raw": [one.content for one in bad],
            }
            parquet.write_table(
                pa.table(quarantine), options.notes / f"bad-{fragment.begin:x}.parquet"
            )

    def note(
        self, fragment: Fragment, stages: Stages, found: Found, begun: tuple[float, float]
    ) -> None:
        wall_s, cpu_s = time.monotonic() - begun[0], time.process_time() - begun[1]
        note = {"stages": dict(stages.seconds), "wall_s": wall_s, "cpu_s": cpu_s}
        note |= {"records": found.records, "bad": found.bad, "sequenced": found.sequenced}
        path = self._options.notes / f"task-{fragment.begin:x}.json"
        path.write_text(json.dumps(note))

    def file(self, fragment: Fragment) -> tuple[str, int, int, int]:
        """Write a fragment's rows into a file: its path and bytes, rows, bad records."""
        begun = time.monotonic(), time.process_time()
        stages, found, options = Stages(), Found(), self._options
        name = f"{fragment.begin:016x}-{fragment.end:016x}-{os.urandom(6).hex()}.parquet"
        files = RowFiles(options.target / name, options, stages)
        for table in self.tables(fragment, stages, found):
            files.add(table)
        files.close()
        self.note(fragment, stages, found, begun)
        return (str(files.path), files.path.stat().st_size, found.records, found.bad)


class _Reader(DataSourceReader):
    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        return [_Task(fragment) for fragment in fragments_of(self._options.root)]


class _RowReader(_Reader):
    def read(self, partition: _Task) -> Iterator[pa.RecordBatch]:
        begun = time.monotonic(), time.process_time()
        stages, found, work = Stages(), Found(), Work(self._options)
        rows_max = self._options.batch_rows or None
        for table in work.tables(partition.fragment, stages, found):
            # After each yield Spark's own code writes the batch to the JVM.
            for batch in table.combine_chunks().to_batches(rows_max):
                at = time.thread_time()
                yield batch
                stages.seconds["send"] += time.thread_time() - at
        work.note(partition.fragment, stages, found, begun)


class RowFiles:
    """Tables of one fragment, as a file of Parquet for Iceberg. Memory: some hundred thousand rows."""

    def __init__(self, path: Path, options: Options, stages: Stages) -> None:
        self.path = path
        self._stages = stages
        self._waiting: list[pa.Table] = []
        self._rows = 0
        self._schema = _with_ids(typed_schema(), json.loads(options.field_ids))
        self._writer = parquet.ParquetWriter(
            path,
            self._schema,
            compression=options.codec,
            compression_level=options.level if options.codec == "zstd" else None,
            store_decimal_as_integer=True,
        )

    def add(self, table: pa.Table) -> None:
        """Take in rows, and write what makes a row group."""
        self._waiting.append(table)
        self._rows += table.num_rows
        if self._rows >= _GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        with self._stages.of("write"):
            table = pa.concat_tables(self._waiting).cast(self._schema)
            self._writer.write_table(table, row_group_size=_GROUP_ROWS)
        self._waiting, self._rows = [], 0

    def close(self) -> None:
        """Write the rest and the footer."""
        if self._waiting:
            self._flush()
        with self._stages.of("write"):
            self._writer.close()


class _FileReader(_Reader):
    def read(self, partition: _Task) -> Iterator[tuple[Any, ...]]:
        yield Work(self._options).file(partition.fragment)


class TypedRows(DataSource):
    """Rows of the table."""

    @classmethod
    def name(cls) -> str:
        return "typed_rows"

    def schema(self) -> str:
        return ddl(COLUMNS)

    def reader(self, schema: object) -> DataSourceReader:  # noqa: ARG002  a form of Spark's
        return _RowReader(Options.of(self.options))


class TypedFiles(DataSource):
    """A row for each file that was written."""

    @classmethod
    def name(cls) -> str:
        return "typed_files"

    def schema(self) -> str:
        return FILE_COLUMNS

    def reader(self, schema: object) -> DataSourceReader:  # noqa: ARG002  a form of Spark's
        return _FileReader(Options.of(self.options))


def _with_ids(schema: pa.Schema, ids: Mapping[str, int], prefix: str = "") -> pa.Schema:
    """The schema with Iceberg's field ids, which identify columns to its readers."""
    return pa.schema([_field(field, ids, prefix) for field in schema])


def _field(field: pa.Field, ids: Mapping[str, int], prefix: str) -> pa.Field:
    path, kind = prefix + field.name, field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_field(kind.field(i), ids, f"{path}.") for i in range(kind.num_fields)])
    elif pa.types.is_list(kind):
        kind = pa.list_(_field(kind.value_field, ids, f"{path}."))
    field = field.with_type(kind)
    return field.with_metadata({"PARQUET:field_id": str(ids[path])}) if path in ids else field
