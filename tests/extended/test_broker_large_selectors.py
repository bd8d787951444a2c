"""Selectors of thousands of labels over a thousand journals."""

from __future__ import annotations

import asyncio
import time

import grpc
import pytest
from journal_specs import journal_spec, upserts

from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.testing.waiting import pass_time

pytestmark = pytest.mark.etcd


@pytest.fixture
async def broker(cluster):
    return await cluster.start()


@pytest.fixture
async def stub(cluster, broker):
    return cluster.stub(broker)


def spec(name, *stores, postfix="", **labels):
    return journal_spec(name, length=1024, stores=stores, postfix=postfix, labels=labels)


async def busiest_s(doing):
    """The longest time for which the event loop was held up while something was done."""
    worst, is_done = 0.0, False

    async def watch():
        nonlocal worst
        while not is_done:
            began = time.thread_time()  # of this thread alone: other processes do not count
            await pass_time(0.001)
            worst = max(worst, time.thread_time() - began)

    async def do():
        nonlocal is_done
        try:
            await doing
        finally:
            is_done = True

    await asyncio.gather(do(), watch())
    return worst


async def test_a_large_selector_blocks_nothing_else(cluster, broker, stub):
    for part in range(10):
        names = [f"many/{part}/{n:03}" for n in range(100)]
        assert (await stub.Apply(upserts(*map(spec, names)))).status == pb.OK
    request = pb.ListRequest()
    for n in range(290_000):
        request.selector.exclude.labels.add(name="ab", value=f"{n:05x}")
    began = time.perf_counter()
    with pytest.raises(grpc.aio.AioRpcError, match="invalid number of labels"):
        await listed(stub, request)
    assert time.perf_counter() - began < 5
    del request.selector.exclude.labels[:]
    for n in range(8192):
        request.selector.exclude.labels.add(name="name", value=f"{n:05}", prefix=True)
    assert await busiest_s(listed(stub, request)) < 3.0  # 0.05 on a machine of its own
    assert len(await listed(stub, request)) == 1000


async def listed(stub, request):
    return [
        j.spec.name async for message in stub.List(request, timeout=60) for j in message.journals
    ]
