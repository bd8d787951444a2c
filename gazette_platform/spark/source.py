"""The data source that Spark finds under the name ``gazette``, and its batches: splits that the driver plans, each read by a task."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
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
from gazette_platform.ops import platforms
from gazette_platform.spark.columns import DEFAULT_SCHEMA, columns_of
from gazette_platform.spark.options import (
    SinkOptions,
    SourceOptions,
    parse_options,
    parse_sink_options,
)
from gazette_platform.spark.reading import (
    Bounds,
    RangesPartition,
    ranges_of_batch,
    read_ranges,
    splits_of,
)
from gazette_platform.spark.sink import BatchWriter, StreamWriter
from gazette_platform.spark.stream import StreamReader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from gazette_platform.spark.columns import Columns


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


_PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"


class GazetteDataSource(DataSource):
    """Journals, as ``format("gazette")`` of `read`, `readStream`, `write` and `writeStream`.

    Registered as it is, it leaves all filters to Spark, which refuses a Python source that takes any in sessions
    that did not allow it: see `register`. Options are those of `OPTIONS`, and of writes those of `SINK_OPTIONS`.
    """

    @classmethod
    @override
    def name(cls) -> str:
        return "gazette"

    @override
    def schema(self) -> str:
        return DEFAULT_SCHEMA

    @override
    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(self._options(), columns_of(schema))

    @override
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(self._options(), columns_of(schema))

    @override
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BatchWriter(self._sink_options(), schema, overwrite=overwrite)

    @override
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return StreamWriter(self._sink_options(), schema, overwrite=overwrite)

    def _options(self) -> SourceOptions:
        return parse_options(dict(self.options), self._environment())

    def _sink_options(self) -> SinkOptions:
        return parse_sink_options(dict(self.options), self._environment())

    def _environment(self) -> Mapping[str, str]:
        """This process's, completed by the platform that runs, unless the option ``broker`` names one."""
        has_broker = any(name.lower() == "broker" for name in dict(self.options))
        return os.environ if has_broker else platforms.complete(os.environ)


@final
class _FilteringSource(GazetteDataSource):
    """The same, which takes filters."""

    @override
    def reader(self, schema: StructType) -> DataSourceReader:
        return FilteringReader(self._options(), columns_of(schema))


def register(spark: SparkSession, *, push_filters: bool = True) -> None:
    """Make ``format("gazette")`` known to a session.

    Args:
        push_filters: whether comparisons of `_journal` and `_begin` decide what is read at all. For that
            Spark's ``spark.sql.python.filterPushdown.enabled`` is set in the session, where it is off by
            default: any Python source then gets filters, if it wants to.
    """
    if push_filters:
        spark.conf.set(_PUSHDOWN, "true")
    spark.dataSource.register(_FilteringSource if push_filters else GazetteDataSource)
