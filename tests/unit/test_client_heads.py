"""Write heads of many journals."""

import asyncio

import pytest

from gazette_platform.client import AsyncClient, JournalListing
from gazette_platform.errors import TransportError
from gazette_platform.protocol import JournalSpec, Route, SuspendLevel, SuspendSpec


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
        await asyncio.sleep(0)
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
