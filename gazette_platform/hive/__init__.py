"""A typed client of the Hive Metastore's Thrift API: connections, and the calls that the lake makes.

Nouns: a *database* holds *tables*; a table has *columns*, *partition columns* and *parameters*; a
*Hive partition* is a list of values with a location of its own and parameters. Everything here is
external: dropping a table or a Hive partition never deletes a file.

Guarantee: `MetastoreClient.add_partitions` is idempotent; every failure is a `LakeError` that names
the server and the object. Cost: one connection per `MetastoreClient.connect` scope, a round trip of
about a millisecond a call, and about 20 ms a new Hive partition on the server.
"""

from __future__ import annotations

import logging
import math
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol, Self, final
from urllib.parse import urlsplit

from gazette_platform.errors import LakeError, ValidationError
from gazette_platform.hive.locks import LEASE_S, HeldLock
from gazette_platform.hive.model import (
    CSV_ESCAPE,
    CSV_STORAGE,
    JSON_STORAGE,
    HiveColumn,
    HivePartition,
    HiveTable,
    StorageFormat,
    hive_client,
    partition_name,
    ttypes,
)
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.extras import required

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from thrift.protocol.TBinaryProtocol import TBinaryProtocol  # type: ignore[import-untyped]
    from thrift.Thrift import TException  # type: ignore[import-untyped]
    from thrift.transport.TSocket import TSocket  # type: ignore[import-untyped]
    from thrift.transport.TTransport import (  # type: ignore[import-untyped]
        TBufferedTransport,
        TTransportException,
    )

    from gazette_platform.ops.clock import Clock
else:
    try:
        from thrift.protocol.TBinaryProtocol import TBinaryProtocol
        from thrift.Thrift import TException
        from thrift.transport.TSocket import TSocket
        from thrift.transport.TTransport import TBufferedTransport, TTransportException
    except ImportError:

        class TException(Exception):
            """Never raised."""

        class TTransportException(TException):
            """Never raised."""

        def TSocket(*_: object) -> Any:  # noqa: N802  Thrift's name
            """Raises: SetupError: there is no Thrift."""
            return required("thrift", extra="lake", by="Metastore clients")

        TBinaryProtocol = TBufferedTransport = TSocket

__all__ = [
    "CSV_ESCAPE",
    "CSV_STORAGE",
    "JSON_STORAGE",
    "HeldLock",
    "HiveColumn",
    "HivePartition",
    "HiveTable",
    "Metastore",
    "MetastoreClient",
    "MetastoreSession",
    "SharedMetastore",
    "StorageFormat",
    "partition_name",
]


# A request of 500 Hive partitions takes the server about 10 s with Derby on a small machine,
# well inside the timeout below, and its message is far under Thrift's frame limits.
_BATCH = 500
_LOCK_WAIT_S = 10.0
# Engines hold the lock of a table for the time of one commit.
_TABLE_LOCK_WAIT_S = 30.0
# For an answer when time is up already: what was begun is to be ended in order, such as a lock.
_LEAST_S = 2.0
# Parameter of an Iceberg table: the file that says all of it.
_METADATA = "metadata_location"

# Thrift logs each failure to connect that it raises, too, as an error: what is raised is reported, and once.
logging.getLogger("thrift.transport.TSocket").setLevel(logging.CRITICAL)


@final
class MetastoreClient:
    """Where a metastore is and how long to wait for it. Holds no connection.

    Args:
        uri: ``thrift://host:port``.
        connect_timeout_s: seconds to wait for the connection.
        call_timeout_s: seconds to wait for each answer.
    """

    def __init__(
        self, uri: str, *, connect_timeout_s: float = 5.0, call_timeout_s: float = 60.0
    ) -> None:
        parts = urlsplit(uri)
        try:
            port = parts.port
        except ValueError:
            port = None
        if parts.scheme != "thrift" or not parts.hostname or port is None:
            raise ValidationError(f"not a metastore address (thrift://host:port): {uri!r}")
        self.uri = uri
        self._host = parts.hostname
        self._port = port
        self._connect_timeout_s = connect_timeout_s
        self._call_timeout_s = call_timeout_s

    @contextmanager
    def connect(self) -> Iterator[MetastoreSession]:
        """A session over one connection, closed at the end of the scope.

        Raises: LakeError: the metastore cannot be reached.
        """
        with self._connection() as (client, socket, transport):
            yield MetastoreSession(
                client,
                self.uri,
                limit=lambda seconds: socket.setTimeout(min(seconds, self._call_timeout_s) * 1000),
                hang_up=transport.close,
                anew=self._soon,
            )

    @contextmanager
    def _soon(self) -> Iterator[Any]:
        """A client over a new connection, which waits for no answer for long."""
        with self._connection() as (client, socket, _):
            socket.setTimeout(_LEAST_S * 1000)
            yield client

    @contextmanager
    def _connection(self) -> Iterator[tuple[Any, Any, Any]]:
        """Thrift's client, socket and transport. Raises: LakeError: the metastore cannot be reached."""
        socket = TSocket(self._host, self._port)
        socket.setTimeout(self._connect_timeout_s * 1000)
        transport = TBufferedTransport(socket)
        try:
            transport.open()
        except TTransportException as err:
            raise LakeError(
                f"cannot reach the Hive Metastore at {self.uri}: {err.message or err} "
                "(is it running? check `metastore` in endpoints.json, or GAZETTE_METASTORE_URI)"
            ) from err
        socket.setTimeout(self._call_timeout_s * 1000)
        try:
            yield hive_client(TBinaryProtocol(transport)), socket, transport
        finally:
            transport.close()


class Metastore(Protocol):
    """Opens sessions: `MetastoreClient`, or `SharedMetastore`."""

    def connect(self) -> AbstractContextManager[MetastoreSession]:
        """A session for the length of a scope."""
        ...


@final
class SharedMetastore:
    """One session for several users one after another, as in a tick; closed with its scope.

    A session whose user failed is not given to the next one, who gets a new connection.

    Args:
        metastore: what opens sessions.
        ends_at: see `MetastoreSession.end_at`.
    """

    def __init__(self, metastore: Metastore, *, ends_at: float | None = None) -> None:
        self._metastore = metastore
        self._ends_at = ends_at
        self._session: MetastoreSession | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    @contextmanager
    def connect(self) -> Iterator[MetastoreSession]:
        """The session, opened if there is none.

        Raises: LakeError: the metastore cannot be reached.
        """
        if self._session is None:
            self._session = self._stack.enter_context(self._metastore.connect())
            if self._ends_at is not None:
                self._session.end_at(self._ends_at)
        try:
            yield self._session
        except BaseException:
            self._close()
            raise

    def _close(self) -> None:
        self._session = None
        self._stack.close()


@final
class MetastoreSession:
    """Calls over one connection; not for use by several threads at once.

    A call that is broken off ends the connection: all that follow raise LakeError at once.
    """

    def __init__(
        self,
        client: Any,
        uri: str,
        *,
        clock: Clock | None = None,
        limit: Callable[[float], None] | None = None,
        hang_up: Callable[[], None] | None = None,
        anew: Callable[[], AbstractContextManager[Any]] | None = None,
    ) -> None:
        self._client = client
        self._hang_up = hang_up
        self._anew = anew
        self._uri = uri
        self._clock = clock or SystemClock()
        self._limit = limit
        self._ends_at: float | None = None

    def end_at(self, instant: float) -> None:
        """Wait for no answer beyond an instant, or some seconds for what is still asked then.

        A metastore that is stopped, or whose database hangs, takes calls and does not answer.

        Args:
            instant: monotonic seconds.
        """
        self._ends_at = instant

    @contextmanager
    def _calling(self, what: str) -> Iterator[None]:
        """Turn Thrift's errors into LakeError with the server, the call and its object."""
        if self._limit is not None and self._ends_at is not None:
            self._limit(max(_LEAST_S, self._ends_at - self._clock.monotonic()))
        try:
            yield
        except TTransportException as err:
            # The answer may still come, and would be taken for that of the next call.
            if self._hang_up is not None:
                self._hang_up()
            raise LakeError(
                f"the Hive Metastore at {self._uri} broke off {what}: {err.message or err} "
                "(see its log; the call may be repeated)"
            ) from err
        except TException as err:
            text = str(getattr(err, "message", "") or err)
            raise LakeError(f"the Hive Metastore at {self._uri} refused {what}: {text}") from err

    # -------------------------------------------------------------- databases

    def databases(self) -> list[str]:
        """Names of all databases, sorted."""
        with self._calling("list databases"):
            return sorted(self._client.get_all_databases())

    def ensure_database(self, name: str, *, location: str = "") -> None:
        """Create the database unless it exists.

        Args:
            location: URI of its folder; empty: the server's warehouse folder decides.
        """
        with self._calling(f"create database {name}"):
            try:
                self._client.get_database(name)
            except ttypes.NoSuchObjectException:
                self._create_database(name, location)

    def _create_database(self, name: str, location: str) -> None:
        """Create it, one at a time.

        A metastore that makes its folder, and finds then that another process has made the database, removes the folder again: with
        the first table that was made in it meanwhile.
        """
        lock = HeldLock(self._client, name, "", self._clock, suffix=".gazette_database")
        lock.acquire(wait_s=_TABLE_LOCK_WAIT_S, lease_s=LEASE_S)
        try:
            self._client.get_database(name)
        except ttypes.NoSuchObjectException:
            database = ttypes.Database(
                name=name, description="", locationUri=location or None, parameters={}
            )
            with suppress(ttypes.AlreadyExistsException):  # by an engine
                self._client.create_database(database)
        finally:
            with suppress(TException):  # it ends by itself
                lock.release()

    def drop_database(self, name: str) -> None:
        """Drop an empty database; its files stay. Missing ones are fine."""
        with self._calling(f"drop database {name}"):
            try:
                self._client.drop_database(name, False, False)
            except ttypes.NoSuchObjectException:
                return

    # ----------------------------------------------------------------- tables

    def tables(self, database: str) -> list[str]:
        """Names of the database's tables, sorted; empty if there is no such database."""
        with self._calling(f"list tables of {database}"):
            return sorted(self._client.get_all_tables(database))

    def table(self, database: str, name: str) -> HiveTable | None:
        """The table, or None if it (or its database) does not exist."""
        with self._calling(f"get table {database}.{name}"):
            try:
                return HiveTable.from_thrift(self._client.get_table(database, name))
            except ttypes.NoSuchObjectException:
                return None

    def create_table(self, table: HiveTable) -> bool:
        """Create an external table. Returns: False if it existed already, as whatever."""
        with self._calling(f"create table {table.full_name}"):
            try:
                self._client.create_table(table.to_thrift())
            except ttypes.AlreadyExistsException:
                return False
            return True

    def alter_table(self, table: HiveTable, *, is_cascading: bool = True) -> None:
        """Replace the table's definition, and the columns of all its Hive partitions.

        Engines read a text file by the columns of its *Hive partition*: without the cascade, a new
        column would be NULL for ever in the Hive partitions that exist.

        Args:
            is_cascading: False: leave the Hive partitions as they are.
        """
        cascade = {"CASCADE": "true"} if is_cascading else {}
        context = ttypes.EnvironmentContext(properties=cascade)
        with self._calling(f"alter table {table.full_name}"):
            self._client.alter_table_with_environment_context(
                table.database, table.name, table.to_thrift(), context
            )

    def drop_table(self, database: str, name: str) -> None:
        """Drop the table; its files stay. Missing ones are fine."""
        with self._calling(f"drop table {database}.{name}"):
            try:
                self._client.drop_table(database, name, False)
            except ttypes.NoSuchObjectException:
                return

    @contextmanager
    def accounts_lock(
        self, database: str, table: str, *, wait_s: float = _LOCK_WAIT_S, lease_s: float = LEASE_S
    ) -> Iterator[HeldLock]:
        """Sole right to change what the table, and its Hive partitions, say of their content.

        Read what is to be changed again within the scope, and call `HeldLock.require` before each
        write. No reader waits for this lock.

        Args:
            wait_s: seconds to wait for others.
            lease_s: seconds after which others take the lock from a holder that is gone.

        Raises: LakeError: others hold it too long, or took it away, so that what was written may be
            overwritten: do it again.
        """
        lock = HeldLock(self._client, database, table, self._clock)
        with self._calling(f"lock the accounts of {database}.{table}"):
            lock.acquire(wait_s=wait_s, lease_s=lease_s)
        try:
            yield lock
        except BaseException:
            with suppress(LakeError), self._calling("unlock"):
                lock.release()
            raise
        with self._calling(f"unlock the accounts of {database}.{table}"):
            is_ours = lock.release()
        if not is_ours:
            raise LakeError(
                f"others took the lock of {database}.{table} away, since this process was held up; "
                "what it wrote is looked at again at the next tick"
            )

    def swap_iceberg_metadata(
        self, database: str, name: str, *, expected: str, location: str
    ) -> bool:
        """Let an Iceberg table have another metadata file, if it still has the `expected` one.

        The lock is the one that other clients of Iceberg take, so that none overwrites what is swapped in
        here. Who is held up and loses it does no harm: the metastore itself compares before it writes.

        Returns: False if it has another one, or is gone: nothing was changed.
        Raises: LakeError: the metastore refused, or others hold the lock for too long; or it broke off, and
            then the table may have either.
        """
        lock = HeldLock(self._client, database, name, self._clock, suffix="")
        what = f"commit to {database}.{name}"
        with self._calling(what):
            # Engines do not say when they were last alive: no lock of theirs is broken for its age.
            try:
                lock.acquire(wait_s=_TABLE_LOCK_WAIT_S, lease_s=math.inf)
                return self._swap(database, name, expected, location)
            except TTransportException:
                if self._hang_up is not None:
                    self._hang_up()  # the release would take the answer that comes late for its own
                raise
            finally:
                self._give_back(lock)

    def _give_back(self, lock: HeldLock) -> None:
        """Release a lock that has no lease, over a new connection if this one broke. Never raises.

        Engines would wait for it until the metastore ends it by itself, after minutes.
        """
        try:
            lock.release()
        except TTransportException:
            if self._anew is not None:
                with suppress(LakeError, TException), self._anew() as client:
                    lock.release_over(client)
        except TException:
            pass  # it ends by itself

    def _swap(self, database: str, name: str, expected: str, location: str) -> bool:
        try:
            table = self._client.get_table(database, name)
        except ttypes.NoSuchObjectException:
            return False
        if table.parameters.get(_METADATA) != expected:
            return False
        table.parameters |= {_METADATA: location, f"previous_{_METADATA}": expected}
        context = ttypes.EnvironmentContext(
            properties={
                "DO_NOT_UPDATE_STATS": "true",
                "expected_parameter_key": _METADATA,
                "expected_parameter_value": expected,
            }
        )
        try:
            self._client.alter_table_with_environment_context(database, name, table, context)
        except ttypes.MetaException:
            current = self._client.get_table(database, name).parameters.get(_METADATA)
            if current == expected:
                raise
            return bool(current == location)
        return True

    # -------------------------------------------------------- Hive partitions

    def partitions(self, table: HiveTable) -> list[HivePartition]:
        """All Hive partitions of `table`, in batches, sorted by name."""
        with self._calling(f"list the partitions of {table.full_name}"):
            names = self._client.get_partition_names(table.database, table.name, -1)
        return self._partitions_named(table, sorted(names))

    def partition_names(self, table: HiveTable, values: Sequence[str] = ()) -> list[str]:
        """Names of the Hive partitions of `table`, sorted.

        Args:
            values: what the first partition columns must be; an empty text: anything.
        """
        with self._calling(f"list the partitions of {table.full_name}"):
            if any(values):
                names = self._client.get_partition_names_ps(
                    table.database, table.name, list(values), -1
                )
            else:
                names = self._client.get_partition_names(table.database, table.name, -1)
        return sorted(names)

    def partitions_named(self, table: HiveTable, names: Sequence[str]) -> list[HivePartition]:
        """Those of the Hive partitions with the given `names` that exist, in batches."""
        return self._partitions_named(table, names)

    def partitions_of(
        self, table: HiveTable, values: Sequence[tuple[str, ...]]
    ) -> dict[tuple[str, ...], HivePartition]:
        """Those of the Hive partitions with the given `values` that exist."""
        columns = [c.name for c in table.partition_columns]
        names = [partition_name(columns, v) for v in values]
        return {p.values: p for p in self._partitions_named(table, names)}

    def _partitions_named(self, table: HiveTable, names: Sequence[str]) -> list[HivePartition]:
        found: list[HivePartition] = []
        for start in range(0, len(names), _BATCH):
            batch = list(names[start : start + _BATCH])
            with self._calling(f"get {len(batch)} partitions of {table.full_name}"):
                found += [
                    HivePartition.from_thrift(p)
                    for p in self._client.get_partitions_by_names(table.database, table.name, batch)
                ]
        return found

    def add_partitions(self, table: HiveTable, partitions: Sequence[HivePartition]) -> int:
        """Add those of `partitions` that do not exist. Idempotent.

        Returns: how many were new. An existing one is left as it is, whatever its location.
        """
        added = 0
        for start in range(0, len(partitions), _BATCH):
            batch = partitions[start : start + _BATCH]
            request = ttypes.AddPartitionsRequest(
                dbName=table.database,
                tblName=table.name,
                parts=[p.to_thrift(table) for p in batch],
                ifNotExists=True,
                needResult=True,
            )
            with self._calling(f"add {len(batch)} partitions to {table.full_name}"):
                result = self._client.add_partitions_req(request)
            added += len(result.partitions or ())
        return added

    def alter_partitions(self, table: HiveTable, partitions: Sequence[HivePartition]) -> None:
        """Replace location and parameters of Hive partitions that exist."""
        for start in range(0, len(partitions), _BATCH):
            batch = [p.to_thrift(table) for p in partitions[start : start + _BATCH]]
            with self._calling(f"alter {len(batch)} partitions of {table.full_name}"):
                self._client.alter_partitions(table.database, table.name, batch)

    def drop_partition(self, table: HiveTable, values: tuple[str, ...]) -> None:
        """Drop one Hive partition; its files stay. Missing ones are fine."""
        with self._calling(f"drop partition {'/'.join(values)} of {table.full_name}"):
            try:
                self._client.drop_partition(table.database, table.name, list(values), False)
            except ttypes.NoSuchObjectException:
                return

    def drop_partitions(self, table: HiveTable, names: Sequence[str]) -> None:
        """Drop Hive partitions by their names, in batches; their files stay. Missing ones are fine."""
        for start in range(0, len(names), _BATCH):
            request = ttypes.DropPartitionsRequest(
                dbName=table.database,
                tblName=table.name,
                parts=ttypes.RequestPartsSpec(names=list(names[start : start + _BATCH])),
                deleteData=False,
                ifExists=True,
                needResult=False,
            )
            with self._calling(f"drop partitions of {table.full_name}"):
                self._client.drop_partitions_req(request)
