"""Segments of recovery logs, and which parts of logs may be pruned."""

from __future__ import annotations

import pytest

from gazette_platform.consumer.recoverylog import (
    FnodeSegments,
    FsmHints,
    Segment,
    SegmentSet,
    ShardHints,
    judge_fragment,
    merge_segments,
    needs_of,
)
from gazette_platform.errors import ValidationError


def seg(first, last, begin=0, end=0, *, author=1, checksum=None, log="a/log"):
    checksum = 0x100 + first if checksum is None else checksum
    return Segment(author, first, begin, checksum, last, end, log)


@pytest.mark.parametrize(
    ("segment", "error"),
    [
        (seg(1, 2, author=0), "invalid Author"),
        (seg(1, 2, author=1 << 32), "invalid Author"),
        (seg(0, 2), "invalid FirstSeqNo"),
        (seg(1, 2, -1), "invalid FirstOffset"),
        (seg(1, 2, checksum=-1), "invalid FirstChecksum"),
        (seg(2, 1), "invalid LastSeqNo"),
        (seg(1, 1, 10, 10), "invalid LastOffset"),
    ],
)
def test_gs1_invalid_segments_are_refused(segment, error):
    with pytest.raises(ValidationError, match=error):
        segment.validate()
    with pytest.raises(ValidationError, match=error):
        SegmentSet([segment])


@pytest.mark.parametrize(
    ("one", "other", "merged"),
    [
        # Disjoint, of any author and log.
        (seg(1, 2), seg(4, 5), None),
        (seg(1, 2, 10, 20), seg(4, 5, author=2, log="b/log"), None),
        # Adjacent.
        (seg(1, 2, 10, 20), seg(3, 4, 20, 30), seg(1, 4, 10, 30)),
        (seg(1, 2, 10, 20), seg(3, 4, 20), seg(1, 4, 10)),
        (seg(1, 2, 10, 20), seg(3, 4, 20, 30, author=2), None),
        (seg(1, 2, 10, 20), seg(3, 4, 0, 30, log="b/log"), None),
        # The same.
        (seg(1, 2, 10, 20), seg(1, 2, 10, 20), seg(1, 2, 10, 20)),
        # The same beginning: the greater offset is nearer to it.
        (seg(1, 2, 10, 20), seg(1, 5, 12, 40), seg(1, 5, 12, 40)),
        (seg(1, 2, 12, 20), seg(1, 5, 10), seg(1, 5, 12)),
        # The same end: what is known is preferred.
        (seg(1, 5, 10), seg(3, 5, 20, 40), seg(1, 5, 10, 40)),
        (seg(1, 5, 10, 40), seg(3, 5, 20), seg(1, 5, 10, 40)),
        # One within the other, and both ways beyond.
        (seg(1, 9, 10, 90), seg(3, 5, 20, 50), seg(1, 9, 10, 90)),
        (seg(1, 9, 10), seg(3, 5, 20, 50), seg(1, 9, 10)),
        (seg(1, 5, 10, 50), seg(3, 9, 20, 90), seg(1, 9, 10, 90)),
    ],
)
def test_gs2_two_segments_merge(one, other, merged):
    expected = (one, other) if merged is None else (merged,)
    assert merge_segments(one, other) == merge_segments(other, one) == expected
    assert SegmentSet([one, other]) == SegmentSet([other, one]) == SegmentSet(expected)


@pytest.mark.parametrize(
    ("one", "other", "error"),
    [
        (seg(1, 5), seg(3, 6, author=2), "expected Author equality"),
        (seg(1, 5), seg(3, 6, log="b/log"), "expected Log equality"),
        (seg(1, 5), seg(1, 6, checksum=7), "expected FirstChecksum equality"),
        (seg(1, 5, 20), seg(3, 6, 10), "expected monotonic FirstOffset"),
        (seg(1, 2, 20), seg(3, 6, 10), "expected monotonic FirstOffset"),
        (seg(1, 5, 0, 60), seg(3, 6, 10, 50), "expected monotonic LastOffset"),
    ],
)
def test_gs2_segments_that_contradict_each_other_are_refused(one, other, error):
    for pair in ((one, other), (other, one)):
        with pytest.raises(ValidationError, match=error):
            merge_segments(*pair)
        with pytest.raises(ValidationError, match=error):
            SegmentSet(pair)


@pytest.mark.parametrize(
    ("segments", "error"),
    [
        ([seg(1, 2, 10), seg(5, 6, 20, 30)], "expected LastOffsets up to the known ones"),
        ([seg(1, 2), seg(5, 6, log="b/log")], "expected a LastOffset before another Log"),
        ([seg(1, 2, 20, 30), seg(5, 6, 10, 40)], "expected monotonic FirstOffset"),
        ([seg(1, 2, 20, 40), seg(5, 6, 30, 35)], "expected monotonic LastOffset"),
        (
            [seg(1, 2, 20, 40), seg(3, 3, 1, 9, log="b/log"), seg(5, 6, 10, 45)],
            "expected monotonic FirstOffset",
        ),
    ],
)
def test_gs2_sets_whose_offsets_fall_are_refused(segments, error):
    for order in (segments, segments[::-1]):
        with pytest.raises(ValidationError, match=error):
            SegmentSet(order)


def test_a_segment_that_fills_a_gap_joins_both_sides():
    apart = SegmentSet([seg(1, 2, 10, 20), seg(5, 6, 40, 60)])
    assert len(apart) == 2
    assert list(SegmentSet((*apart, seg(3, 4, 20, 40)))) == [seg(1, 6, 10, 60)]


def test_a_set_of_two_logs_is_in_order():
    old, new = seg(1, 4, 10, 50), seg(5, 9, 0, 0, author=2, log="b/log")
    assert list(SegmentSet([new, old])) == [old, new]


@pytest.mark.parametrize(
    ("begin", "end", "is_needed"),
    [(0, 10, False), (0, 11, True), (15, 16, True), (19, 30, True), (20, 30, False), (19, 0, True)],
)
def test_gs4_overlap_is_by_half_open_offsets(begin, end, is_needed):
    assert seg(1, 2, 10, 20).overlaps(begin, end) is is_needed


def test_a_segment_whose_end_is_not_known_has_none():
    assert seg(1, 2, 10).overlaps(1000, 1001)
    assert not seg(1, 2, 10).overlaps(0, 10)


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
