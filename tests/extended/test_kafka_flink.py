"""Flink SQL's connector for Kafka, unchanged, at a real gateway."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest
from kafka_docs import program_does
from kafka_jars import jars_of, version_of
from kafka_servers import LEASE_S, Gateways

from gazette_platform.platform import tools
from gazette_platform.testing.waiting import patient

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(900)]

SOURCE = Path(__file__).parents[1] / "interop" / "kafka" / "java" / "FlinkSql.java"
RUN_S = 240.0
COLUMNS = "k STRING, n BIGINT, txt STRING, h MAP<STRING, BYTES> METADATA FROM 'headers'"
TABLE = """CREATE TABLE {name} ({columns}) WITH (
  'connector' = 'kafka', 'topic' = '{topic}', 'properties.bootstrap.servers' = '{servers}',
  'key.format' = 'raw', 'key.fields' = 'k', 'value.format' = 'json', 'value.fields-include' = 'EXCEPT_KEY',
  {options})"""
ADD = """INSERT INTO given
SELECT 'k' || CAST(n AS STRING), n, 'grün', MAP['h', ENCODE(CAST(n AS STRING), 'UTF-8')]
FROM (VALUES {rows}) AS t (n)"""
# Flink's own default is an hour: more than a broker of Kafka, or a gateway, lets a transaction last.
ONCE = "'properties.transaction.timeout.ms' = '60000', 'sink.delivery-guarantee' = 'exactly-once', 'sink.transactional-id-prefix' = 'flink'"
BOUNDED = "'scan.bounded.mode' = 'latest-offset'"
COMMITTED = "'properties.isolation.level' = 'read_committed'"


@pytest.fixture(scope="module")
def flink(tmp_path_factory):
    if shutil.which("javac") is None:
        pytest.skip("needs javac, to run Flink SQL (Debian: default-jdk-headless)")
    folder, jars = tmp_path_factory.mktemp("flink"), f"{jars_of('flink')}/*"
    subprocess.run(["javac", "--release", "17", "-cp", jars, "-d", folder, SOURCE], check=True)
    opens = [f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in ("lang", "util")]
    options = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *opens]
    command = [tools.java(21) / "bin" / "java", *options, "-cp", f"{folder}:{jars}", "FlinkSql"]

    async def run(*statements):
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(patient(RUN_S)):
                out, errors = await process.communicate("\n;\n".join(statements).encode())
        finally:
            if process.returncode is None:
                process.kill()
        assert process.returncode == 0, errors.decode()[-4000:]
        return sorted(out.decode().splitlines())

    return run


def add(begin, end):
    """A statement that writes records."""
    return ADD.format(rows=", ".join(f"(CAST({n} AS BIGINT))" for n in range(begin, end)))


async def test_flink_copies_a_topic_exactly_once(start_servers, flink, request):
    gateways = Gateways(start_servers, "a", lease_s=LEASE_S)
    for topic in ("given", "copied"):
        await gateways.make_topic(topic, partitions=2)

    def table(name, topic, *options, columns=COLUMNS):
        return TABLE.format(
            name=name,
            topic=topic,
            columns=columns,
            servers=gateways.servers,
            options=", ".join(options),
        )

    given = table("given", "given", "'sink.delivery-guarantee' = 'at-least-once'")
    source = table(
        "source",
        "given",
        *("'properties.group.id' = 'flink'", "'scan.startup.mode' = 'group-offsets'"),
        *("'properties.auto.offset.reset' = 'earliest'", BOUNDED),
    )
    sink = table("sink", "copied", ONCE)
    copy = "INSERT INTO sink SELECT * FROM source"
    read = table(
        "copied",
        "copied",
        *("'scan.startup.mode' = 'earliest-offset'", BOUNDED, COMMITTED),
    )
    await flink(given, add(1, 51), source, sink, copy)
    # The second job goes on at the offsets that the first has committed.
    found = await flink(
        given,
        add(51, 81),
        source,
        sink,
        copy,
        read,
        "SELECT k, n, txt, DECODE(h['h'], 'UTF-8') FROM copied",
    )
    assert found == sorted(f"+I[k{n}, {n}, grün, {n}]" for n in range(1, 81))
    program_does(
        request.config,
        f"Flink SQL {version_of('flink')}, `connector = kafka`",
        "copies a topic to a topic exactly once, and goes on from the offsets of its group",
    )
