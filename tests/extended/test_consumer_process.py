"""Whole processes of a consumer group, over a real broker and a real etcd."""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import replace

import aiohttp
import pytest
from aiohttp import web
from journal_specs import journal_spec

from gazette_platform.app import Application
from gazette_platform.client import Change
from gazette_platform.consumer.protocol import ReplicaCode, ShardSource, ShardSpec
from gazette_platform.consumer.recoverylog import CONTENT_TYPE
from gazette_platform.consumer.store import JSONFileStore
from gazette_platform.consumer.store.sqlite import SQLiteStore
from gazette_platform.errors import ApplicationFailed, GazetteError, StoreUnavailable
from gazette_platform.message import Flags, Mapped, Publisher, read_committed
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.protocol import CompressionCodec, Route
from gazette_platform.testing.waiting import eventually

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(180)]

NDJSON = "application/x-ndjson"
IN = ("words/part=0", "words/part=1")
OUT = "counts/part=0"
SHARDS = ("shard-000", "shard-001")


class Counts(Application):
    """Counts words, and publishes each new count. Odd shards keep them in SQLite."""

    def __init__(self):
        self.inits = 0

    def init(self, process):
        self.inits += 1

        async def page(request):
            from aiohttp import web

            found = await process.resolver.resolve(request.match_info["shard"])
            with found:
                return web.Response(text=found.status.name)

        process.add_pages(lambda router: router.add_get("/status/{shard}", page))

    def new_store(self, shard, recorder):
        if shard.id == SHARDS[0]:
            return JSONFileStore(recorder, {})
        return SQLiteStore(
            recorder,
            schema="CREATE TABLE IF NOT EXISTS counts (word TEXT PRIMARY KEY, n INTEGER) WITHOUT ROWID",
        )

    async def consume(self, txn, envelope):
        if envelope.uuid.flags == Flags.ACK_TXN:
            return
        word = envelope.message["word"]
        if word == "poison":
            raise ApplicationFailed("this word is not to be counted")
        if isinstance(txn.store, SQLiteStore):
            (n,) = txn.store.db.execute(
                "INSERT INTO counts VALUES (?, 1) ON CONFLICT DO UPDATE SET n = n + 1 RETURNING n",
                (word,),
            ).fetchone()
        else:
            n = txn.store.state[word] = txn.store.state.get(word, 0) + 1
        await txn.publisher.publish(OUT, {"word": word, "n": n})


def by_part(message):
    return Mapped(IN[message["part"]], NDJSON)


def counts_of(store):
    if isinstance(store, SQLiteStore):
        return dict(store.db.execute("SELECT word, n FROM counts"))
    return dict(store.state)


def journal(name, content_type=NDJSON):
    return journal_spec(name, codec=CompressionCodec.SNAPPY, labels={"content-type": content_type})


def shard_of(prefix, number, *, hot_standbys=0):
    return ShardSpec(
        SHARDS[number],
        (ShardSource(IN[number]),),
        recovery_log_prefix="recovery",
        hint_prefix=f"{prefix}-hints",
        hint_backups=2,
        max_txn_duration_ns=SECOND_NS,
        hot_standbys=hot_standbys,
    )


class World:
    def __init__(self, client, consumers, prefix):
        self.client, self.consumers, self.prefix = client, consumers, prefix
        self.expected = [{}, {}]
        self.published = 0

    async def create_shards(self, **of_all):
        specs = [shard_of(self.prefix, number, **of_all) for number in range(2)]
        await self.consumers.create_shards(*specs)

    async def publish(self, count, *, seed=0):
        """Words to both sources, some in transactions."""
        dice = random.Random(seed)
        service = self.client.append_service()
        publisher = Publisher(service, by_part, SystemClock())
        for at in range(count):
            number, word = dice.randrange(2), f"w{dice.randrange(7)}"
            send = publisher.publish_committed if at % 3 else publisher.publish_uncommitted
            await send({"word": word, "part": number})
            if not at % 3:
                await publisher.append_acks(publisher.build_acks())
            counts = self.expected[number]
            counts[word] = counts.get(word, 0) + 1
            self.published += 1
        await service.flush()
        await service.close()

    async def check(self):
        """States are right, and each count was published once."""
        await self.consumers.wait_through()
        for number, name in enumerate(SHARDS):
            assert counts_of(await self.consumers.store(name)) == self.expected[number]
        found = []
        async with await read_committed(self.client, OUT, block=False) as reader:
            async for batch in reader:
                found += [
                    (each.message["word"], each.message["n"])
                    for each in batch
                    if each.uuid.flags != Flags.ACK_TXN
                ]
        expected = [
            (word, n + 1)
            for counts in self.expected
            for word, total in counts.items()
            for n in range(total)
        ]
        assert sorted(found) == sorted(expected)


@pytest.fixture
async def world(local_consumers, etcd_prefix):
    client = local_consumers.client
    await client.apply(
        [
            Change(spec)
            for spec in (
                *map(journal, (*IN, OUT)),
                *(journal(f"recovery/{name}", CONTENT_TYPE) for name in SHARDS),
            )
        ]
    )
    return World(client, local_consumers, etcd_prefix)


async def test_cn1_shards_are_run_and_handed_over_without_a_standby(world):
    application = Counts()
    first = await world.consumers.start(application)
    await world.create_shards()
    await world.publish(60, seed=1)
    await world.check()

    second = await world.consumers.start(application)
    leaving = asyncio.create_task(world.consumers.leave(first))  # noqa: TID251  awaited below
    await world.publish(60, seed=2)
    await leaving
    await world.check()
    assert {name for name in SHARDS if second.replicas.get(name)} == set(SHARDS)
    assert first.failure is None
    assert application.inits == 2


async def test_group_that_leaves_as_a_whole_does_not_wait(world):
    for _ in range(2):
        await world.consumers.start(Counts(), drain_timeout_s=None)
    await world.create_shards(hot_standbys=1)
    await world.publish(20, seed=1)
    await world.consumers.wait_through()
    leaving = [world.consumers.leave(process) for process in world.consumers.processes]
    await asyncio.gather(*leaving)

    await world.consumers.start(Counts())
    for name in SHARDS:
        await world.consumers.wait_primary(name)
    await world.publish(20, seed=2)
    await world.check()


async def test_cn2_a_hot_standby_takes_over_from_a_process_that_died(world):
    first = await world.consumers.start(Counts())
    await world.consumers.start(Counts())
    await world.create_shards(hot_standbys=1)
    await world.publish(40, seed=1)
    await world.check()
    async with world.consumers.shard_client() as client:

        async def have_standbys():
            return all(
                sorted(s.code for s in listing.statuses)
                == [ReplicaCode.STANDBY, ReplicaCode.PRIMARY]
                for listing in await client.list()
            )

        await eventually(have_standbys)
    await world.consumers.crash(first)
    await world.publish(40, seed=2)
    for name in SHARDS:
        await world.consumers.wait_primary(name)
    await world.check()


async def test_a_failed_shard_is_reported_and_goes_on_when_it_is_unassigned(world):
    await world.consumers.start(Counts())
    await world.create_shards()
    service = world.client.append_service()
    publisher = Publisher(service, by_part, SystemClock())
    await (await publisher.publish_committed({"word": "poison", "part": 0}))
    async with world.consumers.shard_client() as client:

        async def failed():
            (listing,) = await client.list(f"id={SHARDS[0]}")
            return listing.status if listing.status.code is ReplicaCode.FAILED else None

        status = await eventually(failed)
        assert "this word is not to be counted" in status.errors[0]
        # Others go on meanwhile.
        (other,) = await client.list(f"id={SHARDS[1]}")
        assert other.status.code is ReplicaCode.PRIMARY
        assert await client.unassign([SHARDS[0]], only_failed=True) == [SHARDS[0]]
        assert await eventually(failed)  # it meets the word again
    await service.close()


@pytest.mark.parametrize(
    ("error", "settings"),
    [
        (ApplicationFailed, {"restart_failed_s": 0.05}),
        (StoreUnavailable, {}),
    ],
    ids=["if that is wanted", "if its database was away"],
)
async def test_a_failed_shard_starts_again_by_itself(world, error, settings):
    class Moody(Counts):
        failures = 0

        async def consume(self, txn, envelope):
            if self.failures < 3:
                self.failures += 1
                raise error(f"not yet ({self.failures})")
            await super().consume(txn, envelope)

    application = Moody()
    await world.consumers.start(application, **settings)
    await world.create_shards()
    await world.publish(20)

    async def done():
        with contextlib.suppress(GazetteError, LookupError):
            await world.check()
            return True
        return False

    await eventually(done)
    assert application.failures == 3


async def test_cr6_http_port_serves_status_and_application_pages(world):
    process = await world.consumers.start(Counts())
    await world.create_shards()
    await world.publish(9)
    await world.check()
    address = f"http://127.0.0.1:{process.http_port}"
    async with aiohttp.ClientSession() as http:
        async with http.get(f"{address}/debug/ready") as answer:
            assert (answer.status, await answer.text()) == (200, "ready\n")
        async with http.get(f"{address}/status/{SHARDS[1]}") as answer:
            assert await answer.text() == "OK"
        async with http.post(f"{address}/v1/shards/stat", json={"shard": SHARDS[0]}) as answer:
            told = await answer.json(content_type=None)
        head = await world.client.write_head(IN[0])
        assert told["readThrough"] == {IN[0]: str(head)}
        async with http.get(f"{address}/debug/metrics") as answer:
            metrics = await answer.text()
    assert f'gazette_shard_up{{shard="{SHARDS[0]}",status="primary"}} 1.0' in metrics
    read = [line for line in metrics.splitlines() if "gazette_shard_read_messages_total{" in line]
    assert sum(float(line.split()[-1]) for line in read) >= 9
    assert "gazette_sequencer_queued{" in metrics


async def test_process_with_a_failed_shard_is_not_ready(world):
    class Failing(Counts):
        async def consume(self, txn, envelope):
            raise ApplicationFailed("this word is not to be counted")

    process = await world.consumers.start(Failing())
    await world.create_shards()
    async with aiohttp.ClientSession() as http:

        async def told():
            async with http.get(f"http://127.0.0.1:{process.http_port}/debug/ready") as answer:
                return answer.status, await answer.text()

        assert await told() == (200, "ready\n")
        await world.publish(20)

        async def refused():
            status, said = await told()
            return said if status == 503 else ""

        said = await eventually(refused)
    assert f"shard {SHARDS[0]} has failed: " in said or f"shard {SHARDS[1]} has failed: " in said
    assert "this word is not to be counted" in said


async def test_a_page_that_sends_its_reader_elsewhere_is_passed_on(world):
    class Sending(Counts):
        def init(self, process):
            process.add_pages(lambda router: router.add_get("/old", self.old))

        async def old(self, request):
            raise web.HTTPFound("http://127.0.0.1:1/new")

    process = await world.consumers.start(Sending())
    me = process.process_id
    header = replace(process.api.header(), route=Route((me,), 0, (process.endpoint,)))
    page = await process.peers.page(header, SHARDS[0], "/old?a=1", {}, timeout_s=10)
    assert (page.status, page.headers["location"]) == (302, "http://127.0.0.1:1/new")
