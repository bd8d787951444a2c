"""Find duplicate keys of a table with a `key`, where each row has another one."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gazette_platform.lake.typed.catalog.doors import Loaded

__all__ = ["DoubledKeys", "doubled_keys"]


class DoubledKeys(NamedTuple):
    """What was found."""

    rows: int
    """That are too many."""
    first: list[dict[str, Any]]
    """Some of the keys."""


def doubled_keys(loaded: Loaded, key: Sequence[str], *, shown: int = 5) -> DoubledKeys:
    """Keys with several rows.

    Memory: all keys of the table, some three times.

    Args:
        loaded: the table.
        key: its columns.
        shown: how many keys are reported, at most.

    Raises: OSError: a file cannot be read.
    """
    found = loaded.table.scan(selected_fields=tuple(key)).to_arrow().select(list(key))
    plain = pa.table([_plain(column) for column in found.columns], names=list(key))
    counts = plain.group_by(list(key)).aggregate([([], "count_all")])
    counts = counts.filter(pc.greater(counts.column("count_all"), 1))
    more = (pc.sum(counts.column("count_all")).as_py() or 0) - counts.num_rows
    first = counts.select(list(key)).slice(0, shown).to_pylist()
    for field in found.schema:
        if isinstance(field.type, pa.UuidType):
            for each in first:
                each[field.name] = str(uuid.UUID(bytes=each[field.name]))
    return DoubledKeys(more, first)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Arrow groups by no type that is an extension, such as UUIDs."""
    if isinstance(column.type, pa.BaseExtensionType):
        return pa.chunked_array(
            [chunk.storage for chunk in column.chunks], column.type.storage_type
        )
    return column
