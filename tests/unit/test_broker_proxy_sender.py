"""What sends a forwarded append ends by itself, whatever the call or the content meets."""

from __future__ import annotations

import asyncio

import pytest
from grpc import aio
from grpc._cython import cygrpc

from gazette_platform.broker.peers import Sender
from gazette_platform.serving.grpc_transport import GrpcCall
from gazette_platform.serving.interface import Code, RpcFailed


class Call:
    """A call of the gRPC library whose operations fail."""

    def __init__(self, **failures):
        self.failures = failures
        self.sent = []
        self.is_cancelled = False

    async def write(self, raw):
        if "write" in self.failures:
            raise self.failures["write"]
        self.sent.append(raw)

    async def done_writing(self):
        if "done_writing" in self.failures:
            raise self.failures["done_writing"]
        self.sent.append(None)

    def done(self):
        return False

    def cancel(self):
        self.is_cancelled = True


class Content:
    def __init__(self, *messages):
        self.messages = list(messages)

    def take_all(self, bytes_max):
        if self.messages[-1] is not None or sum(map(len, self.messages[:-1])) > bytes_max:
            return None
        taken, self.messages = self.messages[:-1], [None]
        return taken

    async def next(self):
        message = self.messages.pop(0)
        if isinstance(message, Exception):
            raise message
        return message


@pytest.mark.parametrize("operation", ["write", "done_writing"])
@pytest.mark.parametrize(
    "error",
    [
        cygrpc.ExecuteBatchError("failed"),
        aio.InternalError("failed"),
        aio.UsageError("failed"),
        aio.AioRpcError(cygrpc.StatusCode.unavailable, aio.Metadata(), aio.Metadata()),
        asyncio.InvalidStateError("over"),
    ],
)
async def test_a_call_that_breaks_is_reported_by_its_answer(operation, error):
    sender = Sender(GrpcCall(Call(**{operation: error})), Content(b"content", None))
    await sender.run(b"first")
    assert sender.failure is None
    assert sender.is_begun == (operation == "done_writing")


async def test_content_that_ends_early_ends_the_call():
    call = Call()
    sender = Sender(GrpcCall(call), Content(b"content", RpcFailed(Code.CANCELLED, "gone")))
    await sender.run(b"first")
    assert sender.failure.code is Code.CANCELLED
    assert call.sent == [b"first", b"content", None]


async def test_failed_sender_is_not_waited_for():
    call = Call()
    sender = Sender(GrpcCall(call), Content(ZeroDivisionError("unforeseen")))
    with pytest.raises(ZeroDivisionError):
        await sender.run(b"first")
    assert call.is_cancelled
    assert sender.failure.code is Code.INTERNAL
    assert "ZeroDivisionError" in sender.failure.text


class QuickCall:
    """A call that takes so many messages without a wait."""

    def __init__(self, room):
        self.room = room
        self.now, self.sent = 0, []

    def send_now(self, raw):
        if self.now >= self.room:
            return False
        self.now += 1
        self.sent.append(raw)
        return True

    def end_now(self):
        return self.send_now(None)

    async def send(self, raw):
        self.sent.append(raw)

    async def done_sending(self):
        self.sent.append(None)


@pytest.mark.parametrize("room", range(6))
@pytest.mark.parametrize("is_here", [True, False])
async def test_messages_go_once_and_in_order_however_many_need_no_wait(room, is_here):
    call = QuickCall(room)
    content = Content(b"1", b"2", b"", None)
    if not is_here:
        content.take_all = lambda _: None
    sender = Sender(call, content)
    if not sender.run_now(b"first"):
        assert sender.is_begun == (room > 0)
        if not sender.is_begun:
            assert content.messages == [b"1", b"2", b"", None], "another call may need them"
        await sender.run(b"first")
    assert call.sent == [b"first", b"1", b"2", b"", None]
    assert call.now == (min(room, 5) if is_here else min(room, 1))
