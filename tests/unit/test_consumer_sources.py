"""Sources of a shard, and the bounded queue that they fill."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from shard_bench import assigned, journal, spec_of

from gazette_platform.consumer.application import Application, Shard
from gazette_platform.consumer.protocol import Checkpoint
from gazette_platform.consumer.runtime.sources import Inlet, ReadBudget, Sources
from gazette_platform.errors import GazetteError
from gazette_platform.message import NO_UUID, Envelope
from gazette_platform.message.sequencer import SequencerCheckpoint
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.testing.waiting import turns


def batch(*numbers):
    return [Envelope("a/b", number, number + 1, NO_UUID, number) for number in numbers]


async def test_readers_wait_while_it_is_full_and_go_on_once_half_of_it_was_taken():
    woken, tasks = [], TaskGroup("readers")
    inlet = Inlet(4, lambda: woken.append(1))
    await inlet.put(batch(1, 2, 3))
    await inlet.put(batch(4, 5, 6))  # one batch more than its size
    waiting = [tasks.spawn(inlet.put(batch(number))) for number in (7, 8)]
    await turns()
    assert len(inlet.entries) == 6
    assert len(woken) == 2
    for _ in range(3):
        inlet.entries.popleft()
    inlet.made_room()
    await turns()
    assert len(inlet.entries) == 3
    inlet.entries.popleft()
    inlet.made_room()
    await asyncio.gather(*waiting)
    assert [each.message for each in inlet.entries] == [5, 6, 7, 8]
    assert len(woken) == 4


async def test_what_was_read_before_an_error_is_taken_first():
    inlet = Inlet(4, lambda: None)
    assert not inlet.has_entry
    await inlet.put(batch(1))
    inlet.fail(OSError("first"))
    inlet.fail(OSError("second"))
    inlet.check()
    assert inlet.has_entry
    assert not inlet.is_closed
    inlet.entries.popleft()
    assert not inlet.has_entry
    assert inlet.is_closed  # so that what was taken is committed first
    with pytest.raises(OSError, match="first"):
        inlet.check()


async def test_it_is_closed_once_all_was_taken():
    inlet = Inlet(4, lambda: None)
    await inlet.put(batch(1))
    inlet.close()
    assert not inlet.is_closed
    inlet.entries.popleft()
    assert inlet.is_closed
    inlet.check()


MB = 1 << 20


def large(number):
    return [Envelope("a/b", number * MB, (number + 1) * MB, NO_UUID, number)]


def filling(tasks, inlet, count=100):
    """Put as many batches of 1 MiB as there is room for."""

    async def fill():
        for number in range(count):
            await inlet.put(large(number))

    return tasks.spawn(fill())


@pytest.fixture
async def tasks():
    tasks = TaskGroup("readers")
    yield tasks
    await tasks.close()


async def test_large_messages_are_bounded_by_their_bytes(tasks):
    """A slow application let in 8,192 messages of any size."""
    inlet = Inlet(8192, lambda: None, bytes_max=10 * MB)
    filling(tasks, inlet)
    await turns(200)
    assert len(inlet.entries) == 10
    for left in range(9, 5, -1):
        inlet.entries.popleft()
        inlet.made_room()
        await turns(200)
        assert len(inlet.entries) == left
    inlet.entries.popleft()
    inlet.made_room()
    await turns(200)
    assert len(inlet.entries) == 10


async def test_taken_messages_count_until_room_was_made(tasks):
    inlet = Inlet(8192, lambda: None, bytes_max=10 * MB)
    filling(tasks, inlet)
    await turns(200)
    inlet.entries.clear()  # an application is consuming them
    await turns(200)
    assert not inlet.entries
    inlet.made_room()
    await turns(200)
    assert len(inlet.entries) == 10


async def test_shards_share_a_bound_and_each_goes_on(tasks):
    budget = ReadBudget(20 * MB)
    inlets = [Inlet(8192, lambda: None, bytes_max=15 * MB, budget=budget) for _ in range(4)]
    fillings = [filling(tasks, inlet) for inlet in inlets]
    await turns(300)
    assert all(inlet.entries for inlet in inlets)
    assert 20 * MB <= budget.used <= 24 * MB
    first, *others = inlets
    before = sum(len(each.entries) for each in others)
    fillings[0].cancel()  # its shard has failed
    first.drop()
    await turns(300)
    assert sum(len(each.entries) for each in others) > before
    for inlet in others:
        inlet.drop()


class Silent(Application):
    def new_store(self, shard, recorder):
        raise AssertionError("the tests never open it")


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
    """Returns specs when it may, and counts how many calls came at once."""

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
