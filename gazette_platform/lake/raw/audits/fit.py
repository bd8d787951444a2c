"""Do fragments hold what the table spec says, and what do unfit records mean? Findings of kind ``fit``.

Engines give NULL where a value is missing, read one of another type each in its own way, and fail on
a damaged file. Each new fragment is read once to count its rows; this module reports what that shows.
`gazctl lake list` and `check`, and Dagster's check `fits_spec`, which rollups heed, show what `table_finding` says of a table.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from gazette_platform.errors import (
    DataError,
    GazetteError,
    LakeError,
    SchemaMismatch,
    ValidationError,
)
from gazette_platform.lake.raw.partition_state import PartitionState
from gazette_platform.lake.raw.reconcile import Finding
from gazette_platform.lake.reading.fragment_content import (
    FragmentContent,
    FragmentCount,
    local_path,
)
from gazette_platform.lake.reading.fragment_source import all_fragments
from gazette_platform.lake.reading.sample_check import check_sample
from gazette_platform.lake.reading.scanners import CsvScanner, JsonScanner
from gazette_platform.lake.spec.layout import (
    Layout,
    directory_of,
    is_aside,
    partition_columns,
    partition_key,
)
from gazette_platform.lake.spec.rules import EXACT_SUFFIX, NEVER, UnfitFragment, verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from gazette_platform.lake.reading.fragment_content import Stamp
    from gazette_platform.lake.reading.fragment_source import FragmentSource
    from gazette_platform.lake.reading.scanners import LineScanner, Unfit, ValueReport
    from gazette_platform.lake.spec.layout import StoreRoots
    from gazette_platform.lake.spec.rules import Threshold, Verdict
    from gazette_platform.lake.spec.table_spec import TableSpec
    from gazette_platform.protocol import Fragment

_NAMES_SHOWN = 12
_SHOWN: Final = 3
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


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFit:
    """How much of a Hive partition does not fit."""

    key: str
    """As `layout.partition_key` writes it."""
    journal: str
    rows: int
    """Records, as far as they are counted."""
    unfit: int
    since: int = 0
    fragments: tuple[UnfitFragment, ...] = ()
    """The first ones that say what does not fit."""

    def verdict(self, threshold: Threshold) -> Verdict:
        """What it means for rollups."""
        return verdict(threshold, self.unfit, self.rows)

    @property
    def percent(self) -> float:
        """Unfit records of a hundred."""
        return 100 * self.unfit / max(self.rows, self.unfit, 1)

    def to_json(self) -> list[Any]:
        """The value as JSON values."""
        fragments = [[f.begin, f.end, f.records, f.what] for f in self.fragments]
        counts = [self.rows, self.unfit, self.since]
        return [self.key, self.journal, *counts, fragments]

    @classmethod
    def from_json(cls, raw: Any) -> PartitionFit:
        """The value whose `to_json` was `raw`. Raises: TypeError, ValueError: it is none."""
        key, journal, rows, unfit, since, fragments = raw
        return cls(
            key=str(key),
            journal=str(journal),
            rows=int(rows),
            unfit=int(unfit),
            since=int(since),
            fragments=tuple(
                UnfitFragment(int(b), int(e), int(n), what=str(what)) for b, e, n, what in fragments
            ),
        )


def partition_fit(key: str, state: PartitionState) -> PartitionFit | None:
    """How much of a Hive partition does not fit, by its accounts; None: all that is counted fits."""
    if not state.unfit_records:
        return None
    noted = state.unfit
    return PartitionFit(
        key=key,
        journal=state.journal,
        # Of known rows alone: while a file is not counted the share looks higher, so that rollups wait rather than read what
        # may be wrong.
        rows=(state.rows if state.rows is not None else state.rows_known) or 0,
        unfit=state.unfit_records,
        since=min((f.since for f in noted if f.since), default=0),
        fragments=tuple([f for f in noted if f.what][:_SHOWN]),
    )


def table_finding(
    spec: TableSpec, partitions: Iterable[PartitionFit], as_text: Collection[str] = ()
) -> Finding | None:
    """What all that does not fit of a table means, in words, with the next step; None: all fits.

    The first 300 characters say what and how to go on: evaluations of rollups show no more.

    Args:
        spec: of the table.
        partitions: with records that do not fit.
        as_text: columns that Trino reads as text because of them.
    """
    threshold = spec.unfit.threshold
    found = sorted(partitions, key=lambda p: (-p.percent, p.key))
    if not found:
        return None
    blocked = [p for p in found if p.verdict(threshold) == "blocked"]
    if blocked:
        texts = [_blocked_text(threshold, blocked), _ways_on(spec, threshold, blocked)]
    else:
        texts = [_warning_text(threshold, found), f"`gazctl lake check {spec.name}` shows all"]
    return Finding(
        kind="fit",
        journal="",
        begin=0,
        end=0,
        is_error=bool(blocked),
        text=f"{'. '.join(texts)}{_examples(blocked or found)}{_shown_as_text(spec, as_text)}",
        unfit=sum(p.unfit for p in found),
        # Not of how many records there are, which changes with each append.
        values=(str(threshold), *(f"{p.key} {p.unfit} {p.verdict(threshold)}" for p in found)),
    )


def _shown_as_text(spec: TableSpec, as_text: Collection[str]) -> str:
    if not as_text:
        return ""
    return (
        f". Trino shows {', '.join(sorted(as_text))} of {spec.name} as JSON text; {spec.name}{EXACT_SUFFIX} has "
        "the declared types"
    )


def _blocked_text(threshold: Threshold, blocked: Sequence[PartitionFit]) -> str:
    limit = f"and only {threshold} may"
    if not threshold.percent and not threshold.count:
        limit = "and none may"
    others = len(blocked) - 1
    few = "1 more Hive partition has", f"{others} more Hive partitions have"
    more = f" ({few[others > 1]} too many)" if others else ""
    return f"rollups wait: {_one(blocked[0])}, {limit}{more}"


def _warning_text(threshold: Threshold, found: Sequence[PartitionFit]) -> str:
    limit = "" if threshold.is_never else f", up to {threshold} of a Hive partition"
    rest = found[1:]
    more = f" ({sum(p.unfit for p in rest):,} more in {len(rest)} others)" if rest else ""
    return f"{_one(found[0])}{more}; rollups go on{limit}"


def _one(fit: PartitionFit) -> str:
    place = "the table" if fit.key == "all" else fit.key
    since = ""
    if fit.since:
        since = f" since {datetime.fromtimestamp(fit.since, UTC):%Y-%m-%d %H:%M:%S} UTC"
    return (
        f"{fit.unfit:,} of {max(fit.rows, fit.unfit):,} records ({_shown(fit.percent)} %) in {place}{since} "
        f"{'does' if fit.unfit == 1 else 'do'} not fit the spec"
    )


def _examples(partitions: Sequence[PartitionFit]) -> str:
    shown = [
        f"bytes [{f.begin}, {f.end}) of {fit.journal} hold {f.records:,}: {f.what}"
        for fit in partitions
        for f in fit.fragments
    ]
    return f", such as: {'; '.join(shown[:_SHOWN])}" if shown else ""


def _ways_on(spec: TableSpec, threshold: Threshold, blocked: Sequence[PartitionFit]) -> str:
    """The commands that help."""
    if threshold.count is not None:
        raised = str(max(p.unfit for p in blocked))
    else:
        most = int(max(p.percent for p in blocked)) + 1
        raised = f"{most}%" if most < 100 else NEVER
    return (
        f"To go on: `unfit: {{block: {raised}}}` in the spec and `gazctl lake apply`; or correct the types; or "
        f"`gazctl lake set-aside {spec.name} --unfit`. `gazctl lake check {spec.name}` shows all"
    )


def _shown(percent: float) -> str:
    """A share with two digits that count.

    >>> _shown(0.00499), _shown(2.06), _shown(33.3), _shown(100.0)
    ('0.005', '2.06', '33', '100')
    """
    if percent >= 10:
        return f"{percent:.0f}"
    return f"{percent:.2f}" if percent >= 0.1 else f"{percent:.1g}"
