"""Files as workers write them for a typed table, in small."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import Table as ArrowTable, parquet
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
)
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.typedef import Record

from gazette_platform.lake.typed.iceberg_types import arrow_schema
from gazette_platform.lake.typed.tables.writing import FileDescriber

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

    from gazette_platform.lake.typed.tables.writing import WrittenFile

__all__ = ["delete_rows", "write_rows"]


def write_rows(
    metadata: TableMetadata, rows: Sequence[dict[str, Any]], partition: Sequence[Any] = ()
) -> WrittenFile:
    """Rows as a Parquet file below the table's location, which is on disk."""
    path = f"{metadata.location}/data/{uuid.uuid4()}.parquet"
    schema = arrow_schema(metadata.schema())
    where = _on_disk(path)
    table = ArrowTable.from_pylist(list(rows), schema=schema)
    with parquet.ParquetWriter(where, schema, store_decimal_as_integer=True) as writer:
        writer.write_table(table)
    describer = FileDescriber(metadata.schema(), metadata.default_spec_id)
    return describer.describe(path, where.stat().st_size, writer.writer.metadata, partition)


def _on_disk(location: str) -> Any:
    from pathlib import Path

    path = Path(urlsplit(location).path)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def delete_rows(
    table: Table, of: DataFile, positions: Sequence[int] = (), *, equal: Sequence[int] = ()
) -> None:
    """Note rows of a data file as deleted, as engines do that leave the file as it is.

    Args:
        positions: of the rows, in a file for these.
        equal: ids of the columns whose values say which rows are deleted instead; the values do not matter here.
    """
    path = f"{table.metadata.location}/data/{uuid.uuid4()}-deletes.parquet"
    ids = {"file_path": 2147483546, "pos": 2147483545}
    kinds = {"file_path": pa.string(), "pos": pa.int64()}
    schema = pa.schema([
        pa.field(name, kind, nullable=False, metadata={"PARQUET:field_id": str(ids[name])}) for name, kind in kinds.items()
    ])  # fmt: skip
    rows = pa.table([[of.file_path] * len(positions), list(positions)], schema=schema)
    parquet.write_table(rows, _on_disk(path))
    file = DataFile.from_args(
        content=DataFileContent.EQUALITY_DELETES if equal else DataFileContent.POSITION_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(*(of.partition[n] for n in range(len(of.partition)))),
        record_count=max(1, len(positions)),
        file_size_in_bytes=_on_disk(path).stat().st_size,
        equality_ids=list(equal) or None,
    )
    file.spec_id = of.spec_id
    with (
        table.transaction() as transaction,
        _Noting(Operation.APPEND, transaction, table.io) as noting,
    ):
        noting.noted = file


class _DeletesWriter(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _Noting(_FastAppendFiles):
    """A snapshot that adds a file of deletes."""

    noted: DataFile

    def _manifests(self) -> list[Any]:
        spec = self.spec(self.noted.spec_id)
        output = self.new_manifest_output()
        entry = ManifestEntry.from_args(
            status=ManifestEntryStatus.ADDED, snapshot_id=self.snapshot_id, sequence_number=None, data_file=self.noted
        )  # fmt: skip
        with _DeletesWriter(spec, self.schema(), output, self.snapshot_id, "deflate") as writer:
            writer.add_entry(entry)
        return [writer.to_manifest_file(), *self._existing_manifests()]
