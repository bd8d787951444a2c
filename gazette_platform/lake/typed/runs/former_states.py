"""States that a typed table had: those of snapshots that are still there."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, final

from gazette_platform.lake.typed.catalog.publishing import summary_of
from gazette_platform.lake.typed.catalog.side_files import STATE, read_side_file
from gazette_platform.lake.typed.planning.state import TypedState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gazette_platform.lake.typed.tables.table import TypedTable

__all__ = ["FormerStates"]


@final
class FormerStates:
    """States of a table, read as they are asked for, each once. A continuous table has thousands.

    Args:
        table: as it is now.
    """

    def __init__(self, table: TypedTable) -> None:
        self._table = table
        metadata = table.metadata
        snapshots = sorted(metadata.snapshots, key=lambda one: one.sequence_number or 0)
        told = [summary_of(metadata, one.snapshot_id).get(STATE, "") for one in snapshots]
        self._paths = [path for path in told if path]
        self._known: dict[str, TypedState] = {}

    def before(self, wanted: Mapping[str, Sequence[tuple[int, int]]]) -> list[TypedState]:
        """The newest states before ranges of journals, as `plan_backfill` takes them, and that of the table.

        Each has such journals alone that the table has read farther. Of a table that was rolled back, states of what
        came behind are passed over.

        Raises: LakeError: a state cannot be read.
        """
        found = [self._table.state]
        for journal, ranges in sorted(wanted.items()):
            for begin, _ in ranges:
                now = self._table.state.journals.get(journal)
                shared_to = 0 if now is None else now.shared_to
                state = self._newest(journal, (shared_to, begin))
                one = state.journals.get(journal) if state is not None else None
                if one is not None and now is not None and one.offset <= min(begin, now.offset):
                    found.append(TypedState({journal: one}))
        return found

    def _newest(self, journal: str, place: tuple[int, int]) -> TypedState | None:
        """Offsets only grow from snapshot to snapshot of one journal, so few have to be looked at.

        When the table restarted a journal, offsets began again, and what they share with the former one grew.
        """
        index = bisect_right(self._paths, place, key=lambda path: self._place(path, journal))
        return self._read(self._paths[index - 1]) if index else None

    def _place(self, path: str, journal: str) -> tuple[int, int]:
        state = self._read(path).journals.get(journal)
        return (-1, -1) if state is None else (state.shared_to, state.offset)

    def _read(self, path: str) -> TypedState:
        if path not in self._known:
            content = read_side_file(self._table.io, path, self._table.name)
            self._known[path] = TypedState.decode(content, where=path)
        return self._known[path]
