"""The catalog that typed tables are in, as settings name it: where a table is, and the door to it."""

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING, Protocol, final

from gazette_platform.errors import SetupError
from gazette_platform.hive import MetastoreClient
from gazette_platform.lake.catalogs import ICEBERG
from gazette_platform.lake.iceberg_catalog import CatalogLogin
from gazette_platform.lake.rollups.iceberg import IcebergTables
from gazette_platform.lake.s3 import S3Access
from gazette_platform.lake.typed.catalog.doors import CatalogDoor, HiveDoor
from gazette_platform.lake.typed.catalog.rest_catalog import rest_catalog

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.catalog import Catalog

    from gazette_platform.lake.registration import Metastore
    from gazette_platform.lake.settings import LakeSettings
    from gazette_platform.lake.typed.catalog.doors import Door

__all__ = ["CatalogTables", "HiveTables", "TypedCatalog", "io_properties_of", "typed_catalog"]


class TypedCatalog(Protocol):
    """Where tables are. It holds no connection."""

    @property
    def name(self) -> str:
        """What Spark calls the catalog."""
        ...

    def door(self, name: str) -> Door:
        """Of the table ``schema.table``, which need not exist."""
        ...

    def new_location(self, name: str) -> str:
        """A location for a table to be made, where nothing is left of one of the same name; empty: the catalog chooses."""
        ...


@final
class HiveTables:
    """A Hive Metastore.

    Args:
        tables: of it, with their warehouse.
    """

    name = ICEBERG

    def __init__(self, tables: IcebergTables) -> None:
        self._tables = tables

    def door(self, name: str) -> Door:
        """See `TypedCatalog`."""
        return HiveDoor(self._tables, name)

    def new_location(self, name: str) -> str:
        """See `TypedCatalog`."""
        schema, _, table = name.partition(".")
        return self._tables.new_location(schema, table)


@final
class CatalogTables:
    """A catalog of PyIceberg's that compares what is required: REST or SQL.

    Args:
        catalog: PyIceberg's.
        warehouse: location of new tables, without a trailing slash; empty: the catalog chooses, as REST servers do, which
            may give credentials for no other place.
    """

    def __init__(self, catalog: Catalog, warehouse: str = "") -> None:
        self._catalog = catalog
        self._warehouse = warehouse

    @property
    def name(self) -> str:
        """See `TypedCatalog`."""
        return self._catalog.name

    def door(self, name: str) -> Door:
        """See `TypedCatalog`."""
        return CatalogDoor(self._catalog, name)

    def new_location(self, name: str) -> str:
        """See `TypedCatalog`."""
        if not self._warehouse:
            return ""
        schema, _, table = name.partition(".")
        return f"{self._warehouse}/{schema}.db/{table}-{uuid.uuid4().hex[:12]}"


def typed_catalog(
    settings: LakeSettings,
    metastore: Metastore | None = None,
    *,
    environment: Mapping[str, str] | None = None,
) -> TypedCatalog:
    """The catalog that settings name. A REST server or database is asked at once.

    Args:
        settings: `iceberg_catalog` says which; `warehouse` where tables of a metastore or database are, `store`
            how files are reached.
        metastore: that is asked if no other catalog is named; None: the one of the settings.
        environment: who asks; None: this process's. See `CatalogLogin`.

    Raises: SetupError: a setting or a library is missing. ValidationError: the login is malformed. LakeError: the
        catalog cannot be reached, or does not let us in.
    """
    environment = os.environ if environment is None else environment
    catalog, io = settings.iceberg_catalog, io_properties_of(settings, environment)
    if catalog.kind == "hive":
        asked = metastore or MetastoreClient(settings.required("metastore"))
        return HiveTables(IcebergTables(asked, settings.required("warehouse"), io))
    login = CatalogLogin.from_environment(catalog, environment)
    if catalog.kind == "rest":
        return CatalogTables(rest_catalog(catalog, login, io))
    warehouse = settings.required("warehouse")
    try:
        from gazette_platform.lake.typed.catalog.sql_catalog import sql_catalog  # noqa: PLC0415  an extra

        return CatalogTables(sql_catalog(catalog, login, warehouse, io), warehouse)
    except ImportError as err:
        raise SetupError(
            f"a catalog in a database needs {err.name}, which is not installed "
            "(pip install 'gazette-platform[postgres]')"
        ) from err


def io_properties_of(settings: LakeSettings, environment: Mapping[str, str]) -> dict[str, str]:
    """How PyIceberg reaches the files of Iceberg tables, besides its defaults.

    Raises: ValidationError: it cannot use the store.
    """
    if settings.store.startswith("s3:"):
        return S3Access.of(settings.store, environment).iceberg()
    return {}
