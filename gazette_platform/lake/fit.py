"""Do fragments hold what the table spec says? Findings of kind ``fit``.

Engines give NULL where a value is missing or of another type, and fail on a damaged file. Each new
fragment is read once to count its rows; what that shows is told here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from gazette_platform.errors import DataError, LakeError, SchemaMismatch
from gazette_platform.lake.check import check_sample
from gazette_platform.lake.content import FragmentContent, FragmentCount, local_path
from gazette_platform.lake.findings import Finding
from gazette_platform.lake.planning import directory_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gazette_platform.lake.layout import StoreRoots
    from gazette_platform.lake.source import FragmentSource
    from gazette_platform.lake.table_spec import TableSpec
    from gazette_platform.protocol import Fragment

__all__ = [
    "FitChecker",
    "damage",
    "json_columns",
    "misfit",
    "missing_columns",
    "without_columns",
]

_NAMES_SHOWN = 12


def mark(spec: TableSpec, fragment: Fragment, location: str) -> tuple[str, ...]:
    """What a finding depends on: the spec, and the file's size and time if it is local."""
    path = local_path(fragment, location)
    try:
        info = path.stat() if path is not None else None
    except OSError:
        info = None
    return (spec.digest, f"{info.st_size} {info.st_mtime_ns}" if info is not None else "")


def damage(spec: TableSpec, fragment: Fragment, location: str, error: DataError) -> Finding:
    """The finding that a fragment cannot be read."""
    return Finding(
        kind="fit",
        journal=fragment.journal,
        begin=fragment.begin,
        end=fragment.end,
        text=f"{error}; until then queries that read it fail, and others do not",
        values=mark(spec, fragment, location),
    )


def misfit(
    spec: TableSpec, fragment: Fragment, location: str, counted: FragmentCount
) -> Finding | None:
    """The finding that a fragment's first lines do not fit `spec`; None if they do."""
    try:
        check_sample(spec, counted.head, f"fragment {fragment.content_path}")
    except SchemaMismatch as err:
        return Finding(
            kind="fit",
            journal=fragment.journal,
            begin=fragment.begin,
            end=fragment.end,
            text=str(err),
            values=mark(spec, fragment, location),
        )
    return None


def missing_columns(spec: TableSpec, columns: Iterable[str]) -> Finding | None:
    """The finding that no record has had `columns`; None if there are none."""
    names = tuple(sorted(columns))
    if not names:
        return None
    shown = ", ".join(names[:_NAMES_SHOWN]) + (" …" if len(names) > _NAMES_SHOWN else "")
    return Finding(
        kind="fit",
        journal="",
        begin=0,
        end=0,
        is_error=False,
        text=f"{spec.name}: no record so far has {shown}, so both engines give NULL there: correct "
        "the name in `columns` of the table spec (the case of keys matters to Spark), or leave the "
        "column out; this goes by itself when a record has it",
        values=names,
    )


@final
class FitChecker:
    """Reads fragments again. Holds no state.

    Args:
        source: lists fragments.
        roots: where fragment stores lie for engines.
    """

    def __init__(self, source: FragmentSource, roots: StoreRoots) -> None:
        self._source = source
        self._roots = roots
        self._content = FragmentContent(source)

    def look_again(self, spec: TableSpec, finding: Finding) -> Finding | None:
        """What is wrong now with the fragment of `finding`; None if it is well, or gone.

        Raises: GazetteError: a server cannot be reached.
        """
        for fragment in self._source.fragments(finding.journal, finding.begin, 1):
            if (fragment.begin, fragment.end) != (finding.begin, finding.end):
                continue
            location = self._roots.location(fragment.backing_store, directory_of(fragment))
            if mark(spec, fragment, location) == finding.values:
                return finding  # neither the file nor the spec has changed
            return self.check(spec, fragment)[0]
        return None

    def check(self, spec: TableSpec, fragment: Fragment) -> tuple[Finding | None, frozenset[str]]:
        """Read a persisted fragment. Returns: what is wrong with it, and the columns it has."""
        if not fragment.backing_store:
            return None, frozenset()
        location = self._roots.location(fragment.backing_store, directory_of(fragment))
        try:
            counted = self._content.count(fragment, location, columns=json_columns(spec))
        except DataError as err:
            return damage(spec, fragment, location, err), frozenset()
        except LakeError:
            return None, frozenset()  # gone, as `counts_agree` tells
        return misfit(spec, fragment, location, counted), counted.columns


def json_columns(spec: TableSpec) -> frozenset[str]:
    """Keys to look for in records: CSV has columns by position only."""
    return frozenset(c.key for c in spec.columns) if spec.format == "json" else frozenset()


def without_columns(finding: Finding, spec: TableSpec, seen: Iterable[str]) -> Finding | None:
    """A finding of `missing_columns` once `seen` have been seen; None if nothing is left of it."""
    return missing_columns(spec, (set(finding.values) & json_columns(spec)) - set(seen))
