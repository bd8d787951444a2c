"""All resources of a platform, for our definitions and for those of users beside them."""

import os
from collections.abc import Mapping

from dagster_pyspark import LazyPySparkResource

from gazette_platform.lake import LakeSettings, TableSpec, specs_digest
from gazette_platform.lake.spark import spark_configuration
from gazette_platform.resources.lake import LakeResource, MetastoreResource
from gazette_platform.resources.services import BrokerResource, TrinoResource

__all__ = ["platform_resources"]


def platform_resources(
    settings: LakeSettings | None = None, *, specs: Mapping[str, TableSpec] | None = None
) -> dict[str, object]:
    """Resources ``broker``, ``metastore``, ``lake``, ``trino`` and, if Spark is set up, ``spark``.

    A server that is not configured is told when it is used.

    Args:
        settings: where all is; None: as the environment says.
        specs: table specs that the definitions show; None: they show none.

    Raises: ValidationError: the environment is malformed.
    """
    settings = settings or LakeSettings.from_environment(os.environ)
    found: dict[str, object] = {
        "broker": BrokerResource(address=settings.broker),
        "metastore": MetastoreResource(uri=settings.metastore),
        "lake": LakeResource(
            tables=settings.tables,
            store_roots=dict(settings.store_roots),
            trino_ui=settings.trino,
            dagster_ui=settings.dagster,
            loaded=specs_digest(specs or {}),
        ),
        "trino": TrinoResource(uri=settings.trino),
    }
    if settings.metastore and settings.iceberg_jar:
        found["spark"] = LazyPySparkResource(spark_config=spark_configuration(settings))
    return found
