"""Apache Kafka's own command line tools, unchanged, at a real gateway."""

from __future__ import annotations

import re

import kafka_tools
import pytest
from kafka_docs import program_does
from kafka_jars import version_of
from kafka_servers import LEASE_S, Gateways

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(600)]

RECORDS = 60
LINES = [f'k{n}\t{{"n":{n},"text":"grün"}}' for n in range(RECORDS)]


@pytest.fixture
async def tool(start_servers):
    gateways = Gateways(start_servers, "a", lease_s=LEASE_S)
    await gateways.make_topic("like-this", partitions=1)

    async def tool(name, *arguments, **options):
        code, found, errors = await kafka_tools.run(gateways.servers, name, *arguments, **options)
        assert code == 0, found + errors
        return found

    return tool


@pytest.fixture
def does(request):
    def does(name, what):
        program_does(request.config, f"`{name}` {version_of('apache')}", what)

    return does


async def produce(tool, topic, lines):
    given = "".join(f"{line}\n" for line in lines).encode()
    await tool(
        "kafka-console-producer",
        *("--topic", topic, "--reader-property", "parse.key=true"),
        given=given,
    )


async def consume(tool, topic, *arguments, count):
    found = await tool(
        "kafka-console-consumer",
        *("--topic", topic, "--max-messages", count, "--timeout-ms", 60_000),
        *("--formatter-property", "print.key=true", *arguments),
    )
    return [line for line in found.splitlines() if "\t" in line]


async def test_topics_are_made_shown_grown_and_deleted(tool, does):
    await tool("kafka-topics", "--create", "--topic", "t", "--partitions", 2)
    assert {"t", "like-this"} <= set((await tool("kafka-topics", "--list")).split())
    await tool("kafka-topics", "--alter", "--topic", "t", "--partitions", 3)
    shown = await tool("kafka-topics", "--describe", "--topic", "t")
    assert len(re.findall(r"Partition: \d", shown)) == 3
    await tool("kafka-topics", "--delete", "--topic", "t")
    assert "t" not in (await tool("kafka-topics", "--list")).split()
    does("kafka-topics", "makes, lists, describes, grows and deletes topics")
    assert "Produce(0): 0 to" in await tool("kafka-broker-api-versions")
    assert "Cluster ID: " in await tool("kafka-cluster", "cluster-id")
    assert await tool("kafka-transactions", "list")


async def test_configs_of_a_topic_are_shown_set_and_deleted(tool, does):
    topic = ("--entity-type", "topics", "--entity-name", "t")
    compact = ("--config", "cleanup.policy=compact", "--config", "retention.ms=60000")
    await tool("kafka-topics", "--create", "--topic", "t", *compact)

    async def configs():
        shown = await tool("kafka-configs", *topic, "--describe")
        return dict(re.findall(r"^  (\S+?)=(\S+)", shown, re.MULTILINE))

    assert (await configs())["cleanup.policy"] == "compact"
    more = "cleanup.policy=[compact,delete],compression.type=gzip,segment.bytes=2000000"
    await tool("kafka-configs", *topic, "--alter", "--add-config", more)
    found = await configs()
    assert [found[each] for each in ("cleanup.policy", "retention.ms", "compression.type")] == [
        *("compact,delete", "60000", "gzip")
    ]
    deleted = "cleanup.policy,compression.type"
    await tool("kafka-configs", *topic, "--alter", "--delete-config", deleted)
    found = await configs()
    assert [found[each] for each in ("cleanup.policy", "compression.type")] == ["delete", "zstd"]
    assert found["segment.bytes"] == "2000000"
    does("kafka-configs", "shows, sets and deletes configs of topics")


async def test_console_writes_and_reads_and_groups_are_moved(tool, does):
    await tool("kafka-topics", "--create", "--topic", "t", "--partitions", 1)
    await produce(tool, "t", LINES)
    assert await consume(tool, "t", "--from-beginning", "--group", "g", count=40) == LINES[:40]
    assert await consume(tool, "t", "--group", "g", count=20) == LINES[40:]
    does("kafka-console-producer", "writes records with keys")
    offsets = await tool("kafka-get-offsets", "--topic", "t")
    end = int(re.search(r"t:0:(\d+)", offsets)[1])
    does("kafka-get-offsets", "shows first and last offsets")
    assert (await tool("kafka-consumer-groups", "--list")).split() == ["g"]
    shown = await tool("kafka-consumer-groups", "--describe", "--group", "g")
    [row] = [line.split() for line in shown.splitlines() if line.startswith("g ")]
    assert row[1:6] == ["t", "0", str(end), str(end), "0"]
    reset = ["--reset-offsets", "--group", "g", "--topic", "t", "--execute"]
    await tool("kafka-consumer-groups", *reset, "--to-earliest")
    assert await consume(tool, "t", "--group", "g", count=RECORDS) == LINES
    does("kafka-console-consumer", "reads from the beginning, and in a group from where it was")
    await tool("kafka-consumer-groups", "--delete", "--group", "g")
    assert "g" not in (await tool("kafka-consumer-groups", "--list")).split()
    does("kafka-consumer-groups", "lists, describes, moves and deletes groups")


async def test_tools_that_measure_write_and_read(tool, does, tmp_path):
    await tool("kafka-topics", "--create", "--topic", "t", "--partitions", 2)
    (tmp_path / "payloads").write_text('{"n":1}\n{"n":2}\n')
    found = await tool(
        "kafka-producer-perf-test",
        *("--topic", "t", "--num-records", 5000, "--throughput", -1),
        *("--payload-file", tmp_path / "payloads"),
    )
    assert "5000 records sent" in found
    does("kafka-producer-perf-test", "writes records of a file (`--payload-file`)")
    found = await tool("kafka-consumer-perf-test", "--topic", "t", "--num-records", 5000)
    assert ", 5000, " in found
    does("kafka-consumer-perf-test", "reads records")
