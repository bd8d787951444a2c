"""Locks of accounts: one holds them, dead holders lose them, and a late one does not write."""

import os
import subprocess
import sys
from contextlib import contextmanager, nullcontext

import pytest
from lake_bench import MemoryMetastore
from thrift.transport.TTransport import TTransportException

from gazette_platform.errors import LakeError
from gazette_platform.hive import CSV_STORAGE, HiveTable, MetastoreSession, SharedMetastore
from gazette_platform.hive.locks import LockSeen, broken_locks, this_process
from gazette_platform.hive.model import ttypes
from gazette_platform.ops.clock import ManualClock


@pytest.fixture
def metastore():
    return MemoryMetastore()


def left_behind(metastore, holder):
    """A lock whose holder went without giving it back."""
    component = ttypes.LockComponent(dbname="d", tablename="t.gazette_accounts")
    metastore.thrift.lock(ttypes.LockRequest(component=[component], agentInfo=holder))


def is_free(metastore):
    with (
        metastore.connect() as session,
        session.accounts_lock("d", "t", wait_s=0.1),
    ):
        return True


@pytest.mark.parametrize(
    ("seen", "gone", "broken"),
    [
        ([(1, 0, "a"), (2, 60_001, "b")], [], [1]),
        ([(1, 0, "a"), (2, 60_000, "b")], [], []),
        ([(1, 0, "a"), (2, 1, "b")], ["a"], [1]),
        ([(2, 60_001, "b"), (3, 0, "c")], ["c"], []),  # behind us: no hindrance
        ([(1, 0, "a")], [], []),  # ours has gone: no clock to go by
        ([(1, 0, "a")], ["a"], [1]),
    ],
)
def test_which_locks_are_broken(seen, gone, broken):
    locks = [LockSeen(*one) for one in seen]
    assert broken_locks(locks, 2, lease_s=60, is_gone=gone) == broken


def test_a_lock_of_another_machine_is_broken_after_its_lease(metastore):
    left_behind(metastore, "gazette elsewhere pid:[1] 7 1")
    with pytest.raises(LakeError, match=r"d\.t are being changed by gazette elsewhere .* 7 1 for"):
        is_free(metastore)
    metastore.thrift.pass_time(61)
    assert is_free(metastore)


def test_a_lock_of_a_process_that_has_ended_is_broken_at_once(metastore):
    ended = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout.strip()
    place = this_process().rpartition(" ")[0]
    left_behind(metastore, f"{place} {os.getppid()} 1")
    with pytest.raises(LakeError, match="are being changed"):
        is_free(metastore)
    metastore.thrift.pass_time(61)
    assert is_free(metastore)
    left_behind(metastore, f"{place} {ended} 1")
    assert is_free(metastore)


def test_lock_of_this_process_without_a_holder_is_broken_at_once(metastore):
    """As when the answer to a lock, or an unlock, is lost with its connection."""
    left_behind(metastore, f"{this_process()} 0")
    assert is_free(metastore)


def test_a_holder_that_was_held_up_does_not_write(metastore):
    clock = ManualClock()
    session = MetastoreSession(metastore.thrift, "thrift://m:1", clock=clock)
    with session.accounts_lock("d", "t") as lock:
        clock.advance(29)
        lock.require()
        clock.advance(2)
        with pytest.raises(LakeError, match=r"was held up while it changed the accounts of d\.t"):
            lock.require()
    assert is_free(metastore)


def test_a_holder_learns_that_its_lock_was_broken(metastore):
    def hold_too_long():
        with metastore.connect() as session, session.accounts_lock("d", "t"):
            metastore.thrift.pass_time(61)
            assert is_free(metastore)

    with pytest.raises(LakeError, match=r"took the lock of d\.t away"):
        hold_too_long()


def test_the_lock_is_given_back_when_its_holder_fails(metastore):
    with (
        metastore.connect() as session,
        pytest.raises(ZeroDivisionError),
        session.accounts_lock("d", "t"),
    ):
        raise ZeroDivisionError
    assert is_free(metastore)


TABLE = HiveTable(
    database="d",
    name="t",
    location="file:///t",
    columns=(),
    partition_columns=(),
    storage=CSV_STORAGE,
    parameters={"metadata_location": "1"},
)


class Cut:
    """A connection to a metastore that breaks at one call, before or after the server has done it."""

    def __init__(self, thrift, call, *, is_done):
        self._thrift, self._call, self._is_done = thrift, call, is_done
        self._is_broken = False

    def __getattr__(self, name):
        def called(*args):
            if name == self._call and not self._is_broken:
                self._is_broken = True
                if self._is_done:
                    getattr(self._thrift, name)(*args)
            if self._is_broken:
                raise TTransportException(message="cut off on purpose")
            return getattr(self._thrift, name)(*args)

        return called


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize(
    "call", ["lock", "get_table", "alter_table_with_environment_context", "unlock"]
)
def test_broken_swap_releases_the_table_over_a_new_connection(metastore, call, is_done):
    """Engines waited for it until the metastore's own time-out."""
    with metastore.connect() as session:
        session.ensure_database("d")
        session.create_table(TABLE)
    cut = Cut(metastore.thrift, call, is_done=is_done)
    session = MetastoreSession(cut, "thrift://m:1", anew=lambda: nullcontext(metastore.thrift))
    with nullcontext() if call == "unlock" else pytest.raises(LakeError, match="broke off commit"):
        session.swap_iceberg_metadata("d", "t", expected="1", location="2")
    of_table = ttypes.ShowLocksRequest(dbname="d", tablename="t")
    assert metastore.thrift.show_locks(of_table).locks == []


def test_broken_swap_leaves_locks_of_others(metastore):
    component = ttypes.LockComponent(dbname="d", tablename="t")
    metastore.thrift.lock(ttypes.LockRequest(component=[component], agentInfo="Trino"))
    cut = Cut(metastore.thrift, "check_lock", is_done=False)
    session = MetastoreSession(cut, "thrift://m:1", anew=lambda: nullcontext(metastore.thrift))
    with pytest.raises(LakeError, match="broke off commit"):
        session.swap_iceberg_metadata("d", "t", expected="1", location="2")
    of_table = ttypes.ShowLocksRequest(dbname="d", tablename="t")
    assert [one.agentInfo for one in metastore.thrift.show_locks(of_table).locks] == ["Trino"]


class Counted:
    """Counts the sessions that it opens."""

    def __init__(self):
        self.opened = self.closed = 0
        self.inner = MemoryMetastore()

    @contextmanager
    def connect(self):
        self.opened += 1
        try:
            with self.inner.connect() as session:
                yield session
        finally:
            self.closed += 1


def test_one_session_serves_all_until_one_fails():
    metastore = Counted()
    with SharedMetastore(metastore) as shared:
        for _ in range(3):
            with shared.connect() as session:
                assert session.databases() == []
        assert (metastore.opened, metastore.closed) == (1, 0)
        with pytest.raises(TTransportException), shared.connect():
            raise TTransportException(message="broken")
        assert (metastore.opened, metastore.closed) == (1, 1)
        with shared.connect() as session:
            assert session.databases() == []
    assert (metastore.opened, metastore.closed) == (2, 2)
