"""Records that many tasks append through an append service, and a check of where they are."""

import asyncio

from journal_specs import journal_spec

from gazette_platform.protocol import CompressionCodec
from gazette_platform.testing.waiting import pass_time


def spec(name, *, replication=1):
    return journal_spec(name, replication, codec=CompressionCodec.GZIP)


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
    """Nothing is lost, each append is at the offset that its caller got, in order, and once if it was sent once."""
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
