"""Journals that move from one broker to another, while clients append and read."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from journal_specs import journal_spec

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.protocol import CompressionCodec
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.testing.local import append, read_all
from gazette_platform.testing.waiting import eventually, patient

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

NAMES = [f"moving/{n}" for n in range(6)]


def spec(name, **fields):
    return journal_spec(name, length=1 << 16, codec=CompressionCodec.GZIP, refresh_s=3600, **fields)


async def test_a_leaving_broker_hands_its_journals_over(cluster):
    first = await cluster.start(drain_timeout_s=30.0)
    stub = cluster.stub(first)
    await cluster.apply(stub, *map(spec, NAMES))
    for name in NAMES[1:]:
        await append(stub, name, b"one ")  # nothing of it is persisted by itself
    for name in NAMES[2:]:
        await append(stub, name, b"two ")
    second = cluster.stub(await cluster.start())
    assert await first.drain() == []
    contents = [b"", b"one ", *[b"one two "] * 4]
    for name, content in zip(NAMES, contents, strict=True):
        response = await eventually(lambda n=name: _appended(second, n, b"three"))
        assert (response.status, response.commit.begin) == (pb.OK, len(content)), name
        await eventually(lambda n=name, c=content: _reads(second, n, c + b"three"))


async def _appended(stub, name, content):
    """The answer, unless the broker has not heard yet that it is the primary."""
    response = await append(stub, name, content)
    return response.status != pb.NOT_JOURNAL_PRIMARY_BROKER and response


async def _reads(stub, name, content):
    return await read_all(stub, name) == content


async def test_appends_go_on_while_journals_move(cluster):
    """Each is acknowledged at its own offset, and exists afterwards."""
    first = await cluster.start(drain_timeout_s=30.0)
    await cluster.apply(cluster.stub(first), *map(spec, NAMES))
    acknowledged = {name: {} for name in NAMES}
    brokers = [first]

    async def append_to(name, client):
        number = 0
        while True:
            content = b"%s %06d\n" % (name.encode(), number)
            result = await client.append(name, content)
            assert result.begin not in acknowledged[name]
            acknowledged[name][result.begin] = content
            number += 1

    async with AsyncClient(ClientConfig(address=first.endpoint)) as client:
        appending = [
            asyncio.ensure_future(append_to(name, client))  # noqa: TID251  awaited below
            for name in NAMES
        ]

        def all_grew(before):
            for task in appending:
                if task.done():
                    task.result()
            return all(len(found) > before[name] + 3 for name, found in acknowledged.items())

        for _ in range(3):
            brokers.append(await cluster.start(drain_timeout_s=30.0))
            before = {name: len(found) for name, found in acknowledged.items()}
            await eventually(lambda b=before: all_grew(b))
            async with asyncio.timeout(patient(30)):
                assert await brokers[-2].drain() == []
        before = {name: len(found) for name, found in acknowledged.items()}
        await eventually(lambda: all_grew(before))
        for task in appending:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
    stub = cluster.stub(brokers[-1])
    for name, found in acknowledged.items():
        head = max(begin + len(content) for begin, content in found.items())
        await eventually(lambda n=name, h=head: _is_whole(stub, n, h))
        content = await read_all(stub, name)
        for begin, expected in found.items():
            assert content[begin : begin + len(expected)] == expected


async def _is_whole(stub, name, head):
    return len(await read_all(stub, name)) >= head
