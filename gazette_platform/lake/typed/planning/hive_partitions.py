"""Fragments of a Hive partition of the raw table, as backfills take them. Pure."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from gazette_platform.lake.aside import home_directory
from gazette_platform.lake.layout import Layout, PartitionColumn
from gazette_platform.lake.table_spec import Partition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gazette_platform.client import FragmentListing
    from gazette_platform.lake.table_spec import TableSpec

__all__ = ["fragments_of"]


def fragments_of(raw: TableSpec, values: Mapping[str, str]) -> Callable[[FragmentListing], bool]:
    """Whether a fragment is in a partition with these values.

    Args:
        raw: of the raw table.
        values: by partition column, as paths or engines write them; those of other columns do not matter.

    Returns: asked of stored fragments. It raises LakeError, if a value is not of its column's type.
    """
    described = {partition.name: partition for partition in raw.partitions}
    wanted = {name.lower(): value for name, value in values.items()}

    def column_of(key: str) -> PartitionColumn:
        found = described.get(key, Partition(name=key))
        return PartitionColumn(key=key, column=found.column, type=found.type)

    @cache
    def is_wanted(directory: str) -> bool:
        layout = Layout.of_directory(directory)
        texts = dict(zip(map(column_of, layout.keys), layout.match(directory), strict=True))
        found = {column.column: (column, text) for column, text in texts.items()}
        return all(
            name in found and found[name][0].value(found[name][1]) == found[name][0].value(value)
            for name, value in wanted.items()
        )

    return lambda listing: is_wanted(home_directory(listing.fragment))
