"""How a broker leaves: it notes write heads in etcd, and waits until others have taken its journals."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from gazette_platform.allocator import member
from gazette_platform.allocator.member import deadline
from gazette_platform.broker.epochs import release
from gazette_platform.broker.etcd_records import own_member_key, own_members_prefix, read_record
from gazette_platform.broker.journal.claims import write_head
from gazette_platform.errors import EtcdError, GazetteError, ValidationError
from gazette_platform.keyspace import decode_broker_spec, member_key, members_prefix
from gazette_platform.ops.retry import insist
from gazette_platform.protocol import SuspendLevel, SuspendSpec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from gazette_platform.allocator import Allocator, Announcement
    from gazette_platform.broker.context import BrokerContext
    from gazette_platform.broker.epochs import EpochRecord
    from gazette_platform.broker.journal.replica import Replica
    from gazette_platform.etcd import KeyValue, Lease
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


def held_alone(context: BrokerContext, replicas: Iterable[Replica]) -> frozenset[str]:
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
        replicas: of the journals that it held.
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
        # Another lease is another instance, which may have started without what this one held.
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
        # our head could lie behind what they acknowledged.
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
