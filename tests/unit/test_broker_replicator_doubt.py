"""Replicas that fail or change with content under way: who may have it, and what is planned after it."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from replication_bench import OWN, THREE, A, B, Bench, Held, Link, settle

from gazette_platform.broker.append.fsm import AppendFSM
from gazette_platform.broker.replicate import replicator as module
from gazette_platform.errors import EtcdError
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.protocol import AppendSuspend, LabelSet, ProcessId, Route
from gazette_platform.serving.interface import Code, RpcFailed


@pytest.fixture(params=[False, True], ids=["turn by turn", "at once"])
async def bench(request, monkeypatch, tmp_path):
    monkeypatch.setattr(Link, "is_direct", request.param)
    tasks = TaskGroup("test")
    with ThreadPoolExecutor(2) as executor:
        found = Bench(tmp_path, tasks, executor)
        yield found
        for node in (found.primary, *found.nodes.values()):
            node.index.close()
        await tasks.close()
    assert tasks.failure is None


async def proposed(bench, monkeypatch, content, *nodes):
    """Propose content to replicas that hold it back.

    Returns: what cuts the links to them, has the append fail by it, and lets them go on.
    """
    held = [Held(monkeypatch, node) for node in nodes]
    waiting = bench.submit(content)
    await settle()

    async def lose():
        for node in nodes:
            node.link.cut()
        with pytest.raises(RpcFailed, match="recv from"):
            await waiting
        for one in held:
            one.gate.set()

    return lose


async def seen_at_one(bench, monkeypatch):
    """Content that one replica shows to its readers, and the one that stays has not got."""
    await bench.append(b"before ")
    lose = await proposed(bench, monkeypatch, b"seen ", bench.nodes[A])
    await lose()
    assert bench.nodes[B].content() == b"before seen "
    bench.primary.route = Route((OWN, A), 0, ("http://own", "http://a"))
    bench.replicator.on_change()


async def test_who_was_proposed_content_is_remembered_over_streams_that_follow(bench, monkeypatch):
    """Its readers may have seen it, though it was not there when the streams broke once more."""
    await seen_at_one(bench, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(bench.nodes[A], "serve", lambda _: asyncio.Event().wait())
        waiting = bench.submit(b"never")
        await settle()
        bench.nodes[A].link.cut()
        with pytest.raises(RpcFailed, match="recv from"):
            await waiting
    assert await bench.append(b"after") == (12, 17)
    assert bench.primary.content() == b"before seen after"


async def test_content_without_a_copy_is_forgotten_though_a_replica_lags(bench, monkeypatch):
    """It restarts where the settled content ends, and all the others with it."""
    await bench.append(b"a ")  # which alone is the first fragment
    await bench.append(b"fragment ")
    lose = await proposed(bench, monkeypatch, b"lost", *bench.nodes.values())
    await lose()
    former, bench.nodes[A] = bench.nodes[A], bench.make_node()
    assert await bench.append(b"after") == (11, 16)
    assert bench.contents(11) == [b"after"] * 3
    assert bench.primary.content() == b"a fragment after"
    former.index.close()


async def lost_where_a_fragment_ends(bench, monkeypatch, lengths):
    """Appends that were proposed and reached no replica; each is more than a fragment should hold."""
    monkeypatch.setattr(module, "_SMALL_BYTES_MAX", 0)  # each is proposed at once
    await bench.append(b"before ")
    held = [Held(monkeypatch, node) for node in bench.nodes.values()]
    waiting = []
    for length in lengths:
        waiting.append(bench.submit(b"x" * length))
        await settle()
    assert bench.primary.spool.end == 7 + sum(lengths)
    for node in bench.nodes.values():
        node.link.cut()
    for one in waiting:
        with pytest.raises(RpcFailed, match="recv from"):
            await one
    for one in held:
        one.gate.set()


ENDING = pytest.mark.parametrize(
    "lengths",
    [(2000,), (2000, 2000), (2000, 2000, 2000)],
    ids=["a roll is due", "it crossed a roll", "it crossed two"],
)


@ENDING
async def test_what_no_replica_has_is_forgotten_where_a_fragment_ends(bench, monkeypatch, lengths):
    await lost_where_a_fragment_ends(bench, monkeypatch, lengths)
    assert await bench.append(b"after ") == (7, 13)
    assert await bench.append(b"all") == (13, 16)
    assert bench.contents() == [b"before after all"] * 3
    await bench.primary.spool.completed()
    assert [c.fragment.end for c in bench.primary.completed] == [7]


@ENDING
async def test_no_replica_is_moved_after_content_without_a_copy_where_a_fragment_ends(
    bench, monkeypatch, lengths
):
    """Its primary may leave before it says more: the journal would go on after a hole."""
    await lost_where_a_fragment_ends(bench, monkeypatch, lengths)
    await leave_while_one_hangs(bench, monkeypatch, bench.nodes[B])
    assert [node.spool.end for node in (bench.primary, bench.nodes[A])] == [7, 7]


@ENDING
async def test_no_replica_is_moved_before_all_are_there_to_take_what_another_may_have(
    bench, monkeypatch, lengths
):
    """That one has left the journal: what it may have counts, once all others agree."""
    await lost_where_a_fragment_ends(bench, monkeypatch, lengths)
    new = ProcessId("D", "peer-3")
    bench.nodes[new] = bench.make_node()
    bench.primary.route = Route((OWN, A, new), 0, ("http://own", "http://a", "http://new"))
    bench.replicator.on_change()
    await leave_while_one_hangs(bench, monkeypatch, bench.nodes[new])
    assert [node.spool.end for node in (bench.primary, bench.nodes[A])] == [7, 7]


async def leave_while_one_hangs(bench, monkeypatch, node):
    """The primary syncs for an append that `node` does not hear of, and leaves."""
    held = asyncio.Event()
    monkeypatch.setattr(node, "serve", lambda _: held.wait())
    waiting = bench.submit(b"never")
    await settle()
    await bench.appender.close()
    assert (await waiting).is_remote


@ENDING
async def test_what_one_replica_has_keeps_its_offsets_where_a_fragment_ends(
    bench, monkeypatch, lengths
):
    monkeypatch.setattr(module, "_SMALL_BYTES_MAX", 0)
    await bench.append(b"before ")
    lacking, held = bench.nodes[A], Held(monkeypatch, bench.nodes[A])
    waiting = []
    for length in lengths:
        waiting.append(bench.submit(b"x" * length))
        await settle()
    lacking.link.cut()
    for one in waiting:
        with pytest.raises(RpcFailed, match="recv from"):
            await one
    held.gate.set()
    end = 7 + sum(lengths)
    assert await bench.append(b"after") == (end, end + 5)
    whole = b"before " + b"x" * sum(lengths) + b"after"
    assert bench.primary.content() == bench.nodes[B].content() == whole
    assert bench.nodes[A].content(end) == b"after"


async def test_what_may_have_been_seen_keeps_its_offsets_through_unforeseen_error(
    bench, monkeypatch
):
    await seen_at_one(bench, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(AppendFSM, "start", lambda _: {}["unforeseen"])
        with pytest.raises(RpcFailed, match="unforeseen KeyError"):
            await bench.append(b"never")
    assert await bench.append(b"after") == (12, 17)
    assert bench.primary.content() == b"before seen after"
    assert bench.nodes[A].content(12) == b"after"


async def test_what_a_broker_that_left_has_shown_keeps_its_offsets(bench, monkeypatch):
    """The streams to it were given up rather than broken."""
    monkeypatch.setattr(module, "_LEFT_S", 0.01)
    await bench.append(b"before ")
    lacking, held = bench.nodes[A], Held(monkeypatch, bench.nodes[A])
    waiting = bench.submit(b"seen ")
    await settle()
    assert bench.nodes[B].content() == b"before seen "
    bench.primary.route = Route((OWN, A), 0, ("http://own", "http://a"))
    bench.replicator.on_change()
    with pytest.raises(RpcFailed, match="replicas changed"):
        await waiting
    lacking.link.cut()  # with the proposal
    held.gate.set()
    assert await bench.append(b"after") == (12, 17)
    assert bench.primary.content() == b"before seen after"


async def test_a_journal_is_not_suspended_at_an_end_that_no_replica_has(bench, monkeypatch):
    """Whoever resumes it would go on after a hole."""
    monkeypatch.setattr(module, "_SMALL_BYTES_MAX", 0)  # the suspension is planned at once
    offsets = []

    async def write_suspend(suspend):
        offsets.append(suspend.offset)
        raise EtcdError("etcd is away")

    bench.primary.write_suspend = write_suspend
    await bench.append(b"before ")
    lose = await proposed(bench, monkeypatch, b"lost", *bench.nodes.values())
    suspended = bench.submit(suspend=AppendSuspend.SUSPEND_NOW)
    await settle()
    await lose()
    with pytest.raises(EtcdError):
        await suspended
    assert offsets == [7]


async def test_appends_planned_before_replicas_came_do_not_go_alone(bench, monkeypatch):
    """While those before them are written; they would be acknowledged by the primary alone."""
    bench.primary.route = Route((OWN,), 0)
    await bench.append(b"x")
    held = Held(monkeypatch, bench.primary)
    first = bench.submit(b"y" * 100_000)  # which a thread writes
    second = bench.submit(b"z")  # rolls before
    await settle()
    bench.primary.route = THREE
    bench.replicator.on_change()
    held.gate.set()
    assert (await first).commit.end == 100_001
    assert (await second).commit.begin == 100_001
    assert bench.contents(100_001) == [b"z"] * 3


async def test_a_replica_closes_once_the_stream_that_has_its_spool_has_ended(bench):
    """What that commits last is acknowledged, and persisted as all else."""
    spool = bench.primary.spool
    await spool.lock.acquire()  # another broker's stream has it
    closing = asyncio.ensure_future(bench.appender.close())  # noqa: TID251
    await settle()
    assert not closing.done()
    draft = spool.draft(with_digest=True)
    await draft.write([b"last"], 4)
    spool.commit(draft, LabelSet())
    spool.lock.release()
    await asyncio.wait_for(closing, 5)
    assert [c.fragment.end for c in bench.primary.completed] == [4]


async def test_what_is_under_way_is_answered_before_replicas_that_came_are_synced(
    bench, monkeypatch
):
    """By those that it was proposed to: the streams to them are closed for the sync."""
    monkeypatch.setattr(module, "_SMALL_BYTES_MAX", 0)  # the second append is planned at once
    bench.primary.route = Route((OWN, A), 0, ("http://own", "http://a"))
    await bench.append(b"before ")
    held = Held(monkeypatch, bench.nodes[A])
    first = bench.submit(b"first ")
    await settle()
    bench.primary.route = THREE
    bench.replicator.on_change()
    second = bench.submit(b"second")
    await settle()
    held.gate.set()
    outcomes = await asyncio.wait_for(asyncio.gather(first, second), 5)
    assert [outcome.commit.begin for outcome in outcomes] == [7, 13]
    assert bench.primary.content() == b"before first second"
    assert bench.contents(13) == [b"second"] * 3


@pytest.mark.parametrize("broken", [A, B], ids=["the first", "the last"])
async def test_sync_whose_streams_broke_after_the_answers_leaves_no_replica_out(
    bench, monkeypatch, broken
):
    """The primary took all replicas for synced, and acknowledged what it alone had."""
    send, answered = Link.send, []

    async def send_and_end(link, raw):
        await send(link, raw)
        answered.append(link)
        if len(answered) == len(bench.nodes):
            monkeypatch.setattr(Link, "send", send)
            bench.nodes[broken].link.down.put_nowait(RpcFailed(Code.UNAVAILABLE, "it restarts"))

    monkeypatch.setattr(Link, "send", send_and_end)
    with pytest.raises(RpcFailed, match="it restarts"):
        await bench.append(b"content")
    assert not bench.replicator.is_synced
    found = await bench.append(b"content")
    assert found == (0, 7)
    assert bench.contents() == [b"content"] * 3
