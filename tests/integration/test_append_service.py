"""The append service against real brokers, also ones that end in the middle of an append."""

import asyncio

import pytest

from gazette_platform.client import AsyncClient, Change, ClientConfig
from gazette_platform.ops.durations import SECOND_NS
from gazette_platform.protocol import (
    CompressionCodec,
    FragmentSpec,
    JournalSpec,
)
from gazette_platform.testing.waiting import eventually, pass_time, patient

pytestmark = pytest.mark.etcd


def spec(name, *, replication=1):
    fragment = FragmentSpec(
        length=1 << 20,
        codec=CompressionCodec.GZIP,
        stores=("file:///",),
        refresh_interval_ns=SECOND_NS,
    )
    return JournalSpec(name=name, replication=replication, fragment=fragment)


async def produced(service, journals, *, tasks, goes_on, pause_s=0.0):
    """Submit records of many tasks, to all journals in turn, and pause after every few.

    Args:
        service: takes them.
        journals: names.
        tasks: how many.
        goes_on: whether a task submits another record, by how many it has submitted.
        pause_s: seconds.

    Returns: each record and its ticket.
    """
    taken = []

    async def produce(task):
        n = 0
        while goes_on(n):
            journal = journals[n % len(journals)]
            data = b"%03d-%04d;" % (task, n) * (1 + (task + n) % 40)
            taken.append((journal, task, n, data, await service.submit(journal, data)))
            if n % 5 == 0:
                await taken[-1][-1]
                await pass_time(pause_s)
            n += 1

    await asyncio.gather(*(produce(task) for task in range(tasks)))
    return taken


async def checked(client, taken):
    """Nothing is lost, all is where its caller was told, in order, and once if it was sent once."""
    for journal in {each[0] for each in taken}:
        content = await client.read(journal).read()
        last = {}
        expected = 0
        for _, task, n, data, ticket in (each for each in taken if each[0] == journal):
            begin, end = await ticket
            assert content[begin:end] == data
            assert last.get(task, -1) < begin, f"task {task} before its record {n}"
            last[task] = begin
            assert 1 <= content.count(data) <= ticket.attempts
            expected += len(data)
        assert len(content) >= expected
        if all(ticket.attempts == 1 for name, *_, ticket in taken if name == journal):
            assert len(content) == expected


async def test_records_of_many_tasks_and_journals_are_where_each_was_told(broker):
    async with AsyncClient(ClientConfig(address=broker.address)) as client:
        journals = [f"many/part-{n}" for n in range(5)]
        await client.apply([Change(spec(name)) for name in journals])
        async with client.append_service() as service:
            taken = await produced(service, journals, tasks=20, goes_on=lambda n: n < 50)
        assert {ticket.attempts for *_, ticket in taken} == {1}
        await checked(client, taken)


async def test_a_broker_that_is_killed_in_mid_append_loses_nothing(broker):
    async with AsyncClient(ClientConfig(address=broker.address)) as client:
        journals = ["a/one", "a/two"]
        await client.apply([Change(spec(name)) for name in journals])
        service = client.append_service()

        async def written():
            return sum([await client.write_head(name) for name in journals])

        async def has_grown(head):
            return await written() > head

        async with asyncio.timeout(patient(100)), asyncio.TaskGroup() as tasks:
            is_killed_twice = asyncio.Event()
            producing = produced(
                service,
                journals,
                tasks=20,
                goes_on=lambda _: not is_killed_twice.is_set(),
                pause_s=0.05,
            )
            work = tasks.create_task(producing)
            for _ in range(2):
                head = await written() + 20_000
                await eventually(lambda head=head: has_grown(head))
                broker.kill()
                await asyncio.to_thread(broker.start)
            is_killed_twice.set()
            taken = await work
            await service.close()
            await checked(client, taken)
