"""Clusters that change: what the leader does about it, round by round.

Rounds are those that write; where a bound is asserted, it is Gazette's. The fixtures are our own,
and the fixture `cluster` checks after every round that nothing was removed that is needed.
"""

from __future__ import annotations

import logging
import random

import pytest

from gazette_platform.etcd import Delete, Put
from gazette_platform.keyspace import item_key


def names(count, prefix="item"):
    return [f"{prefix}/{n}" for n in range(count)]


def moved(before, after):
    """How many replicas are at members that did not have them."""
    return sum(len(set(after[n]) - set(before.get(n, ()))) for n in after)


async def test_z1_items_are_spread_at_once(cluster):
    cluster.join(A1=9, A2=9, B1=9).items(2, "item/1", "item/2").items(1, "item/3")
    assert await cluster.rounds() <= 2
    cluster.assert_settled()
    assert all("B1" in cluster.held(name) for name in ("item/1", "item/2"))
    assert max(cluster.primaries().values()) <= 2


async def test_z2_seven_items_of_three_replicas_are_balanced(cluster):
    cluster.join(A1=9, A2=9, A3=9, B1=9, B2=9, B3=9).items(3, *names(7))
    assert await cluster.rounds() <= 2
    cluster.assert_settled()
    # 21 replicas by 6 members; 7 primaries.
    assert set(cluster.loads().values()) <= {3, 4}
    assert set(cluster.primaries().values()) <= {1, 2}


async def test_z3_inconsistent_items_are_only_over_replicated(cluster):
    cluster.join(A1=9, B1=9).items(2, *names(3))
    await cluster.settle()
    before = cluster.assigned
    cluster.join(C1=9, C2=9)
    cluster.change("A1", exiting=True)
    assert await cluster.rounds() == 1
    for name, held in cluster.assigned.items():
        assert held[:2] == before[name]
        assert len(held) == 3
    # Looking again changes nothing, until primaries have synced.
    assert await cluster.rounds() == 0
    assert await cluster.sync().settle() <= 4
    cluster.assert_settled()
    assert cluster.loads()["A1"] == 0


async def test_z4_consistent_items_move_and_the_survivor_is_promoted(cluster):
    cluster.join(A1=9, B1=9).items(2, *names(3))
    for name in names(3):
        cluster.assign(name, "A1", "B1")
    cluster.sync()
    assert await cluster.rounds() == 0
    cluster.join(A2=9)
    cluster.change("A1", exiting=True)
    assert await cluster.rounds() == 1
    assert await cluster.sync().rounds(is_syncing=True) <= 3
    cluster.assert_settled()
    assert cluster.loads() == {"A1": 0, "A2": 3, "B1": 3}
    # Whoever was the primary of fewer was promoted.
    assert set(cluster.primaries().values()) == {0, 1, 2}


async def test_z5_limits_move_only_what_they_must(cluster):
    cluster.join(A1=6, A2=6).items(1, *names(6))
    await cluster.settle()
    before = cluster.assigned
    cluster.change("A1", journal_limit=8)
    await cluster.settle()
    # The share of A1 is 4 now, but A2 has no more than its own, which is rounded up.
    assert moved(before, cluster.assigned) == 0
    cluster.change("A1", journal_limit=2)
    await cluster.settle()
    cluster.assert_settled()
    assert moved(before, cluster.assigned) == 1
    before = cluster.assigned
    cluster.change("A1", journal_limit=3)
    await cluster.settle()
    assert moved(before, cluster.assigned) == 0


async def test_z6_replications_are_swapped(cluster):
    cluster.join(A1=9, A2=9, B1=9).items(1, "item/1").items(3, "item/3")
    await cluster.settle()
    (primary,), before = cluster.held("item/1"), cluster.held("item/3")
    cluster.items(3, "item/1").items(1, "item/3")
    assert await cluster.settle() <= 5
    cluster.assert_settled()
    assert cluster.held("item/1")[0] == primary
    assert cluster.held("item/3") == before[:1]


async def test_z7_too_few_slots_are_all_used_and_growth_is_taken_up(cluster):
    cluster.join(A1=2, B1=2).items(2, *names(4))
    assert await cluster.settle() <= 2
    assert cluster.loads() == {"A1": 2, "B1": 2}
    cluster.change("A1", journal_limit=4)
    assert await cluster.settle() <= 5
    assert cluster.loads() == {"A1": 4, "B1": 2}
    cluster.join(B2=3)
    assert await cluster.settle() <= 6
    cluster.assert_settled()


async def test_z8_limits_below_the_need_change_nothing(cluster):
    cluster.join(A1=4, B1=4).items(2, *names(4))
    await cluster.settle()
    before = cluster.assigned
    cluster.change("A1", journal_limit=1)
    cluster.change("B1", journal_limit=0)
    assert await cluster.settle() == 0
    assert cluster.assigned == before


async def test_z9_a_second_zone_is_used_as_far_as_it_goes(cluster):
    cluster.join(A1=4, A2=4).items(2, *names(4))
    await cluster.settle()
    cluster.assert_settled(is_spread=False)
    before = cluster.assigned
    cluster.join(B1=1)
    await cluster.settle()
    cluster.assert_settled(is_spread=False)
    assert cluster.loads()["B1"] == 1
    assert moved(before, cluster.assigned) == 1
    cluster.change("B1", journal_limit=9)
    await cluster.settle()
    cluster.assert_settled()
    assert cluster.loads()["B1"] == 4


async def test_z10_a_zone_that_leaves_is_given_up(cluster):
    cluster.join(A1=4, A2=4, B1=4).items(2, *names(4))
    await cluster.settle()
    cluster.assert_settled()
    cluster.change("B1", exiting=True)
    await cluster.settle()
    assert cluster.loads() == {"A1": 4, "A2": 4, "B1": 0}
    cluster.assert_settled(is_spread=False)


async def test_z11_a_third_zone_waits_for_items_that_grow(cluster):
    cluster.join(A1=2, B1=2).items(2, *names(2))
    await cluster.settle()
    before = cluster.assigned
    cluster.join(C1=2)
    assert await cluster.settle() == 0
    cluster.items(3, *names(2))
    await cluster.settle()
    cluster.assert_settled()
    assert cluster.loads() == {"A1": 2, "B1": 2, "C1": 2}
    assert all(cluster.held(name)[:2] == before[name] for name in before)


async def test_z12_three_zones_become_two(cluster):
    cluster.join(A1=6, B1=6, C1=6).items(2, *names(6))
    await cluster.settle()
    before = cluster.assigned
    lost = cluster.loads()["C1"]
    cluster.change("C1", exiting=True)
    await cluster.settle()
    cluster.assert_settled()
    assert cluster.loads()["C1"] == 0
    assert moved(before, cluster.assigned) == lost


async def test_z13_capacities_rotate(cluster):
    cluster.join(A1=4, B1=1, C1=1).items(1, *names(4))
    await cluster.settle()
    for big, small in (("B1", "A1"), ("C1", "B1"), ("A1", "C1")):
        cluster.change(big, journal_limit=4)
        cluster.change(small, journal_limit=1)
        await cluster.settle()
        cluster.assert_settled()
        # Whoever has the item alone is its primary.
        assert cluster.primaries() == cluster.loads()


async def test_z14_a_lost_zone_is_made_up_for_and_taken_back(cluster):
    cluster.join(A1=6, A2=6, B1=6, B2=6).items(2, *names(6))
    await cluster.settle()
    cluster.kill("B1", "B2")
    assert all(len(held) == 1 for held in cluster.assigned.values())
    assert await cluster.settle() <= 4
    cluster.assert_settled(is_spread=False)
    assert cluster.loads() == {"A1": 6, "A2": 6}
    cluster.join(B1=6, B2=6)
    assert await cluster.settle() <= 4
    cluster.assert_settled()


async def test_z15_members_of_one_zone_grow_only_by_their_limits(cluster):
    cluster.join(A1=6, A2=6).items(2, *names(4))
    await cluster.settle()
    cluster.join(A3=0)
    assert await cluster.settle() == 0
    cluster.change("A3", journal_limit=6)
    await cluster.settle()
    cluster.assert_settled(is_spread=False)
    assert cluster.loads()["A3"] > 0
    assert max(cluster.loads().values()) <= 3


async def test_z16_two_members_leave_at_once(cluster):
    cluster.join(A1=9, A2=9, B1=9, B2=9, C1=9).items(2, *names(8))
    await cluster.settle()
    cluster.change("A2", exiting=True)
    cluster.change("B1", exiting=True)
    await cluster.settle()
    cluster.assert_settled()
    loads = cluster.loads()
    assert (loads.pop("A2"), loads.pop("B1")) == (0, 0)
    assert max(loads.values()) <= 6


async def test_z17_the_leader_leaves_by_its_own_hand(cluster):
    cluster.join(A1=9, B1=9, B2=9).items(2, *names(4))
    await cluster.settle()
    leader = cluster.allocators[cluster.leader]
    assert cluster.leader.suffix == "member-A1"
    cluster.change("A1", exiting=True)
    await cluster.settle()
    assert cluster.loads() == {"A1": 0, "B1": 4, "B2": 4}
    status = leader.drain_status()
    assert (status.is_exiting, status.assigned, status.can_complete) == (True, 0, True)
    # It leads while it is a member: content that it still stores must not leave others without.
    cluster.items(1, "item/before")
    assert await cluster.settle() == 1
    cluster.kill("A1")
    assert cluster.leader.suffix == "member-B1"
    cluster.items(1, "item/new")
    assert await cluster.settle() == 1


async def test_who_keeps_items_to_the_last_knows_that_others_hand_over_to_it(cluster):
    cluster.join(A1=9, B1=9, B2=9).items(1, *names(6))
    await cluster.settle()
    for member in ("A1", "B1", "B2"):
        cluster.change(member, exiting=True)
    told = {member.suffix: one.drain_status() for member, one in cluster.allocators.items()}
    assert {who: (one.can_complete, one.is_awaited) for who, one in told.items()} == {
        "member-A1": (True, True),
        "member-B1": (True, True),
        "member-B2": (False, True),
    }
    await cluster.settle()
    assert cluster.loads() == {"A1": 0, "B1": 0, "B2": 6}
    assert not cluster.allocator("B2").drain_status().is_awaited


async def test_z18_assignments_of_deleted_items_go_at_once(cluster):
    cluster.join(A1=9, B1=9).items(2, *names(4))
    await cluster.settle()
    cluster.delete("item/1", "item/2")
    assert await cluster.rounds() <= 1
    assert cluster.loads() == {"A1": 2, "B1": 2}
    assert sorted(cluster.state.assignments) == ["item/0", "item/3"]


async def test_z18_an_item_created_again_keeps_its_assignments(cluster):
    cluster.join(A1=9, B1=9).items(2, *names(1))
    await cluster.settle()
    value = cluster.etcd.kvs[item_key("/p", "item/0")].value
    cluster.delete("item/0")
    cluster.etcd.write(Put(item_key("/p", "item/0"), value))
    assert await cluster.rounds() == 0
    cluster.assert_settled()


async def test_z19_dead_members_are_replaced_and_survivors_promoted(cluster):
    cluster.join(A1=9, B1=9, B2=9).items(2, *names(4))
    for name in names(4):
        cluster.assign(name, "B1", "A1")
    cluster.sync()
    cluster.kill("B1")
    # Promoted and added in one round; packed in another, once the primary has synced.
    assert await cluster.rounds() == 1
    assert await cluster.sync().settle() <= 2
    # Packing does not change the route: no replica has to sync again.
    assert all(map(cluster.state.is_consistent, names(4)))
    cluster.assert_settled()
    assert cluster.assigned == {name: ["A1", "B2"] for name in names(4)}


async def test_z19_a_dead_leader_is_replaced(cluster):
    cluster.join(A1=9, B1=9, C1=9).items(2, *names(4))
    await cluster.settle()
    cluster.kill("A1")
    await cluster.settle()
    cluster.assert_settled()
    assert cluster.leader.suffix == "member-B1"


# ------------------------------------------------------------- health over many changes


async def test_rolling_deployment_moves_each_replica_a_few_times(cluster):
    """Members join, one after the other, and an old one leaves for each."""
    olds, news = (
        [f"{z}{n}" for z in "ABC" for n in (1, 2)],
        [f"{z}{n}" for z in "ABC" for n in (3, 4)],
    )
    cluster.join(**dict.fromkeys(olds, 100)).items(3, *names(60))
    await cluster.settle()
    total = 0
    for old, new in zip(olds, news, strict=True):
        for change in (
            lambda n=new: cluster.join(**{n: 100}),
            lambda o=old: cluster.change(o, exiting=True),
        ):
            before = cluster.assigned
            change()
            await cluster.settle()
            total += moved(before, cluster.assigned)
        assert cluster.loads()[old] == 0
        cluster.kill(old)
        cluster.assert_settled()
    # Each member's share of 30 leaves once; new members get theirs of 26 before, and some of it is
    # then moved again.
    assert total <= 2.5 * 60 * 3
    assert max(cluster.loads().values()) <= 31


async def test_changed_replication_keeps_existing_assignments(cluster):
    cluster.join(A1=99, A2=99, B1=99, B2=99, C1=99).items(1, *names(30))
    await cluster.settle()
    for replication in (3, 2, 3, 1, 2):
        before = cluster.assigned
        cluster.items(replication, *names(30))
        await cluster.settle()
        cluster.assert_settled()
        grown = max(0, replication - len(before["item/0"])) * 30
        assert moved(before, cluster.assigned) <= grown + 6
    assert max(cluster.loads().values()) <= 13


async def test_hand_over_goes_on_when_the_leader_dies_half_way(cluster):
    cluster.join(A1=99, B1=99, C1=99).items(2, *names(20))
    await cluster.settle()
    cluster.join(A2=99, B2=99)
    await cluster.rounds()  # over-replicated, not synced
    over = {name: held for name, held in cluster.assigned.items() if len(held) > 2}
    assert over
    before = cluster.assigned
    cluster.kill("A1")
    cluster.sync()
    await cluster.settle()
    cluster.assert_settled()
    # The next leader takes what was begun for what is to be: little is started again.
    lost = sum("A1" in held for held in before.values())
    assert moved(before, cluster.assigned) <= lost


# ------------------------------------------------------------- the loop


async def test_l2_failed_checks_do_not_hold_up_others_and_are_tried_again(cluster, caplog):
    cluster.join(A1=9).items(1, *names(3))
    caplog.set_level(logging.INFO)
    cluster.etcd.refuse_next = 2  # all three, then the first by itself
    await cluster.settle()
    assert "item/0: transaction checks did not succeed" in caplog.text
    assert [cluster.held(name) for name in names(3)] == [[], ["A1"], ["A1"]]
    cluster.change("A1", journal_limit=8)
    await cluster.settle()
    assert cluster.held("item/0") == ["A1"]


async def test_a2_only_the_oldest_member_leads(cluster):
    cluster.join(B1=9, A1=9, A2=9).items(1, *names(2))
    leaders = {allocator.leader.suffix for allocator in cluster.allocators.values()}
    assert leaders == {"member-B1"}
    await cluster.settle()
    own = cluster.etcd.kvs["/p/members/zone-b#member-B1"]
    for compares, _ in cluster.etcd.txns:
        assert (compares[0].key, compares[0].value) == (own.key, own.mod_revision)


async def test_a2_a_leader_that_does_not_know_of_its_end_writes_nothing(cluster):
    """It was paused past its lease: by its own mirror it leads still, beside the one that follows."""
    cluster.join(A1=9, B1=9, B2=9)
    old = cluster.allocator("A1")
    cluster.items(2, *names(2))
    cluster.etcd.spaces.remove(old._space)  # from here on it learns nothing
    cluster.kill("A1")
    assert old.leader.suffix == "member-A1"
    before = cluster.etcd.revision
    await old._act(before + 1)
    assert cluster.etcd.refused > 0, "it tried"
    assert cluster.etcd.revision == before
    await cluster.settle()
    assert {tuple(sorted(held)) for held in cluster.assigned.values()} == {("B1", "B2")}


async def test_a3_a_member_leaves_only_when_exiting_and_without_items(cluster):
    cluster.join(A1=9, B1=9).items(1, "item/0").assign("item/0", "B1").sync()
    allocator = cluster.allocators[cluster.leader]
    assert await allocator._act(1) == 1  # idle: nothing to leave for
    cluster.change("A1", exiting=True)
    status = allocator.drain_status()
    assert (status.is_exiting, status.assigned, status.can_complete) == (True, 0, True)
    cluster.change("B1", exiting=True)
    status = cluster.allocators[max(cluster.allocators)].drain_status()
    # One member must remain for the item, and A1 is the older of the two.
    assert (status.assigned, status.can_complete) == (1, False)


async def test_l3_many_items_come_in_transactions_that_etcd_takes(cluster):
    cluster.join(A1=500, B1=500, B2=500).items(2, *names(300))
    assert await cluster.rounds() == 1
    puts = [len(success) for _, success in cluster.etcd.txns]
    assert sum(puts) == 600
    assert len(puts) <= 600 // 126 + 1
    # The leader's own key is compared in each.
    assert {compares[0].key for compares, _ in cluster.etcd.txns} == {"/p/members/zone-a#member-A1"}


async def test_nothing_is_solved_or_written_when_nothing_changed(cluster):
    cluster.join(A1=99, B1=99).items(2, *names(50))
    await cluster.settle()
    allocator = cluster.allocators[cluster.leader]
    allocator._solver._push = None  # to solve is to call it
    asked = []
    allocator._tell = lambda *args: asked.append(args)
    allocator._step = lambda *args: asked.append(args)
    # A primary writes the same route once more: one item is looked at, none is solved.
    held = cluster.state.assignments_of("item/7")[0]
    await allocator._act(cluster.etcd.revision)
    assert not asked
    cluster.etcd.write(Put(held.key, held.value, ignore_lease=True))
    await allocator._act(cluster.etcd.revision)
    assert {
        args[1] if len(args) == 2 and isinstance(args[1], str) else args[0] for args in asked
    } == {"item/7"}


@pytest.mark.parametrize("replication", [1, 2])
async def test_items_wait_for_room_that_is_being_made(cluster, replication):
    """A full member is given nothing before what it is to give up has gone."""
    cluster.join(A1=4, B1=4, B2=4).items(replication, *names(4))
    for name in names(4):
        cluster.assign(name, "B1", *["A1"] * (replication - 1))
    cluster.sync()
    limits = dict.fromkeys(("A1", "B1", "B2"), 4)
    await cluster.settle()
    cluster.items(1, *names(4, "other"))
    await cluster.settle()
    cluster.assert_settled()
    assert all(cluster.loads()[short] <= limit for short, limit in limits.items())


def test_memory_etcd_refuses_what_etcd_refuses(cluster):
    with pytest.raises(AssertionError):
        cluster.etcd.write(Delete("/p/unknown"))


async def test_all_members_of_a_zone_leave_at_once(cluster):
    cluster.join(A1=99, A2=99, B1=99, B2=99, C1=99).items(3, *names(20))
    await cluster.settle()
    before = cluster.assigned
    lost = cluster.loads()["A1"] + cluster.loads()["A2"]
    cluster.change("A1", exiting=True)
    cluster.change("A2", exiting=True)
    await cluster.settle()
    cluster.assert_settled()
    loads = cluster.loads()
    assert (loads["A1"], loads["A2"]) == (0, 0)
    assert moved(before, cluster.assigned) <= 1.2 * lost
    for short in ("A1", "A2"):
        assert cluster.allocator(short).drain_status().can_complete


SHORTS = [f"{zone}{n}" for zone in "ABC" for n in range(1, 4)]


def change_at_random(cluster, rng):
    name, short = f"item/{rng.randrange(12)}", rng.choice(cluster.members)
    match rng.randrange(7):
        case 0:
            fresh = rng.choice(SHORTS)
            if fresh not in cluster.members:
                cluster.join(**{fresh: rng.randrange(12)})
        case 1 if len(cluster.members) > 2:
            cluster.kill(short)
        case 2:
            cluster.change(short, journal_limit=rng.randrange(15))
        case 3:
            cluster.change(short, exiting=rng.random() < 0.7)
        case 4 if name in cluster.state.items:
            cluster.delete(name)
        case _:
            cluster.items(rng.randrange(1, 5), name)


@pytest.mark.parametrize("seed", range(12))
async def test_random_changes_never_remove_what_is_needed(cluster, seed):
    """Members join, die and leave, items come, go and change, and primaries sync now and then.

    The cluster checks each round. In the end, with room for all, everything is in order.
    """
    rng = random.Random(seed)
    cluster.join(A1=20, B1=20)
    for _ in range(60):
        change_at_random(cluster, rng)
        if rng.random() < 0.6:
            await cluster.rounds(is_syncing=rng.random() < 0.5)
        if rng.random() < 0.3:
            cluster.sync()
    for short in SHORTS:
        if short not in cluster.members:
            cluster.join(**{short: 30})
        cluster.change(short, exiting=False, journal_limit=30)
    await cluster.sync().settle()
    cluster.assert_settled()
    assert await cluster.settle() == 0
