"""Is the raw content that slices are made of still there? Asked of the store, where files go before accounts do.

Accounts of a raw table follow a prune minutes later, when brokers know of it. A slice that was made again in
between would hold less than its cover says, and the existing rows would be lost. So the files of its parts are looked
for before, and again when its rows were read: files do not come back, so what exists now existed then.

They do come back of a store that was away, which engines read as empty. A slice that was made meanwhile would lack
rows for ever, since its cover says that it has them. So a part without any file is waited for, also by
slices that are made for the first time, or that may shrink: either the store returns, or accounts follow the prune.

Cost: a listing of each directory that a slice is made of; engines that read it make the same.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

from pyarrow.fs import FileSelector  # type: ignore[import-untyped]

from gazette_platform.errors import LakeError, ValidationError
from gazette_platform.lake.rollups.covers import merged_ranges
from gazette_platform.protocol import parse_fragment_path

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from gazette_platform.lake.rollups.covers import Seen, SliceCover
    from gazette_platform.lake.rollups.iceberg import IcebergTables
    from gazette_platform.lake.rollups.sources import Source

__all__ = ["Lost", "lost_slices"]

# Directories that are listed at a time: a listing of an object store takes some 50 ms, nearly all of it waiting.
_LISTINGS_MAX: Final = 8


@final
@dataclass(frozen=True, slots=True)
class Lost:
    """Why a slice is not made."""

    part: str
    """Sources whose content is gone: alias and name."""
    is_away: bool
    """Whether all of it is gone, as of a store that is away."""


def lost_slices(
    tables: IcebergTables,
    sources: Mapping[str, Source],
    made: Mapping[tuple[str, ...], SliceCover],
    *,
    again: Container[tuple[str, ...]],
) -> dict[tuple[str, ...], Lost]:
    """Those of some slices whose raw content is not in its files: not all of it, or none of a part.

    Args:
        tables: reaches the files.
        sources: by alias; where the parts of raw ones lie.
        made: the slices, and of what they are made.
        again: those that need all content; the others need some of each part.

    Raises: LakeError: a directory cannot be listed.
    """
    parts = {
        (alias, name): seen
        for cover in made.values()
        for alias, by_name in cover.parts.items()
        for name, seen in by_name.items()
        if seen.journal and alias in sources and name in sources[alias].locations
    }
    with ThreadPoolExecutor(_LISTINGS_MAX, "gazette-rollup-files") as executor:
        found = executor.map(
            lambda part: _look(tables, sources[part[0]].locations[part[1]], parts[part]), parts
        )
        known = dict(zip(parts, found, strict=True))
    lost: dict[tuple[str, ...], Lost] = {}
    for values, cover in made.items():
        for alias, by_name in cover.parts.items():
            for name in by_name:
                is_whole, is_away = known.get((alias, name), (True, False))
                if is_away or (not is_whole and values in again and values not in lost):
                    lost[values] = Lost(f"{alias} {name}".strip(), is_away)
    return lost


def _look(tables: IcebergTables, location: str, seen: Seen) -> tuple[bool, bool]:
    """Whether all content of a part is in its files, and whether none is."""
    held = merged_ranges(_spans(tables, location, seen.journal))
    is_whole = all(any(b <= begin and end <= e for b, e in held) for begin, end in seen.ranges)
    is_away = not any(b < end and begin < e for b, e in held for begin, end in seen.ranges)
    return is_whole, is_away


def _spans(tables: IcebergTables, location: str, journal: str) -> Iterable[tuple[int, int]]:
    """Offsets of the fragments in a directory."""
    io: Any = tables.io(location)  # of PyArrow, as for all schemes that stores have
    scheme, netloc, path = io.parse_location(location)
    try:
        entries = io.fs_by_scheme(scheme, netloc).get_file_info(
            FileSelector(path, allow_not_found=True)
        )
    except OSError as err:
        raise LakeError(
            f"cannot list {location}, so it is unknown whether its content still exists: {err}"
        ) from err
    for entry in entries:
        try:
            fragment = parse_fragment_path(journal, entry.base_name)
        except ValidationError:
            continue  # no fragment
        yield fragment.begin, fragment.end
