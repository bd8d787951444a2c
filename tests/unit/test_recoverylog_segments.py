"""Segments of recovery logs: what is valid, how two merge, and what a set of them is."""

import pytest

from gazette_platform.consumer.recoverylog import Segment, SegmentSet, merge_segments
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
    assert list(apart.with_added(seg(3, 4, 20, 40))) == [seg(1, 6, 10, 60)]


def test_a_set_of_two_logs_is_in_order():
    old, new = seg(1, 4, 10, 50), seg(5, 9, 0, 0, author=2, log="b/log")
    assert list(SegmentSet([new, old])) == [old, new]


@pytest.mark.parametrize(
    ("begin", "end", "is_needed"),
    [(0, 10, False), (0, 11, True), (15, 16, True), (19, 30, True), (20, 30, False), (19, 0, True)],
)
def test_gs4_overlap_is_by_half_open_offsets(begin, end, is_needed):
    assert seg(1, 2, 10, 20).overlaps(begin, end) is is_needed
    found = SegmentSet([seg(1, 2, 10, 20)]).overlapping("a/log", begin, end)
    assert len(found) == is_needed
    assert not len(SegmentSet([seg(1, 2, 10, 20)]).overlapping("b/log", begin, end))


def test_a_segment_whose_end_is_not_known_has_none():
    assert seg(1, 2, 10).overlaps(1000, 1001)
    assert not seg(1, 2, 10).overlaps(0, 10)
