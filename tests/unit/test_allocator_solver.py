"""Who ought to hold what: the rules of the solver, one at a time."""

from __future__ import annotations

import pytest

from gazette_platform.allocator import Solver, effective_limits, load_ratio
from gazette_platform.etcd import KeyValue
from gazette_platform.keyspace import (
    BrokerState,
    ClusterMember,
    assignment_key,
    encode_journal_spec,
    item_key,
)
from gazette_platform.protocol import (
    BrokerSpec,
    CompressionCodec,
    FragmentSpec,
    JournalSpec,
    ProcessId,
)


def process(zone: str, n: int) -> ProcessId:
    return ProcessId(f"zone-{zone}", f"member-{n}")


A1, A2, B1, B2 = process("a", 1), process("a", 2), process("b", 1), process("b", 2)


def members(*specs: tuple[ProcessId, int, bool]) -> dict[ProcessId, ClusterMember]:
    """Members in order of age: (id, limit, whether exiting)."""
    return {
        m: ClusterMember(BrokerSpec(m, "http://h:1", limit, exiting), n + 1, n + 1, n + 1)
        for n, (m, limit, exiting) in enumerate(specs)
    }


def holding(assigned: dict[str, list[ProcessId]]) -> BrokerState:
    """Items with these members, the first of each being primary."""
    state = BrokerState("/p")
    fragment = FragmentSpec(1024, CompressionCodec.NONE, refresh_interval_ns=10**9)
    for name, ids in assigned.items():
        value = encode_journal_spec(JournalSpec(name, 1, fragment=fragment))
        state.put(KeyValue(item_key("/p", name), value, 1, 1, 1))
        for slot, m in enumerate(ids):
            state.put(KeyValue(assignment_key("/p", name, m, slot), b"", 2, 2, 1))
    return state


class Solved:
    """A solver that gets whole clusters."""

    def __init__(self, state, limits, replication=1, hosts=None):
        self.solver = Solver()
        self.slices = 0
        self.update(state, limits, replication, hosts)

    def update(self, state, limits, replication=1, hosts=None):
        """Set the present cluster. Replication is a number, or one by item."""
        self.solver.set_limits(limits, hosts)
        by_item = replication if isinstance(replication, dict) else {}
        for name in set(self.solver._items) - set(state.items):
            self.solver.forget(name)
        for name in state.journals:
            wanted = by_item[name] if by_item else replication
            self.solver.set_item(name, wanted, state.assignments_of(name))
        return self.solve()

    def solve(self):
        """Returns what changed."""
        solving = self.solver.solve()
        while True:
            try:
                next(solving)
                self.slices += 1
            except StopIteration as solved:
                return solved.value

    def __getitem__(self, name):
        return self.solver.desired_of(name)


def held(solved, *ids):
    return [sum(m in solved[name] for name in solved.solver._items) for m in ids]


def test_load_ratio_without_room_is_infinite():
    assert load_ratio(1, 4) == 0.25
    assert load_ratio(0, 0) == float("inf")


@pytest.mark.parametrize(
    ("specs", "replications", "expected"),
    [
        pytest.param([(A1, 5, False), (B1, 5, False)], [1, 1], [5, 5], id="none-exits"),
        pytest.param([(A1, 5, True), (B1, 5, False)], [1, 1], [0, 5], id="sheds-all"),
        pytest.param([(A1, 5, True), (B1, 5, False)], [2, 1], [5, 5], id="too-few-members"),
        pytest.param(
            [(A1, 5, True), (B1, 5, True), (B2, 5, False)], [1, 1], [0, 0, 5], id="several"
        ),
        pytest.param(
            [(B1, 5, True), (A1, 5, True), (B2, 5, False)], [2], [0, 5, 5], id="oldest-first"
        ),
        pytest.param([(A1, 5, True), (B1, 5, False)], [1] * 7, [2, 5], id="limited-by-excess"),
        pytest.param([(A1, 2, True), (B1, 2, False)], [1] * 5, [2, 2], id="overloaded"),
        pytest.param(
            [(A1, 5, True), (B1, 5, True), (B2, 5, False)],
            [1] * 8,
            [0, 3, 5],
            id="the-last-in-part",
        ),
        pytest.param(
            [(A1, 3, True), (B1, 3, True), (B2, 3, False)],
            [1] * 7,
            [1, 3, 3],
            id="the-oldest-in-part",
        ),
        pytest.param(
            [(A1, 2, True), (B1, 9, True), (B2, 9, False)], [1] * 15, [0, 6, 9], id="one-by-one"
        ),
        pytest.param([(A1, 5, True)], [1], [5], id="lone"),
        pytest.param([(A1, 5, True)], [], [0], id="lone-without-items"),
    ],
)
def test_a5_exiting_members_shed_what_others_can_take(specs, replications, expected):
    cluster = members(*specs)
    limits = effective_limits(
        cluster, replicas=sum(replications), replication_max=max(replications, default=0)
    )
    assert list(limits.values()) == expected


def test_new_items_go_to_the_least_loaded():
    state = holding({"held/0": [A1], "held/1": [A1], "new/0": [], "new/1": [], "new/2": []})
    solved = Solved(state, {A1: 10, A2: 10})
    assert [solved[f"held/{n}"] for n in range(2)] == [(A1,), (A1,)]
    assert held(solved, A1, A2) == [3, 2]


def test_f2_share_is_relative_to_the_limit():
    solved = Solved(holding({f"item/{n}": [] for n in range(12)}), {A1: 10, A2: 20})
    assert held(solved, A1, A2) == [4, 8]


def test_f2_new_member_gets_its_share_and_nothing_more_moves():
    state = holding({f"item/{n}": [A1] for n in range(4)})
    solved = Solved(state, {A1: 10, B1: 10})
    assert held(solved, A1, B1) == [2, 2]


def test_f2_small_differences_move_nothing():
    state = holding({f"item/{n}": [A1] for n in range(2)} | {"item/2": [B1]})
    solved = Solved(state, {A1: 10, B1: 10})
    assert [solved[f"item/{n}"] for n in range(3)] == [(A1,), (A1,), (B1,)]


def test_f2_shares_are_exceeded_rather_than_replicas_given_up():
    # Each item needs one of zone b, whose only member has a fair share of three.
    state = holding({f"item/{n}": [] for n in range(6)})
    solved = Solved(state, {A1: 6, A2: 6, process("a", 3): 6, B1: 6}, 2)
    assert held(solved, B1) == [6]
    assert all(len(solved[n]) == 2 for n in state.journals)


@pytest.mark.parametrize(
    ("zones", "replication", "expected"),
    [("abc", 3, [1, 1, 1]), ("ab", 3, [1, 2]), ("abc", 5, [1, 2, 2]), ("a", 3, [3])],
)
def test_f4_replicas_are_spread_evenly_over_zones(zones, replication, expected):
    ids = [process(z, n) for z in zones for n in range(3)]
    solved = Solved(holding({"item/0": []}), dict.fromkeys(ids, 10), replication)
    in_zone = [sum(m.zone == f"zone-{z}" for m in solved["item/0"]) for z in zones]
    assert sorted(in_zone) == expected


def test_items_in_one_zone_are_spread_and_the_primary_stays():
    solved = Solved(holding({"item/0": [], "item/1": [A1, A2]}), {A1: 9, A2: 9, B1: 9}, 2)
    assert {m.zone for m in solved["item/0"]} == {"zone-a", "zone-b"}
    assert solved["item/1"] == (A1, B1)


def test_whichever_is_the_primary_of_items_in_one_zone_stays():
    solved = Solved(holding({"item/0": [A2, A1]}), {A1: 9, A2: 9, B1: 9}, 2)
    assert solved["item/0"] == (A2, B1)


def test_a_surplus_leaves_the_zone_that_has_two_of_the_item():
    # B1 is the fullest, and would be left else: only to be missed in its zone.
    state = holding({"item/0": [A1, A2, B1], "item/1": [B1]})
    wanted = {"item/0": 2, "item/1": 1}
    assert Solved(state, {A1: 9, A2: 9, B1: 9, B2: 9}, wanted)["item/0"] == (A1, B1)


def test_f3_zones_are_given_up_rather_than_replicas():
    state = holding({"item/0": [], "item/1": []})
    assert Solved(state, {A1: 9, A2: 9, B1: 0}, 2)["item/0"] == (A1, A2)
    solved = Solved(state, {A1: 9, A2: 9, B1: 1}, 2)
    assert solved["item/0"] == (A1, B1)
    assert solved["item/1"] == (A1, A2)


HOSTS = {A1: "a", A2: "a", process("a", 3): "b", process("a", 4): "b"}


@pytest.mark.parametrize("assigned", [[], [A1, A2]], ids=["new", "on-one-host"])
def test_replicas_are_on_two_hosts_of_one_zone(assigned):
    solved = Solved(holding({"item/0": assigned}), dict.fromkeys(HOSTS, 9), 2, HOSTS)
    assert {HOSTS[m] for m in solved["item/0"]} == {"a", "b"}
    assert not assigned or A1 in solved["item/0"]  # the primary stays


def test_replicas_are_on_three_hosts_of_two_zones():
    hosts = {A1: "a", A2: "a", B1: "b", B2: "b", process("b", 3): "c"}
    solved = Solved(holding({"item/0": []}), dict.fromkeys(hosts, 9), 3, hosts)
    assert {hosts[m] for m in solved["item/0"]} == {"a", "b", "c"}


def test_hosts_are_given_up_rather_than_replicas():
    state = holding({"item/0": [], "item/1": []})
    limits = {A1: 9, A2: 9, process("a", 3): 1}
    solved = Solved(state, limits, 2, HOSTS)
    assert solved["item/0"] == (A1, process("a", 3))
    assert solved["item/1"] == (A1, A2)


def test_hosts_are_given_up_rather_than_zones():
    # Host c has no room, so the third replica joins another on its host; two zones have some all the same.
    hosts = {A1: "a", A2: "a", B1: "b", B2: "c"}
    state = holding({"item/0": [], "item/1": [B2]})
    limits = {A1: 9, A2: 9, B1: 9, B2: 1}
    solved = Solved(state, limits, {"item/0": 3, "item/1": 1}, hosts)
    assert len(solved["item/0"]) == 3
    assert B1 in solved["item/0"] or B2 in solved["item/0"]


def test_replicas_leave_a_host_when_another_joins():
    state = holding({"item/0": [A1, A2]})
    solved = Solved(state, {A1: 9, A2: 9}, 2, HOSTS)
    assert solved["item/0"] == (A1, A2)
    third = process("a", 3)
    assert solved.update(state, {A1: 9, A2: 9, third: 9}, 2, HOSTS) == ["item/0"]
    assert solved["item/0"] == (A1, third)


def test_f5_items_that_could_be_anywhere_make_way_for_those_that_cannot():
    # item/9 is on A1 already, so that only B1 can take its second replica; and B1 is full.
    state = holding({"item/0": [B1], "item/1": [A1, A2], "item/9": [A1]})
    wanted = {"item/0": 1, "item/1": 2, "item/9": 2}
    solved = Solved(state, {A1: 2, A2: 2, B1: 1}, wanted)
    assert [len(solved[n]) for n in state.journals] == [1, 2, 2]
    assert held(solved, A1, A2, B1) == [2, 2, 1]


def test_replication_is_capped_by_members():
    assert Solved(holding({"item/0": [A1]}), {A1: 9, B1: 9}, 3)["item/0"] == (A1, B1)


def test_lower_replication_keeps_the_primary():
    assert Solved(holding({"item/0": [B1, A1, A2]}), {A1: 9, A2: 9, B1: 9}, 1)["item/0"] == (B1,)


def test_lower_limit_moves_only_the_surplus():
    state = holding({f"item/{n}": [A1] for n in range(5)})
    solved = Solved(state, {A1: 3, B1: 3})
    assert held(solved, A1, B1) == [3, 2]
    assert solved["item/0"] == (A1,)  # what came last goes first


def test_without_room_elsewhere_the_limit_holds():
    state = holding({f"item/{n}": [A1] for n in range(5)})
    solved = Solved(state, {A1: 3, B1: 0})
    assert held(solved, A1, B1) == [3, 0]


def test_member_without_limit_gives_everything_up():
    state = holding({f"item/{n}": [A1, B1] for n in range(4)})
    solved = Solved(state, {A1: 0, B1: 9, B2: 9}, 2)
    assert all(solved[name] == (B1, B2) for name in state.journals)


def test_hand_over_does_not_turn_back():
    solved = Solved(holding({"item/0": [A1]}), {A1: 0, B1: 9, B2: 9})
    chosen = solved["item/0"]
    # A1 may hold items again; meanwhile both hold it.
    solved.update(holding({"item/0": [A1, *chosen]}), {A1: 9, B1: 9, B2: 9})
    assert solved["item/0"] == chosen


def test_hand_over_is_recognized_by_a_new_leader():
    # A1 held four, is to hold two, and B1 took two over so far: as the last leader decided.
    assigned = {"item/0": [A1], "item/1": [A1], "item/2": [A1, B1], "item/3": [A1, B1]}
    solved = Solved(holding(assigned), {A1: 10, B1: 10})
    assert [solved[n] for n in sorted(assigned)] == [(A1,), (A1,), (B1,), (B1,)]


def test_gone_members_are_replaced():
    state = holding({"item/0": [B1, A1]})
    assert Solved(state, {A1: 9, A2: 9}, 2)["item/0"] == (A1, A2)
    solved = Solved(state, {A1: 9, B1: 9, A2: 9}, 2)
    assert solved.update(state, {A2: 9, B2: 9, A1: 9}, 2) == ["item/0"]
    assert solved["item/0"] in ((A1, B2), (A2, B2))


def test_number_of_a_gone_member_serves_another():
    state = holding({"item/0": [A1]})
    solved = Solved(state, {A1: 9})
    solved.update(state, {B2: 9})
    assert solved["item/0"] == (B2,)
    solved.update(state, {A1: 9, B2: 9})
    assert solved["item/0"] == (B2,)


def test_no_change_causes_no_work():
    state = holding({f"item/{n}": [] for n in range(9)})
    limits = {A1: 9, A2: 9, B1: 9}
    solved = Solved(state, limits, 2)
    chosen = {n: list(solved[n]) for n in state.journals}
    solved.solver._push = None  # to solve is to call it
    # They are assigned what they ought to have: the answer cannot change.
    assert solved.update(holding(chosen), limits, 2) == []
    with pytest.raises(TypeError):
        solved.update(holding(chosen), {**limits, B1: 8}, 2)


def test_deleted_items_make_room():
    state = holding({f"item/{n}": [] for n in range(4)})
    solved = Solved(state, {A1: 3})
    assert solved["item/3"] == ()
    assert solved.update(holding({f"item/{n}": [] for n in range(1, 4)}), {A1: 3}) == ["item/3"]
    assert solved["item/3"] == (A1,)
    assert (solved.solver.replicas, solved.solver.replication_max) == (3, 1)


def test_long_solves_come_in_slices():
    solved = Solved(holding({f"item/{n:04}": [] for n in range(2000)}), {A1: 2000, B1: 2000}, 2)
    assert solved.slices > 3
    assert held(solved, A1, B1) == [2000, 2000]
