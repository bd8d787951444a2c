"""Steps of one item, batches, and dead items: decisions only, no etcd."""

from __future__ import annotations

import pytest

from gazette_platform.allocator import (
    Loads,
    Piece,
    batch_pieces,
    converge_dead_item,
    converge_item,
)
from gazette_platform.etcd import Compare, Delete, KeyValue, Put
from gazette_platform.keyspace import (
    BrokerState,
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

P = "/p"
ITEM = "item/one"
ITEM_REVISION = 50
A, B, C = (ProcessId("zone", f"member-{n}") for n in "abc")
LEASES = {A: 0xA, B: 0xB, C: 0xC}
MEMBER_REVISIONS = {A: 11, B: 12, C: 13}
LIMITS = {A: 10, B: 10, C: 10}


def kv(key: str, value: bytes, mod: int, lease: int = 0) -> KeyValue:
    return KeyValue(key, value, mod, mod, 1, lease)


def journal(name: str, replication: int) -> KeyValue:
    fragment = FragmentSpec(1024, CompressionCodec.NONE, refresh_interval_ns=10**9)
    spec = JournalSpec(name, replication, fragment=fragment)
    return kv(item_key(P, name), encode_journal_spec(spec), ITEM_REVISION)


def cluster(
    slots: dict[ProcessId, int],
    *,
    replication: int = 1,
    consistent: bool = True,
    others: dict[ProcessId, int] | None = None,
    members: tuple[ProcessId, ...] = (A, B, C),
) -> BrokerState:
    """ITEM with `slots`; each member holds `others` more items as their primary."""
    state = BrokerState(P)
    for m in members:
        value = encode_broker_spec(BrokerSpec(m, "http://host:80", journal_limit=10))
        state.put(kv(member_key(P, m), value, MEMBER_REVISIONS[m], LEASES[m]))
    state.put(journal(ITEM, max(replication, 1)))
    ids = tuple(sorted(slots))
    primary = next((n for n, m in enumerate(ids) if slots[m] == 0), -1)
    value = encode_route(Route(ids, primary)) if consistent else b""
    for m, slot in slots.items():
        key = assignment_key(P, ITEM, m, slot)
        state.put(kv(key, value, 100 + slot, LEASES[m]))
    for m, count in (others or {}).items():
        for n in range(count):
            state.put(kv(assignment_key(P, f"other/{n}", m, 0), b"", 200, LEASES[m]))
    return state


def step(state, desired, replication=1, limits=None) -> Piece | None:
    loads = Loads(state, limits or LIMITS)
    return converge_item(P, state, ITEM, desired=desired, replication=replication, loads=loads)


def slot_key(member: ProcessId, slot: int) -> str:
    return assignment_key(P, ITEM, member, slot)


def removed(piece: Piece | None) -> list[str]:
    return [op.key for op in piece.operations if isinstance(op, Delete)] if piece else []


def test_t11_fresh_item_gets_its_primary_under_the_member_lease():
    piece = step(cluster({}), [A])
    assert piece.operations == (Put(slot_key(A, 0), b"", lease=LEASES[A]),)
    assert piece.compares == (Compare.mod(member_key(P, A), MEMBER_REVISIONS[A]),)


@pytest.mark.parametrize("slots", [{A: 0, B: 1}, {A: 1, B: 0}])
def test_k5_who_is_assigned_counts_and_not_the_slot(slots):
    """Desired members have no slots: whoever holds the item in any of them is neither added again
    nor removed."""
    assert step(cluster(slots, replication=2), [A, B], replication=2) is None
    piece = step(cluster({A: 3, B: 7}, replication=2), [A, B], replication=2)
    assert removed(piece) == [slot_key(A, 3)]
    assert [op.key for op in piece.operations if isinstance(op, Put)] == [slot_key(A, 0)]


def test_nothing_to_do_makes_no_piece():
    assert step(cluster({A: 0}), [A]) is None


def test_t1_highest_load_goes_first_and_the_last_consistent_stays():
    state = cluster({A: 0, B: 1, C: 2}, others={A: 1, B: 5, C: 3})
    assert removed(step(state, [])) == [slot_key(B, 1), slot_key(C, 2)]


def test_t2_no_replication_removes_all():
    state = cluster({A: 0, B: 1})
    assert sorted(removed(step(state, [], replication=0))) == [slot_key(A, 0), slot_key(B, 1)]
    state = cluster({A: 0, B: 1}, consistent=False)
    assert len(removed(step(state, [], replication=0))) == 2


def test_t3_nothing_goes_when_replication_would_break():
    assert step(cluster({A: 0, B: 1}, replication=2), [A], replication=2) is None
    piece = step(cluster({A: 0, B: 1}, replication=2), [A, C], replication=2)
    assert removed(piece) == []
    assert piece.operations == (Put(slot_key(C, 2), b"", lease=LEASES[C]),)


def test_t4_nothing_goes_while_inconsistent():
    assert step(cluster({A: 0, B: 1}, consistent=False), [A]) is None
    assert removed(step(cluster({A: 0, B: 1}), [A])) == [slot_key(B, 1)]


def test_t5_without_primary_the_lowest_primary_load_is_promoted():
    state = cluster({A: 1, B: 2}, others={A: 3, B: 1})
    piece = step(state, [A, B], replication=2)
    value = encode_route(Route((A, B), -1))
    assert piece.operations == (
        Delete(slot_key(B, 2)),
        Put(slot_key(B, 0), value, lease=LEASES[B]),
    )
    assert piece.compares == (Compare.mod(slot_key(B, 2), 102),)


def test_t6_who_alone_stays_is_promoted():
    piece = step(cluster({A: 0, B: 3}, others={B: 9}), [B])
    value = encode_route(Route((A, B), 0))
    assert piece.operations[1:] == (
        Delete(slot_key(B, 3)),
        Put(slot_key(B, 0), value, lease=LEASES[B]),
    )


def test_t11_primary_of_a_fresh_item_is_who_has_the_fewest():
    state = cluster({}, replication=3, others={A: 2, C: 1})
    piece = step(state, [A, B, C], replication=3)
    assert [op.key for op in piece.operations] == [slot_key(B, 0), slot_key(C, 1), slot_key(A, 2)]


def test_t11_full_member_does_not_leave_a_fresh_item_without_primary():
    piece = step(cluster({}, replication=2), [A, B], replication=2, limits={A: 0, B: 10})
    assert [op.key for op in piece.operations] == [slot_key(B, 0)]


def test_members_that_are_gone_are_not_added():
    assert step(cluster({}, members=(B, C)), [A]) is None


def test_refused_items_are_reported():
    state = cluster({A: 0}, replication=2)
    loads = Loads(state, {A: 10, B: 0})
    assert converge_item(P, state, ITEM, desired=[A, B], replication=2, loads=loads) is None
    assert loads.refused == {B: {ITEM}}


def test_a4_load_ratios():
    state = cluster({A: 0, B: 1}, others={A: 4})
    loads = Loads(state, {A: 10, B: 4})
    assert [loads.ratio(m) for m in (A, B, C)] == [0.5, 0.25, float("inf")]
    assert [loads.primary_ratio(m) for m in (A, B)] == [0.5, 0]
    loads.count(B, items=3, primaries=2)
    assert (loads.ratio(B), loads.primary_ratio(B), loads.has_room(B)) == (1, 0.5, False)


def test_a1_totals_and_primaries_by_member():
    state = cluster({A: 0, B: 1, C: 2}, others={C: 1})
    assert [len(state.assignments_to(m)) for m in (A, B, C)] == [1, 1, 2]
    assert [state.primaries_of(m) for m in (A, B, C)] == [1, 0, 1]
    # An assignment of an item that does not exist counts for its member, and is not an item.
    assert list(state.journals) == [ITEM]
    held = {m: sorted(a.journal for a in state.assignments_to(m).values()) for m in (A, B, C)}
    assert held == {A: [ITEM], B: [ITEM], C: [ITEM, "other/0"]}
    assert [a.slot for a in state.assignments_of(ITEM)] == [0, 1, 2]
    assert [m.spec.journal_limit for m in state.members.values()] == [10, 10, 10]
    loads = Loads(state, {A: 10, B: 4})
    # Whom nothing may be given to has the highest load of all.
    assert [loads.ratio(m) for m in (A, B, C)] == [0.1, 0.25, float("inf")]


def test_l2_a_step_and_all_that_it_depends_on():
    """A leaves, C is to come; D is wanted too and is full, so that it gets nothing."""
    full = ProcessId("zone", "member-d")
    state = cluster({A: 0, B: 1}, replication=2, others={C: 1})
    state.put(
        kv(member_key(P, full), encode_broker_spec(BrokerSpec(full, "http://d:80", 0)), 14, 0xD)
    )
    limits = LIMITS | {full: 0}
    adding = step(state, [B, C, full], replication=3, limits=limits)
    assert adding.operations == (Put(slot_key(C, 2), b"", lease=LEASES[C]),)
    assert adding.compares == (Compare.mod(member_key(P, C), MEMBER_REVISIONS[C]),)
    # Once C is in step, A goes, and of those who stay the one with fewer primaries is promoted.
    state = cluster({A: 0, B: 1, C: 2}, replication=2, others={B: 1})
    value = encode_route(Route((A, B, C), 0))
    removing = step(state, [B, C], replication=2)
    assert removing.operations == (
        Delete(slot_key(A, 0)),
        Delete(slot_key(C, 2)),
        Put(slot_key(C, 0), value, lease=LEASES[C]),
    )
    assert removing.compares == (
        Compare.mod(item_key(P, ITEM), ITEM_REVISION),
        Compare.mod(slot_key(A, 0), 100),
        Compare.mod(slot_key(C, 2), 102),
    )


def test_t7_primary_stays_even_if_inconsistent():
    assert step(cluster({A: 1, B: 0}, consistent=False), [A, B], replication=2) is None


def test_t8_full_member_is_not_added_but_its_slot_is_left_out():
    ids = [ProcessId("zone", f"member-{n}") for n in ("d", "e")]
    state = cluster({A: 7}, replication=5)
    for m in ids:
        value = encode_broker_spec(BrokerSpec(m, "http://host:80", journal_limit=10))
        state.put(kv(member_key(P, m), value, 20, 0xD))
    limits = {**LIMITS, ids[0]: 0, ids[1]: 10}
    piece = step(state, [A, B, *ids], replication=4, limits=limits)
    puts = [op.key for op in piece.operations if isinstance(op, Put)]
    assert puts == [slot_key(A, 0), slot_key(B, 8), slot_key(ids[1], 10)]


def test_t9_removal_compares_item_and_assignment():
    piece = step(cluster({A: 0, B: 1}), [A])
    assert piece.operations == (Delete(slot_key(B, 1)),)
    assert piece.compares == (
        Compare.mod(item_key(P, ITEM), ITEM_REVISION),
        Compare.mod(slot_key(B, 1), 101),
    )


def test_t10_removal_of_the_primary_promotes_in_the_same_piece():
    piece = step(cluster({A: 0, B: 1}), [B])
    assert removed(piece) == [slot_key(A, 0), slot_key(B, 1)]
    value = encode_route(Route((A, B), 0))
    assert piece.operations[-1] == Put(slot_key(B, 0), value, lease=LEASES[B])


def test_t12_packing_moves_one_slot_and_only_when_nothing_else_is_done():
    state = cluster({A: 0, B: 2, C: 5}, replication=3)
    piece = step(state, [A, B, C], replication=3)
    assert [op.key for op in piece.operations] == [slot_key(B, 2), slot_key(B, 1)]
    piece = step(cluster({A: 0, B: 2}, replication=3), [A, B, C], replication=3)
    assert [op.key for op in piece.operations] == [slot_key(C, 3)]
    # Nor while the primary is about to write the values.
    assert step(cluster({A: 0, B: 2}, consistent=False), [A, B], replication=2) is None


def test_loads_are_counted_on_within_a_round():
    state = cluster({}, members=(A,))
    state.put(journal("item/two", 1))
    loads = Loads(state, {A: 1})
    first = converge_item(P, state, ITEM, desired=[A], replication=1, loads=loads)
    second = converge_item(P, state, "item/two", desired=[A], replication=1, loads=loads)
    assert first is not None
    assert second is None


def test_l1_assignments_of_a_dead_item_go_if_it_is_still_dead():
    state = cluster({A: 0, B: 1})
    state.remove(item_key(P, ITEM))
    piece = converge_dead_item(P, state, ITEM)
    assert piece.operations == (Delete(slot_key(A, 0)), Delete(slot_key(B, 1)))
    assert piece.compares == (
        Compare.create(item_key(P, ITEM), 0),
        Compare.mod(slot_key(A, 0), 100),
        Compare.mod(slot_key(B, 1), 101),
    )
    assert converge_dead_item(P, state, "item/unknown") is None


@pytest.mark.parametrize(
    ("operations", "compares", "expected"),
    [
        ([1] * 128, [0] * 128, [128]),
        ([1] * 129, [0] * 129, [128, 1]),
        ([100, 28, 1], [1, 1, 1], [2, 1]),
        # The leader's comparison takes one place.
        ([1] * 128, [1] * 128, [127, 1]),
        ([], [], []),
    ],
)
def test_l3_pieces_fill_transactions_and_stay_whole(operations, compares, expected):
    pieces = [
        Piece(str(n), (Compare.mod("k", 1),) * c, (Delete("k"),) * o)
        for n, (o, c) in enumerate(zip(operations, compares, strict=True))
    ]
    batches = batch_pieces(pieces)
    assert [len(b) for b in batches] == expected
    assert [p for b in batches for p in b] == pieces
