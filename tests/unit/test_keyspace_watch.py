"""How the mirror takes a watch up again, without etcd: reads and watches go by a script."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import pytest

from gazette_platform.errors import EtcdError
from gazette_platform.etcd import (
    Compacted,
    EtcdRejected,
    Event,
    KeyValue,
    RangeResult,
    ResponseHeader,
    WatchBatch,
)
from gazette_platform.keyspace import BrokerState, KeySpace, assignment_key
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.protocol import ProcessId
from gazette_platform.testing.waiting import turns


def header(revision, cluster_id=1):
    return ResponseHeader(cluster_id, 1, revision, 1)


def kv(key, revision, *, create=0, version=1):
    return KeyValue(f"/p/{key}", b"", create or revision, revision, version)


def batch(*kvs, revision=0, cluster_id=1):
    events = tuple(Event(entry, is_delete=False) for entry in kvs)
    return WatchBatch(header(revision or kvs[-1].mod_revision, cluster_id), events)


class KeyView:
    """Remembers keys."""

    def __init__(self):
        self.keys: set[str] = set()

    def begin(self):
        pass

    def end(self):
        pass

    def put(self, entry):
        self.keys.add(entry.key.removeprefix("/p/"))

    def remove(self, key):
        self.keys.discard(key.removeprefix("/p/"))


class ScriptedWatch:
    """Gives batches, then raises its error, or stays silent without one."""

    def __init__(self, steps):
        self._steps = iter(steps)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *exc_info):
        pass

    def __aiter__(self):
        return self

    async def __anext__(self):
        for step in self._steps:
            if isinstance(step, Exception):
                raise step
            return step
        await asyncio.Event().wait()
        raise AssertionError


class ScriptedEtcd:
    """What a key space asks of a client. `starts` are the revisions that watches began at."""

    def __init__(self, watches, loads=()):
        self._watches = iter(watches)
        self._loads = iter(loads)
        self.starts: list[int] = []
        self.restarted = asyncio.Event()

    def watch(self, prefix, *, start_revision):
        assert prefix == "/p/"
        if self.starts:
            self.restarted.set()
        self.starts.append(start_revision)
        return ScriptedWatch(next(self._watches, ()))

    async def range(self, prefix, *, revision=0):
        found = next(self._loads)
        if isinstance(found, Exception):
            raise found
        return found


@contextlib.asynccontextmanager
async def watching(etcd, *present):
    """A key space that was loaded at revision 5 and watches."""
    space = KeySpace(etcd, "/p", KeyView(), watch_delay_s=0)
    space.apply_snapshot(RangeResult(header(5), present, len(present)))
    tasks = TaskGroup("test")
    tasks.spawn(space.watch(), name="watch")
    try:
        yield space, tasks
    finally:
        await tasks.close()


async def test_y1_a_closed_watch_goes_on_where_it_was():
    etcd = ScriptedEtcd([[batch(kv("a", 6)), EtcdError("closed")], [batch(kv("b", 9))]])
    async with watching(etcd) as (space, _):
        await space.wait_for_revision(9, timeout_s=1)
        assert space.state.keys == {"a", "b"}
    assert etcd.starts == [6, 7]


async def test_what_came_before_the_break_is_applied():
    """Also what was being collected for the next update."""
    etcd = ScriptedEtcd([[batch(kv("a", 6)), batch(kv("b", 7)), EtcdError("closed")]])
    async with watching(etcd) as (space, _):
        space._delay_s = 60
        await space.wait_for_revision(7, timeout_s=1)
        async with asyncio.timeout(1):
            await etcd.restarted.wait()
    assert etcd.starts == [6, 8]


async def test_progress_moves_what_a_new_watch_starts_at():
    etcd = ScriptedEtcd([[WatchBatch(header(40), ()), EtcdError("closed")], [batch(kv("b", 50))]])
    async with watching(etcd) as (space, _):
        await space.wait_for_revision(50, timeout_s=1)
    assert etcd.starts == [6, 41]


async def test_a_repeated_revision_after_a_restart_is_tolerated():
    etcd = ScriptedEtcd(
        [[batch(kv("a", 6)), EtcdError("closed")], [batch(kv("a", 6)), batch(kv("b", 7))]]
    )
    async with watching(etcd) as (space, _):
        await space.wait_for_revision(7, timeout_s=1)
        assert space.state.keys == {"a", "b"}


async def test_compaction_loads_again_and_forgets_what_is_gone():
    etcd = ScriptedEtcd(
        [[Compacted("compacted", compact_revision=30)], [batch(kv("d", 41))]],
        [RangeResult(header(40), (kv("b", 4), kv("c", 33)), 2)],
    )
    async with watching(etcd, kv("a", 3), kv("b", 4)) as (space, _):
        await space.wait_for_revision(41, timeout_s=1)
        assert space.state.keys == {"b", "c", "d"}
    assert etcd.starts == [6, 41]


async def test_etcd_that_fails_at_the_load_after_a_compaction_is_asked_again(caplog):
    etcd = ScriptedEtcd(
        [[Compacted("compacted")], [batch(kv("b", 41))]],
        [EtcdError("no leader"), RangeResult(header(40), (kv("a", 3),), 1)],
    )
    async with watching(etcd, kv("a", 3)) as (space, tasks):
        await space.wait_for_revision(41, timeout_s=1)
        assert tasks.failure is None
    assert "no leader; watching again" in caplog.text


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([EtcdRejected("permission denied")], id="refused"),
        pytest.param([batch(kv("a", 6), cluster_id=2)], id="another-cluster"),
        pytest.param([batch(kv("a", 4))], id="back-in-time"),
    ],
)
async def test_y2_what_lasts_ends_the_watch(steps, caplog):
    caplog.set_level(logging.CRITICAL)
    async with watching(ScriptedEtcd([steps])) as (_, tasks):
        async with asyncio.timeout(1):
            await tasks.failed.wait()
        assert isinstance(tasks.failure, EtcdRejected)


async def test_y4_a_waiter_that_is_cancelled_says_so_even_if_its_revision_came():
    async with watching(ScriptedEtcd([[]])) as (space, tasks):
        waiting = tasks.spawn(space.wait_for_revision(6))
        await turns()
        space.apply_batches([batch(kv("a", 6))])
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


def test_y5_assignments_are_found_by_item_without_its_neighbours():
    state = BrokerState("/p")
    process_id = ProcessId("zone-a", "member-1")
    names = ["item", "item/a", "item/ab", "item/b", "items"]
    for name in names:
        key = assignment_key("/p", name, process_id, 0)
        state.put(KeyValue(key, b"", 1, 1, 1))
    for name in names:
        assert [a.journal for a in state.assignments_of(name)] == [name]
    assert state.assignments_of("ite") == ()
    other = ProcessId("zone-b", "member-1")
    state.put(KeyValue(assignment_key("/p", "item/a", other, 1), b"", 2, 2, 1))
    assert [(a.process_id, a.slot) for a in state.assignments_of("item/a")] == [
        (process_id, 0),
        (other, 1),
    ]
    assert state.assignment_of("item/a", other).slot == 1
    assert state.assignment_of("item/ab", other) is None
    assert state.primaries_of(process_id) == len(names)
    assert [a.journal for a in state.assignments_to(other).values()] == ["item/a"]
    assert state.primaries_of(other) == 0
    state.remove(assignment_key("/p", "item/a", process_id, 0))
    assert [a.process_id for a in state.assignments_of("item/a")] == [other]
    assert (state.route_of("item/a").primary, state.route_of("item/b").primary) == (-1, 0)
    state.put(KeyValue(assignment_key("/p", "item/a", process_id, 0), b"", 3, 3, 1))
    assert {a.journal for a in state.assignments_to(process_id).values()} == set(names)


async def test_many_changes_are_applied_in_portions_of_whole_revisions():
    big = [kv(f"big/{n}", 6) for n in range(700)]
    small = [kv(f"small/{n}", 7 + n) for n in range(1200)]
    etcd = ScriptedEtcd([[batch(*big, *small)]])
    async with watching(etcd) as (space, _):
        seen: list[tuple[int, int]] = []
        space.observe(lambda: seen.append((space.revision, len(space.state.keys))))
        await space.wait_for_revision(1206, timeout_s=1)
    # Revision 6 comes as a whole, though it is large; of each later one there is one change.
    assert [keys - revision for revision, keys in seen] == [694] * len(seen)
    assert [revision for revision, _ in seen] == [6, 506, 1006, 1206]
