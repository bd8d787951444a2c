"""Records that do not fit their table's spec: how many, since when, and whether rollups stop for them.

Pure. The counts stand in the accounts of Hive partitions; `verdict` compares them with the spec's threshold.
`gazctl lake list` and `check` and Dagster's check `fits_spec`, which rollups heed, all show what `table_finding` says.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, Literal, final

import msgspec

from gazette_platform.errors import ValidationError
from gazette_platform.lake.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gazette_platform.lake.partition_state import PartitionState
    from gazette_platform.lake.table_spec import TableSpec

__all__ = [
    "UNFIT_EXAMPLE",
    "PartitionFit",
    "Threshold",
    "UnfitFragment",
    "UnfitSpec",
    "Verdict",
    "partition_fit",
    "table_finding",
    "verdict",
]

Verdict = Literal["ok", "warn", "blocked"]

NEVER: Final = "never"
_DEFAULT: Final = "1%"
_SHOWN: Final = 3
_COUNT_MAX: Final = 10**15
UNFIT_EXAMPLE: Final = (
    "how many unfit records stop rollups: `{block: 1%}` for a share of a Hive partition's records, "
    "`{block: 100}` for a count, or `{block: never}`"
)


class UnfitSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `unfit:` of a table spec."""

    block: str | int = _DEFAULT
    """How many unfit records of a Hive partition do not stop rollups yet."""

    @property
    def threshold(self) -> Threshold:
        """The parsed threshold. Raises: ValidationError: it has none of the forms."""
        return Threshold.parse(self.block)


@final
@dataclass(frozen=True, slots=True)
class Threshold:
    """How many unfit records a Hive partition may hold: a share, a count, or any number if neither is given."""

    percent: Decimal | None = None
    count: int | None = None

    @classmethod
    def parse(cls, block: str | int) -> Threshold:
        """The threshold that a spec writes.

        >>> Threshold.parse("0.5%"), Threshold.parse(100).count, Threshold.parse("never")
        (Threshold(percent=Decimal('0.5'), count=None), 100, Threshold(percent=None, count=None))

        Raises: ValidationError: it is none.
        """
        text = str(block).strip()
        if text == NEVER:
            return cls()
        digits = text.removesuffix("%").rstrip()
        is_share = digits != text
        # Nothing else that Python takes for a number, such as `1e9`, `1_0` or `Infinity`.
        is_number = digits.isascii() and digits.replace(".", "", is_share).isdigit()
        if is_number and is_share and len(digits) <= 20 and Decimal(digits) <= 100:
            return cls(percent=Decimal(digits))
        if is_number and not is_share and int(digits[:20]) <= _COUNT_MAX:
            return cls(count=int(digits))
        raise ValidationError(f"{text[:40]!r} is not {UNFIT_EXAMPLE}", path="unfit.block")

    def allows(self, unfit: int, rows: int) -> bool:
        """Whether so many unfit ones of `rows` records stop nothing."""
        if self.percent is not None:
            return unfit * 100 <= self.percent * rows
        return self.count is None or unfit <= self.count

    @property
    def is_never(self) -> bool:
        """Whether nothing stops rollups."""
        return self.percent is None and self.count is None

    def __str__(self) -> str:
        if self.percent is not None:
            return f"{self.percent:f} %"
        return "any number" if self.count is None else f"{self.count:,}"


def verdict(threshold: Threshold, unfit: int, rows: int, *, is_unreadable: bool = False) -> Verdict:
    """What unfit records of a Hive partition mean for rollups.

    >>> one_percent = Threshold.parse("1%")
    >>> verdict(one_percent, 0, 100), verdict(one_percent, 1, 100), verdict(one_percent, 2, 100)
    ('ok', 'warn', 'blocked')

    Args:
        threshold: of the table's spec.
        unfit: how many of its records do not fit.
        rows: how many records it has, as far as they are counted.
        is_unreadable: whether Trino cannot read other records for their sake.
    """
    if not unfit:
        return "ok"
    if threshold.is_never or (not is_unreadable and threshold.allows(unfit, max(rows, unfit))):
        return "warn"
    return "blocked"


@final
@dataclass(frozen=True, slots=True)
class UnfitFragment:
    """A fragment with records that do not fit, as the accounts of its Hive partition note it."""

    begin: int
    end: int
    records: int
    """How many do not fit."""
    since: int = 0
    """Unix seconds when the fragment was stored; 0: not known."""
    what: str = ""
    """What does not fit, with examples; empty if enough others of the Hive partition have that."""
    is_unreadable: bool = False
    """Whether Trino cannot read other records for their sake."""
    mark: str = ""
    """Of the spec and the file that this was found of."""


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
    is_unreadable: bool = False
    fragments: tuple[UnfitFragment, ...] = ()
    """The first ones that say what does not fit."""

    def verdict(self, threshold: Threshold) -> Verdict:
        """What it means for rollups."""
        return verdict(threshold, self.unfit, self.rows, is_unreadable=self.is_unreadable)

    @property
    def percent(self) -> float:
        """Unfit records of a hundred."""
        return 100 * self.unfit / max(self.rows, self.unfit, 1)

    def to_json(self) -> list[Any]:
        """The value as JSON values."""
        fragments = [[f.begin, f.end, f.records, f.what] for f in self.fragments]
        counts = [self.rows, self.unfit, self.since, self.is_unreadable]
        return [self.key, self.journal, *counts, fragments]

    @classmethod
    def from_json(cls, raw: Any) -> PartitionFit:
        """The value whose `to_json` was `raw`. Raises: TypeError, ValueError: it is none."""
        key, journal, rows, unfit, since, is_unreadable, fragments = raw
        return cls(
            key=str(key),
            journal=str(journal),
            rows=int(rows),
            unfit=int(unfit),
            since=int(since),
            is_unreadable=bool(is_unreadable),
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
        rows=(state.rows if state.rows is not None else state.rows_known) or 0,
        unfit=state.unfit_records,
        since=min((f.since for f in noted if f.since), default=0),
        is_unreadable=any(f.is_unreadable for f in noted),
        fragments=tuple([f for f in noted if f.what][:_SHOWN]),
    )


def table_finding(spec: TableSpec, partitions: Iterable[PartitionFit]) -> Finding | None:
    """What all that does not fit of a table means, in words, with the next step; None: all fits."""
    threshold = spec.unfit.threshold
    found = sorted(partitions, key=lambda p: (-p.is_unreadable, -p.percent, p.key))
    blocked = [p for p in found if p.verdict(threshold) == "blocked"]
    if not found:
        return None
    text = _blocked_text(threshold, blocked) if blocked else _warning_text(threshold, found)
    see = f"See all: `gazctl lake check {spec.name}`"
    ways = f"{see}. {_ways_on(spec, threshold, blocked)}" if blocked else see
    return Finding(
        kind="fit",
        journal="",
        begin=0,
        end=0,
        is_error=bool(blocked),
        text=f"{text}. {ways}",
        unfit=sum(p.unfit for p in found),
        # Not of how many records there are, which changes with each append.
        values=(str(threshold), *(f"{p.key} {p.unfit} {p.verdict(threshold)}" for p in found)),
    )


def _blocked_text(threshold: Threshold, blocked: Sequence[PartitionFit]) -> str:
    limit = f"more than {threshold} of the records"
    if threshold.count is not None:
        limit = f"more than {threshold} records"
    unreadable = sum(p.is_unreadable for p in blocked)
    if unreadable == len(blocked):
        limit = "records at which Trino fails, or gives NULL for a whole column,"
    where = "" if len(blocked) == 1 else f" in {len(blocked)} Hive partitions"
    return f"rollups wait, because {limit} do not fit the spec{where}: {_worst(blocked)}"


def _warning_text(threshold: Threshold, found: Sequence[PartitionFit]) -> str:
    limit = "" if threshold.is_never else f", which wait above {threshold} of a Hive partition"
    return f"some records do not fit the spec, and stop no rollups{limit}: {_worst(found)}"


def _worst(partitions: Sequence[PartitionFit]) -> str:
    texts = [_one(p) for p in partitions[:_SHOWN]]
    if len(partitions) > _SHOWN:
        rest = partitions[_SHOWN:]
        texts.append(f"{sum(p.unfit for p in rest):,} in {len(rest)} other Hive partitions")
    return "; ".join(texts)


def _one(fit: PartitionFit) -> str:
    place = "the table" if fit.key == "all" else fit.key
    since = (
        f" since {datetime.fromtimestamp(fit.since, UTC):%Y-%m-%d %H:%M:%S} UTC"
        if fit.since
        else ""
    )
    shown = [
        f"bytes [{f.begin}, {f.end}) of {fit.journal} hold {f.records:,}: {f.what}"
        for f in fit.fragments
    ]
    examples = f" ({'; '.join(shown)})" if shown else ""
    return (
        f"{fit.unfit:,} of {max(fit.rows, fit.unfit):,} records ({_shown(fit.percent)} %) in "
        f"{place}{since}{examples}"
    )


def _ways_on(spec: TableSpec, threshold: Threshold, blocked: Sequence[PartitionFit]) -> str:
    """The commands that help."""
    if any(p.is_unreadable for p in blocked):
        raised = NEVER
    elif threshold.count is not None:
        raised = str(max(p.unfit for p in blocked))
    else:
        most = int(max(p.percent for p in blocked)) + 1
        raised = f"{most}%" if most < 100 else NEVER
    return (
        "To have rollups go on all the same, raise the threshold: write `unfit: {block: "
        f"{raised}}}` into the spec, and `gazctl lake apply` it. Otherwise correct the types in the "
        f"spec, or take the files out: `gazctl lake quarantine {spec.name} --unfit`"
    )


def _shown(percent: float) -> str:
    """A share with two digits that count.

    >>> _shown(0.00499), _shown(2.06), _shown(33.3), _shown(100.0)
    ('0.005', '2.06', '33', '100')
    """
    if percent >= 10:
        return f"{percent:.0f}"
    return f"{percent:.2f}" if percent >= 0.1 else f"{percent:.1g}"
