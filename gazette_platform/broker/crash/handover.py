"""What a broker hands over when it leaves, and takes over when it starts.

A broker that leaves notes write heads in etcd, and waits until others have taken its journals.

One that starts finds keys and spools of processes that ended here. An instance that crashed leaves its keys in
etcd until its lease ends, unless its peers see that its port refuses connections (see `eviction`). If a new
process listened there at once, it would hide the crash, and the journals would wait for the end of the lease:
some twenty seconds instead of one. So the new process takes the port, which keeps other programs away from it,
but does not listen until others have looked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from gazette_platform.allocator import member
from gazette_platform.allocator.member import deadline
from gazette_platform.broker.epochs import release
from gazette_platform.broker.etcd_records import (
    foreign_members,
    history_key,
    own_member_key,
    own_members_prefix,
    read_own_members,
    read_record,
    restoring_key,
)
from gazette_platform.broker.journal.claims import write_head
from gazette_platform.broker.spool.home import Owner, SpoolHome, boot_id, free_homes
from gazette_platform.broker.spool.recovery import recover
from gazette_platform.errors import EtcdError, GazetteError, SetupError, ValidationError
from gazette_platform.etcd import Compare, Put
from gazette_platform.keyspace import (
    MemberKey,
    decode_broker_spec,
    member_key,
    members_prefix,
    parse_key,
)
from gazette_platform.ops.faults import backoff_s, insist
from gazette_platform.ops.tasks import run_in
from gazette_platform.protocol import SuspendLevel, SuspendSpec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from concurrent.futures import Executor

    from gazette_platform.allocator import Allocator, Announcement
    from gazette_platform.broker.config import BrokerConfig
    from gazette_platform.broker.context import BrokerContext
    from gazette_platform.broker.epochs import EpochRecord
    from gazette_platform.broker.etcd_records import ClusterIdentity
    from gazette_platform.broker.journal.replica import Replica
    from gazette_platform.broker.spool.leftovers import Leftovers
    from gazette_platform.etcd import EtcdClient, KeyValue, Lease
    from gazette_platform.keyspace import Assignment
    from gazette_platform.protocol import ProcessId

_WORDS: Final = member.Words("journals", "broker", "persisting", "broker.drain-timeout")


async def say_leaving(
    context: BrokerContext, announcement: Announcement, lease: Lease, *, timeout_s: float | None
) -> None:
    """Say in etcd that we leave; see `member.say_leaving`, whose errors and cancellation it has."""
    await member.say_leaving(
        context.space, announcement, lease, clock=context.clock, timeout_s=timeout_s
    )


async def wait_handed_over(
    context: BrokerContext,
    allocator: Allocator,
    allocating: asyncio.Task[None],
    lease: Lease,
    *,
    timeout_s: float | None,
) -> None:
    """Wait until no journal is assigned to us; see `member.wait_handed_over`. Cancellation: safe."""
    await member.wait_handed_over(
        context.space,
        allocator,
        allocating,
        lease,
        clock=context.clock,
        timeout_s=timeout_s,
        words=_WORDS,
    )


_log = logging.getLogger(__name__)

# How many transactions may be under way at once.
_WRITES_MAX = 64


def alone_with(context: BrokerContext, replicas: Iterable[Replica]) -> frozenset[str]:
    """Journals whose whole content no other broker has now."""
    own, state = context.process_id, context.space.state
    return frozenset(
        replica.name
        for replica in replicas
        if not any(
            _is_in_step(other)
            for other in state.assignments_of(replica.name)
            if other.process_id != own
        )
    )


async def watch_mixture(context: BrokerContext) -> None:
    """Keep `Membership.foreign` up to date, since etcd may be away when that is asked for. Cancellation: safe."""
    etcd, prefix = context.etcd, context.config.etcd_prefix
    changed, failures = asyncio.Event(), 0
    changed.set()

    def on_change() -> None:
        if context.space.state.changes.members:
            changed.set()

    context.space.observe(on_change)
    while True:
        await changed.wait()
        changed.clear()
        try:
            ours = await read_own_members(etcd, prefix)
            context.membership.foreign = await foreign_members(etcd, prefix, ours)
            failures = 0
        except EtcdError:
            changed.set()
            await asyncio.sleep(backoff_s(failures))
            failures += 1


async def note_heads(
    context: BrokerContext,
    replicas: Iterable[Replica],
    lease: Lease,
    *,
    timeout_s: float,
    alone: Collection[str] = (),
) -> None:
    """Note write heads in the specs of the journals that no staying broker has in full.

    Otherwise the next broker, which does not have our spools, would begin at offset 0 and refuse
    appends. A head is noted even if content could not be persisted: readers have seen those bytes, and
    other bytes must not take their offsets. If there are several replicas, each notes its own head,
    which covers all that was acknowledged, and the greatest one stands.

    When several brokers leave at once, at least one of them notes the head: each first says in etcd
    that it leaves, and only then looks there whether the others do.

    Args:
        context: of this broker.
        replicas: of the journals that it served.
        lease: of its member key.
        timeout_s: seconds for each journal, and before that for asking etcd who is a member.
        alone: journals that no other broker had in full when we began to leave. If we were evicted since,
            the brokers that have them now went on from a head that is not ours.

    Cancellation: leaves open which heads were noted.
    """
    is_over = deadline(context.clock, lease, timeout_s)
    try:
        members = await insist(partial(_members, context), is_over=is_over)
    except EtcdError as err:
        _log.warning("write heads are not noted, since etcd fails: %s", err)
        return
    if context.process_id in members:
        alone = ()  # brokers that took over had to ask us first, and have our head
    ours = [
        replica
        for replica in replicas
        if replica.name in alone or not _is_kept(context, replica, members)
    ]
    if not ours or _has_foreign(members):
        return
    for at in range(0, len(ours), _WRITES_MAX):
        some = ours[at : at + _WRITES_MAX]
        await asyncio.gather(
            *(
                _note_head(context, one, lease, timeout_s, is_alone=one.name in alone)
                for one in some
            )
        )


@dataclass(frozen=True, slots=True)
class _Member:
    """A broker as etcd has it now. Our mirror may be late, or not followed any more."""

    is_foreign: bool
    """Whether it is a broker of Gazette."""
    is_leaving: bool


async def _members(context: BrokerContext) -> dict[ProcessId, _Member]:
    """The members of our mirror that etcd still has. Raises: EtcdError."""
    prefix = context.config.etcd_prefix
    # Both ranges are read at one revision. A broker whose two keys were read at different ones
    # would pass for a broker of Gazette.
    found = await context.etcd.range(own_members_prefix(prefix))
    present = await context.etcd.range(members_prefix(prefix), revision=found.header.revision)
    ours = {kv.key: kv.lease for kv in found.kvs}
    there = {kv.key: kv for kv in present.kvs}
    members = {}
    for peer, known in context.space.state.members.items():
        kv = there.get(member_key(prefix, peer))
        # Another lease is another instance, which may have started without what this one had.
        if kv is not None and kv.lease == known.lease:
            is_foreign = ours.get(own_member_key(prefix, peer)) != known.lease
            members[peer] = _Member(is_foreign, is_leaving=_says_that_it_leaves(kv, peer))
    return members


def _says_that_it_leaves(kv: KeyValue, peer: ProcessId) -> bool:
    try:
        return decode_broker_spec(kv.value, process_id=peer).exiting
    except ValidationError:
        return True  # a spec that cannot be read makes no broker a member


def _has_foreign(members: Mapping[ProcessId, _Member]) -> bool:
    """Whether brokers of Gazette are members.

    They follow a noted head, but never take it back. Once they had appended after it, other brokers
    would begin at an offset that is taken.
    """
    foreign = [member for member, known in members.items() if known.is_foreign]
    if foreign:
        _log.warning(
            "write heads are not noted, since %s is a broker of Gazette (if no broker stays, "
            "run `gazctl journals reset-head` before the next append)",
            str(foreign[0]).strip(),
        )
    return bool(foreign)


def _is_kept(
    context: BrokerContext, replica: Replica, members: Mapping[ProcessId, _Member]
) -> bool:
    """Whether a broker that stays also has everything that the journal holds."""
    # A broker that leaves too does not count: it may be gone before anyone has synced with it. Of
    # several that leave at once, each thinks so of the others, and at least one notes the head.
    return any(
        other.process_id != context.process_id
        and _is_in_step(other)
        and (member := members.get(other.process_id)) is not None
        and not member.is_leaving
        for other in context.space.state.assignments_of(replica.name)
    )


def _is_in_step(assignment: Assignment) -> bool:
    """Whether the primary has written a route into it, which shows that its broker was in step.

    A new assignment has no value. One that moves to another slot, which is another key, keeps its value.
    """
    return bool(assignment.route.members)


async def _note_head(
    context: BrokerContext, replica: Replica, lease: Lease, timeout_s: float, *, is_alone: bool
) -> None:
    is_over = deadline(context.clock, lease, timeout_s)
    try:
        # The mirror shows what is noted and assigned, but we may no longer be following it.
        async with asyncio.timeout(timeout_s):
            is_noted = await insist(
                partial(_try_note_head, context, replica, is_alone=is_alone), is_over=is_over
            )
    except (GazetteError, TimeoutError) as err:
        _log.warning("%s: %s", replica.name, err)
        is_noted = False
    if not is_noted:
        _log.warning(
            "%s: its write head %d is not noted in etcd "
            "(appends wait for this broker to start again with its --broker.spool-dir, unless others have "
            "all that it has; if it never does, run `gazctl journals reset-head`)",
            replica.name,
            replica.spool.spool.end,
        )


async def _try_note_head(context: BrokerContext, replica: Replica, *, is_alone: bool) -> bool:
    """Note the write head in the spec, for a broker that will not have our spool.

    The next broker goes on at the resumption offset, which exists for suspended journals. We set it
    only while we hold an assignment in which we were in step. A closed replica never gets in step
    again, and nothing is acknowledged without us while we hold the assignment, so no other broker has gone
    on from our head. The transaction compares the assignment's key, which also ends with our lease.

    Returns: False: we may not note it any more, and no other broker is known to have it.
    Raises: EtcdError.
    Cancellation: leaves open whether it was written.
    """
    state, head = context.space.state, replica.spool.spool.end
    etcd, prefix = context.etcd, context.config.etcd_prefix
    while (spec := replica.spec) is not None:
        suspend = spec.suspend or SuspendSpec(SuspendLevel.NONE, 0)
        # Read in each round: others write the spec and the record, too, and a transaction that
        # failed starts from what they left.
        found, mod_revision = await read_record(etcd, prefix, replica.name)
        record = _released(replica, found, head)
        if head <= suspend.offset and record is None:
            return True
        own = state.assignment_of(replica.name, context.process_id)
        # Without an assignment in which we were in step, others may have gone on from another end:
        # our head could be lower than what they acknowledged.
        if own is None or not _is_in_step(own):
            others = state.assignments_of(replica.name)
            return not is_alone and any(_is_in_step(one) for one in others)
        if await write_head(
            context,
            own,
            # Never back. Replicas note their own heads, and the greatest covers all that was
            # acknowledged.
            replace(suspend, offset=max(head, suspend.offset)),
            record=record.encode() if record is not None else None,
            mod_revision=mod_revision,
        ):
            return True
    return True  # the journal is deleted


def _released(replica: Replica, found: EpochRecord | None, head: int) -> EpochRecord | None:
    """The journal's epoch record once we let go of it; None: it stays as it is."""
    spool = replica.spool
    return release(
        found,
        spool.tenure,
        create_revision=replica.create_revision,
        head=head,
        registers=spool.registers,
    )


_POLL_S = 0.1


async def await_former(
    etcd: EtcdClient,
    prefix: str,
    process_id: ProcessId,
    endpoint: str,
    *,
    host: str,
    port: int,
    timeout_s: float,
) -> None:
    """Wait, without listening, while etcd has a broker of our id or at our endpoint.

    Args:
        endpoint: our own.
        host: where we are to listen.
        port: where we are to listen.
        timeout_s: seconds after which we go on even if it was not evicted.

    Raises: EtcdError: etcd is out of reach. Cancellation: safe.
    """
    former = await _former(etcd, prefix, process_id, endpoint)
    if former is None:
        return
    with contextlib.suppress(TimeoutError), _reserve(host, port) as is_ours:
        if not is_ours:
            return  # a living process has the port: nothing to wait for, and listening will fail
        async with asyncio.timeout(timeout_s):
            _log.info("%s is still in etcd: waiting for the others to notice its end", former)
            while True:
                await asyncio.sleep(_POLL_S)
                if await _former(etcd, prefix, process_id, endpoint) is None:
                    return


async def _former(
    etcd: EtcdClient, prefix: str, process_id: ProcessId, endpoint: str
) -> str | None:
    """The key of a former instance that does not say that it leaves; None: there is none."""
    own = member_key(prefix, process_id)
    for kv in (await etcd.range(f"{prefix}/members/")).kvs:
        try:
            key = parse_key(prefix, kv.key)
            assert isinstance(key, MemberKey)
            spec = decode_broker_spec(kv.value, process_id=key.process_id)
        except ValidationError:
            continue
        # One that says that it leaves is not watched for a crash, so no peer would end it: its lease
        # does.
        if not spec.exiting and (kv.key == own or spec.endpoint == endpoint):
            return kv.key
    return None


@contextlib.contextmanager
def _reserve(host: str, port: int) -> Iterator[bool]:
    """Take a port without listening, so that it refuses connections. Gives: whether it was free."""
    with contextlib.ExitStack() as stack:
        try:
            family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            sock = stack.enter_context(socket.socket(family))
            # Connections of the former process may linger in TIME_WAIT; they must not make the port
            # look taken.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
        except OSError:
            yield False
        else:
            yield True


async def history_of(etcd: EtcdClient, prefix: str) -> str:
    """The id of etcd's data, which is written if there is none: then etcd is new, or lost what it had.

    Raises: EtcdError. Cancellation: leaves open whether it was written.
    """
    key = history_key(prefix)
    new = secrets.token_hex(8)
    # One transaction, so that of brokers which start together one writes the id, and all read the
    # same.
    result = await etcd.txn([Compare.create(key, 0)], [Put(key, new.encode())])
    if result.succeeded:
        return new
    found = await etcd.get(key)
    return found.value.decode(errors="replace") if found is not None else ""


async def check_not_restoring(etcd: EtcdClient, prefix: str) -> None:
    """Raises: SetupError: `gazette restore` is not done yet; EtcdError. Cancellation: safe."""
    if await etcd.get(restoring_key(prefix)) is not None:
        raise SetupError(
            f"the cluster {prefix} is being restored from a backup (wait until `gazette restore` ends; if it "
            "was interrupted, run it again)"
        )


async def take_homes(
    etcd: EtcdClient, config: BrokerConfig, process_id: ProcessId, identity: ClusterIdentity
) -> list[SpoolHome]:
    """Take over the homes of spools whose processes have ended; make an empty one if there are none.

    In etcd those processes are members until their leases end. Where we know that they have ended, we
    revoke the leases, and no journal has to wait. The process of a copied home may be alive.

    Returns: at least one; new spools are begun in the first, which is not a copy.
    Raises: SetupError, EtcdError.
    Cancellation: the homes stay ours until this process ends.
    """
    found = await etcd.range(own_member_key(config.etcd_prefix, process_id))
    # Spools outlive an etcd that is restored in another one.
    cluster = f"{identity.cluster or format(found.header.cluster_id, 'x')}{config.etcd_prefix}"
    owner = Owner(cluster, process_id.name, boot_id())
    # New spools go to the first home, and in a copy no tenure begins: whoever finds it next has to
    # see a copy, too.
    homes = sorted(free_homes(config.spool_dir, owner), key=lambda home: home.is_copied)
    if not homes or homes[0].is_copied:
        homes.insert(0, SpoolHome.make(config.spool_dir, owner))
    history = await history_of(etcd, config.etcd_prefix)
    for home in homes:
        home.history = history
    # Only where the machine itself proves the end. A broker that was started on a copy of a living
    # broker's folder once revoked the lease named in it, and ended that broker.
    leases = {home.former.lease for home in homes if home.former and home.former_has_ended}
    for home in homes:
        if home.former and home.is_copied:
            _log.warning(
                "%s is a copy of a folder of broker %s, which may have gone on since: what it says of "
                "journals is kept, and neither served nor stored (if the folder of that broker is lost, "
                "`gazctl journals reset-head` stores what only the copy has)",
                home.folder,
                home.former.process,
            )
    for lease in leases - {0}:
        if await etcd.revoke_lease(lease):
            _log.info("ended the lease of a broker that has crashed here")
    return homes


async def recover_spools(homes: list[SpoolHome], leftovers: Leftovers, executor: Executor) -> None:
    """Read what is in homes that were taken over.

    Raises: SetupError: a home cannot be read.
    Cancellation: safe; no thread reads any more.
    """
    for home in homes:
        if home.former is None:
            continue
        try:
            for found in await run_in(executor, recover, home):
                leftovers.add(found)
        except OSError as err:
            raise SetupError(
                f"cannot read the spools in {home.folder}: {err} (mend the disk, or move that folder away; "
                "what only it holds is not served meanwhile)"
            ) from err
    if len(leftovers):
        _log.info("found spools of %d journals that former processes left", len(leftovers))
