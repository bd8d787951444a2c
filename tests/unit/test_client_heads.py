"""Write heads: of many journals, and as readers report them."""

import asyncio

import pytest

from gazette_platform.client import AsyncClient, ClientConfig, FragmentListing, JournalListing
from gazette_platform.errors import TransportError
from gazette_platform.protocol import Fragment, JournalSpec, Route, SuspendLevel, SuspendSpec
from gazette_platform.testing.waiting import turns
from tests.benches.fake_broker import FakeBroker


def listed(name: str, suspend: SuspendSpec | None = None) -> JournalListing:
    return JournalListing(JournalSpec(name, 1, suspend=suspend), 1, 1, Route())


async def test_no_journal_is_asked_any_more_once_one_has_failed(monkeypatch):
    async def write_head(_, name):
        if name == "a/7":
            raise TransportError("no broker")
        await asyncio.Event().wait()

    monkeypatch.setattr(AsyncClient, "write_head", write_head)
    async with AsyncClient() as client:
        before = asyncio.all_tasks()
        with pytest.raises(TransportError):
            await client.write_heads([listed(f"a/{n}") for n in range(100)])
        await turns()
        assert asyncio.all_tasks() == before


async def test_of_fully_suspended_journals_no_broker_is_asked(monkeypatch):
    asked = []

    async def write_head(_, name):
        asked.append(name)
        return 5

    monkeypatch.setattr(AsyncClient, "write_head", write_head)
    journals = [
        listed("a/none"),
        listed("a/part", SuspendSpec(SuspendLevel.PARTIAL, 7)),
        listed("a/full", SuspendSpec(SuspendLevel.FULL, 9)),
    ]
    async with AsyncClient() as client:
        assert await client.write_heads(journals) == {"a/none": 5, "a/part": 5, "a/full": 9}
    assert asked == ["a/none", "a/part"]


async def test_content_from_stores_is_never_after_the_reported_head():
    """Its fragments are listed later than the head was reported, and one more may be stored by then."""

    class Store:
        whole = 0
        current = FragmentListing(Fragment("a/journal", 0, 10))

        async def next(self):
            return b"0123456789"

    async with FakeBroker() as broker, AsyncClient(ClientConfig(address=broker.address)) as client:
        reader = client.read("a/journal", direct=True)
        reader.write_head, reader._store = 5, Store()
        assert await reader._next_stored() == b"0123456789"
        assert (reader.offset, reader.write_head) == (10, 10)
        reader._store = None
