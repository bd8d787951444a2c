"""A PostgreSQL whose answers to COMMIT are lost, late, or never asked for: each message counts once."""

from __future__ import annotations

import asyncio
import contextlib
import uuid

import pytest
from shard_bench import Bench, Numbered, make_journals, spec_of
from sqlalchemy import text
from sqlalchemy.engine import make_url

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.consumer.store import SQLStore, create_tables, sql_engine
from gazette_platform.errors import ShardStopped
from gazette_platform.message import Flags
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.testing.waiting import pass_time, patient

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

MESSAGES = 24


class Wire:
    """Stands before a database, and does something to each COMMIT in turn.

    ``pass``: nothing. ``lost``: the database commits, and its answer is lost. ``cut``: the database never hears of
    it. ``late``: the database hears of it after the client has given up.
    """

    def __init__(self, port, late_s):
        self.port, self.late_s = port, late_s
        self.plan = []
        self.done = []
        self.tasks = TaskGroup("wire")
        self.server = None
        self.writers = []

    async def start(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        return self.server.sockets[0].getsockname()[1]

    async def serve(self, reader, writer):
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers += writer, far_writer
        is_lost = [False]

        async def back():
            while data := await far_reader.read(1 << 16):
                if is_lost[0]:
                    writer.close()
                    continue
                writer.write(data)
                await writer.drain()
            writer.close()

        self.tasks.spawn(back())
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                what = "pass"
                if data.startswith(b"Q") and b"COMMIT" in data and self.plan:
                    what = self.plan.pop(0)
                    self.done.append(what)
                is_lost[0] |= what != "pass"
                if what == "cut":
                    break
                if what == "late":
                    await pass_time(self.late_s)
                far_writer.write(data)
                await far_writer.drain()
                if what != "pass":
                    await pass_time(0.2)  # for the database to answer
                    break
        far_writer.close()
        writer.close()

    async def close(self):
        self.server.close()
        for each in self.writers:
            each.close()
            with contextlib.suppress(OSError):
                await each.wait_closed()
        await self.tasks.close()


class Rows(Numbered):
    """Numbers messages by a row of a database."""

    def __init__(self, engine):
        super().__init__()
        self.engine = engine

    def new_store(self, shard, recorder):
        return SQLStore(self.engine, shard.fqn)

    async def consume(self, txn, envelope):
        if envelope.uuid.flags == Flags.ACK_TXN:
            return

        def count(connection):
            return connection.scalar(text("UPDATE numbers SET n = n + 1 RETURNING n"))

        number = await txn.store.run(count)
        await txn.publisher.publish(self.to, {"id": envelope.message["id"], "number": number})


@pytest.mark.parametrize("what", ["lost", "cut", "late"])
async def test_message_counts_once_whatever_becomes_of_commits(
    postgres, local_brokers, tmp_path, what
):
    name = f"answers_{uuid.uuid4().hex[:8]}"
    postgres.sql(f"CREATE DATABASE {name}")
    url = make_url(postgres.uri(name).replace("@", f":{postgres.password}@"))
    direct = sql_engine(url)
    create_tables(direct)
    with direct.begin() as connection:
        connection.execute(text("CREATE TABLE numbers (n INT)"))
        connection.execute(text("INSERT INTO numbers VALUES (0)"))
    wire = Wire(url.port, late_s=3.0)
    engine = sql_engine(url.set(host="127.0.0.1", port=await wire.start()), answer_s=2.0)
    broker = await local_brokers.start()
    async with AsyncClient(ClientConfig(address=broker.endpoint)) as client:
        await make_journals(client)
        bench = Bench(client, tmp_path / "replicas")
        application, spec = Rows(engine), spec_of(log=False)
        replica = bench.replica(application, spec)
        await replica.host.reached("PRIMARY")
        end = {}
        async with asyncio.timeout(patient(60)):
            for number in range(MESSAGES):
                if number % 8 == 4:
                    wire.plan.append(what)
                end = await bench.publish(number)
                while True:
                    try:
                        await replica.wait_through(end)
                        break
                    except ShardStopped:
                        assert replica.may_pass, replica.error
                        await replica.stop()
                        replica = bench.replica(application, spec)
            assert wire.done.count(what) == MESSAGES // 8
        await bench.close()
        found = await bench.output()
    assert [each["id"] for each in found] == list(range(MESSAGES))
    assert [each["number"] for each in found] == list(range(1, MESSAGES + 1))
    engine.dispose()
    direct.dispose()
    await wire.close()
