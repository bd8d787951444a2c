"""Offsets of typed tables belong to the journals that they were read of, whoever does not say which these are."""

import pytest

from gazette_platform.client import FragmentListing
from gazette_platform.client.read.extents import snapshot_of
from gazette_platform.lake.typed.planning.ranges import (
    HoleKind,
    decided,
    plan_backfill,
    plan_run,
)
from gazette_platform.lake.typed.planning.state import JournalState, TypedState
from gazette_platform.lake.typed.tables.progress import Reread, Rollback, reread
from gazette_platform.protocol import DOUBTED, Fragment, created_by

J = "a/b"


def now(head, created, begin=0):
    fragment = Fragment(J, begin, head, backing_store="file:///", mod_time=1)
    return snapshot_of(J, [FragmentListing(fragment)], head, created=created)


def at(offset, created=0, shared_to=0):
    return TypedState({J: JournalState(offset=offset, created=created, shared_to=shared_to)})


def test_journal_that_is_doubted_stays_so_though_brokers_do_not_say_which_it_is():
    state = decided(at(90), [now(30, created=0)], {})
    assert state.journals[J].created == DOUBTED
    grown = now(200, created=0)
    state = decided(state, [grown], {})
    plan = plan_run(state, [grown])
    assert ([hole.kind for hole in plan.holes], plan.ranges) == ([HoleKind.MADE_AGAIN], ())
    plan = plan_run(decided(state, [grown], {J: 0}), [grown])
    assert ([one.begin for one in plan.ranges], plan.holes) == ([0], ())


def test_journal_with_the_create_revision_of_a_former_one_is_another():
    """Etcd was set up again, and counts from 1."""
    kept, new = created_by(43, 1), created_by(43, 2)
    state = decided(at(90, created=43), [now(90, created=kept)], {})  # of a former release
    assert state.journals[J].created == kept
    state = decided(
        state, [now(90, created=43)], {}
    )  # a broker of Gazette does not send the history
    assert state.journals[J].created == kept
    grown = now(200, created=new)
    state = decided(state, [grown], {})
    plan = plan_run(state, [grown])
    assert ([hole.kind for hole in plan.holes], plan.ranges) == ([HoleKind.MADE_AGAIN], ())
    state = decided(state, [grown], {J: 0})
    assert (state.journals[J].offset, state.journals[J].created) == (0, new)


def test_backfill_leaves_rows_of_a_journal_that_is_shorter_than_it_was():
    """A state of a former release does not say which journal it is of."""
    plan = plan_backfill([at(90)], [now(30, created=77)], {J: [(0, 30)]})
    assert ([hole.kind for hole in plan.holes], plan.ranges) == ([HoleKind.MADE_AGAIN], ())


@pytest.mark.parametrize(
    ("after", "before", "found"),
    [
        (at(40, 43), at(90, 43), [(40, 90, 0)]),
        (at(40), at(90, 43), [(40, 90, 0)]),
        # The journal of now is another one, so no broker holds the bytes that were read.
        (at(40, 42), at(90, 42), [(40, 90, 50)]),
        # The table restarted with the one of now since: of the former one all is lost.
        (at(40, 42), at(30, 43, shared_to=70), [(40, 70, 30), (0, 30, 0)]),
        (at(70, 42), at(30, 43, shared_to=70), [(0, 30, 0)]),
    ],
)
def test_rollback_reports_what_is_lost_with_a_former_journal(after, before, found):
    rollback = Rollback(name="t.a", loaded=None, to=1, before=before, after=after)
    told = reread(rollback, [now(100, created=43)])
    assert told == [
        Reread(journal=J, begin=begin, end=end, lost_bytes=lost) for begin, end, lost in found
    ]
