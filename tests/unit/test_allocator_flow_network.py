"""Arcs of the flow network, and the search for paths through it."""

from __future__ import annotations

import pytest

from gazette_platform.allocator.max_flow import SLICE_ARCS, FlowNetwork, Pusher, Spread, bits


def network(zones, limits, items=(), hosts=None):
    """Members by zone number, host number and limit; items as (wanted, members they flow to)."""
    net = FlowNetwork()
    for number, zone in enumerate(zones):
        net.add_member(zone, hosts[number] if hosts else number)
    net.set_limits(dict(enumerate(limits)))
    for wanted, members in items:
        item = net.add_item()
        net.set_item(item, wanted=wanted, assigned=0, primary=0)
        for member in members:
            net.place(item, member)
    return net


def among(net, mask):
    return bits(mask & ((1 << len(net.limits)) - 1))


def run(generator):
    """What a generator returns, and how often it yielded."""
    yields = 0
    while True:
        try:
            next(generator)
            yields += 1
        except StopIteration as ended:
            return ended.value, yields


def flows(net):
    return [bits(mask) for mask in net.flow]


def test_f1_units_may_go_to_members_without_one_and_not_all_to_a_zone():
    net = network([0, 0, 0, 1, 1], [9] * 5, [(3, []), (3, [0]), (3, [0, 1]), (1, [3]), (2, [0])])
    takers = [among(net, net.takers(item, spread=Spread.ZONES)) for item in range(5)]
    assert takers == [[0, 1, 2, 3, 4], [1, 2, 3, 4], [3, 4], [0, 1, 2], [3, 4]]
    assert among(net, net.takers(2, spread=Spread.NONE)) == [2, 3, 4]


def test_f1_within_a_zone_units_may_always_be_passed_on():
    net = network([0, 0, 0, 1], [9] * 4, [(3, [0, 1])])
    assert among(net, net.heirs(0, 0, spread=Spread.ZONES)) == [2, 3]
    net = network([0, 0, 1, 1], [9] * 4, [(2, [0, 2])])
    # To the other zone it may not go, because that has its unit.
    assert among(net, net.heirs(0, 0, spread=Spread.ZONES)) == [1]
    assert among(net, net.heirs(0, 0, spread=Spread.NONE)) == [1, 3]


def test_units_may_not_go_to_a_host_with_its_part():
    items = [(2, []), (2, [0]), (2, [2]), (3, [0]), (4, [0])]
    net = network([0] * 4, [9] * 4, items, hosts=[0, 0, 1, 2])
    takers = [among(net, net.takers(item, spread=Spread.HOSTS)) for item in range(5)]
    assert takers == [[0, 1, 2, 3], [2, 3], [0, 1, 3], [2, 3], [1, 2, 3]]
    assert among(net, net.takers(1, spread=Spread.ZONES)) == [1, 2, 3]


def test_units_may_be_passed_on_within_a_host():
    net = network([0] * 4, [9] * 4, [(2, [0, 2])], hosts=[0, 0, 1, 1])
    assert among(net, net.heirs(0, 0, spread=Spread.HOSTS)) == [1]
    assert among(net, net.heirs(0, 0, spread=Spread.ZONES)) == [1, 3]


def test_the_only_host_with_room_holds_everything():
    net = network([0] * 3, [9, 9, 0], [(2, [0, 1])], hosts=[0, 0, 1])
    assert net.is_spread(0)
    net.set_limits({2: 1})
    assert not net.is_spread(0)
    assert list(net.crowded) == [0]


def test_f4_one_zone_holds_everything():
    net = network([0, 0, 1], [9, 9, 0], [(2, [])])
    assert not net.is_strict
    assert net.zone_units_max(0) == 2
    net.set_limits({2: 1})
    assert net.is_strict
    assert net.zone_units_max(0) == 1


@pytest.mark.parametrize(
    ("limits", "wanted", "expected"),
    [
        pytest.param([10, 10], [1, 1, 1], [2, 2], id="rounded-up"),
        pytest.param([10, 20, 0], [1] * 6, [2, 4, 0], id="by-limit"),
        pytest.param([2, 2], [2, 2, 2], [2, 2], id="overloaded"),
        pytest.param([10, 10], [5], [1, 1], id="never-more-than-members"),
        pytest.param([10], [], [0], id="no-items"),
    ],
)
def test_f2_fair_shares(limits, wanted, expected):
    net = network([0] * len(limits), limits, [(n, []) for n in wanted])
    assert net.shares() == expected


def test_items_and_members_are_counted_as_they_come_and_go():
    net = network([0, 1], [9, 9], [(2, [0, 1]), (2, [0]), (1, [0, 1])])
    assert (list(net.lacking), list(net.surplus), net.histogram) == ([1], [2], {1: 1, 2: 2})
    net.remove_item(1)
    assert (list(net.lacking), net.histogram) == ([], {1: 1, 2: 1})
    assert net.add_item() == 1
    net.remove_member(0)
    assert flows(net) == [[1], [], [1]]
    assert list(net.lacking) == [0]
    assert not net.surplus
    assert net.add_member(1, 0) == 0
    assert net.zone_masks == [0, 0b11]


def test_f5_others_make_way_along_a_path():
    # Item 0 needs zone 1, whose member is full; its item can go to member 1.
    net = network([0, 0, 1], [2, 1, 1], [(2, [0]), (1, [2]), (1, [0])])
    pusher = Pusher(net, net.limits, spread=Spread.ZONES)
    assert run(pusher.place(0))[0]
    assert flows(net) == [[0, 2], [1], [0]]
    assert not net.lacking


def test_f5_two_items_make_way():
    # Item 0 needs zone 1. Item 1 may leave it for zone 2 only, from where item 2 goes to member 1.
    net = network([0, 0, 1, 2], [3, 1, 1, 1], [(2, [0]), (2, [0, 2]), (1, [3])])
    pusher = Pusher(net, net.limits, spread=Spread.ZONES)
    assert run(pusher.place(0))[0]
    assert net.flow[0].bit_count() == 2
    assert net.flow[1].bit_count() == 2
    assert [len(items) for items in net.items_of] == [2, 1, 1, 1]
    assert all(map(net.is_spread, range(3)))


def test_f5_what_finds_no_room_moves_nothing():
    net = network([0, 0, 1], [2, 2, 1], [(2, [0, 2]), (2, [1]), (1, [0]), (1, [1])])
    before = flows(net)
    pusher = Pusher(net, net.limits, spread=Spread.ZONES)
    assert not run(pusher.place(1))[0]
    assert flows(net) == before
    over = Pusher(net, [1, 2, 1], spread=Spread.ZONES)
    assert over.is_over(0)
    assert not run(over.push_out(0))[0]
    assert flows(net) == before


def test_f5_members_that_may_hold_nothing_give_and_never_take():
    net = network([0, 0, 1], [0, 3, 3], [(1, [0]), (1, [0]), (1, [])])
    pusher = Pusher(net, net.limits, spread=Spread.ZONES)
    assert run(pusher.place(2))[0]
    while pusher.is_over(0):
        assert run(pusher.push_out(0))[0]
    assert not net.items_of[0]
    assert sorted(map(len, net.items_of)) == [0, 1, 2]


def test_f5_assigned_members_come_first_and_the_last_that_came_goes_first():
    net = network([0, 0, 0], [9, 9, 9], [(1, []), (1, [1]), (1, [1]), (1, [1])])
    net.set_item(0, wanted=1, assigned=0b100, primary=0)
    pusher = Pusher(net, [9, 2, 9], spread=Spread.ZONES)
    assert run(pusher.place(0))[0]
    assert flows(net)[0] == [2]
    assert run(pusher.push_out(1))[0]
    assert flows(net)[1:] == [[1], [1], [0]]


def test_long_searches_yield():
    count = SLICE_ARCS * 2
    # Two full members with many items, and room at neither.
    net = network([0, 1], [count, count], [(2, [0, 1])] * count + [(1, [])])
    pusher = Pusher(net, net.limits, spread=Spread.ZONES)
    is_placed, yields = run(pusher.place(count))
    assert not is_placed
    assert yields >= 2
