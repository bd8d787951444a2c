"""Faults of a run's own, for `Life.plant`, and the least in which `tests.typed_crash` has to find each of them."""

from __future__ import annotations

from typing import Any

from pyiceberg.table.update import AssertTableUUID

from gazette_platform.lake.iceberg import publishing
from gazette_platform.lake.typed.planning import last_rows, ranges, rounds
from gazette_platform.lake.typed.planning.row_ranges import RowRanges
from gazette_platform.lake.typed.planning.screening import Plain
from gazette_platform.lake.typed.planning.state import JournalState
from gazette_platform.lake.typed.runs import amending, running
from gazette_platform.lake.typed.tables import quarantine as quarantined, table
from tests.lake_crash.plan import Fault
from tests.typed_crash.plan import Append, Case, Held, MakeAgain, Outgrow, Run

__all__ = [
    "PLANTS",
    "forget_producers",
    "keep_no_fence",
    "keep_rows",
    "know_no_journal",
    "merge_the_first",
    "publish_again",
    "settle_nothing",
]


def _case(name: str, *steps: object, is_keyed: bool = False, amends: str = "") -> Case:
    return Case(
        name=name, theme="planted", seed=name, journals=1, steps=steps, is_keyed=is_keyed,
        amends=amends, is_aimed=False,
    )  # fmt: skip


_OUT = Append(0, 3, ("out",))
PLANTS = {
    case.name: (case, found)
    for case, found in (
        (_case("keep_no_fence", Run(), _OUT, Held("metastore lock", 1, (Run(),))), "doubled"),
        (_case("publish_again", _OUT, Run(Fault("broken after", 1, "metastore alter"))), "doubled"),
        (_case("settle_nothing", Append(0, 3, ("odd",))), "lost"),
        (_case("forget_producers", _OUT, Run(), Append(0, 3, ("again",))), "doubled"),
        (_case("keep_rows", _OUT, amends="backfill"), "doubled"),
        (_case("know_no_journal", _OUT, MakeAgain(0), Outgrow(0), _OUT), "lost"),
        (_case("merge_the_first", Append(0, 6, ("out",)), is_keyed=True), "lost"),
    )
}
"""Cases by plant, and what is found of each: ``lost``, or ``doubled``."""


def keep_no_fence() -> None:
    """Publishes whoever has published meanwhile."""

    def nothing(metadata: Any, *_: Any) -> Any:
        return AssertTableUUID(uuid=metadata.table_uuid)

    publishing.require_start = lambda *_: None
    publishing.still_at = nothing


def publish_again() -> None:
    """Asks again under another name, so that what was published before is published once more."""
    published: Any = running.publish_files

    def planted(handle: Any, _: Any, files: Any, run: str, properties: Any) -> Any:
        planted.count += 1  # type: ignore[attr-defined]
        start = publishing.progress_of(handle.load().metadata)
        return published(handle, start, files, f"{run}-{planted.count}", properties)  # type: ignore[attr-defined]

    planted.count = 0  # type: ignore[attr-defined]
    running.publish_files = planted


def know_no_journal() -> None:
    """Takes a journal that was made again for the one that was read."""
    ranges.is_another = lambda *_: False


def settle_nothing() -> None:
    """Leaves quarantined records where they are."""
    for module in (table, amending, quarantined):
        assert module.settle_quarantine
        module.settle_quarantine = lambda *_: False


def forget_producers() -> None:
    """Compares tasks with nothing that existed before."""
    join: Any = rounds.join

    def planted(state: Any, summaries: Any) -> Any:
        found = join(state, summaries)
        if isinstance(found, rounds.Again):
            empty = type(state)(offset=state.offset, counts=state.counts)
            found = join(empty, summaries)
            assert isinstance(found, Plain | rounds.Sequenced)
        return found

    rounds.join = planted
    state: Any = JournalState
    state.known = property(lambda _: {})


def keep_rows() -> None:
    """Backfills, and lets the rows stay that are made again."""
    publish: Any = amending.publish_replacing

    def planted(handle: Any, start: Any, _: Any, files: Any, **more: Any) -> Any:
        return publish(handle, start, RowRanges({}), files, **more)

    amending.publish_replacing = planted


def merge_the_first() -> None:
    """Takes the first message of a key for the last one."""
    statements: Any = last_rows
    planted = statements._LAST.replace("_begin DESC", "_begin ASC")
    assert planted != statements._LAST
    statements._LAST = planted
