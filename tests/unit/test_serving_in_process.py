"""Calls in one process: what they have that those of a connection have not, or have in another way."""

from __future__ import annotations

import asyncio
import contextvars

import pytest
from h2_server_bench import SERVICE, Echo
from local_bench import LocalBench

from gazette_platform.serving import in_process
from gazette_platform.serving.interface import Code, Condition, Kind, NotTaken, Rpc, RpcFailed
from gazette_platform.testing.waiting import eventually, patient, turns

TURNS = 20


@pytest.fixture
async def bench():
    async with asyncio.timeout(patient(20)), LocalBench() as bench:
        yield bench


def call(bench, name, kind=Kind.UNARY, request=None, **more):
    return bench.channel.call(f"/{SERVICE}/{name}", kind, request=request, **more)


async def error_of(work):
    with pytest.raises(RpcFailed) as caught:
        await work
    return caught.value.code, caught.value.text


async def test_responses_wait_for_their_caller(bench):
    size = 100_000
    read = call(bench, "Download", Kind.SERVER_STREAM, b"50 %d" % size)
    await turns(TURNS)
    held = len(read.responses.messages)
    assert held == in_process._RESPONSE_BYTES // size, "as many as there is room for"
    assert [await read.next() for _ in range(50)] == [bytes((n,)) * size for n in range(50)]
    assert await read.next() is None


async def test_a_response_larger_than_the_bound_comes_alone(bench):
    size = in_process._RESPONSE_BYTES + 1
    read = call(bench, "Download", Kind.SERVER_STREAM, b"2 %d" % size)
    await turns(TURNS)
    assert len(read.responses.messages) == 1
    assert [len(await read.next()), len(await read.next()), await read.next()] == [size, size, None]


async def test_a_caller_that_takes_nothing_ends_the_handler(bench, monkeypatch):
    monkeypatch.setattr(in_process, "_STALL_S", 0.05)
    read = call(bench, "Download", Kind.SERVER_STREAM, b"50 100000")
    await eventually(lambda: bench.echo.failed)
    (failure,) = bench.echo.failed
    assert (type(failure), failure.code) == (NotTaken, Code.UNAVAILABLE)
    held = [await read.next() for _ in range(len(read.responses.messages))]
    assert held, "what was sent comes first"
    assert await error_of(read.next()) == (
        Code.UNAVAILABLE,
        "nothing was taken of the responses for 0.05 s; ask again",
    )


async def test_a_caller_that_leaves_ends_a_handler_that_sends(bench):
    read = call(bench, "Download", Kind.SERVER_STREAM, b"50 100000")
    await eventually(lambda: bench.echo.begun)
    read.cancel()
    await eventually(lambda: not bench.channel.tasks)
    assert await error_of(read.next()) == (Code.UNAVAILABLE, "the peer has left the cluster")
    assert handled(bench, "Download", "Canceled", "server_stream") == 1


def handled(bench, method, code, kind="unary"):
    names = "grpc_type", "grpc_service", "grpc_method", "grpc_code"
    labels = dict(zip(names, (kind, SERVICE, method, code), strict=True))
    return bench.metrics.registry.get_sample_value("grpc_server_handled_total", labels)


async def test_calls_are_counted(bench):
    assert await call(bench, "Unary", request=b"a").answer() == b"a"
    await error_of(call(bench, "Fail", request=b"NOT_FOUND").answer())
    await error_of(call(bench, "Wait", request=b"", timeout_s=0.05).answer())
    assert handled(bench, "Unary", "OK") == 1
    assert handled(bench, "Fail", "NotFound") == 1
    await eventually(lambda: handled(bench, "Wait", "DeadlineExceeded") == 1)


async def test_a_call_that_is_cancelled_before_it_begins_is_counted(bench):
    call(bench, "Wait", request=b"").cancel()
    await turns(TURNS)
    assert (bench.echo.begun, handled(bench, "Wait", "Canceled")) == (0, 1)


async def test_a_request_that_is_too_large_is_refused():
    async with LocalBench(recv_bytes_max=1000) as bench:
        too_large = (
            Code.RESOURCE_EXHAUSTED,
            "SERVER: Received message larger than max (1001 vs. 1000)",
        )
        assert await error_of(call(bench, "Unary", request=bytes(1001)).answer()) == too_large
        upload = call(bench, "Upload", Kind.CLIENT_STREAM)
        await upload.send(bytes(1000))
        assert await error_of(upload.send(bytes(1001))) == too_large
        assert await error_of(upload.answer()) == too_large
        assert await call(bench, "Unary", request=bytes(1000)).answer() == bytes(1000)


async def test_a_channel_that_is_closed_ends_its_calls_and_takes_no_more(bench):
    waiting = call(bench, "Wait", request=b"")
    await eventually(lambda: bench.echo.begun)
    assert (bench.channel.condition, await bench.channel.connected()) == (Condition.HERE, True)
    await bench.channel.close("the end")
    assert bench.echo.cancelled == ["wait"]
    for ended in (waiting, call(bench, "Unary", request=b"")):
        assert await error_of(ended.answer()) == (Code.UNAVAILABLE, "the end")
    assert (bench.channel.condition, await bench.channel.connected()) == (Condition.FAILED, False)


async def test_a_deadline_may_be_moved_and_taken_back(bench):
    waiting = call(bench, "Wait", request=b"")
    ended = []
    waiting.on_over = lambda: ended.append(waiting.is_over)
    waiting.expire_in(60.0)
    waiting.expire_in(None)
    assert not bench.channel.deadlines._steps
    waiting.expire_in(0.05)
    assert await error_of(waiting.answer()) == (Code.DEADLINE_EXCEEDED, "Deadline Exceeded")
    assert (waiting.has_expired, ended) == (True, [True])
    await eventually(lambda: bench.echo.cancelled == ["wait"])


async def test_a_sender_waits_for_room():
    class Slow(Echo):
        async def upload(self, first, content, metadata):
            await self.gate.wait()
            return await super().upload(first, content, metadata)

    async with LocalBench(echo=Slow()) as bench:
        upload = call(bench, "Upload", Kind.CLIENT_STREAM)

        async def send():
            for _ in range(20):
                await upload.send(bytes(1 << 20))
            await upload.done_sending()

        async with asyncio.TaskGroup() as group:
            sending = group.create_task(send())
            await turns(TURNS)
            assert not sending.done()
            assert upload.requests.size <= in_process.READ_AHEAD_BYTES
            bench.echo.gate.set()
            assert await upload.answer() == b"20 messages, %d bytes" % (20 << 20)


class AtOnce(Echo):
    """Serves uploads without a task, once they are whole."""

    def __init__(self):
        super().__init__()
        self.waiting = []
        self.left = []

    def at_once(self, first, rest, metadata, caller):
        if first == b"by a task":
            return None
        self.waiting.append((caller, [first, *rest]))
        return lambda: self.left.append(first)

    def rpcs(self):
        upload = Rpc(SERVICE, "Upload", Kind.CLIENT_STREAM, self.upload, at_once=self.at_once)
        return [*(rpc for rpc in super().rpcs() if rpc.name != "Upload"), upload]


async def upload_of(bench, *messages):
    upload = call(bench, "Upload", Kind.CLIENT_STREAM)
    for message in messages:
        assert upload.send_now(message)
    assert upload.end_now()
    await turns(TURNS)
    return upload


async def test_whole_calls_are_served_without_a_task():
    async with LocalBench(echo=AtOnce()) as bench:
        replied, refused, moved, left = [
            await upload_of(bench, b"%d" % number, b"more") for number in range(4)
        ]
        waiting = bench.echo.waiting
        assert [messages for _, messages in waiting] == [[b"%d" % n, b"more"] for n in range(4)]
        assert not bench.channel.tasks
        waiting[0][0].reply(b"done")
        waiting[1][0].refuse(RpcFailed(Code.ABORTED, "no"))

        async def rest():
            return b"later"

        waiting[2][0].go_on(rest)
        left.cancel()
        assert await replied.answer() == b"done"
        assert await error_of(refused.answer()) == (Code.ABORTED, "no")
        assert await moved.answer() == b"later"
        assert bench.echo.left == [b"3"]
        by_task = await upload_of(bench, b"by a task", b"more")
        assert await by_task.answer() == b"2 messages, 13 bytes"


async def test_handlers_do_not_see_the_context_of_callers():
    name = contextvars.ContextVar("name", default="none")

    class Named(Echo):
        async def unary(self, request, metadata):
            return name.get().encode()

    async with LocalBench(echo=Named()) as bench:
        name.set("caller's")
        assert await call(bench, "Unary", request=b"").answer() == b"none"
