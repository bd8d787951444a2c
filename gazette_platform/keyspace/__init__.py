"""A decoded mirror of the cluster's keys in etcd.

Nouns: item (a journal; of consumers a shard), member (a process), assignment (a member's slot of an
item), revision.
Guarantee: what a reader sees between two awaits is the state of exactly one revision. Bad entries
are logged and left out. Cost: in the number of changes, not of keys.

`KeySpace` is the mirror: it loads a prefix, follows its changes, and says which revision it has reached. `keys` has the
names of keys, `state` their values.

Source: Gazette keyspace/key_space.go. Departs: (a) an isolated change is applied
at once, and only changes that follow within the watch delay are collected; the number of batches
a second has the same bound, and a lone change does not wait. (b) Compaction loads again where Go's
process ends. (c) Only keys under ``<prefix>/`` are read, so that clusters may share the start of
their names. (d) A known entry that turns bad keeps its last good value until it is corrected.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NoReturn, Protocol, TypeVar, final

from gazette_platform.errors import EtcdError, ValidationError
from gazette_platform.etcd import (
    Compacted,
    EtcdClient,
    EtcdRejected,
    Event,
    KeyValue,
    RangeResult,
    ResponseHeader,
    Watch,
    WatchBatch,
)
from gazette_platform.keyspace.keys import (
    AssignmentKey,
    ItemKey,
    Key,
    MemberKey,
    assignment_key,
    assignments_prefix,
    item_key,
    items_prefix,
    member_key,
    members_prefix,
    parse_key,
    validate_prefix,
)
from gazette_platform.keyspace.state import (
    AnyClusterState,
    Assignment,
    BrokerState,
    Changes,
    ClusterItem,
    ClusterMember,
    ClusterState,
    Item,
    ItemSpec,
    Member,
    MemberSpec,
    SlotAssignment,
    decode_broker_spec,
    decode_journal_spec,
    decode_route,
    encode_broker_spec,
    encode_journal_spec,
    encode_member_spec,
    encode_route,
)
from gazette_platform.ops.clock import Clock, SystemClock
from gazette_platform.ops.faults import Faults, backoff_s
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.protocol import EtcdHeader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


__all__ = [
    "WATCH_DELAY_S",
    "AnyClusterState",
    "Assignment",
    "AssignmentKey",
    "BrokerState",
    "Changes",
    "ClusterItem",
    "ClusterMember",
    "ClusterState",
    "Item",
    "ItemKey",
    "ItemSpec",
    "Key",
    "KeySpace",
    "Member",
    "MemberKey",
    "MemberSpec",
    "SlotAssignment",
    "View",
    "assignment_key",
    "assignments_prefix",
    "decode_broker_spec",
    "decode_journal_spec",
    "decode_route",
    "encode_broker_spec",
    "encode_journal_spec",
    "encode_member_spec",
    "encode_route",
    "item_key",
    "items_prefix",
    "member_key",
    "members_prefix",
    "parse_key",
    "validate_prefix",
]


_log = logging.getLogger(__name__)

WATCH_DELAY_S = 0.03
"""Least seconds between two batches of changes."""

# Gazette's steps. The first ones are short: mostly one etcd member was restarted, and others answer.
_RESTART_S = (0.0, 0.0, 0.005, 2.0, 3.0, 4.0, 5.0)


# Waiters that gave up are removed together, once they are as many as this and at least half of all.
_GIVEN_UP_MIN = 64

# Characters of a key that the log shows.
_NAME_LENGTH_MAX = 300

# Changes that are applied at once, some 10 us each, if they are of more than one revision.
_PORTION_EVENTS = 500


class View(Protocol):
    """The decoded form of a key space, kept up to date by one change at a time."""

    def begin(self) -> None:
        """An update of one or more changes begins."""
        ...

    def end(self) -> None:
        """All its changes have come."""
        ...

    def put(self, kv: KeyValue) -> None:
        """Take a new value of a key.

        Raises: ValidationError: it cannot be decoded; the view is then as if the value had not
        changed. Anything else is a fault, and this one key is left out all the same.
        """
        ...

    def remove(self, key: str) -> None:
        """Forget a key, which may be one that `put` refused."""
        ...


V = TypeVar("V", bound=View)


@dataclass(slots=True)
class _Known:
    create_revision: int
    mod_revision: int
    version: int


@final
class KeySpace(Generic[V]):
    """A decoded mirror of all keys under a prefix, as of one revision, which it names.

    Whole revisions are applied at once, without awaiting in between: whoever runs on the event
    loop sees the state of one revision. Cost is in the number of changes, not of keys.

    Args:
        client: connected or not.
        prefix: of the cluster, without a trailing ``/``.
        state: the decoded view; public as `state`.
        watch_delay_s: least seconds between two batches of changes.
        faults: counts observers that fail.
    """

    def __init__(
        self,
        client: EtcdClient,
        prefix: str,
        state: V,
        *,
        watch_delay_s: float = WATCH_DELAY_S,
        clock: Clock | None = None,
        faults: Faults | None = None,
    ) -> None:
        validate_prefix(prefix)
        self.prefix = prefix
        self.state = state
        self._client = client
        self._delay_s = watch_delay_s
        self._clock = clock or SystemClock()
        self._faults = faults or Faults()
        self._header = EtcdHeader(0, 0, 0, 0)
        self._known: dict[str, _Known] = {}
        self._resume_revision = 0
        self._observers: list[Callable[[], None]] = []
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        self._ticket = itertools.count()
        self._given_up = 0  # waiters that have given up, or more than there are

    @property
    def header(self) -> EtcdHeader:
        """The cluster, and the revision of the last change that was applied."""
        return self._header

    @property
    def revision(self) -> int:
        """Of the last change under the prefix that was applied; 0 before the load."""
        return self._header.revision

    def observe(self, observer: Callable[[], None]) -> None:
        """Call `observer` inside every update, after the view changed and before waiters wake.

        It must neither await nor raise: it sees a state that no other code has seen.
        """
        self._observers.append(observer)

    async def load(self, revision: int = 0) -> None:
        """Read everything, at `revision` or the newest.

        Raises: Compacted: that revision is gone. EtcdError: etcd did not answer.
                EtcdRejected: it is another cluster than at the last load, or has gone back.
        Cancellation: safe; nothing changed.
        """
        self.apply_snapshot(await self._client.range(f"{self.prefix}/", revision=revision))

    async def watch(self) -> None:
        """Follow changes for ever, from the load on. Restarts by itself when the stream breaks.

        Raises: EtcdError: not retriable: another cluster answers, or etcd refuses the watch.
        Cancellation: safe; how it is ended.
        """
        attempt = 0
        is_compacted = False
        error: EtcdError
        while True:
            before = self._resume_revision
            try:
                if is_compacted:
                    await self.load()
                    is_compacted = False
                await self._watch_once()
            except Compacted as err:
                is_compacted, error = True, err
            except EtcdError as err:
                if not err.retriable:
                    raise
                error = err
            attempt = 0 if self._resume_revision > before else attempt + 1
            pause_s = backoff_s(attempt, _RESTART_S)
            _log.warning("%s; watching again in %s s", error, pause_s)
            await asyncio.sleep(pause_s)

    async def wait_for_revision(self, revision: int, *, timeout_s: float | None = None) -> None:
        """Return once `revision` is applied.

        Only the revision of a change under the prefix is certain to be reached: use those of own
        transactions that succeeded, or `revision + 1` to wait for any change.

        Args:
            timeout_s: seconds; None waits until cancelled.

        Raises: EtcdError: not reached in time.
        Cancellation: safe.
        """
        if self.revision >= revision:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiters, (revision, next(self._ticket), future))
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except asyncio.CancelledError:
            self._gave_up()
            raise
        except TimeoutError as err:
            self._gave_up()
            raise EtcdError(
                f"key space {self.prefix} did not reach revision {revision} within {timeout_s} s "
                f"(it is at {self.revision}); check the broker's connection to etcd"
            ) from err

    def _gave_up(self) -> None:
        """A waiter has gone, perhaps one for a revision that never comes."""
        self._given_up += 1
        if self._given_up > _GIVEN_UP_MIN and self._given_up > len(self._waiters) // 2:
            self._waiters = [waiter for waiter in self._waiters if not waiter[2].done()]
            heapq.heapify(self._waiters)
            self._given_up = 0

    # ------------------------------------------------------------- applying

    def apply_snapshot(self, snapshot: RangeResult) -> None:
        """Make the mirror equal to a full read. The watch resumes after its revision.

        Raises: EtcdRejected: another cluster, or an older revision than already applied.
        """
        self._check_cluster(snapshot.header)
        if snapshot.header.revision < self.revision:
            raise EtcdRejected(
                f"etcd went back from revision {self.revision} to {snapshot.header.revision}; was "
                "it restored from a backup? Restart all brokers of this cluster"
            )
        self.state.begin()
        present = {kv.key for kv in snapshot.kvs}
        for key in [key for key in self._known if key not in present]:
            self._remove(key)
        for kv in snapshot.kvs:
            known = self._known.get(kv.key)
            if known is None or known.mod_revision != kv.mod_revision:
                self._put(kv)
        self._finish(snapshot.header, snapshot.header.revision)

    def apply_batches(self, batches: Sequence[WatchBatch]) -> None:
        """Apply watched changes: all of them, then observers, then waiters.

        Raises: EtcdRejected: another cluster, or changes older than the state that we have.
        """
        if not batches:
            return
        events: list[Event] = []
        last_revision = 0
        for batch in batches:
            self._check_cluster(batch.header)
            events.extend(batch.events)
            if not batch.events:
                # All up to here was delivered. Only the resume point moves, because others wait
                # for revisions that changed our keys.
                self._resume_revision = max(self._resume_revision, batch.header.revision + 1)
                continue
            first_revision = batch.events[0].kv.mod_revision
            # An equal revision is a duplicate that etcd may send after a reconnect (etcd#15248).
            if first_revision < max(self.revision, last_revision):
                raise EtcdRejected(
                    f"etcd watch of {self.prefix} went back to revision {first_revision} after "
                    f"{max(self.revision, last_revision)}; restart this process"
                )
            last_revision = batch.events[-1].kv.mod_revision
        if not events:
            return
        self.state.begin()
        for event in sorted(events, key=lambda e: (e.kv.key, e.kv.mod_revision)):
            self._apply_event(event)
        self._finish(batches[-1].header, last_revision)

    def _apply_event(self, event: Event) -> None:
        kv = event.kv
        known = self._known.get(kv.key)
        if known is not None and kv.mod_revision <= known.mod_revision:
            _log.debug("%s: change of revision %d was known", _name(kv.key), kv.mod_revision)
            return
        if event.is_delete:
            if known is None:
                _log.debug("%s: unknown key was removed", _name(kv.key))
                return
            self._remove(kv.key)
            return
        version_expected = 1 if known is None else known.version + 1
        is_create = kv.version == 1
        if kv.version != version_expected or is_create != (kv.mod_revision == kv.create_revision):
            _log.warning(
                "%s: unexpected version %d (expected %d, created at revision %d, changed at %d)",
                _name(kv.key),
                kv.version,
                version_expected,
                kv.create_revision,
                kv.mod_revision,
            )
        self._put(kv)

    def _put(self, kv: KeyValue) -> None:
        self._known[kv.key] = _Known(kv.create_revision, kv.mod_revision, kv.version)
        try:
            self.state.put(kv)
        except ValidationError as err:
            _log.warning(
                "bad entry in etcd is ignored until corrected: %s (revision %d): %s",
                _name(kv.key),
                kv.mod_revision,
                str(err)[:_NAME_LENGTH_MAX],
            )
        except Exception as err:  # noqa: BLE001  reported
            self._faults.report("key", f"entry {_name(kv.key)} in etcd is ignored", err)

    def _remove(self, key: str) -> None:
        del self._known[key]
        with self._faults.contained("key", f"entry {_name(key)} in etcd was removed"):
            self.state.remove(key)

    def _finish(self, header: ResponseHeader, revision: int) -> None:
        self._header = EtcdHeader(header.cluster_id, header.member_id, revision, header.raft_term)
        self._resume_revision = max(self._resume_revision, revision + 1)
        self.state.end()
        for observer in self._observers:
            # What one of them did not foresee must not cost the others, nor the mirror.
            with self._faults.contained("observer", f"key space {self.prefix}: {observer}"):
                observer()
        while self._waiters and self._waiters[0][0] <= revision:
            _, _, future = heapq.heappop(self._waiters)
            if not future.done():
                future.set_result(None)

    def _check_cluster(self, header: ResponseHeader) -> None:
        if self._header.cluster_id not in (0, header.cluster_id):
            raise EtcdRejected(
                f"etcd cluster id changed from {self._header.cluster_id:x} to "
                f"{header.cluster_id:x}; --etcd.address names members of different clusters"
            )

    # ------------------------------------------------------------- watching

    async def _watch_once(self) -> NoReturn:
        tasks = TaskGroup(f"watch of {self.prefix}")
        applied_at = self._clock.monotonic() - self._delay_s
        pending: list[WatchBatch] = []
        watch = self._client.watch(f"{self.prefix}/", start_revision=self._resume_revision)
        try:
            async with watch:
                # A read that is cancelled ends the stream, so it is a task that is waited for.
                read = tasks.spawn(_read(watch))
                while True:
                    due_s = applied_at + self._delay_s - self._clock.monotonic()
                    if pending and due_s <= 0:
                        for portion in _portions(pending):
                            self.apply_batches(portion)
                            await asyncio.sleep(0)
                        pending.clear()
                        applied_at = self._clock.monotonic()
                        continue
                    done, _ = await asyncio.wait({read}, timeout=due_s if pending else None)
                    if not done:
                        continue
                    outcome = read.result()
                    if isinstance(outcome, EtcdError):
                        self.apply_batches(pending)
                        raise outcome
                    pending.append(outcome)
                    read = tasks.spawn(_read(watch))
        finally:
            await tasks.close()


def _portions(batches: Sequence[WatchBatch]) -> list[list[WatchBatch]]:
    """Whole revisions, in order, in portions that do not hold the event loop for long."""
    portions: list[list[WatchBatch]] = [[]]
    size = 0
    for batch in batches:
        # Etcd answers with many revisions at once when it has been waited for.
        revisions = itertools.groupby(batch.events, key=lambda event: event.kv.mod_revision)
        parts = [WatchBatch(batch.header, tuple(events)) for _, events in revisions]
        for part in parts or [batch]:
            if size >= _PORTION_EVENTS:
                portions.append([])
                size = 0
            portions[-1].append(part)
            size += len(part.events)
    return portions


async def _read(watch: Watch) -> WatchBatch | EtcdError:
    # The error is a value here: a broken stream is not a failure of the task, hence not logged as one.
    try:
        return await anext(watch)
    except EtcdError as err:
        return err


def _name(key: str) -> str:
    """A key as it can be logged: it may be of any length, and of bytes that are not text."""
    return ascii(key[:_NAME_LENGTH_MAX])[1:-1] + ("..." if len(key) > _NAME_LENGTH_MAX else "")
