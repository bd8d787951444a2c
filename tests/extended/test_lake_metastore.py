"""The metastore client against a real Hive Metastore."""

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest
from lake_bench import FragmentFiles
from lake_servers import RestartableMetastore
from thrift.transport.TTransport import TTransportException

from gazette_platform.errors import LakeError
from gazette_platform.hive import (
    CSV_STORAGE,
    HiveColumn,
    HivePartition,
    HiveTable,
    MetastoreClient,
    MetastoreSession,
)
from gazette_platform.hive.locks import this_process
from gazette_platform.hive.model import ttypes
from gazette_platform.lake import Registrar, StoreRoots, parse_table_spec
from gazette_platform.lake.raw.partition_state import PartitionState
from gazette_platform.testing.waiting import block_for, wait_until

pytestmark = [pytest.mark.hive, pytest.mark.trino, pytest.mark.timeout(400)]


@pytest.fixture
def session(metastore):
    with metastore.connect() as opened:
        opened.ensure_database("client_test")
        yield opened
        for table in opened.tables("client_test"):
            opened.drop_table("client_test", table)
        opened.drop_database("client_test")


@pytest.fixture
def table(tmp_path, session):
    made = HiveTable(
        database="client_test",
        name="t",
        location=f"file://{tmp_path}/t",
        columns=(HiveColumn(name="a", type="string", comment="an a"),),
        partition_columns=(
            HiveColumn(name="p", type="string"),
            HiveColumn(name="day", type="date"),
        ),
        storage=CSV_STORAGE,
        parameters={"k": "v" * 3000},
    )
    assert session.create_table(made)
    return made


def test_table_is_kept(session, table):
    assert not session.create_table(table)
    found = session.table("client_test", "t")
    assert found.columns == table.columns
    assert found.partition_columns == table.partition_columns
    assert found.storage == table.storage
    assert found.location == table.location
    assert found.parameters["k"] == "v" * 3000
    assert session.table("client_test", "none") is None
    assert session.table("none", "none") is None
    assert session.tables("client_test") == ["t"]
    assert "client_test" in session.databases()


def test_database_that_many_make_at_once_keeps_what_is_in_its_folder(metastore, tmp_path):
    """A metastore that finds it made by another one removes the folder that it has made for it."""
    rounds, barrier = 20, threading.Barrier(4)

    def makes(who):
        for number in range(rounds):
            folder = tmp_path / f"made_{number}"
            barrier.wait(60)
            with metastore.connect() as session:
                session.ensure_database(folder.name, location=folder.as_uri())
            (folder / str(who)).touch()

    with ThreadPoolExecutor(barrier.parties) as pool:
        for made in [pool.submit(makes, who) for who in range(barrier.parties)]:
            made.result()
    left = {path.name: sorted(file.name for file in path.iterdir()) for path in tmp_path.iterdir()}
    with metastore.connect() as session:
        for name in left:
            session.drop_database(name)
    assert left == {f"made_{number}": ["0", "1", "2", "3"] for number in range(rounds)}


def test_partitions_in_batches_with_awkward_values(session, table):
    values = [("a/b=c%d:e", "2026-01-02"), ("é", "2026-01-03"), ("..", "2026-01-04")]
    values += [(f"{n:03}", "2026-01-05") for n in range(500)]
    partitions = [
        HivePartition(values=v, location=f"{table.location}/{n}") for n, v in enumerate(values)
    ]
    assert session.add_partitions(table, partitions) == 503
    assert session.add_partitions(table, partitions[:10]) == 0
    found = session.partitions_of(table, [*values[:3], ("no", "2026-01-01")])
    assert {v: p.location for v, p in found.items()} == {
        p.values: p.location for p in partitions[:3]
    }
    changed = [replace(p, parameters={"numRows": "7", "x": "y"}) for p in partitions[:2]]
    session.alter_partitions(table, changed)
    parameters = session.partitions_of(table, [values[0]])[values[0]].parameters
    assert (parameters["numRows"], parameters["x"]) == ("7", "y")
    session.drop_partition(table, values[0])
    assert len(session.partitions(table)) == 502
    names = session.partition_names(table)
    # A name that is not there, or not any more, is fine.
    for _ in range(2):
        session.drop_partitions(table, [*names[:40], "p=none/day=2026-01-01"])
        assert session.partition_names(table) == names[40:]
    session.drop_partitions(table, [])


def test_widened_table_reaches_partitions(session, table):
    values = ("1", "2026-01-02")
    session.add_partitions(table, [HivePartition(values=values, location=f"{table.location}/1")])
    wider = replace(table, columns=(*table.columns, HiveColumn(name="b", type="string")))
    session.alter_table(wider)
    assert session.table("client_test", "t").columns == wider.columns
    raw = session._client.get_partition("client_test", "t", list(values))
    assert [c.name for c in raw.sd.cols] == ["a", "b"]


def test_refusal_is_one_clear_message(session, table, metastore):
    with pytest.raises(LakeError, match=f"{metastore.uri} refused drop database client_test: "):
        session.drop_database("client_test")


def lock_of(table, holder=""):
    component = ttypes.LockComponent(
        type=ttypes.LockType.EXCLUSIVE,
        level=ttypes.LockLevel.TABLE,
        dbname="client_test",
        tablename=table,
    )
    return ttypes.LockRequest(
        component=[component], user="u", hostname="elsewhere", agentInfo=holder or "Unknown"
    )


def test_one_at_a_time_holds_the_lock_of_accounts(session, table, metastore):
    with metastore.connect() as other:
        with session.accounts_lock("client_test", "t"):
            with (
                pytest.raises(LakeError, match=re.escape(f"are being changed by {this_process()}")),
                other.accounts_lock("client_test", "t", wait_s=0.3),
            ):
                pytest.fail("two hold it")
            # Engines and other clients lock the table itself.
            of_table = other._client.lock(lock_of("t"))
            assert of_table.state == ttypes.LockState.ACQUIRED
            other._client.unlock(ttypes.UnlockRequest(lockid=of_table.lockid))
            with other.accounts_lock("client_test", "t2", wait_s=0):
                pass
        with other.accounts_lock("client_test", "t", wait_s=0):
            pass
    assert not session._client.show_locks(ttypes.ShowLocksRequest(dbname="client_test")).locks


def test_locks_that_were_left_behind_are_broken(session, table):
    """By a process of another machine, after its lease; by a call of this process, at once."""
    session._client.lock(lock_of("t.gazette_accounts", "gazette elsewhere - 1 1"))
    started = time.monotonic()
    with session.accounts_lock("client_test", "t", wait_s=60, lease_s=3):
        assert time.monotonic() - started > 2
    session._client.lock(lock_of("t.gazette_accounts", f"{this_process()} 0"))
    with session.accounts_lock("client_test", "t", wait_s=30, lease_s=1000):
        pass
    assert not session._client.show_locks(ttypes.ShowLocksRequest(dbname="client_test")).locks


@pytest.mark.parametrize("call", ["lock", "get_table", "unlock"])
def test_swap_whose_connection_breaks_leaves_no_lock(session, table, metastore, call):
    """Engines waited for it until the metastore's time-out, which is five minutes."""
    session.alter_table(replace(table, parameters={"metadata_location": "1"}))
    swap = {"database": "client_test", "name": "t"}
    with metastore.connect() as other:
        client = other._client
        method = getattr(client, call)

        def cut(*args):
            method(*args)
            client._iprot.trans.close()
            raise TTransportException(message="cut off on purpose")

        setattr(client, call, cut)
        with suppress(LakeError):
            other.swap_iceberg_metadata(**swap, expected="1", location="2")
    assert not session._client.show_locks(ttypes.ShowLocksRequest(dbname="client_test")).locks
    expected = session.table("client_test", "t").parameters["metadata_location"]
    assert session.swap_iceberg_metadata(**swap, expected=expected, location="3")


def test_lock_of_an_engine_that_was_killed_is_dropped(tmp_path):
    """It sends heartbeats to the metastore, as engines do, until it stops."""
    with RestartableMetastore(tmp_path, {"hive.txn.timeout": "2s"}) as server:
        metastore = MetastoreClient(server.settings.metastore)
        with metastore.connect() as engine:
            engine._client.lock(lock_of("t"))
        with metastore.connect() as session:
            waiting = session._client.lock(lock_of("t"))
            assert waiting.state == ttypes.LockState.WAITING
            request = ttypes.CheckLockRequest(lockid=waiting.lockid)

            def decided():
                found = session._client.check_lock(request).state
                return found if found != ttypes.LockState.WAITING else None

            found = wait_until(decided, timeout_s=60, poll_s=0.2)
            assert found == ttypes.LockState.ACQUIRED


class Half:
    """A source that shows every other fragment: what one of two registrars happens to see."""

    def __init__(self, files, parity, meet):
        self.files, self.parity, self.meet = files, parity, meet

    def journals(self, selector):
        self.meet.wait(60)
        return self.files.journals(selector)

    def fragments(self, journal, offset, limit):
        listed = self.files.fragments(journal, offset, limit)
        return [f for f in listed if f.begin // 9 % 2 == self.parity]

    def created(self, selector):
        return self.files.created(selector)


class Slow:
    """A metastore whose answers to reads take long: what was read is old when it is used."""

    def __init__(self, metastore):
        self.metastore = metastore

    @contextmanager
    def connect(self):
        with self.metastore.connect() as opened:
            self.client = opened._client
            yield MetastoreSession(self, "thrift://slow:1")

    def __getattr__(self, name):
        return getattr(self.client, name)

    def get_partitions_by_names(self, *arguments):
        found = self.client.get_partitions_by_names(*arguments)
        block_for(0.2)
        return found


def test_two_registrars_count_everything_once(session, metastore, tmp_path):
    """Both add to the same account at the same time; unlocked, the later would undo the earlier."""
    spec = parse_table_spec(
        "{name: client_test.raced, selector: 'name:prefix=raced/', format: json, "
        "columns: [{name: id, type: bigint}]}"
    )
    files = FragmentFiles(tmp_path / "fragments")
    meet = threading.Barrier(2)
    roots = StoreRoots(files.roots)
    registrars = [Registrar(Half(files, n, meet), Slow(metastore), roots) for n in (0, 1)]
    cursors = [{}, {}]
    files.append("raced/part=0", b'{"id":1}\n', postfix="hour=05")
    files.append("raced/part=0", b'{"id":1}\n', postfix="hour=05")
    rounds = 4
    with ThreadPoolExecutor(2) as threads:
        for _ in range(rounds):
            files.append("raced/part=0", b'{"id":1}\n', postfix="hour=05")
            files.append("raced/part=0", b'{"id":1}\n', postfix="hour=05")
            ticks = [
                threads.submit(r.tick, spec, c) for r, c in zip(registrars, cursors, strict=True)
            ]
            cursors = [tick.result(120).cursors for tick in ticks]
    (partition,) = session.partitions(session.table("client_test", "raced"))
    state = PartitionState.from_parameters(partition.parameters)
    count = 2 * rounds + 2
    assert (state.fragments, state.rows, state.ranges) == (count, count, ((0, 9 * count),))
