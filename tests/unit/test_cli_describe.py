"""What a list of fragments comes to."""

from __future__ import annotations

from gazette_platform.cli.gazctl.journals.describe import Stored, add_up
from gazette_platform.client import FragmentListing
from gazette_platform.protocol import Fragment


def stored(begin, end, at=100):
    return FragmentListing(Fragment("a/one", begin, end, backing_store="file:///", mod_time=at))


def local(begin, end):
    return FragmentListing(Fragment("a/one", begin, end))


def test_nothing_comes_to_nothing():
    assert add_up([]) == Stored()


def test_stored_and_open_fragments_are_told_apart():
    assert add_up([stored(10, 20, 100), stored(20, 40, 90), local(40, 45)]) == Stored(
        begin=10,
        end=45,
        stored_bytes=30,
        unpersisted_bytes=5,
        frontier=40,
        fragments=2,
        stored_at=100,
    )


def test_bytes_that_overlap_count_once_and_as_stored():
    found = add_up([stored(0, 10), local(5, 12), stored(8, 11), local(12, 13)])
    assert (found.stored_bytes, found.unpersisted_bytes, found.frontier) == (11, 2, 5)


def test_a_hole_is_neither_stored_nor_missing():
    found = add_up([stored(0, 10), stored(50, 60), local(60, 61)])
    assert (found.stored_bytes, found.unpersisted_bytes, found.end) == (20, 1, 61)


def test_what_is_stored_behind_an_open_fragment_moves_no_frontier():
    found = add_up([stored(0, 10), local(10, 20), stored(20, 30)])
    assert (found.frontier, found.unpersisted_bytes, found.stored_bytes) == (10, 10, 20)
