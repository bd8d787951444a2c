"""Typed tables in catalogs that are servers, and handles of their own for each who asks."""

import uuid
from urllib.parse import urlsplit

from typed_world import spec

from gazette_platform.lake import LakeSettings
from gazette_platform.lake.catalog_settings import CatalogLogin, IcebergCatalog
from gazette_platform.lake.iceberg.catalog import typed_catalog
from gazette_platform.lake.iceberg.rest_catalog import rest_catalog
from gazette_platform.lake.iceberg.sql_catalog import sql_catalog
from gazette_platform.lake.typed.tables.table import open_table

__all__ = ["Place", "Table", "places_of"]


class Place:
    """A catalog: REST or SQL, by `kind`."""

    def __init__(self, kind, uri, folder, environment, port):
        self.kind = kind
        self.uri = uri
        self.environment = environment
        self.port = port
        self.folder = folder

    def at(self, port):
        """The same catalog by another port."""
        uri = self.uri.replace(f":{self.port}", f":{port}")
        return Place(self.kind, uri, self.folder, self.environment, port)

    @property
    def database(self):
        return urlsplit(self.uri).path[1:]

    @property
    def settings(self):
        return LakeSettings(
            iceberg_catalog=IcebergCatalog.parse(self.uri), warehouse=self.folder.as_uri()
        )

    def catalog(self):
        return typed_catalog(self.settings, environment=self.environment)

    def patient_for(self, answer_s):
        """A client of PyIceberg's that waits no longer."""
        catalog = IcebergCatalog.parse(self.uri)
        login = CatalogLogin.from_environment(catalog, self.environment)
        if self.kind == "rest":
            return rest_catalog(catalog, login, {}, answer_s=answer_s)
        return sql_catalog(catalog, login, self.folder.as_uri(), {}, answer_s=answer_s)

    def table(self):
        return Table(self, f"typed.t{uuid.uuid4().hex[:8]}")


class Table:
    """A typed table of a catalog."""

    def __init__(self, place, name):
        self.place = place
        self.name = name

    def handle(self, place=None):
        return (place or self.place).catalog().handle(self.name)

    def open(self, wanted=None):
        catalog = self.place.catalog()
        handle = catalog.handle(self.name)
        return open_table(handle, wanted or spec(), catalog.new_location(self.name))


def places_of(postgres, gate, database, folder):
    """By kind: a new database, and the REST catalog behind a gate. Spark calls them ``sql_lake`` and ``rest_lake``."""
    postgres.sql(f"CREATE DATABASE {database}")
    password = {"GAZETTE_ICEBERG_PASSWORD": postgres.password}
    credential = {"GAZETTE_ICEBERG_CREDENTIAL": gate.credential}
    uri = f"{postgres.uri(database)}#sql_lake"
    return {
        "sql": Place("sql", uri, folder, password, postgres.port),
        "rest": Place("rest", f"{gate.uri}#rest_lake", folder, credential, gate.port),
    }
