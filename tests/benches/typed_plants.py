"""Faults of a run's own, for `Life.plant`: `tests.typed_crash` has to find each of them."""

from __future__ import annotations

from typing import Any

from pyiceberg.table.update import AssertTableUUID

from gazette_platform.lake.typed import publishing, quarantined, rounds, running
from gazette_platform.lake.typed.screening import Plain
from gazette_platform.lake.typed.state import JournalState

__all__ = ["forget_producers", "keep_no_fence", "publish_again", "settle_nothing"]


def keep_no_fence() -> None:
    """Publishes whoever has published meanwhile."""

    def nothing(metadata: Any, *_: Any) -> Any:
        return AssertTableUUID(uuid=metadata.table_uuid)

    publishing.require_start = lambda *_: None
    publishing.still_at = nothing


def publish_again() -> None:
    """Asks again under another name, so that what was published before is published once more."""
    published: Any = running.publish_files

    def planted(door: Any, _: Any, files: Any, run: str, properties: Any) -> Any:
        planted.count += 1  # type: ignore[attr-defined]
        start = publishing.progress_of(door.load().metadata)
        return published(door, start, files, f"{run}-{planted.count}", properties)  # type: ignore[attr-defined]

    planted.count = 0  # type: ignore[attr-defined]
    running.publish_files = planted


def settle_nothing() -> None:
    """Leaves quarantined records where they are."""
    running.settle_quarantine = lambda *_: False
    quarantined.settle_quarantine = lambda *_: False


def forget_producers() -> None:
    """Compares tasks with nothing that was there before."""
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
