"""What a journal needs before it goes on here: a claim in etcd, the spools of earlier processes, a healthy store.

A broker writes into etcd a journal's route and holders (see `epochs`), its suspension, and where it goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from gazette_platform.broker import epochs
from gazette_platform.broker.epochs import Await, Claim, Doubled, GoOn, noted
from gazette_platform.broker.etcd_records import delete_record, epoch_key, read_record, write_record
from gazette_platform.errors import EtcdError, GazetteError
from gazette_platform.etcd import Compare, Delete, Put
from gazette_platform.keyspace import (
    assignments_prefix,
    encode_journal_spec,
    encode_route,
    item_key,
)
from gazette_platform.ops.faults import backoff_s
from gazette_platform.protocol import SuspendLevel, SuspendSpec
from gazette_platform.protocol.rules import OFFSET_MAX
from gazette_platform.serving.interface import NotNow

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gazette_platform.broker.context import BrokerContext
    from gazette_platform.broker.epochs import EpochRecord, Holder
    from gazette_platform.broker.spool.journal_spool import JournalSpool
    from gazette_platform.broker.spool.recovery import RecoveredTenure
    from gazette_platform.etcd import Operation, TxnResult
    from gazette_platform.fragment.index import Index
    from gazette_platform.keyspace import Assignment
    from gazette_platform.ops.clock import Clock
    from gazette_platform.protocol import LabelSet
    from gazette_platform.stores import ActiveStore

# A transaction that failed shows that the key space has changed. This gives the watch time to see it.
_TXN_RETRY_S = 0.05

_NOT_SUSPENDED = SuspendSpec(SuspendLevel.NONE, 0)


class Noting(NamedTuple):
    """Who notes where a journal goes on, for the epoch record."""

    tenure: str
    """Of the primary."""
    registers: LabelSet
    """As of the offset that is noted."""
    create_revision: int
    """Of the spec that the primary serves: the journal may have been made again meanwhile."""


class Written(NamedTuple):
    """What became of a write."""

    revision: int
    """To look at next."""
    is_done: bool


async def write_suspend(
    context: BrokerContext, journal: str, suspend: SuspendSpec, noting: Noting | None = None
) -> Written:
    """Store a journal's spec with `suspend`, if nothing of the journal changed meanwhile.

    A suspension without level and offset is left out of the spec.

    Args:
        context: of this broker.
        journal: its name.
        suspend: for the spec.
        noting: the primary, whose epoch record says the same in the same transaction; None: no broker
            serves the journal, and the record stays as it is.

    Raises: EtcdError; ValidationError: the record cannot be understood.
    Cancellation: leaves open whether it was written.
    """
    state, prefix = context.space.state, context.config.etcd_prefix
    item = state.items.get(journal)
    if item is None or (noting is not None and noting.create_revision != item.create_revision):
        return Written(context.space.revision, is_done=False)
    assignments = state.assignments_of(journal)
    key = item_key(prefix, journal)
    is_over = suspend == _NOT_SUSPENDED
    compares = [
        Compare.mod(key, item.mod_revision),
        *(Compare.mod(a.key, a.mod_revision) for a in assignments),
    ]
    spec = replace(item.spec, suspend=None if is_over else suspend)
    writes: list[Operation] = [Put(key, encode_journal_spec(spec))]
    if noting is not None:
        record, mod_revision = await read_record(context.etcd, prefix, journal)
        following = noted(
            record,
            noting.tenure,
            create_revision=item.create_revision,
            head=None if is_over else suspend.offset,
            registers=noting.registers,
        )
        compares.append(Compare.mod(epoch_key(prefix, journal), mod_revision))
        if following is not None and following != record:
            writes.append(Put(epoch_key(prefix, journal), following.encode()))
    result = await context.etcd.txn(compares, writes)
    revision = await revision_after(context, result)
    await context.space.wait_for_revision(revision)
    return Written(revision, result.succeeded)


async def write_head(
    context: BrokerContext,
    own: Assignment,
    suspend: SuspendSpec,
    *,
    record: bytes | None,
    mod_revision: int,
) -> bool:
    """Store a journal's spec with `suspend`, if neither it nor our assignment changed meanwhile.

    Args:
        context: of this broker.
        own: our assignment.
        suspend: for the spec.
        record: for the journal's epoch; None: it stays as it is.
        mod_revision: of the epoch record that this one is made from.

    Returns: False: one of them has changed; the key space may show it by now.
    Raises: EtcdError.
    Cancellation: leaves open whether it was written.
    """
    item = context.space.state.items[own.journal]
    key = item_key(context.config.etcd_prefix, own.journal)
    epoch = epoch_key(context.config.etcd_prefix, own.journal)
    result = await context.etcd.txn(
        [
            Compare.mod(key, item.mod_revision),
            Compare.mod(own.key, own.mod_revision),
            Compare.mod(epoch, mod_revision),
        ],
        [
            Put(key, encode_journal_spec(replace(item.spec, suspend=suspend))),
            *([Put(epoch, record)] if record is not None else []),
        ],
    )
    await revision_after(context, result)
    return result.succeeded


async def revision_after(context: BrokerContext, result: TxnResult) -> int:
    """The revision to look at after a transaction, whether or not it succeeded."""
    if result.succeeded:
        return result.header.revision
    await asyncio.sleep(_TXN_RETRY_S)
    return context.space.revision


_log = logging.getLogger(__name__)


class HoldersAway(NotNow):
    """Only brokers that do not serve a journal now hold all of it that was acknowledged.

    Attributes:
        holders: any one of them is enough.
        why: the text, without the name of the journal.
    """

    def __init__(self, journal: str, holders: tuple[Holder, ...]) -> None:
        self.holders = holders
        self.why = (
            "etcd was restored from a backup, which does not say who went furthest since (start all brokers with "
            "their --broker.spool-dir; then `gazctl journals reset-head` continues after what they hold and what "
            "is stored)"
            if not holders
            else f"only spools of {_names(holders)} hold all that was acknowledged, and none of them serves it now "
            "(start one of them again with its --broker.spool-dir; if all of these are lost, "
            "`gazctl journals reset-head` continues after what is stored)"
        )
        super().__init__(f"{journal}: {self.why}")


class Claimed(NamedTuple):
    """What became of a claim."""

    revision: int
    """To look at next."""
    is_done: bool
    """Whether etcd says now what was claimed; False: another broker was faster."""
    is_released: bool = False
    """Whether the record says where the journal goes on: it has to be taken out before content follows."""


async def claim_journal(
    context: BrokerContext,
    journal: str,
    create_revision: int,
    holders: frozenset[Holder] | None,
    *,
    end: int,
    registers: LabelSet,
    is_reset: bool,
) -> GoOn | Claimed:
    """Write a journal's route into its assignments, and who holds the journal, in one transaction.

    The route is the one that we know of when this is called, since that is whose brokers we have synced
    with. The transaction fails if the journal has changed in etcd since, or if another broker was
    assigned. So a broker that is assigned, and finds in etcd that it is a holder, stays a holder until
    we have synced with it.

    Args:
        context: of this broker.
        journal: its name.
        create_revision: of the spec that we serve.
        holders: as of `epochs.claim`.
        end: as of `epochs.claim`.
        registers: as of `epochs.claim`.
        is_reset: as of `epochs.claim`.

    Returns: what became of it, or where to begin first.
    Raises: EtcdError; HoldersAway: only others hold what was acknowledged; NotNow: two brokers of the
        route have one spool.
    Cancellation: leaves open whether it was written.
    """
    state, prefix = context.space.state, context.config.etcd_prefix
    item = state.items.get(journal)
    if item is None or item.create_revision != create_revision:
        return Claimed(context.space.revision, is_done=False)
    # Read before etcd is asked: meanwhile brokers may come that were not synced with.
    assignments, route = state.assignments_of(journal), state.route_of(journal)
    known_at = context.space.revision
    record, mod_revision = await read_record(context.etcd, prefix, journal)
    suspend = item.spec.suspend
    is_noted = suspend is not None and (
        suspend.level is not SuspendLevel.NONE or suspend.offset > 0
    )
    noted_head = suspend.offset if suspend is not None and is_noted else None
    if noted_head is not None and noted_head > OFFSET_MAX:
        noted_head = None  # such a spec got into etcd unchecked, and appends are refused
    decision = epochs.claim(
        record,
        create_revision=create_revision,
        holders=holders,
        end=end,
        registers=registers,
        noted_head=noted_head,
        is_reset=is_reset,
    )
    if isinstance(decision, GoOn):
        return decision
    if isinstance(decision, Await):
        if decision.record is not None:
            await write_record(context.etcd, prefix, journal, decision.record, mod_revision)
        raise HoldersAway(journal, decision.holders)
    if isinstance(decision, Doubled):
        raise NotNow(
            f"{journal}: brokers {_names(decision.holders)} go on with copies of one spool (stop the one "
            "that runs on a copy of another's folder, and move the copy away)"
        )
    if is_reset and record is not None and holders is not None:
        _tell_given_up(journal, record, holders, end)
    key = epoch_key(prefix, journal)
    value = encode_route(route)
    new = decision.record if isinstance(decision, Claim) else record
    is_released = new is not None and new.released is not None
    writes: list[Operation] = [
        Put(a.key, value, ignore_lease=True) for a in assignments if not a.route.equivalent(route)
    ]
    is_shown = bool(writes)
    if isinstance(decision, Claim):
        writes.append(Put(key, new.encode()) if new is not None else Delete(key))
    if not writes:
        return Claimed(known_at, is_done=True, is_released=is_released)
    result = await context.etcd.txn(
        [
            Compare.create(item_key(prefix, journal), create_revision),
            Compare.mod(key, mod_revision),
            Compare.none_since(assignments_prefix(prefix, journal), known_at),
            *(Compare.mod(a.key, a.mod_revision) for a in assignments),
        ],
        writes,
    )
    revision = await revision_after(context, result)
    # The key space never reaches a revision that changes nothing in it.
    return Claimed(revision if is_shown else known_at, result.succeeded, is_released)


async def released_registers(
    context: BrokerContext, journal: str, create_revision: int, head: int
) -> LabelSet | None:
    """The registers that etcd names for a journal that goes on at `head`; None: it names none.

    Raises: GazetteError.
    """
    record, _ = await read_record(context.etcd, context.config.etcd_prefix, journal)
    if record is None or record.create_revision != create_revision:
        return None
    released = record.released
    return released.registers if released is not None and released.head == head else None


async def forget_holders(
    context: BrokerContext, journal: str, create_revision: int, *, as_of: int
) -> None:
    """Delete the record of a journal's holders, because a broker of Gazette, which writes none, leads it.

    Args:
        context: has etcd.
        journal: its name.
        create_revision: of its spec.
        as_of: revision at which that broker led it: one of ours that leads it since has a new record.

    Cancellation: leaves open whether it was forgotten.
    """
    try:
        prefix = context.config.etcd_prefix
        await delete_record(context.etcd, prefix, journal, create_revision, as_of=as_of)
    except GazetteError as err:
        _log.warning(
            "%s: who held it stays in etcd (run `gazctl journals reset-head` if appends are refused): %s",
            journal,
            err,
        )


# Seconds that a journal waits for its turn to say where it ends.
_END_TURN_S = 15.0


async def say_end(
    context: BrokerContext, journal: str, create_revision: int, spool: JournalSpool
) -> None:
    """Say in the epoch record where our spool ends, before a broker that has failed stores what is in it.

    A replica has what its primary proposed last, and others may lack it. If they go on later, they must do so
    after our end: the store would else have content that no replica knows of, and appends would wait for an
    operator. If they went on already, what we have after that is not stored, since it would contradict what they
    have. It stays on our disk, for the next process to compare.

    If etcd cannot be reached, what all holders have is stored, and all beside brokers of Gazette: then no process
    adopts what we leave. Else the persister says it before it stores anything, or leaves that to the next process.

    Cancellation: leaves open whether it was said.
    """
    tenure = spool.tenure
    # What a former process left is not stored: others who began after it would leave a gap.
    if spool.is_unconfirmed or not tenure:
        return
    say = partial(_say_end, context, journal, create_revision, spool, tenure)
    try:
        await say()
    except GazetteError as err:
        _log.warning("%s: other brokers do not know where our spool ends: %s", journal, err)
        if spool.is_shared or context.membership.is_mixed:
            context.persister.ask_again(tenure, say)
        else:
            context.persister.hold(tenure, say)


async def _say_end(
    context: BrokerContext, journal: str, create_revision: int, spool: JournalSpool, tenure: str
) -> None:
    """Raises: GazetteError: call again."""
    try:
        async with asyncio.timeout(_END_TURN_S):
            await context.end_slots.acquire()
    except TimeoutError:
        raise EtcdError("etcd is slow") from None
    try:
        prefix, is_said = context.config.etcd_prefix, False
        while not is_said:
            record, mod_revision = await read_record(context.etcd, prefix, journal)
            found = epochs.ending(
                record,
                tenure,
                create_revision=create_revision,
                head=spool.end,
                registers=spool.registers,
            )
            if isinstance(found, int):
                spool.supersede(found)
                context.persister.supersede(tenure, found)
                return
            is_said = await write_record(context.etcd, prefix, journal, found, mod_revision)
    finally:
        context.end_slots.release()


def _tell_given_up(journal: str, record: EpochRecord, holders: frozenset[Holder], end: int) -> None:
    lost = [one for one in record.holders if one not in holders]
    if len(lost) == len(record.holders) and lost:
        who = _names(lost)
        _log.warning(
            "%s: reset by an operator: it goes on at %d; what only spools of %s hold after that is "
            "given up, and set aside if they come back",
            journal,
            end,
            who,
        )


def _names(holders: Iterable[Holder]) -> str:
    """The brokers, as operators know them."""
    return ", ".join(sorted({one.process.name for one in holders}))


# Seconds after which a replica that waits for the first listing sees that it is to close.
_LISTED_POLL_S = 0.5


class _Replica(Protocol):
    """What is needed of a replica."""

    name: str
    create_revision: int
    is_closed: bool
    index: Index
    spool: JournalSpool


async def adopt(replica: _Replica, context: BrokerContext) -> None:
    """Go on where an earlier process ended, unless the journal went on without it.

    The spool must not be written until that is known. Cancellation: safe.
    """
    async with replica.spool.lock:
        if replica.spool.tenure or (found := await _take(replica, context)) is None:
            return
        if replica.is_closed:
            context.leftovers.add(found)
            return
        _log.info("%s: goes on at %d, where it ended", replica.name, found.end)
        gaps = found.gaps
        await replica.spool.adopt(found)
    if gaps:
        await _tell_lost(replica, gaps, context)


async def _take(replica: _Replica, context: BrokerContext) -> RecoveredTenure | None:
    """Take what the journal may go on with. Asks etcd for as long as we have the journal."""
    failures = 0
    while not replica.is_closed:
        try:
            return await context.leftovers.take(
                replica.name, replica.create_revision, partial(_stored_end, replica)
            )
        except GazetteError as err:
            _log.warning("%s: what was left of its spool waits: %s", replica.name, err)
        await asyncio.sleep(backoff_s(failures))
        failures += 1
    return None


async def _stored_end(replica: _Replica) -> int:
    """Where the store ends, once it was listed. Raises: NotNow: the replica closes."""
    while not replica.index.first_refresh.is_set():
        if replica.is_closed:
            raise NotNow(f"{replica.name}: it leaves this broker")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LISTED_POLL_S):
                await replica.index.first_refresh.wait()
    return replica.index.summary.end


async def _tell_lost(
    replica: _Replica, gaps: list[tuple[int, int]], context: BrokerContext
) -> None:
    """Log which of the spans that a spool lacks no store has, once that is known."""
    await replica.index.first_refresh.wait()
    for begin, end in gaps:
        if not replica.is_closed and not replica.index.covers(begin, end):
            _log.error(
                "%s: content [%d, %d) is neither in the spool that goes on nor in a store (are files of %s "
                "missing?)",
                replica.name,
                begin,
                end,
                context.config.spool_dir,
            )


# Appends wait for a store that is not well until so many checks of it failed in a row, or it has been so
# for so many seconds, as one that answers nothing. Clients wait 30 s for an answer, and would never be
# get the reason. It is counted from when the store failed: checks of one that is away for long are 100 s apart.
_HEALTH_CHECKS_MAX = 5
_UNHEALTHY_S = 20.0
# A store that is back shall take appends again at once: one that needs it asks for a check, and waits
# for the answer of a store that answers.
_ASKED_S = 0.5


async def wait_healthy(store: ActiveStore, clock: Clock) -> str:
    """Wait until a store is well. Returns: "", or why it stays unhealthy. Cancellation: safe."""
    health = store.health
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(health.since_s + _UNHEALTHY_S - clock.monotonic()):
            while health.error is not None and health.failures <= _HEALTH_CHECKS_MAX:
                health = await store.wait_health_change(health)
    if health.error is not None and store.ask_check():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ASKED_S):
                health = await store.wait_health_change(health)
    return "" if health.error is None else f"fragment store {store.url} unhealthy: {health.error}"
