"""Rows of a table of changes as Parquet files: deletions in files of their own, which are kept once rows are merged."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from msgspec import structs

from gazette_platform.lake.typed_spec.changes import DELETE, TRUNCATE

if TYPE_CHECKING:
    from gazette_platform.lake.typed.files.writing import RowWriter
    from gazette_platform.lake.typed.files.written import WrittenFile
    from gazette_platform.lake.typed_spec.changes import ChangeOrder

__all__ = ["ChangeWriter", "are_deletions"]


def are_deletions(rows: pa.Table, changes: ChangeOrder) -> pa.BooleanArray:
    """Return which rows delete a key, or all of them. `ChangeOrder.deletes` says the same in SQL."""
    column = rows.column(changes.deleted)
    if changes.is_envelope:
        return pc.is_in(column, value_set=pa.array([DELETE, TRUNCATE]))
    return pc.fill_null(pc.equal(pc.ascii_lower(column.cast(pa.string())), "true"), False)


@final
class ChangeWriter:
    """A `Sink` that keeps deletions apart.

    Args:
        rows: writes all other rows.
        deletes: writes deletions.
        changes: says which they are.
    """

    def __init__(self, rows: RowWriter, deletes: RowWriter, changes: ChangeOrder) -> None:
        self.schema = rows.schema
        self._rows = rows
        self._deletes = deletes
        self._changes = changes

    @property
    def rows(self) -> int:
        """See `Sink`."""
        return self._rows.rows + self._deletes.rows

    def add(self, rows: pa.Table) -> None:
        """See `Sink`."""
        deletes = are_deletions(rows, self._changes)
        self._rows.add(rows.filter(pc.invert(deletes)))
        self._deletes.add(rows.filter(deletes))

    def close(self) -> tuple[WrittenFile, ...]:
        """See `Sink`."""
        deletes = (structs.replace(file, deletes=True) for file in self._deletes.close())
        return (*self._rows.close(), *deletes)

    def abort(self) -> None:
        """See `Sink`."""
        with ExitStack() as stack:
            stack.callback(self._deletes.abort)
            stack.callback(self._rows.abort)
