"""Direct reads of fragments that are on no disk of ours."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.protocol import CompressionCodec, Fragment
from tests.benches.fake_broker import FakeBroker


@asynccontextmanager
async def connected(file_root):
    fragment = Fragment(
        "a/journal", 0, 7, b"x" * 20, CompressionCodec.NONE, "file:///", 1000, "no-such"
    )
    async with FakeBroker() as broker:
        broker.journal("a/journal", b"history")
        journal = broker.journals["a/journal"]
        journal.fragment, journal.fragment_url = fragment, f"file:///{fragment.content_path}"
        config = ClientConfig(address=broker.address, file_root=file_root)
        async with AsyncClient(config) as client:
            yield client


@pytest.mark.parametrize("has_root", [False, True])
async def test_who_has_named_no_root_is_not_warned_that_it_is_wrong(tmp_path, caplog, has_root):
    async with connected(tmp_path if has_root else None) as client:
        assert await client.read("a/journal", direct=True).read() == b"history"
    assert ("is file_root the brokers' root?" in caplog.text) == has_root
