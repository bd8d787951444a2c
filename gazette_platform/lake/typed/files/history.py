"""Rows of a typed table as one of its snapshots has them, streamed: which files may have rows that are wanted, and what is in these.

Files are left out by what manifests say of their columns. PyIceberg's own scan keeps all rows of a file in memory, and those of
several files at a time; here it is a batch of some megabytes.
"""

from __future__ import annotations

import struct
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Final, final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.conversions import from_bytes
from pyiceberg.io.pyarrow import ArrowAccessor, ArrowProjectionVisitor, pyarrow_to_schema
from pyiceberg.schema import Schema, prune_columns, visit_with_partner
from pyiceberg.table import Table
from pyiceberg.types import (
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from gazette_platform.errors import LakeError
from gazette_platform.lake.typed.files.stored_rows import stored_rows
from gazette_platform.lake.typed.schema.iceberg_types import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask
    from pyiceberg.types import NestedField

    from gazette_platform.lake.typed.catalog.doors import Loaded

__all__ = ["TableHistory"]

# Whose bounds are in the order in which Arrow compares. Of floating-point numbers NaN is in no bounds.
_BOUNDED: Final = (
    DateType, DecimalType, IntegerType, LongType, StringType, TimestampType, TimestamptzType,
)  # fmt: skip


@final
class TableHistory:
    """Rows of a table.

    Args:
        loaded: the table; its current snapshot is read.
    """

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self._schema = loaded.metadata.schema()
        self.schema: pa.Schema = arrow_schema(self._schema)
        """Of its rows."""

    @cached_property
    def files(self) -> tuple[FileScanTask, ...]:
        """All data files of the snapshot, each with those of rows that engines deleted of it.

        Raises: LakeError: the manifests cannot be read.
        """
        if self._loaded.metadata.current_snapshot_id is None:
            return ()
        table = Table(("", ""), self._loaded.metadata, "", self._loaded.io, NoopCatalog("none"))
        with _reading(self._loaded.metadata.location):
            return tuple(table.scan().plan_files())

    def known_of(self, file: DataFile, columns: Sequence[str]) -> pc.Expression:
        """What is true of all rows of a file, as far as manifests say it.

        Args:
            columns: those that may be reported.
        """
        known = pc.scalar(True)
        for name in columns:
            found = _known(file, self._schema.find_field(name))
            if found is not None:
                known = known & found
        return known

    def batches(self, file: FileScanTask, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows of a file, some megabytes at a time.

        Args:
            columns: of the table: at least one.

        Raises: LakeError: the file cannot be read, or is not Parquet.
        """
        wanted = Schema(*(self._schema.find_field(name) for name in columns))
        target = pa.schema([self.schema.field(name) for name in columns])
        ids = {id_ for id_ in wanted.field_ids if wanted.find_type(id_).is_primitive}
        with stored_rows(self._loaded, file.file, file.delete_files) as rows:
            stored = pyarrow_to_schema(rows.schema)
            own = prune_columns(stored, ids, select_full_types=False)
            # One column at least shows how many rows there are.
            names = [field.name for field in own.fields] or rows.schema.names[:1]
            for batch, is_there in rows.batches(names):
                kept = batch.filter(is_there)
                if kept.num_rows:
                    yield _projected(kept, own, wanted, target)


def _projected(
    batch: pa.RecordBatch, own: Schema, wanted: Schema, target: pa.Schema
) -> pa.RecordBatch:
    """Rows as the table has them now: columns are found by their ids, and are null where the file has none."""
    visitor = ArrowProjectionVisitor(own, True, False, allow_timestamp_tz_mismatch=True)
    found = visit_with_partner(wanted, batch, visitor, ArrowAccessor(own))
    arrays = [
        array if array.type == field.type else array.cast(field.type)
        for array, field in zip(found.flatten(), target, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def _known(file: DataFile, field: NestedField) -> pc.Expression | None:
    """What is true of a column in all rows of a file; None: nothing is known."""
    kind = field.field_type
    if not isinstance(kind, _BOUNDED):
        return None
    id_, column = field.field_id, pc.field(field.name)
    nulls = (file.null_value_counts or {}).get(id_)
    if nulls == file.record_count:
        return column.is_null()
    lower, upper = ((told or {}).get(id_) for told in (file.lower_bounds, file.upper_bounds))
    if lower is None or upper is None:
        return None
    try:
        found = arrow_schema(Schema(field)).field(0).type
        lowest, highest = (pa.scalar(from_bytes(kind, bound), found) for bound in (lower, upper))
    except (ValueError, struct.error, pa.ArrowException):
        return None  # the column has become wider since
    bounds = [column >= lowest, column <= highest]
    if nulls != 0:
        # By one bound at a time: of both together with nulls Arrow concludes nothing.
        bounds = [bound | column.is_null() for bound in bounds]
    return bounds[0] & bounds[1]


@contextmanager
def _reading(what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as err:
        raise LakeError(f"{what}: its manifests cannot be read: {err}") from err
