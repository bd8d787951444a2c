"""A client belongs to one event loop, and says so where it is used in another."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.errors import ValidationError
from gazette_platform.ops.tasks import LoopThread
from tests.benches.fake_broker import FakeBroker


async def test_another_event_loop_is_an_error_that_says_what_to_do():
    async with FakeBroker() as broker:
        broker.journal("a/one", b"abc")
        async with AsyncClient(ClientConfig(address=broker.address)) as client:
            assert [each.name for each in await client.list("")] == ["a/one"]

            async def read():
                async with client.read("a/one") as reader:
                    return b"".join([bytes(piece) async for piece in reader])

            other = LoopThread("other")
            try:
                for call in (
                    lambda: client.list(""),
                    lambda: client.append("a/one", b"x"),
                    read,
                    lambda: client.append_service().append("a/one", b"x"),
                ):
                    with pytest.raises(ValidationError, match="make an AsyncClient in each event"):
                        await asyncio.to_thread(lambda call=call: other.run(call()))
            finally:
                await asyncio.to_thread(other.close)
            assert await read() == b"abc"  # here it goes on


_FORK = """
import asyncio, os, signal
from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.errors import TransportError, ValidationError

client = AsyncClient(ClientConfig(address="http://127.0.0.1:1", connect_timeout_s=0.1))

async def ask():
    try:
        await client.list("")
    except (TransportError, ValidationError) as err:
        return type(err).__name__

assert asyncio.run(ask()) == "TransportError"
if (child := os.fork()) == 0:
    signal.alarm(20)
    os._exit(0 if asyncio.run(ask()) == "ValidationError" else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_fork_is_reported():
    """In a process of its own, because gRPC's threads here make forks unsafe."""
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _FORK],
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert found.stdout == "0\n", found.stderr
