"""Shards that move from process to process, over a real broker and a real etcd: what goes with them, what stops them."""

from __future__ import annotations

import aiohttp
import pytest
from shard_bench import IN, NDJSON, OUT, SHARD, make_journals
from sqlalchemy import text

from gazette_platform.app import Application
from gazette_platform.consumer.assignments import backup_hint_keys, primary_hint_key
from gazette_platform.consumer.protocol import ReplicaCode, ShardChange, ShardSource, ShardSpec
from gazette_platform.consumer.store import JSONFileStore, SQLStore, create_tables, sql_engine
from gazette_platform.message import Flags, Mapped, Publisher, read_committed
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.testing.waiting import eventually

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(120)]


class InFile(Application):
    """Keeps numbers in the order in which they come, and publishes each."""

    def new_store(self, shard, recorder):
        return JSONFileStore(recorder, [])

    async def consume(self, txn, envelope):
        if envelope.uuid.flags != Flags.ACK_TXN:
            number = envelope.message["n"]
            await self.keep(txn.store, number)
            await txn.publisher.publish(OUT, {"n": number})

    async def keep(self, store, number):
        store.state.append(number)

    async def kept(self, store):
        return store.state


class InDatabase(InFile):
    """The same, in a file of SQLite that processes share."""

    def __init__(self, path):
        self.engine = sql_engine(f"sqlite:///{path}")
        create_tables(self.engine)
        with self.engine.begin() as connection:
            connection.execute(text("CREATE TABLE numbers (n INTEGER)"))

    def new_store(self, shard, recorder):
        return SQLStore(self.engine, shard.fqn)

    async def keep(self, store, number):
        insert = text("INSERT INTO numbers VALUES (:n)")
        await store.run(lambda connection: connection.execute(insert, {"n": number}) and None)

    async def kept(self, store):
        select = text("SELECT n FROM numbers ORDER BY rowid")
        return await store.run(lambda connection: list(connection.scalars(select)))


class World:
    """One shard of a group."""

    def __init__(self, consumers, prefix):
        self.consumers = consumers
        self.prefix = prefix
        self.service = consumers.client.append_service()

    def spec(self, source=IN, *, log=True, hot_standbys=0):
        return ShardSpec(
            SHARD,
            (ShardSource(source),),
            recovery_log_prefix="recovery" if log else "",
            hint_prefix=f"{self.prefix}-hints" if log else "",
            hint_backups=1 if log else 0,
            max_txn_duration_ns=SECOND_NS,
            disable_wait_for_ack=True,  # of a transaction that stays open
            hot_standbys=hot_standbys,
        )

    def publisher(self):
        return Publisher(self.service, lambda _: Mapped(IN, NDJSON), SystemClock())

    async def publish(self, *numbers):
        publisher = self.publisher()
        for number in numbers:
            await (await publisher.publish_committed({"n": number}))
        await self.consumers.wait_through()

    async def statuses(self):
        async with self.consumers.shard_client() as client:
            (listing,) = await client.list()
            return listing.statuses

    async def have(self, *codes):
        """Wait for the statuses of replicas."""

        async def found():
            return sorted(each.code for each in await self.statuses()) == sorted(codes)

        await eventually(found)

    async def move(self):
        """Unassign the primary once another process can take over. Returns: who has."""
        await self.have(ReplicaCode.STANDBY, ReplicaCode.PRIMARY)
        former = self.primary()
        async with self.consumers.shard_client() as client:
            assert await client.unassign([SHARD]) == [SHARD]
        await eventually(lambda: self.primary() not in (None, former))
        await self.have(ReplicaCode.STANDBY, ReplicaCode.PRIMARY)
        return self.primary()

    def primary(self):
        for process in self.consumers.processes:
            replica = process.replicas.get(SHARD)
            if replica is not None and replica.assignment.slot == 0:
                return process
        return None

    async def output(self):
        async with await read_committed(self.consumers.client, OUT, block=False) as reader:
            return [
                each.message["n"]
                async for batch in reader
                for each in batch
                if each.uuid.flags != Flags.ACK_TXN
            ]


@pytest.fixture
async def world(local_consumers, etcd_prefix):
    await make_journals(local_consumers.client)
    world = World(local_consumers, etcd_prefix)
    yield world
    await world.service.close()


@pytest.mark.parametrize("kind", ["JSON file", "database"])
async def test_cs2_a_pending_transaction_goes_with_a_shard_from_process_to_process(
    world, tmp_path, kind
):
    application = InFile() if kind == "JSON file" else InDatabase(tmp_path / "state.db")
    first = await world.consumers.start(application)
    spec = world.spec(log=kind == "JSON file", hot_standbys=1)
    await world.consumers.create_shards(spec)
    second = await world.consumers.start(application)
    pending = world.publisher()
    await (await pending.publish_uncommitted({"n": 1}))
    await world.publish(10)
    assert await world.move() is second
    await (await pending.publish_uncommitted({"n": 2}))
    await world.publish(11)
    assert await application.kept(await world.consumers.store(SHARD)) == [10, 11]
    assert await world.move() is first
    await (await pending.publish_uncommitted({"n": 3}))
    await pending.append_acks(pending.build_acks())
    await world.publish(12)
    expected = [10, 11, 1, 2, 3, 12]
    assert await application.kept(await world.consumers.store(SHARD)) == expected
    assert await world.output() == expected


async def test_cn1_a_source_with_a_name_of_its_reader_is_read_and_handed_over(world):
    application = InFile()
    first = await world.consumers.start(application)
    await world.consumers.create_shards(world.spec(f"{IN};sums"))
    await world.publish(1, 2)
    second = await world.consumers.start(application)
    await world.consumers.leave(first)
    await world.publish(3)
    assert world.primary() is second
    assert await application.kept(await world.consumers.store(SHARD)) == [1, 2, 3]
    assert await world.output() == [1, 2, 3]
    async with world.consumers.shard_client() as client:
        progress = await client.stat(SHARD)
    # A reader's name is part of that of the source.
    assert progress.read_through == {f"{IN};sums": await world.consumers.client.write_head(IN)}


async def test_cr6_metrics_report_status_of_each_shard(world):
    application = InFile()
    first = await world.consumers.start(application)
    await world.consumers.create_shards(world.spec(hot_standbys=1))
    second = await world.consumers.start(application)
    await world.have(ReplicaCode.STANDBY, ReplicaCode.PRIMARY)

    async def told(process):
        url = f"http://127.0.0.1:{process.http_port}/debug/metrics"
        async with aiohttp.ClientSession() as http, http.get(url) as answer:
            lines = (await answer.text()).splitlines()
        return [each for each in lines if each.startswith("gazette_shard_up{")]

    def line(status):
        return [f'gazette_shard_up{{shard="{SHARD}",status="{status}"}} 1.0']

    async def tell(*statuses):
        async def do():
            return [await told(first), await told(second)] == list(statuses)

        await eventually(do)

    await tell(line("primary"), line("standby"))
    assert await world.move() is second
    await tell(line("standby"), line("primary"))
    async with world.consumers.shard_client() as client:
        await client.apply([ShardChange(None, delete=SHARD, revision=-1)])
    await tell([], [])


@pytest.mark.parametrize("which", ["primary", "backup"])
async def test_ch3_hints_that_cannot_be_read_fail_primary_and_standby(etcd, world, which):
    application = InFile()
    for _ in range(2):
        await world.consumers.start(application)
    spec = world.spec(hot_standbys=1)
    key = primary_hint_key(spec) if which == "primary" else backup_hint_keys(spec)[0]
    await etcd.put(key, b"neither JSON nor protobuf")
    async with world.consumers.shard_client() as client:
        await client.apply([ShardChange(spec)])
        await world.have(ReplicaCode.FAILED, ReplicaCode.FAILED)
        for status in await world.statuses():
            # A primary reports it for each of its two tasks, in either order.
            assert all(f"beginRecovery: fetching hints: {key}" in each for each in status.errors)
        await etcd.delete(key)
        assert await client.unassign([SHARD], only_failed=True) == [SHARD]
        await world.have(ReplicaCode.STANDBY, ReplicaCode.PRIMARY)
    await world.publish(1)
    assert await world.output() == [1]
