"""The Spark session of the lake: raw tables by name, Iceberg tables under ``iceberg.``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gazette_platform.errors import LakeError, SetupError
from gazette_platform.lake.s3 import S3Access

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gazette_platform.lake.settings import LakeSettings

__all__ = ["prepare_environment", "spark_configuration", "start_session"]


_LOGGING = Path(__file__).with_name("log4j2.properties")


def spark_configuration(settings: LakeSettings, *, memory: str = "1g") -> dict[str, str]:
    """Configuration for ``SparkSession.builder``: Hive support, Iceberg catalog, loopback only.

    Args:
        settings: `metastore` is required.
        memory: heap of the driver, which with a local master does all work.

    Raises: SetupError: the metastore is not known, or the Iceberg jar is not there. ValidationError:
        the store is none that Spark can be told of.
    """
    metastore = settings.required("metastore")
    configuration = {
        "spark.master": settings.spark_master,
        "spark.app.name": "gazette-platform",
        "spark.driver.memory": memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{_LOGGING}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.hive.metastore.uris": metastore,
        "spark.sql.shuffle.partitions": "4",
        # A session that lives longer than a query must see new fragments: no cached listings.
        "spark.sql.hive.filesourcePartitionFileCacheSize": "0",
        "spark.sql.filesourceTableRelationCacheSize": "0",
    }
    jars = []
    if settings.store.startswith("s3:"):
        access = S3Access.of(settings.store, os.environ)
        configuration |= {f"spark.hadoop.{name}": value for name, value in access.hadoop().items()}
        jars += [f"{settings.s3_jars}/*"] if settings.s3_jars else []
    if settings.warehouse:
        configuration["spark.sql.warehouse.dir"] = f"{settings.warehouse}/spark"
    if settings.iceberg_jar:
        if not Path(settings.iceberg_jar).is_file():
            raise SetupError(
                f"there is no Iceberg runtime at GAZETTE_ICEBERG_JAR={settings.iceberg_jar}"
            )
        catalog = "spark.sql.catalog.iceberg"
        jars.append(settings.iceberg_jar)
        configuration |= {
            "spark.sql.extensions": (
                "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
            ),
            catalog: "org.apache.iceberg.spark.SparkCatalog",
            f"{catalog}.type": "hive",
            f"{catalog}.uri": metastore,
            f"{catalog}.warehouse": settings.required("warehouse"),
            f"{catalog}.cache-enabled": "false",
        }
    for side in ("driver", "executor") if jars else ():
        configuration[f"spark.{side}.extraClassPath"] = os.pathsep.join(jars)
    return configuration


def prepare_environment() -> None:
    """Make Spark's workers run this interpreter; others lack the packages."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def start_session(settings: LakeSettings, *, memory: str = "1g") -> SparkSession:
    """A new Spark session, or the one of this process. The caller stops it.

    Raises: LakeError: the JVM did not start. SetupError: see `spark_configuration`.
    """
    from pyspark.errors import PySparkException  # noqa: PLC0415  slow to import
    from pyspark.sql import SparkSession  # noqa: PLC0415

    prepare_environment()
    builder = SparkSession.builder
    for key, value in spark_configuration(settings, memory=memory).items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except (PySparkException, OSError) as err:
        raise LakeError(
            f"Spark did not start: {err} (JAVA_HOME={os.environ.get('JAVA_HOME', '')!r} must be a "
            "Java 17 or 21)"
        ) from err
