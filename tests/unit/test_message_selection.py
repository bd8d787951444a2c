"""Which journals a read of many is of."""

import asyncio
from types import SimpleNamespace

import pytest

from gazette_platform.errors import TransportError
from gazette_platform.message.selection import select_spans
from gazette_platform.protocol import LabelSet


class Client:
    """Tells of 100 journals, and of the head of none."""

    async def list(self, _):
        spec = SimpleNamespace(suspend=None, labels=LabelSet())
        return [SimpleNamespace(name=f"a/{n}", spec=spec) for n in range(100)]

    async def write_head(self, name):
        if name == "a/7":
            raise TransportError("no broker")
        await asyncio.Event().wait()


async def test_no_journal_is_asked_any_more_once_one_has_failed():
    before = asyncio.all_tasks()
    with pytest.raises(TransportError):
        await select_spans(Client(), "name:prefix=a/")
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
