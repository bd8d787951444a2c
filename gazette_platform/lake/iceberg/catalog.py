"""Catalogs of typed tables, as few words as publishing needs: load a table, make it, change it in one step.

A change says what it requires: that references, schema and partitions still are what was seen. The catalog
compares that and changes the table in the same step, or refuses. All that is promised of typed tables stands on it.

A metastore is asked by `IcebergTables`, and never by PyIceberg's own client, which trusts the metastore's lock and
lets a zombie overwrite what came between.

The catalog that typed tables are in, as settings name it: where a table is, and the handle to it.
"""

from __future__ import annotations

import os
import sys
import uuid
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, final

from pydantic import ValidationError as InvalidAnswer
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    CommitStateUnknownException,
    ForbiddenError,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    OAuthError,
    RESTError,
    TableAlreadyExistsError,
    UnauthorizedError,
    ValidationError as InvalidMetadata,
)
from pyiceberg.io import load_file_io
from pyiceberg.table import Table
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import update_table_metadata

from gazette_platform.errors import LakeError, SetupError, TypedFenced
from gazette_platform.hive import MetastoreClient
from gazette_platform.lake.catalogs import ICEBERG
from gazette_platform.lake.iceberg.metastore import IcebergTables
from gazette_platform.lake.iceberg.rest_catalog import rest_catalog
from gazette_platform.lake.iceberg_catalog import CatalogLogin
from gazette_platform.lake.s3 import S3Access

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from uuid import UUID

    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata

    from gazette_platform.lake.raw.registration import Metastore
    from gazette_platform.lake.settings import LakeSettings

# What properties of stores begin with. The rest are of the catalog.
_OF_STORES: Final = ("s3.", "gcs.", "adls.", "hdfs.", "client.", "py-io-impl")
# Serialization failure and deadlock.
_CONFLICTS: Final = frozenset({"40001", "40P01"})


@final
@dataclass(frozen=True, slots=True)
class Loaded:
    """A table as it is now."""

    metadata: TableMetadata
    io: FileIO
    """Reads and writes its files."""
    token: Any
    """What the catalog compares."""

    @property
    def metadata_location(self) -> str:
        """The file with its metadata; each change makes a new one."""
        return str(self.token.metadata_location)

    @property
    def table(self) -> Table:
        """PyIceberg's, to plan scans by, and snapshots. It knows no catalog: what is to be changed, the handle changes."""
        return Table(("", ""), self.metadata, "", self.io, NoopCatalog("none"))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class NewTable:
    """A table to be made. The catalog numbers the fields again."""

    schema: Schema
    partitions: PartitionSpec
    location: str
    """Empty: the catalog chooses."""
    properties: Mapping[str, str]


class TableHandle(Protocol):
    """The catalog of one table."""

    @property
    def name(self) -> str:
        """``schema.table``."""
        ...

    def load(self) -> Loaded | None:
        """The table; None: there is no such table.

        Raises: LakeError: the catalog cannot be reached, or it is not an Iceberg table.
        """
        ...

    def create(self, new: NewTable) -> Loaded:
        """Make the table. Of several that do at once one makes it, and the others get that one.

        Raises: LakeError: the catalog cannot be reached, or refused.
        """
        ...

    def commit(self, base: Loaded, requirements: Sequence[Any], updates: Sequence[Any]) -> None:
        """Change what was loaded, if all that is required holds.

        Raises: CommitFailedException: something did not; nothing was changed. LakeError: the catalog broke
            off: it may have been changed, or may not.
        """
        ...

    def drop(self) -> None:
        """Forget the table; its files stay. A missing one is fine.

        Raises: LakeError: the catalog cannot be reached, or refused.
        """
        ...


def present(handle: TableHandle) -> Loaded:
    """A table that has to exist.

    Raises: LakeError: it is not, or the catalog cannot be reached.
    """
    loaded = handle.load()
    if loaded is None:
        raise LakeError(f"there is no table {handle.name}: it is made by the first run")
    return loaded


@final
class MetastoreHandle:
    """A metastore, which itself compares before it writes.

    Args:
        tables: of the metastore.
        name: ``schema.table``.
    """

    def __init__(self, tables: IcebergTables, name: str) -> None:
        self._tables = tables
        self._name = name
        self._schema, _, self._table = name.partition(".")

    @property
    def name(self) -> str:
        """See `TableHandle`."""
        return self._name

    def load(self) -> Loaded | None:
        """See `TableHandle`."""
        table = self._tables.load(self._schema, self._table)
        if table is None:
            return None
        return Loaded(table.metadata, self._tables.io(table.metadata.location), table)

    def create(self, new: NewTable) -> Loaded:
        """See `TableHandle`."""
        metadata = new_table_metadata(
            new.schema, new.partitions, UNSORTED_SORT_ORDER, new.location, dict(new.properties)
        )
        self._tables.ensure_database(self._schema)
        location = self._tables.write_metadata(metadata, 0)
        # Whether it was this one does not matter: what exists counts.
        self._tables.create(self._schema, self._table, metadata, location)
        return _made(self)

    def commit(self, base: Loaded, requirements: Sequence[Any], updates: Sequence[Any]) -> None:
        """See `TableHandle`."""
        for one in requirements:
            one.validate(base.metadata)
        after = update_table_metadata(
            base.metadata, tuple(updates), metadata_location=base.token.metadata_location
        )
        location = self._tables.write_metadata(after, base.token.version + 1)
        if not self._tables.swap(base.token, location):
            raise CommitFailedException(f"{self._name} was changed meanwhile")

    def drop(self) -> None:
        """See `TableHandle`."""
        self._tables.forget(self._schema, self._table)


@final
class CatalogHandle:
    """A catalog of PyIceberg's that compares what is required: REST and SQL do, that of a metastore does not.

    Args:
        catalog: of the table.
        name: ``schema.table``.
    """

    def __init__(self, catalog: Catalog, name: str) -> None:
        self._catalog = catalog
        self._name = name

    @property
    def name(self) -> str:
        """See `TableHandle`."""
        return self._name

    def load(self) -> Loaded | None:
        """See `TableHandle`."""
        with self._asking("loaded"):
            try:
                table = self._catalog.load_table(self._name)
            except NoSuchTableError:
                return None
            return Loaded(table.metadata, _io_of(table), table)

    def create(self, new: NewTable) -> Loaded:
        """See `TableHandle`."""
        with self._asking("made"):
            self._make_namespace(self._name.partition(".")[0])
            with suppress(TableAlreadyExistsError):
                self._catalog.create_table(
                    self._name,
                    new.schema,
                    location=new.location or None,
                    partition_spec=new.partitions,
                    properties=dict(new.properties),
                )
        return _made(self)

    def commit(self, base: Loaded, requirements: Sequence[Any], updates: Sequence[Any]) -> None:
        """See `TableHandle`."""
        with self._asking("changed"):
            try:
                self._catalog.commit_table(base.token, tuple(requirements), tuple(updates))
            except NoSuchTableError as err:
                raise CommitFailedException(f"{self._name} is gone") from err
            except _outages() as err:
                if not _is_conflict(err):
                    raise
                raise CommitFailedException(f"{self._name} was changed meanwhile") from err
            except ValueError as err:
                # A snapshot that another writer added meanwhile has the number of this one: no condition can name it.
                raise CommitFailedException(f"{self._name} was changed meanwhile: {err}") from err

    def drop(self) -> None:
        """See `TableHandle`."""
        with self._asking("dropped"), suppress(NoSuchTableError):
            self._catalog.drop_table(self._name)

    def _make_namespace(self, name: str) -> None:
        if self._catalog.namespace_exists(name):
            return
        try:
            self._catalog.create_namespace(name)
        except _outages():
            # A database reports a duplicate key.
            if not self._catalog.namespace_exists(name):
                raise

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        try:
            yield
        except CommitFailedException:
            raise
        except (UnauthorizedError, ForbiddenError, OAuthError) as err:
            raise LakeError(
                f"{self._name} could not be {what}, as its catalog does not let us ({_line(err)}): check "
                "GAZETTE_ICEBERG_TOKEN or GAZETTE_ICEBERG_CREDENTIAL, and what that one may do"
            ) from err
        except (BadRequestError, NotImplementedError) as err:
            raise LakeError(
                f"{self._name} could not be {what}, as its catalog has refused ({_line(err)}): see its log, and which "
                "releases of Iceberg it knows"
            ) from err
        except _outages() as err:
            raise LakeError(
                f"{self._name} could not be {what}, as its catalog broke off ({_line(err)}): see that it runs, and "
                "ask again, which does nothing twice"
            ) from err


@final
class PinnedHandle:
    """The handle of one table, and of no other that is made under its name later.

    That of a first run could else be published to by a run of the one before, which had published nothing either; and an
    amendment, which goes on top of whatever runs have published, would be put into a table that has not read as far.

    Args:
        handle: of the name.
        uuid: of the table.
    """

    def __init__(self, handle: TableHandle, uuid: UUID) -> None:
        self._handle = handle
        self._uuid = uuid

    @property
    def name(self) -> str:
        """See `TableHandle`."""
        return self._handle.name

    def load(self) -> Loaded | None:
        """See `TableHandle`. Raises: TypedFenced, also: there is another table now."""
        found = self._handle.load()
        if found is not None and found.metadata.table_uuid != self._uuid:
            raise TypedFenced(
                f"{self.name} was dropped and recreated since this began, so it changed nothing: run again"
            )
        return found

    def create(self, new: NewTable) -> Loaded:
        """See `TableHandle`."""
        return self._handle.create(new)

    def commit(self, base: Loaded, requirements: Sequence[Any], updates: Sequence[Any]) -> None:
        """See `TableHandle`."""
        self._handle.commit(base, requirements, updates)

    def drop(self) -> None:
        """See `TableHandle`."""
        self._handle.drop()


def _io_of(table: Table) -> FileIO:
    """What reads and writes the table's files, by what is said of stores.

    PyIceberg's own has the properties of the catalog as well, such as tokens, and objects of it: neither is for workers, who
    are given these.
    """
    kept = {
        name: value for name, value in table.io.properties.items() if name.startswith(_OF_STORES)
    }
    return load_file_io(kept, table.metadata.location)


def _outages() -> tuple[type[Exception], ...]:
    """What catalogs raise when they cannot be reached, break off, or answer what no catalog does.

    Others that make, or drop, the same namespace at the same time are among them.
    """
    of_sql = sys.modules.get("sqlalchemy.exc")
    known = (
        OSError,
        RESTError,
        CommitStateUnknownException,
        NamespaceAlreadyExistsError,
        NoSuchNamespaceError,
        # Of an answer that is none of a catalog's, such as a page of a proxy's; and of a metadata file that is none.
        InvalidAnswer,
        InvalidMetadata,
    )
    return known if of_sql is None else (*known, of_sql.SQLAlchemyError)


def _is_conflict(err: Exception) -> bool:
    """Whether a database rolled back what was asked since others did something at the same time."""
    state = getattr(getattr(err, "orig", None), "sqlstate", None)
    return state in _CONFLICTS


def _line(err: Exception) -> str:
    return str(err).partition("\n")[0]


def _made(handle: TableHandle) -> Loaded:
    found = handle.load()
    if found is None:
        raise LakeError(f"{handle.name} was dropped as it was being made: run again")
    return found


class TypedCatalog(Protocol):
    """Where tables are. It holds no connection."""

    @property
    def name(self) -> str:
        """What Spark calls the catalog."""
        ...

    def handle(self, name: str) -> TableHandle:
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

    def handle(self, name: str) -> TableHandle:
        """See `TypedCatalog`."""
        return MetastoreHandle(self._tables, name)

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

    def handle(self, name: str) -> TableHandle:
        """See `TypedCatalog`."""
        return CatalogHandle(self._catalog, name)

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
        from gazette_platform.lake.iceberg.sql_catalog import sql_catalog  # noqa: PLC0415  an extra

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
