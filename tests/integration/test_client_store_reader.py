"""Journals read out of their store alone, which a broker of another cluster fills."""

import asyncio
import contextlib
import os

import pytest

from gazette_platform import Change, Client, ClientConfig, lines, read_store
from gazette_platform.errors import ChecksumMismatch, OffsetJump, ValidationError
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec
from gazette_platform.testing.waiting import eventually, patient, turns

pytestmark = pytest.mark.etcd


@pytest.fixture
def name(names):
    return names.prefix


def url_of(shared):
    return f"file://{shared.fragments}/"


async def create(client, name):
    fragment = FragmentSpec(
        length=1 << 20,
        codec=CompressionCodec.GZIP,
        stores=("file:///",),
        refresh_interval_ns=SECOND_NS,
    )
    await client.apply([Change(JournalSpec(name=name, replication=1, fragment=fragment))])


async def stored(client, name, *contents):
    for content in contents:
        await client.append(name, content)
        await client.flush(f"name={name}")
    return [each.fragment for each in await client.fragments(name) if each.is_persisted]


def listings(reader):
    """Note each listing of the store that a reader makes from now on."""
    found, real = [], reader._list

    async def noted():
        found.append(await real())
        return found[-1]

    reader._list = noted
    return found


async def test_what_is_stored_is_read_and_nothing_else(client, shared, name):
    await create(client, name)
    contents = [b"%d:" % n + os.urandom(100_000).hex().encode() + b"\n" for n in range(6)]
    await stored(client, name, *contents)
    await client.append(name, b"still with the broker")
    expected = b"".join(contents)
    async with read_store(url_of(shared), name) as reader:
        assert await reader.read() == expected
        assert (reader.offset, reader.write_head) == (len(expected), len(expected))
    async with read_store(url_of(shared), name, 100, end_offset=300_000) as reader:
        assert await reader.read() == expected[100:300_000]
    async with read_store(url_of(shared), name) as reader:
        found = [line async for batch in lines(reader) for line in batch]
        assert found == expected.split(b"\n")[:-1]
    async with read_store(url_of(shared), f"{name}/none") as reader:
        assert await reader.read() == b""
    with pytest.raises(ValidationError):
        read_store(url_of(shared), "not a name")
    with pytest.raises(ValidationError, match="scheme"):
        read_store("ftp://bucket/", name)


async def test_name_without_anything_stored_is_reported(shared, caplog):
    """It is empty, as a journal may be; or misspelt, which would go unnoticed."""
    async with read_store(url_of(shared), "no/such") as reader:
        assert await reader.read() == b""
    assert f"no/such has no fragments in {url_of(shared)} (look at its name" in caplog.text


async def test_new_fragments_are_followed(client, shared, name):
    await create(client, name)
    await stored(client, name, b"first\n")
    got = bytearray()
    async with asyncio.timeout(patient(90)), read_store(url_of(shared), name, block=True) as reader:
        got += await anext(reader)
        for content in (b"second\n", b"third\n"):
            await stored(client, name, content)
            got += await anext(reader)
    assert got == b"first\nsecond\nthird\n"


async def test_a_beginning_that_may_be_about_to_be_stored(client, shared, name, caplog):
    """Of two fragments that are stored side by side the second one may arrive first."""
    await create(client, name)
    fragments = await stored(client, name, b"one", b"two")
    first = shared.fragments / fragments[0].content_path
    aside = first.with_name(".aside")
    first.rename(aside)
    for on_jump in ("raise", "continue"):
        async with read_store(url_of(shared), name, on_jump=on_jump) as reader:
            assert await reader.read() == b""
    assert "what follows offset 0 is not stored" in caplog.text
    async with asyncio.timeout(patient(60)), read_store(url_of(shared), name, block=True) as reader:
        seen = listings(reader)
        waiting = asyncio.get_running_loop().create_task(anext(reader))
        await eventually(lambda: len(seen) >= 2)  # with the hole
        await turns(10)
        assert not waiting.done()
        aside.rename(first)
        assert await waiting + await anext(reader) == b"onetwo"


async def test_holes(client, shared, name):
    await create(client, name)
    fragments = await stored(client, name, b"one", b"two", b"three", b"four")
    paths = [shared.fragments / each.content_path for each in fragments]
    paths[0].unlink()
    an_hour_ago = SystemClock().unix_s() - 3600
    os.utime(paths[1], (an_hour_ago, an_hour_ago))
    reader = read_store(url_of(shared), name)
    with pytest.raises(OffsetJump) as jump:
        await anext(reader)
    assert (jump.value.from_offset, jump.value.to_offset) == (0, 3)
    assert await reader.read() == b"twothreefour"
    await reader.aclose()
    aside = paths[2].with_name(".aside")
    paths[2].rename(aside)
    async with read_store(url_of(shared), name, on_jump="continue") as reader:
        assert await reader.read() == b"two"  # what follows may be about to be stored
    async with (
        asyncio.timeout(patient(60)),
        read_store(url_of(shared), name, 3, block=True) as reader,
    ):
        assert await anext(reader) == b"two"
        seen = listings(reader)
        waiting = asyncio.get_running_loop().create_task(anext(reader))
        await eventually(lambda: seen)  # with the hole
        await turns(10)
        assert not waiting.done()
        aside.rename(paths[2])
        assert await waiting + await anext(reader) == b"threefour"
    paths[2].unlink()
    os.utime(paths[3], (1, 1))
    async with read_store(url_of(shared), name, on_jump="continue") as reader:
        assert await reader.read() == b"twofour"


async def test_damage_is_reported(client, shared, name):
    await create(client, name)
    fragments = await stored(client, name, b"one", b"two")
    path = shared.fragments / fragments[1].content_path
    other = shared.fragments / fragments[0].content_path
    path.chmod(0o640)
    path.write_bytes(other.read_bytes())
    with pytest.raises(ChecksumMismatch, match=fragments[1].content_name):
        async with read_store(url_of(shared), name) as reader:
            await reader.read()


def test_programs_without_asyncio_read_stores_too(shared, name):
    config = ClientConfig(address=shared.address)
    with Client(config) as client:
        client.run(create(client.asynchronous, name))
        client.run(stored(client.asynchronous, name, b"a\nb\n", b"c\n"))
    nowhere = ClientConfig(address="http://127.0.0.1:1")
    with Client(nowhere) as client, client.read_store(url_of(shared), name) as reader:
        assert [line for batch in reader.lines() for line in batch] == [b"a", b"b", b"c"]


async def test_a_reader_whose_callers_are_less_patient_than_its_pauses_lists_again(
    client, shared, name
):
    await create(client, name)
    await stored(client, name, b"one")
    async with read_store(url_of(shared), name, block=True) as reader:
        assert await anext(reader) == b"one"
        await stored(client, name, b"two")

        async def look():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    return await anext(reader)

        async with asyncio.timeout(patient(60)):
            while (piece := await look()) is None:
                pass
        assert piece == b"two"
