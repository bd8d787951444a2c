"""Cover sets: Gazette's cases, by their numbers."""

from __future__ import annotations

import pytest

from gazette_platform.fragment.cover_set import CoverSet
from gazette_platform.protocol import Fragment, parse_fragment_path


def span(begin, end, journal="a/journal"):
    return Fragment(journal, begin, end)


def make(*spans):
    return CoverSet(span(*one) for one in spans)


def spans(cover):
    return [(item.begin, item.end) for item in cover]


def test_c1_append_at_the_end():
    cover = make((100, 150), (150, 200))
    assert cover.add(span(200, 250))
    assert cover.add(span(240, 300))  # overlaps
    assert cover.add(span(400, 500))  # leaves a gap
    assert spans(cover) == [(100, 150), (150, 200), (200, 250), (240, 300), (400, 500)]


@pytest.mark.parametrize(
    ("added", "expected"),
    [
        ((150, 500), [(100, 150), (150, 500)]),
        ((151, 500), [(100, 150), (150, 200), (151, 500)]),
        ((300, 401), [(100, 150), (150, 200), (200, 300), (300, 401)]),
    ],
)
def test_c2_replace_a_range_or_one_at_the_end(added, expected):
    cover = make((100, 150), (150, 200), (200, 300), (300, 400))
    assert cover.add(span(*added))
    assert spans(cover) == expected


@pytest.mark.parametrize(
    ("added", "expected"),
    [
        ((150, 300), [(100, 150), (150, 300), (300, 400), (400, 500)]),
        ((149, 401), [(100, 150), (149, 401), (400, 500)]),
        ((199, 300), [(100, 150), (150, 200), (199, 300), (300, 400), (400, 500)]),
    ],
)
def test_c3_replace_a_range_or_one_in_the_middle(added, expected):
    cover = make((100, 150), (150, 200), (200, 300), (300, 400), (400, 500))
    assert cover.add(span(*added))
    assert spans(cover) == expected


@pytest.mark.parametrize("added", [(200, 300), (210, 290), (190, 310)])
def test_c4_insert_in_the_middle_exactly_or_with_gaps(added):
    cover = make((100, 200), (300, 400))
    assert cover.add(span(*added))
    assert spans(cover) == [(100, 200), added, (300, 400)]


def test_c5_replace_at_the_beginning():
    cover = make((100, 200), (200, 300), (300, 400))
    assert cover.add(span(50, 300))
    assert spans(cover) == [(50, 300), (300, 400)]


def test_c6_insert_at_the_beginning():
    cover = make((200, 300), (300, 400))
    assert cover.add(span(100, 210))
    assert cover.add(span(0, 50))
    assert spans(cover) == [(0, 50), (100, 210), (200, 300), (300, 400)]


def test_c7_big_overlaps_keep_what_is_not_covered():
    cover = make((100, 200), (200, 300), (300, 400), (400, 500))
    assert cover.add(span(150, 450))
    assert spans(cover) == [(100, 200), (150, 450), (400, 500)]


def test_c8_smaller_ones_refused_equal_accepted():
    cover = make((100, 200), (200, 300), (300, 400))
    for smaller in [(100, 199), (101, 200), (210, 290), (200, 299), (301, 400)]:
        assert not cover.add(span(*smaller))
    for equal in [(100, 200), (200, 300), (300, 400)]:
        newer = span(*equal, journal="newer")
        assert cover.insert(newer) == [span(*equal)]
        assert newer in list(cover)
    assert spans(cover) == [(100, 200), (200, 300), (300, 400)]
    assert not cover.add(span(250, 250))  # empty


def test_c9_begin_and_end():
    cover = CoverSet()
    assert (cover.begin, cover.end) == (0, 0)
    cover.add(span(100, 150))
    assert (cover.begin, cover.end) == (100, 150)
    cover.add(span(120, 400))
    assert (cover.begin, cover.end) == (100, 400)


@pytest.mark.parametrize(
    ("offset", "index", "found"),
    [
        (0, 0, False),
        (149, 1, True),
        (200, 2, True),
        (299, 3, True),
        (300, 4, True),
        (400, 5, False),
        (600, 6, False),
    ],
)
def test_c10_lookup(offset, index, found):
    cover = make((100, 150), (149, 200), (200, 250), (225, 300), (300, 400), (500, 600))
    assert cover.lookup(offset) == (index, found)


def test_c11_a_run_covers_if_it_has_no_gap():
    cover = CoverSet()
    have = [
        (99, 105),
        (100, 150),
        (120, 299),
        (152, 301),
        (300, 350),
        (355, 399),
        (360, 401),
        (400, 450),
    ]
    other = make((100, 150), (150, 200), (200, 300), (350, 400))
    for one in have:
        cover.add(span(*one))
    assert [one for one in spans(cover) if not other.covers(*one)] == [
        (99, 105),
        (152, 301),
        (300, 350),
        (360, 401),
        (400, 450),
    ]
    assert all(cover.covers(*one) for one in spans(cover))
    assert not any(CoverSet().covers(*one) for one in spans(cover))


def test_c12_names_with_overlaps_reduce_to_three():
    digest = "0123456789abcdef0123456789abcdef01234567"
    names = [
        f"{begin:016x}-{end:016x}-{digest}.gz"
        for begin, end in [
            (0x1000, 0x2000),
            (0x1000, 0x3000),
            (0x2000, 0x3000),
            (0x3000, 0x3800),
            (0x2800, 0x4000),
            (0x4000, 0x5000),
            (0x4000, 0x5000),
        ]
    ]
    cover = CoverSet(parse_fragment_path("a/journal", name) for name in names)
    assert spans(cover) == [(0x1000, 0x3000), (0x2800, 0x4000), (0x4000, 0x5000)]


def test_remove_needs_the_same_span():
    cover = make((100, 200), (200, 300))
    assert not cover.remove(span(100, 150))
    assert not cover.remove(span(150, 200))
    assert not cover.remove(span(900, 950))
    assert cover.remove(span(100, 200))
    assert spans(cover) == [(200, 300)]


def test_ranges():
    cover = make((100, 200), (150, 250), (300, 400))
    assert spans(cover.overlapping(200, 300)) == [(150, 250)]
    assert spans(cover.overlapping(0, 1000)) == spans(cover)
    copy = cover.copy()
    copy.add(span(0, 1000))
    assert spans(cover) == [(100, 200), (150, 250), (300, 400)]
    assert cover[2] == span(300, 400)
