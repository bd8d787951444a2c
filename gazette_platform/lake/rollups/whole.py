"""Is the raw content that slices are made of still there? Asked of the store, where files go before accounts do.

Accounts of a raw table follow a prune minutes later, when brokers know of it. A slice that was made again in
between would hold less than its cover says, and the rows of before would be lost. So the files of its parts are looked
for before, and again when its rows were read: files do not come back, so what is there now was there then.

Cost: a listing of each directory that a slice is made of; engines that read it make the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyarrow.fs import FileSelector  # type: ignore[import-untyped]

from gazette_platform.errors import LakeError, ValidationError
from gazette_platform.lake.rollups.covers import merged_ranges
from gazette_platform.protocol import parse_fragment_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gazette_platform.lake.rollups.covers import Seen, SliceCover
    from gazette_platform.lake.rollups.iceberg import IcebergTables
    from gazette_platform.lake.rollups.sources import Source

__all__ = ["lost_slices"]


def lost_slices(
    tables: IcebergTables,
    sources: Mapping[str, Source],
    made: Mapping[tuple[str, ...], SliceCover],
) -> dict[tuple[str, ...], str]:
    """Those of some slices whose raw content is no longer all in its files, each with the first such part.

    Args:
        tables: reaches the files.
        sources: by alias; where the parts of raw ones lie.
        made: the slices, and of what they are made.

    Raises: LakeError: a directory cannot be listed.
    """
    known: dict[tuple[str, str], bool] = {}
    lost: dict[tuple[str, ...], str] = {}
    for values, cover in made.items():
        for alias, parts in cover.parts.items():
            locations = sources[alias].locations if alias in sources else {}
            for name, seen in parts.items():
                if name not in locations or not seen.journal:
                    continue
                key = (alias, name)
                if key not in known:
                    known[key] = _is_whole(tables, locations[name], seen)
                if not known[key]:
                    lost.setdefault(values, f"{alias} {name}".strip())
    return lost


def _is_whole(tables: IcebergTables, location: str, seen: Seen) -> bool:
    held = merged_ranges(_spans(tables, location, seen.journal))
    return all(any(b <= begin and end <= e for b, e in held) for begin, end in seen.ranges)


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
            f"cannot list {location}, so nobody knows whether its content is still there: {err}"
        ) from err
    for entry in entries:
        try:
            fragment = parse_fragment_path(journal, entry.base_name)
        except ValidationError:
            continue  # no fragment
        yield fragment.begin, fragment.end
