"""Receiving an append: the pace that client and journal owe each other, and broken streams."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st

from gazette_platform.broker.api.append import AppendApi, _CommitResponse, _renewed, _response
from gazette_platform.broker.api.append_calls import Gathered
from gazette_platform.broker.append import events, fsm
from gazette_platform.broker.append.batch import Outcome, Pending
from gazette_platform.broker.append.content import (
    Body,
    ContentQueue,
    Judge,
    RateBalance,
    Replay,
    Stock,
    cost_of,
    pump,
)
from gazette_platform.broker.journal.resolver import Resolution
from gazette_platform.ops.clock import ManualClock
from gazette_platform.protocol import (
    ZERO_SUM,
    CompressionCodec,
    Fragment,
    Header,
    LabelSet,
    Route,
    Status,
)
from gazette_platform.protocol.content import encode_append_content
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.serving.interface import READ_AHEAD_BYTES, Code, RpcFailed
from gazette_platform.testing.waiting import eventually, patient, turns

COMMIT = b""
STALLED = "append stream: client stream didn't sustain the minimum append data rate"


class Client:
    """The messages of a client: those given at once, then those that a test sends."""

    def __init__(self, *messages):
        self.messages = asyncio.Queue()
        for message in messages:
            self.messages.put_nowait(message)

    async def next(self):
        message = await self.messages.get()
        if isinstance(message, Exception):
            raise message
        return message


def receive(client, *, clock=None, min_rate=1000, max_rate=0):
    clock = clock or ManualClock()
    return Body(client, RateBalance.start(max_rate, clock.monotonic()), Judge(min_rate, clock))


async def judged(body):
    """The next chunk, in a wait in which the client is judged."""
    with body:
        return await body.next()


def chunk(content):
    return encode_append_content(content)


# ----------------------------------------------------------------------------------------- chunks
async def test_fc7_chunks_come_as_they_are():
    body = receive(Client(chunk(b"foo"), chunk(b"bar"), COMMIT, None))
    assert [bytes(await body.next()) for _ in range(3)] == [b"foo", b"bar", b""]
    await body.expect_end()
    assert (body.total_chunks, body.delayed_chunks) == (3, 0)


async def test_aa3_an_end_without_commit():
    body = receive(Client(chunk(b"foo"), None))
    await body.next()
    with pytest.raises(RpcFailed, match=r"^append stream: unexpected EOF$") as caught:
        await body.next()
    assert caught.value.code is Code.UNKNOWN


async def test_fs22_data_after_the_commit():
    body = receive(Client(COMMIT, chunk(b"more")))
    assert not await body.next()
    with pytest.raises(RpcFailed, match=r"^append stream: expected EOF after empty Content chunk$"):
        await body.expect_end()


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (pb.AppendRequest(journal="/invalid"), "Journal: cannot begin with '/' (/invalid)"),
        (pb.AppendRequest(journal="a/journal"), "expected Content chunk"),
        (pb.AppendRequest(offset=3), "unexpected Offset"),
    ],
)
async def test_fs22_an_invalid_chunk(message, text):
    body = receive(Client(message.SerializeToString()))
    with pytest.raises(RpcFailed) as caught:
        await body.next()
    assert caught.value.text == f"append stream: {text}"


async def test_a_malformed_message():
    body = receive(Client(b"\xff\xff\xff"))
    with pytest.raises(RpcFailed, match="append stream: "):
        await body.next()


async def test_fc7_errors_of_the_stream_pass_through():
    body = receive(Client(RpcFailed(Code.CANCELLED, "some error")))
    with pytest.raises(RpcFailed, match=r"^some error$"):
        await body.next()


async def test_strangely_encoded_content_is_taken():
    """Field order and split fields are the encoder's choice."""
    doubled = chunk(b"thrown away") + chunk(b"kept")  # protobuf: the last of a field counts
    assert bytes(await receive(Client(doubled)).next()) == b"kept"


# ------------------------------------------------------------------------------------------ rates
async def test_fc7_a_client_that_stalls(tasks):
    clock = ManualClock()
    body = receive(Client(), clock=clock)
    receiving = tasks.spawn(_error_of(body))
    await turns()
    clock.advance(8)
    body._judge.look()
    await turns()
    assert not receiving.done(), "while it is gathered, it holds up no other"
    body.stream()
    clock.advance(0.9)
    body._judge.look()
    await turns()
    assert not receiving.done(), "it has a second of credit"
    clock.advance(0.2)
    body._judge.look()
    assert await receiving == STALLED


async def _error_of(body):
    with pytest.raises(RpcFailed) as caught:
        await judged(body)
    return caught.value.text


async def test_clients_are_judged_by_one_timer(tasks):
    """For real: of two who owe content, one has little credit; its second is over in a twentieth."""

    class Hurried(ManualClock):
        def monotonic(self):
            return asyncio.get_running_loop().time() * 20

    client = Client()
    body = receive(client, clock=Hurried())
    body._flow.credit *= 1000
    receiving = tasks.spawn(judged(body))
    other = Body(Client(), body._balance, body._judge)
    other.stream()
    async with asyncio.timeout(5):
        assert await _error_of(other) == STALLED
    client.messages.put_nowait(chunk(b"x"))
    assert bytes(await receiving) == b"x"


async def test_a_client_is_not_judged_by_a_late_timer(tasks):
    """The broker was paused or busy: what the client sent meanwhile is not read yet."""
    clock = ManualClock()
    client = Client()
    body = receive(client, clock=clock)
    receiving = tasks.spawn(judged(body))
    await turns()
    body._judge._due_at -= 60
    clock.advance(3600)
    body._judge.look()
    await turns()
    client.messages.put_nowait(chunk(b"x"))
    assert bytes(await receiving) == b"x"


async def test_a_client_is_not_judged_while_we_hold_it():
    clock = ManualClock()
    client = Client(chunk(b"x"))
    body = receive(client, clock=clock)
    await judged(body)
    clock.advance(3600)  # its append waited for its turn
    body._judge.look()
    client.messages.put_nowait(COMMIT)
    assert not await judged(body)


async def test_a_client_is_not_judged_while_its_journal_pays(tasks):
    clock = ManualClock()
    body = receive(Client(chunk(b"x" * 20_000)), clock=clock, max_rate=10)
    receiving = tasks.spawn(judged(body))
    await eventually(lambda: body.delayed_chunks)
    clock.advance(3600)
    body._judge.look()
    body._balance.release()
    assert len(await receiving) == 20_000


async def test_caller_that_leaves_is_not_a_stall(tasks):
    body = receive(Client())
    receiving = tasks.spawn(judged(body))
    await turns()
    receiving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiving


async def test_fc7_a_chunk_beyond_the_balance_waits():
    clock = ManualClock()
    client = Client(chunk(b"x" * 10_000), chunk(b"y" * 200), COMMIT)
    body = receive(client, clock=clock, max_rate=10_000)
    loop = asyncio.get_running_loop()
    await body.next()
    began = loop.time()
    await body.next()
    assert 0.015 < loop.time() - began < patient(1)
    assert (body.total_chunks, body.delayed_chunks) == (2, 1)


async def test_fc4_a_change_of_assignments_ends_the_throttle(tasks):
    """Whether it comes while a chunk is held back, or before: a hand-over waits for the append."""
    client = Client(*[chunk(b"x" * 20_000)] * 3)
    body = receive(client, max_rate=10)
    receiving = tasks.spawn(body.next())
    await eventually(lambda: body.delayed_chunks == 1)
    await turns(5)
    assert not receiving.done(), "it would be held back for half an hour"
    body._balance.release()
    async with asyncio.timeout(1):
        assert len(await receiving) == 20_000
        assert len(await body.next()) == 20_000
        assert len(await body.next()) == 20_000
    assert (body.total_chunks, body.delayed_chunks) == (3, 1)


async def test_fc4_the_next_append_is_throttled_again():
    client = Client(chunk(b"x" * 20_000))
    body = receive(client, max_rate=10)
    body._balance.release()
    later = receive(Client(chunk(b"x" * 20_000)), max_rate=10)
    later._balance, later._released = body._balance, body._balance.released
    async with asyncio.timeout(1):
        await body.next()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(later.next(), 0.01)
    assert (body.delayed_chunks, later.delayed_chunks) == (0, 1)


async def test_fc7_a_big_chunk_right_after_the_assignments_changed():
    body = receive(Client(chunk(b"x" * 500_000), COMMIT), max_rate=10)
    body._balance.release()
    async with asyncio.timeout(1):
        assert len(await body.next()) == 500_000
        assert not await body.next()
    assert body.delayed_chunks == 0


# ----------------------------------------------------------------------------------------- response
@given(
    st.lists(
        st.builds(
            Outcome,
            st.just(Status.OK),
            st.builds(
                Fragment,
                st.sampled_from(["a/journal", "another"]),
                st.integers(0, 1 << 40),
                st.integers(1 << 40, 1 << 62),
                st.binary(min_size=20, max_size=20) | st.just(ZERO_SUM),
                st.sampled_from(CompressionCodec),
            ),
            st.sampled_from([LabelSet(), LabelSet(), LabelSet.of(a="1"), LabelSet.of(b="2", c="")]),
        ),
        max_size=6,
    )
)
def test_responses_to_commits_do_not_mix(outcomes):
    """They are encoded by one message, and each as by a new one."""
    body, commits = receive(Client()), _CommitResponse()
    resolution = Resolution("a/journal", Status.OK, Header(None, Route(), None), None, True)
    for outcome in outcomes:
        body.total_chunks += 1
        assert commits.encode(outcome, body) == _response(resolution, outcome, body)


# ---------------------------------------------------------------------------------------- hand-over
async def test_the_client_waits_for_its_turn_and_then_for_the_disk(tasks):
    done = asyncio.get_running_loop().create_future()
    stock = Stock()
    stream = ContentQueue(Pending(machine=None, done=done, chunks=[b"gathered"]), stock)
    large = b"x" * (300 << 10)
    client = Client(*(chunk(large) for _ in range(10)), COMMIT, None)
    tasks.spawn(pump(receive(client), stream))
    await turns(50)
    assert client.messages.qsize() == 12, "its turn has not come"
    assert stock.held_bytes >= READ_AHEAD_BYTES, "the transport fills up meanwhile"
    assert await stream.next() == b"gathered"
    await turns(50)
    assert client.messages.qsize() == 12 - 4, "a mebibyte is here, and one chunk too many"
    assert 4 * len(large) <= stock.held_bytes < 5 * len(large)
    taken = []
    while piece := await stream.next():
        taken.append(bytes(piece))
    assert taken == [large] * 10
    assert stock.held_bytes == 0
    done.cancel()


async def test_nothing_is_held_once_the_append_is_over():
    done = asyncio.get_running_loop().create_future()
    stock = Stock()
    stream = ContentQueue(Pending(machine=None, done=done, chunks=[b"x" * 1000]), stock)
    done.set_result(None)
    stream.drop()
    assert stock.held_bytes == 0
    with pytest.raises(RpcFailed, match="the client has gone"):
        await stream.next()
    assert stock.held_bytes == 0


async def test_who_waits_for_content_hears_that_the_append_is_over(tasks):
    done = asyncio.get_running_loop().create_future()
    stream = ContentQueue(Pending(machine=None, done=done), Stock())
    waiting = tasks.spawn(_waits(stream))
    await turns()
    assert not waiting.done()
    done.set_result(None)
    async with asyncio.timeout(10):
        await waiting


async def _waits(stream):
    with pytest.raises(RpcFailed, match="the client has gone"):
        await stream.next()


def test_single_bytes_are_counted_with_what_it_takes_to_hold_them():
    assert cost_of(b"x") >= sys.getsizeof(memoryview(b"x")) + sys.getsizeof(b"x")


async def test_a_stream_that_breaks_fails_its_append_and_each_later_attempt(tasks):
    pending = _pending()
    stream = ContentQueue(pending, Stock())
    pumping = tasks.spawn(pump(receive(Client(chunk(b"x"), None)), stream))
    assert await stream.next() == b"x"
    await pumping
    assert pending.done.exception().text == "append stream: unexpected EOF"
    again = _pending()
    stream.reopen(again)
    assert again.done.exception().text == "append stream: unexpected EOF"
    await turns()
    with pytest.raises(RpcFailed, match="unexpected EOF"):
        await stream.next()


# ---------------------------------------------------------------------------------------- forwarding
def _pending(*chunks, stream=None):
    done = asyncio.get_running_loop().create_future()
    machine = fsm.AppendFSM(events.AppendRequest("a/journal"))
    return Pending(machine=machine, done=done, chunks=list(chunks), stream=stream)


async def _messages(source):
    found = []
    while (message := await source.next()) is not None:
        found.append(message)
    return found


@pytest.mark.parametrize(
    ("held", "sizes", "is_whole"),
    [
        (0, [1 << 20] * 4, True),
        (0, [1 << 20] * 6, False),
        (80 << 20, [1 << 20] * 4, False),
        (80 << 20, [1 << 10] * 4, True),
    ],
)
async def test_what_is_gathered_whole_depends_on_its_size_and_on_what_is_held(
    held, sizes, is_whole
):
    """Small appends always, others while the broker holds little: memory is bounded by that."""
    context = SimpleNamespace(
        config=SimpleNamespace(min_append_rate=0), clock=ManualClock(), executor=None
    )
    api = AppendApi(context, None, None)
    api._stock.held_bytes = held
    pending = _pending()
    client = Client(*[chunk(bytes(size)) for size in sizes], COMMIT, None)
    gathered = Gathered(api._stock)
    assert await api._gather(pending, receive(client), gathered, with_sum=False) == is_whole
    assert (pending.length == sum(sizes)) == is_whole


async def test_e5_what_was_gathered_is_sent_again():
    replay = Replay(_pending(b"one", memoryview(b"two")))
    assert await _messages(replay) == [chunk(b"one"), chunk(b"two"), COMMIT]
    assert await replay.next() is None


async def test_e5_a_stream_goes_on_where_it_stopped(tasks):
    """Chunks that wait when an attempt ends, or come later, are those of the next attempt."""
    client = Client(*(chunk(b"%d" % n) for n in range(10)))
    first = _pending(b"gathered")
    first.stream = ContentQueue(first, Stock())
    tasks.spawn(pump(receive(client), first.stream))
    await turns(50)
    first.done.set_result(None)
    await turns(50)
    replay = Replay(_renewed(first))
    client.messages.put_nowait(COMMIT)
    client.messages.put_nowait(None)
    expected = [b"gathered", *(b"%d" % n for n in range(10))]
    assert await _messages(replay) == [*map(chunk, expected), COMMIT]


async def test_e5_a_stream_that_breaks_ends_the_replay(tasks):
    first = _pending(b"gathered")
    first.stream = ContentQueue(first, Stock())
    client = Client(chunk(b"x"))
    tasks.spawn(pump(receive(client), first.stream))
    renewed = _renewed(first)
    replay = Replay(renewed)
    assert [await replay.next(), await replay.next()] == [chunk(b"gathered"), chunk(b"x")]
    client.messages.put_nowait(None)
    with pytest.raises(RpcFailed, match="unexpected EOF"):
        await replay.next()
    assert renewed.done.exception() is not None
