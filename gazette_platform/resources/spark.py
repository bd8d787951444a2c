"""Spark as a resource: the platform's configuration, with properties of a user's own."""

from typing import Any

from dagster import ConfigurableResource
from dagster_pyspark import LazyPySparkResource
from pydantic import Field, PrivateAttr
from pyspark.sql import SparkSession
from typing_extensions import override

from gazette_platform.errors import SetupError
from gazette_platform.lake.engines.spark import open_session


class SparkResource(LazyPySparkResource):
    """A session that is started when it is first asked for.

    Dagster shows `spark_config`. What the file `properties` holds, secrets perhaps, it does not: that
    is read when the session starts, and wins.
    """

    properties: str = Field(default="", description="Path of a file of properties of Spark.")
    _opened: SparkSession | None = PrivateAttr(default=None)

    @property
    @override
    def spark_session(self) -> Any:
        """The session of this process.

        Raises: LakeError: Spark did not start. SetupError: the file cannot be read. ValidationError:
            something is wrong in it.
        """
        if self._opened is None:
            self._opened = open_session(self.spark_config, self.properties)
        return self._opened

    @property
    @override
    def spark_context(self) -> Any:
        """The context of the session."""
        return self.spark_session.sparkContext


class NoSparkResource(ConfigurableResource["NoSparkResource"]):
    """In the place of Spark's resource while Spark is not configured."""

    missing: str = Field(
        default="GAZETTE_METASTORE_URI, or GAZETTE_ENDPOINTS, and GAZETTE_ICEBERG_JAR",
        description="What is to be set.",
    )

    @property
    def spark_session(self) -> Any:
        """Says what is missing.

        Raises: SetupError: always.
        """
        raise SetupError(f"Spark is not configured: set {self.missing}")
