"""Pruning, whatever the fragments: judged by what a broker's index makes of the rest."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, strategies as st

from gazette_platform.fragment.cover_set import CoverSet, PruneRule, StoredFragment, plan_prune
from gazette_platform.fragment.index import Index
from gazette_platform.ops.clock import ManualClock
from gazette_platform.protocol import Fragment, Status

HOUR_S = 3600
OFFSET_MAX = 40
CLOCK = ManualClock()
NOW_S = CLOCK.unix_s()

spans = st.tuples(st.integers(0, OFFSET_MAX - 1), st.integers(1, 12))
stored_fragments = st.builds(
    lambda span, age_h, size: StoredFragment(
        Fragment(
            "a/one",
            span[0],
            span[0] + span[1],
            backing_store="file:///",
            mod_time=int(NOW_S - age_h * HOUR_S),
        ),
        size,
    ),
    spans,
    st.integers(0, 60),
    st.integers(0, 9),
)
local_fragments = st.builds(lambda span: Fragment("a/one", span[0], sum(span)), spans)
rules = st.one_of(
    st.builds(lambda hours: PruneRule(retention_s=hours * HOUR_S), st.integers(-1, 50)),
    st.builds(
        lambda begin, length: PruneRule(begin=begin, end=begin + length),
        st.integers(0, OFFSET_MAX),
        st.integers(1, OFFSET_MAX),
    ),
)
known = st.fixed_dictionaries(
    {
        "local": st.lists(local_fragments, max_size=2),
        "noted_head": st.one_of(st.just(0), st.integers(0, OFFSET_MAX + 12)),
        "savepoint": st.one_of(st.none(), st.integers(0, OFFSET_MAX + 12)),
    }
)


def index_of(stored, local):
    index = Index(CLOCK)
    index.replace_remote(CoverSet(each.fragment for each in stored))
    for fragment in local:
        index.spool_commit(fragment, None)
    return index


@given(st.lists(stored_fragments, max_size=12), rules, known)
def test_rest_is_read_as_before_except_what_was_to_go(stored, rule, known):
    plan = plan_prune(stored, rule, now_s=NOW_S, **known)
    rest = list((Counter(stored) - Counter(plan.remove)).elements())
    assert sum(plan.kept.values()) + len(plan.remove) == len(stored)
    assert Counter(plan.remove) <= Counter(stored)
    for each in plan.remove:
        fragment = each.fragment
        if rule.end:
            assert rule.begin <= fragment.begin
            assert fragment.end <= rule.end
        else:
            assert 0 < rule.retention_s <= NOW_S - fragment.mod_time
        assert known["savepoint"] is None or fragment.end <= known["savepoint"]
    ends = [each.fragment.end for each in stored]
    if ends and known["noted_head"] < max(ends):
        assert max(each.fragment.end for each in rest) == max(ends)
    rest = [each for each in stored if each in rest]  # in the order of their listing
    in_stores = CoverSet(each.fragment for each in stored)
    local = [each for each in known["local"] if not in_stores.covers(each.begin, each.end)]
    before, after = index_of(stored, local), index_of(rest, local)
    if not rest and not local:
        return  # a journal without content: reads wait at its head
    for offset in range(OFFSET_MAX + 12):
        was, now = before.lookup(offset), after.lookup(offset)
        if was.status is not Status.OK:
            continue
        if now.status is not Status.OK:  # the end went, whose offset the spec notes
            assert after.summary.end <= offset < max(ends) <= known["noted_head"]
        if known["savepoint"] is not None and offset >= known["savepoint"]:
            assert now.offset == was.offset


@given(st.lists(stored_fragments, max_size=12), rules, known, st.data())
def test_a_run_that_ended_in_the_middle_is_completed_by_another(stored, rule, known, data):
    plan = plan_prune(stored, rule, now_s=NOW_S, **known)
    gone = Counter(plan.remove[: data.draw(st.integers(0, len(plan.remove)))])
    left = []
    for each in stored:
        if gone[each]:
            gone[each] -= 1
        else:
            left.append(each)
    again = plan_prune(left, rule, now_s=NOW_S, **known)
    done = plan.remove[: len(stored) - len(left)]
    removed = Counter(done) + Counter(again.remove)
    assert removed <= Counter(plan.remove)
    # What brokers have, too, was in stores at first. If the first run removed it, brokers may be about to
    # store it again: then the other run makes no gap after it yet.
    before, after = (CoverSet(each.fragment for each in of) for of in (stored, left))
    if all(
        before.covers(each.begin, each.end) == after.covers(each.begin, each.end)
        for each in known["local"]
    ):
        assert removed == Counter(plan.remove)


def test_run_after_one_that_removed_what_brokers_have_waits_for_them():
    def one(begin, age_h):
        mod_time = int(NOW_S - age_h * HOUR_S)
        fragment = Fragment("a/one", begin, begin + 1, backing_store="file:///", mod_time=mod_time)
        return StoredFragment(fragment, 1)

    first, second, last = one(0, 1), one(1, 1), one(2, 0)
    rule, local = PruneRule(retention_s=HOUR_S), [Fragment("a/one", 0, 1)]
    plan = plan_prune([first, second, last], rule, now_s=NOW_S, local=local)
    assert plan.remove == (first, second)
    again = plan_prune([second, last], rule, now_s=NOW_S, local=local)
    assert again.remove == ()
