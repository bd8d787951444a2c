"""A replica: its timers, what it reports of its fragments, and when it stops being the journal's.

Long because all cases drive one bench.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import pytest

from gazette_platform.broker.api.admin import AdminApi
from gazette_platform.broker.append import events, fsm
from gazette_platform.broker.append.batch import Pending, content_sum
from gazette_platform.broker.config import FsyncMode
from gazette_platform.broker.context import BrokerMetrics
from gazette_platform.broker.journal import claims, pulses as pulses_module
from gazette_platform.broker.journal.pulses import FLUSH_RETRY_S
from gazette_platform.broker.journal.replica import Replica
from gazette_platform.broker.spool.disk import DiskPace
from gazette_platform.broker.spool.home import Owner, SpoolHome, boot_id
from gazette_platform.errors import StoreUnavailable
from gazette_platform.fragment.cover_set import CoverSet
from gazette_platform.ops.clock import ManualClock
from gazette_platform.ops.faults import Faults
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.protocol import (
    ZERO_SUM,
    AppendSuspend,
    CompressionCodec,
    Fragment,
    FragmentSpec,
    JournalSpec,
    ProcessId,
    Route,
    Status,
    SuspendLevel,
    SuspendSpec,
)
from gazette_platform.protocol.pb import admin_pb2 as pb
from gazette_platform.serving.interface import Code, RpcFailed
from gazette_platform.testing.waiting import eventually, turns

JOURNAL = "a/journal"


class Health:
    """A store whose checks a test makes up."""

    url = "file:///"

    def __init__(self):
        self.changed = asyncio.Event()
        self.set(None, checks=1)

    def set(self, error, *, checks, since_s=0.0):
        failures = checks if error else 0
        self.health = SimpleNamespace(
            error=error, checks=checks, failures=failures, since_s=since_s
        )
        self.changed.set()

    async def wait_health_change(self, since):
        while self.health is since:
            self.changed.clear()
            await self.changed.wait()
        return self.health

    def ask_check(self):
        return False


class Bench:
    """A replica with everything around it."""

    def __init__(self, directory, tasks, executor):
        self.spec = None
        self.configure(flush_s=60)
        self.route = Route((ProcessId("A", "own-1"),), 0)
        self.clock = ManualClock()  # at second 5 of a minute
        self.store = Health()
        self.listings = 0
        self.listed = []
        self.list_error = None
        self.persisted = []
        self.state = SimpleNamespace(
            items={},
            is_consistent=lambda _: True,
            assignments_of=lambda _: [None],
            assignment_of=lambda *_: None,
            route_of=lambda _: self.route,
        )
        space = SimpleNamespace(state=self.state, revision=1)
        self.context = SimpleNamespace(
            config=SimpleNamespace(
                max_append_rate=0,
                max_replication=9,
                spool_dir=directory,
                append_wait_s=0.0,
                fsync=FsyncMode.NEVER,
            ),
            clock=self.clock,
            rng=random.Random(1),
            space=space,
            stores=SimpleNamespace(get=lambda _: self.store),
            guard=SimpleNamespace(check=lambda _: None),
            lister=SimpleNamespace(list=self.list),
            persister=SimpleNamespace(
                add=lambda spool, _: self.persisted.append(spool), trust=lambda _: None
            ),
            spools=SpoolHome.make(directory, Owner("c", "a#broker", boot_id())),
            leftovers=SimpleNamespace(has=lambda _: False, add=lambda _: None),
            pace=DiskPace(),
            executor=executor,
            readers=executor,
            compressors=executor,
            tasks=tasks,
            faults=Faults(),
            metrics=BrokerMetrics(),
            refresh_slots=defaultdict(lambda: asyncio.Semaphore(1)),
            pulse_slots=asyncio.Semaphore(1),
            membership=SimpleNamespace(problem=""),
            process_id=self.route.members[0],
            peers=None,
        )
        self.resolver = SimpleNamespace(replicas={}, resolve_now=self.resolve)
        self.apply()
        self.replica = self.make()

    def make(self):
        replica = Replica(JOURNAL, 1, is_primary=True, context=self.context, resolver=self.resolver)
        self.resolver.replicas[JOURNAL] = replica
        replica.is_claimed = lambda _: replica.is_consistent
        return replica

    def configure(self, *, flush_s=0, stores=("file:///",), rate=0):
        self.spec = JournalSpec(
            JOURNAL,
            1,
            fragment=FragmentSpec(
                length=1 << 20,
                codec=CompressionCodec.NONE,
                stores=stores,
                refresh_interval_ns=300 * SECOND_NS,
                flush_interval_ns=flush_s * SECOND_NS,
            ),
            max_append_rate=rate,
        )

    def apply(self):
        self.state.items[JOURNAL] = SimpleNamespace(spec=self.spec, create_revision=1)

    async def list(self, spec):
        self.listings += 1
        if self.list_error is not None:
            raise self.list_error
        return CoverSet(self.listed)

    def resolve(self, journal, *, may_proxy, require_primary):
        return SimpleNamespace(status=Status.OK, is_local=True, spec=self.spec)

    async def append(self, content, **options):
        pending = Pending(
            machine=fsm.AppendFSM(events.AppendRequest(JOURNAL, **options)),
            done=asyncio.get_running_loop().create_future(),
            chunks=[content],
            length=len(content),
            sum=content_sum([content]),
        )
        self.replica.appender.submit(pending)
        async with asyncio.timeout(10):
            return await pending.done

    def flushes_in(self):
        """Seconds until the flush timer fires, None if it is not set."""
        return self.replica._flush_timer.due_in_s


@pytest.fixture
async def bench(tmp_path):
    tasks = TaskGroup("test")
    with ThreadPoolExecutor(2) as executor:
        made = Bench(tmp_path, tasks, executor)
        yield made
        await made.replica.close()
        assert tasks.failure is None
        await tasks.close()
    for completed in made.persisted:
        completed.close()


# ----------------------------------------------------------------------------------- flush timers
async def test_the_flush_timer_fires_at_the_end_of_the_window_with_some_spread(bench):
    await bench.append(b"x")
    assert 54.9 < bench.flushes_in() <= 57


async def test_a_window_that_ended_closes_the_fragment(bench):
    await bench.append(b"first ")
    await bench.append(b"second")
    bench.clock.advance(56)
    bench.replica._flush_timer.fire()
    assert bench.replica.appender.spool.content_length == 0
    assert bench.flushes_in() is None, "an empty spool has no window"
    await bench.context.tasks.join()
    # In any order: they are completed by two threads.
    assert sorted(c.fragment.end for c in bench.persisted) == [6, 12]


async def test_a_fragment_that_an_append_began_since_keeps_its_window(bench):
    await bench.append(b"first ")
    await bench.append(b"second ")
    bench.clock.advance(56)
    await bench.append(b"third")  # rolled the one before
    bench.replica._flush_timer.fire()
    assert bench.replica.appender.spool.content_length == 5
    assert 58.9 < bench.flushes_in() <= 61


async def test_a_busy_journal_is_looked_at_again(bench):
    bench.store.set(StoreUnavailable("down"), checks=1)
    await bench.replica.index.first_refresh.wait()
    waiting = bench.context.tasks.spawn(bench.append(b"x"))
    await turns(3)  # its task, the appender's first step, and the next one
    bench.replica._flush_timer.fire()
    assert bench.flushes_in() == pytest.approx(FLUSH_RETRY_S, abs=0.05)
    bench.store.set(None, checks=2)
    await waiting


async def test_a_fragment_that_a_former_primary_left_open_closes_at_the_end_of_its_window(bench):
    """Nothing else closes it, however long no append comes."""
    await bench.append(b"first ")
    await bench.append(b"second")
    bench.replica.on_change(is_primary=False)
    bench.clock.advance(56)
    bench.replica._flush_timer.fire()  # which leaves it to the primary
    assert bench.flushes_in() is None
    bench.replica.on_change(is_primary=True)
    assert bench.flushes_in() is not None


async def test_without_an_interval_there_is_no_timer(bench):
    bench.configure(flush_s=0)
    bench.apply()
    bench.replica.on_change(is_primary=True)
    await bench.append(b"x")
    assert bench.flushes_in() is None


async def test_a_changed_interval_counts_for_the_open_fragment(bench):
    await bench.append(b"x")
    bench.configure(flush_s=3600)
    bench.apply()
    bench.replica.on_change(is_primary=True)
    assert bench.flushes_in() > 3000
    bench.configure(flush_s=60)
    bench.apply()
    bench.replica.on_change(is_primary=True)
    assert bench.flushes_in() < 60


async def test_a_closed_replica_has_no_timers(bench):
    await bench.append(b"x")
    await bench.replica.close()
    assert bench.flushes_in() is bench.replica._refresh_timer.due_in_s is None
    bench.replica._flush_timer.fire()
    bench.replica._refresh_timer._fire()
    bench.replica.on_change(is_primary=True)
    assert len(bench.context.tasks) == 0


# ------------------------------------------------------------------------------------- fragments
async def test_the_sum_of_the_open_fragment_is_reported(bench):
    await bench.append(b"foo")
    listed = bench.replica.index.lookup(0).fragment
    assert listed.sum == ZERO_SUM
    assert (await bench.replica.summed(listed)).sum == content_sum([b"foo"])


async def test_a_fragment_that_closed_since_it_was_listed_has_its_sum(bench):
    await bench.append(b"foo")
    listed = bench.replica.index.lookup(0).fragment
    await bench.append(b"bar")
    await bench.context.tasks.join()
    assert await bench.replica.summed(listed) == Fragment(
        JOURNAL, 0, 3, content_sum([b"foo"]), CompressionCodec.NONE
    )


async def test_a_replica_that_closed_has_no_sums(bench):
    await bench.append(b"foo")
    listed = bench.replica.index.lookup(0).fragment
    await bench.replica.close()
    assert await bench.replica.summed(listed) is None


async def held_fragment(bench):
    """Close a fragment of a replica that no claim names yet."""
    spool = bench.replica.spool
    draft = spool.draft(with_digest=True)
    await draft.write([b"content"], 7)
    spool.commit(draft, spool.registers)
    spool.roll(7, is_urgent=True)
    return spool


@pytest.mark.parametrize("is_claimed_before", [True, False])
async def test_who_asks_for_all_that_is_held_learns_when_it_is_stored(bench, is_claimed_before):
    """The journal was claimed while others of its fragments were stored: what was held until then was being closed,
    and who had asked took it for stored."""
    spool, stored = await held_fragment(bench), []
    assert spool.is_held
    if is_claimed_before:
        spool.release()

    async def settle(_, *, is_given_up):
        spool.release()

    async def flush(_):
        stored.extend(bench.persisted)

    async def closed(_):
        pass

    bench.context.leftovers.settle, bench.context.persister.flush = settle, flush
    bench.context.leftovers.has_content = lambda _: False
    bench.context.config.etcd_prefix, bench.resolver.closed = "/p", closed
    api = AdminApi(bench.context, bench.resolver)
    request = pb.FlushRequest(journal=JOURNAL)
    if is_claimed_before:
        assert await api._flush_former(JOURNAL, request) == 0
    else:
        with pytest.raises(RpcFailed, match="not stored yet"):
            await api._flush_former(JOURNAL, request)
        await eventually(lambda: bench.persisted)
        assert await api._flush_former(JOURNAL, request) == 0
    assert [one.fragment.end for one in stored] == [7]
    del bench.resolver.replicas[JOURNAL]  # others have it now


async def test_what_has_no_content_is_not_held(bench):
    """Each append that is refused may close such a fragment, for as long as the journal cannot be claimed."""
    spool = bench.replica.spool
    spool.serve_as_primary()
    for to in (5, 5, 9):
        spool.roll(to)
    assert (spool.is_held, spool._closing.digesters) == (False, ())


# ----------------------------------------------------------------------------------- whose journal
async def test_a_replica_that_was_replaced_writes_no_more(bench):
    """Even if the broker is the primary again, by another replica."""
    await bench.append(b"former")
    former = bench.replica
    bench.make()
    bench.replica = former
    outcome = await bench.append(b"late")
    assert outcome.is_remote
    assert former.appender.spool.end == 6
    bench.resolver.replicas[JOURNAL].stop()
    bench.resolver.replicas[JOURNAL].appender.spool.discard()


async def test_whoever_becomes_primary_lists_the_store_again(bench):
    await bench.replica.index.first_refresh.wait()
    assert bench.listings == 1
    bench.replica.on_change(is_primary=False)
    bench.replica.on_change(is_primary=True)
    await eventually(lambda: bench.listings == 2)


async def test_rs15_only_other_stores_are_listed_at_once(bench):
    await bench.replica.index.first_refresh.wait()
    told = []
    bench.replica.watchers.add(lambda: told.append(bench.spec.fragment.stores))
    listings = bench.listings
    two, three = ("file:///a/", "file:///b/"), ("file:///c/", "file:///a/", "file:///b/")
    for stores in (two, two[1:], three, three[::-1], ()):
        bench.configure(stores=stores)
        bench.apply()
        bench.replica.on_change(is_primary=True)
        assert told[-1] == stores, "whoever waits for a store looks again"
        listings += 1
        await eventually(lambda: bench.listings >= listings)  # noqa: B023  called at once
        assert bench.listings == listings
    bench.configure(rate=1)
    bench.configure(stores=())
    bench.apply()
    bench.replica.on_change(is_primary=True)
    await turns(20)
    assert bench.listings == listings


@pytest.mark.parametrize(
    ("of_spec", "cap", "rate"),
    [(0, 0, 0), (0, 100, 0), (500, 0, 500), (500, 100, 100), (50, 100, 50)],
)
async def test_fc6_the_brokers_cap_bounds_the_journals_rate(bench, of_spec, cap, rate):
    bench.context.config.max_append_rate = cap
    bench.configure(rate=of_spec)
    bench.apply()
    bench.replica.on_change(is_primary=True)
    assert bench.replica.balance.rate == rate


async def test_fc4_appends_are_held_back_no_more_once_the_assignments_change(bench):
    bench.configure(rate=1000)
    bench.apply()
    bench.replica.on_change(is_primary=True)
    released = bench.replica.balance.released
    bench.configure(rate=2000)
    bench.apply()
    bench.replica.on_change(is_primary=True)
    assert not released.is_set(), "another spec is not a hand-over"
    bench.route = Route((*bench.route.members, ProcessId("B", "peer-1")), 0)
    bench.replica.on_change(is_primary=True)
    assert released.is_set()
    later = bench.replica.balance.released
    assert not later.is_set(), "appends that begin now are held back again"
    bench.replica.stop()
    assert later.is_set()


# ------------------------------------------------------------------------------------------ stores
async def test_fs16_more_than_five_failed_checks_are_the_end(bench):
    bench.store.set(StoreUnavailable("too bad"), checks=0)
    waiting = bench.context.tasks.spawn(bench.replica.wait_ready())
    for checks in range(1, 6):
        bench.store.set(StoreUnavailable("too bad"), checks=checks)
        await turns(2)
        assert not waiting.done(), checks
    bench.store.set(StoreUnavailable("too bad"), checks=6)
    assert await waiting == "fragment store file:/// unhealthy: too bad"


async def test_fs16_appends_wait_no_longer_once_a_store_has_failed_for_long(bench):
    """Its next check is 100 s away: callers that gave up before it got no reason."""
    bench.store.set(StoreUnavailable("still bad"), checks=6)
    async with asyncio.timeout(5):
        assert await bench.replica.wait_ready() == "fragment store file:/// unhealthy: still bad"


async def test_fs16_appends_wait_for_a_store_that_does_not_answer_for_a_bounded_time(bench):
    """Its first check may take longer than any caller waits."""
    bench.store.set(StoreUnavailable("no answer yet"), checks=0)
    bench.clock.advance(claims._UNHEALTHY_S)
    async with asyncio.timeout(5):
        assert (
            await bench.replica.wait_ready() == "fragment store file:/// unhealthy: no answer yet"
        )


async def test_fs16_a_store_that_recovers_is_ready(bench):
    await bench.replica.index.first_refresh.wait()
    bench.store.set(StoreUnavailable("for now"), checks=1)
    assert not bench.replica.is_ready
    waiting = bench.context.tasks.spawn(bench.replica.wait_ready())
    await turns()
    bench.store.set(None, checks=2)
    assert await waiting == ""
    assert bench.replica.is_ready


async def test_a_listing_that_fails_for_long_is_the_end_though_the_first_store_is_healthy(bench):
    await bench.replica.close()
    bench.list_error = StoreUnavailable("two is down")
    bench.replica = bench.make()
    waiting = bench.context.tasks.spawn(bench.replica.wait_ready())
    for _ in range(3):
        await bench.replica._refresh()
        assert not waiting.done()
        bench.clock.advance(6)
    await bench.replica._refresh()
    async with asyncio.timeout(5):
        assert (await waiting).startswith("two is down (")
    bench.list_error = None
    await bench.replica._refresh()
    assert await bench.replica.wait_ready() == ""


async def test_nothing_is_appended_before_the_stores_were_listed(bench):
    """They may hold content at the offsets that it would get."""
    await bench.replica.close()
    listed, lister = asyncio.Event(), bench.context.lister

    async def list_later(spec):
        await listed.wait()
        return await bench.list(spec)

    lister.list = list_later
    bench.listed = [Fragment(JOURNAL, 0, 9, b"x" * 20, backing_store="file:///", mod_time=1)]
    bench.replica = bench.make()
    waiting = bench.context.tasks.spawn(bench.append(b"never"))
    await turns(20)
    assert not waiting.done()
    listed.set()
    assert (await waiting).status is Status.INDEX_HAS_GREATER_OFFSET


async def test_a_journal_without_stores_needs_none(bench):
    await bench.replica.index.first_refresh.wait()
    bench.configure(stores=())
    bench.apply()
    bench.store.set(StoreUnavailable("no caller asks"), checks=9)
    assert bench.replica.is_ready


# ------------------------------------------------------------------------------------------ pulses
def pulses(bench, monkeypatch):
    found = []
    monkeypatch.setattr(bench.replica._pulses, "start", lambda *suspend: found.append(suspend))
    return found


async def test_a_window_that_ended_is_a_pulse_if_there_are_replicas(bench, monkeypatch):
    """They close their fragments with ours, and may have to be synced for that."""
    await bench.append(b"first ")
    await bench.append(b"second")
    bench.clock.advance(56)
    bench.route = Route((ProcessId("A", "own-1"), ProcessId("B", "peer-1")), 0)
    found = pulses(bench, monkeypatch)
    bench.replica._flush_timer.fire()
    assert found == [()]
    assert bench.replica.appender.spool.content_length == 6


async def test_replicas_close_nothing_by_themselves(bench, monkeypatch):
    await bench.append(b"first ")
    await bench.append(b"second")
    bench.clock.advance(56)
    found = pulses(bench, monkeypatch)
    bench.replica.is_primary = False
    bench.replica._flush_timer.fire()
    assert found == []
    assert bench.replica.appender.spool.content_length == 6


async def test_a_route_that_is_not_published_is_pulsed_until_it_is(bench, monkeypatch):
    updates = []

    async def update(holders, *, end, is_reset):
        updates.append(bench.clock.monotonic())
        raise RpcFailed(Code.UNAVAILABLE, "etcd is away")

    monkeypatch.setattr(pulses_module, "_RETRIES_S", (0.0, 0.0, 60.0))
    monkeypatch.setattr(bench.replica, "claim", update)
    bench.state.is_consistent = lambda _: False
    bench.replica.on_change(is_primary=True)
    await eventually(lambda: len(updates) >= 3)
    await eventually(lambda: bench.replica._pulses._timer is not None)
    assert len(updates) == 3
    bench.state.is_consistent = lambda _: True
    bench.replica._pulses.look()
    assert bench.replica._pulses._timer is None


async def test_quiet_journals_are_suspended_once_they_are_stored(bench, monkeypatch):
    found = pulses(bench, monkeypatch)
    await bench.replica.index.first_refresh.wait()
    bench.clock.advance(899)
    bench.replica.on_tick()
    assert found == [], "not quiet for long enough"
    bench.clock.advance(2)
    bench.replica.on_tick()
    assert found == [(AppendSuspend.SUSPEND_IF_FLUSHED,)]
    await bench.append(b"x")
    bench.replica.on_tick()
    bench.clock.advance(901)
    bench.replica.on_tick()
    assert len(found) == 1, "its fragment is not in the store"


async def test_suspended_journals_and_replicas_are_left_alone(bench, monkeypatch):
    found = pulses(bench, monkeypatch)
    await bench.replica.index.first_refresh.wait()
    bench.clock.advance(901)
    bench.replica.is_primary = False
    bench.replica.on_tick()
    bench.replica.is_primary = True
    bench.spec = replace(bench.spec, suspend=SuspendSpec(SuspendLevel.FULL, 0))
    bench.apply()
    bench.replica.on_tick()
    bench.spec = replace(bench.spec, suspend=SuspendSpec(SuspendLevel.PARTIAL, 0))
    bench.apply()
    bench.replica.index.add_remote(
        Fragment(JOURNAL, 0, 100, b"x" * 20, backing_store="file:///", mod_time=1)
    )
    bench.replica.spool.roll(100)
    bench.replica.on_tick()
    assert found == []


async def test_a_partly_suspended_journal_is_suspended_fully_once_it_is_empty(bench, monkeypatch):
    found = pulses(bench, monkeypatch)
    await bench.replica.index.first_refresh.wait()
    bench.spec = replace(bench.spec, suspend=SuspendSpec(SuspendLevel.PARTIAL, 100))
    bench.apply()
    bench.clock.advance(901)
    bench.replica.on_tick()
    assert found == [], "its spool is not at the offset of the suspension yet"
    bench.replica.spool.roll(100)
    bench.replica.on_tick()
    assert found == [(AppendSuspend.SUSPEND_IF_FLUSHED,)]


# ------------------------------------------------------------------------------------------- holes
async def test_replica_that_begins_after_content_lists_the_store_until_it_appears(bench):
    replica = bench.replica
    await replica.index.first_refresh.wait()
    assert not replica.is_filling
    replica.spool.roll(100)
    assert replica.is_filling
    listings = bench.listings
    stored = Fragment(JOURNAL, 0, 100, b"x" * 20, backing_store="file:///", mod_time=1)
    bench.listed = [stored]
    async with asyncio.timeout(5):
        while replica.is_filling:
            await replica.index.wait_change()
    assert bench.listings == listings + 1
    assert replica.index.summary.end == 100


async def test_content_that_never_comes_is_not_waited_for(bench):
    replica = bench.replica
    await replica.index.first_refresh.wait()
    replica.spool.roll(100)
    delays_s = []
    while replica.is_filling:
        delays_s.append(replica.hole.refresh_s())
        # It runs by the clock of the machine, and may have fired on a busy one.
        due_in_s = replica._refresh_timer.due_in_s
        assert due_in_s is None or due_in_s <= delays_s[-1]
        bench.clock.advance(delays_s[-1] + 1e-3)
        await replica._refresh_timer.run()
    assert delays_s == pytest.approx([0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 30, 60], abs=0.05)
    assert replica._refresh_timer.due_in_s > 200


async def test_listings_that_readers_ask_for_do_not_shorten_the_wait_for_content(bench):
    replica = bench.replica
    await replica.index.first_refresh.wait()
    replica.spool.roll(100)
    bench.clock.advance(100)
    for _ in range(50):
        await replica._refresh_timer.run()
    assert replica.is_filling
    assert replica._refresh_timer.due_in_s < 39
    bench.clock.advance(38)
    assert replica.is_filling
    bench.clock.advance(1)
    assert not replica.is_filling


async def test_a_roll_at_the_end_of_what_is_known_leaves_no_hole(bench):
    await bench.append(b"foo")
    await bench.append(b"bar")
    assert bench.replica.spool.spool.begin == 3
    assert not bench.replica.is_filling


async def test_only_the_end_of_missing_content_must_exist(bench):
    """What precedes it may have been pruned; what ends before it does not fill the hole."""
    replica = bench.replica
    await replica.index.first_refresh.wait()
    replica.spool.roll(100)
    replica.index.add_remote(
        Fragment(JOURNAL, 0, 99, b"x" * 20, backing_store="file:///", mod_time=1)
    )
    assert replica.is_filling
    replica.index.add_remote(
        Fragment(JOURNAL, 99, 100, b"y" * 20, backing_store="file:///", mod_time=1)
    )
    assert not replica.is_filling


@pytest.mark.parametrize("by_own", [False, True], ids=["a listing showed it", "it was stored here"])
async def test_pruned_content_from_before_a_spool_is_not_waited_for(bench, by_own):
    replica = bench.replica
    await replica.index.first_refresh.wait()
    replica.spool.roll(100)
    before = Fragment(JOURNAL, 90, 100, b"x" * 20, backing_store="file:///", mod_time=1)
    if by_own:
        replica.on_persisted(before)
    else:
        bench.listed = [before]
        await replica._refresh_timer.run()
    assert not replica.is_filling
    bench.listed = [Fragment(JOURNAL, 100, 110, b"y" * 20, backing_store="file:///", mod_time=1)]
    await replica._refresh_timer.run()
    assert replica.index.summary.begin == 100
    assert not replica.is_filling
    assert replica.missing_at == -1


async def test_others_are_asked_for_what_a_spool_that_goes_on_elsewhere_did_not_see(bench):
    """Else reads would jump over it, as if it had been pruned."""
    replica = bench.replica
    await bench.append(b"foo")
    assert replica.gaps.may_skip(50), "it saw all from the beginning on"
    replica.spool.roll(100)
    replica.index.add_remote(
        Fragment(JOURNAL, 90, 100, b"x" * 20, backing_store="file:///", mod_time=1)
    )
    assert not replica.is_filling
    assert not replica.gaps.may_skip(50)


async def test_head_lies_after_what_others_store_still(bench):
    replica = bench.replica
    await bench.append(b"foo")
    replica.spool.roll(100)
    assert (replica.index.summary.end, replica.head, replica.missing_at) == (3, 100, 99)


async def test_journal_goes_on_after_a_noted_head_and_lacks_nothing(bench):
    """Who noted it had stored all before; or that is gone, and no broker is about to bring it."""
    replica = bench.replica
    await replica.index.first_refresh.wait()
    bench.spec = replace(bench.spec, suspend=SuspendSpec(SuspendLevel.NONE, 100))
    bench.apply()
    assert replica.head == 100
    replica.spool.roll(100)
    assert replica.missing_at == -1
    assert replica.is_filling, "the stores are listed soon, since it may have come just now"
    replica.spool.roll(150)
    assert replica.missing_at == 149


# ------------------------------------------------------------------------------------------ etcd
async def test_a_revision_that_is_not_known_yet_is_not_resolved_at(bench):
    """Who appends has seen it: the journal may have become another's with it."""
    space, asked = bench.context.space, []
    begun, known = asyncio.Event(), asyncio.Event()

    async def wait_for_revision(revision):
        asked.append(revision)
        begun.set()
        await known.wait()
        space.revision = revision

    space.revision, space.wait_for_revision = 7, wait_for_revision
    assert (await bench.append(b"x", min_revision=7)).status is Status.OK
    assert asked == []
    waiting = bench.context.tasks.spawn(bench.append(b"y", min_revision=8))
    async with asyncio.timeout(10):
        await begun.wait()
    assert (asked, bench.replica.head) == ([8], 1)
    known.set()
    assert (await waiting).status is Status.OK


async def test_a_replica_that_closes_ends_the_reads_that_wait(bench):
    waiting = bench.context.tasks.spawn(bench.replica.index.wait_change())
    await turns()
    await bench.replica.close()
    async with asyncio.timeout(5):
        assert not await waiting
    bench.make()  # for the end of the test


async def test_pruned_store_is_not_a_hole(bench):
    replica = bench.replica
    await replica.index.first_refresh.wait()
    replica.spool.roll(100)
    replica.index.add_remote(
        Fragment(JOURNAL, 50, 100, b"x" * 20, backing_store="file:///", mod_time=1)
    )
    assert not replica.is_filling
