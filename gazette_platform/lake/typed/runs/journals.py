"""What brokers report about a table's journals: write heads first, then who holds what; and how far the table lags."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, final

from gazette_platform.client.read.extents import JournalSnapshot, snapshot_of
from gazette_platform.errors import GazetteError, Suspended
from gazette_platform.lake.spec.layout import is_aside
from gazette_platform.lake.typed.planning.ranges import plan_run
from gazette_platform.ops.tasks import side_by_side
from gazette_platform.protocol import LabelSelector, LabelSet, is_another

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from gazette_platform.client import AsyncClient, FragmentListing, JournalListing
    from gazette_platform.lake.typed.planning.ranges import Hole
    from gazette_platform.lake.typed.planning.state import JournalState, TypedState
    from gazette_platform.ops.clock import Clock

_AT_A_TIME: Final = 16
# Seconds for a replica of a journal to learn of the last appends, for a broker to learn of the last specs, and more.
_LAG_S: Final = 2.0
# Of signed URLs: a task that begins later reads through brokers.
_URL_TTL_S: Final = 3600.0
# Fragments are about as long as their spec says, so the one that holds an offset begins within a few of these before.
_WINDOW_LENGTHS: Final = 4


@final
@dataclass(frozen=True, slots=True)
class JournalsNow:
    """Journals of a table at an instant."""

    asked_at: datetime
    """What was acknowledged before lies below the heads. Aware, UTC."""
    journals: tuple[JournalSnapshot, ...]
    unreadable: Mapping[str, str]
    """By name, why brokers report nothing about a journal now. The others are read without it."""


async def journals_now(
    client: AsyncClient, selector: LabelSelector, state: TypedState, clock: Clock
) -> JournalsNow:
    """The journals that match, with the fragments that a run from `state` may read.

    Raises: TransportError: brokers cannot be reached at all. Cancellation: safe.
    """
    asked_at = clock.now()
    unreadable: dict[str, str] = {}

    async def look(listing: JournalListing) -> JournalSnapshot | None:
        known = state.journals.get(listing.name)
        try:
            found = await journal_now(client, listing, _needed_from(known))
            if known is not None and _seems_shorter(found, known):
                await asyncio.sleep(_LAG_S)
                named = LabelSelector(include=LabelSet.of(name=listing.name))
                for again in await client.list(named):
                    found = await journal_now(client, again, _needed_from(known))
        except GazetteError as err:
            unreadable[listing.name] = str(err)
            return None
        else:
            return found

    found = await side_by_side(look, await client.list(selector), at_a_time=_AT_A_TIME)
    return JournalsNow(asked_at, tuple(one for one in found if one is not None), unreadable)


def _seems_shorter(journal: JournalSnapshot, known: JournalState) -> bool:
    """Whether a journal ends before what was read of it, which a run would keep in mind for good."""
    return journal.head < known.offset and not is_another(known.created, journal.created)


async def journals_of(
    client: AsyncClient, listed: Sequence[JournalListing]
) -> tuple[JournalSnapshot, ...]:
    """These journals, with all of their fragments.

    Raises: TransportError, StatusError: brokers report nothing about one of them. Cancellation: safe.
    """

    async def look(listing: JournalListing) -> JournalSnapshot:
        return await journal_now(client, listing, 0)

    return tuple(await side_by_side(look, listed, at_a_time=_AT_A_TIME))


async def journal_now(
    client: AsyncClient, listing: JournalListing, needed_from: int
) -> JournalSnapshot:
    """One journal, with the fragments that hold what is behind an offset.

    Args:
        needed_from: no byte before it is read.

    Raises: TransportError, StatusError: brokers report nothing about it. Cancellation: safe.
    """
    name = listing.name
    heads = await client.write_heads([listing])
    head = heads[name]
    try:
        first = (await client.fragment_page(name, page_limit=1)).fragments
        listed = await _listed(client, listing, needed_from)
    except Suspended:  # nothing of it is stored
        first, listed = (), []
    return snapshot_of(
        name,
        listed,
        head,
        begin=min([head, *(one.fragment.begin for one in (*first, *listed))]),
        created=listing.created,
        # What a person has set aside is in no table: a hole, until it is given up.
        is_aside=is_aside,
    )


async def _listed(
    client: AsyncClient, listing: JournalListing, needed_from: int
) -> Sequence[FragmentListing]:
    """Fragments from the one on that holds an offset, or from the first one after it.

    A journal may have a hundred thousand, and a run reads the newest. Brokers list from where a fragment begins, and
    and the begin of the one that holds an offset is unknown: so the search goes back farther and farther.
    """
    window = max(listing.spec.fragment.length, 1) * _WINDOW_LENGTHS
    while True:
        begin = max(0, needed_from - window)
        listed = await client.fragments(listing.name, next_page_token=begin, ttl_s=_URL_TTL_S)
        holds = any(one.fragment.begin <= needed_from < one.fragment.end for one in listed)
        if begin == 0 or holds or _ends_before(listed, needed_from):
            return listed
        window *= 4


def _ends_before(listed: Sequence[FragmentListing], offset: int) -> bool:
    """Whether fragments reach up to an offset, and none goes on: it is the head, or what follows is missing."""
    return bool(listed) and all(one.fragment.end <= offset for one in listed)


def _needed_from(state: JournalState | None) -> int:
    """The first offset that a run may have to read: an open transaction begins before what was read last."""
    if state is None:
        return 0
    begin = state.open_begin
    return state.offset if begin is None else min(begin, state.offset)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """How far a typed table is behind its journals."""

    bytes: int = 0
    """That could be read, and were not."""
    journals: int = 0
    """That have some of these."""
    stored_at: int | None = None
    """Unix seconds since which a store has the oldest of them; None: no store has any, so they are younger than a
    fragment gets."""
    holes: tuple[Hole, ...] = ()
    """What cannot be read."""
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """By journal, why brokers report nothing about it."""


def behind(now: JournalsNow, state: TypedState) -> Behind:
    """What a run that begins now would find.

    Args:
        now: what brokers hold.
        state: of the table.
    """
    plan = plan_run(state, now.journals)
    first = (one.tasks[0].extents[0].listing for one in plan.ranges)
    return Behind(
        bytes=sum(one.end - one.begin for one in plan.ranges) + plan.left_bytes,
        journals=len(plan.ranges),
        stored_at=min((one.fragment.mod_time for one in first if one is not None), default=None),
        holes=plan.holes,
        unreadable=now.unreadable,
    )
