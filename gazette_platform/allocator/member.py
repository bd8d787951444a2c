"""A process as a member of its cluster: it announces itself, updates its own spec, and leaves.

A member that leaves says so in its spec first. The leader then assigns its items to others while the member still
serves them, and the member waits until they have taken over.

Source: Gazette allocator/alloc_run.go.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from typing import TYPE_CHECKING, Any, NamedTuple, cast, final

from gazette_platform.errors import EtcdError, SetupError, TransactionFailed
from gazette_platform.etcd import Compare, EtcdClient, Get, KeyValue, Lease, Put
from gazette_platform.keyspace import encode_member_spec, member_key
from gazette_platform.ops.faults import backoff_s, insist
from gazette_platform.protocol import endpoint_host

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gazette_platform.allocator.loop import Allocator
    from gazette_platform.keyspace import KeySpace, MemberSpec
    from gazette_platform.ops.clock import Clock

_log = logging.getLogger(__name__)

RETRY_S = 10.0
"""Seconds between attempts while the key of an earlier instance exists, until its lease ends."""


@final
class Announcement:
    """Our member key in etcd. It vanishes with the lease.

    Attributes:
        revision: of its last change; load the key space at it, or later.
    """

    def __init__(self, client: EtcdClient, key: str, spec: MemberSpec, revision: int) -> None:
        self._client = client
        self._key = key
        self.spec = spec
        self.revision = revision

    async def update(self, spec: MemberSpec) -> None:
        """Change what we say of ourselves.

        Raises: TransactionFailed: another process changed or removed the key; it is not ours now.
                EtcdError: etcd did not answer; whether it was changed is unknown.
        """
        result = await self._client.txn(
            [Compare.mod(self._key, self.revision)],
            # The key stays under its lease: whatever a member says of itself ends with its process.
            [Put(self._key, encode_member_spec(spec), ignore_lease=True)],
            [Get(self._key)],
        )
        if not result.succeeded:
            found = result.reads[0].kvs
            # The answer to an earlier attempt may have been lost.
            if not found or found[0].value != encode_member_spec(spec):
                raise TransactionFailed(
                    f"{self._key}: key modified or deleted externally "
                    f"(expected revision {self.revision}); this process has to start again"
                )
            self.revision = found[0].mod_revision
        else:
            self.revision = result.header.revision
        self.spec = spec

    async def set_exiting(self) -> None:
        """Ask the cluster to take our items over. Idempotent. Raises as `update`."""
        if not self.spec.exiting:
            await self.update(dataclasses.replace(cast("Any", self.spec), exiting=True))


async def announce(
    client: EtcdClient,
    prefix: str,
    spec: MemberSpec,
    lease: Lease,
    *,
    beside: Put | None = None,
    unless: Mapping[str, int] | None = None,
    retry_s: float = RETRY_S,
) -> Announcement:
    """Create our member key under `lease`; wait for as long as another process holds it.

    A process that was killed leaves its key until its lease ends. A key under our own lease is
    ours: the answer to an earlier attempt was lost.

    Args:
        beside: another key of the member, written in the same transaction, under the same lease:
            earlier it would speak of the other process.
        unless: keys that keep members out unless each was last changed at this revision; 0: it does not exist.
        retry_s: seconds between attempts.

    Raises: EtcdError: not retriable: etcd refuses, e.g. because the lease is gone.
        SetupError: a key of `unless` was changed.
    Cancellation: leaves the key, which ends with the lease.
    """
    key = member_key(prefix, spec.id)
    value = encode_member_spec(spec)
    writes = [Put(key, value, lease=lease.id)]
    # In one transaction, so that no one ever sees one key of this member without the other.
    if beside is not None:
        writes.append(dataclasses.replace(beside, lease=lease.id))
    compares = [Compare.version(key, 0)]
    unless = unless or {}
    compares += [Compare.mod(other, revision) for other, revision in unless.items()]
    reads = [Get(each) for each in (key, *unless)]
    failures = 0
    while True:
        try:
            result = await client.txn(compares, writes, reads)
        except EtcdError as err:
            if not err.retriable:
                raise
            _log.warning("%s is not announced: %s", key, err)
            await asyncio.sleep(backoff_s(failures))
            failures += 1
            continue
        if result.succeeded:
            return Announcement(client, key, spec, result.header.revision)
        for (other, revision), read in zip(unless.items(), result.reads[1:], strict=True):
            if (read.kvs[0].mod_revision if read.kvs else 0) != revision:
                raise SetupError(
                    f"{key} is not announced, because {other} was changed (start again once no restore is under way)"
                )
        if not result.reads[0].kvs:
            continue  # both are gone since
        found: KeyValue = result.reads[0].kvs[0]
        if found.lease == lease.id:
            ours = Announcement(client, key, spec, found.mod_revision)
            if found.value != value:
                await ours.update(spec)
            return ours
        _log.warning(
            "%s exists under another lease (%x); waiting for it to end: an earlier instance of "
            "this process, or another with the same zone and id (choose another --broker.id or --consumer.id)?",
            key,
            found.lease,
        )
        await asyncio.sleep(retry_s)


# Seconds between two lines of the log that say what a drain waits for.
_REPORT_S = 10.0

_POLL_S = 0.1

# Seconds to wait for items that others hand over to us. They come in less than one, unless
# something holds them up.
_AWAITED_S = 5.0

# Seconds for our mirror of etcd to show what was written there.
_MIRROR_S = 15.0


class Words(NamedTuple):
    """How the log calls what is handed over."""

    items: str
    """As ``journals``."""
    member: str
    """As ``broker``."""
    meanwhile: str
    """What else is done on the way out, before `leaving`; empty: nothing."""
    flag: str
    """That limits the wait."""


def deadline(clock: Clock, lease: Lease, timeout_s: float | None) -> Callable[[], bool]:
    """Return a function: whether `timeout_s` have passed, or our lease has ended with all our keys."""
    began = clock.monotonic()

    def is_over() -> bool:
        is_late = timeout_s is not None and clock.monotonic() - began >= timeout_s
        return is_late or lease.remaining_s <= 0

    return is_over


async def say_leaving(
    space: KeySpace[Any],
    announcement: Announcement,
    lease: Lease,
    *,
    clock: Clock,
    timeout_s: float | None,
) -> None:
    """Say in etcd that we leave; try as often as it takes.

    We alone may know what others need to go on, such as the registers of a journal without other
    replicas, and they get it only by taking over while we still serve. A member that is alone in its
    cluster tries only once.

    Args:
        space: of the cluster.
        announcement: ours.
        lease: ours.
        clock: gives the time.
        timeout_s: seconds; None: for as long as we are a member.

    Raises: EtcdError: etcd has failed all that time.
    Cancellation: leaves open whether it was said.
    """
    is_late = deadline(clock, lease, timeout_s)

    def is_over() -> bool:
        return is_late() or len(space.state.members) == 1

    # Not given up early: a member that went without a word would leave its items to the end of its
    # lease, and take with it what only it knows.
    await insist(announcement.set_exiting, is_over=is_over)
    # We look at our mirror of etcd to see who can take over, so it has to show that we are leaving.
    await space.wait_for_revision(announcement.revision, timeout_s=_MIRROR_S)


async def wait_handed_over(
    space: KeySpace[Any],
    allocator: Allocator,
    allocating: asyncio.Task[None],
    lease: Lease,
    *,
    clock: Clock,
    timeout_s: float | None,
    words: Words,
    stays_for_others: bool = True,
) -> None:
    """Wait until no item is assigned to us, or until no other member can take them and time is up.

    The wait also ends with our lease: no member takes over from a process that is no longer a member, and
    etcd may be away.

    When all leave at once, the last ones wait for the items of the others to come to them. If they left
    sooner, no broker would know where those journals end.

    Args:
        space: of the cluster.
        allocator: ours.
        allocating: a task that ends once we are no longer a member.
        lease: ours.
        clock: gives the time.
        timeout_s: seconds; None: for ever.
        words: for the log.
        stays_for_others: whether we stay, without `timeout_s`, when all members leave: what only we know of
            our items would be lost. If all of them are on one host, waiting would not help: the host stops, and
            its folders of spools have what only we know.

    Cancellation: safe.
    """
    then = f"{words.meanwhile} and leaving" if words.meanwhile else "leaving"
    began = reported = clock.monotonic()
    while not allocating.done():
        status = allocator.drain_status()
        if status.assigned == 0:
            return
        # No one takes over from a process that is not a member, and etcd may be away: to wait longer
        # would not help.
        if lease.remaining_s <= 0:
            _log.error(
                "the lease of this %s has run out with %d %s assigned to it; %s",
                words.member,
                status.assigned,
                words.items,
                then,
            )
            return
        now = clock.monotonic()
        is_awaited = status.is_awaited and now - began < _AWAITED_S
        is_last = not status.can_complete and not is_awaited
        is_late = timeout_s is not None and (is_last or now - began > timeout_s)
        # Of members that all leave, each would wait for the others for ever.
        is_over = is_last and _all_leave(space) and (not stays_for_others or _is_one_host(space))
        # The only member has no other to wait for.
        if is_late or is_over or len(space.state.members) == 1:
            _log.info(
                "no %s can take over %d %s; %s", words.member, status.assigned, words.items, then
            )
            return
        if now - reported >= _REPORT_S:
            reported = now
            _log.warning(
                "draining: %d %s are still assigned to this %s, and %s",
                status.assigned,
                words.items,
                words.member,
                "others are taking over"
                if status.can_complete
                else f"no other {words.member} has room (start one, or set --{words.flag})",
            )
        await asyncio.sleep(_POLL_S)


async def give_back(lease: Lease) -> None:
    """Have etcd forget us now, and others take over what is still assigned to us; if etcd fails, that is logged.

    Cancellation: leaves open whether it has.
    """
    try:
        await lease.revoke()
    except EtcdError as err:
        _log.warning("our keys in etcd end with the lease: %s", err)


def _all_leave(space: KeySpace[Any]) -> bool:
    return all(member.spec.exiting for member in space.state.members.values())


def _is_one_host(space: KeySpace[Any]) -> bool:
    members = space.state.members.values()
    return len({endpoint_host(member.spec.endpoint) for member in members}) == 1
