"""The one comparison of raw tables: what brokers list in a Hive partition, less what its account holds."""

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from gazette_platform.lake.raw.partition_state import PartitionState
from gazette_platform.lake.raw.reconcile import Difference, reconcile
from gazette_platform.lake.spec.rules import UnfitFragment
from gazette_platform.protocol import Fragment

BYTES = 12


def fragment(begin, end, *, store="file:///", postfix=""):
    return Fragment("a", begin, end, backing_store=store, path_postfix=postfix)


def account(*spans, rows=1, aside=()):
    state = PartitionState(aside=aside)
    for begin, end in spans:
        state = state.adding("a", begin, end, rows=rows, stored_bytes=9)
    return state


A, B, C = fragment(0, 10), fragment(10, 20), fragment(20, 30)
ALL = account((0, 10), (10, 20), (20, 30))
WHOLE = fragment(0, 30)
SPOOLED = fragment(30, 40, store="")
ASIDE = fragment(10, 20, postfix="_aside")


@pytest.mark.parametrize(
    ("state", "ought", "difference"),
    [
        (PartitionState(), [], Difference()),
        (PartitionState(), [A, B], Difference(missing=(A, B))),
        (account((0, 10)), [A, B], Difference(missing=(B,), held=(A,))),
        (ALL, [A, B, C], Difference(held=(A, B, C))),
        # Not stored yet, set aside, or empty: none of them is expected in the directory.
        (ALL, [A, B, C, SPOOLED, fragment(30, 30)], Difference(held=(A, B, C))),
        (account((0, 10), (20, 30), aside=((10, 20),)), [A, B, C], Difference(held=(A, C))),
        (account((0, 10), aside=((10, 20),)), [A, ASIDE], Difference(held=(A,))),
        # Pruned, or a store that is away.
        (ALL, [C], Difference(held=(C,), lost=((0, 20),), surplus=2, surplus_bytes=20)),
        (ALL, [], Difference(lost=((0, 30),), surplus=3, surplus_bytes=30)),
        # Brokers list a longer fragment in place of those that were counted.
        (ALL, [WHOLE], Difference(held=(WHOLE,), surplus=2)),
        # A file that others cover was counted, too.
        (
            account((0, 10), (0, 10), (10, 20)),
            [A, B],
            Difference(held=(A, B), surplus=1, surplus_bytes=10),
        ),
        # Part of it is held: it is missing as a whole, since files are counted as a whole.
        (
            account((0, 10)),
            [fragment(5, 15)],
            Difference(missing=(fragment(5, 15),), lost=((0, 5),), surplus=1, surplus_bytes=10),
        ),
    ],
)  # fmt: skip
def test_difference_of_listing_and_account(state, ought, difference):
    assert reconcile(state, ought) == difference


def test_noted_fragments_are_read_again():
    state = account((0, 10), (10, 20), rows=None)
    assert reconcile(state, [A, B, C]).again == (A, B)
    state = account((0, 10)).with_unfit(0, 10, UnfitFragment(0, 10, 1))
    assert reconcile(state, [A]).again == (A,)
    assert reconcile(account((0, 10)), [A]).again == ()
    gone = replace(account((0, 10), rows=None), ranges=())
    assert reconcile(gone, [A]).again == ()


spans = st.lists(
    st.tuples(st.integers(0, BYTES), st.integers(1, BYTES)).map(lambda s: (s[0], s[0] + s[1])),
    max_size=5,
)


def held_bytes(ranges):
    return {byte for begin, end in ranges for byte in range(begin, end)}


@given(spans, spans, spans)
def test_difference_agrees_with_sets_of_bytes(counted, aside, listed):
    state = account(*counted, aside=tuple(sorted(aside)))
    ought = [fragment(*span) for span in listed]
    found = reconcile(state, ought)
    for each in ought:
        bytes_of = held_bytes([(each.begin, each.end)])
        is_held = any(bytes_of <= held_bytes([span]) for span in state.ranges)
        is_aside = any(bytes_of <= held_bytes([span]) for span in aside)
        assert (each in found.held) == is_held
        assert (each in found.missing) == (not is_held and not is_aside)
    assert held_bytes(found.lost) == held_bytes(state.ranges) - held_bytes(listed)
    assert found.surplus_bytes == state.content_bytes - sum(f.content_length for f in found.held)


def applied(state, difference):
    """As registration counts what is missing."""
    for each in difference.missing:
        if not state.settles(each.begin, each.end):
            state = state.adding("a", each.begin, each.end, rows=1, stored_bytes=9)
    return state


@given(spans, spans)
def test_applied_difference_leaves_nothing_missing_and_repeats_nothing(counted, listed):
    ought = [fragment(*span) for span in listed]
    before = account(*counted)
    difference = reconcile(before, ought)
    after = applied(before, difference)
    again = reconcile(after, ought)
    assert again.missing == ()
    assert applied(after, again) == after
    # A second process that compared before the first one wrote finds the bytes covered.
    assert applied(after, difference) == after
    assert held_bytes(after.ranges) == held_bytes(before.ranges) | held_bytes(
        [(f.begin, f.end) for f in difference.missing]
    )
