"""Servicers of generated code on our own HTTP/2: what callers and methods see is what the gRPC library shows them."""

# ruff: noqa: N802  methods are called as in the service

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager, suppress

import grpc
import pytest
from google.protobuf.wrappers_pb2 import StringValue
from grpc import aio
from words_service import (
    SERVICE,
    Saying,
    Words,
    WordsByContext,
    WordsInThreads,
    WordsServicer,
    WordsStub,
    add_former_words,
    add_words,
)

from gazette_platform.broker.context import BrokerMetrics
from gazette_platform.errors import SetupError
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.serving.grpc_transport import GrpcServer
from gazette_platform.serving.h2.server import H2Server
from gazette_platform.testing.waiting import eventually, patient, turns

DEADLINE_S = patient(20)
STYLES = [Words, WordsByContext, WordsInThreads]


@pytest.fixture(params=[H2Server, GrpcServer], ids=["h2", "grpc"])
def kind(request):
    return request.param


@pytest.fixture
def metrics():
    return BrokerMetrics()


@pytest.fixture
def serve(kind, metrics):
    """Serves a servicer by either server, and gives its address."""

    @asynccontextmanager
    async def serve(servicer, add=add_words):
        options = {"host": "127.0.0.1", "port": 0, "recv_bytes_max": 8 << 20}
        server = kind((), calls=metrics.calls, **options)
        server.add_servicer(add, servicer)
        await server.start()
        try:
            yield f"127.0.0.1:{server.port}"
        finally:
            await server.stop(grace_s=0.0)
            if kind is H2Server:
                assert not server._shared.tasks
                assert not server._shared.connections
                assert not server._shared.deadlines._steps

    return serve


@pytest.fixture
def stub(serve):
    @asynccontextmanager
    async def stub(servicer, **options):
        large = [("grpc.max_receive_message_length", -1)]
        async with (
            serve(servicer, **options) as address,
            aio.insecure_channel(address, options=large) as channel,
        ):
            yield WordsStub(channel)

    return stub


def said(value):
    return StringValue(value=value)


async def outcome(call):
    """Code, text and trailers of a call that fails."""
    with pytest.raises(aio.AioRpcError) as caught:
        await call
    err = caught.value
    return err.code().name, err.details(), dict(err.trailing_metadata())


async def failure_of(stub, say, **options):
    async with stub(Saying(say)) as words:
        return await outcome(words.Say(said("x"), timeout=DEADLINE_S, **options))


# ------------------------------------------------------------------------------------ four kinds
@pytest.mark.parametrize("style", STYLES)
async def test_asynchronous_stub_makes_calls_of_all_kinds(stub, style):
    async with stub(style()) as words:
        assert (await words.Say(said("abc"), timeout=DEADLINE_S)).value == "ABC"
        split = words.Split(said("a b c"), timeout=DEADLINE_S)
        assert [word.value async for word in split] == ["a", "b", "c"]
        joined = await words.Join(map(said, "abc"), timeout=DEADLINE_S)
        assert joined.value == "a b c"
        assert (await words.Join(iter(()), timeout=DEADLINE_S)).value == ""
        chat = words.Chat(timeout=DEADLINE_S)
        for word in ("abc", "", "x" * (5 << 20)):
            await chat.write(said(word))
            assert (await chat.read()).value == word[::-1]
        await chat.done_writing()
        assert await chat.read() is aio.EOF


@pytest.mark.parametrize("style", STYLES)
async def test_synchronous_stub_makes_calls_of_all_kinds(serve, style):
    def calls(address):
        with grpc.insecure_channel(address) as channel:
            words = WordsStub(channel)
            yield words.Say(said("abc"), timeout=DEADLINE_S).value
            yield [word.value for word in words.Split(said("a b c"), timeout=DEADLINE_S)]
            yield words.Join(map(said, "abc"), timeout=DEADLINE_S).value
            yield [word.value for word in words.Chat(map(said, ["ab", ""]), timeout=DEADLINE_S)]

    async with serve(style()) as address:
        found = await asyncio.to_thread(lambda: list(calls(address)))
    assert found == ["ABC", ["a", "b", "c"], "a b c", ["ba", ""]]


async def test_former_generated_code_is_served(stub):
    async with stub(Words(), add=add_former_words) as words:
        assert (await words.Say(said("abc"), timeout=DEADLINE_S)).value == "ABC"


async def test_many_calls_at_once_each_get_their_answer(stub):
    async with stub(Words()) as words, asyncio.timeout(DEADLINE_S):
        answers = await asyncio.gather(*(words.Say(said(f"n{n}")) for n in range(300)))
    assert [answer.value for answer in answers] == [f"N{n}" for n in range(300)]


# ---------------------------------------------------------------------------------------- errors
@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code.name != "OK"])
async def test_abort_ends_call_with_code_text_and_trailers(stub, code):
    async def say(servicer, request, context):
        await context.abort(code, "why: 100 % of ü", (("reason", "none"), ("raw-bin", b"\0\xff")))

    found = await failure_of(stub, say)
    assert found == (code.name, "why: 100 % of ü", {"reason": "none", "raw-bin": b"\0\xff"})


async def test_abort_in_thread_ends_call(stub):
    class Aborting(WordsServicer):
        def Say(self, request, context):
            context.set_trailing_metadata((("reason", "none"),))
            context.abort(grpc.StatusCode.DATA_LOSS, "gone")

    async with stub(Aborting()) as words:
        found = await outcome(words.Say(said("x"), timeout=DEADLINE_S))
    assert found == ("DATA_LOSS", "gone", {"reason": "none"})


async def test_caught_abort_still_ends_call(stub):
    async def say(servicer, request, context):
        with suppress(Exception):
            await context.abort(grpc.StatusCode.ABORTED, "first")
        return said("never sent")

    assert (await failure_of(stub, say))[:2] == ("ABORTED", "first")


async def test_other_error_after_abort_changes_nothing(stub):
    async def say(servicer, request, context):
        try:
            await context.abort(grpc.StatusCode.ABORTED, "first")
        except Exception as err:  # noqa: BLE001  as servicers do
            await context.abort(grpc.StatusCode.INTERNAL, str(err))

    assert (await failure_of(stub, say))[:2] == ("ABORTED", "first")


async def test_code_that_was_set_replaces_the_response(stub):
    async def say(servicer, request, context):
        assert (context.code(), context.details()) == (None, "")
        context.set_code(grpc.StatusCode.OUT_OF_RANGE)
        context.set_details("too far")
        assert (context.code(), context.details()) == (grpc.StatusCode.OUT_OF_RANGE, "too far")
        return said("never seen")

    assert (await failure_of(stub, say))[:2] == ("OUT_OF_RANGE", "too far")


@pytest.mark.parametrize("code", ["UNKNOWN", "FAILED_PRECONDITION"])
async def test_unexpected_error_is_reported_and_logged(stub, caplog, code):
    async def say(servicer, request, context):
        if code != "UNKNOWN":
            context.set_code(grpc.StatusCode[code])
        raise ValueError("unexpected")

    text = "Unexpected <class 'ValueError'>: unexpected"
    assert (await failure_of(stub, say))[:2] == (code, text)
    assert ValueError in [record.exc_info[0] for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("name", ["Say", "Join"])
async def test_method_left_out_is_unimplemented(stub, caplog, name):
    async with stub(WordsServicer()) as words:
        request = said("x") if name == "Say" else iter([said("x")])
        code, text, _ = await outcome(getattr(words, name)(request, timeout=DEADLINE_S))
    assert code == "UNIMPLEMENTED"
    assert text.endswith("Method not implemented!")


async def test_stream_ends_with_error_after_its_responses(stub):
    class Ending(WordsServicer):
        async def Split(self, request, context):
            yield said("one")
            await context.abort(grpc.StatusCode.NOT_FOUND, "no more")

    async with stub(Ending()) as words:
        call = words.Split(said(""), timeout=DEADLINE_S)
        assert (await call.read()).value == "one"
        assert (await outcome(call.read()))[:2] == ("NOT_FOUND", "no more")


async def test_malformed_request_ends_call(stub, serve, caplog):
    async with serve(Words()) as address, aio.insecure_channel(address) as channel:
        call = channel.unary_unary(f"/{SERVICE}/Say")
        code, text, _ = await outcome(call(b"\xff", timeout=DEADLINE_S))
    assert code == "UNKNOWN"
    assert "DecodeError" in text


# -------------------------------------------------------------------------------------- metadata
async def test_metadata_reaches_the_method(stub):
    async def say(servicer, request, context):
        found = context.invocation_metadata()
        servicer.notes = [tuple(item) for item in found if item.key.startswith("x-")]
        assert dict(found)["user-agent"].startswith("grpc-python")
        assert not [item for item in found if item.key.startswith((":", "grpc-", "te"))]
        return said("")

    sent = [("x-token", "Bearer y"), ("x-raw-bin", b"\0\1\2"), ("x-raw-bin", b"more")]
    servicer = Saying(say)
    async with stub(servicer) as words:
        await words.Say(said(""), metadata=sent, timeout=DEADLINE_S)
    assert servicer.notes == sent


async def test_metadata_goes_ahead_of_and_after_messages(stub):
    class Telling(WordsServicer):
        async def Split(self, request, context):
            await context.send_initial_metadata((("first", "1"), ("raw-bin", b"\xff\0")))
            context.set_trailing_metadata((("last", "2"), ("cut-bin", b"ab")))
            assert context.trailing_metadata() == (("last", "2"), ("cut-bin", b"ab"))
            yield said("x")

    async with stub(Telling()) as words:
        call = words.Split(said(""), timeout=DEADLINE_S)
        initial = dict(await call.initial_metadata())
        assert (initial["first"], initial["raw-bin"]) == ("1", b"\xff\0")
        assert [word.value async for word in call] == ["x"]
        trailing = dict(await call.trailing_metadata())
        assert (trailing["last"], trailing["cut-bin"]) == ("2", b"ab")


async def test_metadata_in_thread_goes_ahead_of_messages(stub):
    class Telling(WordsServicer):
        def Say(self, request, context):
            assert dict(context.invocation_metadata())["x-a"] == "1"
            context.send_initial_metadata((("first", "1"),))
            return said("x")

    async with stub(Telling()) as words:
        call = words.Say(said(""), metadata=(("x-a", "1"),), timeout=DEADLINE_S)
        assert dict(await call.initial_metadata())["first"] == "1"
        assert (await call).value == "x"


async def test_late_initial_metadata_is_an_error(stub):
    async def say(servicer, request, context):
        await context.send_initial_metadata(())
        await context.send_initial_metadata((("late", "1"),))

    code, text, _ = await failure_of(stub, say)
    assert code == "UNKNOWN"
    assert "nitial metadata" in text


# ----------------------------------------------------------------------------- state of the call
async def test_context_knows_caller_and_deadline(stub):
    async def say(servicer, request, context):
        servicer.notes = [context.peer(), context.time_remaining()]
        return said("")

    servicer = Saying(say)
    async with stub(servicer) as words:
        await words.Say(said(""), timeout=100)
        peer, left_s = servicer.notes
        assert peer.startswith("ipv4:127.0.0.1:")
        assert 0 < left_s <= 101.1  # gRPC may round up
        await words.Say(said(""))
        assert servicer.notes[1] is None


async def test_callbacks_run_once_call_is_done(stub):
    async def say(servicer, request, context):
        assert not context.done()
        context.add_done_callback(
            lambda each: servicer.notes.append((each is context, each.done(), each.cancelled()))
        )
        return said("")

    servicer = Saying(say)
    async with stub(servicer) as words:
        await words.Say(said(""), timeout=DEADLINE_S)
        await eventually(lambda: servicer.notes, timeout_s=DEADLINE_S)
    assert servicer.notes == [(True, True, False)]


async def test_callback_of_thread_runs(stub):
    done = threading.Event()

    class Calling(WordsServicer):
        def Say(self, request, context):
            context.add_callback(done.set)
            return said("")

    async with stub(Calling()) as words:
        await words.Say(said(""), timeout=DEADLINE_S)
        await eventually(done.is_set, timeout_s=DEADLINE_S)


async def wait_cancelled(servicer, request, context):
    servicer.begun.set()
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        servicer.left.set()
        raise


async def test_method_is_cancelled_when_caller_leaves(stub):
    servicer = Saying(wait_cancelled)
    async with stub(servicer) as words, asyncio.timeout(DEADLINE_S):
        call = words.Say(said(""))
        await servicer.begun.wait()
        call.cancel()
        await servicer.left.wait()


async def test_method_is_cancelled_at_the_deadline(stub):
    servicer = Saying(wait_cancelled)
    async with stub(servicer) as words, asyncio.timeout(DEADLINE_S):
        code, _, _ = await outcome(words.Say(said(""), timeout=0.3))
        assert code == "DEADLINE_EXCEEDED"
        await servicer.left.wait()


async def test_generator_is_closed_when_caller_leaves(stub):
    closed = asyncio.Event()

    class Endless(WordsServicer):
        async def Split(self, request, context):
            try:
                while True:
                    yield said("x" * 100_000)
            finally:
                closed.set()

    async with stub(Endless()) as words, asyncio.timeout(DEADLINE_S):
        call = words.Split(said(""))
        await call.read()
        call.cancel()
        await closed.wait()


async def chat_once(words):
    """A call whose method has answered one message, and waits for another."""
    call = words.Chat()
    await call.write(said("ab"))
    assert (await call.read()).value == "ba"
    await turns(50)
    return call


async def test_reading_task_of_method_ends_when_caller_leaves(stub):
    ended = asyncio.Event()
    tasks = TaskGroup("reads")

    class Reading(WordsServicer):
        async def Chat(self, requests, context):
            tasks.spawn(self.answer(context))
            await asyncio.Event().wait()

        async def answer(self, context):
            with suppress(Exception):
                while True:
                    request = await context.read()
                    await context.write(said(request.value[::-1]))
            ended.set()

    async with stub(Reading()) as words, asyncio.timeout(DEADLINE_S):
        call = await chat_once(words)
        call.cancel()
        await ended.wait()
    await tasks.close()


# ------------------------------------------------------------------------------ our own HTTP/2 only
only_h2 = pytest.mark.parametrize("kind", [H2Server], indirect=True, ids=["h2"])


@only_h2
async def test_calls_are_counted_by_their_kind(stub, metrics):
    async with stub(Words()) as words:
        await words.Say(said(""), timeout=DEADLINE_S)
        await words.Join(map(said, "abc"), timeout=DEADLINE_S)
    for kind, method, received in (("unary", "Say", 1), ("client_stream", "Join", 3)):
        labels = {"grpc_type": kind, "grpc_service": SERVICE, "grpc_method": method}
        value = metrics.registry.get_sample_value
        assert value("grpc_server_handled_total", labels | {"grpc_code": "OK"}) == 1
        assert value("grpc_server_msg_received_total", labels) == received
        assert value("grpc_server_msg_sent_total", labels) == 1


@only_h2
async def test_messages_of_two_tasks_do_not_mix(stub):
    class Writing(WordsServicer):
        async def Split(self, request, context):
            words = ("a" * 3_000_000, "b" * 3_000_000)
            await asyncio.gather(*(context.write(said(word)) for word in words))

    async with stub(Writing()) as words:
        call = words.Split(said(""), timeout=DEADLINE_S)
        assert {word.value[::2_999_999] async for word in call} == {"aa", "bb"}


@only_h2
@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        ([("Upper", "x")], "metadata cannot be called 'Upper'"),
        ([("grpc-status", "0")], "metadata cannot be called 'grpc-status'"),
        ([("text", "ü")], "metadata 'text' is not printable ASCII; add -bin to its name"),
        ([("large", "x" * 9000)], "metadata is larger than 8192 bytes; clients refuse it"),
    ],
)
async def test_forbidden_metadata_is_refused(stub, metadata, text):
    async def say(servicer, request, context):
        context.set_trailing_metadata(metadata)

    code, found, _ = await failure_of(stub, say)
    assert (code, found) == ("UNKNOWN", f"Unexpected <class 'ValueError'>: {text}")


@only_h2
async def test_what_context_lacks_is_named(stub):
    async def say(servicer, request, context):
        context.set_compression(grpc.Compression.Gzip)

    code, text, _ = await failure_of(stub, say)
    assert code == "UNKNOWN"
    assert "set_compression" in text
    assert "--consumer.wire=grpc" in text


@only_h2
async def test_cancelled_call_says_so(stub):
    async def say(servicer, request, context):
        context.add_done_callback(lambda each: servicer.notes.append(each.cancelled()))
        await wait_cancelled(servicer, request, context)

    servicer = Saying(say)
    async with stub(servicer) as words, asyncio.timeout(DEADLINE_S):
        call = words.Say(said(""))
        await servicer.begun.wait()
        call.cancel()
        await eventually(lambda: servicer.notes, timeout_s=DEADLINE_S)
    assert servicer.notes == [True]


@only_h2
async def test_reading_thread_ends_when_caller_leaves(stub):
    ended = threading.Event()

    class Reading(WordsInThreads):
        def Chat(self, requests, context):
            try:
                yield from super().Chat(requests, context)
            finally:
                ended.set()

    async with stub(Reading()) as words:
        call = await chat_once(words)
        call.cancel()
        await eventually(ended.is_set, timeout_s=DEADLINE_S)


@only_h2
async def test_writing_thread_ends_when_caller_leaves(stub):
    ended = threading.Event()

    class Endless(WordsServicer):
        def Split(self, request, context):
            try:
                while True:
                    yield said("x" * 100_000)
            finally:
                ended.set()

    async with stub(Endless()) as words:
        call = words.Split(said(""))
        await call.read()
        await turns(50)
        call.cancel()
        await eventually(ended.is_set, timeout_s=DEADLINE_S)


@only_h2
async def test_servicer_of_another_service_is_refused(kind, metrics):
    server = kind((), calls=metrics.calls, host="127.0.0.1", port=0, recv_bytes_max=1)
    with pytest.raises(SetupError, match=r"object is not a servicer .*'Say'"):
        server.add_servicer(add_words, object())
    await server.stop(grace_s=0.0)
