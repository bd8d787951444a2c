import asyncio
import gzip
import hashlib
import io
from contextlib import asynccontextmanager

import grpc
import pytest

from gazette_platform.client import AsyncClient, CallFailed, Client, ClientConfig
from gazette_platform.errors import (
    ChecksumMismatch,
    DataError,
    JournalNotFound,
    OffsetJump,
    Suspended,
    ValidationError,
)
from gazette_platform.protocol import CompressionCodec, Fragment
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.testing.fake_broker import FakeBroker, Fault


@asynccontextmanager
async def connected(content=b"", **config):
    async with FakeBroker() as broker:
        broker.journal("a/journal", content)
        async with AsyncClient(ClientConfig(address=broker.address, **config)) as client:
            yield broker, client


async def test_read_ends_at_the_write_head():
    content = bytes(range(256)) * 1000
    async with connected(content) as (_, client):
        async with client.read("a/journal", 10) as reader:
            assert b"".join([bytes(piece) async for piece in reader]) == content[10:]
        assert reader.offset == reader.write_head == len(content)
        assert reader.fragment is not None


async def test_read_ends_at_end_offset():
    async with connected(b"0123456789") as (_, client):
        assert await client.read("a/journal", 2, end_offset=5).read() == b"234"
        assert await client.read("a/journal", 2, end_offset=5, block=True).read() == b"234"


async def test_read_as_file_returns_what_there_is():
    async with connected(b"0123456789") as (_, client):
        reader = client.read("a/journal")
        assert await reader.read(4) == b"0123"
        assert reader.buffered_bytes == 6
        assert await reader.read(100) == b"456789"
        assert await reader.read(1) == b""


async def test_tail_waits_for_content_behind_the_head():
    async with connected(b"old") as (broker, client):
        reader = client.tail("a/journal")
        first = asyncio.get_running_loop().create_task(anext(reader))
        await asyncio.sleep(0.02)
        assert not first.done()
        await broker.extend("a/journal", b"new")
        assert bytes(await first) == b"new"
        assert reader.offset == 6
        await reader.aclose()


async def test_broken_streams_are_resumed_where_they_stopped():
    async with connected(b"one") as (broker, client):
        reader = client.read("a/journal", block=True)
        assert bytes(await anext(reader)) == b"one"
        broker.fail(
            "Read",
            Fault(code=grpc.StatusCode.UNAVAILABLE),
            Fault(status=pb.INSUFFICIENT_JOURNAL_BROKERS),
            Fault(status=pb.NOT_JOURNAL_BROKER),
        )
        reader._drop()
        await broker.extend("a/journal", b"two")
        assert bytes(await anext(reader)) == b"two"
        assert broker.calls["Read"] == 5
        await reader.aclose()


async def test_cancelled_wait_loses_nothing():
    async with connected() as (broker, client):
        reader = client.read("a/journal", block=True)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(reader), 0.02)
        await broker.extend("a/journal", b"later")
        assert bytes(await anext(reader)) == b"later"
        await reader.aclose()


async def test_closing_ends_a_waiting_read():
    async with connected() as (_, client):
        reader = client.read("a/journal", block=True)
        waiting = asyncio.get_running_loop().create_task(reader._next())
        await asyncio.sleep(0.02)
        await reader.aclose()
        assert await waiting is None


async def test_offset_jump_is_raised_once_and_reading_goes_on():
    async with connected(b"tail") as (broker, client):
        broker.journals["a/journal"].begin = 100
        reader = client.read("a/journal", 7)
        with pytest.raises(OffsetJump) as caught:
            await anext(reader)
        assert (caught.value.from_offset, caught.value.to_offset) == (7, 100)
        assert await reader.read() == b"tail"
        assert await client.read("a/journal", 7, on_jump="continue").read() == b"tail"


async def test_read_from_the_head_is_no_jump():
    async with connected(b"tail") as (broker, client):
        broker.journals["a/journal"].begin = 100
        reader = client.read("a/journal", -1)
        assert await reader.read() == b""
        assert reader.offset == 104
        assert await client.write_head("a/journal") == 104


async def test_metadata_only_reads_no_content():
    async with connected(b"0123456789") as (_, client):
        reader = client.read("a/journal", 3, metadata_only=True)
        assert await reader.read() == b""
        assert (reader.offset, reader.write_head) == (3, 10)
        assert reader.fragment is not None
        assert reader.fragment.end == 10


async def test_read_surfaces_what_will_not_pass():
    async with connected(b"x") as (broker, client):
        with pytest.raises(JournalNotFound):
            await client.read("no/journal").read()
        broker.fail("Read", Fault(status=pb.SUSPENDED))
        with pytest.raises(Suspended):
            await client.read("a/journal").read()
        broker.fail("Read", Fault(code=grpc.StatusCode.UNAUTHENTICATED, details="no token"))
        with pytest.raises(CallFailed, match=r"no token \(check the auth token or keys\)"):
            await client.read("a/journal").read()
        with pytest.raises(ValidationError, match="end_offset 3 is before offset 5"):
            client.read("a/journal", 5, end_offset=3)


def stored(broker, tmp_path, content, *, codec=CompressionCodec.GZIP, sum_of=None, end=None):
    """Point reads of the journal to a fragment in a file."""
    digest = hashlib.sha1(content if sum_of is None else sum_of).digest()
    journal = broker.journals["a/journal"]
    fragment = Fragment(
        "a/journal", 0, end or len(content), digest, codec, "file:///", 1000, "date=1"
    )
    file = tmp_path / fragment.content_path
    file.parent.mkdir(parents=True)
    if codec is CompressionCodec.GZIP:
        half = len(content) // 2
        file.write_bytes(gzip.compress(content[:half]) + gzip.compress(content[half:]))
    else:
        file.write_bytes(content)
    journal.fragment, journal.fragment_url = fragment, f"file:///{fragment.content_path}"
    journal.content = bytearray(b"?" * fragment.content_length + b"live")
    return file


@pytest.mark.parametrize("codec", [CompressionCodec.NONE, CompressionCodec.GZIP])
async def test_direct_read_fetches_history_and_tails_at_the_broker(tmp_path, codec):
    content = b"history " * 1000
    async with connected(file_root=tmp_path) as (broker, client):
        stored(broker, tmp_path, content, codec=codec)
        assert await client.read("a/journal", direct=True).read() == content + b"live"
        assert await client.read("a/journal", 7995, direct=True).read() == content[7995:] + b"live"
        part = await client.read("a/journal", 10, end_offset=20, direct=True).read()
        assert part == content[10:20]
        assert await client.read("a/journal").read() == b"?" * 8000 + b"live"


async def test_direct_read_checks_digest_and_length(tmp_path):
    async with connected(file_root=tmp_path) as (broker, client):
        stored(broker, tmp_path / "sum", b"history", sum_of=b"other")
    async with connected(file_root=tmp_path / "sum") as (broker, client):
        stored(broker, tmp_path / "sum" / "again", b"history", sum_of=b"other")
        with pytest.raises(
            ChecksumMismatch, match="expected d0941e68da8f38151ff86a61fc59f7c5cf9fc"
        ):
            await client.read("a/journal", direct=True).read()
    for name, end, text in (("long", 3, "longer than its name"), ("short", 9, "unexpected EOF")):
        async with connected(file_root=tmp_path / name) as (broker, client):
            stored(broker, tmp_path / name, b"history", end=end)
            with pytest.raises(DataError, match=text):
                await client.read("a/journal", direct=True).read()


async def test_direct_read_falls_back_to_brokers(tmp_path):
    async with connected(file_root=tmp_path) as (broker, client):
        stored(broker, tmp_path, b"history").unlink()
        assert await client.read("a/journal", direct=True).read() == b"???????live"


async def test_synchronous_reader_is_a_file():
    async with FakeBroker() as broker:
        broker.journal("a/journal", b"one\ntwo\nthree\n")

        def run():
            with Client(ClientConfig(address=broker.address)) as client:
                with client.read("a/journal") as reader:
                    assert io.BufferedReader(reader).readlines() == [b"one\n", b"two\n", b"three\n"]
                with client.read("a/journal", 4) as reader:
                    assert reader.read(2) == b"tw"
                    assert reader.offset == 6
                    assert b"".join(reader.pieces()) == b"o\nthree\n"
                assert list(client.read("a/journal").lines()) == [[b"one", b"two", b"three"]]
                with pytest.raises(ValueError, match="closed file"):
                    reader.read(1)

        await asyncio.to_thread(run)


async def test_synchronous_tail_is_ended_by_close():
    async with FakeBroker() as broker:
        broker.journal("a/journal", b"{}\n")

        with Client(ClientConfig(address=broker.address)) as client:
            reader = client.tail("a/journal", 0)
            batches = reader.json_lines()
            assert await asyncio.to_thread(next, batches) == [{}]
            waiting = asyncio.get_running_loop().create_task(asyncio.to_thread(next, batches, None))
            await asyncio.sleep(0.02)
            reader.close()
            assert await waiting is None
