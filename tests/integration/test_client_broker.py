"""The client against a real broker process and a real etcd."""

import asyncio
import hashlib
import random
import threading

import pytest
from journal_specs import journal_spec

from gazette_platform.client import AsyncClient, Change, Client, ClientConfig, json_lines, lines
from gazette_platform.errors import (
    DataError,
    EtcdTransactionFailed,
    JournalNotFound,
    NotAllowed,
    RegisterMismatch,
    WrongAppendOffset,
)
from gazette_platform.protocol import CompressionCodec, JournalFlag, LabelSelector, LabelSet
from gazette_platform.testing.waiting import eventually, patient

pytestmark = pytest.mark.etcd


def spec(name, *, codec=CompressionCodec.GZIP, length=1 << 20, **fields):
    return journal_spec(name, length=length, codec=codec, labels={"env": "test"}, **fields)


@pytest.fixture
def name(names):
    """A journal of this test's own."""
    return names.prefix


async def persisted(client, journal, count):
    """Wait until `count` fragments of a journal are in the store."""

    async def is_so():
        return sum(each.is_persisted for each in await client.fragments(journal)) >= count

    await eventually(is_so, timeout_s=30)


async def test_journals_are_applied_listed_watched_and_deleted(client, name):
    async with asyncio.timeout(patient(20)):
        watch = client.watch(f"name:prefix={name}")
        assert await anext(watch) == []
        revision = await client.apply([Change(spec(name)), Change(spec(f"{name}-two"))])
        assert [journal.name for journal in await anext(watch)] == [name, f"{name}-two"]
        found = await client.get(name)
        assert found.spec == spec(name)
        assert found.mod_revision == revision
        with pytest.raises(EtcdTransactionFailed):
            await client.apply([Change(spec(name))])
        await client.apply([Change(None, name, found.mod_revision)])
        assert [journal.name for journal in await anext(watch)] == [f"{name}-two"]
        await watch.aclose()
        with pytest.raises(JournalNotFound):
            await client.append(name, b"x")


async def test_appends_and_reads_of_any_size(client, name):
    await client.apply([Change(spec(name, length=1 << 30))])
    rng = random.Random(7)
    expected = bytearray()
    for size in (1, 100, 1 << 16, (1 << 19) - 1, 1 << 19, (1 << 19) + 1, 3_000_000, 6_000_000):
        content = rng.randbytes(size)
        result = await client.append(name, content)
        assert (result.begin, result.end) == (len(expected), len(expected) + size)
        assert result.sha1 == hashlib.sha1(content).digest()
        expected += content
    assert await client.read(name).read() == expected
    assert await client.read(name, 100, end_offset=70_000).read() == expected[100:70_000]
    assert await client.write_head(name) == len(expected)


@pytest.mark.parametrize("with_sum", [True, False])
async def test_pieces_are_appended_as_one_with_or_without_their_sum(client, name, with_sum):
    await client.apply([Change(spec(name, length=1 << 30))])
    rng = random.Random(7)
    pieces = [rng.randbytes(size) for size in (300_000, 1, 0, 2_000_000, 1 << 19)]
    content = b"".join(pieces)
    # So that the client knows the primary: a broker that passes an append on asks for its sum.
    begin = (await client.append(name, b"first")).end
    result = await client.append(name, pieces, with_sum=with_sum)
    assert (result.begin, result.end) == (begin, begin + len(content))
    assert result.sha1 == (hashlib.sha1(content).digest() if with_sum else bytes(20))
    assert await client.read(name, begin).read() == content


async def test_brokers_of_this_machine_are_asked_without_a_proxy(shared, name, monkeypatch):
    """Laptops in companies have one for all else, which knows no servers of the laptop."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    for variable in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    for host in ("127.0.0.1", "localhost"):
        address = shared.address.replace("127.0.0.1", host)
        async with (
            asyncio.timeout(patient(20)),
            AsyncClient(ClientConfig(address=address)) as client,
        ):
            await client.apply([Change(spec(f"{name}/{host}"))])
            assert (await client.append(f"{name}/{host}", b"here")).end == 4


async def test_conditions_of_appends(client, name):
    await client.apply([Change(spec(name))])
    await client.append(name, b"x", union_registers=LabelSet.of(author="me"))
    with pytest.raises(RegisterMismatch, match="registers are author=me"):
        await client.append(name, b"y", check_registers=LabelSelector.parse("author=you"))
    with pytest.raises(WrongAppendOffset):
        await client.append(name, b"y", offset=99)
    result = await client.append(
        name, b"y", offset=1, check_registers=LabelSelector.parse("author=me")
    )
    assert result.registers == LabelSet.of(author="me")
    await client.apply([Change(spec(f"{name}-read", flags=JournalFlag.O_RDONLY))])
    with pytest.raises(NotAllowed):
        await client.append(f"{name}-read", b"x")


async def test_tail_receives_what_a_writer_appends(client, name):
    await client.apply([Change(spec(name))])
    head = (await client.append(name, b"{}\n")).end
    reader = client.tail(name, head)
    values = []

    async def tail():
        async for batch in json_lines(reader):
            values.extend(batch)
            if len(values) == 20_000:
                return

    async with asyncio.timeout(patient(30)), asyncio.TaskGroup() as group:
        group.create_task(tail())
        async with client.append_writer(name) as writer:
            for n in range(20_000):
                _ = await writer.write(b"%d\n" % n)
    assert values == list(range(20_000))
    await reader.aclose()


async def test_direct_reads_fetch_history_from_the_store(client, name, shared):
    await client.apply([Change(spec(name, length=1 << 20))])
    content = b"".join(b"%09d\n" % n for n in range(400_000))
    for begin in range(0, len(content), 500_000):
        await client.append(name, content[begin : begin + 500_000])
    await persisted(client, name, 3)
    reader = client.read(name, 10, direct=True)
    batches = [batch async for batch in lines(reader)]
    assert [line for batch in batches for line in batch] == content[10:].split(b"\n")[:-1]
    # What proves that it was direct: damage in the store shows.
    stored = shared.fragments / (await client.fragments(name))[0].fragment.content_path
    stored.write_bytes(stored.read_bytes()[:-20])
    with pytest.raises(DataError, match=name):
        await client.read(name, direct=True).read()


async def test_fragments_are_paged(client, name):
    await client.apply([Change(spec(name, length=1 << 10))])
    for _ in range(8):
        await client.append(name, b"x" * 2000)
    fragments = await client.fragments(name, page_limit=2)
    assert [f.fragment.begin for f in fragments] == sorted(f.fragment.begin for f in fragments)
    assert fragments[0].fragment.begin == 0
    assert fragments[-1].fragment.end == 16_000
    page = await client.fragment_page(name, page_limit=1)
    assert len(page.fragments) == 1
    assert page.next_page_token == page.fragments[0].fragment.end


async def test_upkeep_calls(client, name):
    await client.apply([Change(spec(name))])
    await client.append(name, b"x" * 10)
    assert await client.reset_head(name) == 10
    assert (await client.store_health("file:///", check_delete_prefix="probe/")).is_healthy
    assert not (await client.store_health("s3://bucket/")).is_healthy


def test_synchronous_client_of_many_threads(shared, name):
    with Client(ClientConfig(address=shared.address)) as client:
        client.apply([Change(spec(name))])

        def produce(producer):
            for n in range(50):
                client.append(name, b"%d %d\n" % (producer, n))

        threads = [threading.Thread(target=produce, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with client.read(name) as reader:
            found = [line for batch in reader.lines() for line in batch]
        assert sorted(found) == sorted(b"%d %d" % (p, n) for p in range(4) for n in range(50))
