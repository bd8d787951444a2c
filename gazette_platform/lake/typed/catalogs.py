"""The catalog that typed tables are in: where a table is, and the door to it."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Protocol, final

from gazette_platform.lake.typed.doors import CatalogDoor, HiveDoor

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from gazette_platform.lake.rollups.iceberg import IcebergTables
    from gazette_platform.lake.typed.doors import Door

__all__ = ["HiveTables", "OtherTables", "TypedCatalog"]


class TypedCatalog(Protocol):
    """Where tables are."""

    def door(self, name: str) -> Door:
        """Of the table ``schema.table``, which need not be there."""
        ...

    def new_location(self, name: str) -> str:
        """A location for a table to be made, where nothing is left of one of the same name."""
        ...


@final
class HiveTables:
    """A Hive Metastore.

    Args:
        tables: of it, with their warehouse.
    """

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
class OtherTables:
    """A catalog of PyIceberg's that compares what is required: REST or SQL.

    Args:
        catalog: PyIceberg's.
        warehouse: location of new tables, without a trailing slash.
    """

    def __init__(self, catalog: Catalog, warehouse: str) -> None:
        self._catalog = catalog
        self._warehouse = warehouse

    def door(self, name: str) -> Door:
        """See `TypedCatalog`."""
        return CatalogDoor(self._catalog, name)

    def new_location(self, name: str) -> str:
        """See `TypedCatalog`."""
        schema, _, table = name.partition(".")
        return f"{self._warehouse}/{schema}.db/{table}-{uuid.uuid4().hex[:12]}"
