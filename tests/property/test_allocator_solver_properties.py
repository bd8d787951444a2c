"""The solver on random clusters: what must hold of any answer, whatever it is."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from hypothesis import given, settings, strategies as st

from gazette_platform.allocator import Solver
from gazette_platform.keyspace import Assignment
from gazette_platform.protocol import ProcessId, Route


@dataclass(frozen=True)
class Cluster:
    limits: dict[ProcessId, int]
    wanted: dict[str, int]
    assigned: dict[str, list[ProcessId]]


@st.composite
def clusters(draw, *, items_max=9, limit_max=7):
    """Up to three zones of up to four members, and items that some of them hold."""
    zones = draw(st.integers(1, 3))
    ids = [ProcessId(f"z{z}", f"m{n}") for z in range(zones) for n in range(4)]
    ids = draw(st.lists(st.sampled_from(ids), unique=True, min_size=1))
    limits = {m: draw(st.integers(0, limit_max)) for m in ids}
    names = [f"item/{n}" for n in range(draw(st.integers(0, items_max)))]
    wanted = {name: draw(st.integers(0, 4)) for name in names}
    some = st.lists(st.sampled_from(ids), unique=True, max_size=4)
    return Cluster(limits, wanted, {name: draw(some) for name in names})


def assignments(name, ids):
    return [Assignment(name, m, slot, Route(), 1, 1, "", b"", 1) for slot, m in enumerate(ids)]


def tell(solver, cluster):
    solver.set_limits(cluster.limits)
    for name, wanted in cluster.wanted.items():
        solver.set_item(name, wanted, assignments(name, cluster.assigned[name]))


def solve(solver, cluster):
    for _ in solver.solve():
        pass
    return {name: solver.desired_of(name) for name in cluster.wanted}


def solved(cluster):
    solver = Solver()
    tell(solver, cluster)
    return solve(solver, cluster)


def flow_max(cluster, *, is_strict):
    """How many replicas can be placed at most: augmenting paths, one unit at a time, in the open.

    Nodes are "source", items, (item, zone), members and "sink".
    """
    capacity = {}
    zones = {m.zone for m, limit in cluster.limits.items() if limit}
    for name, wanted in cluster.wanted.items():
        capacity["source", name] = wanted
        most = max(wanted - 1, 1) if is_strict and len(zones) > 1 else wanted
        for zone in zones:
            capacity[name, (name, zone)] = most
        for m in cluster.limits:
            if m.zone in zones:
                capacity[(name, m.zone), m] = 1
    capacity |= {(m, "sink"): limit for m, limit in cluster.limits.items()}
    arcs = {}
    for a, b in list(capacity):
        capacity.setdefault((b, a), 0)
        arcs.setdefault(a, []).append(b)
        arcs.setdefault(b, []).append(a)
    for total in itertools.count():
        came_from = {"source": None}
        queue = ["source"]
        for at in queue:
            for to in arcs.get(at, ()):
                if to not in came_from and capacity[at, to]:
                    came_from[to] = at
                    queue.append(to)
        if "sink" not in came_from:
            return total
        at = "sink"
        while (before := came_from[at]) is not None:
            capacity[before, at] -= 1
            capacity[at, before] += 1
            at = before
    raise AssertionError


def held_by(chosen):
    return {m: sum(m in ids for ids in chosen.values()) for m in set().union(*chosen.values())}


def is_spread(ids, wanted, zones):
    most = max(wanted - 1, 1) if len(zones) > 1 else wanted
    return all(sum(m.zone == z for m in ids) <= most for z in zones)


@settings(deadline=None)
@given(clusters())
def test_limits_and_replication_are_never_exceeded(cluster):
    chosen = solved(cluster)
    for name, ids in chosen.items():
        assert len(set(ids)) == len(ids) <= cluster.wanted[name]
        assert list(ids) == sorted(ids)
    for m, held in held_by(chosen).items():
        assert held <= cluster.limits[m]


@settings(deadline=None)
@given(clusters())
def test_as_many_replicas_as_there_can_be(cluster):
    chosen = solved(cluster)
    assert sum(map(len, chosen.values())) == flow_max(cluster, is_strict=False)


@settings(deadline=None)
@given(clusters())
def test_items_are_spread_over_zones_when_all_can_be(cluster):
    if flow_max(cluster, is_strict=True) < sum(cluster.wanted.values()):
        return
    zones = {m.zone for m, limit in cluster.limits.items() if limit}
    for name, ids in solved(cluster).items():
        assert len(ids) == cluster.wanted[name]
        assert is_spread(ids, cluster.wanted[name], zones)


@settings(deadline=None)
@given(clusters())
def test_solving_again_changes_nothing(cluster):
    solver = Solver()
    tell(solver, cluster)
    chosen = solve(solver, cluster)
    # Also if asked to look at everything again, and when what was chosen is assigned.
    solver.set_limits({m: limit + 1 for m, limit in cluster.limits.items()})
    solver.set_limits(cluster.limits)
    assert solve(solver, cluster) == chosen
    after = Cluster(cluster.limits, cluster.wanted, {n: list(i) for n, i in chosen.items()})
    tell(solver, after)
    assert solve(solver, after) == chosen


def host_of(m):
    """Two hosts in each zone, of two members each."""
    return f"{m.zone}-host-{int(m.suffix[1:]) // 2}"


def tell_hosts(solver, cluster):
    solver.set_limits(cluster.limits, {m: host_of(m) for m in cluster.limits})
    for name, wanted in cluster.wanted.items():
        solver.set_item(name, wanted, assignments(name, cluster.assigned[name]))


@settings(deadline=None)
@given(clusters())
def test_no_replica_is_given_up_for_hosts(cluster):
    solver = Solver()
    tell_hosts(solver, cluster)
    chosen = solve(solver, cluster)
    assert sum(map(len, chosen.values())) == flow_max(cluster, is_strict=False)
    tell_hosts(solver, cluster)
    assert solve(solver, cluster) == chosen


@settings(deadline=None)
@given(clusters())
def test_with_room_no_two_replicas_share_a_host(cluster):
    cluster = Cluster(dict.fromkeys(cluster.limits, 40), cluster.wanted, cluster.assigned)
    solver = Solver()
    tell_hosts(solver, cluster)
    hosts = {host_of(m) for m in cluster.limits}
    zones = {m.zone for m in cluster.limits}
    for name, ids in solve(solver, cluster).items():
        wanted = min(cluster.wanted[name], len(cluster.limits))
        assert len(ids) == wanted
        if wanted <= len(hosts):
            assert len({host_of(m) for m in ids}) == wanted
            assert is_spread(ids, wanted, zones)


@settings(deadline=None)
@given(clusters(), st.data())
def test_changes_are_reported(cluster, data):
    solver = Solver()
    tell(solver, cluster)
    chosen = solve(solver, cluster)
    limits = {m: data.draw(st.integers(0, 7)) for m in cluster.limits if data.draw(st.booleans())}
    solver.set_limits(limits or cluster.limits)
    solving = solver.solve()
    while True:
        try:
            next(solving)
        except StopIteration as ended:
            changed = ended.value
            break
    differ = {name for name, ids in chosen.items() if solver.desired_of(name) != ids}
    assert differ <= set(changed)


@settings(deadline=None)
@given(clusters(limit_max=30), st.data())
def test_a_member_that_leaves_moves_little_else(cluster, data):
    """With room for all, what leaves is placed again, and shares and zones move a few others."""
    limits = dict.fromkeys(cluster.limits, 40)
    cluster = Cluster(limits, cluster.wanted, cluster.assigned)
    solver = Solver()
    tell(solver, cluster)
    chosen = solve(solver, cluster)
    gone = data.draw(st.sampled_from(sorted(limits)))
    rest = {m: limit for m, limit in limits.items() if m != gone}
    left = Cluster(rest, cluster.wanted, {n: list(ids) for n, ids in chosen.items()})
    tell(solver, left)
    after = solve(solver, left)
    lost = sum(gone in ids for ids in chosen.values())
    moved = sum(len(set(after[n]) - set(chosen[n])) for n in chosen)
    # Each unit that is placed again may push others out of the way: one that its share is too large by,
    # and one that leaves a zone for it.
    assert moved <= 3 * lost
