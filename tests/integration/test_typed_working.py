"""Orders of typed runs, carried out on journals of a real broker, without a JVM."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from msgspec import structs
from spark_journals import json_lines
from typed_orders import Typed
from typed_world import spec

from gazette_platform import Client, ClientConfig
from gazette_platform.errors import DataError, LakeError
from gazette_platform.lake.spec.typed.columns import TypedColumn
from gazette_platform.lake.spec.types import parse_partition
from gazette_platform.lake.typed.planning.ranges import Task
from gazette_platform.lake.typed.planning.rounds import Order
from gazette_platform.lake.typed.runs.working import LocalWorkers, carry_out, discard
from gazette_platform.lake.typed.tables.quarantine import quarantined_rows
from gazette_platform.message import (
    Flags,
    MessageClock,
    build_uuid,
    new_producer_id,
    read_committed,
)
from gazette_platform.message.arrow import Frames
from gazette_platform.message.content_types import JsonFraming
from gazette_platform.message.uuid import NO_UUID
from gazette_platform.protocol import CompressionCodec

pytestmark = pytest.mark.etcd
OUT, CONT, ACK = Flags


@pytest.fixture(scope="module")
def client(shared):
    with Client(ClientConfig(address=shared.address, file_root=shared.fragments)) as client:
        yield client


@pytest.fixture
def typed(client, shared, names, tmp_path):
    made = Typed(client, shared.fragments, names.prefix, tmp_path)
    yield made
    made.close()


def test_rows_are_of_all_codecs_of_the_live_tail_and_come_once(typed):
    typed.wanted = spec(partitions=(parse_partition("bucket(3, k)"),))
    codecs = [CompressionCodec.NONE, CompressionCodec.GZIP, CompressionCodec.ZSTANDARD]
    names = [typed.journal(f"part-{codec.name.lower()}", codec) for codec in codecs]
    for name in names:
        typed.store(name, typed.messages(*range(50)) + b'{"n": "x"}\n')
        typed.store(name, typed.messages(*range(50, 100)))
        twice = typed.message(100)
        typed.client.append(name, twice + twice + b"no json\n")
    report = typed.run()
    assert report.is_whole
    for name in names:
        rows = typed.rows(name)
        assert [row["n"] for row in rows] == [*range(101)]
        assert [row["k"] for row in rows] == [f"k{n}" for n in range(101)]
        assert len({row["_uuid"] for row in rows}) == 101
        content = bytes(typed.client.read(name, 0).read())
        kept = [json.loads(content[row["_begin"] : row["_end"]])["n"] for row in rows]
        assert kept == [*range(101)]
    assert [raw for raw, _ in typed.set_aside()] == [b'{"n": "x"}\n', b"no json\n"] * 3
    counts = report.counts
    assert (counts.messages, counts.typed, counts.quarantined) == (312, 303, 6)
    assert counts.duplicates == 3
    # Each bucket of each journal has its file, whose rows nothing else has.
    assert 3 * 2 <= report.files <= 3 * 3
    for name in names:
        typed.client.append(name, typed.messages(101))
    again = typed.run()
    assert again.counts.typed == 3
    assert typed.numbers(names[0]) == [*range(102)]
    assert typed.run().run == ""


def test_rows_are_those_that_one_reader_of_committed_messages_has(typed):
    a = typed.journal("a")
    chance, clock = random.Random(5), MessageClock()
    producers = [new_producer_id() for _ in range(4)]

    def content(count):
        lines = []
        while len(lines) < count:
            producer = chance.choice(producers)
            kind = chance.choice(["plain", "plain", "txn", "open", "bad"])
            flags = [OUT] if kind in {"plain", "bad"} else [CONT] * chance.randint(1, 40)
            flags += [ACK] * (kind == "txn")
            for flag in flags:
                uuid = build_uuid(producer, clock.tick(), flag)
                record = {"_meta": {"uuid": str(uuid)}, "n": len(lines), "k": "x" * 400}
                lines.append(json_lines(record | ({"n": "bad"} if kind == "bad" else {})))
            if chance.random() < 0.1:
                lines += lines[-3:]  # an append that was repeated
        return b"".join(lines)

    parts = [content(count) for count in (2500, 100, 4000, 10, 3000)]
    for number, part in enumerate(parts):
        if chance.random() < 0.7:
            typed.store(a, part)
        else:
            typed.client.append(a, part)
        if number in {1, 3}:
            typed.run(task_bytes=chance.choice([1, 1 << 20]))
    while not typed.run(task_bytes=1 << 20).is_whole:
        pass
    framing = Frames(JsonFraming(uuid_field="_meta.uuid"), unreadable=NO_UUID)
    found = typed.client.run(committed(typed.client.asynchronous, a, framing))
    quarantined = quarantined_rows(typed.world.handle("typed.flights_quarantine"))
    begins = [row["_begin"] for row in typed.rows()] + quarantined["_begin"].to_pylist()
    assert len(found) > 5000
    assert len(quarantined) > 100
    assert sorted(begins) == sorted(found)


async def committed(client, journal, framing):
    """Where messages begin that are committed, except ACKs."""
    async with await read_committed(client, journal, 0, framing=framing) as reader:
        return [each.begin async for batch in reader for each in batch if each.uuid.flags != ACK]


def test_tail_is_read_on_to_the_end_of_its_first_message(typed):
    a = typed.journal("a")
    begin = len(typed.message(0))
    typed.store(a, typed.message(0))
    typed.run()
    long = typed.message(0, text="x" * 50_000)
    typed.client.append(a, long + typed.messages(1, 2))
    first = typed.run(task_bytes=1000)
    assert typed.numbers() == [0, 0]
    assert first.state.journals[a].offset == begin + len(long)
    # Of what follows, one task takes whole messages, as many as end within it.
    second = typed.run(task_bytes=len(typed.message(3)) + 10)
    assert typed.numbers() == [0, 0, 1]
    assert second.left_bytes
    assert typed.run().is_whole
    # The rest was not appended: nothing is read, and it is not an error.
    typed.client.append(a, typed.message(3)[:-1])
    assert typed.run().counts.messages == 0
    assert typed.numbers() == [0, 0, 1, 2]
    typed.client.append(a, b"\n")
    typed.run()
    assert typed.numbers() == [0, 0, 1, 2, 3]


def test_store_out_of_reach_is_read_through_brokers(typed, tmp_path):
    a = typed.journal("a")
    typed.store(a, typed.messages(*range(10)))
    job, orders = typed.job()
    elsewhere = ClientConfig(address=job.client.address, file_root=tmp_path)
    done = carry_out(job.__class__(**{**vars(job), "client": elsewhere}), orders[0])
    assert done.typed == 10
    assert done.summary.end == typed.client.write_head(a)


def test_journal_shorter_than_stated_has_no_end(typed):
    a = typed.journal("a")
    typed.client.append(a, typed.messages(1))
    job, [order] = typed.job()
    [extent] = order.task.extents
    longer = Task((replace(extent, end=extent.end + 10, listing=None),))
    with pytest.raises(DataError, match=f"{a}: content ends at offset {extent.end}"):
        carry_out(job, Order(journal=a, task=longer))


def test_orders_are_carried_out_side_by_side_and_one_that_cannot_be_read_is_reported(typed):
    names = [typed.journal(f"part-{part}", CompressionCodec.NONE) for part in range(5)]
    for part, name in enumerate(names):
        typed.store(name, typed.messages(*range(part + 1)))
    job, orders = typed.job()
    [path] = [path for path in (typed.root / names[3]).rglob("*-*-*") if path.is_file()]
    path.write_bytes(b"x" * len(path.read_bytes()))
    done = LocalWorkers(3).carry_out(job, orders)
    assert [one.typed for one in done] == [1, 2, 3, 0, 5]
    assert names[3] in done[3].failure
    assert [one.output is None for one in done] == [False, False, False, True, False]
    for one in done:
        discard(job, one.output)
    assert typed.files() == []


def test_order_that_cannot_be_written_ends_all_and_leaves_no_file(typed):
    region = TypedColumn(name="region", type="string", segment="region")
    typed.wanted = structs.replace(spec(), columns=(*spec().columns, region))
    for part in ("region=eu/0", "region=us/0", "zz"):
        typed.store(typed.journal(part), typed.messages(1))
    job, orders = typed.job()
    with pytest.raises(LakeError, match=r"zz: column region is segment 'region' .* has no value"):
        LocalWorkers(1).carry_out(job, orders)
    assert typed.files() == []
    assert [one.typed for one in LocalWorkers(1).carry_out(job, orders[:2])] == [1, 1]
