"""The appender: batches, order, rolls in between, callers that leave, closing."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os

import pytest
from appender_bench import Stream, running_bench, span, spec

from gazette_platform.broker.append import appender as module, batch as batches, events, fsm
from gazette_platform.broker.append.batch import Outcome, Pending
from gazette_platform.broker.spool import digester, journal_spool
from gazette_platform.broker.spool.journal_spool import Draft, JournalSpool
from gazette_platform.broker.spool.spool import Spool
from gazette_platform.errors import EtcdError
from gazette_platform.protocol import (
    ZERO_SUM,
    AppendSuspend,
    CompressionCodec,
    Fragment,
    JournalFlag,
    LabelSelector,
    LabelSet,
    Status,
)
from gazette_platform.serving.interface import Code, RpcFailed
from gazette_platform.testing.waiting import eventually, turns


@pytest.fixture
async def bench(tmp_path):
    async with running_bench(tmp_path) as made:
        yield made


# ------------------------------------------------------------------------------------- one append
async def test_aa1_an_append_is_committed(bench):
    outcome = await bench.append(b"foobar")
    digest = hashlib.sha1(b"foobar", usedforsecurity=False).digest()
    assert outcome.commit == Fragment("a/journal", 0, 6, digest, CompressionCodec.NONE)
    assert (outcome.status, outcome.registers) == (Status.OK, LabelSet())
    assert bench.journal.commits == [(0, 6, 1, 6)]
    assert bench.read() == b"foobar"


async def test_barrier_commits_nothing_and_returns_the_head(bench):
    await bench.append(b"foobar")
    outcome = await bench.append()
    assert outcome.commit == Fragment("a/journal", 6, 6, ZERO_SUM, CompressionCodec.NONE)
    assert len(bench.journal.commits) == 1


async def test_aa2_registers_go_from_append_to_append(bench):
    first = bench.submit(b"x", union_registers=LabelSet.of(reg="1"))
    second = bench.submit(b"y", check_registers=LabelSelector.parse("reg=2"))
    third = bench.submit(b"z", check_registers=LabelSelector.parse("reg=1"))
    assert (await first).registers == LabelSet.of(reg="1")
    refused = await second
    assert (refused.status, refused.registers) == (Status.REGISTER_MISMATCH, LabelSet.of(reg="1"))
    assert span(await third) == (Status.OK, 1, 2)
    assert bench.read() == b"xz"


async def test_aa6_registers_need_content(bench):
    with pytest.raises(RpcFailed, match="register modification requires non-empty Append"):
        await bench.append(union_registers=LabelSet.of(a="1"))
    assert bench.appender.spool.registers == LabelSet()
    assert bench.journal.rollbacks == 1


async def test_aa11_a_read_only_journal(bench):
    bench.journal.spec = spec(flags=JournalFlag.O_RDONLY)
    assert (await bench.append(b"x")).status is Status.NOT_ALLOWED
    assert (await bench.append()).status is Status.OK
    assert bench.journal.commits == []


# ---------------------------------------------------------------------------------------- batches
async def test_fs26_concurrent_appends_share_a_commit_in_their_order(bench):
    await bench.append(b"start ")
    await bench.append(b"roll ")  # the first fragment was flushed
    bench.journal.commits.clear()
    outcomes = await asyncio.gather(*(bench.append(b"%d," % n) for n in range(10)))
    assert [span(o)[1] for o in outcomes] == [11 + 2 * n for n in range(10)]
    assert bench.journal.commits == [(6, 31, 10, 20)]
    assert bench.read() == b"start roll 0,1,2,3,4,5,6,7,8,9,"


async def test_fs21_the_first_fragment_ends_with_the_first_append(bench):
    """Even if the second one was waiting already."""
    await asyncio.gather(bench.append(b"one"), bench.append(b"two"), bench.append(b"three"))
    assert bench.journal.commits == [(0, 3, 1, 3), (3, 11, 2, 8)]
    await bench.tasks.join()
    assert [c.fragment.end for c in bench.journal.completed] == [3]


async def test_a_batch_rolls_where_a_single_append_would(bench):
    bench.journal.spec = spec(length=1024)
    await bench.append(b"x")
    outcomes = await asyncio.gather(*(bench.append(b"y" * 600) for _ in range(5)))
    assert [span(o)[1] for o in outcomes] == [1, 601, 1201, 1801, 2401]
    await bench.appender.close()
    ends = [(c.fragment.begin, c.fragment.end) for c in bench.journal.completed]
    assert sorted(ends) == [(0, 1), (1, 1201), (1201, 2401), (2401, 3001)]
    assert bench.read() == b"x" + b"y" * 3000


async def test_what_a_plan_found_ends_with_a_roll(bench):
    """Each first append after one that rolled is judged by the fragment that is open by then."""
    bench.journal.spec = spec(length=10)
    await bench.append(b"x" * 20)
    outcomes = await asyncio.gather(*(bench.append(b"yy") for _ in range(4)))
    assert [span(outcome)[1] for outcome in outcomes] == [20, 22, 24, 26]
    await bench.appender.close()
    ends = sorted((c.fragment.begin, c.fragment.end) for c in bench.journal.completed)
    assert ends == [(0, 20), (20, 28)]


async def test_small_appends_to_one_replica_need_no_task(bench, monkeypatch):
    await bench.append(b"a")
    await bench.append(b"b")
    await bench.tasks.join()
    monkeypatch.setattr(bench.tasks, "spawn", None)
    outcomes = await asyncio.gather(*(bench.append(b"%d" % n) for n in range(5)))
    assert [span(outcome)[1] for outcome in outcomes] == [2, 3, 4, 5, 6]
    assert bench.appender.is_idle


async def test_an_append_that_a_stopped_broker_took_is_refused(bench):
    await bench.append(b"before")
    await bench.tasks.close()
    with pytest.raises(RpcFailed, match="this broker has stopped"):
        await bench.append(b"x")
    assert bench.appender.is_idle
    assert bench.read() == b"before"


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_what_was_planned_on_a_batch_that_is_refused_starts_over(bench, is_streamed):
    """By the fence, for a moment: a renewal of the lease was on its way."""
    await bench.append(b"12345678901")
    await bench.append(b"x")
    bench.journal.spec = spec(length=1 << 20 if is_streamed else 10)  # else the second one rolls
    bench.journal.refusal = "the lease of this broker has run out"
    first = bench.submit(b"A" * 20, union_registers=LabelSet.of(owner="A"))
    first.add_done_callback(lambda _: setattr(bench.journal, "refusal", ""))
    stream = Stream() if is_streamed else None
    owned = LabelSelector.parse("owner=A")
    second = bench.submit(b"" if stream else b"B", stream=stream, offset=32, check_registers=owned)
    with pytest.raises(RpcFailed, match="has run out"):
        await first
    assert (await second).status is Status.WRONG_APPEND_OFFSET
    assert (bench.spool.end, bench.spool.registers) == (12, LabelSet())
    assert (await bench.append(b"C", offset=12)).status is Status.OK


async def test_a_journal_is_not_suspended_at_an_end_that_did_not_come_about(bench, monkeypatch):
    await bench.append(b"one")
    await bench.append(b"two")
    real, errors = os.pwrite, [OSError(28, "No space left on device")] * 2

    def pwrite(*arguments):
        if errors:
            raise errors.pop()
        return real(*arguments)

    monkeypatch.setattr(os, "pwrite", pwrite)
    refused = bench.submit(b"A" * 10)
    suspended = bench.submit(suspend=AppendSuspend.SUSPEND_NOW)
    with pytest.raises(RpcFailed, match="No space left"):
        await refused
    with pytest.raises(EtcdError):
        await suspended
    assert bench.journal.log == ["suspend PARTIAL 6"]


@pytest.mark.parametrize(("name", "limit"), [("BATCH_APPENDS_MAX", 3), ("BATCH_BYTES_MAX", 6)])
async def test_batches_are_bounded(bench, monkeypatch, name, limit):
    await bench.append(b"x")
    await bench.append(b"x")
    bench.journal.commits.clear()
    monkeypatch.setattr(batches, name, limit)
    await asyncio.gather(*(bench.append(b"yy") for _ in range(7)))
    assert [appends for _, _, appends, _ in bench.journal.commits] == [3, 3, 1]


async def test_refusals_within_a_batch_do_not_disturb_it(bench):
    await bench.append(b"a")
    await bench.append(b"b")
    outcomes = await asyncio.gather(
        bench.append(b"c"),
        bench.append(b"d", offset=2),
        bench.append(b"e", offset=3),
        bench.append(),
        bench.append(b"f"),
    )
    statuses = [o.status for o in outcomes]
    assert statuses == [
        Status.OK,
        Status.WRONG_APPEND_OFFSET,
        Status.OK,
        Status.OK,
        Status.OK,
    ]
    assert outcomes[3].commit.begin == 4
    assert bench.read() == b"abcef"


async def test_large_batches_are_written_by_a_thread(bench):
    bench.journal.spec = spec(length=1 << 30)
    contents = [bytes([65 + n]) * (200 << 10) for n in range(8)]
    await asyncio.gather(*(bench.append(content) for content in contents))
    assert bench.read() == b"".join(contents)


async def test_a_sum_that_is_still_being_computed_is_waited_for(bench):
    loop, has_asked = asyncio.get_running_loop(), asyncio.Event()
    computed, done = loop.create_future(), loop.create_future()

    async def late_sum():
        has_asked.set()
        return await computed

    machine = fsm.AppendFSM(events.AppendRequest("a/journal"))
    bench.appender.submit(Pending(machine, done, chunks=[b"x"], length=1, sum=late_sum()))
    await asyncio.wait_for(has_asked.wait(), 10)
    assert not done.done()
    computed.set_result(b"s" * 20)
    assert (await done).commit.sum == b"s" * 20


async def test_the_queue_is_bounded(bench, monkeypatch):
    monkeypatch.setattr(module, "_QUEUE_MAX", 2)
    bench.journal.is_ready = False
    waiting = [bench.submit(b"x"), bench.submit(b"y")]
    with pytest.raises(RpcFailed, match="2 appends are waiting already") as caught:
        bench.submit(b"z")
    assert caught.value.code is Code.UNAVAILABLE
    bench.journal.gate.set()
    assert [(await done).status for done in waiting] == [Status.OK, Status.OK]


async def test_disk_errors_are_waited_out(bench, monkeypatch, caplog):
    monkeypatch.setattr(journal_spool, "DISK_RETRY_S", 0.0)
    real, failures = os.pwrite, [OSError(28, "No space left on device")] * 3

    def pwrite(*arguments):
        if failures:
            raise failures.pop()
        return real(*arguments)

    monkeypatch.setattr(os, "pwrite", pwrite)
    assert span(await bench.append(b"foobar")) == (Status.OK, 0, 6)
    assert bench.read() == b"foobar"
    assert "check the disk of --broker.spool-dir" in caplog.text


async def test_appends_wait_while_the_digest_lags(bench, monkeypatch):
    bench.journal.spec = spec(length=1 << 30)
    monkeypatch.setattr(digester, "LAG_BYTES_MAX", 2 << 20)
    monkeypatch.setattr(digester.Digester.below, "__defaults__", (2 << 20,))
    lags = []
    for _ in range(8):
        await bench.append(bytes(1 << 20))
        lags.append(bench.appender.spool.digest_lag)
    assert max(lags) <= 3 << 20


# ------------------------------------------------------------------------------------------ rolls
async def test_a_changed_codec_is_taken_on_by_an_empty_spool_only(bench):
    bench.journal.spec = spec(codec=CompressionCodec.GZIP)
    first = await bench.append(b"x")
    assert first.commit.codec is CompressionCodec.GZIP
    bench.journal.spec = spec(codec=CompressionCodec.ZSTANDARD)
    second = await bench.append(b"y")  # rolls the first fragment
    assert second.commit.codec is CompressionCodec.ZSTANDARD
    bench.journal.spec = spec(codec=CompressionCodec.SNAPPY)
    third = await bench.append(b"z")
    assert third.commit.codec is CompressionCodec.ZSTANDARD


async def test_fs27_an_offset_resets_the_head(bench):
    stored = Fragment("a/journal", 0, 1024, b"s" * 20, backing_store="file:///", mod_time=1)
    bench.journal.index.add_remote(stored)
    assert (await bench.append(b"x")).status is Status.INDEX_HAS_GREATER_OFFSET
    assert (await bench.append(b"x", offset=512)).status is Status.WRONG_APPEND_OFFSET
    assert span(await bench.append(offset=1024)) == (Status.OK, 1024, 1024)
    assert span(await bench.append(b"xyz")) == (Status.OK, 1024, 1027)


async def test_roll_if_due_closes_at_the_end_of_the_window(bench):
    bench.journal.spec = spec(flush_s=60)  # the manual clock stands at second 5
    await bench.append(b"a")
    await bench.append(b"b")
    bench.clock.advance(54)
    assert bench.appender.roll_if_due()
    assert bench.appender.spool.content_length == 1
    bench.clock.advance(1)
    assert bench.appender.roll_if_due()
    assert bench.appender.spool.content_length == 0
    await bench.tasks.join()
    assert sorted(c.fragment.end for c in bench.journal.completed) == [1, 2]
    assert span(await bench.append(b"c")) == (Status.OK, 2, 3)


async def test_an_append_after_the_window_rolls_first(bench):
    bench.journal.spec = spec(flush_s=60)
    await bench.append(b"a")
    await bench.append(b"b")
    bench.clock.advance(55)
    await bench.append(b"c")
    assert bench.journal.commits[-1] == (2, 3, 1, 1)


async def test_roll_if_due_asks_to_come_again_while_appends_are_under_way(bench):
    bench.journal.is_ready = False
    waiting = bench.submit(b"x")
    await turns()
    assert not bench.appender.roll_if_due()
    bench.journal.gate.set()
    await waiting
    assert bench.appender.roll_if_due()


async def test_sums_are_known_from_commit_to_completion(bench, monkeypatch):
    """A listing between roll and completion must not show a zero sum."""
    await bench.append(b"foobar")
    digest = hashlib.sha1(b"foobar", usedforsecurity=False).digest()
    assert (await bench.spool.digested(0)).sum == digest
    bench.appender._planner.roll(6)
    assert bench.journal.completed == []
    assert (await bench.spool.digested(0)).sum == digest
    await bench.tasks.join()
    assert bench.journal.completed[0].fragment.sum == digest
    assert await bench.spool.digested(0) is None, "the journal knows"


# ------------------------------------------------------------------------- waiting, and its errors
async def test_fs8_assignments_are_brought_up_to_date(bench):
    bench.journal.is_consistent = False
    bench.journal.gate.set()
    assert (await bench.append(b"x")).status is Status.OK
    assert bench.journal.log == ["update"]


async def test_etcd_errors_fail_one_append_only(bench):
    bench.journal.is_consistent = False
    with pytest.raises(EtcdError, match="etcd is away"):
        await bench.append(b"x")
    bench.journal.gate.set()
    assert span(await bench.append(b"y")) == (Status.OK, 0, 1)
    with pytest.raises(EtcdError, match="etcd is away"):
        await bench.append(suspend=AppendSuspend.SUSPEND_NOW)
    assert bench.journal.log[-1] == "suspend PARTIAL 1"
    assert span(await bench.append(b"z")) == (Status.OK, 1, 2)


async def test_revisions_are_waited_for(bench):
    waiting = bench.submit(b"x", min_revision=12)
    await turns()
    assert not waiting.done()
    bench.journal.gate.set()
    assert (await waiting).status is Status.OK
    assert bench.journal.log == ["wait 12"]


async def test_too_few_replicas_are_waited_for(bench):
    bench.journal.replicas = (1, 2)
    waiting = bench.submit(b"x", wait_until=60.0)
    await turns(2)  # the first step is done, and the next one has begun
    assert bench.journal.log == ["wait 11"]
    bench.journal.replicas = (2, 2)
    bench.journal.gate.set()
    assert (await waiting).status is Status.OK


async def test_too_few_replicas_are_waited_for_no_longer_than_asked(bench):
    bench.journal.replicas = (1, 2)
    waiting = bench.submit(b"x", wait_until=0.01)
    await turns(2)  # the first step is done, and the next one has begun
    bench.clock.advance(1)
    assert (await waiting).status is Status.INSUFFICIENT_JOURNAL_BROKERS


async def test_fs15_too_many_replicas_wait_for_a_change(bench):
    """And do not spin meanwhile."""
    bench.journal.replicas = (2, 1)
    waiting = bench.submit(b"x")
    await turns(2)  # the first step is done, and the next one has begun
    assert bench.journal.log == ["wait 11"]
    bench.journal.replicas = (1, 1)
    bench.journal.gate.set()
    assert (await waiting).status is Status.OK


async def test_fs16_an_unhealthy_store(bench):
    bench.journal.is_ready = False
    bench.journal.problem = "fragment store file:///x/ unhealthy: too bad"
    bench.journal.gate.set()
    outcome = await bench.append(b"x")
    assert outcome.status is Status.FRAGMENT_STORE_UNHEALTHY
    assert outcome.store_health_error == bench.journal.problem


async def test_another_primary_is_reported(bench):
    bench.journal.is_local = False
    outcome = await bench.append(b"x")
    assert (outcome.status, outcome.is_remote) == (Status.NOT_JOURNAL_PRIMARY_BROKER, True)


async def test_a_journal_deleted_while_an_append_before_is_written_is_not_found(bench, monkeypatch):
    """The second append found it not ready, and finds it ready, but gone, after the first."""
    answers = [True, False]

    def is_ready(journal):
        if answers:
            return answers.pop(0)
        journal.spec, journal.status = None, Status.JOURNAL_NOT_FOUND
        return True

    patched = property(is_ready, lambda journal, value: None)
    monkeypatch.setattr(type(bench.journal), "is_ready", patched, raising=False)
    first, second = bench.submit(b"a"), bench.submit(b"b", min_revision=1)  # which looks itself
    assert (await first).status is Status.OK
    assert (await second).status is Status.JOURNAL_NOT_FOUND


# ------------------------------------------------------------------------------------ abandonment
async def test_a_caller_that_left_before_its_turn_leaves_nothing(bench):
    bench.journal.is_ready = False
    first, second, third = (bench.submit(c) for c in (b"a", b"b", b"c"))
    await turns()
    first.cancel()
    second.cancel()
    bench.journal.gate.set()
    assert span(await third) == (Status.OK, 0, 1)
    assert bench.read() == b"c"


async def test_a_caller_that_leaves_while_it_is_written_does_not_undo_it(bench, monkeypatch):
    bench.journal.spec = spec(length=1 << 30)
    done = bench.submit(bytes(1 << 20))
    await turns(
        2
    )  # the first step is done, and the next one has begun  # a thread writes it by now
    assert not bench.appender.is_idle
    done.cancel()
    outcome = await bench.append(b"next")
    assert outcome.commit.begin == 1 << 20


# ---------------------------------------------------------------------------------------- closing
async def test_close_rolls_and_waits_for_the_completion(bench):
    await bench.append(b"foobar")
    await bench.appender.close()
    assert [c.fragment.end for c in bench.journal.completed] == [6]
    assert bench.appender.spool.end == 6, "where the journal goes on"


async def test_e2_close_finishes_what_streams_and_what_is_ready(bench):
    stream = Stream()
    streamed = bench.submit(b"x", stream=stream)
    queued = bench.submit(b"y")
    await eventually(lambda: stream.asked == 1)
    closing = bench.tasks.spawn(bench.appender.close())
    await turns(20)
    assert not closing.done()
    stream.pieces.put_nowait(b"")
    assert span(await streamed) == (Status.OK, 0, 1)
    assert span(await queued) == (Status.OK, 1, 2)
    await closing


@pytest.mark.parametrize("waits_for", ["store", "revision", "replicas"])
async def test_close_does_not_wait_for_what_may_never_come(bench, waits_for):
    bench.journal.is_ready = waits_for != "store"
    bench.journal.replicas = (2, 1) if waits_for == "replicas" else (1, 1)
    revision = 99 if waits_for == "revision" else 0
    waiting = [bench.submit(b"x", min_revision=revision) for _ in range(3)]
    await turns(20)
    async with asyncio.timeout(5):
        await bench.appender.close()
    assert [(await done).is_remote for done in waiting] == [True] * 3
    assert bench.journal.commits == []


async def test_e5_an_append_that_comes_after_close_is_not_ours(bench):
    await bench.appender.close()
    outcome = await bench.append(b"x")
    assert (outcome.status, outcome.is_remote) == (Status.NOT_JOURNAL_PRIMARY_BROKER, True)


async def test_outcomes_reach_no_caller_that_left(bench):
    """Answering a caller that is gone is not an error."""
    pending = Pending(
        machine=fsm.AppendFSM(events.AppendRequest("a/journal")),
        done=asyncio.get_running_loop().create_future(),
    )
    pending.done.cancel()
    pending.finish(Outcome(Status.OK))
    pending.fail(RpcFailed(Code.UNKNOWN, "late"))
    with contextlib.suppress(asyncio.CancelledError):
        await pending.done


# ------------------------------------------------------------------------------------------ fence
async def test_what_is_written_after_others_may_have_taken_over_never_counts(bench):
    """Not only is it not acknowledged: no reader gets it, and its offset is free."""
    await bench.append(b"before ")
    bench.journal.refusal = "the lease of this broker has run out"
    with pytest.raises(RpcFailed, match="a/journal: the lease of this broker has run out; ask"):
        await bench.append(b"never")
    assert bench.read() == b"before "
    assert bench.spool.end == bench.journal.index.summary.end == 7
    bench.journal.refusal = ""
    assert span(await bench.append(b"after")) == (Status.OK, 7, 12)


async def test_a_streamed_append_that_outlasts_the_lease_never_counts(bench):
    await bench.append(b"before ")
    stream = Stream()
    waiting = bench.submit(stream=stream)
    stream.pieces.put_nowait(b"never")
    await turns()
    bench.journal.refusal = "this broker is no longer a member of its cluster"
    stream.pieces.put_nowait(b"")
    with pytest.raises(RpcFailed, match="no longer a member of its cluster"):
        await waiting
    assert bench.read() == b"before "
    assert bench.spool.end == 7


# --------------------------------------------------------------------------------------- isolation
@pytest.mark.parametrize(
    ("owner", "method"),
    [(Draft, "_write"), (fsm.AppendFSM, "step"), (JournalSpool, "commit"), (Spool, "commit")],
    ids=["writing", "deciding", "settling", "committing"],
)
async def test_unforeseen_error_ends_the_appends_that_met_it(bench, monkeypatch, owner, method):
    """The journal goes on with the next ones, at the offset that is free."""
    await bench.append(b"before ")
    whole = getattr(owner, method)
    monkeypatch.setattr(owner, method, lambda *_, **__: {}["unforeseen"])
    submitted = [bench.submit(b"first"), bench.submit(b"second")]
    with pytest.raises(RpcFailed, match="a/journal: unforeseen KeyError: 'unforeseen'") as caught:
        await submitted[0]
    assert caught.value.code is Code.INTERNAL
    monkeypatch.setattr(owner, method, whole)
    with contextlib.suppress(RpcFailed):  # in the same batch, or after it
        await submitted[1]
    assert bench.faults.reported == 1
    at = bench.spool.end
    assert span(await bench.append(b"after")) == (Status.OK, at, at + 5)
    assert bench.read() in (b"before after", b"before secondafter")


async def test_unforeseen_error_in_a_notification_stops_no_journal(bench, monkeypatch):
    await bench.append(b"before ")
    with monkeypatch.context() as broken:
        broken.setattr(bench.replicator, "reset", lambda _: {}["unforeseen"])
        broken.setattr(bench.spool, "commit", lambda *_, **__: {}["unforeseen"])
        with pytest.raises(RpcFailed, match="unforeseen KeyError"):
            await bench.append(b"content")
    assert span(await bench.append(b"after"))[0] is Status.OK
    async with asyncio.timeout(5):
        await bench.appender.close()


async def test_a_stream_that_meets_unforeseen_error_is_answered(bench, monkeypatch):
    stream = Stream()
    waiting = bench.submit(stream=stream)
    monkeypatch.setattr(Draft, "write", lambda *_, **__: {}["unforeseen"])
    stream.pieces.put_nowait(b"never")
    with pytest.raises(RpcFailed, match="whether it was appended is unknown"):
        await waiting
    monkeypatch.undo()
    assert span(await bench.append(b"after")) == (Status.OK, 0, 5)


async def test_a_journal_that_is_deleted_while_its_append_waits_is_not_found(bench, monkeypatch):
    sync, journal = bench.replicator.sync, bench.journal

    async def sync_and_delete(*args, **settings):
        event = await sync(*args, **settings)
        journal.spec, journal.status = None, Status.JOURNAL_NOT_FOUND
        return event

    monkeypatch.setattr(bench.replicator, "sync", sync_and_delete)
    assert (await bench.append(b"never")).status is Status.JOURNAL_NOT_FOUND
    assert bench.faults.reported == 0
    journal.spec, journal.status = spec(), Status.OK
    monkeypatch.undo()
    assert span(await bench.append(b"after")) == (Status.OK, 0, 5)
