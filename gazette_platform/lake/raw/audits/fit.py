"""Do fragments hold what the table spec says? Findings of kind ``fit``.

Engines give NULL where a value is missing, read one of another type each in its own way, and fail on
a damaged file. Each new fragment is read once to count its rows; this module reports what that shows.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple, final

from gazette_platform.errors import (
    DataError,
    GazetteError,
    LakeError,
    SchemaMismatch,
    ValidationError,
)
from gazette_platform.lake.raw.audits.fit_summary import partition_fit, table_finding
from gazette_platform.lake.raw.partition_state import PartitionState
from gazette_platform.lake.raw.reconcile import Finding
from gazette_platform.lake.reading.check import check_sample
from gazette_platform.lake.reading.content import FragmentContent, FragmentCount, local_path
from gazette_platform.lake.reading.source import all_fragments
from gazette_platform.lake.reading.values import CsvScanner, JsonScanner
from gazette_platform.lake.spec.layout import (
    Layout,
    directory_of,
    is_aside,
    partition_columns,
    partition_key,
)
from gazette_platform.lake.spec.rules import EXACT_SUFFIX, UnfitFragment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gazette_platform.lake.reading.content import Stamp
    from gazette_platform.lake.reading.source import FragmentSource
    from gazette_platform.lake.reading.values import LineScanner, Unfit, ValueReport
    from gazette_platform.lake.spec.layout import StoreRoots
    from gazette_platform.lake.spec.table_spec import TableSpec
    from gazette_platform.protocol import Fragment

_NAMES_SHOWN = 12
# Seconds for one fragment within a tick, which it must not use up.
_LOOK_S: Final = 10.0
# Of one journal: a store that is away fails each of its fragments.
_ERRORS_MAX: Final = 5


def value_scanner(spec: TableSpec) -> LineScanner:
    """A scanner of the values of one fragment."""
    return CsvScanner(spec) if spec.format == "csv" else JsonScanner(spec)


def header_scanner(spec: TableSpec) -> LineScanner | None:
    """A scanner that counts header rows of one fragment; None if the table has none."""
    return CsvScanner(spec) if spec.header else None


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


def unread(spec: TableSpec, fragment: Fragment, stamp: tuple[str, ...] | None = None) -> Finding:
    """The finding that a fragment is too large for its values to be looked at within a tick.

    Args:
        stamp: as long as this is its `mark`, it is not looked at again; None: it is, once.
    """
    return Finding(
        kind="fit",
        journal=fragment.journal,
        begin=fragment.begin,
        end=fragment.end,
        is_error=False,
        is_checked=False,
        text=f"not checked: {spec.name}: fragment {fragment.content_path} ({fragment.content_length} "
        "bytes) is more than a tick has time to read, so not all of its values were looked at, and its "
        "rows are not known until a tick has: execute the check, or `gazctl lake check`, which take "
        "their time (a smaller `length` of the journal's fragments avoids this)",
        values=stamp if stamp is not None else (spec.digest, "unread"),
    )


def misfit(
    spec: TableSpec, fragment: Fragment, location: str, counted: FragmentCount
) -> Finding | None:
    """The finding that records of a fragment do not fit `spec`; None if all do.

    It is a warning: whether they are too many is a question of the Hive partition (`findings.table_finding`).
    """
    where = f"fragment {fragment.content_path}"
    mismatch = _mismatch(spec, counted, where)
    texts = [mismatch] if mismatch else []
    if counted.values is not None and counted.values.count:
        is_partitioned = "=" in directory_of(fragment)
        texts.append(_counts(spec, fragment, counted.values, is_partitioned=is_partitioned))
    if not texts:
        return None
    return Finding(
        kind="fit",
        journal=fragment.journal,
        begin=fragment.begin,
        end=fragment.end,
        is_error=False,
        unfit=_unfit_records(counted, mismatch),
        text="; ".join(texts),
        values=mark(spec, fragment, location),
    )


def unfit_fragment(
    spec: TableSpec,
    fragment: Fragment,
    counted: FragmentCount,
    stamp: Callable[[], Stamp] | None = None,
) -> UnfitFragment | None:
    """What accounts note of a fragment that was read to its end; None if all its records fit.

    Args:
        stamp: asks for that of its file, if it is to be noted.
    """
    mismatch = _mismatch(spec, counted, "it")
    records = _unfit_records(counted, mismatch)
    if not records or counted.rows is None:
        return None
    values = counted.values
    found = "; ".join(_found(spec, values, fragment.begin)) if values is not None else ""
    return UnfitFragment(
        fragment.begin,
        fragment.end,
        records,
        since=fragment.mod_time,
        what=found or mismatch,
        mark=unfit_mark(spec, stamp()) if stamp is not None else "",
    )


def unfit_mark(spec: TableSpec, stamp: Stamp) -> str:
    """What a count of unfit records depends on: the columns of the spec, and the file."""
    return f"{spec.digest[:8]} {stamp.text}"


def is_of_spec(spec: TableSpec, unfit: UnfitFragment) -> bool:
    """Whether a fragment was counted by the columns that the spec has now."""
    return unfit.mark.partition(" ")[0] == spec.digest[:8]


def _mismatch(spec: TableSpec, counted: FragmentCount, where: str) -> str:
    """How the first records of a fragment differ from `spec` altogether; empty if some fit."""
    try:
        check_sample(spec, counted.head, where)
    except SchemaMismatch as err:
        return str(err)
    return ""


def _unfit_records(counted: FragmentCount, mismatch: str) -> int:
    values = counted.values
    # Records without any column of the spec have no value that does not fit.
    if mismatch and (values is None or not values.columns):
        return counted.rows or 1
    return values.records if values is not None else 0


def _counts(
    spec: TableSpec, fragment: Fragment, values: ValueReport, *, is_partitioned: bool
) -> str:
    """What does not fit, in words."""
    found = "; ".join(_found(spec, values, fragment.begin))
    breaking = values.breaking if is_partitioned else values.breaking_unpartitioned
    text = (
        f"{spec.name}: fragment {fragment.content_path} holds {values.count} values or lines that do not "
        f"fit, which Trino and Spark read differently, or as NULL: {found}. {_advice(values)}"
    )
    if breaking:
        text += (
            f". Trino's JSON reader fails at a value of another shape, so Trino shows {_some(breaking)} of "
            f"{spec.name} as JSON text. {spec.name}{EXACT_SUFFIX} has the declared types, and NULL for these "
            "values only, as Spark and `gazctl sql` have"
        )
    return text


def _found(spec: TableSpec, values: ValueReport, begin: int) -> list[str]:
    """What does not fit, column by column, then by what is wrong with lines."""

    def times(unfit: Unfit) -> str:
        example = f" such as {unfit.shown}" if unfit.example else ""
        return f"{unfit.count},{example} at offset {begin + unfit.offset}"

    types = {c.name: c.type for c in spec.columns}
    most = sorted(values.columns.items(), key=lambda item: -item[1].count)
    found = [f"{name} ({types[name]}): {times(unfit)}" for name, unfit in most[:_NAMES_SHOWN]]
    if len(most) > _NAMES_SHOWN:
        rest = sum(unfit.count for _, unfit in most[_NAMES_SHOWN:])
        found.append(f"{len(most) - _NAMES_SHOWN} other columns: {rest}")
    return found + [f"{what}: {times(unfit)}" for what, unfit in values.lines.items()]


def _advice(values: ValueReport) -> str:
    """Say what to do about values that do not fit; about lines, if there are only those."""
    if not values.columns:
        return "No type takes such lines: correct what writes them"
    return "Correct the types in the table spec (`string` takes any value), or how they are written"


def _some(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:_NAMES_SHOWN]) + (" …" if len(ordered) > _NAMES_SHOWN else "")


def missing_columns(spec: TableSpec, columns: Iterable[str]) -> Finding | None:
    """The finding that no record has had `columns`; None if there are none."""
    names = tuple(sorted(columns))
    if not names:
        return None
    return Finding(
        kind="fit",
        journal="",
        begin=0,
        end=0,
        is_error=False,
        text=f"{spec.name}: no record so far has {_some(names)}, so both engines give NULL there: correct "
        "the name in `columns` of the table spec (the case of keys matters to Spark), or leave the "
        "column out; this goes by itself when a record has it",
        values=names,
    )


def _never() -> bool:
    return False


class FragmentFit(NamedTuple):
    """What reading a fragment again showed."""

    finding: Finding | None = None
    """What is wrong with it."""
    columns: frozenset[str] = frozenset()
    """Those that its records have."""
    rows: int | None = None
    unfit: UnfitFragment | None = None


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
        ends_at = time.monotonic() + _LOOK_S

        def is_over() -> bool:
            return time.monotonic() > ends_at

        for fragment in self._source.fragments(finding.journal, finding.begin, 1):
            # Brokers list a larger fragment now that took its place. It was looked at when it was registered.
            if (fragment.begin, fragment.end) != (finding.begin, finding.end):
                continue
            location = self._roots.location(fragment.backing_store, directory_of(fragment))
            if mark(spec, fragment, location) == finding.values:
                return finding  # neither the file nor the spec has changed
            return self.check(spec, fragment, is_over=is_over).finding
        return None

    def check(
        self, spec: TableSpec, fragment: Fragment, *, is_over: Callable[[], bool] = _never
    ) -> FragmentFit:
        """Read a persisted fragment.

        Args:
            is_over: whether time is up; then the finding says so.
        """
        if not fragment.backing_store:
            return FragmentFit()
        location = self._roots.location(fragment.backing_store, directory_of(fragment))
        try:
            counted = self._content.count(
                fragment,
                location,
                columns=json_columns(spec),
                scanner=value_scanner(spec),
                is_over=is_over,
            )
        except DataError as err:
            return FragmentFit(damage(spec, fragment, location, err))
        except LakeError:
            return FragmentFit()  # gone, as `counts_agree` reports
        found = misfit(spec, fragment, location, counted)
        if counted.rows is None:
            found = unread(spec, fragment, mark(spec, fragment, location))
        unfit = unfit_fragment(spec, fragment, counted)
        return FragmentFit(found, counted.columns, counted.rows, unfit)


def json_columns(spec: TableSpec) -> frozenset[str]:
    """Keys to look for in records: CSV has columns by position only."""
    return frozenset(c.key for c in spec.columns) if spec.format == "json" else frozenset()


def without_columns(finding: Finding, spec: TableSpec, seen: Iterable[str]) -> Finding | None:
    """A finding of `missing_columns` once `seen` have been seen; None if nothing is left of it."""
    return missing_columns(spec, (set(finding.values) & json_columns(spec)) - set(seen))


def audit_content(
    spec: TableSpec,
    source: FragmentSource,
    roots: StoreRoots,
    *,
    on_error: Callable[[str, GazetteError], object] | None = None,
) -> Iterator[Finding]:
    """What of every fragment does not fit the spec, then what that means for rollups; as `audit.audit_index`."""
    fit_checker = FitChecker(source, roots)
    missing = set(json_columns(spec))
    is_whole = True
    # Of what is in each directory, as accounts would count it.
    states: dict[str, PartitionState] = {}
    for journal in source.journals(spec.label_selector):
        errors = 0
        fragments = all_fragments(source, journal.name)
        while errors < _ERRORS_MAX:
            try:
                fragment = next(fragments, None)
                if fragment is None:
                    break
                if is_aside(fragment):
                    continue
                found = fit_checker.check(spec, fragment)
            except GazetteError as err:
                if on_error is None:
                    raise
                on_error(journal.name, err)
                errors += 1
                is_whole = False
                continue
            if found.finding is not None:
                yield found.finding
            missing -= found.columns
            if fragment.backing_store:
                key = _key(spec, fragment)
                states[key] = states.get(key, PartitionState()).adding(
                    fragment.journal,
                    fragment.begin,
                    fragment.end,
                    rows=found.rows,
                    stored_bytes=None,
                    unfit=found.unfit,
                )
    fits = [partition_fit(key, state) for key, state in sorted(states.items())]
    unfit = table_finding(spec, [fit for fit in fits if fit is not None])
    if unfit is not None:
        yield unfit
    lost = missing_columns(spec, missing)
    if lost is not None and is_whole:
        yield lost


def _key(spec: TableSpec, fragment: Fragment) -> str:
    """The key of the Hive partition of a fragment; its directory, if that is not of the table's layout."""
    directory = directory_of(fragment)
    try:
        layout = Layout.of_directory(directory)
        columns = partition_columns(spec, layout)
        texts = layout.match(directory)
        values = [column.value(text) for column, text in zip(columns, texts, strict=True)]
    except (LakeError, ValidationError):
        return directory
    return partition_key(columns, values) or "all"
