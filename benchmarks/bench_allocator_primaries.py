"""Stands for the primaries of a cluster: writes the route of each journal into its assignments.

``python -m benchmarks.bench_allocator_primaries ETCD PREFIX`` runs until its standard input ends,
as it does with whoever started it. A process of its own, because in a cluster it is other machines
that do this.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys

import uvloop

from gazette_platform.etcd import TXN_OPS_MAX, Compare, EtcdClient, Operation, Put
from gazette_platform.keyspace import BrokerState, KeySpace, encode_route
from gazette_platform.ops.tasks import TaskGroup

__all__ = ["publish_routes"]

_TXNS_MAX = 8
_ROUND_JOURNALS = 2000


async def publish_routes(endpoint: str, prefix: str) -> None:
    """Make every journal consistent that has a primary, for ever.

    Cancellation: safe; how it is ended.
    """
    tasks = TaskGroup("primaries")
    async with EtcdClient([endpoint]) as etcd:
        space = KeySpace(etcd, prefix, BrokerState(prefix))
        await space.load()
        changed = set(space.state.assignments)
        space.observe(lambda: changed.update(space.state.changes.items))
        tasks.spawn(space.watch(), name="watch")
        try:
            while tasks.failure is None:
                revision = space.revision
                names = list(itertools.islice(changed, _ROUND_JOURNALS))
                changed.difference_update(names)
                failed = await _publish(etcd, space.state, names)
                changed |= failed
                if not changed or failed:
                    await space.wait_for_revision(revision + 1)
        finally:
            await tasks.close()


async def _publish(etcd: EtcdClient, state: BrokerState, names: list[str]) -> set[str]:
    """Returns the journals that changed meanwhile, with those that shared their transaction."""
    batches: list[tuple[list[Compare], list[Operation], list[str]]] = [([], [], [])]
    failed: set[str] = set()
    for name in names:
        route = state.route_of(name)
        if route.primary < 0 or state.is_consistent(name):
            continue
        value = encode_route(route)
        found = state.assignments_of(name)
        if len(batches[-1][0]) + len(found) > TXN_OPS_MAX:
            batches.append(([], [], []))
        batches[-1][2].append(name)
        batches[-1][0].extend(Compare.mod(a.key, a.mod_revision) for a in found)
        batches[-1][1].extend(Put(a.key, value, ignore_lease=True) for a in found)
    waiting = iter(batches)

    async def write_some() -> None:
        for compares, puts, journals in waiting:
            if puts and not (await etcd.txn(compares, puts)).succeeded:
                failed.update(journals)

    await asyncio.gather(*(write_some() for _ in range(_TXNS_MAX)))
    return failed


async def _main(endpoint: str, prefix: str) -> None:
    tasks = TaskGroup("main")
    publishing = tasks.spawn(publish_routes(endpoint, prefix))
    asyncio.get_running_loop().add_reader(sys.stdin, publishing.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await publishing


if __name__ == "__main__":
    uvloop.run(_main(sys.argv[1], sys.argv[2]))
