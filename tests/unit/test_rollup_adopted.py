"""Rollups of journals that were created again and hold what they held: etcd was set up again from a listing."""

import pytest

from gazette_platform.lake.raw.partition_state import PartitionState
from gazette_platform.lake.rollups import Covers, RollupSpec, SourceState, make_plan
from gazette_platform.lake.rollups.planning import covers_after
from gazette_platform.lake.rollups.running import _seen
from gazette_platform.protocol import created_by

JOURNAL = "events/part=0"
SPEC = RollupSpec(
    name="r.a", engine="trino", sql="select * from f", sources={"f": "t.f"}, slices=()
)


def account(*ranges, created=43):
    state = PartitionState()
    for begin, end in ranges:
        state = state.adding(JOURNAL, begin, end, rows=1, stored_bytes=9, created=created)
    return state


def sources(state):
    parts = {"hour=1": (("1",), _seen(state, "hour=1", {}))}
    return {"f": SourceState(table="t.f", columns=("hour",), parts=parts)}


def covered(state):
    plan = make_plan(SPEC, sources(state), Covers())
    return Covers.parse(covers_after(SPEC, Covers(), plan, plan.make).dump())


@pytest.mark.parametrize("times", [1, 3])
def test_rollup_goes_on_once_a_person_has_said_so(times):
    covers = covered(account((0, 100)))
    state = account((0, 100))
    for now in range(times):
        state = state.created_again(77 + now)
    assert list(make_plan(SPEC, sources(state), covers).make) == [()]
    more = state.adding(JOURNAL, 100, 200, rows=1, stored_bytes=9, created=state.created)
    assert list(make_plan(SPEC, sources(more), covers).make) == [()]
    # It is kept with the account, and a slice that was made since knows the journal of now.
    assert PartitionState.from_parameters(more.to_parameters()) == more
    assert make_plan(SPEC, sources(more), covered(more)).is_idle


def test_rollup_keeps_what_was_pruned_since():
    covers = covered(account((0, 100)))
    [sealed] = make_plan(SPEC, sources(account((50, 100)).created_again(77)), covers).sealed
    assert not sealed.is_behind
    [sealed] = make_plan(SPEC, sources(account((50, 200)).created_again(77)), covers).sealed
    assert sealed.is_behind


def test_rollup_distinguishes_journals_of_one_create_revision():
    """Etcd was set up again, and counts from 1."""
    known, other = created_by(43, 1), created_by(43, 2)
    covers = covered(account((0, 100), created=known))
    assert make_plan(SPEC, sources(account((0, 100), created=known)), covers).is_idle
    plan = make_plan(SPEC, sources(account((0, 100), created=other)), covers)
    assert [(one.is_behind, plan.is_idle) for one in plan.sealed] == [(True, True)]
    said = account((0, 100), created=known).created_again(other)
    assert list(make_plan(SPEC, sources(said), covers).make) == [()]
    # A former release did not note the history.
    former = covered(account((0, 100)))
    assert list(make_plan(SPEC, sources(said), former).make) == [()]


def test_rollup_of_another_journal_is_left():
    covers = covered(account((0, 100)))
    plan = make_plan(SPEC, sources(account((0, 100), created=77)), covers)
    assert [(one.is_behind, plan.is_idle) for one in plan.sealed] == [(True, True)]


def test_account_that_was_emptied_forgets_what_its_journal_was():
    state = account((0, 100)).created_again(77)
    emptied = state.without(0, 100, rows=1, stored_bytes=9, left=())
    again = emptied.adding(JOURNAL, 0, 100, rows=1, stored_bytes=9, created=99)
    assert (again.created, again.formerly) == (99, ())
    kept = emptied.adding(JOURNAL, 100, 200, rows=1, stored_bytes=9, created=77)
    assert (kept.created, kept.formerly) == (77, (43,))
