"""What follows from what brokers list, files and accounts: pruned, or a store that is away."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from gazette_platform.lake.raw.partition_state import PartitionState
from gazette_platform.lake.raw.planning import JournalCursor, Page
from gazette_platform.lake.raw.reconcile import (
    Break,
    Evidence,
    Files,
    is_broken,
    is_emptied,
    judge,
    pruned_front,
    reconcile,
)
from gazette_platform.protocol import Fragment
from gazette_platform.protocol.offsets import merge_ranges

STORE = "file:///"


def fragment(begin, end, *, store=STORE):
    return Fragment("a", begin, end, sum=bytes([begin % 251] * 20), backing_store=store)


def accounts(*ranges):
    state = PartitionState()
    for begin, end in ranges:
        state = state.adding("a", begin, end, rows=end - begin, stored_bytes=9)
    return state


def files(*fragments):
    return Files({f.content_name: (f.begin, f.end) for f in fragments})


A, B, C = fragment(0, 10), fragment(10, 20), fragment(20, 30)
PROOF = Evidence(proof=fragment(90, 99), first=20)
HELD = accounts((0, 10), (10, 20), (20, 30))


@pytest.mark.parametrize(
    ("here", "there", "evidence", "verdict", "kept"),
    [
        ([A, B, C], Files(problem="not looked at"), Evidence(), "keep", ()),
        ([C], files(C), PROOF, "shrink", (C,)),
        ([A, C], files(A, C), PROOF, "shrink", (A, C)),
        ([], files(), PROOF, "empty", ()),
        # A file that brokers do not list, or a listed one that is not there: one of the two is late.
        ([C], files(B, C), PROOF, "wait", ()),
        ([B, C], files(C), PROOF, "wait", ()),
        ([], files(A, B, C), PROOF, "wait", ()),
        # Nothing proves the store.
        ([C], files(C), Evidence(first=20), "doubt", ()),
        ([], files(), Evidence(first=None), "doubt", ()),
        ([], Files(problem="the store does not answer"), PROOF, "doubt", ()),
        # The end of a journal is never pruned: it was made again.
        ([], files(), Evidence(proof=fragment(0, 5), first=0), "doubt", ()),
        ([A], files(A), Evidence(proof=A, first=0), "doubt", ()),
        # A fragment of another directory that begins amid what is gone does not lie after it.
        ([A], files(A), Evidence(proof=fragment(25, 45), first=0), "doubt", ()),
        ([], files(), Evidence(proof=fragment(30, 40), first=30), "empty", ()),
        # What came after a break proves nothing of what was before.
        ([], files(), Evidence(proof=fragment(90, 99), first=40, broken_at=40), "doubt", ()),
        ([], files(), Evidence(proof=fragment(90, 99), first=None, broken_at=40), "doubt", ()),
        ([C], files(C), Evidence(proof=fragment(90, 99), first=20, broken_at=40), "shrink", (C,)),
        ([A], files(A), Evidence(proof=fragment(90, 99), first=10, broken_at=10), "shrink", (A,)),
        # A person says so; but not that a listing failed, or that files are not there.
        ([], files(), Evidence(broken_at=40, is_confirmed=True), "empty", ()),
        ([], Files(problem="away"), Evidence(is_confirmed=True), "doubt", ()),
        ([], files(A), Evidence(is_confirmed=True), "wait", ()),
    ],
)
def test_verdicts(here, there, evidence, verdict, kept):
    found = judge(reconcile(HELD, here), here, [], there, evidence)
    assert (found.verdict, found.kept) == (verdict, kept)
    assert bool(found.reason) == (verdict in {"doubt", "wait"})


def test_bytes_that_brokers_are_about_to_store_are_not_gone():
    assert judge(reconcile(HELD, [C]), [C], [(5, 15)], files(C), PROOF).verdict == "wait"
    for elsewhere in (
        (20, 30),
        (30, 40),
    ):  # such as C, whose store another broker does not know yet
        assert judge(reconcile(HELD, [C]), [C], [elsewhere], files(C), PROOF).verdict == "shrink"


def test_a_fragment_that_the_accounts_do_not_hold_yet_is_left_to_registration():
    held = accounts((0, 10))
    late = fragment(5, 20)
    found = judge(reconcile(held, [late]), [late], [], files(late), PROOF)
    assert (found.verdict, found.lost) == ("empty", ((0, 5),))


def test_a_new_hive_partition_is_not_an_emptied_one():
    assert not is_emptied(PartitionState())
    assert is_emptied(PartitionState(journal="a"))
    assert not is_emptied(HELD)


@pytest.mark.parametrize(
    ("cursor", "pages", "expected"),
    [
        (JournalCursor(), [Page(0, [A])], False),
        (JournalCursor(20, 10), [Page(10, [B, C])], False),
        (JournalCursor(20, 10), [Page(10, [C])], True),
        (JournalCursor(20, 10), [Page(10, [])], True),
        (JournalCursor(20, 10), [Page(10, [C]), Page(5, [fragment(5, 25)])], False),
        (JournalCursor(20, 20), [Page(20, [C])], True),
        (JournalCursor(20, 10), [], False),
        (JournalCursor(20, None), [Page(20, [C])], False),
        # It was stored once more, after the store had gone; a broker that only holds it knows nothing of that.
        (JournalCursor(20, 10, (), 500), [Page(10, [replace(B, mod_time=800)])], True),
        (JournalCursor(20, 10, (), 500), [Page(10, [replace(B, mod_time=550)])], False),
        (JournalCursor(20, 10, (), 500), [Page(10, [replace(B, mod_time=90)])], False),
        (JournalCursor(20, 10, (), 500), [Page(10, [fragment(10, 20, store="")])], False),
        (JournalCursor(20, 10, (), 500), [Page(10, [replace(C, mod_time=800)])], True),
    ],
)
def test_a_break_is_where_nothing_registered_is_listed_any_more(cursor, pages, expected):
    assert is_broken(cursor, pages) is expected


def test_content_stored_after_a_break_is_not_former_content():
    assert Break(20).is_of_before(fragment(0, 10, store=""))
    found = Break(20, 500)
    assert found.is_of_before(replace(A, mod_time=500))
    assert not found.is_of_before(replace(A, mod_time=700))
    assert not found.is_of_before(fragment(0, 10, store=""))
    assert found.joined(Break(40, 900)) == Break(40, 500)
    assert found.joined(Break(10)) == found


def test_a_front_that_moved():
    assert pruned_front(B, HELD)
    assert not pruned_front(A, HELD)
    assert not pruned_front(None, HELD)
    assert not pruned_front(B, PartitionState(journal="a"))


CUTS = st.lists(st.integers(1, 60), min_size=2, max_size=8, unique=True).map(sorted)


@given(
    cuts=CUTS,
    listed=st.sets(st.integers(0, 6)),
    there=st.sets(st.integers(0, 6)),
    proof=st.one_of(st.none(), st.integers(0, 120)),
    broken_at=st.one_of(st.none(), st.integers(0, 120)),
    first=st.one_of(st.none(), st.integers(0, 120)),
)
def test_nothing_is_forgotten_without_all_of_the_evidence(
    cuts, listed, there, proof, broken_at, first
):
    made = [fragment(b, e) for b, e in pairwise(cuts)]
    state = accounts(*((f.begin, f.end) for f in made))
    here = [f for i, f in enumerate(made) if i in listed]
    present = [f for i, f in enumerate(made) if i in there]
    evidence = Evidence(
        proof=None if proof is None else fragment(proof, proof + 5),
        first=first,
        broken_at=broken_at,
    )
    found = judge(reconcile(state, here), here, [], files(*present), evidence)
    lost = [(f.begin, f.end) for f in made if f not in here]
    assert list(found.lost) == merge_ranges(lost)
    assert (found.verdict == "keep") == (not lost)
    if found.verdict in {"shrink", "empty"}:
        assert here == present == list(found.kept)
        assert proof is not None
        assert proof >= lost[-1][1]
        is_broken_off = broken_at is not None and lost[0][0] < broken_at
        assert not is_broken_off or (first is not None and first < broken_at)
