"""The mirror's rules, without etcd: snapshots and batches are applied by hand."""

from __future__ import annotations

import asyncio
import logging

import pytest

from gazette_platform.errors import EtcdError, ValidationError
from gazette_platform.etcd import (
    EtcdClient,
    EtcdRejected,
    Event,
    KeyValue,
    RangeResult,
    ResponseHeader,
    WatchBatch,
)
from gazette_platform.keyspace import (
    BrokerState,
    KeySpace,
    assignment_key,
    encode_broker_spec,
    encode_journal_spec,
    encode_route,
    item_key,
    member_key,
)
from gazette_platform.protocol import (
    BrokerSpec,
    CompressionCodec,
    FragmentSpec,
    JournalSpec,
    ProcessId,
    Route,
)
from gazette_platform.testing.waiting import turns

A = ProcessId("zone-a", "suffix-1")
B = ProcessId("zone-b", "suffix-2")
C = ProcessId("zone-c", "suffix-3")
_AB = ((0, A), (1, B))
HEADER_AT = {"cluster_id": 0xC, "member_id": 0xA, "raft_term": 3}


class IntView:
    """Values are decimal integers; records its calls."""

    def __init__(self):
        self.values: dict[str, int] = {}

    def begin(self):
        pass

    def end(self):
        pass

    def put(self, kv):
        try:
            self.values[kv.key] = int(kv.value)
        except ValueError as err:
            raise ValidationError(f"no integer: {kv.value!r}") from err

    def remove(self, key):
        self.values.pop(key, None)


def header(revision: int, **changes) -> ResponseHeader:
    return ResponseHeader(**{**HEADER_AT, "revision": revision, **changes})


def kv(key: str, value: str | bytes, mod: int, *, create: int = 0, version: int = 1, lease=0):
    raw = value.encode() if isinstance(value, str) else value
    return KeyValue(key, raw, create or mod, mod, version, lease)


def put(key: str, value: str | bytes, mod: int, *, create: int = 0, version: int = 1) -> Event:
    return Event(kv(key, value, mod, create=create, version=version), is_delete=False)


def delete(key: str, mod: int) -> Event:
    return Event(KeyValue(key, b"", 0, mod, 0), is_delete=True)


def batch(*events: Event, revision: int = 0, **changes) -> WatchBatch:
    at = revision or events[-1].kv.mod_revision
    return WatchBatch(header(at, **changes), events)


def snapshot(revision: int, *kvs: KeyValue, **changes) -> RangeResult:
    return RangeResult(header(revision, **changes), kvs, len(kvs))


@pytest.fixture
def client():
    return EtcdClient(["http://127.0.0.1:1"])  # never connected


@pytest.fixture
def space(client):
    return KeySpace(client, "/p", IntView())


@pytest.fixture
def brokers(client):
    return KeySpace(client, "/p", BrokerState("/p"))


def test_y1_bad_values_are_left_out_until_corrected(space, caplog):
    space.apply_snapshot(snapshot(5, kv("/p/a", "1", 3), kv("/p/b", "bad", 4)))
    assert space.state.values == {"/p/a": 1}
    assert "bad entry in etcd is ignored until corrected: /p/b" in caplog.text
    space.apply_batches([batch(put("/p/b", "2", 6, create=4, version=2))])
    assert space.state.values == {"/p/a": 1, "/p/b": 2}
    assert space.revision == 6


def test_y1_observers_run_once_per_update_after_the_view(space):
    seen: list[tuple[int, dict[str, int]]] = []
    space.observe(lambda: seen.append((space.revision, dict(space.state.values))))
    space.apply_snapshot(snapshot(5, kv("/p/a", "1", 3)))
    space.apply_batches([batch(put("/p/b", "2", 6)), batch(put("/p/c", "3", 7), delete("/p/a", 7))])
    assert seen == [(5, {"/p/a": 1}), (7, {"/p/b": 2, "/p/c": 3})]


def test_y2_another_cluster_is_fatal_but_member_and_term_may_change(space):
    space.apply_snapshot(snapshot(5))
    space.apply_batches([batch(put("/p/a", "1", 6), member_id=0xB, raft_term=4)])
    assert space.header.member_id == 0xB
    assert space.header.raft_term == 4
    with pytest.raises(EtcdRejected, match="cluster id changed from c to d"):
        space.apply_batches([batch(put("/p/a", "2", 7, create=6, version=2), cluster_id=0xD)])
    assert space.state.values == {"/p/a": 1}
    with pytest.raises(EtcdRejected, match="cluster id changed"):
        space.apply_snapshot(snapshot(8, cluster_id=0xD))


def test_y3_batches_of_several_revisions_give_final_values(space):
    space.apply_snapshot(snapshot(5, kv("/p/a", "1", 3)))
    space.apply_batches(
        [
            batch(put("/p/b", "1", 6), put("/p/a", "2", 6, create=3, version=2)),
            batch(delete("/p/b", 7)),
            batch(put("/p/b", "9", 8), revision=10),
        ]
    )
    assert space.state.values == {"/p/a": 2, "/p/b": 9}
    # Of the last change, not of the response: 10 may never be seen by others who wait for it.
    assert space.revision == 8


def test_y3_going_back_is_fatal(space):
    space.apply_snapshot(snapshot(5))
    space.apply_batches([batch(put("/p/a", "1", 7))])
    with pytest.raises(EtcdRejected, match="went back to revision 6 after 7"):
        space.apply_batches([batch(put("/p/b", "1", 6))])
    with pytest.raises(EtcdRejected, match="went back to revision 8 after 9"):
        space.apply_batches([batch(put("/p/b", "1", 9)), batch(put("/p/c", "1", 8))])
    with pytest.raises(EtcdRejected, match="restored from a backup"):
        space.apply_snapshot(snapshot(4))


def test_y3_repeated_revision_is_tolerated(space):
    space.apply_snapshot(snapshot(5))
    space.apply_batches([batch(put("/p/a", "1", 6))])
    space.apply_batches([batch(put("/p/a", "1", 6), put("/p/b", "2", 6))])
    assert space.state.values == {"/p/a": 1, "/p/b": 2}


def test_y3_progress_moves_only_the_resume_point(space):
    space.apply_snapshot(snapshot(5))
    space.apply_batches([WatchBatch(header(50), ())])
    assert space.revision == 5
    assert space._resume_revision == 51


async def test_y4_waiters_wake_when_their_revision_is_applied(space):
    space.apply_snapshot(snapshot(5))
    await space.wait_for_revision(5)
    done: list[int] = []

    async def wait(revision: int) -> None:
        await space.wait_for_revision(revision, timeout_s=5)
        done.append(revision)

    async with asyncio.TaskGroup() as group:
        for revision in (8, 6, 7):
            group.create_task(wait(revision))
        await turns()
        space.apply_batches([batch(put("/p/a", "1", 7))])
        await turns(2)
        assert sorted(done) == [6, 7]
        space.apply_batches([batch(put("/p/b", "1", 8))])
    assert sorted(done) == [6, 7, 8]


async def test_who_waits_no_more_is_forgotten(space):
    """As of 20,000 reads that ask for a revision which never comes, and are cancelled."""
    space.apply_snapshot(snapshot(5))
    patient = asyncio.ensure_future(space.wait_for_revision(6))  # noqa: TID251
    for _ in range(1000):
        waiting = asyncio.ensure_future(space.wait_for_revision(1 << 60))  # noqa: TID251
        await turns()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(EtcdError):
            await space.wait_for_revision(1 << 60, timeout_s=0.0)
    assert len(space._waiters) < 200
    space.apply_batches([batch(put("/p/a", "1", 6))])
    await asyncio.wait_for(patient, 5)


async def test_y4_waiting_has_a_deadline_and_can_be_cancelled(space):
    space.apply_snapshot(snapshot(5))
    with pytest.raises(EtcdError, match=r"did not reach revision 6 within 0\.01 s"):
        await space.wait_for_revision(6, timeout_s=0.01)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(space.wait_for_revision(6), 0.01)
    space.apply_batches([batch(put("/p/a", "1", 6))])  # does not trip over those that left


@pytest.mark.parametrize(
    ("events", "values", "warns"),
    [
        pytest.param([delete("/p/x", 6)], {"/p/a": 1}, False, id="unknown-delete"),
        pytest.param([put("/p/a", "2", 6, create=3, version=2)], {"/p/a": 2}, False, id="update"),
        pytest.param([put("/p/a", "2", 6, create=3, version=4)], {"/p/a": 2}, True, id="jump"),
        pytest.param([put("/p/b", "2", 6, create=4)], {"/p/a": 1, "/p/b": 2}, True, id="create"),
        pytest.param([put("/p/a", "x", 6, create=3, version=2)], {"/p/a": 1}, True, id="decode"),
        pytest.param([delete("/p/a", 6), put("/p/a", "5", 7)], {"/p/a": 5}, False, id="recreate"),
    ],
)
def test_y6_single_changes(space, caplog, events, values, warns):
    caplog.set_level(logging.WARNING)
    space.apply_snapshot(snapshot(5, kv("/p/a", "1", 3)))
    space.apply_batches([batch(*events)])
    assert space.state.values == values
    assert bool(caplog.records) is warns


def test_second_snapshot_applies_only_differences(space):
    space.apply_snapshot(snapshot(5, kv("/p/a", "1", 3), kv("/p/b", "2", 4)))
    space.state.values["/p/a"] = -1  # would be overwritten if it were put again
    space.apply_snapshot(snapshot(9, kv("/p/a", "1", 3), kv("/p/c", "3", 8)))
    assert space.state.values == {"/p/a": -1, "/p/c": 3}
    assert space.revision == 9


# ------------------------------------------------------------- the view of brokers


def journal(name: str, replication: int = 1) -> bytes:
    fragment = FragmentSpec(length=1024, codec=CompressionCodec.NONE, refresh_interval_ns=10**9)
    return encode_journal_spec(JournalSpec(name, replication, fragment=fragment))


def member(process_id: ProcessId, endpoint: str = "") -> bytes:
    return encode_broker_spec(BrokerSpec(process_id, endpoint or f"http://{process_id.suffix}:80"))


def seed(brokers: KeySpace[BrokerState]) -> None:
    brokers.apply_snapshot(
        snapshot(
            5,
            kv(assignment_key("/p", "item/a", A, 1), b"", 2),
            kv(assignment_key("/p", "item/a", B, 0), b"", 2),
            kv(item_key("/p", "item/a"), journal("item/a", 2), 2),
            kv(item_key("/p", "item/b"), journal("item/b"), 3),
            kv(member_key("/p", A), member(A), 1, lease=77),
        )
    )


def test_route_has_members_in_key_order_and_known_endpoints(brokers):
    seed(brokers)
    state = brokers.state
    assert state.route_of("item/a") == Route((A, B), 1, ("http://suffix-1:80", ""))
    assert state.route_of("item/b") == Route((), -1, ())
    brokers.apply_batches([batch(put(member_key("/p", B), member(B), 6))])
    assert state.route_of("item/a").endpoints == ("http://suffix-1:80", "http://suffix-2:80")
    assert state.members[A].lease == 77
    assert state.changes.members == {B}


def test_ks1_journal_is_consistent_once_all_values_have_its_route(brokers):
    seed(brokers)
    state = brokers.state
    value = encode_route(state.route_of("item/a"))
    assert not state.is_consistent("item/a")
    assert state.is_consistent("item/b")  # no broker is assigned: none disagrees
    first, second = (a.key for a in state.assignments_of("item/a"))
    brokers.apply_batches([batch(put(first, value, 6, create=2, version=2))])
    assert not state.is_consistent("item/a")
    brokers.apply_batches([batch(put(second, value, 7, create=2, version=2))])
    assert state.is_consistent("item/a")
    brokers.apply_batches([batch(delete(first, 8))])
    assert not state.is_consistent("item/a")
    assert state.route_of("item/a").members == (B,)


@pytest.mark.parametrize(
    ("told", "consistent"),
    [
        ([Route((A, B, C), 1)] * 3, True),
        ([Route((A, B, C), 1, ("http://a", "http://b", "http://c"))] * 3, True),
        ([Route((A, B, C), 1), Route((A, B, C), 0), Route((A, B, C), 1)], False),
        ([Route((A, B, C), 1), Route((A, B, C), 1), Route((A, B), 1)], False),
        ([Route((A, B, C), 1), Route((A, B, C), 1), Route()], False),
        ([Route((A, B, C), 0)] * 3, False),
        ([Route((A, B), 1)] * 3, False),
    ],
)
def test_ks1_all_assignments_must_have_the_present_route(brokers, told, consistent):
    keys = [
        assignment_key("/p", "item/a", m, slot)
        for m, slot in zip((A, B, C), (1, 0, 2), strict=True)
    ]
    values = map(encode_route, told)
    kvs = [kv(key, value, 2) for key, value in zip(keys, values, strict=True)]
    brokers.apply_snapshot(snapshot(5, *kvs, kv(item_key("/p", "item/a"), journal("item/a", 3), 2)))
    assert brokers.state.is_consistent("item/a") is consistent


def test_k6_items_and_assignments_are_joined_both_ways(brokers):
    """Items without assignments, assignments without items, and neighbours in the order of keys."""
    items = ["item/a", "item/b", "item/c", "item/d"]
    assigned = ["item", "item/a", "item/b/c", "item/c", "item/e"]
    brokers.apply_snapshot(
        snapshot(
            5,
            *(kv(assignment_key("/p", name, m, n), b"", 2) for name in assigned for n, m in _AB),
            *(kv(item_key("/p", name), journal(name), 2) for name in items),
        )
    )
    state = brokers.state
    joined = {name: [a.process_id for a in state.assignments_of(name)] for name in state.journals}
    assert joined == {"item/a": [A, B], "item/b": [], "item/c": [A, B], "item/d": []}
    found = {name: name in state.items for name in state.assignments}
    assert found == {name: name in items for name in assigned}
    brokers.apply_batches([batch(delete(item_key("/p", "item/a"), 6))])
    assert [a.process_id for a in state.assignments_of("item/a")] == [A, B], (
        "to be removed by the leader"
    )
    assert "item/a" not in state.items


def test_k4_assignments_are_found_by_journal_and_by_member(brokers):
    seed(brokers)
    state = brokers.state
    assert [a.slot for a in state.assignments_of("item/a")] == [1, 0]
    assert [a.journal for a in state.assignments_to(B).values()] == ["item/a"]
    assert state.assignment_of("item/a", B).slot == 0
    assert (state.primaries_of(A), state.primaries_of(B)) == (0, 1)
    brokers.apply_batches([batch(delete(assignment_key("/p", "item/a", B, 0), 6))])
    assert state.assignment_of("item/a", B) is None
    assert not state.assignments_to(B)
    assert state.primaries_of(B) == 0
    assert state.changes.items == {"item/a"}


def test_names_stay_sorted(brokers):
    seed(brokers)
    names = ["zzzz", "item/aa", "item/b/c", "a/item"]
    puts = [put(item_key("/p", n), journal(n), 6) for n in names]
    brokers.apply_batches([batch(*puts, delete(item_key("/p", "item/a"), 6))])
    assert list(brokers.state.journals) == ["a/item", "item/aa", "item/b", "item/b/c", "zzzz"]
    assert set(brokers.state.items) == set(brokers.state.journals)
    assert brokers.state.changes.items == {*names, "item/a"}


def test_known_entry_that_turns_bad_keeps_its_last_good_value(brokers, caplog):
    seed(brokers)
    before = brokers.state.items["item/b"].spec
    brokers.apply_batches([batch(put(item_key("/p", "item/b"), b"\xff", 6, create=3, version=2))])
    assert brokers.state.items["item/b"].spec == before
    # An operator's correction has to name the revision of the bad value.
    assert brokers.state.items["item/b"].mod_revision == 6
    assert "bad entry in etcd" in caplog.text
    brokers.apply_batches([batch(delete(item_key("/p", "item/b"), 7))])
    assert "item/b" not in brokers.state.items


def test_foreign_keys_are_ignored(brokers, caplog):
    seed(brokers)
    brokers.apply_batches([batch(put("/p/strange", b"", 6))])
    assert "unexpected key prefix" in caplog.text
    brokers.apply_batches([batch(delete("/p/strange", 7))])
    assert brokers.revision == 7
