"""A primary and its replicas in one process: appender, replicator, pipeline and sessions together.

Long because all cases drive one bench, down to random histories of failures.
"""

from __future__ import annotations

import asyncio
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from replication_bench import NAME, OWN, THREE, A, B, Bench, Held, Link, Stream, settle

from gazette_platform.broker.api import service as replicate_api
from gazette_platform.broker.api.service import ReplicateApi, _Reign, _Session
from gazette_platform.broker.replicate import replicator as module
from gazette_platform.broker.replicate.fsm import Answer, Invalidated, WrongRoute
from gazette_platform.broker.replicate.pipeline import (
    ContentMessage,
    ProposalMessage,
    decode_request,
    encode_answer,
    encode_proposal,
)
from gazette_platform.broker.spool.journal_spool import Draft
from gazette_platform.ops.tasks import Interrupt, Interrupted, TaskGroup
from gazette_platform.protocol import (
    ZERO_SUM,
    CompressionCodec,
    EtcdHeader,
    Fragment,
    FragmentSpec,
    Header,
    JournalSpec,
    LabelSet,
    Route,
    Status,
)
from gazette_platform.serving.interface import Code, RpcFailed


@pytest.fixture(params=[False, True], ids=["turn by turn", "at once"])
async def bench(request, monkeypatch, tmp_path):
    monkeypatch.setattr(Link, "is_direct", request.param)
    tasks = TaskGroup("test")
    executor = ThreadPoolExecutor(2)
    found = Bench(tmp_path, tasks, executor)
    yield found
    for node in (found.primary, *found.nodes.values()):
        node.index.close()
    await tasks.close()
    executor.shutdown()
    assert tasks.failure is None


async def test_fs6_appends_are_at_all_replicas_which_are_synced_once(bench):
    assert await bench.append(b"one ") == (0, 4)
    assert await bench.append(b"two") == (4, 7)
    assert bench.contents() == [b"one two"] * 3
    assert bench.replicator.has_peers
    for node in bench.nodes.values():
        proposals = [m for m in node.link.messages if isinstance(m, ProposalMessage)]
        assert [m.header is not None for m in proposals] == [True, *[False] * (len(proposals) - 1)]


async def test_nothing_shows_before_all_have_it(bench, monkeypatch):
    await bench.append(b"before ")
    held = Held(monkeypatch, bench.nodes[B])
    waiting = bench.submit(b"after")
    await settle()
    assert not waiting.done()
    assert bench.nodes[A].content() == b"before after", "replicas publish on commit"
    assert bench.primary.content() == b"before "
    held.gate.set()
    await waiting
    assert bench.contents() == [b"before after"] * 3


async def test_fs26_the_next_append_is_on_its_way_before_the_first_is_acknowledged(
    bench, monkeypatch
):
    monkeypatch.setattr(module, "_SMALL_BYTES_MAX", 0)  # which would gather
    await bench.append(b"x" * 10)
    held = Held(monkeypatch, bench.nodes[B])
    first = bench.submit(b"y" * 2000)
    await settle()
    second = bench.submit(b"second")
    await settle()
    messages = bench.nodes[A].link.messages
    # The second append rolls the spool, which is longer than the spec says, before its content.
    roll, content, proposal = messages[-3:]
    assert isinstance(roll, ProposalMessage)
    assert (roll.proposal.fragment.begin, roll.proposal.acknowledge) == (2010, False)
    assert content == ContentMessage(0, b"second")
    assert proposal.proposal.fragment.end == 2016
    assert not first.done()
    assert bench.primary.completed == bench.primary.completed[:1], "content under way is not stored"
    held.gate.set()
    assert (await first).commit.end == (await second).commit.begin == 2010
    for node in (bench.primary, *bench.nodes.values()):
        await node.spool.completed()
    assert bench.contents() == [b"x" * 10 + b"y" * 2000 + b"second"] * 3
    sums = [{c.fragment for c in node.completed} for node in (bench.primary, *bench.nodes.values())]
    assert sums[0] == sums[1] == sums[2]


async def test_appends_gather_while_replicas_are_busy(bench, monkeypatch):
    await bench.append(b"x")
    held = Held(monkeypatch, bench.nodes[B])
    waiting = []
    for _ in range(20):
        waiting.append(bench.submit(b"y"))
        await settle()
    held.gate.set()
    await asyncio.gather(*waiting)
    proposals = [m for m in bench.nodes[A].link.messages if isinstance(m, ProposalMessage)]
    assert len(proposals) < 9, "a proposal for many appends"
    assert bench.contents() == [b"x" + b"y" * 20] * 3


async def test_fs24_a_replica_that_fails_leaves_the_outcome_open(bench, monkeypatch):
    await bench.append(b"before ")
    held = Held(monkeypatch, bench.nodes[B])
    waiting = bench.submit(b"maybe ")
    await settle()
    bench.nodes[B].link.cut()
    with pytest.raises(RpcFailed, match="recv from") as caught:
        await waiting
    assert caught.value.code is Code.UNAVAILABLE
    assert bench.primary.content() == b"before "
    assert not bench.replicator.is_synced
    held.gate.set()
    # The next sync finds that a replica lacks it, and the fragment is closed; it counts all the same.
    assert await bench.append(b"after") == (13, 18)
    assert bench.primary.content() == b"before maybe after"
    assert bench.nodes[A].content() == b"before maybe after"
    assert bench.nodes[B].content(13) == b"after"
    await bench.primary.spool.completed()
    assert [c.fragment.end for c in bench.primary.completed] == [7, 13]


async def lost_on_its_way(bench, monkeypatch):
    """An append that was proposed, and reached no replica."""
    await bench.append(b"before ")
    held = [Held(monkeypatch, node) for node in bench.nodes.values()]
    waiting = bench.submit(b"lost")
    await settle()
    for node in bench.nodes.values():
        node.link.cut()
    with pytest.raises(RpcFailed, match="recv from"):
        await waiting
    for one in held:
        one.gate.set()


async def test_what_no_replica_has_is_forgotten(bench, monkeypatch):
    await lost_on_its_way(bench, monkeypatch)
    assert await bench.append(b"after") == (7, 12)
    assert bench.contents() == [b"before after"] * 3


async def test_what_a_replica_may_have_that_is_not_there_keeps_its_offsets(bench, monkeypatch):
    await lost_on_its_way(bench, monkeypatch)
    bench.primary.route = Route((OWN, A), 0)
    bench.replicator.on_change()
    assert await bench.append(b"after") == (11, 16)
    assert bench.primary.content() == b"before lostafter"


async def test_no_replica_is_moved_after_content_without_a_copy(bench, monkeypatch):
    """Its primary may leave before it says more: the journal would go on after a hole."""
    await lost_on_its_way(bench, monkeypatch)
    held = asyncio.Event()
    monkeypatch.setattr(bench.nodes[B], "serve", lambda _: held.wait())
    waiting = bench.submit(b"never")
    await settle()
    await bench.appender.close()
    assert (await waiting).is_remote
    assert [node.spool.end for node in (bench.primary, bench.nodes[A])] == [7, 7]


async def test_fs24_a_replica_that_fails_under_a_stream_leaves_no_trace_at_the_others(bench):
    await bench.append(b"before ")
    stream = Stream()
    streamed = bench.submit(b"lost ", stream=stream)
    other = bench.nodes[A]
    while not isinstance(other.link.messages[-1], ContentMessage):
        await settle()
    bench.nodes[B].link.cut()
    stream.pieces.put_nowait(b"too ")
    with pytest.raises(RpcFailed, match='recv from zone:"C" suffix:"peer-2" : rpc error: cut'):
        await streamed
    assert bench.primary.rollbacks == 1
    await asyncio.wait_for(other.spool.lock.acquire(), 5)  # its stream has ended
    other.spool.lock.release()
    assert other.content() == b"before "
    assert not any(
        isinstance(m, ProposalMessage) and m.proposal.fragment.end > 7 for m in other.link.messages
    )
    assert await bench.append(b"after") == (7, 12)
    assert bench.contents() == [b"before after"] * 3


async def test_a_journal_leaves_though_appends_gather_behind_a_replica_that_hangs(
    bench, monkeypatch
):
    monkeypatch.setattr(module, "_LEFT_S", 0.01)
    await bench.append(b"before ")
    held = Held(monkeypatch, bench.nodes[B])
    first = bench.submit(b"maybe")
    await settle()
    second = bench.submit(b"never")
    await settle()
    assert not bench.appender.is_idle
    async with asyncio.timeout(5):
        await bench.appender.close()
    with pytest.raises(RpcFailed, match="replicas changed"):
        await first
    assert (await second).is_remote
    held.gate.set()


async def test_a_sync_that_is_cancelled_leaves_no_answer_for_the_next_one(bench):
    async with bench.nodes[B].spool.lock:  # a former primary's stream has it
        syncing = asyncio.ensure_future(  # noqa: TID251
            bench.replicator.sync(0, None, must_roll=lambda: False)
        )
        await settle()
        assert bench.replicator.has_peers
        syncing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await syncing
        assert not bench.replicator.has_peers
    assert await bench.append(b"x") == (0, 1)
    assert bench.contents() == [b"x"] * 3


async def test_who_is_not_the_primary_syncs_nothing(bench):
    """One replica or several: another broker decides what counts."""
    bench.primary.route = Route((OWN,), 0)
    assert await bench.append(b"x") == (0, 1)
    assert bench.replicator.is_synced
    bench.primary.route = Route((A,), 0)
    bench.replicator.on_change()
    assert not bench.replicator.is_synced
    bench.primary.route = Route((OWN, A, B), 1, THREE.endpoints)
    bench.replicator.on_change()
    event = await bench.replicator.sync(0, None, must_roll=lambda: False)
    assert event == Invalidated()
    assert not bench.replicator.has_peers


async def test_a_rollback_is_forgotten_by_replicas_within_a_fragment(bench):
    """The first append of a journal is a fragment of its own, which would hide it."""
    assert await bench.append(b"first ") == (0, 6)
    assert await bench.append(b"second ") == (6, 13)
    stream = stream_of(b"never", is_broken=True)
    with pytest.raises(RpcFailed, match="gone"):
        await bench.submit(stream=stream)
    assert await bench.append(b"third") == (13, 18)
    assert bench.contents() == [b"first second third"] * 3
    assert bench.primary.spool.spool.begin == 6


async def test_what_is_open_is_dropped_when_the_journal_leaves(bench, monkeypatch):
    monkeypatch.setattr(module, "_LEFT_S", 0.01)
    await bench.append(b"before ")
    held = Held(monkeypatch, bench.nodes[B])
    waiting = bench.submit(b"maybe")
    await settle()
    await bench.appender.close()
    with pytest.raises(RpcFailed, match="replicas changed"):
        await waiting
    held.gate.set()
    assert [(c.fragment.begin, c.fragment.end) for c in bench.primary.completed] == [(0, 7)]
    assert bench.primary.content() == b"before "


async def test_fs20_peers_that_are_ahead_decide(bench):
    """A primary without memory: its replicas hold more, and registers."""
    node = bench.nodes[A]
    draft = node.spool.draft(with_digest=True)
    await draft.write([b"x" * 48], 48)
    node.spool.commit(draft, LabelSet.of(reg="a"))
    outcome = await bench.submit(b"y", union_registers=LabelSet.of(other="b"))
    assert (outcome.commit.begin, outcome.commit.end) == (48, 49)
    assert outcome.registers == LabelSet.of(reg="a", other="b")
    assert [node.spool.registers for node in bench.nodes.values()] == [outcome.registers] * 2
    assert bench.contents(48) == [b"y"] * 3
    # What the primary lacks is persisted without waiting for anybody.
    await node.spool.completed()
    (completed,) = node.completed
    assert (completed.fragment.end, completed.is_primary) == (48, True)


def sent_to(bench, peer):
    """What a peer was sent: (begin, end, codec, registers, is acknowledged, has header) or bytes."""
    found = []
    for message in bench.nodes[peer].link.messages:
        if isinstance(message, ContentMessage):
            found.append((message.delta, bytes(message.content)))
        else:
            proposed, fragment = message.proposal, message.proposal.fragment
            found.append(
                (
                    fragment.begin,
                    fragment.end,
                    fragment.codec,
                    proposed.registers,
                    proposed.acknowledge,
                    message.header is not None,
                )
            )
    return found


async def test_fs3_fs20_fs21_what_peers_are_sent(bench):
    none, gzip = CompressionCodec.NONE, CompressionCodec.GZIP
    empty, before, after = LabelSet(), LabelSet.of(reg="before"), LabelSet.of(reg="after")
    node = bench.nodes[A]
    draft = node.spool.draft(with_digest=True)
    await draft.write([b"x" * 2048], 2048)
    node.spool.commit(draft, before)
    assert await bench.append() == (2048, 2048)
    expected = [
        (0, 0, none, empty, True, True),
        (2048, 2048, none, before, True, False),  # A is ahead, and has registers
    ]
    expected.append((2048, 2048, none, before, True, False))  # the barrier itself
    bench.spec = JournalSpec(NAME, 3, fragment=FragmentSpec(length=1024, codec=gzip))
    stream = Stream()
    for piece in (b"foo", b"bar", b""):
        stream.pieces.put_nowait(piece)
    outcome = await bench.submit(stream=stream, union_registers=after)
    assert (outcome.commit.begin, outcome.commit.end, outcome.commit.codec) == (2048, 2054, gzip)
    assert outcome.registers == after
    expected += [
        (2048, 2048, gzip, before, False, False),  # an empty spool takes on the codec
        (0, b"foo"),
        (3, b"bar"),
        (2048, 2054, gzip, after, True, False),
    ]
    # The first fragment of a journal ends with its first append: the next one rolls, whatever it is.
    with pytest.raises(RpcFailed, match="register modification requires non-empty Append"):
        await bench.append(union_registers=LabelSet.of(x="y"))
    await settle()
    expected.append((2054, 2054, gzip, after, False, False))
    for peer in (A, B):
        assert sent_to(bench, peer) == expected
    assert [other.spool.registers for other in bench.nodes.values()] == [after] * 2


async def test_fs5_appends_fail_while_a_replica_is_away(bench):
    open_stream = bench.primary.open_stream

    def refuse(peer, endpoint):
        link = Link()
        link.down.put_nowait(RpcFailed(Code.UNAVAILABLE, "rpc error: refused"))
        return link

    bench.primary.open_stream = refuse
    with pytest.raises(RpcFailed, match="gatherSync: recv from") as caught:
        await bench.submit(b"x")
    assert caught.value.code is Code.UNAVAILABLE
    bench.primary.open_stream = open_stream
    assert await bench.append(b"y") == (0, 1)
    assert bench.contents() == [b"y"] * 3


async def test_streams_are_sent_on_as_they_come_and_rolled_back(bench):
    await bench.append(b"before ")
    stream = Stream()
    waiting = bench.submit(stream=stream)
    stream.pieces.put_nowait(b"never")
    await settle()
    assert bench.nodes[A].link.messages[-1] == ContentMessage(0, b"never")
    stream.pieces.put_nowait(RpcFailed(Code.UNKNOWN, "append stream: unexpected EOF"))
    with pytest.raises(RpcFailed, match="unexpected EOF"):
        await waiting
    await settle()
    rollback = bench.nodes[A].link.messages[-1]
    assert rollback.proposal.acknowledge
    assert rollback.proposal.fragment.end == 7
    assert bench.primary.rollbacks == 1
    stream = Stream()
    waiting = bench.submit(stream=stream)
    for piece in (b"after", b"wards", b""):
        stream.pieces.put_nowait(piece)
    assert (await waiting).commit.end == 17
    assert bench.contents() == [b"before afterwards"] * 3


async def test_appends_planned_behind_a_failed_one_do_not_go_alone(bench, monkeypatch):
    """The pipeline breaks while a batch is written; what was planned after it syncs again."""
    await bench.append(b"x")
    held = Held(monkeypatch, bench.primary)
    first = bench.submit(b"y" * 2000)
    second = bench.submit(b"z" * 2000)  # rolls before
    await settle()
    bench.nodes[B].link.cut()
    await settle()
    held.gate.set()
    with pytest.raises(RpcFailed):
        await first
    begin = (await second).commit.begin
    assert bench.contents(begin) == [b"z" * 2000] * 3


async def test_small_batches_are_one_message(bench):
    await bench.append(b"x")
    waiting = [bench.submit(b"%d" % n) for n in range(5)]
    await asyncio.gather(*waiting)
    contents = [m for m in bench.nodes[A].link.messages if isinstance(m, ContentMessage)]
    assert [bytes(m.content) for m in contents] == [b"x", b"01234"]


async def test_large_content_is_cut_to_what_receivers_take(bench, monkeypatch):
    monkeypatch.setattr(module, "_MESSAGE_BYTES_MAX", 4)
    await bench.append(b"0123456789")
    contents = [m for m in bench.nodes[A].link.messages if isinstance(m, ContentMessage)]
    assert [(m.delta, bytes(m.content)) for m in contents] == [
        (0, b"0123"),
        (4, b"4567"),
        (8, b"89"),
    ]
    assert bench.contents() == [b"0123456789"] * 3


async def test_fs6_routes_that_change_sync_again(bench):
    await bench.append(b"one ")
    link = bench.nodes[A].link
    bench.primary.route = Route((OWN, A), 0, ("http://own", "http://a"))
    bench.replicator.on_change()
    assert not bench.replicator.is_synced
    assert await bench.append(b"two ") == (4, 8)
    assert bench.nodes[A].link is not link
    assert bench.contents() == [b"one two ", b"one two ", b"one "]
    bench.primary.route = Route((OWN,), 0)
    bench.replicator.on_change()
    assert await bench.append(b"three") == (8, 13)
    assert not bench.replicator.has_peers
    assert bench.primary.content() == b"one two three"
    # A broker that comes back is behind, and all restart where the primary ends.
    bench.primary.route = THREE
    bench.replicator.on_change()
    assert await bench.append(b"four") == (13, 17)
    assert bench.contents(13) == [b"four"] * 3


async def test_a_sync_ends_with_its_route(bench):
    async with bench.nodes[B].spool.lock:  # a former primary's stream has it
        waiting = bench.submit(b"x")
        await settle()
        assert not waiting.done()
        bench.primary.route = Route((OWN, A), 0, ("http://own", "http://a"))
        bench.replicator.on_change()
        await asyncio.wait_for(waiting, 5)
    assert bench.nodes[A].content() == b"x"


async def test_a_broker_that_left_is_not_waited_for(bench, monkeypatch):
    monkeypatch.setattr(module, "_LEFT_S", 0.01)
    await bench.append(b"one ")
    held = Held(monkeypatch, bench.nodes[B])
    waiting = bench.submit(b"two ")
    await settle()
    bench.primary.route = Route((OWN, A), 0, ("http://own", "http://a"))
    bench.replicator.on_change()
    with pytest.raises(RpcFailed, match="replicas changed"):
        await waiting
    assert await bench.append(b"three") == (8, 13)
    held.gate.set()
    assert bench.contents()[:2] == [b"one two three"] * 2


async def test_old_streams_are_replaced_between_appends(bench, monkeypatch):
    """Before the tokens expire that they were opened with."""
    await bench.append(b"x")
    link = bench.nodes[A].link
    assert await bench.append(b"y") == (1, 2)
    assert bench.nodes[A].link is link
    held = Held(monkeypatch, bench.nodes[B])
    waiting = bench.submit(b"z")
    await settle()
    bench.clock.advance(601)
    following = bench.submit(b"!")
    await settle()
    assert not waiting.done()
    held.gate.set()
    assert (await waiting).commit.end == 3
    assert (await following).commit.end == 4
    assert bench.nodes[A].link is not link
    assert bench.contents() == [b"xyz!"] * 3


@pytest.mark.parametrize("is_settled", [True, False])
async def test_fs4_a_peer_that_knows_a_later_route_is_believed(bench, monkeypatch, is_settled):
    if is_settled:
        await bench.append(b"x")
        bench.replicator.rest()
    else:
        await lost_on_its_way(bench, monkeypatch)
    await settle()
    other = Header(A, Route((OWN, A), 0), EtcdHeader(1, 1, 99, 1))
    links = []

    def refuse(peer, endpoint):
        link = Link()
        status = Answer(Status.WRONG_ROUTE) if peer == A else Answer(Status.OK)
        link.down.put_nowait(encode_answer(status, other))
        links.append(link)
        return link

    bench.primary.open_stream = refuse
    event = await bench.replicator.sync(0, None, must_roll=lambda: False)
    assert event == WrongRoute(99)
    assert not bench.replicator.has_peers
    for link in links:
        assert link.up.get_nowait() is not None
        assert link.up.get_nowait() is None, "the peer gets the end"


async def test_fs7_waiting_for_the_spool_can_be_cancelled(bench):
    await bench.primary.spool.lock.acquire()  # a former primary's stream has ours
    waiting = asyncio.ensure_future(  # noqa: TID251
        bench.replicator.sync(0, None, must_roll=lambda: False)
    )
    await settle()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not bench.replicator.owns_spool
    bench.primary.spool.lock.release()
    assert await bench.append(b"x") == (0, 1)


async def test_fs7_waiting_for_the_spool_ends_with_the_route(bench):
    await bench.primary.spool.lock.acquire()
    waiting = asyncio.ensure_future(  # noqa: TID251
        bench.replicator.sync(0, None, must_roll=lambda: False)
    )
    await settle()
    bench.primary.route = Route((OWN, A), 1)
    bench.replicator.on_change()
    assert await waiting == Invalidated()
    bench.primary.spool.lock.release()


async def test_idle_streams_are_closed(bench, monkeypatch):
    monkeypatch.setattr(module, "_IDLE_S", 0.0)
    await bench.append(b"x")
    bench.replicator._on_idle_timer()
    await settle()
    assert not bench.replicator.has_peers
    assert not any(node.spool.lock.locked() for node in bench.nodes.values())
    assert await bench.append(b"y") == (1, 2)
    assert bench.contents() == [b"xy"] * 3


@pytest.mark.parametrize("end", [b"", RpcFailed(Code.CANCELLED, "gone")])
async def test_streams_are_not_idle_while_content_comes(bench, monkeypatch, end):
    monkeypatch.setattr(module, "_IDLE_S", 0.0)
    await bench.append(b"before ")
    stream = Stream()
    waiting = bench.submit(stream=stream)
    stream.pieces.put_nowait(b"however long")
    await settle()
    bench.replicator._on_idle_timer()
    stream.pieces.put_nowait(end)
    await asyncio.gather(waiting, return_exceptions=True)
    await settle()
    assert bench.contents() == [b"before " if end else b"before however long"] * 3
    bench.replicator._on_idle_timer()
    assert not bench.replicator.has_peers


async def test_replicas_that_stall_are_given_up(bench, monkeypatch):
    await bench.append(b"x")
    held = Held(monkeypatch, bench.nodes[B])
    waiting = bench.submit(b"y")
    await settle()
    bench.replicator._on_idle_timer()
    assert not waiting.done()
    bench.clock.advance(61)
    bench.replicator._on_idle_timer()
    with pytest.raises(RpcFailed, match="have not answered for 60 s"):
        await waiting
    held.gate.set()


async def test_after_unforeseen_error_replicas_forget_what_they_were_sent(bench, monkeypatch):
    """Else they would refuse the content of the next append, as if some of it were missing."""
    await bench.append(b"before ")
    link, write = bench.nodes[A].link, Draft.write

    async def fail(draft, chunks, length):
        if draft.digester is bench.primary.spool.digester:
            while not isinstance(link.messages[-1], ContentMessage):
                await settle()
            raise KeyError("unforeseen")
        await write(draft, chunks, length)

    with monkeypatch.context() as patch:
        patch.setattr(Draft, "write", fail)
        patch.setattr(Draft, "write_at_once", lambda *_: False)
        with pytest.raises(RpcFailed, match="unforeseen KeyError"):
            await bench.append(b"lost ")
    assert link.messages[-1] == ContentMessage(0, b"lost ")
    assert await bench.append(b"after") == (7, 12)
    assert bench.contents() == [b"before after"] * 3


async def test_batch_that_cannot_be_recorded_is_unknown_to_replicas(bench, monkeypatch):
    await bench.append(b"before ")

    def fail(*_):
        raise RpcFailed(Code.UNAVAILABLE, "the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(bench.primary.spool, "keep_at_once", fail)
        with pytest.raises(RpcFailed, match="the disk is full"):
            await bench.append(b"lost")
    contents = [m for m in bench.nodes[A].link.messages if isinstance(m, ContentMessage)]
    assert [bytes(m.content) for m in contents] == [b"before "]
    assert await bench.append(b"after") == (7, 12)
    assert bench.contents() == [b"before after"] * 3


@pytest.mark.parametrize(
    ("lacking", "content"),
    [
        pytest.param((B,), b"before maybe after", id="some have it"),
        pytest.param((A, B), b"before after", id="no replica has it"),
    ],
)
async def test_after_unforeseen_error_proposals_under_way_end(bench, monkeypatch, lacking, content):
    """As their streams do: they would never learn of an answer."""
    monkeypatch.setattr(module, "_SMALL_BYTES_MAX", 0)  # the second append goes at once
    await bench.append(b"before ")
    held = [Held(monkeypatch, bench.nodes[peer]) for peer in lacking]
    first = bench.submit(b"maybe ")
    await settle()
    with monkeypatch.context() as patch:
        patch.setattr(bench.primary.spool, "draft", lambda **_: {}["unforeseen"])
        with pytest.raises(RpcFailed, match="unforeseen KeyError"):
            await bench.append(b"never")
    with pytest.raises(RpcFailed, match="an append failed"):
        await asyncio.wait_for(first, 5)
    for peer in lacking:
        bench.nodes[peer].link.cut()  # with the proposal
    for one in held:
        one.gate.set()
    # If a replica may have shown it, it stays, and nothing takes its place.
    assert await bench.append(b"after") == (len(content) - 5, len(content))
    assert bench.primary.content() == content


@pytest.mark.parametrize("sender", [A, B])
async def test_who_waits_for_a_spool_displaces_only_its_own_older_stream(
    bench, monkeypatch, sender
):
    """That of another primary ends by itself, and says why."""
    monkeypatch.setattr(replicate_api, "_DISPLACE_AFTER_S", 0.0)
    spool, api = bench.primary.spool, ReplicateApi(None)
    holder = api._reigns[spool] = _Reign(None, None, A)
    await spool.lock.acquire()
    waiting = asyncio.ensure_future(api._acquire(spool, sender))  # noqa: TID251
    await settle()
    assert holder.interrupt.is_fired == (sender == A)
    assert not waiting.done()
    spool.lock.release()
    await asyncio.wait_for(waiting, 5)
    spool.lock.release()


async def test_a_sender_that_was_replaced_meanwhile_does_not_move_the_spool(bench):
    """Reading back what is not digested yet takes a while, in which a route may change."""
    node, tenure = bench.nodes[A], Interrupt()
    draft = node.spool.draft(with_digest=False)
    content = b"x" * (100 << 10)  # hashed in a thread
    await draft.write([content], len(content))
    node.spool.commit(draft, LabelSet())
    session = _Session(Link(), node.spool, tenure, Header(None, THREE, EtcdHeader(1, 1, 1, 1)))
    beyond = Fragment(NAME, 1 << 20, 1 << 20, ZERO_SUM, CompressionCodec.NONE)
    first = decode_request(encode_proposal(beyond, LabelSet(), acknowledge=True))
    gate = threading.Event()
    for _ in range(2):  # all threads that there are
        node.spool._executor.submit(gate.wait, 10)
    running = asyncio.ensure_future(session.run(first))  # noqa: TID251
    await settle()
    assert node.spool.digester.spool.digest_lag, "it waits for a thread"
    tenure.fire()
    gate.set()
    with pytest.raises(Interrupted):
        await running
    assert (node.spool.spool.begin, node.spool.end) == (0, len(content))


async def test_a_primary_without_its_lease_sends_nothing(bench):
    await bench.append(b"x")
    bench.primary.refusal = "the lease of this broker has run out"
    with pytest.raises(RpcFailed, match="a/journal: the lease of this broker has run out; ask"):
        await bench.submit(b"y")
    contents = [m for m in bench.nodes[A].link.messages if isinstance(m, ContentMessage)]
    assert contents == [ContentMessage(0, b"x")]
    bench.primary.refusal = ""
    assert await bench.append(b"z") == (1, 2)


async def test_content_that_was_sent_is_not_proposed_once_others_may_have_taken_over(bench):
    """Replicas that do not know of it yet would agree, and show it to their readers."""
    await bench.append(b"before ")
    stream = Stream()
    waiting = bench.submit(stream=stream)
    stream.pieces.put_nowait(b"never")
    await settle()
    bench.primary.refusal = "the lease of this broker has run out"
    stream.pieces.put_nowait(b"")
    with pytest.raises(RpcFailed, match="the lease of this broker has run out"):
        await waiting
    await settle()
    assert bench.contents() == [b"before "] * 3
    bench.primary.refusal = ""
    assert await bench.append(b"after") == (7, 12)
    assert bench.contents() == [b"before after"] * 3


# ------------------------------------------------------------------------------------- any history
ROUTES = [THREE, Route((OWN, A), 0), Route((OWN, B), 0), Route((OWN,), 0)]
STEPS = ("append", "append", "append", "stream", "cut", "route", "rest", "wait")


def stream_of(content, *, is_broken):
    stream = Stream()
    for piece in (content[: len(content) // 2], content[len(content) // 2 :]):
        stream.pieces.put_nowait(piece)
    stream.pieces.put_nowait(RpcFailed(Code.UNKNOWN, "gone") if is_broken else b"")
    return stream


async def run_at_random(bench, rng):
    """Returns: the content and the outcome of each append."""
    waiting = []
    for number in range(60):
        match rng.choice(STEPS):
            case "append":
                content = b"%d." % number * rng.choice([1, 10, 400])
                waiting.append((content, bench.submit(content)))
            case "stream":
                content = b"<%d>" % number * rng.choice([1, 300])
                stream = stream_of(content, is_broken=rng.random() < 0.3)
                waiting.append((content, bench.submit(stream=stream)))
            case "cut":
                node = bench.nodes[rng.choice([A, B])]
                if node.link is not None:
                    node.link.cut()
            case "route":
                bench.primary.route = rng.choice(ROUTES)
                bench.replicator.on_change()
            case "rest":
                bench.replicator.rest()
            case _:
                await settle(rng.randrange(40))
    outcomes = await asyncio.gather(*(done for _, done in waiting), return_exceptions=True)
    return [(content, one) for (content, _), one in zip(waiting, outcomes, strict=True)]


@pytest.mark.parametrize("seed", range(25))
async def test_what_is_acknowledged_stays_whatever_fails(bench, monkeypatch, seed):
    """Appends, cut streams, changing routes and idle times in random order."""
    monkeypatch.setattr(module, "_LEFT_S", 0.0)
    outcomes = await run_at_random(bench, random.Random(seed))
    bench.primary.route = THREE
    bench.replicator.on_change()
    begin, end = await bench.append(b"the end")
    journal = bench.primary.content()
    assert len(journal) == end
    taken = bytearray(end)
    for content, outcome in outcomes:
        if not isinstance(outcome, RpcFailed):
            commit = outcome.commit
            assert journal[commit.begin : commit.end] == content
            assert not any(taken[commit.begin : commit.end]), "offsets are given out once"
            taken[commit.begin : commit.end] = b"x" * len(content)
    assert any(taken)
    for node in bench.nodes.values():
        assert node.content(begin) == b"the end"
        for fragment in node.index._all:  # whatever a replica shows is the journal's
            shown = node.content(fragment.begin)
            assert journal[fragment.begin :][: len(shown)] == shown
