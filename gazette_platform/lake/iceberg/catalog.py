"""Catalogs of typed tables, with the few operations that publishing needs: load, create and change a table.

A change lists its requirements: references, schema and partitions are still what the caller saw. The catalog
compares these and changes the table in one step, or refuses. All promises about typed tables rest on that.

`IcebergTables` talks to a metastore. PyIceberg's own client does not, because it trusts the metastore's lock alone:
a process that lost the lock could overwrite later commits.

`typed_catalog` returns the catalog that the settings name.
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

from gazette_platform.errors import LakeError, SetupError, TableFenced
from gazette_platform.hive import MetastoreClient
from gazette_platform.lake.catalog_settings import ICEBERG, CatalogLogin
from gazette_platform.lake.iceberg.metastore import IcebergTables
from gazette_platform.lake.iceberg.rest_catalog import rest_catalog
from gazette_platform.lake.settings import S3Access

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from uuid import UUID

    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata

    from gazette_platform.hive import Metastore
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
        """PyIceberg's table, to plan scans and snapshots. It has no catalog: only the handle commits."""
        # A commit through PyIceberg's own table would pass by the fence. This catalog refuses each
        # one.
        return Table(("", ""), self.metadata, "", self.io, NoopCatalog("none"))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class NewTable:
    """A table to create. The catalog assigns new field ids."""

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
        """Load the table; None if it does not exist.

        Raises: LakeError: the catalog cannot be reached, or it is not an Iceberg table.
        """
        ...

    def create(self, new: NewTable) -> Loaded:
        """Create the table. If several callers do so at once, one creates it and the others get that table.

        Raises: LakeError: the catalog cannot be reached, or refused.
        """
        ...

    def commit(self, base: Loaded, requirements: Sequence[Any], updates: Sequence[Any]) -> None:
        """Change the loaded table if all requirements hold.

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
    """Load a table that has to exist.

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
        # The file comes first: the metastore must never name a file that does not exist. After a
        # crash in between, the file is an orphan, which maintenance removes.
        location = self._tables.write_metadata(metadata, 0)
        # If another process created it first, its table counts.
        self._tables.create(self._schema, self._table, metadata, location)
        return _made(self)

    def commit(self, base: Loaded, requirements: Sequence[Any], updates: Sequence[Any]) -> None:
        """See `TableHandle`."""
        # The metastore knows no references and no schemas; it compares one text, the metadata
        # location. So the check is made on `base`, and the swap proves that `base` is still
        # current.
        for one in requirements:
            one.validate(base.metadata)
        after = update_table_metadata(
            base.metadata, tuple(updates), metadata_location=base.token.metadata_location
        )
        location = self._tables.write_metadata(after, base.token.version + 1)
        # The new file is unreferenced if the swap fails. It stays: after a lost answer the
        # metastore may name it, so only maintenance removes it.
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
                # Load each time: a cached table would fence this run by a change that is long
                # known.
                table = self._catalog.load_table(self._name)
            except NoSuchTableError:
                return None
            return Loaded(table.metadata, _io_of(table), table)

    def create(self, new: NewTable) -> Loaded:
        """See `TableHandle`."""
        with self._asking("made"):
            self._make_namespace(self._name.partition(".")[0])
            # Two first runs may meet here. The loser takes the winner's table, and the fence
            # decides between them when they publish.
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
            # Report a failed comparison: the caller loads the table again, and then says that it
            # was dropped.
            except NoSuchTableError as err:
                raise CommitFailedException(f"{self._name} is gone") from err
            # Databases abort one of two concurrent transactions. That is a lost comparison and no
            # outage: nothing was changed, so the caller tries on top of the winner.
            except _outages() as err:
                if not _is_conflict(err):
                    raise
                raise CommitFailedException(f"{self._name} was changed meanwhile") from err
            except ValueError as err:
                # Another writer's snapshot took this one's sequence number. No requirement of Iceberg's covers that.
                raise CommitFailedException(f"{self._name} was changed meanwhile: {err}") from err

    def drop(self) -> None:
        """See `TableHandle`."""
        with self._asking("dropped"), suppress(NoSuchTableError):
            self._catalog.drop_table(self._name)

    def _make_namespace(self, name: str) -> None:
        # Ask first: a role that may create tables often may not create namespaces.
        if self._catalog.namespace_exists(name):
            return
        try:
            self._catalog.create_namespace(name)
        except _outages():
            # Another process may have created it first; databases then report a duplicate key.
            if not self._catalog.namespace_exists(name):
                raise

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        try:
            yield
        except CommitFailedException:
            raise
        # These come before outages, whose classes contain them: no retry cures a missing right.
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
    """The handle of one table, which refuses a later table of the same name.

    Otherwise a first run could publish into a table that was dropped and created again, as neither has published before.
    An amendment, which goes on top of any run, could land in a table that has not read as far.

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
        """See `TableHandle`. Raises: TableFenced, also: there is another table now."""
        found = self._handle.load()
        # Compare identities, not names: a zombie wakes up after its table was dropped and made
        # again. Both tables may have no tag yet, so the fence alone would let it through.
        if found is not None and found.metadata.table_uuid != self._uuid:
            raise TableFenced(
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
    """Return the reader and writer of the table's files, with the properties of stores only.

    PyIceberg's own also has the catalog's properties, such as tokens, and its objects. Workers get neither.
    """
    # Workers on other machines get these properties. A catalog's token would leak there.
    kept = {
        name: value for name, value in table.io.properties.items() if name.startswith(_OF_STORES)
    }
    return load_file_io(kept, table.metadata.location)


def _outages() -> tuple[type[Exception], ...]:
    """Return the errors of catalogs that cannot be reached, break off, or answer nonsense.

    Two errors come from others that create or drop the same namespace at the same time.
    """
    # Look, do not import: SQLAlchemy is an extra. If nothing has imported it, no catalog raises its
    # errors.
    of_sql = sys.modules.get("sqlalchemy.exc")
    known = (
        OSError,
        RESTError,
        CommitStateUnknownException,
        NamespaceAlreadyExistsError,
        NoSuchNamespaceError,
        # An answer that no catalog gives, such as a proxy's page, and a broken metadata file.
        InvalidAnswer,
        InvalidMetadata,
    )
    return known if of_sql is None else (*known, of_sql.SQLAlchemyError)


def _is_conflict(err: Exception) -> bool:
    """Return whether a database rolled back the change because of a concurrent one."""
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
        """Return the handle of the table ``schema.table``, which need not exist."""
        ...

    def new_location(self, name: str) -> str:
        """Return an unused location for a new table; empty: the catalog chooses."""
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

    # Dropping leaves files in place. With a folder of its own, a new table never sees side files,
    # orphans or late writes of its predecessor.
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
    """Return the catalog that the settings name. A REST server or database is contacted at once.

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
    """Return the properties with which PyIceberg reaches the files of Iceberg tables.

    Raises: ValidationError: it cannot use the store.
    """
    if settings.store.startswith("s3:"):
        return S3Access.of(settings.store, environment).iceberg()
    return {}
