"""Metastore locks: one registrar at a time changes the accounts of a table.

The metastore has no compare-and-set over Hive partitions, so accounts are read, changed and written
back under a lock of its own lock manager. The lock's name is that of no table: engines and other
clients, which lock tables, neither wait for it nor hold it up.

A lock is a *lease*. Its holder writes nothing after half of it, by its own clock; who waits breaks a
lock that is older than all of it, by the metastore's clock, or whose holder was a process of this
machine that is gone. What remains is a holder that is frozen between looking at the clock and
writing, for longer than the other half: then an account may lack a fragment, until the sensor's round
finds that and adds it.
"""

from __future__ import annotations

import getpass
import os
import socket
import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from gazette_platform.errors import LakeError
from gazette_platform.hive.model import ttypes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gazette_platform.ops.clock import Clock

LEASE_S: Final = 60.0
"""Seconds. Half of it has room for writing a batch of accounts to a slow metastore."""

_SUFFIX: Final = ".gazette_accounts"
_POLL_FIRST_S: Final = 0.02
_POLL_MAX_S: Final = 0.5


@final
@dataclass(frozen=True, slots=True)
class LockSeen:
    """A lock as the metastore shows it."""

    id: int
    heard_ms: int
    """When it was taken, or its holder last heard of: the metastore's clock, unix milliseconds."""
    holder: str


def broken_locks(
    seen: Sequence[LockSeen], own: int, *, lease_s: float, is_gone: Sequence[str] = ()
) -> list[int]:
    """Locks before `own` whose holders are gone.

    Args:
        seen: locks of one name, `own` among them and just heard of.
        own: id of the lock that waits.
        lease_s: seconds after which a lock is broken.
        is_gone: holders that are known to be gone.
    """
    now_ms = max((lock.heard_ms for lock in seen if lock.id == own), default=None)
    return [
        lock.id
        for lock in seen
        if lock.id < own
        and (
            lock.holder in is_gone
            or (now_ms is not None and now_ms - lock.heard_ms > lease_s * 1000)
        )
    ]


# Of this process, held or waited for. A lock of this process that is not here is one whose answer, or
# whose release, was lost with its connection.
_ours: set[str] = set()
_numbers = count(1)


def this_process() -> str:
    """Names this process: machine, its name space of process ids, and id."""
    try:
        space = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        space = ""  # unavailable here: then only the lease shows that a holder is gone
    return f"gazette {socket.gethostname()} {space or '-'} {os.getpid()}"


def _is_gone(holder: str) -> bool:
    """Whether `holder` is known to have ended: a process of this machine, or a call of this one."""
    process, _, _ = holder.rpartition(" ")
    place, _, pid = process.rpartition(" ")
    own_place, _, own_pid = this_process().rpartition(" ")
    if place != own_place or own_place.endswith(" -") or not pid.isdecimal():
        return False
    if pid == own_pid:
        return holder not in _ours
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


@final
class HeldLock:
    """A lock that is held, or waited for."""

    def __init__(
        self, client: Any, database: str, table: str, clock: Clock, *, suffix: str = _SUFFIX
    ) -> None:
        self._client = client
        self._database = database
        self._table = table
        self._lock = f"{table}{suffix}"
        what = "accounts" if suffix == _SUFFIX else "contents"
        self._what = (
            f"the {what} of {database}.{table}"
            if table
            else f"folder and entry of database {database}"
        )
        self._clock = clock
        self._name = f"{this_process()} {next(_numbers)}"
        self._id = 0
        self._until = 0.0

    def acquire(self, *, wait_s: float, lease_s: float) -> None:
        """Wait for the lock.

        Raises: LakeError: others hold it for longer than `wait_s`.
        """
        try:
            self._acquire(wait_s, lease_s)
        except BaseException:
            _ours.discard(self._name)
            raise

    def _acquire(self, wait_s: float, lease_s: float) -> None:
        component = ttypes.LockComponent(
            type=ttypes.LockType.EXCLUSIVE,
            level=ttypes.LockLevel.TABLE,
            dbname=self._database,
            tablename=self._lock,
        )
        request = ttypes.LockRequest(
            component=[component],
            user=_user(),
            hostname=socket.gethostname(),
            agentInfo=self._name,
        )
        # Counted from before the request, so that it ends before the metastore thinks so.
        asked_at = self._clock.monotonic()
        _ours.add(self._name)
        answer = self._client.lock(request)
        self._id = answer.lockid
        deadline = asked_at + wait_s
        pause = _POLL_FIRST_S
        while answer.state == ttypes.LockState.WAITING:
            if self._clock.monotonic() >= deadline:
                holders = ", ".join(lock.holder for lock in self._seen() if lock.id < self._id)
                self.release()
                raise LakeError(
                    f"{self._what} are being changed by "
                    f"{holders or 'another process'} for more than {wait_s:g} s; it is tried again"
                )
            self._break_dead(lease_s)
            time.sleep(pause)
            pause = min(pause * 2, _POLL_MAX_S)
            asked_at = self._clock.monotonic()
            answer = self._client.check_lock(ttypes.CheckLockRequest(lockid=self._id))
        if answer.state != ttypes.LockState.ACQUIRED:
            raise LakeError(f"the lock of {self._database}.{self._table} was not given: try again")
        self._until = asked_at + lease_s / 2

    def require(self) -> None:
        """Refuse to write when the lease may end meanwhile.

        Raises: LakeError: this process was held up for too long; nothing is lost, try again.
        """
        if self._clock.monotonic() > self._until:
            raise LakeError(
                f"this process was held up while it changed the accounts of {self._database}."
                f"{self._table}, so it leaves them: they are changed at the next tick"
            )

    def release(self) -> bool:
        """Give the lock back. Returns: False if it was broken meanwhile."""
        _ours.discard(self._name)
        try:
            self._client.unlock(ttypes.UnlockRequest(lockid=self._id))
        except (ttypes.NoSuchLockException, ttypes.TxnOpenException):
            return False
        return True

    def release_over(self, client: Any) -> None:
        """Give the lock back over another connection, also if the answer to its request was lost."""
        self._client = client
        for lock in self._seen():
            if lock.holder == self._name:
                self._id = lock.id
                self.release()

    def _seen(self) -> list[LockSeen]:
        request = ttypes.ShowLocksRequest(dbname=self._database, tablename=self._lock)
        return [
            LockSeen(
                lock.lockid,
                max(lock.lastheartbeat or 0, lock.acquiredat or 0),
                lock.agentInfo or f"{lock.user}@{lock.hostname}",
            )
            for lock in self._client.show_locks(request).locks or ()
        ]

    def _break_dead(self, lease_s: float) -> None:
        seen = self._seen()
        gone = [lock.holder for lock in seen if _is_gone(lock.holder)]
        for lock_id in broken_locks(seen, self._id, lease_s=lease_s, is_gone=gone):
            try:
                self._client.unlock(ttypes.UnlockRequest(lockid=lock_id))
            except ttypes.NoSuchLockException:
                continue  # its holder, or another who waits, was quicker


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())  # a container without a name for it
