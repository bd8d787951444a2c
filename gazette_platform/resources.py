"""Dagster resources of the platform: brokers, the metastore, Trino, Spark, and where table specs lie.

`platform_resources` gives all of them, also to definitions of users. A server that is not configured raises a SetupError when
it is used, and Spark starts no JVM before it is asked for a session. Dagster shows resources, so they hold no secrets: these
are read from the environment, or from files that it names, when a server is asked.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster import ConfigurableResource, MetadataValue
from dagster_pyspark import LazyPySparkResource
from pydantic import Field, PrivateAttr
from pyspark.sql import SparkSession
from typing_extensions import override

from gazette_platform.client import Client, ClientConfig
from gazette_platform.errors import SetupError
from gazette_platform.hive import Metastore, MetastoreClient
from gazette_platform.lake import (
    Auditor,
    BrokerSource,
    FitChecker,
    FragmentSource,
    LakeSettings,
    Registrar,
    Repairer,
    Shrinker,
    SpecFolder,
    StoreRoots,
    read_spec_folder,
)
from gazette_platform.lake.catalog_settings import HIVE, ICEBERG, IcebergCatalog, TrinoCatalogs
from gazette_platform.lake.engines.spark import open_session, spark_configuration
from gazette_platform.lake.engines.trino import TrinoLogin, TrinoSession
from gazette_platform.lake.rollups import RollupFolder, read_rollup_folder
from gazette_platform.lake.settings import table_link

if TYPE_CHECKING:
    from gazette_platform.lake.iceberg.catalog import TypedCatalog
    from gazette_platform.lake.iceberg.metastore import IcebergTables

__all__ = [
    "BrokerResource",
    "LakeResource",
    "MetastoreResource",
    "SparkResource",
    "TrinoResource",
    "platform_resources",
]

# A tick that cannot reach a broker should say so, and leave the next one to try.
_RETRY_TIMEOUT_S = 20.0


class BrokerResource(ConfigurableResource["BrokerResource"]):
    """Brokers, by the address of one or some of them."""

    address: str = Field(
        description="Endpoint URL of any broker, for example http://host:8080; or of several, with "
        "commas between them."
    )
    zone: str = Field(default="local", description="Zone of this process, for near reads.")
    file_root: str = Field(
        default="",
        description="Folder that file:/// stores are rooted at: fragments are read from there, if it is here.",
    )

    @contextmanager
    def client(self) -> Iterator[Client]:
        """A connected client, closed at the end of the scope.

        Raises: SetupError: no address is configured.
        """
        if not self.address:
            raise SetupError(
                "no broker is configured: set GAZETTE_BROKER_ADDRESS, or GAZETTE_ENDPOINTS to the "
                "endpoints.json of `gazette up`"
            )
        # Tokens, keys and certificates come from the variables that gazctl reads.
        root = Path(self.file_root)
        config = ClientConfig.from_environment(
            os.environ,
            address=self.address,
            zone=self.zone,
            retry_timeout_s=_RETRY_TIMEOUT_S,
            file_root=root if self.file_root and root.is_dir() else None,
        )
        with Client(config) as client:
            yield client

    @contextmanager
    def source(self) -> Iterator[FragmentSource]:
        """Journals and fragments, as the lake asks for them."""
        with self.client() as client:
            yield BrokerSource(client)


class TrinoResource(ConfigurableResource["TrinoResource"]):
    """Trino, over its DB-API client.

    Passwords and tokens are not part of it, since Dagster shows resources: they are taken from the
    environment at each query, as `TrinoLogin.from_environment` reads it.
    """

    uri: str = Field(description="http(s)://host:port of the coordinator.")
    user: str = Field(
        default="", description="User that Trino sees; empty: as GAZETTE_TRINO_USER says."
    )
    catalog: str = Field(default=HIVE, description="Name of its catalog of raw tables.")
    iceberg_catalog: str = Field(default=ICEBERG, description="Name of that of Iceberg tables.")
    typed_catalog: str = Field(
        default="", description="Name of that of typed tables; empty: the same."
    )

    @property
    def catalogs(self) -> TrinoCatalogs:
        """What it calls its catalogs."""
        return TrinoCatalogs(
            hive=self.catalog, iceberg=self.iceberg_catalog, typed=self.typed_catalog
        )

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement to its end.

        Args:
            sql: one statement, values as ``?``.
            parameters: the values.

        Returns: all rows.
        Raises: LakeError: Trino cannot be reached, or refused. SetupError: none is configured, or a
            file of the login cannot be read. ValidationError: the login is malformed.
        """
        if not self.uri:
            raise SetupError(
                "no Trino is configured: set GAZETTE_TRINO_URI, or GAZETTE_ENDPOINTS to the "
                "endpoints.json of `gazette up`"
            )
        login = TrinoLogin.from_environment(os.environ, user=self.user)
        return TrinoSession(self.uri, login=login).query(sql, parameters)


class MetastoreResource(ConfigurableResource["MetastoreResource"]):
    """The Hive Metastore."""

    uri: str = Field(description="thrift://host:port.")

    def client(self) -> Metastore:
        """Opens sessions; holds no connection.

        Raises: SetupError: no address is configured.
        """
        if not self.uri:
            raise SetupError(
                "no Hive Metastore is configured: set GAZETTE_METASTORE_URI, or GAZETTE_ENDPOINTS "
                "to the endpoints.json of `gazette up`"
            )
        return MetastoreClient(self.uri)


class LakeResource(ConfigurableResource["LakeResource"]):
    """Table specs, and where fragment stores lie for engines."""

    tables: str = Field(description="Folder of table specs, *.yaml.")
    store_roots: dict[str, str] = Field(
        default_factory=dict, description="Fragment-store URL → table location."
    )
    rollups: str = Field(default="", description="Folder of rollups, trino/*.sql and spark/*.sql.")
    warehouse: str = Field(default="", description="Location of Iceberg tables.")
    store: str = Field(default="", description="URL of the store that the warehouse may be in.")
    iceberg_catalog: str = Field(
        default="hive", description="Catalog of typed tables: hive, or the address of another one."
    )
    table_url: str = Field(
        default="", description="Page of a table: with {catalog}, {schema} and {table} in it."
    )
    trino_catalog: str = Field(default=HIVE, description="Trino's name of the raw tables' catalog.")
    trino_typed_catalog: str = Field(
        default=ICEBERG, description="Trino's name of the catalog of typed tables."
    )
    dagster_ui: str = Field(default="", description="Address of Dagster's web server.")
    loaded: str = Field(default="", description="Digest of the folder when definitions loaded.")

    def folder(self) -> SpecFolder:
        """Table specs, and what is refused, read again from the folder."""
        return read_spec_folder(Path(self.tables)) if self.tables else SpecFolder()

    def rollup_folder(self, tables: SpecFolder | None = None) -> RollupFolder:
        """Rollups, and what is refused, read again from their folder.

        Args:
            tables: those beside them; None: the existing ones.
        """
        return read_rollup_folder(self.rollups, (tables or self.folder()).tables)

    def iceberg_tables(self, metastore: Metastore) -> "IcebergTables":
        """Iceberg tables of the metastore: rollups.

        Raises: SetupError: it is not known where they are. ValidationError: nor how to reach them.
        """
        from gazette_platform.lake.iceberg.catalog import io_properties_of  # noqa: PLC0415
        from gazette_platform.lake.iceberg.metastore import (  # noqa: PLC0415  slow to import
            IcebergTables,
        )

        settings = self._places()
        properties = io_properties_of(settings, os.environ)
        return IcebergTables(metastore, settings.required("warehouse"), properties)

    def typed_catalog(self, metastore: Metastore) -> "TypedCatalog":
        """Where typed tables are. Who asks is taken from the environment.

        Raises: see `gazette_platform.lake.iceberg.catalog.typed_catalog`.
        """
        from gazette_platform.lake.iceberg.catalog import (  # noqa: PLC0415  slow to import
            typed_catalog,
        )

        return typed_catalog(self._places(), metastore)

    def _places(self) -> LakeSettings:
        return LakeSettings(
            warehouse=self.warehouse,
            store=self.store,
            iceberg_catalog=IcebergCatalog.parse(self.iceberg_catalog),
        )

    def table_page(self, table: str) -> dict[str, MetadataValue]:
        """A link to the page of ``catalog.schema.table``, as metadata; none if there are no pages."""
        if not self.table_url:
            return {}
        return {"table": MetadataValue.url(table_link(self.table_url, table))}

    def roots(self) -> StoreRoots:
        """Where fragment stores lie for engines."""
        return StoreRoots(self.store_roots)

    def registrar(self, source: FragmentSource, metastore: Metastore) -> Registrar:
        """What registers fragments of these tables."""
        return Registrar(source, metastore, self.roots(), trino_catalog=self.trino_catalog)

    def auditor(self, source: FragmentSource) -> Auditor:
        """What compares these tables with the brokers' index."""
        return Auditor(source, self.roots())

    def repairer(self, source: FragmentSource) -> Repairer:
        """What moves files that others cover out of these tables."""
        return Repairer(source, self.roots())

    def fit_checker(self, source: FragmentSource) -> FitChecker:
        """What looks again at fragments that did not hold what their spec says."""
        return FitChecker(source, self.roots())

    def shrinker(self, source: FragmentSource) -> Shrinker:
        """What has Hive partitions of these tables follow prunes."""
        return Shrinker(source, self.roots())


def catalog_digest(tables: SpecFolder, rollups: RollupFolder) -> str:
    """Hex digits that change with any part of any spec."""
    return tables.digest + rollups.digest


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
