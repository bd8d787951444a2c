"""What a Hive partition holds so far, kept in its own parameters in the metastore.

This makes registration idempotent by content. If the ranges cover the bytes of a fragment, it was
counted before, whatever a cursor says, so that a crash between any two steps repeats no row.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from gazette_platform.errors import LakeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["PartitionState"]

_STATE = "gazette.state"
_VERSION = 1
_FIGURES = frozenset({"numFiles", "numRows", "totalSize"})
# A parameter has 4,000 characters in the oldest metastores, which is room for 60 ranges in any case.
_RANGES_MAX = 60


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """Totals of a Hive partition. ``journal`` is empty while the partition holds nothing."""

    journal: str = ""
    ranges: tuple[tuple[int, int], ...] = ()
    """Covered bytes [begin, end) of the journal, merged, ascending."""
    fragments: int = 0
    rows: int | None = 0
    """Lines; None if some fragment could not be read."""
    content_bytes: int = 0
    """Decompressed bytes of all fragments. If fragments overlap, the ranges cover fewer."""
    stored_bytes: int | None = 0
    """Size of the files; None if they are not on this machine."""

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, str]) -> PartitionState:
        """The state kept in `parameters`; empty if there is none.

        Raises: LakeError: there is one, but it cannot be read.
        """
        text = parameters.get(_STATE)
        if text is None:
            return cls()
        try:
            raw = json.loads(text)
            if raw["version"] != _VERSION:
                raise LakeError(
                    f"parameter {_STATE} has version {raw['version']}, this release knows "
                    f"{_VERSION}: update the platform"
                )
            return cls(
                journal=raw["journal"],
                ranges=tuple((begin, end) for begin, end in raw["ranges"]),
                fragments=raw["fragments"],
                rows=raw["rows"],
                content_bytes=raw["content_bytes"],
                stored_bytes=raw["stored_bytes"],
            )
        except (ValueError, KeyError, TypeError) as err:
            raise LakeError(
                f"parameter {_STATE} of a Hive partition was changed by others: {text[:80]!r}; drop "
                "that Hive partition (no file is deleted), and reset the sensor's cursor"
            ) from err

    def to_parameters(self) -> dict[str, str]:
        """Parameters that keep the state, and the engines' statistics."""
        state = {
            "version": _VERSION,
            "journal": self.journal,
            "ranges": self.ranges,
            "fragments": self.fragments,
            "rows": self.rows,
            "content_bytes": self.content_bytes,
            "stored_bytes": self.stored_bytes,
        }
        # Without these the metastore would list the directory at every change, to count its files.
        parameters = {
            _STATE: json.dumps(state, separators=(",", ":")),
            "DO_NOT_UPDATE_STATS": "true",
            "numFiles": str(self.fragments),
        }
        if self.rows is not None:
            parameters["numRows"] = str(self.rows)
        if self.stored_bytes is not None:
            parameters["totalSize"] = str(self.stored_bytes)
        return parameters

    def within(self, parameters: Mapping[str, str]) -> dict[str, str]:
        """`parameters` with this state in place of the one that they keep; others' stay.

        A figure that is not known any more must not stay behind: engines would believe it.
        """
        kept = {k: v for k, v in parameters.items() if k not in _FIGURES}
        return {**kept, **self.to_parameters()}

    def covers(self, begin: int, end: int) -> bool:
        """Whether bytes [begin, end) are in one range."""
        return any(b <= begin and end <= e for b, e in self.ranges)

    def adding(
        self, journal: str, begin: int, end: int, *, rows: int | None, stored_bytes: int | None
    ) -> PartitionState:
        """The state with one more fragment."""
        return PartitionState(
            journal=journal,
            ranges=_merged((*self.ranges, (begin, end))),
            fragments=self.fragments + 1,
            rows=None if self.rows is None or rows is None else self.rows + rows,
            content_bytes=self.content_bytes + end - begin,
            stored_bytes=(
                None
                if self.stored_bytes is None or stored_bytes is None
                else self.stored_bytes + stored_bytes
            ),
        )

    def without(
        self,
        begin: int,
        end: int,
        *,
        rows: int,
        stored_bytes: int,
        left: Iterable[tuple[int, int]],
    ) -> PartitionState:
        """The state without one fragment that was counted.

        Args:
            begin: of the fragment; journal offset.
            end: of the fragment; journal offset.
            rows: in it.
            stored_bytes: size of its file.
            left: spans of the fragments that stay.
        """
        kept = [
            (max(b, low), min(e, high))
            for b, e in self.ranges
            for low, high in left
            if max(b, low) < min(e, high)
        ]
        return PartitionState(
            journal=self.journal,
            ranges=_merged(tuple(kept)),
            fragments=max(0, self.fragments - 1),
            rows=None if self.rows is None else max(0, self.rows - rows),
            content_bytes=max(0, self.content_bytes - (end - begin)),
            stored_bytes=(
                None if self.stored_bytes is None else max(0, self.stored_bytes - stored_bytes)
            ),
        )

    @property
    def covered_bytes(self) -> int:
        """Distinct bytes of the journal."""
        return sum(end - begin for begin, end in self.ranges)

    @property
    def overlap_bytes(self) -> int:
        """Bytes that more than one fragment holds: rows that raw queries see twice."""
        return max(0, self.content_bytes - self.covered_bytes)

    @property
    def data_version(self) -> str:
        """Text that changes exactly when the covered bytes do, or those that are there twice."""
        covered = " ".join(f"{begin}-{end}" for begin, end in self.ranges)
        return f"{covered} twice-{self.overlap_bytes}" if self.overlap_bytes else covered


def _merged(ranges: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    if len(merged) > _RANGES_MAX:
        # There are more than sixty holes in one hour of one journal. The smallest one is taken as
        # covered, so that the state stays small. Engines still see all files, but a fragment that
        # later fills just this hole is not counted.
        gaps = [merged[i + 1][0] - merged[i][1] for i in range(len(merged) - 1)]
        at = gaps.index(min(gaps))
        merged[at : at + 2] = [(merged[at][0], merged[at + 1][1])]
    return tuple(merged)
