"""When a standby says that it is one."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace

from shard_bench import LOG, SHARD, Desk, Host

from gazette_platform.consumer.runtime.tasks import Recovery
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.testing.waiting import turns


async def test_standby_is_reported_only_once_it_follows_the_log(tmp_path):
    host, tasks = Host(Desk()), TaskGroup("standby")
    recovery = Recovery(None, host, SHARD, LOG, parent=tmp_path, dice=random.Random(7))
    telling = tasks.spawn(recovery.tell_standby(), name="telling")
    tailing = asyncio.Event()
    for step in (
        lambda: None,
        lambda: recovery._player.set_result(SimpleNamespace(tailing=tailing)),
    ):
        step()
        await turns(5)
        assert host.told == []
    tailing.set()
    await asyncio.wait_for(telling, 5)
    assert host.told == ["STANDBY"]
    await tasks.close()
