"""Records in etcd who serves a journal, and who holds what was acknowledged of it; see `epochs`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from gazette_platform.broker import epochs
from gazette_platform.broker.epoch_store import delete_record, read_record, write_record
from gazette_platform.broker.epochs import Await, Claim, Doubled, GoOn
from gazette_platform.broker.journal.spec_writes import revision_after
from gazette_platform.broker.side_keys import epoch_key
from gazette_platform.errors import GazetteError
from gazette_platform.etcd import Compare, Delete, Put
from gazette_platform.keyspace import assignments_prefix, encode_route, item_key
from gazette_platform.protocol import SuspendLevel
from gazette_platform.protocol.rules import OFFSET_MAX
from gazette_platform.serving.interface import NotNow

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gazette_platform.broker.context import BrokerContext
    from gazette_platform.broker.epochs import EpochRecord, Holder
    from gazette_platform.etcd import Operation
    from gazette_platform.protocol import LabelSet

__all__ = ["Claimed", "HoldersAway", "claim_journal", "forget_holders"]

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
            f"only spools of {_names(holders)} hold all that was acknowledged, and none of them serves it now "
            "(start one of them again with its --broker.spool-dir; if all of these are lost, "
            "`gazctl journals reset-head` goes on behind what is stored)"
        )
        super().__init__(f"{journal}: {self.why}")


class Claimed(NamedTuple):
    """What became of a claim."""

    revision: int
    """To look at next."""
    is_done: bool
    """Whether etcd says now what was claimed; False: somebody else was faster."""
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
    # Read before etcd is asked: meanwhile brokers may come that nobody has synced with.
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


async def forget_holders(
    context: BrokerContext, journal: str, create_revision: int, *, as_of: int
) -> None:
    """Delete the record of a journal's holders, because a broker of Gazette, which writes none, leads it.

    Args:
        context: has etcd.
        journal: its name.
        create_revision: of its spec.
        as_of: revision at which that broker led it: one of ours that leads it since has a record anew.

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


def _tell_given_up(journal: str, record: EpochRecord, holders: frozenset[Holder], end: int) -> None:
    lost = [one for one in record.holders if one not in holders]
    if len(lost) == len(record.holders) and lost:
        who = _names(lost)
        _log.warning(
            "%s: reset by an operator: it goes on at %d; what only spools of %s hold behind that is "
            "given up, and set aside if they come back",
            journal,
            end,
            who,
        )


def _names(holders: Iterable[Holder]) -> str:
    """The brokers, as operators know them."""
    return ", ".join(sorted({one.process.name for one in holders}))
