"""What a run of a typed table reads, case by case and at random."""

from __future__ import annotations

import time
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st

from gazette_platform.client import FragmentListing
from gazette_platform.client.read.extents import snapshot_of
from gazette_platform.errors import ValidationError
from gazette_platform.lake.typed.planning.ranges import (
    BackfillPlan,
    Hole,
    HoleKind,
    Limits,
    RunPlan,
    held_ranges,
    plan_backfill,
    plan_run,
    whole_ranges,
)
from gazette_platform.lake.typed.planning.state import Counts, JournalState, Producer, TypedState
from gazette_platform.lake.typed.runs.journals import journal_now
from gazette_platform.protocol import Fragment, JournalSpec

J = "lake/events"


def stored(begin, end, at=1_000, journal=J, postfix=""):
    fragment = Fragment(
        journal, begin, end, backing_store="file:///", mod_time=at, path_postfix=postfix
    )
    return FragmentListing(fragment)


def spooled(begin, end, journal=J):
    return FragmentListing(Fragment(journal, begin, end))


def now(*listed, head=None, begin=None, name=J):
    ends = [each.fragment.end for each in listed]
    return snapshot_of(name, listed, max(ends, default=0) if head is None else head, begin=begin)


def at(offset, journal=J, **producers):
    known = {name.encode(): one for name, one in producers.items()}
    return TypedState({journal: JournalState(offset=offset, producers=known)})


def spans(plan, journal=J):
    """By task of a journal: begin, end, and whether it ends softly."""
    tasks = next((each.tasks for each in plan.ranges if each.journal == journal), ())
    return [(task.begin, task.end, task.is_soft) for task in tasks]


# ------------------------------------------------------------------ one journal


def test_new_journal_begins_with_its_oldest_byte():
    plan = plan_run(TypedState(), [now(stored(70, 90), stored(90, 120))])
    assert spans(plan) == [(70, 120, False)]
    assert plan.holes == ()


def test_range_begins_within_a_fragment_and_each_byte_has_one_holder():
    journal = now(stored(0, 50), stored(40, 80), stored(60, 70), spooled(70, 95), head=100)
    (found,) = plan_run(at(30), [journal]).ranges
    (task,) = found.tasks
    assert [(s.begin, s.end, s.listing and s.listing.fragment.end) for s in task.extents] == [
        (30, 50, 50),
        (50, 80, 80),
        (80, 100, None),
    ]
    assert (found.begin, found.end, task.is_soft) == (30, 100, True)


def test_journal_that_was_read_to_its_head_is_left_out():
    assert plan_run(at(90), [now(stored(0, 90))]) == RunPlan()


def test_small_fragments_are_read_together_and_large_ones_alone():
    journal = now(stored(0, 10), stored(10, 20), stored(20, 70), stored(70, 80), spooled(80, 85))
    plan = plan_run(TypedState(), [journal], Limits(task_bytes=30))
    assert spans(plan) == [(0, 20, False), (20, 70, False), (70, 85, True)]


def test_long_tail_is_cut_softly_and_ends_the_range():
    journal = now(stored(0, 10), spooled(10, 100))
    plan = plan_run(TypedState(), [journal], Limits(task_bytes=30))
    assert spans(plan) == [(0, 10, False), (10, 40, True)]
    assert plan.left_bytes == 60


def test_what_spools_hold_between_stored_fragments_ends_where_the_next_one_begins():
    journal = now(stored(0, 10), spooled(10, 20), stored(20, 30))
    assert spans(plan_run(TypedState(), [journal])) == [(0, 30, False)]


def test_fragment_that_continues_after_the_head_ends_softly_there():
    """It was stored since the head was asked for, and half a message may have been appended by then."""
    journal = now(stored(0, 10), stored(10, 50), head=30)
    assert spans(plan_run(TypedState(), [journal])) == [(0, 30, True)]
    assert spans(plan_run(TypedState(), [now(stored(0, 10), stored(10, 50), head=50)])) == [
        (0, 50, False)
    ]


# ------------------------------------------------------------------ holes


class OneJournal:
    """Brokers of one journal."""

    def __init__(self, *listed, head):
        self.listed, self.head = listed, head

    async def write_heads(self, journals):
        return {journal.name: self.head for journal in journals}

    async def fragments(self, _journal, **_query):
        return self.listed

    async def fragment_page(self, _journal, **_query):
        return SimpleNamespace(fragments=self.listed[:1])


@pytest.mark.parametrize("others", [(), (stored(20, 30),)])
async def test_fragment_that_is_set_aside_is_a_hole_also_at_the_end(others):
    """Brokers would serve its bytes, and so they must not be asked for them."""
    listed = (stored(0, 10), stored(10, 20, postfix="_aside/hour=1"), *others)
    brokers = OneJournal(*listed, head=listed[-1].fragment.end + 5)
    journal = await journal_now(
        brokers, SimpleNamespace(name=J, spec=JournalSpec(name=J), created=0), 0
    )
    plan = plan_run(TypedState(), [journal])
    assert spans(plan) == [(0, 10, False)]
    assert [(hole.begin, hole.end, hole.kind) for hole in plan.holes] == [
        (10, 20, HoleKind.MISSING)
    ]


def test_content_that_was_pruned_before_it_was_read_is_reported_and_stops_the_journal():
    plan = plan_run(at(30), [now(stored(50, 90, at=7))])
    assert plan.holes == (Hole(J, 30, 50, HoleKind.PRUNED, 7),)
    assert plan.ranges == ()
    assert plan.left_bytes == 0


def test_hole_in_the_middle_ends_the_range_before_it():
    plan = plan_run(at(0), [now(stored(0, 10), stored(20, 30, at=9))])
    assert spans(plan) == [(0, 10, False)]
    assert plan.holes == (Hole(J, 10, 20, HoleKind.MISSING, 9),)


def test_hole_that_a_person_gave_up_is_passed_over_and_noted():
    journal = now(stored(50, 60), stored(70, 90))
    (found,) = plan_run(at(30), [journal], given_up={J: 50}).ranges
    assert (found.begin, found.end, found.passed) == (50, 60, ((30, 50),))
    state = at(30).journals[J].passing(found.begin)
    assert (state.offset, state.counts) == (50, Counts(lost_bytes=20))


def test_part_of_a_hole_that_was_given_up_does_not_permit_the_rest():
    plan = plan_run(at(30), [now(stored(50, 60))], given_up={J: 49})
    assert (plan.ranges, [hole.kind for hole in plan.holes]) == ((), [HoleKind.PRUNED])


def test_range_never_spans_a_hole_that_was_given_up():
    journal = now(stored(0, 10), stored(20, 30))
    first = plan_run(at(0), [journal], given_up={J: 20})
    assert (spans(first), first.holes) == ([(0, 10, False)], ())
    assert spans(plan_run(at(10), [journal], given_up={J: 20})) == [(20, 30, False)]


def test_journal_without_any_content_is_reported():
    assert plan_run(at(30), [now(head=90)]).holes == (Hole(J, 30, 90, HoleKind.PRUNED),)
    assert plan_run(at(90), [now(head=90)]) == RunPlan()
    assert plan_run(TypedState(), [now(head=90)]) == RunPlan()


def test_open_transaction_that_was_pruned_is_reported_and_the_journal_read_on():
    state = at(60, **{"silent": Producer(5, 20, 3), "busy!!": Producer(9)})
    plan = plan_run(state, [now(stored(40, 60), stored(60, 90))])
    assert plan.holes == (Hole(J, 20, 40, HoleKind.OPEN_PRUNED),)
    assert spans(plan) == [(60, 90, False)]
    assert state.journals[J].giving_up(20) == state.journals[J]  # all of it exists
    given_up = state.journals[J].giving_up(40)
    assert given_up.producers == {b"silent": Producer(5), b"busy!!": Producer(9)}
    assert given_up.counts.taken_back == 3
    assert given_up.open_begin is None


def test_journal_that_was_made_again_is_reported_and_not_read():
    plan = plan_run(at(90), [now(stored(0, 30))])
    assert plan.holes == (Hole(J, 30, 90, HoleKind.MADE_AGAIN),)
    assert plan.ranges == ()


def test_journals_that_vanished_are_reported():
    assert plan_run(at(90), []).vanished == (J,)


# ------------------------------------------------------------------ many journals


def backlog(name, count, first_at):
    return now(*(stored(10 * n, 10 * n + 10, first_at + n, name) for n in range(count)), name=name)


def test_open_transaction_that_begins_with_the_oldest_byte_is_all_there():
    plan = plan_run(at(60, silent=Producer(5, 40, 3)), [now(stored(40, 60), stored(60, 90))])
    assert (plan.holes, spans(plan)) == ((), [(60, 90, False)])


def test_a_run_reads_as_much_as_it_may_and_no_task_more():
    plan = plan_run(TypedState(), [backlog("a", 9, 1)], Limits(run_bytes=20, task_bytes=10))
    assert (spans(plan, "a")[-1][1], plan.left_bytes) == (20, 70)
    plan = plan_run(TypedState(), [backlog("a", 9, 1)], Limits(tasks_max=2, task_bytes=10))
    assert (spans(plan, "a")[-1][1], plan.left_bytes) == (20, 70)


def test_of_live_tails_the_longest_is_served_first():
    tails = [
        now(spooled(0, size, name), name=name) for name, size in (("a", 5), ("b", 9), ("c", 7))
    ]
    assert [each.journal for each in plan_run(TypedState(), tails, Limits(tasks_max=2)).ranges] == [
        "b", "c",
    ]  # fmt: skip


def test_all_are_served_in_rounds_and_the_oldest_first():
    journals = [backlog("a", 9, 500), backlog("b", 2, 100), backlog("c", 9, 300)]
    plan = plan_run(TypedState(), journals, Limits(run_bytes=65, task_bytes=10))
    assert {each.journal: each.end for each in plan.ranges} == {"a": 20, "b": 20, "c": 30}
    assert plan.left_bytes == 200 - 70


def test_those_left_out_are_served_by_the_next_run():
    journals = [backlog(name, 4, 100) for name in "abcde"]
    state, served = TypedState(), []
    for _ in range(10):
        plan = plan_run(state, journals, Limits(tasks_max=2, task_bytes=10))
        served.append({each.journal for each in plan.ranges})
        state = state.with_journals(
            {each.journal: JournalState(offset=each.end) for each in plan.ranges}
        )
    assert set.union(*served[:3]) == set("abcde")
    assert all(one.offset == 40 for one in state.journals.values())


def test_live_tails_are_served_beside_a_long_backlog():
    tail = now(spooled(0, 5, "tail"), name="tail")
    plan = plan_run(
        TypedState(), [backlog("old", 99, 1), tail], Limits(run_bytes=50, task_bytes=10)
    )
    assert spans(plan, "tail") == [(0, 5, True)]


@pytest.mark.parametrize("name", ["run_bytes", "task_bytes", "tasks_max"])
def test_limits_that_allow_nothing_are_refused(name):
    with pytest.raises(ValidationError, match=name):
        Limits(**{name: 0})


def test_plan_of_many_fragments_takes_a_time_in_proportion():
    journal = now(*(stored(10 * n, 10 * n + 10) for n in range(50_000)))
    began = time.thread_time()
    plan = plan_run(at(5), [journal], Limits(task_bytes=100, tasks_max=10_000))
    assert time.thread_time() - began < 5
    assert len(spans(plan)) == 5000


lengths = st.lists(st.integers(1, 9), min_size=1, max_size=12)


@given(
    lengths,
    st.sets(st.integers(0, 11)),
    st.lists(st.tuples(st.integers(0, 11), st.integers(1, 4)), max_size=4),
    st.integers(1, 30),
    st.integers(1, 30),
    st.integers(0, 11),
)
def test_runs_read_every_byte_that_is_held_once_and_stop_before_holes(
    sizes, gone, spanning, task_bytes, run_bytes, first_spooled
):
    """Fragments of some sizes; some are gone, others exist as part of larger ones, too."""
    ends = [0]
    for size in sizes:
        ends.append(ends[-1] + size)
    listed = [
        (stored if n < first_spooled else spooled)(begin, end)
        for n, (begin, end) in enumerate(pairwise(ends))
        if n not in gone
    ]
    listed += [
        stored(ends[first], ends[min(first + count, len(sizes))])
        for first, count in spanning
        if first < len(sizes)
    ]
    journal = now(*listed, head=ends[-1])
    held = {b for each in listed for b in range(each.fragment.begin, each.fragment.end)}
    if listed:
        # After the last stored fragment it is for brokers to say.
        last_stored = max((e.fragment.end for e in listed if e.is_persisted), default=0)
        held |= set(range(max(last_stored, journal.begin), ends[-1]))
    limits = Limits(task_bytes=task_bytes, run_bytes=run_bytes)
    state, read = TypedState(), []
    for _ in range(200):
        plan = plan_run(state, [journal], limits)
        if not plan.ranges:
            break
        (found,) = plan.ranges
        for task in found.tasks:
            assert all(low.end == high.begin for low, high in pairwise(task.extents))
            assert task.is_soft <= (task is found.tasks[-1])
            assert task.is_soft or {task.begin, task.end} <= {*ends, state_offset(state)}
        assert all(low.end == high.begin for low, high in pairwise(found.tasks))
        read += range(found.begin, found.end)
        state = at(found.end)
    offset = state_offset(state) if state.journals else journal.begin
    assert read == sorted(set(read))
    assert set(read) == {b for b in held if b < offset}
    assert bool(plan.holes) == (offset < journal.head)
    assert offset == journal.head or offset not in held


def state_offset(state):
    return state.journals[J].offset if state.journals else None


# ------------------------------------------------------------------ backfills


def test_backfill_is_screened_from_the_newest_state_before_it():
    journal = now(*(stored(10 * n, 10 * n + 10) for n in range(9)))
    states = [at(80, newest=Producer(9)), at(20, former=Producer(4)), at(40, behind=Producer(5))]
    (found,) = plan_backfill(states, [journal], {J: [(30, 50)]}, task_bytes=20).ranges
    assert (found.begin, found.end, found.start.offset) == (30, 50, 20)
    assert found.start.producers == {b"former": Producer(4)}
    assert [(task.begin, task.end) for task in found.before] == [(20, 30)]
    assert [(task.begin, task.end) for task in found.tasks] == [(30, 50)]
    assert [(task.begin, task.end) for task in found.follow] == [(50, 70), (70, 80)]


def test_backfill_from_where_a_run_ended_reads_nothing_before_it():
    journal = now(*(stored(10 * n, 10 * n + 10) for n in range(9)))
    states = [at(80), at(20), at(30, known=Producer(7))]
    (found,) = plan_backfill(states, [journal], {J: [(30, 50)]}).ranges
    assert found.before == ()
    assert found.start == JournalState(offset=30, producers={b"known": Producer(7)})


def test_backfill_without_former_states_reads_all_that_is_stored():
    journal = now(stored(10, 40), stored(40, 60))
    (found,) = plan_backfill([at(60)], [journal], {J: [(40, 60)]}).ranges
    assert found.start == JournalState(offset=10)
    assert found.follow == ()


def test_rows_of_content_that_is_gone_are_kept():
    journal = now(stored(20, 30), stored(40, 60))
    plan = plan_backfill([at(60)], [journal], {J: [(0, 60)]})
    assert [(each.begin, each.end) for each in plan.ranges] == [(20, 30), (40, 60)]
    assert [each.start.offset for each in plan.ranges] == [20, 40]
    assert [(hole.begin, hole.end, hole.kind) for hole in plan.holes] == [
        (0, 20, HoleKind.PRUNED),
        (30, 40, HoleKind.MISSING),
    ]


def test_backfill_is_of_what_runs_have_read():
    journal = now(stored(0, 30), stored(30, 60))
    plan = plan_backfill([at(30)], [journal], {J: [(10, 50)]})
    assert [(each.begin, each.end) for each in plan.ranges] == [(10, 30)]
    assert plan.behind == ((J, 30, 50),)
    assert plan_backfill([at(30)], [journal], {J: [(40, 50)]}) == BackfillPlan(
        behind=((J, 40, 50),)
    )


def test_hive_partition_is_the_bytes_that_are_read_of_it():
    one, other = "hour=01", "hour=02"
    journal = now(
        stored(0, 10, postfix=one),
        stored(10, 30, postfix=one),
        stored(20, 40, postfix=other),
        stored(40, 50, postfix=one),
        spooled(50, 60),
    )
    for hour, wanted in ((one, ((0, 30), (40, 50))), (other, ((30, 40),))):
        assert (
            held_ranges(journal, lambda each, hour=hour: each.fragment.path_postfix == hour)
            == wanted
        )


def test_ranges_that_touch_are_made_again_once():
    journal = now(stored(0, 30), stored(30, 60))
    plan = plan_backfill([at(60)], [journal], {J: [(20, 50), (0, 30)]})
    assert [(each.begin, each.end) for each in plan.ranges] == [(0, 50)]


def test_any_offsets_are_made_wider_to_begin_and_end_where_messages_do():
    journal = now(stored(10, 20), stored(20, 40), stored(30, 50), spooled(50, 70))
    assert whole_ranges(journal, [(22, 23), (0, 12)]) == ((0, 40),)
    assert whole_ranges(journal, [(40, 50)]) == ((40, 50),)
    assert whole_ranges(journal, [(45, 51), (48, 49)]) == ((40, 70),)
    assert whole_ranges(now(stored(10, 20), stored(40, 50)), [(25, 45)]) == ((25, 50),)
    assert whole_ranges(now(), [(3, 5)]) == ((3, 5),)


@pytest.mark.parametrize(
    ("states", "wanted", "match"),
    [
        ([], {J: [(0, 9)]}, "never written"),
        ([at(30)], {"other": [(0, 9)]}, "no journal other"),
        ([at(30)], {J: [(9, 9)]}, "hold nothing"),
    ],
)
def test_backfill_of_nothing_is_refused(states, wanted, match):
    with pytest.raises(ValidationError, match=match):
        plan_backfill(states, [now(stored(0, 30))], wanted)
