"""Who holds which bytes of a journal, beside a model that decides byte by byte."""

from itertools import pairwise

from hypothesis import example, given, strategies as st

from gazette_platform.client import FragmentListing
from gazette_platform.client.read.extents import snapshot_of
from gazette_platform.protocol import Fragment
from gazette_platform.protocol.offsets import (
    clip_ranges,
    gaps_between,
    merge_ranges,
    subtract_ranges,
)

END = 60
OFFSETS = st.integers(0, END)
RANGES = st.lists(st.tuples(OFFSETS, OFFSETS), max_size=8)


def listing(begin, length, kind):
    store = "" if kind == "spool" else "file:///"
    postfix = "_aside" if kind == "aside" else ""
    return FragmentListing(
        Fragment("a/b", begin, begin + length, backing_store=store, path_postfix=postfix)
    )


LISTED = st.lists(
    st.builds(listing, OFFSETS, st.integers(1, 15), st.sampled_from(["stored", "spool", "aside"])),
    max_size=12,
)


def is_aside(fragment):
    return fragment.path_postfix == "_aside"


def bytes_of(ranges):
    return {at for begin, end in ranges for at in range(begin, end)}


def held_by(listed, kind):
    kinds = {"stored": lambda f: f.backing_store and not is_aside(f), "aside": is_aside}
    kinds["spool"] = lambda f: not f.backing_store
    return bytes_of(
        (each.fragment.begin, each.fragment.end) for each in listed if kinds[kind](each.fragment)
    )


def is_chain(extents):
    return all(one.end <= other.begin for one, other in pairwise(extents))


@given(LISTED, OFFSETS)
@example([listing(0, 5, "stored"), listing(5, 9, "aside")], 20)
@example([listing(0, 9, "aside"), listing(2, 3, "stored"), listing(4, 2, "spool")], 9)
def test_each_byte_has_one_holder_or_none(listed, head):
    snapshot = snapshot_of("a/b", listed, head, is_aside=is_aside)
    stored, spooled, aside = (held_by(listed, kind) for kind in ("stored", "spool", "aside"))
    below = set(range(head))
    # Bytes after all that is stored may have been appended since: brokers are asked.
    tail = max([*stored, *aside], default=min(spooled, default=head) - 1) + 1
    live = (spooled - stored | set(range(tail, head))) & below if listed else set()
    extents = snapshot.extents
    assert is_chain(extents)
    assert all(each.begin < each.end <= head for each in extents)
    read = bytes_of((each.begin, each.end) for each in extents if each.listing is not None)
    assert read == stored & below
    assert bytes_of((each.begin, each.end) for each in extents if each.listing is None) == live
    for each in extents:
        if each.listing is not None:
            fragment = each.listing.fragment
            assert not is_aside(fragment)
            assert fragment.begin <= each.begin < each.end <= fragment.end
            reaching = [one.fragment for one in listed if one.is_persisted]
            assert fragment.end == max(
                one.end for one in reaching if one.begin <= each.begin and not is_aside(one)
            )
    assert bytes_of(snapshot.aside) == (aside & below) - read - live
    everything = stored | spooled | aside
    assert snapshot.begin == min([*everything, head])
    lost = set(range(snapshot.begin, head)) - read - live - aside
    assert bytes_of(snapshot.gaps) == lost
    assert snapshot.stored_end == max(read, default=snapshot.begin - 1) + 1
    assert snapshot.fragments == sum(each.listing is not None for each in extents)


@given(LISTED, OFFSETS, OFFSETS, OFFSETS)
def test_part_of_a_snapshot_is_the_snapshot_cut(listed, head, begin, end):
    """So a reader that begins in the middle reads each byte from where all others read it."""
    snapshot = snapshot_of("a/b", listed, head)
    holders = {at: each.listing for each in snapshot.extents for at in range(each.begin, each.end)}
    part = snapshot.between(begin, end)
    assert is_chain(part)
    found = {at: each.listing for each in part for at in range(each.begin, each.end)}
    assert found == {at: holder for at, holder in holders.items() if begin <= at < end}
    assert bytes_of(snapshot.missing(begin, end)) == set(range(begin, end)) - found.keys()


@given(LISTED, OFFSETS, st.permutations(range(12)))
def test_order_of_a_listing_changes_no_byte(listed, head, order):
    shuffled = [listed[index] for index in order if index < len(listed)]
    one, other = (snapshot_of("a/b", each, head) for each in (listed, shuffled))
    ends = [[(each.begin, each.end) for each in found.extents] for found in (one, other)]
    assert ends[0] == ends[1]
    assert (one.begin, one.gaps, one.stored_end) == (other.begin, other.gaps, other.stored_end)


def test_journal_without_fragments_has_no_holder():
    """Brokers list what their spools hold, so all of it was pruned."""
    snapshot = snapshot_of("a/b", [], 9)
    assert (snapshot.extents, snapshot.begin, snapshot.missing(3, 9)) == ((), 9, [(3, 9)])


def test_extent_shows_no_signed_url():
    fragment = Fragment("a/b", 0, 9, backing_store="s3://bucket/")
    (extent,) = snapshot_of("a/b", [FragmentListing(fragment, "https://x?signed")], 9).extents
    assert repr(extent) == "Extent('a/b', 0, 9)"


@given(RANGES, RANGES, OFFSETS, OFFSETS)
def test_ranges_are_sets_of_offsets(one, other, begin, end):
    merged, left = merge_ranges(one), subtract_ranges(one, other)
    for ranges in (merged, left, gaps_between(one)):
        assert all(low < high for low, high in ranges)
        assert all(a[1] < b[0] for a, b in pairwise(ranges))
    held = bytes_of(one)
    assert bytes_of(merged) == held
    assert bytes_of(left) == held - bytes_of(other)
    if held:
        assert bytes_of(gaps_between(one)) == set(range(min(held), max(held))) - held
    assert bytes_of(clip_ranges(merged, begin, end)) == held & set(range(begin, end))
