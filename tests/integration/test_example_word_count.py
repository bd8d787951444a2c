"""The example word-count: two processes of it over a real broker and etcd, asked by gRPC."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from examples.word_count import service
from examples.word_count.application import WordCount
from examples.word_count.pb import word_count_pb2 as pb, word_count_pb2_grpc as rpcs
from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.consumer.protocol import parse_shard_changes
from gazette_platform.protocol.pb import protocol_pb2
from gazette_platform.serving.config import Wire
from gazette_platform.testing.local import LocalConsumers
from gazette_platform.yaml_specs.journal_tree import parse_journal_tree

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers, pytest.mark.timeout(180)]

FOLDER = Path(__file__).parents[2] / "examples" / "word_count"
TEXT = "How much wood would a wood chuck chuck if a wood chuck could chuck wood?"
SHARDS = [f"shard-{number:03}" for number in range(4)]


class World:
    def __init__(self, client, consumers, hints):
        self.client, self.consumers, self.hints = client, consumers, hints

    @asynccontextmanager
    async def stub(self, process):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{process.port}") as channel:
            yield rpcs.NGramStub(channel)

    async def publish(self, process, text):
        async with self.stub(process) as stub:
            await stub.Publish(pb.PublishRequest(text=text), timeout=30)
        await self.consumers.wait_through()

    async def query(self, process, prefix, shard="", **fields):
        async with self.stub(process) as stub:
            request = pb.QueryRequest(prefix=prefix, shard=shard, **fields)
            response = await stub.Query(request, timeout=30)
        return [(gram.n_gram, gram.count) for gram in response.grams]

    async def refused(self, process, *args, **fields):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.query(process, *args, **fields)
        return caught.value.code().name, caught.value.details()

    def primaries_of(self, process):
        found = ((name, process.replicas.get(name)) for name in SHARDS)
        return {name for name, replica in found if replica and replica.assignment.slot == 0}


@pytest.fixture
async def world(local_brokers, etcd_server, etcd_prefix, tmp_path):
    broker = await local_brokers.start()
    async with AsyncClient(ClientConfig(address=broker.endpoint)) as client:
        consumers = LocalConsumers(
            tmp_path / "consumers",
            etcd=etcd_server.endpoint,
            prefix=f"{etcd_prefix}-group",
            client=client,
        )
        async with consumers:
            yield World(client, consumers, f"{etcd_prefix}-hints")


async def two_processes(world, first=None, second=None):
    """Two processes with some shards each, and their own settings."""
    await world.client.apply(parse_journal_tree((FOLDER / "journals.yaml").read_text()))
    await world.consumers.start(WordCount(2), **(first or {}))
    await world.consumers.start(WordCount(2), **(second or {}))
    changes = parse_shard_changes((FOLDER / "shards.yaml").read_text())
    # An etcd that tests share keeps hints of each apart.
    specs = [replace(change.spec, hint_prefix=world.hints) for change in changes]
    await world.consumers.create_shards(*specs)
    for process in world.consumers.processes:
        assert 0 < len(world.primaries_of(process)) < 4
    return world.consumers.processes


async def test_any_process_returns_counts_of_n_grams(world):
    first, second = await two_processes(world)
    await world.publish(first, TEXT)
    for process in (first, second):
        for n_gram, count in {
            "wood chuck": 2,
            "a wood": 2,
            "START how": 1,
            "chuck chuck": 1,
            "wood END": 1,
        }.items():
            assert await world.query(process, n_gram) == [(n_gram, count)]
        assert await world.query(process, "START how", SHARDS[0]) == []
        assert await world.query(process, "START how", SHARDS[1]) == [("START how", 1)]
        assert await world.query(process, "wood", SHARDS[0]) == [("wood chuck", 2)]
        assert await world.query(process, "wood", SHARDS[1]) == [
            ("wood END", 1),
            ("wood would", 1),
        ]
    found = [gram for name in SHARDS for gram in await world.query(first, "", name)]
    assert sum(count for _, count in found) == len(TEXT.split()) + 2
    assert not [gram for gram, _ in found if gram.startswith("\0")]

    await world.publish(second, TEXT)
    assert await world.query(first, "wood chuck") == [("wood chuck", 4)]


@pytest.mark.parametrize("other", list(Wire), ids=lambda wire: wire.value)
async def test_own_http2_serves_both_kinds_of_stubs(world, other):
    first, second = await two_processes(world, {"wire": Wire.H2}, {"wire": other})
    await world.publish(first, TEXT)

    def ask(process):
        with grpc.insecure_channel(f"127.0.0.1:{process.port}") as channel:
            stub = rpcs.NGramStub(channel)
            found = stub.Query(pb.QueryRequest(prefix="wood chuck"), timeout=30)
        return [(gram.n_gram, gram.count) for gram in found.grams]

    for process in (first, second):
        assert await asyncio.to_thread(ask, process) == [("wood chuck", 2)]
        assert await world.query(process, "START how") == [("START how", 1)]
        code, text = await world.refused(process, "wood", "shard-009")
        assert (code, text) == ("NOT_FOUND", "shard shard-009: SHARD_NOT_FOUND")


async def test_counts_survive_a_process(world):
    first, second = await two_processes(world)
    await world.publish(first, TEXT)
    lost = world.primaries_of(first)
    await world.consumers.crash(first)
    for name in SHARDS:
        await world.consumers.wait_primary(name)
    await world.publish(second, TEXT)
    assert lost
    assert world.primaries_of(second) == set(SHARDS)
    assert await world.query(second, "wood chuck") == [("wood chuck", 4)]
    assert await world.query(second, "wood", SHARDS[1]) == [("wood END", 2), ("wood would", 2)]


async def test_queries_without_an_answer_are_refused(world):
    (process, _) = await two_processes(world)
    code, text = await world.refused(process, "wood", "shard-009")
    assert (code, text) == ("NOT_FOUND", "shard shard-009: SHARD_NOT_FOUND")
    other = protocol_pb2.Header(
        process_id={"zone": "local", "suffix": "another"},
        etcd={"cluster_id": 1, "member_id": 1, "revision": 1, "raft_term": 1},
    )
    code, text = await world.refused(process, "wood", SHARDS[0], header=other)
    assert code == "UNKNOWN"
    assert "doesn't match our own" in text


async def test_without_journals_a_text_is_refused(world):
    process = await world.consumers.start(WordCount(2))
    async with world.stub(process) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Publish(pb.PublishRequest(text=TEXT), timeout=30)
    assert "no journal to map a record to" in caught.value.details()


async def test_counts_go_round_whatever_is_published(world, monkeypatch):
    process, _ = await two_processes(world)
    publisher = process.application._publisher
    for name, count in (("a b", 2**64 - 1), ("a b", 2**64 - 1), ("a b c", 7)):
        await (await publisher.publish_committed(pb.NGramCount(n_gram=name, count=count)))
    await world.consumers.wait_through()
    assert ("a b", 2**64 - 2) in await world.query(process, "a b")
    monkeypatch.setattr(service, "_GRAMS_MAX", 0)
    code, text = await world.refused(process, "a b")
    assert code == "UNKNOWN"
    assert "more than 0 n-grams begin with 'a b'" in text
