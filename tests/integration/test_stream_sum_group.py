"""Streams of stream-sum through consumers in the test's own event loop: each sum comes, once, and is right."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from examples.stream_sum import messages
from examples.stream_sum.chunker import SumWrong, run_chunker
from examples.stream_sum.messages import CHUNKS, ID_BYTES, SUMS, Sum, id_of
from examples.stream_sum.summer import Summer, keep, load
from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.consumer.protocol import parse_shard_changes
from gazette_platform.message import Flags, JsonFraming, read_committed
from gazette_platform.testing.local import LocalConsumers
from gazette_platform.testing.waiting import pass_time
from gazette_platform.yaml_specs.journal_tree import parse_journal_tree

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers, pytest.mark.timeout(180)]

FOLDER = Path(messages.__file__).parent
PARTITIONS = 4


@pytest.fixture
async def world(local_brokers, etcd_server, etcd_prefix, tmp_path):
    """A broker with the journals of four partitions, and consumers that do not run yet."""
    broker = await local_brokers.start()
    async with AsyncClient(ClientConfig(address=broker.endpoint)) as client:
        changes = parse_journal_tree((FOLDER / "journals.yaml").read_text())
        parts = {f"part-{number:03}" for number in range(PARTITIONS)}
        await client.apply([c for c in changes if c.name == SUMS or c.name[-8:] in parts])
        consumers = LocalConsumers(
            tmp_path / "consumers",
            etcd=etcd_server.endpoint,
            prefix=f"{etcd_prefix}-group",
            client=client,
        )
        async with consumers:
            yield client, consumers, etcd_prefix


async def create_shards(consumers, prefix):
    specs = [each.spec for each in parse_shard_changes((FOLDER / "shards.yaml").read_text())]
    await consumers.create_shards(
        *[replace(spec, hint_prefix=f"{prefix}-hints") for spec in specs[:PARTITIONS]]
    )


async def published(client):
    """Sums that are committed, by stream."""
    found = {}
    framing = JsonFraming(message_type=Sum)
    async with await read_committed(client, SUMS, framing=framing, block=False) as reader:
        async for batch in reader:
            for each in batch:
                if each.uuid.flags != Flags.ACK_TXN:
                    found.setdefault(id_of(each.message), []).append(each.message)
    return found


async def test_streams_of_four_workers_are_summed(world):
    client, consumers, prefix = world
    await consumers.start(Summer())
    await create_shards(consumers, prefix)
    done = await run_chunker(client, streams=10, chunks=10, workers=4, say=lambda text: None)
    assert done == 40
    found = await published(client)
    assert len(found) == 40
    assert {len(sums) for sums in found.values()} == {1}
    # Both stores have what was published.
    stores = {
        f"{CHUNKS}part-{n:03}": await consumers.store(f"chunks-part-{n:03}") for n in range(4)
    }
    kept = {}
    for stream in found:
        totals = [load(store, stream) for store in stores.values()]
        (kept[stream],) = [total for total in totals if total.SeqNo]
    assert {s: (t.SeqNo, t.Value) for s, t in kept.items()} == {
        s: (t.SeqNo, t.Value) for s, (t,) in found.items()
    }
    assert {type(store).__name__ for store in stores.values()} == {"SQLiteStore", "RocksDBStore"}


async def test_gb2_streams_go_on_while_processes_come_and_go(world):
    client, consumers, prefix = world
    first = await consumers.start(Summer(), hints_interval_s=0.2)
    await create_shards(consumers, prefix)
    chunking = asyncio.create_task(  # noqa: TID251  awaited below
        run_chunker(client, streams=4, chunks=20, workers=4, say=lambda text: None)
    )
    await pass_time(1)
    second = await consumers.start(Summer(), hints_interval_s=0.2)
    await consumers.crash(first)
    await pass_time(1)
    await consumers.start(Summer())
    await consumers.leave(second)
    assert await chunking == 16


class ForgetfulSummer(Summer):
    """Forgets one chunk, and says that it did not."""

    async def consume(self, txn, envelope):
        if envelope.message.SeqNo == 2:
            envelope.message.Data = b"another"
        await super().consume(txn, envelope)


async def test_a_wrong_sum_ends_the_chunker(world):
    client, consumers, prefix = world
    await consumers.start(ForgetfulSummer())
    await create_shards(consumers, prefix)
    with pytest.raises(SumWrong):
        await run_chunker(client, streams=1, chunks=3, workers=2, say=lambda text: None)


@pytest.mark.parametrize("shard", ["chunks-part-000", "chunks-part-001"])
async def test_sums_of_any_stream_are_kept(world, shard):
    _, consumers, prefix = world
    await consumers.start(Summer())
    await create_shards(consumers, prefix)
    store = await consumers.store(shard)
    for first in (0, 1, 255):  # by a zero byte begins what is RocksDB's own
        stream = bytes([first] * ID_BYTES)
        assert load(store, stream) == Sum(ID=list(stream))
        total = Sum(ID=list(stream), SeqNo=3, Value=(1 << 64) - first - 1)
        keep(store, stream, total)
        assert load(store, stream) == total
