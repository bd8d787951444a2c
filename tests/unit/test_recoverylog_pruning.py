"""Which fragments of recovery logs may be deleted."""

import pytest

from gazette_platform.consumer.recoverylog import (
    FnodeSegments,
    FsmHints,
    Segment,
    ShardHints,
    judge_fragment,
    needs_of,
)

LOG = "a/log"


def hints(*spans, log=LOG, first=1):
    """Of one file, whose segments are at these offsets of these logs."""
    segments = tuple(
        Segment(n, n, begin, n, n, end, "" if where == log else where)
        for n, (where, begin, end) in enumerate(spans, first)
    )
    return FsmHints(log, (FnodeSegments(first, segments),))


def test_g2_all_slots_count_and_the_last_segment_of_each_has_no_end():
    primary = hints((LOG, 50, 60), (LOG, 300, 400))
    backup = hints((LOG, 10, 20), (LOG, 100, 200))
    needs = needs_of([ShardHints(LOG, (primary, backup))])
    assert needs.skipped == ()
    spans = [(each.first_offset, each.last_offset) for each in needs.segments[LOG]]
    assert spans == [(50, 60), (300, 0), (10, 20), (100, 0)]


@pytest.mark.parametrize(
    "slots", [(), (None,), (hints((LOG, 0, 9)), None), (FsmHints(LOG),)], ids=str
)
def test_g2_a_shard_with_incomplete_hints_keeps_its_log(slots):
    other = ShardHints("b/log", (hints(("b/log", 0, 9), log="b/log"),))
    needs = needs_of([ShardHints(LOG, slots), other])
    assert needs.skipped == (LOG,)
    assert list(needs.segments) == ["b/log"]


def test_g2_a_shared_log_is_needed_by_all_that_have_read_it():
    forked = hints((LOG, 30, 40), ("b/log", 0, 9), log="b/log")
    own = hints((LOG, 70, 80))
    needs = needs_of([ShardHints("b/log", (forked,)), ShardHints(LOG, (own,))])
    assert [each.first_offset for each in needs.segments[LOG]] == [30, 70]
    assert [each.last_offset for each in needs.segments[LOG]] == [40, 0]
    incomplete = needs_of([ShardHints("b/log", (forked, None)), ShardHints(LOG, (own,))])
    assert incomplete.skipped == ("b/log",)
    assert incomplete.segments[LOG] == needs.segments[LOG]


@pytest.mark.parametrize(
    ("begin", "end", "is_persisted", "verdict"),
    [
        (0, 50, True, "delete"),
        (0, 51, True, "keep"),
        (59, 70, True, "keep"),
        (60, 300, True, "delete"),
        (60, 300, False, "abort"),
        (60, 301, False, "keep"),
        (60, 0, False, "keep"),
        (1000, 1001, True, "keep"),
        (55, 56, True, "keep"),
    ],
)
def test_g3_a_fragment_goes_if_nothing_needs_it(begin, end, is_persisted, verdict):
    needs = needs_of([ShardHints(LOG, (hints((LOG, 50, 60), (LOG, 300, 400)),))])
    found = judge_fragment(needs.segments[LOG], begin=begin, end=end, is_persisted=is_persisted)
    assert found == verdict


def test_g3_without_segments_all_is_kept():
    assert judge_fragment((), begin=0, end=9, is_persisted=True) == "keep"
