"""What pruning a journal removes: each rule by a table, and all of them against the index of a broker."""

from __future__ import annotations

import pytest

from gazette_platform.errors import ValidationError
from gazette_platform.fragment.cover_set import Kept, PruneRule, StoredFragment, plan_prune
from gazette_platform.protocol import Fragment

HOUR_S = 3600
NOW_S = 1_000_000.0
DAY = PruneRule(retention_s=24 * HOUR_S)


def stored(begin, end, age_h, *, store="file:///", size=1):
    mod_time = int(NOW_S - age_h * HOUR_S)
    return StoredFragment(
        Fragment("a/one", begin, end, backing_store=store, mod_time=mod_time), size
    )


def removed(fragments, rule=DAY, **known):
    plan = plan_prune(fragments, rule, now_s=NOW_S, **known)
    return [(each.fragment.begin, each.fragment.end) for each in plan.remove]


@pytest.mark.parametrize(
    ("retention_h", "expected"),
    [
        (0, []),  # keeps everything
        (-1, []),
        (1, [(0, 10), (10, 20)]),
        (24, [(0, 10), (10, 20)]),  # to the second
        (24.001, [(0, 10)]),
        (48.001, []),
    ],
)
def test_age_decides(retention_h, expected):
    found = [stored(0, 10, 48), stored(10, 20, 24), stored(20, 30, 0.5)]
    assert removed(found, PruneRule(retention_s=retention_h * HOUR_S)) == expected


def test_a_clock_that_is_behind_the_store_removes_nothing():
    assert removed([stored(0, 10, -30), stored(10, 20, -20)], PruneRule(retention_s=1)) == []


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        (0, 9, []),
        (0, 10, [(0, 10)]),
        (0, 29, [(0, 10), (10, 20)]),
        (10, 20, [(10, 20)]),
        (11, 30, [(20, 30)]),
        (0, 10**9, [(0, 10), (10, 20), (20, 30)]),  # the last one stays
    ],
)
def test_a_range_decides_whatever_the_age(begin, end, expected):
    found = [stored(at, at + 10, 10) for at in (0, 10, 20, 30)]
    assert removed(found, PruneRule(begin=begin, end=end)) == expected


@pytest.mark.parametrize(("begin", "end"), [(5, 5), (6, 5), (5, 0), (-1, 5), (0, -1), (0, 1 << 63)])
def test_a_range_that_is_none_is_refused(begin, end):
    with pytest.raises(ValidationError):
        PruneRule(begin=begin, end=end)


def test_the_last_fragment_stays_unless_the_spec_notes_the_head():
    found = [stored(0, 10, 48), stored(10, 20, 48), stored(15, 20, 48)]
    assert removed(found) == [(0, 10)]
    assert removed(found, noted_head=19) == [(0, 10)]
    assert removed(found, noted_head=20) == [(0, 10), (10, 20), (15, 20)]
    assert removed(found, noted_head=25) == [(0, 10), (10, 20), (15, 20)]
    # What only brokers hold may be lost with them, and then the last stored one is the end.
    assert removed(found, local=[Fragment("a/one", 20, 30)]) == [(0, 10)]
    assert removed([]) == []


@pytest.mark.parametrize(
    ("savepoint", "expected"),
    [
        (0, []),
        (9, []),
        (10, [(0, 10)]),  # a read from there needs nothing before it
        (15, [(0, 10)]),
        (40, [(0, 10), (10, 20), (20, 30)]),
        (None, [(0, 10), (10, 20), (20, 30)]),
    ],
)
@pytest.mark.parametrize("rule", [DAY, PruneRule(end=40)])
def test_what_a_savepoint_names_stays_and_all_behind(rule, savepoint, expected):
    found = [stored(at, at + 10, 48) for at in (0, 10, 20, 30)]
    assert removed(found, rule, savepoint=savepoint) == expected
    # Of a suspended journal, too.
    last = [] if savepoint in (0, 9, 10, 15) else [(30, 40)]
    assert removed(found, rule, savepoint=savepoint, noted_head=40) == expected + last


def test_fragments_within_others_go_by_their_own_age():
    covering = [stored(0, 30, 48), stored(30, 40, 1)]
    old, young = stored(5, 15, 30), stored(20, 30, 2)
    assert removed([*covering, old]) == [(0, 30), (5, 15)]
    # It would come to light, before a fragment that reads do not jump to: so nothing is won yet.
    assert removed([*covering, young]) == [(0, 30)]
    plan = plan_prune([*covering, young], DAY, now_s=NOW_S)
    assert plan.kept == {Kept.YOUNG: 2}


def test_equal_fragments_of_two_stores_both_go():
    found = [stored(0, 10, 48), stored(0, 10, 48, store="file:///b/"), stored(10, 20, 1)]
    plan = plan_prune(found, DAY, now_s=NOW_S)
    assert [each.fragment.backing_store for each in plan.remove] == ["file:///", "file:///b/"]


def test_a_gap_is_made_only_before_what_reads_jump_to():
    middle = PruneRule(begin=10, end=30)
    ages = {30: 7.0}

    def of(age_h):
        return [stored(at, at + 10, ages.get(at, 1)) for at in (0, 10, 20)] + [
            stored(30, 40, age_h)
        ]

    assert removed(of(7), middle) == [(10, 20), (20, 30)]
    plan = plan_prune(of(5), middle, now_s=NOW_S)
    assert (plan.remove, plan.kept) == ((), {Kept.OUTSIDE: 2, Kept.GAP: 2})
    assert plan.jumpable_at == NOW_S + HOUR_S
    # At the beginning, reads jump whatever the age.
    assert removed(of(5), PruneRule(end=30)) == [(0, 10), (10, 20), (20, 30)]
    # Of a local one, it is unknown since when it will have been stored.
    behind = [Fragment("a/one", 30, 50)]
    assert removed([*of(7)[:3], stored(60, 70, 9)], middle, local=behind) == []


def test_reads_do_not_jump_to_a_beginning_that_is_in_brokers_only():
    found = [stored(0, 10, 48), stored(10, 20, 48)]
    assert removed(found, local=[Fragment("a/one", 10, 30)]) == []
    assert removed(found, local=[Fragment("a/one", 20, 30)], noted_head=20) == []
    assert removed(found, local=[Fragment("a/one", 15, 30)]) == [(0, 10)]


def test_by_age_an_older_fragment_behind_a_younger_one_waits_likewise():
    found = [stored(0, 10, 1), stored(10, 20, 48), stored(20, 30, 2), stored(30, 40, 1)]
    assert removed(found) == []
    found[2] = stored(20, 30, 7)
    assert removed(found) == [(10, 20)]


def test_former_gap_keeps_nothing():
    found = [stored(0, 10, 48), stored(10, 20, 48), stored(50, 60, 1), stored(80, 90, 1)]
    assert removed(found) == [(0, 10), (10, 20)]


def test_an_old_copy_of_what_is_young_elsewhere_is_what_reads_jump_to():
    found = [stored(0, 10, 0), stored(20, 30, 1), stored(20, 30, 30), stored(30, 40, 0)]
    assert removed(found) == []
    assert removed(found[1:]) == [(20, 30)]  # at the beginning, the young one will do


def test_removal_goes_by_offset_so_that_an_end_in_the_middle_leaves_the_end():
    found = [stored(20, 30, 48), stored(0, 10, 48), stored(0, 20, 48), stored(30, 40, 1)]
    assert removed(found) == [(0, 10), (0, 20), (20, 30)]
