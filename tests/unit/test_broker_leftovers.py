"""Tenures without a replica: who decides on them, one at a time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from gazette_platform.broker.leftovers import Leftovers
from gazette_platform.ops.faults import Faults

JOURNAL = "a/journal"


async def test_one_at_a_time_decides_on_a_journal(tmp_path):
    """Also one that comes while another is about to have its turn."""
    leftovers = Leftovers(
        etcd=None,
        space=None,
        prefix="/p",
        persister=None,
        spool_dir=tmp_path,
        executor=None,
        faults=Faults(),
        count=lambda _: None,
    )
    deciding = most = 0

    async def decide(_found, *, is_leaving):
        nonlocal deciding, most
        deciding += 1
        most = max(most, deciding)
        for _ in range(3):
            await asyncio.sleep(0)
        deciding -= 1
        return False

    leftovers._settle = decide
    leftovers.add(SimpleNamespace(tenure=SimpleNamespace(journal=JOURNAL)))
    async with asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(leftovers.settle(JOURNAL))
            await asyncio.sleep(0)
    assert most == 1
    assert not leftovers._locks
