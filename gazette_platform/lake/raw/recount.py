"""Count the rows that a prune, or a file that was set aside, left of a Hive partition.

Rows of what is gone cannot be read any more, so the rows of what is left are counted again. That may be more than a tick has
time for, and accounts have no room for the rows of each fragment. So the counts of fragments, which never change, are
remembered in the process: each look adds some, until the sum is complete. No lock is held meanwhile.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING, Final, final

from gazette_platform.errors import DataError, LakeError
from gazette_platform.lake.raw.partition_state import PartitionState
from gazette_platform.lake.spec.layout import directory_of
from gazette_platform.ops.lru import Lru

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gazette_platform.lake.reading.fragment_content import FragmentContent
    from gazette_platform.lake.reading.scanners import LineScanner
    from gazette_platform.protocol import Fragment

# Fragments that are remembered: some 30 MB.
_FRAGMENTS_MAX: Final = 100_000
# Of counts that go on where the look before ended.
_OWNER: Final = "what a prune left"


@final
class Recount:
    """Counts of one look.

    Args:
        content: reads fragments.
        sizes: of files, by directory and name.
        content_bytes_max: decompressed bytes to read; one larger fragment alone is allowed.
        is_over: whether time is up.
        scanner: makes what looks for headers in a fragment, which are not rows.

    Attributes:
        is_complete: False: another look goes on where this one ended.
    """

    def __init__(
        self,
        content: FragmentContent,
        sizes: Mapping[tuple[str, str], int],
        content_bytes_max: int = sys.maxsize,
        is_over: Callable[[], bool] = lambda: False,
        *,
        scanner: Callable[[], LineScanner | None] = lambda: None,
    ) -> None:
        self._content = content
        self._sizes = sizes
        self._bytes_left = content_bytes_max
        self._has_counted = False
        self._is_over = is_over
        self._scanner = scanner
        self.is_complete = True

    def state(
        self, before: PartitionState, kept: Sequence[Fragment], location: str, created: int
    ) -> PartitionState | None:
        """The accounts of what is left of a Hive partition.

        Of more fragments than can be remembered the rows are not known.

        Args:
            before: its accounts.
            kept: the fragments that are left.
            location: directory of their files, as engines know it.
            created: which journal they are of (`protocol.offsets`).

        Returns: None: there was no time for all, or a file cannot be read; another look finds out.
        """
        is_countable = len(kept) <= _FRAGMENTS_MAX
        state = PartitionState(
            journal=before.journal,
            aside=before.aside,
            # What a repair is at, or was killed at, is still to be found by audits.
            moving=before.moving,
            # Rollups know its bytes under the former identities, too.
            created=before.created,
            formerly=before.formerly,
        )
        for fragment in kept:
            if state.covers(fragment.begin, fragment.end):
                continue
            rows = self._rows(fragment, location) if is_countable else _Rows(0)
            if rows is None:
                return None
            state = state.adding(
                fragment.journal,
                fragment.begin,
                fragment.end,
                rows=rows.count,
                stored_bytes=self._sizes.get((directory_of(fragment), fragment.content_name)),
                stamp=rows.stamp,
                created=created,
                unfit=before.unfit_at(fragment.begin, fragment.end),
            )
        if kept:
            # At most: of fragments that are not noted it is not known which went.
            state = replace(state, unfit_more=before.unfit_more)
        return state if is_countable else state.with_known(None)

    def _rows(self, fragment: Fragment, location: str) -> _Rows | None:
        """None: not now."""
        key = (location, fragment.content_name)
        known = _counted.get(key)
        # Fragments never change, so a count holds for as long as the process lives.
        if known is not None:
            return known
        # One at least, so that a look that was late from the start gets on, too.
        if self._has_counted and (self._is_over() or fragment.content_length > self._bytes_left):
            self.is_complete = False
            return None
        self._has_counted = True
        self._bytes_left -= fragment.content_length
        content = self._content
        try:
            rows = content.count(
                fragment, location, scanner=self._scanner(), is_over=self._is_over, owner=_OWNER
            ).rows
        except DataError:
            rows = None  # damaged: the check `fits_spec` reports it
        except LakeError:
            # The file went away between listing and reading: another look will see a newer listing.
            return None
        if rows is None and content.is_unfinished(fragment, location, _OWNER):
            self.is_complete = False
            return None
        found = _Rows(rows, "" if rows is not None else content.stamp(fragment, location).text)
        _counted.put(key, found)
        return found


@final
@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of a fragment; None: its file is damaged, or no look has time for it."""

    count: int | None
    stamp: str = ""
    """Of the file, if they are not known."""


@final
class _Counted:
    """Rows of the fragments that were counted last, by location and name. For all threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._rows: Lru[tuple[str, str], _Rows] = Lru(_FRAGMENTS_MAX)

    def get(self, key: tuple[str, str]) -> _Rows | None:
        with self._lock:
            return self._rows.get(key)

    def put(self, key: tuple[str, str], rows: _Rows) -> None:
        with self._lock:
            self._rows.put(key, rows)


_counted: Final = _Counted()
