"""Many journals at once, through a real broker: a reader for each, merged by time, and into Arrow."""

import asyncio
import json

import pytest
from journal_specs import journal_spec

from gazette_platform import (
    ArrowReader,
    Change,
    Client,
    ClientConfig,
    Flags,
    JsonFraming,
    MessageClock,
    build_uuid,
    new_producer_id,
    read_arrow,
    read_journals,
    read_merged,
)
from gazette_platform.errors import ValidationError
from gazette_platform.protocol import CompressionCodec
from gazette_platform.testing.waiting import patient, turns

pytestmark = pytest.mark.etcd
OUT, CONT, ACK = Flags.OUTSIDE_TXN, Flags.CONTINUE_TXN, Flags.ACK_TXN
FRAMING = JsonFraming()


@pytest.fixture
def prefix(names):
    return names.prefix


def spec(name, content_type="application/x-ndjson"):
    return journal_spec(name, codec=CompressionCodec.GZIP, labels={"content-type": content_type})


def framed(producer, tick, flags=OUT, **fields):
    return FRAMING.encode(FRAMING.stamp(fields, build_uuid(producer, tick, flags)))


async def create(client, prefix, count=3):
    names = [f"{prefix}/part={index}" for index in range(count)]
    await client.apply([Change(spec(name)) for name in names])
    return names


async def test_each_journal_has_a_reader_that_ends_at_its_head(client, prefix):
    names = await create(client, prefix)
    for index, name in enumerate(names[:2]):
        for n in range(100):
            await client.append(name, b'{"n":%d,"part":%d}\n' % (n, index))
    readers = await read_journals(client, f"name:prefix={prefix}/")
    assert list(readers) == names
    await client.append(names[0], b'{"n":"after the head"}\n')
    got = {
        name: [envelope.message["n"] async for batch in reader for envelope in batch]
        for name, reader in readers.items()
    }
    assert got == {names[0]: [*range(100)], names[1]: [*range(100)], names[2]: []}
    readers = await read_journals(
        client,
        f"name:prefix={prefix}/",
        offsets={name: await client.write_head(name) for name in names[:2]},
    )
    assert [batch for reader in readers.values() async for batch in reader] == []
    with pytest.raises(ValidationError, match=r"no journal matches .*write it as name="):
        await read_journals(client, "name:prefix=nothing/")
    with pytest.raises(ValidationError, match="until"):
        await read_journals(client, f"name:prefix={prefix}/", until="now")


async def test_journals_merge_by_the_times_of_their_messages(client, prefix):
    names = await create(client, prefix)
    clock, producers = MessageClock(), [new_producer_id() for _ in names]
    order = []
    for n in range(300):
        which = (n * n) % 3 if n % 7 else n % 2
        order.append(n)
        await client.append(names[which], framed(producers[which], clock.tick(), n=n))
        if n == 200:
            await client.append(names[which], b'{"n":"no uuid"}\n')
            order.append("no uuid")
    async with await read_merged(client, f"name:prefix={prefix}/", direct=True) as merged:
        got = [envelope async for batch in merged for envelope in batch]
    assert [envelope.message["n"] for envelope in got] == order
    for name in names:
        begins = [envelope.begin for envelope in got if envelope.journal == name]
        assert begins == sorted(begins)


async def test_committed_reads_of_many_journals_leave_out_what_is_not(client, prefix):
    names = await create(client, prefix, 2)
    producer, clock = new_producer_id(), MessageClock()
    for name in names:
        await client.append(name, framed(producer, clock.tick(), CONT, n=1))
    ticks = [clock.tick() for _ in names]
    await client.append(names[0], framed(producer, ticks[0], ACK))
    async with await read_merged(client, f"name:prefix={prefix}/", committed=True) as merged:
        got = [envelope async for batch in merged for envelope in batch]
    assert [(e.journal, e.message.get("n")) for e in got] == [(names[0], 1), (names[0], None)]


def test_a_prefix_is_read_into_arrow(shared, prefix):
    config = ClientConfig(address=shared.address, file_root=shared.fragments)
    with Client(config) as client:
        names = client.run(create(client.asynchronous, prefix))
        for part, name in enumerate(names):
            rows = [json.dumps({"part": part, "n": n, "text": "é" * n}) for n in range(500)]
            client.append(name, "\n".join(rows).encode() + b"\n")
            if part == 1:
                client.flush(f"name={name}")
                client.append(name, b'{"part":1,"n":500,"new":true}\n')
        reader = read_arrow(client, f"name:prefix={prefix}/")
        table = reader.read_all()
        assert table.num_rows == 1501
        assert table.column("n").to_pylist() == [*range(500), *range(501), *range(500)]
        assert reader.offsets == {name: client.write_head(name) for name in names}
        client.append(names[2], b'{"part":2,"n":-1}\n')
        with read_arrow(client, f"name:prefix={prefix}/", offsets=reader.offsets) as again:
            [found] = again.batches()
        assert found.journal == names[2]
        assert found.begin == reader.offsets[names[2]]
        assert found.batch.to_pylist() == [{"part": 2, "n": -1}]


async def test_arrow_waits_for_more_of_one_journal(client, prefix):
    [name] = await create(client, prefix, 1)
    reader = ArrowReader(client, f"name={name}", until="never")
    async with asyncio.timeout(patient(60)), reader, asyncio.TaskGroup() as group:
        first = group.create_task(anext(reader))
        await turns()
        await client.append(name, b'{"n":1}\n{"n":2}\n')
        assert (await first).batch.to_pylist() == [{"n": 1}, {"n": 2}]


def test_prefix_is_read_as_one_arrow_table(shared, prefix):
    with Client(ClientConfig(address=shared.address)) as client:
        names = (f"{prefix}/region=eu", f"{prefix}/region=us")
        client.apply([Change(spec(name)) for name in names])
        for name in names:
            client.append(name, b'{"order":1}\n{"order":2}\n')
        table = read_arrow(client, f"name:prefix={prefix}/").read_all()
    assert table.column("order").to_pylist() == [1, 2, 1, 2]


async def publish(client, name, messages, framing=FRAMING):
    """Append messages (producer, tick, flags, fields) with one call."""
    frames = [
        framing.encode(framing.stamp(fields, build_uuid(producer, tick, flags)))
        for producer, tick, flags, fields in messages
    ]
    await client.append(name, b"".join(frames))


async def test_committed_messages_as_arrow_are_each_there_once(client, prefix):
    name, other = await create(client, prefix, count=2)
    a, b = new_producer_id(), new_producer_id()
    await publish(
        client,
        name,
        [
            (a, 10, OUT, {"n": 1}),
            (a, 20, CONT, {"n": 2}),
            (a, 20, CONT, {"n": 2}),  # appended twice
            (b, 15, OUT, {"n": 3, "only": "b"}),
            (a, 30, CONT, {"n": 4}),
            (a, 40, ACK, {}),
            (b, 16, CONT, {"n": 5}),  # taken back
            (b, 15, ACK, {}),
            (b, 20, CONT, {"n": 6}),  # open
        ],
    )
    read = ArrowReader(client, f"name:prefix={prefix}/", committed=True)
    table = await read.read_all()
    assert table.column_names == ["n", "UUID", "only"]
    assert table.column("n").to_pylist() == [1, 3, 2, 4]
    assert table.column("only").to_pylist() == [None, "b", None, None]
    assert (read.offsets, list(read.checkpoints)) == ({}, [name, other])
    every = await ArrowReader(client, f"name:prefix={prefix}/").read_all()
    assert every.num_rows == 9
    await publish(client, name, [(b, 30, ACK, {}), (a, 50, OUT, {"n": 7})])
    again = ArrowReader(
        client, f"name:prefix={prefix}/", committed=True, checkpoints=read.checkpoints
    )
    assert (await again.read_all()).column("n").to_pylist() == [6, 7]
    last = ArrowReader(
        client, f"name:prefix={prefix}/", committed=True, checkpoints=again.checkpoints
    )
    assert (await last.read_all()).num_rows == 0
    with pytest.raises(ValidationError, match="checkpoints: are of reads of what is committed"):
        ArrowReader(client, f"name:prefix={prefix}/", checkpoints=read.checkpoints)


async def test_a_committed_read_into_arrow_waits_for_more(client, prefix):
    (name,) = await create(client, prefix, count=1)
    producer = new_producer_id()
    reader = ArrowReader(client, f"name={name}", until="never", committed=True)
    async with asyncio.timeout(patient(60)), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(anext(reader))
        await publish(client, name, [(producer, 10, CONT, {"n": 1})])
        await publish(client, name, [(producer, 20, CONT, {"n": 2})])
        await publish(client, name, [(producer, 30, ACK, {})])
    found = waiting.result()
    assert found.batch.column("n").to_pylist() == [1, 2]
    await reader.aclose()
