"""Appends of one message, and streams: which way a client's append goes to a broker."""

from __future__ import annotations

import grpc
import pytest

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.errors import CallFailed, WrongAppendOffset
from gazette_platform.protocol.pb import protocol_pb2 as pb
from tests.benches.fake_broker import FakeBroker, Fault, connected


@pytest.fixture(autouse=True, params=["streams", "whole"])
def way(request, monkeypatch):
    """To a broker of ours, and to one that knows streams only."""
    monkeypatch.setattr(FakeBroker, "takes_whole", request.param == "whole")
    return request.param


@pytest.mark.parametrize("make", [bytes, memoryview, bytearray], ids=str)
async def test_little_content_goes_along_with_its_request(way, make):
    async with connected() as (broker, client):
        for size in (1, 0, 60_000):
            await client.append("a/journal", make(b"x" * size))
        assert broker.append_sizes == [1, 0, 60_000]
        assert broker.calls["AppendWhole"] == (3 if way == "whole" else 0)


@pytest.mark.parametrize(
    "make", [lambda: b"x" * 70_000, lambda: [b"x" * 70_000, b"y"], lambda: iter([b"x"])],
    ids=["large", "list", "iterator"],
)  # fmt: skip
async def test_other_content_is_streamed(make):
    async with connected() as (broker, client):
        await client.append("a/journal", make())
        assert broker.calls == {"Append": 1}


async def test_the_first_append_is_streamed():
    """Without a connection it is unknown whether it was sent."""
    async with FakeBroker() as broker:
        broker.journal("a/journal")
        async with AsyncClient(ClientConfig(address=broker.address)) as client:
            await client.append("a/journal", b"x")
            assert broker.calls == {"Append": 1}


async def test_a_broker_that_takes_streams_only_is_asked_once(monkeypatch):
    """As one of Gazette's own."""
    monkeypatch.setattr(FakeBroker, "takes_whole", False)
    async with connected() as (broker, client):
        wire = client._transport.wire("a/journal")
        asked, true = [], wire.append_whole
        monkeypatch.setattr(
            wire, "append_whole", lambda *args, **kwargs: asked.append(1) or true(*args, **kwargs)
        )
        await wire.connected()
        for _ in range(3):
            await client.append("a/journal", b"x")
        assert asked == [1]
        assert broker.append_sizes == [1, 1, 1]


async def test_what_a_broker_did_not_know_was_not_appended(monkeypatch):
    """A refusal of the stream after it leaves no doubt."""
    monkeypatch.setattr(FakeBroker, "takes_whole", False)
    async with connected() as (broker, client):
        await client._transport.wire("a/journal").connected()
        broker.fail("Append", Fault(status=pb.WRONG_APPEND_OFFSET))
        with pytest.raises(WrongAppendOffset) as refused:
            await client.append("a/journal", b"x", offset=7)
        assert not refused.value.may_be_applied


async def test_where_only_streams_are_let_through_they_are_used(way):
    """As by something before the broker that knows Gazette's calls alone."""
    async with connected() as (broker, client):
        denied = Fault(code=grpc.StatusCode.PERMISSION_DENIED)
        if way == "whole":
            broker.fail("Append", denied)
        for _ in range(3):
            await client.append("a/journal", b"x")
        assert broker.append_sizes == [1, 1, 1]
        assert broker.calls["AppendWhole"] == (way == "whole")
        broker.fail("Append", denied)
        with pytest.raises(CallFailed) as refused:
            await client.append("a/journal", b"never")
        assert refused.value.code == "PERMISSION_DENIED"
        assert not refused.value.may_be_applied


async def test_who_may_not_append_at_all_leaves_the_way_open_for_others(way):
    async with connected() as (broker, client):
        denied = Fault(code=grpc.StatusCode.PERMISSION_DENIED)
        broker.fail("Append", denied, denied)
        with pytest.raises(CallFailed):
            await client.append("a/journal", b"never")
        broker.calls.clear()
        broker.faults["Append"].clear()
        await client.append("a/journal", b"x")
        assert broker.calls["AppendWhole"] == (way == "whole")
        assert broker.append_sizes == [1]
