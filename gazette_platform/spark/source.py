"""The data source that Spark finds under the name ``gazette``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from typing_extensions import override

from gazette_platform.ops import platforms
from gazette_platform.spark.batch import BatchReader, FilteringReader
from gazette_platform.spark.columns import DEFAULT_SCHEMA, columns_of
from gazette_platform.spark.options import (
    SinkOptions,
    SourceOptions,
    parse_options,
    parse_sink_options,
)
from gazette_platform.spark.sink import BatchWriter, StreamWriter
from gazette_platform.spark.stream import StreamReader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

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
