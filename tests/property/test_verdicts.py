"""Verdicts on tenures: evidence on disk counts, whatever the order in which it is found."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from gazette_platform.broker.epochs import EpochRecord, Holder, Past
from gazette_platform.broker.spool.verdicts import Evidence, Todo, Verdict, decide, heir, is_shadow
from gazette_platform.protocol import ProcessId

REVISION = 7
US = ProcessId("zone", "us")
WAIT, SAVE, LET_GO = (Verdict(todo) for todo in (Todo.WAIT, Todo.SAVE, Todo.LET_GO))


def of(tenure, end=100, *, is_whole=True, revision=REVISION, **options):
    options.setdefault("is_end_known", is_whole)
    return Evidence(tenure, revision, end, is_whole=is_whole, **options)


def record_of(*tenures, **options):
    return EpochRecord(REVISION, 3, tuple(Holder(one, US) for one in tenures), **options)


def decided(record, *found, **options):
    return decide(record, found, **({"journal_revision": REVISION} | options))


def passed(*tenures, end):
    return Past(tuple(Holder(one, US) for one in tenures), end)


def upto(end):
    return Verdict(Todo.YIELD, end)


WANTED = record_of("a", is_wanted=True)


@pytest.mark.parametrize(
    ("record", "found", "options", "verdicts"),
    [
        # Others have gone on, or no record says who holds it.
        (record_of("b", past=(passed("a", end=70),)), [of("a")], {}, [upto(70)]),
        (record_of("b"), [of("a")], {}, [upto(0)]),
        (None, [of("a")], {}, [upto(0)]),
        (record_of("a"), [of("a")], {"journal_revision": None}, [upto(0)]),
        (record_of("a"), [of("a", revision=6)], {}, [upto(0)]),
        # The only holder.
        (record_of("a"), [of("a")], {}, [WAIT]),
        (WANTED, [of("a")], {}, [LET_GO]),
        (record_of("a"), [of("a")], {"is_leaving": True}, [LET_GO]),
        (record_of("a"), [of("a")], {"suspended_at": 100}, [LET_GO]),
        (record_of("a"), [of("a")], {"suspended_at": 99}, [WAIT]),
        (WANTED, [of("a", is_whole=False)], {}, [SAVE]),
        (record_of("a"), [of("a", is_whole=False)], {"is_leaving": True}, [SAVE]),
        # One of several.
        (record_of("a", "b"), [of("a")], {"is_leaving": True}, [WAIT]),
        (record_of("a", "b", is_wanted=True), [of("a", is_whole=False)], {}, [WAIT]),
        (record_of("a", "b"), [of("a", is_whole=False)], {"is_given_up": True}, [SAVE]),
        (
            record_of("a", "b"),
            [of("a", 90, is_whole=False), of("b", is_whole=False), of("b", 90, is_whole=False)],
            {"is_given_up": True},
            [SAVE, SAVE, WAIT],
        ),
        (
            record_of("a", "b"),
            [of("a", 90), of("b", is_whole=False)],
            {"is_given_up": True},
            [WAIT, WAIT],
        ),
        (record_of("a", "b", is_wanted=True), [of("a", 90), of("b")], {}, [WAIT, LET_GO]),
        (
            record_of("a", "b", is_wanted=True),
            [of("a", 90), of("b", is_whole=False)],
            {},
            [LET_GO, WAIT],
        ),
        # Two brokers have it.
        (WANTED, [of("a", is_doubled=True)], {}, [WAIT]),
        (record_of("a"), [of("a", is_whole=False, is_doubled=True)], {}, [WAIT]),
        (record_of("a"), [of("a", is_doubled=True)], {"is_leaving": True}, [WAIT]),
        (
            record_of("a"),
            [of("a", is_whole=False, is_doubled=True)],
            {"is_given_up": True},
            [WAIT],
        ),
        (record_of("b", past=(passed("a", end=70),)), [of("a", is_doubled=True)], {}, [upto(70)]),
        # Copied homes.
        (WANTED, [of("a", is_copied=True)], {}, [WAIT]),
        (record_of("a"), [of("a", is_copied=True)], {"is_leaving": True}, [WAIT]),
        (record_of("a"), [of("a", is_copied=True)], {"is_given_up": True}, [SAVE]),
        (
            record_of("b", past=(passed("a", end=70),)),
            [of("a", is_copied=True), of("a")],
            {},
            [upto(0), upto(70)],
        ),
        (WANTED, [of("a", 90, is_copied=True), of("a")], {}, [WAIT, LET_GO]),
        (WANTED, [of("a", is_copied=True), of("a", 90)], {}, [WAIT, LET_GO]),
        (WANTED, [of("a", is_copied=True, is_whole=False), of("a")], {}, [WAIT, LET_GO]),
        (WANTED, [of("a", is_copied=True), of("a", 90, is_whole=False)], {}, [WAIT, SAVE]),
        (
            record_of("a"),
            [of("a", is_copied=True), of("a", is_whole=False)],
            {"is_given_up": True},
            [WAIT, SAVE],
        ),
        (
            record_of("a"),
            [of("a", is_copied=True), of("a", 90, is_whole=False)],
            {"is_given_up": True},
            [SAVE, SAVE],
        ),
        # Copies that nothing distinguishes from their originals.
        (WANTED, [of("a", 90), of("a")], {}, [WAIT, LET_GO]),
        (WANTED, [of("a"), of("a")], {}, [LET_GO, WAIT]),
        (WANTED, [of("a", 90), of("a")], {"in_use": ["a"]}, [WAIT, WAIT]),
        (WANTED, [of("a", 90), of("a", is_whole=False)], {}, [WAIT, SAVE]),
        (WANTED, [of("a"), of("a", 90, is_whole=False)], {}, [SAVE, WAIT]),
        (WANTED, [of("a", 90), of("a"), of("a", 90, is_whole=False)], {}, [WAIT, SAVE, WAIT]),
        (
            WANTED,
            [of("a"), of("a", 90, is_whole=False, is_end_known=True)],
            {},
            [LET_GO, WAIT],
        ),
        (WANTED, [of("a"), of("a", is_whole=False, is_end_known=True)], {}, [LET_GO, WAIT]),
        (
            record_of("b", past=(passed("a", end=70),)),
            [of("a", 60), of("a")],
            {"in_use": ["b"]},
            [upto(70), upto(70)],
        ),
    ],
)
def test_evidence_decides(record, found, options, verdicts):
    assert decided(record, *found, **options) == verdicts


evidences = st.lists(
    st.builds(
        lambda tenure, end, is_whole, is_end_known, is_copied: Evidence(
            tenure,
            REVISION + (tenure == "of a journal made again"),
            end,
            is_whole=is_whole,
            is_end_known=is_whole or is_end_known,
            is_copied=is_copied,
        ),
        st.sampled_from(["a", "a", "b", "of a journal made again"]),
        st.integers(0, 3),
        st.booleans(),
        st.booleans(),
        st.sampled_from([False, False, True]),
    ),
    min_size=1,
    max_size=5,
).flatmap(st.permutations)


@given(evidences, st.booleans(), st.randoms(use_true_random=False))
def test_order_of_folders_decides_nothing(found, is_wanted, rng):
    """Of equal evidence any counts: what becomes of it is the same."""
    record = record_of("a", "b", is_wanted=is_wanted)
    verdicts = list(zip(found, decided(record, *found), strict=True))
    shuffled = list(found)
    rng.shuffle(shuffled)
    again = list(zip(shuffled, decided(record, *shuffled), strict=True))
    assert sorted(map(repr, verdicts)) == sorted(map(repr, again))


@given(evidences, st.sampled_from([("a",), ("b",), ("a", "b")]))
def test_no_verdict_lets_go_below_the_furthest_copy(found, holders):
    record = record_of(*holders, is_wanted=True)
    verdicts = decided(record, *found)
    assert [verdict.todo for verdict in verdicts].count(Todo.LET_GO) <= 1
    number = heir(record, found, journal_revision=REVISION)
    for at, (one, verdict) in enumerate(zip(found, verdicts, strict=True)):
        assert (verdict == LET_GO) == (at == number)
        if verdict == LET_GO:
            copies = [each for each in found if each.tenure == one.tenure and not each.is_copied]
            assert one.is_whole
            assert not one.is_copied
            assert one.end == max(each.end for each in copies)
            assert not is_shadow(found, at)


@given(evidences)
def test_of_all_copies_of_the_only_holder_one_counts(found):
    """Else no broker would store what it has, and an operator would give up what is proven."""
    copies = [one for one in found if one.tenure == "a" and not one.is_copied]
    verdicts = decided(WANTED, *copies)
    acting = [
        one for one, verdict in zip(copies, verdicts, strict=True) if verdict in (SAVE, LET_GO)
    ]
    assert len(acting) == bool(copies)
    assert all(one.end == max(each.end for each in copies) for one in acting)


@given(evidences, st.booleans(), st.booleans())
def test_what_was_copied_changes_nothing_of_what_was_not(found, is_wanted, is_leaving):
    """A copy that strayed here says nothing about what its original, or others, did since."""
    record = record_of("a", "b", is_wanted=is_wanted)
    originals = [one for one in found if not one.is_copied]
    verdicts = decided(record, *found, is_leaving=is_leaving)
    kept = [verdict for one, verdict in zip(found, verdicts, strict=True) if not one.is_copied]
    assert kept == decided(record, *originals, is_leaving=is_leaving)
    copied = [verdict for one, verdict in zip(found, verdicts, strict=True) if one.is_copied]
    assert all(verdict in (WAIT, upto(0)) for verdict in copied)
