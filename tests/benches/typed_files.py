"""Files as workers write them for a typed table, in small."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pyarrow import Table as ArrowTable, parquet

from gazette_platform.lake.typed.iceberg_types import arrow_schema
from gazette_platform.lake.typed.written import written_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyiceberg.table.metadata import TableMetadata

    from gazette_platform.lake.typed.written import WrittenFile

__all__ = ["write_rows"]


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
    return written_file(
        path,
        where.stat().st_size,
        writer.writer.metadata,
        metadata.schema(),
        metadata.default_spec_id,
        partition,
    )


def _on_disk(location: str) -> Any:
    from pathlib import Path

    path = Path(urlsplit(location).path)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
