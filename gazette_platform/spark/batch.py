"""Journals as a batch: splits that the driver plans, each read by a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)
from typing_extensions import override

from gazette_platform.client import Client
from gazette_platform.errors import ValidationError
from gazette_platform.spark.planning import ranges_of_batch, splits_of
from gazette_platform.spark.reading import Bounds, Range, read_ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa  # type: ignore[import-untyped]

    from gazette_platform.spark.columns import Columns
    from gazette_platform.spark.options import SourceOptions


@final
class RangesPartition(InputPartition):
    """What one task reads."""

    def __init__(self, ranges: tuple[Range, ...]) -> None:
        super().__init__(ranges)
        self.ranges = ranges


class BatchReader(DataSourceReader):
    """Plans splits on the driver, and reads each in a task."""

    def __init__(self, options: SourceOptions, columns: Columns) -> None:
        if options.trigger_bytes_max:
            raise ValidationError("is of readStream only", path="maxBytesPerTrigger")
        self._options = options
        self._columns = columns
        self._bounds = Bounds()

    @override
    def partitions(self) -> list[InputPartition]:
        with Client(self._options.config) as client:
            asking = client.asynchronous
            ranges = client.run(ranges_of_batch(asking, self._options))
            splits = client.run(splits_of(asking, self._options, ranges, self._bounds))
        # Spark takes none for one that it makes itself.
        return [RangesPartition(split) for split in splits or [()]]

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangesPartition)
        return read_ranges(partition.ranges, self._options, self._columns)


@final
class FilteringReader(BatchReader):
    """The same, which reads only what filters leave."""

    @override
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._bounds = bounds_of(filters, is_committed=self._options.committed)
        return filters  # ranges hold more rows than those that are wanted


def bounds_of(filters: Sequence[Filter], *, is_committed: bool) -> Bounds:
    """What is left to read with all filters applied.

    Args:
        is_committed: whether messages before and behind decide which are committed, so that all are read.
    """
    journals: frozenset[str] | None = None
    prefixes: list[str] = []
    lowest, highest = 0, None
    for one in filters:
        match one:
            case EqualTo(("_journal",), str(name)):
                journals = _common(journals, [name])
            case In(("_journal",), names):
                journals = _common(journals, names)
            case StringStartsWith(("_journal",), str(prefix)):
                prefixes.append(prefix)
            case GreaterThan(("_begin",), int(at)) | GreaterThanOrEqual(("_begin",), int(at)):
                lowest = max(lowest, at)
            case LessThan(("_begin",), int(at)) | LessThanOrEqual(("_begin",), int(at)):
                highest = at if highest is None else min(highest, at)
            case EqualTo(("_begin",), int(at)):
                lowest = max(lowest, at)
                highest = at if highest is None else min(highest, at)
            case _:
                pass
    if is_committed:
        lowest, highest = 0, None
    return Bounds(
        journals=journals,
        prefixes=tuple(prefixes),
        begin_min=lowest,
        begin_max=highest,
    )


def _common(known: frozenset[str] | None, names: Iterable[Any]) -> frozenset[str]:
    found = frozenset(name for name in names if isinstance(name, str))
    return found if known is None else known & found
