"""All resources of a platform, for our definitions and for those of users beside them."""

import os

from gazette_platform.lake import LakeSettings, SpecFolder
from gazette_platform.lake.engines.spark import spark_configuration
from gazette_platform.lake.rollups import RollupFolder
from gazette_platform.resources.lake import LakeResource, MetastoreResource, catalog_digest
from gazette_platform.resources.services import BrokerResource, TrinoResource
from gazette_platform.resources.spark import NoSparkResource, SparkResource


def platform_resources(
    settings: LakeSettings | None = None,
    *,
    folder: SpecFolder | None = None,
    rollups: RollupFolder | None = None,
) -> dict[str, object]:
    """Resources ``broker``, ``metastore``, ``lake``, ``trino`` and ``spark``.

    A server, or Spark, that is not configured raises when it is used.

    Args:
        settings: where all is; None: as the environment says.
        folder: table specs that the definitions show; None: they show none.
        rollups: likewise.

    Raises: ValidationError: the environment is malformed.
    """
    settings = settings or LakeSettings.from_environment(os.environ)
    found: dict[str, object] = {
        "broker": BrokerResource(address=settings.broker, file_root=str(settings.file_root or "")),
        "metastore": MetastoreResource(uri=settings.metastore),
        "lake": LakeResource(
            tables=settings.tables,
            store_roots=dict(settings.store_roots),
            table_url=settings.table_url,
            trino_catalog=settings.trino_catalogs.hive,
            trino_typed_catalog=settings.trino_catalogs.typed,
            dagster_ui=settings.dagster,
            rollups=settings.rollups,
            warehouse=settings.warehouse,
            store=settings.store,
            iceberg_catalog=str(settings.iceberg_catalog),
            loaded=catalog_digest(folder or SpecFolder(), rollups or RollupFolder()),
        ),
        "trino": TrinoResource(
            uri=settings.trino,
            catalog=settings.trino_catalogs.hive,
            iceberg_catalog=settings.trino_catalogs.iceberg,
            typed_catalog=settings.trino_catalogs.typed,
        ),
    }
    if settings.metastore and settings.iceberg_jar:
        found["spark"] = SparkResource(
            spark_config=spark_configuration(settings), properties=settings.spark_properties
        )
    else:
        found["spark"] = NoSparkResource()
    return found
