"""`gazctl kafka` at a real gateway: groups with their lag, transactions, and what the doctor finds."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from kafka_wire import WireClient, batch_of, gateway_of
from kio.schema.errors import ErrorCode

from gazette_platform.cli.gazctl import main
from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.kafka.inspection import Caller, Cluster, Part
from gazette_platform.protocol import JournalChange, LabelSet
from gazette_platform.testing.waiting import eventually

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

TOPIC = "flights"


@pytest.fixture
async def broker(local_brokers):
    return await local_brokers.start()


@pytest.fixture
async def gateway(broker):
    async with gateway_of(broker, auto_create=True, partitions=2) as gateway:
        async with WireClient.to(gateway.port) as wire:
            topic = wire.entity("metadata", 7, "MetadataRequestTopic", name=TOPIC)
            await wire.call("metadata", 7, topics=(topic,), allow_auto_topic_creation=True)
            produced = await wire.produce(TOPIC, batch_of(b'{"a":1}', b'{"a":2}'))
            assert produced.error_code is ErrorCode.none
        yield gateway


@pytest.fixture
def gazctl(gateway, capsys):
    async def run(*arguments):
        command = ["kafka", *arguments, "--kafka.address", f"127.0.0.1:{gateway.port}"]
        status = await asyncio.to_thread(main, command)
        return status, *capsys.readouterr()

    return run


async def commit(gateway, offset):
    """Commit an offset in the name of a group without members."""
    part = Part(
        "OffsetCommitRequestPartition",
        partition_index=0,
        committed_offset=offset,
        committed_metadata=None,
    )
    async with Caller("127.0.0.1", gateway.port) as caller:
        answer = await caller.ask(
            "offset_commit",
            7,
            group_id="billing",
            generation_id_or_member_epoch=-1,
            generation_id=-1,
            member_id="",
            topics=(Part("OffsetCommitRequestTopic", name=TOPIC, partitions=(part,)),),
        )
    assert answer.topics[0].partitions[0].error_code is ErrorCode.none


async def test_groups_show_offsets_and_lag(gateway, gazctl):
    assert await gazctl("groups") == (0, "Group  State  Type  Node\n", "")
    await commit(gateway, 40)
    status, out, _ = await gazctl("groups", "billing", "-o", "json")
    found = json.loads(out)
    assert (status, found["state"], found["members"]) == (0, "Empty", 0)
    (part,) = found["partitions"]
    assert (part["topic"], part["partition"], part["committed"]) == (TOPIC, 0, 40)
    assert part["lag"] == part["end"] - 40 > 0
    status, out, _ = await gazctl("groups")
    assert (status, out.splitlines()[1].split()[:2]) == (0, ["billing", "Empty"])
    status, _, err = await gazctl("groups", "none")
    assert (status, "there is no group none" in err) == (1, True)


async def test_doctor_finds_what_is_wrong(broker, gateway, gazctl):
    status, out, _ = await gazctl("doctor")
    assert status == 0, out
    assert "topics: 1, partitions: 2" in out
    assert await gazctl("transactions", "-o", "json") == (0, "", "")
    async with AsyncClient(ClientConfig(address=broker.endpoint)) as client:
        (listing, *_) = await client.list("kafka.partition=0")
        await client.apply([JournalChange(None, listing.name, listing.mod_revision)])
    async with gateway_of(broker, advertise="127.0.0.1:1"):

        async def errors():
            """Those that it finds once the gateway has listed the topics again."""
            status, out, _ = await gazctl("doctor", "-o", "json")
            assert status == 1
            found = [json.loads(line) for line in out.splitlines()]
            texts = [one["text"] for one in found if one["level"] == "error"]
            return texts if len(texts) > 1 else None

        unreachable, gap = await eventually(errors, poll_s=0.2)
    assert "node 2 cannot be reached" in unreachable
    assert "clients expect all from 0 on" in gap


async def test_journals_become_a_topic(broker, gateway, capsys):
    async def topics(*arguments):
        command = ["kafka", "topics", *arguments, "--broker.address", broker.endpoint]
        status = await asyncio.to_thread(main, command)
        return status, *capsys.readouterr()

    lines = b'{"n":1}\n{"n":2}\n'
    async with AsyncClient(ClientConfig(address=broker.endpoint)) as client:
        (listing, *_) = await client.list(f"kafka.topic={TOPIC}")
        names = ["old/b", "old/a", "old/c"]
        labels = LabelSet.of({"content-type": "application/x-ndjson"})
        specs = [replace(listing.spec, name=name, labels=labels) for name in names]
        await client.apply([JournalChange(spec) for spec in specs])
        await client.append("old/b", lines)
        add = ("add", "old/a", "old/b", "--topic", "old", "--form", "plain")
        assert (await topics(*add, "--dry-run"))[0] == 0
        assert await client.list("kafka.topic=old") == []
        status, out, _ = await topics(*add)
        assert (status, out) == (0, "old/a: partition 0 of old\nold/b: partition 1 of old\n")
        # Later ones get the next numbers; those that are partitions keep theirs.
        status, out, _ = await topics("add", "old/", "--topic", "old", "--form", "plain")
        assert (status, out) == (0, "old/c: partition 2 of old\n")
        status, _, err = await topics("add", "old/a", "--topic", "new")
        assert (status, "old/a is a partition of topic old already" in err) == (1, True)
    status, out, _ = await topics("list", "-o", "json")
    assert status == 0
    listed = {one["topic"]: one for one in map(json.loads, out.splitlines())}
    expected = {"topic": "old", "partitions": 3, "bytes": len(lines), "form": "plain"}
    assert listed["old"] == expected
    assert listed[TOPIC]["partitions"] == 2
    status, out, _ = await topics("describe", "old")
    row = out.splitlines()[2].split()
    assert (status, row[:2], row[3:]) == (
        0,
        ["1", "old/b"],
        ["0", str(len(lines)), str(len(lines)), "plain"],
    )
    status, _, err = await topics("describe", "none")
    assert (status, "there is no topic none" in err) == (1, True)

    async def ends():
        async with Cluster("127.0.0.1", gateway.port) as cluster:
            return (await cluster.ends([("old", 1)])).get(("old", 1))

    assert await eventually(ends, poll_s=0.2) == len(lines)


async def test_configs_of_a_topic_are_shown_and_changed(broker, gateway, capsys):
    async def configs(*arguments):
        command = ["kafka", "topics", "configs", *arguments, "--broker.address", broker.endpoint]
        status = await asyncio.to_thread(main, [*command, "-o", "json"])
        out, err = capsys.readouterr()
        return json.loads(out) if status == 0 else err

    before = await configs(TOPIC)
    assert (before["cleanup.policy"], before["retention.ms"]) == ("delete", "-1")
    change = (TOPIC, "--set", "retention.ms=60000", "--set", "compression.type=gzip")
    after = before | {"retention.ms": "60000", "compression.type": "gzip"}
    assert await configs(*change, "--dry-run") == after
    assert await configs(TOPIC) == before
    assert await configs(*change) == after
    async with AsyncClient(ClientConfig(address=broker.endpoint)) as client:
        specs = [each.spec.fragment for each in await client.list(f"kafka.topic={TOPIC}")]
    assert [each.retention_ns for each in specs] == [60 * 10**9] * 2
    assert await configs(TOPIC, "--reset", "retention.ms", "--reset", "compression.type") == before
    for wrong, why in (
        (("none",), "there is no topic none"),
        ((TOPIC, "--set", "retention.ms"), "--set: expected NAME=VALUE, got 'retention.ms'"),
        ((TOPIC, "--set", "flush.ms=1"), "flush.ms of a topic cannot be changed here"),
    ):
        assert why in await configs(*wrong)
