"""What keeps journals that are applied from working: stores that none can use, too few brokers.

Known before: stores that no journal can ever be kept in here, and heads of old listings, which are refused. Found afterwards, and
told: what may yet come right, since brokers may come, and stores be mended.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from gazette_platform.errors import GazetteError, ValidationError
from gazette_platform.protocol import LabelSelector, LabelSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gazette_platform.client import AsyncClient, Change, JournalListing
    from gazette_platform.protocol import JournalSpec

__all__ = ["aftermath", "check_heads", "check_stores"]

# Brokers assign a new journal within a fraction of a second, and check a store that works as fast.
_ASSIGNED_S = 3.0
_CHECKED_S = 5.0
_POLL_S = 0.1

# `apply` waits no longer than this for brokers that do not know where journals end.
_HEADS_TIMEOUT_S = 5.0

# Beyond so many, one finds out from the first ones.
_TOLD_MAX = 3
_STORES_MAX = 8
_NAMES_MAX = 100


async def check_stores(client: AsyncClient, changes: Sequence[Change]) -> None:
    """Refuse changes that name a store in which no journal can ever be kept here.

    Raises: ValidationError: there is one. TransportError: no broker answered. Cancellation: safe.
    """
    refused = await client.refused_stores(_stores(changes))
    if not refused:
        return
    names = {
        store: change.spec.name
        for change in reversed(changes)
        if change.spec is not None
        for store in change.spec.fragment.stores
    }
    told = [f"{names[store]}: {reason}" for store, reason in refused.items()]
    more = f"; and {len(told) - _TOLD_MAX} more" if len(told) > _TOLD_MAX else ""
    raise ValidationError(
        f"{'; '.join(told[:_TOLD_MAX])}{more} (nothing was applied: mend the specs, or the brokers; "
        "--force applies them all the same)"
    )


async def check_heads(client: AsyncClient, changes: Sequence[Change]) -> None:
    """Refuse specs that say that a journal goes on below its head, as an old listing does.

    Heads that cannot be found out are not compared: the caller's token may allow no more than to apply.

    Raises: ValidationError: there is one. Cancellation: safe.
    """
    noted = {
        change.spec.name: change.spec.suspend.offset
        for change in changes
        if change.spec is not None and change.spec.suspend is not None
    }
    heads: dict[str, int] = {}
    with contextlib.suppress(GazetteError, TimeoutError):
        async with asyncio.timeout(_HEADS_TIMEOUT_S):
            if not any(noted.values()):
                return
            listed = await client.list_snapshot(LabelSelector())
            # The spec that is in force may say more than brokers that are away can.
            former = [each for each in listed if noted.get(each.name, 0) > 0]
            heads = {
                each.name: each.spec.suspend.offset if each.spec.suspend is not None else 0
                for each in former
            }
            asked = [each for each in former if noted[each.name] != heads[each.name]]
            heads |= await client.write_heads(asked)
    low = [
        f"{name}: suspend.offset {noted[name]} is below its head {head}"
        for name, head in heads.items()
        if noted[name] < head
    ]
    if low:
        more = f"; and {len(low) - _TOLD_MAX} more" if len(low) > _TOLD_MAX else ""
        raise ValidationError(
            f"{'; '.join(low[:_TOLD_MAX])}{more} (nothing was applied: the specs are older than the "
            "journals; take `suspend` out of them, or apply them all the same with --force)"
        )


def _stores(changes: Sequence[Change]) -> list[str]:
    """All that the changes name, each once."""
    specs = [change.spec for change in changes if change.spec is not None]
    return list(dict.fromkeys(store for spec in specs for store in spec.fragment.stores))


async def aftermath(client: AsyncClient, changes: Sequence[Change]) -> list[str]:
    """What is amiss with journals that were applied, in words; after five seconds at most.

    Brokers accept such specs, since brokers may come and stores be mended. What cannot be found out is
    not told: the caller's token may allow no more than to apply.

    Cancellation: safe.
    """
    specs = {change.spec.name: change.spec for change in changes if change.spec is not None}
    if not specs:
        return []
    async with asyncio.TaskGroup() as group:
        lacking = group.create_task(_lacking(client, specs))
        stores = _stores(changes)[:_STORES_MAX]
        broken = [group.create_task(_broken(client, store)) for store in stores]
    return [text for task in broken if (text := task.result())] + lacking.result()


async def _lacking(client: AsyncClient, specs: Mapping[str, JournalSpec]) -> list[str]:
    """Those without enough brokers, once they had the time to be assigned."""
    labels = LabelSet()
    for name in sorted(specs)[
        :_NAMES_MAX
    ]:  # a listing of thousands, again and again, costs brokers
        labels = labels.with_added("name", name)
    selector = LabelSelector(include=labels)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _ASSIGNED_S
    try:
        async with asyncio.timeout(_CHECKED_S):
            while True:
                short = _short(await client.list_snapshot(selector), specs)
                if not short or loop.time() > deadline:
                    return _told(short)
                await asyncio.sleep(_POLL_S)
    except (GazetteError, TimeoutError):
        return []  # applied they are, and `list` tells


def _short(
    listings: Iterable[JournalListing], specs: Mapping[str, JournalSpec]
) -> list[tuple[str, int, int]]:
    """Names with the numbers of brokers that they have, and need."""
    return [
        (each.name, len(each.route.members), each.spec.desired_replication())
        for each in listings
        if each.name in specs and len(each.route.members) < each.spec.desired_replication()
    ]


def _told(short: Sequence[tuple[str, int, int]]) -> list[str]:
    told = [
        f"warning: {name} has {has} of its {wants} replicas: there are too few brokers, or none with "
        "room. Appends are refused until there are more, or its replication is less"
        for name, has, wants in short[:_TOLD_MAX]
    ]
    more = len(short) - _TOLD_MAX
    return [*told, f"warning: so it is with at least {more} more journals"] if more > 0 else told


async def _broken(client: AsyncClient, store: str) -> str:
    """Why no journal can be kept in a store, as a broker sees it; empty: it can, or no broker knows."""
    try:
        async with asyncio.timeout(_CHECKED_S):
            health = await client.store_health(store)
    except (GazetteError, TimeoutError):
        return ""
    if health.is_healthy:
        return ""
    return (
        f"warning: brokers cannot use the store {store}: {health.error}. Its journals take no appends "
        f"until that is mended (`gazctl journals store-health '{store}'`)"
    )
