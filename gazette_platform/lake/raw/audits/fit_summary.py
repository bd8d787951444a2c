"""What the unfit records of a table mean, in words: the same for all who show it, with the next step.

Pure. `gazctl lake list` and `check`, and Dagster's check `fits_spec`, which rollups heed, show what `table_finding` says.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, final

from gazette_platform.lake.raw.reconcile import Finding
from gazette_platform.lake.spec.rules import EXACT_SUFFIX, NEVER, UnfitFragment, verdict

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from gazette_platform.lake.raw.partition_state import PartitionState
    from gazette_platform.lake.spec.rules import Threshold, Verdict
    from gazette_platform.lake.spec.table_spec import TableSpec


_SHOWN: Final = 3


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
