"""The streams of a pipeline: order, slow peers, failures, and the way back of spools."""

from __future__ import annotations

import asyncio

import pytest

from gazette_platform.broker.replicate import pipeline as module
from gazette_platform.broker.replicate.fsm import Answer, SyncOutcome
from gazette_platform.broker.replicate.pipeline import (
    ContentMessage,
    Pipeline,
    ProposalMessage,
    decode_request,
    encode_answer,
    encode_proposal,
)
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.protocol import (
    EtcdHeader,
    Fragment,
    Header,
    LabelSet,
    ProcessId,
    Route,
    Status,
)
from gazette_platform.protocol.content import encode_replicate_content
from gazette_platform.serving.interface import Code, RpcFailed
from gazette_platform.testing.waiting import eventually, turns

A, B, OWN = ProcessId("A", "peer-1"), ProcessId("B", "peer-2"), ProcessId("C", "own-1")
ROUTE = Route((A, B, OWN), 2, ("http://a:1", "http://b:1", "http://c:1"))
ETCD = EtcdHeader(1, 2, 3, 4)
EMPTY = LabelSet()
FRAGMENT = Fragment("a/journal", 0, 0)
OK = encode_answer(Answer(Status.OK))


class Peer:
    """The far end of a stream."""

    def __init__(self):
        self.got = []
        self.arrived = asyncio.Event()
        self.answers = asyncio.Queue()
        self.may_take = asyncio.Event()
        self.may_take.set()
        self.refusal = None
        self.is_done = False
        self.is_cancelled = False

    async def write(self, raw):
        await self.may_take.wait()
        if self.refusal is not None:
            raise self.refusal
        self.got.append(decode_request(raw))
        self.arrived.set()

    def write_now(self, raw):
        if not self.may_take.is_set() or self.refusal is not None:
            return False
        self.got.append(decode_request(raw))
        self.arrived.set()
        return True

    def listen(self, take):
        self.take = take

    async def read(self):
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def tenure(self):
        return None

    async def done_writing(self):
        self.is_done = True
        self.answers.put_nowait(None)

    def cancel(self):
        self.is_cancelled = True

    async def messages(self, count):
        async with asyncio.timeout(5):
            while len(self.got) < count:
                self.arrived.clear()
                await self.arrived.wait()
        return self.got


class Bench:
    def __init__(self, tasks):
        self.tasks = tasks
        self.peers = {A: Peer(), B: Peer()}
        self.opened = []
        self.settled = []
        self.broken = []
        self.pipeline = Pipeline(
            ROUTE,
            OWN,
            ETCD,
            open_stream=self.open,
            tasks=tasks,
            stall_s=20.0,
            on_settled=self.settled.append,
            on_broken=self.broken.append,
        )

    def open(self, peer, endpoint):
        self.opened.append((peer, endpoint))
        return self.peers[peer]

    def ask(self):
        return self.pipeline.ask(encode_proposal(FRAGMENT, EMPTY, acknowledge=True))


@pytest.fixture
async def bench():
    tasks = TaskGroup("test")
    yield Bench(tasks)
    await tasks.close()


async def test_streams_are_given_up_if_another_cannot_be_opened(bench):
    """A peer without an endpoint in etcd: the others must not wait for a stream without a receiver."""
    bench.pipeline.abandon()
    opened = Peer()

    def open_stream(peer, endpoint):
        if peer == B:
            raise RpcFailed(Code.UNAVAILABLE, "no endpoint")
        return opened

    tasks = TaskGroup("test")
    with pytest.raises(RpcFailed, match="no endpoint"):
        Pipeline(
            ROUTE,
            OWN,
            ETCD,
            open_stream=open_stream,
            tasks=tasks,
            stall_s=20.0,
            on_settled=bench.settled.append,
            on_broken=bench.broken.append,
        )
    assert opened.is_cancelled
    assert len(tasks) == 0
    assert bench.broken == []


async def test_fs3_a_sync_greets_each_peer_once(bench):
    assert bench.opened == [(A, "http://a:1"), (B, "http://b:1")]
    for header_of in (lambda peer: Header(peer, ROUTE, ETCD), lambda _: None):
        for peer in bench.peers.values():
            peer.got.clear()
            peer.answers.put_nowait(OK)
        assert await bench.pipeline.sync(FRAGMENT, EMPTY, timeout_s=5) == SyncOutcome()
        for name, peer in bench.peers.items():
            (message,) = peer.got
            assert isinstance(message, ProposalMessage)
            assert message.header == header_of(name)
            assert message.proposal.acknowledge
            assert message.proposal.fragment == FRAGMENT


async def test_p3_answers_of_all_peers_make_the_outcome(bench):
    """Each peer is greeted by its own id, and they disagree in their own ways."""
    registers = LabelSet.of(name="value")
    newer = Header(A, Route((A,), 0, ("http://a:1",)), EtcdHeader(1, 2, 4567, 4))
    bench.peers[A].answers.put_nowait(encode_answer(Answer(Status.WRONG_ROUTE), newer))
    mismatch = Answer(Status.PROPOSAL_MISMATCH, Fragment("a/journal", 700, 800), registers)
    bench.peers[B].answers.put_nowait(encode_answer(mismatch, Header(B, ROUTE, ETCD)))
    found = await bench.pipeline.sync(FRAGMENT, EMPTY, timeout_s=5)
    assert found == SyncOutcome(800, registers, 4567)
    greeted = {name: peer.got[0].header.process_id for name, peer in bench.peers.items()}
    assert greeted == {A: A, B: B}


async def test_p1_messages_go_to_all_in_order_and_all_must_answer(bench):
    bench.pipeline.send(encode_replicate_content([b"foo"], 0))
    bench.pipeline.send(encode_replicate_content([b"bar"], 3))
    assert bench.ask() == 1
    for peer in bench.peers.values():
        first, second, third = await peer.messages(3)
        assert (first, second) == (ContentMessage(0, b"foo"), ContentMessage(3, b"bar"))
        assert third.header is None
    assert bench.ask() == 2
    bench.peers[A].answers.put_nowait(OK)
    bench.peers[A].answers.put_nowait(OK)
    await turns(10)
    assert bench.settled == []
    bench.peers[B].answers.put_nowait(OK)
    await turns(10)
    assert bench.settled == [1]
    assert bench.pipeline.unsettled == 1


async def test_a_slow_peer_holds_no_other_up_and_senders_at_some_point(bench, monkeypatch):
    monkeypatch.setattr(module, "_OUTBOX_BYTES_MAX", 10)
    bench.peers[A].may_take.clear()
    bench.pipeline.send(encode_replicate_content([b"x" * 20], 0))
    await bench.peers[B].messages(1)
    waiting = asyncio.ensure_future(bench.pipeline.room())  # noqa: TID251
    await turns(10)
    assert not waiting.done()
    bench.peers[A].may_take.set()
    await asyncio.wait_for(waiting, 5)
    assert len(bench.peers[A].got) == 1


async def fill(bench, monkeypatch):
    """Have one peer take nothing. Returns: who waits for room, so far in vain."""
    monkeypatch.setattr(module, "_OUTBOX_BYTES_MAX", 10)
    bench.peers[A].may_take.clear()
    bench.pipeline.send(encode_replicate_content([b"x" * 20], 0))
    waiting = asyncio.ensure_future(bench.pipeline.room())  # noqa: TID251
    await bench.peers[B].messages(1)
    await turns(10)
    assert not waiting.done()
    return waiting


async def test_a_peer_that_takes_nothing_for_long_breaks_it(bench, monkeypatch):
    waiting = await fill(bench, monkeypatch)
    bench.pipeline.hurry(0.01)
    with pytest.raises(RpcFailed) as caught:
        await asyncio.wait_for(waiting, 5)
    text = 'send to zone:"A" suffix:"peer-1": nothing was taken for 0.01 s'
    assert (caught.value.code, caught.value.text) == (Code.UNAVAILABLE, text)
    assert bench.broken == [caught.value]


async def test_patience_is_not_given_back(bench, monkeypatch):
    bench.pipeline.hurry(0.01)
    bench.pipeline.hurry(20.0)
    monkeypatch.setattr(module, "_OUTBOX_BYTES_MAX", 10)
    bench.peers[A].may_take.clear()
    bench.pipeline.send(encode_replicate_content([b"x" * 20], 0))
    with pytest.raises(RpcFailed, match=r"for 0\.01 s"):
        await asyncio.wait_for(bench.pipeline.room(), 5)


@pytest.mark.parametrize("how", ["close", "abandon"])
async def test_waiting_for_room_ends_with_the_pipeline(bench, monkeypatch, how):
    monkeypatch.setattr(module, "_CLOSE_TIMEOUT_S", 0.01)
    waiting = await fill(bench, monkeypatch)
    if how == "close":
        await bench.pipeline.close()
    else:
        bench.pipeline.abandon()
    with pytest.raises(RpcFailed, match="the streams to replicas are closed"):
        await asyncio.wait_for(waiting, 5)
    with pytest.raises(RpcFailed, match="are closed"):
        bench.ask()
    with pytest.raises(RpcFailed, match="are closed"):
        await bench.pipeline.sync(FRAGMENT, EMPTY, timeout_s=5)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (RpcFailed(Code.UNAVAILABLE, "rpc error: x"), 'recv from zone:"B" suffix:"peer-2" : rpc'),
        (None, 'recv from zone:"B" suffix:"peer-2" : unexpected EOF'),
        (b"\xff", 'recv from zone:"B" suffix:"peer-2" : malformed ReplicateResponse'),
        (
            encode_answer(Answer(Status.PROPOSAL_MISMATCH, FRAGMENT, EMPTY)),
            'recv from zone:"B" suffix:"peer-2" : unexpected !OK response: status:PROPOSAL_MIS',
        ),
    ],
)
async def test_p2_fs24_a_failed_peer_breaks_it(bench, answer, text):
    bench.ask()
    bench.peers[A].answers.put_nowait(OK)
    bench.peers[B].answers.put_nowait(answer)
    await turns(10)
    (failure,) = bench.broken
    assert failure.text.startswith(text)
    assert bench.pipeline.failure is failure
    assert not bench.pipeline.is_usable
    assert all(peer.is_cancelled for peer in bench.peers.values())
    assert bench.settled == []
    for doing in (bench.pipeline.room(), bench.pipeline.sync(FRAGMENT, EMPTY, timeout_s=1)):
        with pytest.raises(RpcFailed, match="recv from"):
            await doing
    with pytest.raises(RpcFailed, match="recv from"):
        bench.ask()


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (None, 'recv from zone:"B" suffix:"peer-2" : unexpected EOF'),
        (RpcFailed(Code.UNKNOWN, "why"), 'recv from zone:"B" suffix:"peer-2" : why'),
        ("silence", 'send to zone:"B" suffix:"peer-2" : EOF'),
    ],
)
async def test_p2_a_peer_that_takes_nothing_is_asked_why(bench, monkeypatch, answer, text):
    monkeypatch.setattr(module, "_CLOSE_TIMEOUT_S", 0.01)
    peer = bench.peers[B]
    peer.refusal = RpcFailed(Code.UNAVAILABLE, "EOF")
    if answer != "silence":
        peer.answers.put_nowait(answer)
    with pytest.raises(RpcFailed) as caught:
        await bench.pipeline.sync(FRAGMENT, EMPTY, timeout_s=5)
    assert caught.value.text == f"gatherSync: {text}"
    assert [failure.text for failure in bench.broken] == [f"gatherSync: {text}"]


@pytest.mark.parametrize("doing", ["send to", "recv from"])
async def test_unforeseen_error_breaks_it_too(bench, doing):
    peer, error = bench.peers[A], ZeroDivisionError("unforeseen")
    if doing == "send to":
        peer.refusal = error
    else:
        peer.answers.put_nowait(error)
    with pytest.raises(RpcFailed, match=f"{doing} zone.*: unforeseen ZeroDivisionError"):
        await bench.pipeline.sync(FRAGMENT, EMPTY, timeout_s=5)
    assert not bench.pipeline.is_usable


async def test_answers_are_taken_as_they_come(bench):
    for peer in bench.peers.values():
        peer.answers.put_nowait(OK)
    await bench.pipeline.sync(FRAGMENT, EMPTY, timeout_s=5)
    bench.ask()
    for peer in bench.peers.values():
        peer.take(OK)
    assert bench.settled == [1]
    bench.peers[A].take(b"\xff")
    (failure,) = bench.broken
    assert "malformed ReplicateResponse" in failure.text


async def test_unforeseen_error_of_an_answer_breaks_the_pipeline_and_is_reported(
    bench, monkeypatch
):
    for peer in bench.peers.values():
        peer.answers.put_nowait(OK)
    await bench.pipeline.sync(FRAGMENT, EMPTY, timeout_s=5)

    def fail(*_):
        raise ZeroDivisionError("unforeseen")

    monkeypatch.setattr(bench.pipeline, "on_reply", fail)
    bench.ask()
    bench.peers[A].take(OK)
    (failure,) = bench.broken
    assert "unforeseen ZeroDivisionError" in failure.text
    await eventually(lambda: isinstance(bench.tasks.failure, ZeroDivisionError))


async def test_fs5_a_failed_sync_says_so(bench):
    bench.peers[A].answers.put_nowait(RpcFailed(Code.UNKNOWN, "rpc error: foobar"))
    with pytest.raises(RpcFailed) as caught:
        await bench.pipeline.sync(FRAGMENT, EMPTY, timeout_s=5)
    assert caught.value.text == 'gatherSync: recv from zone:"A" suffix:"peer-1" : rpc error: foobar'
    assert len(bench.broken) == 1


async def test_unanswered_sync_ends(bench):
    with pytest.raises(RpcFailed, match=r"gatherSync: no answer from all replicas within 0\.01 s"):
        await bench.pipeline.sync(FRAGMENT, EMPTY, timeout_s=0.01)
    assert not bench.pipeline.is_usable


@pytest.mark.parametrize("how", ["close", "abandon"])
async def test_nothing_of_it_goes_on_once_it_is_closed(bench, how):
    for peer in bench.peers.values():
        peer.done_writing = asyncio.Event().wait  # takes no end
    await turns(10)
    assert len(bench.tasks) == 4
    if how == "close":
        closing = asyncio.ensure_future(bench.pipeline.close())  # noqa: TID251
        await turns(10)
        closing.cancel()
    else:
        bench.pipeline.abandon()
    await turns(10)
    assert len(bench.tasks) == 0


async def test_p1_close_sends_the_end_and_awaits_theirs(bench, monkeypatch):
    monkeypatch.setattr(module, "_CLOSE_TIMEOUT_S", 60.0)
    bench.pipeline.send(encode_replicate_content([b"x"], 0))
    async with asyncio.timeout(10):
        await bench.pipeline.close()
    for peer in bench.peers.values():
        assert peer.got
        assert peer.is_done
    assert bench.broken == []
    assert not bench.pipeline.is_usable


async def test_close_gives_up_on_peers_that_hang(bench, monkeypatch):
    monkeypatch.setattr(module, "_CLOSE_TIMEOUT_S", 0.01)
    bench.peers[A].may_take.clear()
    bench.pipeline.send(encode_replicate_content([b"x"], 0))
    await bench.pipeline.close()
    assert bench.peers[A].is_cancelled
    assert bench.broken == []
