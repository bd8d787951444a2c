"""Resources that are places: the metastore's tables and the folder of table specs."""

from pathlib import Path

from dagster import ConfigurableResource
from pydantic import Field

from gazette_platform.errors import SetupError, ValidationError
from gazette_platform.hive import MetastoreClient
from gazette_platform.lake import (
    Auditor,
    FitChecker,
    FragmentSource,
    Registrar,
    Repairer,
    StoreRoots,
    TableSpec,
    load_table_specs,
    specs_digest,
)
from gazette_platform.lake.registration import Metastore

__all__ = ["LakeResource", "MetastoreResource"]


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
    trino_ui: str = Field(default="", description="Address of Trino's UI, for links.")
    dagster_ui: str = Field(default="", description="Address of Dagster's web server.")
    loaded: str = Field(default="", description="Digest of the specs when definitions loaded.")

    def catalog_digest(self) -> str:
        """16 hex digits that change with any part of any valid spec."""
        return specs_digest(self.specs()[0])

    def specs(self) -> tuple[dict[str, TableSpec], dict[str, ValidationError]]:
        """Table specs by name, and errors by file, read anew from the folder."""
        return load_table_specs(Path(self.tables))

    def registrar(self, source: FragmentSource, metastore: Metastore) -> Registrar:
        """What registers fragments of these tables."""
        return Registrar(source, metastore, StoreRoots(self.store_roots))

    def auditor(self, source: FragmentSource) -> Auditor:
        """What compares these tables with the brokers' index."""
        return Auditor(source, StoreRoots(self.store_roots))

    def repairer(self, source: FragmentSource) -> Repairer:
        """What moves files that others cover out of these tables."""
        return Repairer(source, StoreRoots(self.store_roots))

    def fit_checker(self, source: FragmentSource) -> FitChecker:
        """What looks again at fragments that did not hold what their spec says."""
        return FitChecker(source, StoreRoots(self.store_roots))
