"""What to read next of a journal that is known by a listing of its store alone."""

import pytest
from hypothesis import given, strategies as st

from gazette_platform.client.read.extents import StorePlan, choose_next
from gazette_platform.client.results import FragmentListing
from gazette_platform.protocol import Fragment

NOW = 1_000_000_000


def listed(*spans, age_s=60):
    return [
        FragmentListing(
            Fragment("a/journal", begin, end, backing_store="file:///", mod_time=NOW - age_s)
        )
        for begin, end in spans
    ]


def place(plan, offset):
    found = plan.place(offset, NOW)
    return found and (found.offset, found.listing.fragment.begin, found.listing.fragment.end)


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (0, (0, 0, 10)),
        (7, (7, 0, 10)),
        (9, (9, 0, 10)),
        (10, (10, 8, 30)),
        (29, (29, 8, 30)),
        (30, None),
        (45, (45, 40, 50)),
        (50, None),
    ],
)
def test_each_byte_is_read_from_one_fragment(offset, expected):
    plan = StorePlan(listed((40, 50), (8, 30), (0, 10), (12, 20), (8, 12)), is_beginning=True)
    assert place(plan, offset) == expected
    assert plan.end == 50


@pytest.mark.parametrize(
    ("age_s", "is_beginning", "passed"),
    [
        # Fragments are stored side by side: the first one may be the second to arrive.
        (0, True, []),
        (600, True, []),
        (601, True, [10]),
        (6 * 3600, True, [10]),
        (6 * 3600 + 1, True, [10, 30]),
        # What was stored before is read already: the hole may be a fragment that is being stored.
        (601, False, []),
        (6 * 3600, False, []),
        (6 * 3600 + 1, False, [10, 30]),
    ],
)
def test_holes_are_passed_over_where_they_are_old(age_s, is_beginning, passed):
    """At the beginning, which is pruned in time, sooner."""
    plan = StorePlan(listed((10, 20), (30, 40), age_s=age_s), is_beginning=is_beginning)
    expected = {0: (10, 10, 20), 20: (30, 30, 40)}
    for offset, found in expected.items():
        assert place(plan, offset) == (found if found[0] in passed else None)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10)), max_size=12), st.integers(0, 45))
def test_what_any_fragment_holds_is_found(spans, offset):
    """And what is fetched ahead is the fragment that the read needs next."""
    fragments = listed(*((begin, begin + length) for begin, length in spans))
    plan = StorePlan(fragments, is_beginning=False)
    found = plan.place(offset, NOW)
    holders = [each for each in fragments if each.fragment.begin <= offset < each.fragment.end]
    assert (found is not None) == bool(holders)
    if found:
        assert found.listing in holders
        end = found.listing.fragment.end
        ahead = choose_next(plan.begins_from(found.listing.fragment.begin + 1, 99), end)
        following = plan.place(end, NOW)
        assert ahead == (following and following.listing)
    else:
        assert choose_next(fragments, offset) is None
