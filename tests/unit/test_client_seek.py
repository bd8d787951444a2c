"""Readers that go to other offsets."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from gazette_platform.client import AsyncClient, Client, ClientConfig
from gazette_platform.errors import ValidationError
from tests.benches.fake_broker import FakeBroker


@asynccontextmanager
async def connected(content):
    async with FakeBroker() as broker:
        broker.journal("a/journal", content)
        async with AsyncClient(ClientConfig(address=broker.address)) as client:
            yield broker, client


async def test_re4_rr4_a_seek_within_what_is_buffered_asks_no_broker():
    async with connected(b"0123456789") as (broker, client):
        reader = client.read("a/journal", 1)
        assert await reader.read(2) == b"12"
        calls = broker.calls["Read"]
        reader.seek(6)
        assert (await reader.read(1), reader.offset - reader.buffered_bytes) == (b"6", 7)
        reader.seek(7)
        assert await reader.read(100) == b"789"
        assert broker.calls["Read"] == calls


async def test_re4_rr3_a_seek_beyond_it_begins_the_read_again():
    async with connected(b"0123456789") as (_, client):
        reader = client.read("a/journal", 3, end_offset=8)
        assert await reader.read() == b"34567"
        reader.seek(1)
        assert await reader.read(3) == b"123"
        reader.seek(0)
        assert (await reader.read(), reader.offset) == (b"01234567", 8)
        reader.seek(8)
        assert await reader.read() == b""
        for offset in (-1, 9):
            with pytest.raises(ValidationError, match=r"must be between 0 and end_offset 8"):
                reader.seek(offset)
        await reader.aclose()
        reader.seek(0)
        assert await reader.read() == b""


async def test_rr3_files_go_to_other_offsets():
    async with FakeBroker() as broker:
        broker.journal("a/journal", b"0123456789")

        def read():
            config = ClientConfig(address=broker.address)
            with Client(config) as client, client.read("a/journal") as file:
                assert file.read(3) == b"012"
                file.go_to(5)
                assert (file.read(2), file.offset) == (b"56", 7)
                file.go_to(2)
                assert file.read() == b"23456789"

        await asyncio.to_thread(read)


async def test_only_content_that_was_not_skipped_is_said_to_be_gone(caplog):
    async with connected(b"tail") as (broker, client):
        broker.journals["a/journal"].begin = 100
        await client.read("a/journal", 7, on_jump="continue", begin_mod_time=1).read()
        assert caplog.text == ""
        await client.read("a/journal", 7, on_jump="continue").read()
        assert "content from offset 7 to 100 is gone" in caplog.text
