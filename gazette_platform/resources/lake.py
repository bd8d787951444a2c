"""Resources that are places: the metastore's tables and the folder of table specs."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from dagster import ConfigurableResource, MetadataValue
from pydantic import Field

from gazette_platform.errors import SetupError
from gazette_platform.hive import MetastoreClient
from gazette_platform.lake import (
    Auditor,
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
from gazette_platform.lake.catalogs import HIVE, ICEBERG, IcebergCatalog
from gazette_platform.lake.links import table_link
from gazette_platform.lake.raw.registration import Metastore
from gazette_platform.lake.rollups import RollupFolder, read_rollup_folder

if TYPE_CHECKING:
    from gazette_platform.lake.iceberg.catalog import TypedCatalog
    from gazette_platform.lake.iceberg.metastore import IcebergTables


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
