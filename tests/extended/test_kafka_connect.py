"""Kafka Connect, unchanged, with a gateway: from files to journals, and to files; standalone and distributed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource
from kafka_connect import TOPICS, Distributed, Standalone, plugin_folder
from kafka_docs import program_does
from kafka_jars import version_of
from kafka_servers import LEASE_S, Gateways
from typed_shop import Shop

from gazette_platform import Client
from gazette_platform.testing.waiting import eventually, patient

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(600)]

WAIT_S = 90.0
WORKER_S = 180.0
"""A distributed worker joins its group, and reads its topics, before it begins."""
SPEC = """name: shop.customers
selector: name:prefix={root}/
format: json
columns:
  - {{name: after, type: 'struct<id:bigint,name:string>'}}
typed: {{change_data: debezium, key: [id]}}
"""


def lines_of(gateways, journal):
    """The lines of a journal, read by `gazctl`."""
    broker = next(iter(gateways.brokers.values()))
    command = [sys.executable, "-m", "gazette_platform.cli.gazctl", "journals", "read"]
    done = subprocess.run(
        [*command, "-l", f"name={journal}"],
        capture_output=True,
        timeout=patient(60),
        check=False,
        env=os.environ | {"BROKER_ADDRESS": broker.address},
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def connectors(given, copy):
    """A source that copies a file to the topic `lines`, and a sink that copies that to a file."""
    source = {
        "name": "source",
        "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
        "file": given,
        "topic": "lines",
        "transforms": "hoist",
        "transforms.hoist.type": "org.apache.kafka.connect.transforms.HoistField$Value",
        "transforms.hoist.field": "line",
    }
    sink = {
        "name": "sink",
        "connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector",
        "file": copy,
        "topics": "lines",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    }
    return source, sink


async def copied(copy, count, *, timeout_s=WAIT_S):
    """The lines of the copy, once there are so many."""

    async def all_came():
        found = copy.read_text().splitlines() if copy.exists() else []
        return found if len(found) >= count else None

    return [json.loads(line)["line"] for line in await eventually(all_came, timeout_s=timeout_s)]


async def test_file_becomes_a_topic_and_a_file_again(start_servers, tmp_path, request):
    gateways = Gateways(start_servers, "a", lease_s=LEASE_S)
    await gateways.make_topic("lines", partitions=1)
    given, copy = tmp_path / "given.txt", tmp_path / "copy.txt"
    connect = Standalone(tmp_path, gateways.servers, *connectors(given, copy))

    # The source counts characters where it should count bytes: so only ASCII is read once.
    wanted = [f"line {n}" for n in range(300)]
    given.write_text("".join(f"{line}\n" for line in wanted[:200]))
    with connect.running():
        assert await copied(copy, 200) == wanted[:200]
    with given.open("a") as more:
        more.write("".join(f"{line}\n" for line in wanted[200:]))
    # Source and sink go on where they were.
    with connect.running():
        assert await copied(copy, 300) == wanted
    assert [line["line"] for line in lines_of(gateways, "topic/lines/part=000")] == wanted
    program_does(
        request.config,
        f"Kafka Connect {version_of('apache')}, standalone",
        "copies a file to a topic and a topic to a file, and goes on after a restart",
    )


async def test_workers_keep_connectors_and_offsets_in_compacted_topics(
    start_servers, tmp_path, request
):
    """The second worker has nothing of the first but the topics."""
    gateways = Gateways(start_servers, "a", lease_s=LEASE_S)
    await gateways.make_topic("lines", partitions=1)
    given, copy = tmp_path / "given.txt", tmp_path / "copy.txt"
    wanted = [f"line {n}" for n in range(300)]
    given.write_text("".join(f"{line}\n" for line in wanted[:200]))
    first = Distributed(tmp_path / "first", gateways.servers)
    with first.running():
        for connector in connectors(given, copy):

            async def is_made(connector=connector):
                with contextlib.suppress(OSError):
                    await asyncio.to_thread(first.configure, connector)
                    return True

            await eventually(is_made, timeout_s=WORKER_S)
        assert await copied(copy, 200, timeout_s=WORKER_S) == wanted[:200]
    with given.open("a") as more:
        more.write("".join(f"{line}\n" for line in wanted[200:]))
    second = Distributed(tmp_path / "second", gateways.servers)
    with second.running():
        assert await copied(copy, 300, timeout_s=WORKER_S) == wanted
        runs = ["RUNNING", "RUNNING"]
        assert await asyncio.to_thread(second.states) == {"source": runs, "sink": runs}
    admin = AdminClient({"bootstrap.servers": gateways.servers, "log_level": 0})
    asked = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in TOPICS.values()]
    described = admin.describe_configs(asked)
    for resource in asked:
        configs = await asyncio.to_thread(described[resource].result, patient(WAIT_S))
        assert configs["cleanup.policy"].value == "compact"
    program_does(
        request.config,
        f"Kafka Connect {version_of('apache')}, distributed",
        "keeps connectors, offsets and states in compacted topics, and goes on in another worker",
    )


async def test_debezium_copies_a_database_into_a_typed_table(
    start_servers, tmp_path, postgres, request
):
    gateways = Gateways(start_servers, "a", lease_s=LEASE_S)
    await gateways.make_topic("like-this", partitions=1)
    connect = Standalone(
        tmp_path,
        gateways.servers,
        {
            "name": "shop",
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "plugin.name": "pgoutput",
            "publication.autocreate.mode": "filtered",
            "database.hostname": "127.0.0.1",
            "database.port": postgres.port,
            "database.user": postgres.user,
            "database.password": postgres.password,
            "database.dbname": "postgres",
            "topic.prefix": "shop",
            "table.include.list": "public.customers",
            "key.converter": "org.apache.kafka.connect.json.JsonConverter",
            "key.converter.schemas.enable": "false",
            "topic.creation.default.partitions": "1",
            "topic.creation.default.replication.factor": "1",
        },
        plugins=plugin_folder(tmp_path, "debezium"),
    )
    postgres.sql("ALTER SYSTEM SET wal_level = logical")
    postgres.kill()
    postgres.start()
    postgres.sql("CREATE TABLE customers (id int PRIMARY KEY, name text)")
    postgres.sql("INSERT INTO customers SELECT n, 'grün ' || n FROM generate_series(1, 50) AS n")
    root = "topic/shop.public.customers"
    with Client(gateways.client_config) as client:
        shop = Shop(client, root, tmp_path, SPEC)
        with shop.connect() as sql:

            async def same():
                wanted = postgres.sql("SELECT id, name FROM customers ORDER BY id")
                found = sql.execute("SELECT id, name FROM typed.customers ORDER BY id").fetchall()
                return found == wanted

            with connect.running():
                await eventually(same, timeout_s=WAIT_S, what="the snapshot")
                postgres.sql("UPDATE customers SET name = 'new ' || id WHERE id % 3 = 0")
                postgres.sql("DELETE FROM customers WHERE id % 5 = 0")
                await eventually(same, timeout_s=WAIT_S, what="changes")
            postgres.sql("INSERT INTO customers SELECT n, NULL FROM generate_series(90, 99) AS n")
            postgres.sql("UPDATE customers SET id = 1000 WHERE id = 91")
            with connect.running():
                await eventually(same, timeout_s=WAIT_S, what="changes while it was down")
        counts = shop.run().counts
        assert counts.quarantined == 0
        assert counts.messages == counts.typed
    program_does(
        request.config,
        f"Debezium {version_of('debezium')} in Kafka Connect",
        "copies a table of PostgreSQL to a topic, and `change_data: debezium` makes a typed table from it",
    )
