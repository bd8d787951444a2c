"""How the readers of a shard's sources begin."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from shard_bench import assigned, journal, spec_of

from gazette_platform.consumer.application import Application, Shard
from gazette_platform.consumer.protocol import Checkpoint
from gazette_platform.consumer.runtime.sources import Inlet, Sources
from gazette_platform.errors import GazetteError
from gazette_platform.message.sequencer import SequencerCheckpoint
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.testing.waiting import turns


class Silent(Application):
    def new_store(self, shard, recorder):
        raise AssertionError("nobody opens it")


class Reading:
    """Content that never comes."""

    def __init__(self, client, journal, offset):
        self.client, self.journal, self.offset = client, journal, offset

    async def __anext__(self):
        self.client.reading[self.journal] = self.offset
        if len(self.client.reading) == self.client.expected:
            self.client.all_read.set()
        await asyncio.get_running_loop().create_future()

    async def aclose(self):
        del self.client.reading[self.journal]


class Client:
    """Tells specs when it may, and how many have asked at once."""

    def __init__(self, expected=0):
        self.may_tell, self.all_read = asyncio.Event(), asyncio.Event()
        self.expected = expected
        self.asking = self.most = 0
        self.reading = {}

    async def get(self, name):
        self.asking += 1
        self.most = max(self.most, self.asking)
        await self.may_tell.wait()
        await turns()
        self.asking -= 1
        return SimpleNamespace(spec=journal(name), created=7)

    def read(self, name, offset, **options):
        return Reading(self, name, offset)


async def test_thousands_of_sources_begin_a_few_at_a_time():
    names = [f"in/{number:04}" for number in range(2000)]
    client, tasks = Client(len(names)), TaskGroup("test")
    shard = Shard("shard-000", "f", spec_of(*names, log=False), assigned(), client, None)
    inlet = Inlet(100, lambda: None)
    Sources(shard, Silent(), None, inlet).start(tasks, Checkpoint())
    await turns(5)
    assert client.asking == client.most <= 16
    client.may_tell.set()
    async with asyncio.timeout(30):
        await client.all_read.wait()
    assert client.most <= 16
    assert client.reading == dict.fromkeys(names, 0)
    await tasks.close()
    assert not client.reading
    assert not inlet.has_entry


async def test_a_source_that_cannot_be_read_ends_the_reading():
    class Failing(Client):
        async def get(self, name):
            if name == "in/0003":
                raise asyncio.CancelledError  # of something that it has waited for
            return await super().get(name)

    client, tasks = Failing(), TaskGroup("test")
    client.may_tell.set()
    names = [f"in/{number:04}" for number in range(20)]
    shard = Shard("shard-000", "f", spec_of(*names, log=False), assigned(), client, None)
    failed = asyncio.Event()
    inlet = Inlet(100, failed.set)
    Sources(shard, Silent(), None, inlet).start(tasks, Checkpoint())
    async with asyncio.timeout(30):
        await failed.wait()
    assert inlet.is_closed
    with pytest.raises(GazetteError, match="something was cancelled"):
        inlet.check()
    await tasks.close()


async def test_a_journal_that_was_made_again_is_never_noted_as_the_one_that_was_read():
    """A transaction that is being committed as the refusal comes would take it for that at the next start."""
    client, tasks = Client(), TaskGroup("test")
    client.may_tell.set()
    shard = Shard("shard-000", "f", spec_of("in/a", "in/b", log=False), assigned(), client, None)
    failed = asyncio.Event()
    inlet = Inlet(100, failed.set)
    sources = Sources(shard, Silent(), None, inlet)
    known = Checkpoint(SequencerCheckpoint(offsets={"in/b": 1100}), created={"in/b": 5})
    sources.start(tasks, known)
    async with asyncio.timeout(30):
        await failed.wait()
    with pytest.raises(GazetteError, match="made again: offset 1100"):
        inlet.check()
    assert sources.created == {"in/a": 7}
    await tasks.close()
