"""Data files that workers have written: what of each goes into the table's manifests, in bytes that travel.

A worker knows the schema and how rows are partitioned, and not the table; so it reports all that manifests say of a
file, and the driver, which has the table, makes PyIceberg's record of it.
"""

from __future__ import annotations

import uuid
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, Self, final

import msgspec
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record
from pyiceberg.types import DecimalType
from pyiceberg.utils.datetime import date_to_days, datetime_to_micros

from gazette_platform.errors import LakeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow.parquet as pq  # type: ignore[import-untyped]
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata

__all__ = [
    "METRICS",
    "FileDescriber",
    "WrittenFile",
    "data_file_of",
]

METRICS: Final = {
    "write.metadata.metrics.column._journal": "full",
    "write.metadata.metrics.column._begin": "full",
}
"""Properties of a table that let its files be found by journal; without them bounds of texts are cut."""

# A field has the name of the type.
_Bytes = bytes


@final
class WrittenFile(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A Parquet file below the table's location. Statistics are by field id."""

    path: str
    bytes: int
    rows: int
    spec_id: int
    """Of the partition spec that it was written by."""
    partition: tuple[Any, ...]
    """What its rows have in common, in the order of the spec's fields: dates as days, instants as microseconds, UUIDs
    as 16 bytes, decimals as texts."""
    column_sizes: dict[int, int]
    value_counts: dict[int, int]
    null_value_counts: dict[int, int]
    nan_value_counts: dict[int, int]
    lower_bounds: dict[int, _Bytes]
    upper_bounds: dict[int, _Bytes]
    split_offsets: list[int]
    deletes: bool = False
    """Whether its rows are deletions of keys, and nothing else."""

    def dump(self) -> _Bytes:
        """As msgpack."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def parse(cls, content: _Bytes) -> Self:
        """What was dumped.

        Raises: LakeError: it is something else.
        """
        try:
            return msgspec.msgpack.decode(content, type=cls)
        except msgspec.MsgspecError as err:
            raise LakeError(
                f"what a worker says of its files cannot be read ({err}): workers of another release wrote it, or it is "
                "damaged; run again"
            ) from err


@final
class FileDescriber:
    """Collects what manifests say of Parquet files of one schema.

    Args:
        schema: of the table; columns are called as in it.
        spec_id: of the partition spec of the rows.
    """

    def __init__(self, schema: Schema, spec_id: int) -> None:
        self._spec_id = spec_id
        self._plan = compute_statistics_plan(schema, METRICS)
        self._leaves = parquet_path_to_id_mapping(schema)

    def describe(
        self, path: str, size: int, parquet_metadata: pq.FileMetaData, partition: Sequence[Any]
    ) -> WrittenFile:
        """What manifests say of a file that was written.

        Args:
            path: its location, as readers will open it.
            size: bytes.
            parquet_metadata: its footer, as the writer has it.
            partition: the value of each of the spec's fields that all rows have.

        Returns: with whole bounds of `_journal` and `_begin`; texts of others are cut as PyIceberg does.
        """
        statistics = data_file_statistics_from_parquet_metadata(
            parquet_metadata=parquet_metadata,
            stats_columns=self._plan,
            parquet_column_mapping=self._leaves,
        ).to_serialized_dict()
        return WrittenFile(
            path=path,
            bytes=size,
            rows=statistics.pop("record_count"),
            spec_id=self._spec_id,
            partition=tuple(map(_plain, partition)),
            **statistics,
        )


def data_file_of(written: WrittenFile, metadata: TableMetadata) -> DataFile:
    """The file as PyIceberg commits it.

    Raises: LakeError: the table has no such partition spec, or one of other fields.
    """
    spec = metadata.specs().get(written.spec_id)
    if spec is None or len(spec.fields) != len(written.partition):
        raise LakeError(
            f"{written.path} was written by partition spec {written.spec_id}, which the table at "
            f"{metadata.location} does not have: it was recreated meanwhile; run again"
        )
    kinds = [field.field_type for field in spec.partition_type(metadata.schema()).fields]
    values = [
        Decimal(value) if isinstance(kind, DecimalType) and value is not None else value
        for kind, value in zip(kinds, written.partition, strict=True)
    ]
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=written.path,
        file_format=FileFormat.PARQUET,
        partition=Record(*values),
        record_count=written.rows,
        file_size_in_bytes=written.bytes,
        column_sizes=written.column_sizes,
        value_counts=written.value_counts,
        null_value_counts=written.null_value_counts,
        nan_value_counts=written.nan_value_counts,
        lower_bounds=written.lower_bounds,
        upper_bounds=written.upper_bounds,
        split_offsets=written.split_offsets,
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
    )
    file.spec_id = written.spec_id
    return file


def _plain(value: Any) -> Any:
    match value:
        case datetime():
            return datetime_to_micros(value)
        case date():
            return date_to_days(value)
        case uuid.UUID():
            return value.bytes
        case Decimal():
            return str(value)
        case _:
            return value
