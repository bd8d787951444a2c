"""Whether engines, accounts and Dagster say what was committed: decided purely."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from tests.harness import State, judge
from tests.lake_crash.oracle import Numbers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.lake_crash.oracle import Expected

__all__ = [
    "EXACT",
    "RAW",
    "Account",
    "Told",
    "Verdict",
    "judge_accounts",
    "judge_events",
    "judge_rows",
    "unrepaired",
]

RAW, EXACT = "raw", "exact"
"""The table, and its exact view. Of an engine that reads each byte once, both are the table."""


class Account(NamedTuple):
    """What the metastore says of a Hive partition, or of those of all journals at a time."""

    rows: int | None
    fragments: int
    covered_bytes: int
    version: str


class Told(NamedTuple):
    """An event of a time."""

    version: str
    rows: int | None
    """That its Hive partitions hold then."""
    added: int | None
    """More than the event before said; None: not known."""
    is_repair: bool = False
    """Whether it reports that files were moved out of it, which may change no account."""


@dataclass
class Verdict:
    """What was found. Without problems it is ok."""

    committed: int = 0
    pruned: int = 0
    """Records that no table may have."""
    raw: int = 0
    events_lost: int = 0
    lost: int = 0
    doubled: int = 0
    problems: list[str] = field(default_factory=list)
    left_out: int = 0
    """Cases that this machine cannot play."""
    starved_by: str = ""
    """What starved the run, see `starvation.starved_by`; empty: nothing did."""

    @property
    def state(self) -> State:
        """Whether it was ok, failed or was starved."""
        if self.is_ok:
            return State.OK
        wrong = self.events_lost or self.lost or self.doubled
        return State.FAILED if wrong else judge(self.problems, self.starved_by)

    @property
    def is_ok(self) -> bool:
        """Whether all is as it must be."""
        return not (self.problems or self.events_lost or self.lost or self.doubled)

    def summary(self, seed: int, cases: int) -> str:
        """The last line of a run."""
        left_out = f"left_out={self.left_out} " if self.left_out else ""
        counts = (
            f"seed={seed} cases={cases} {left_out}committed={self.committed} raw={self.raw} "
            f"events_lost={self.events_lost} lost={self.lost} doubled={self.doubled}"
        )
        if self.is_ok:
            return f"lake-crash: ok {counts}"
        first = " ".join(self.problems[0].split()) if self.problems else "see above"
        more = f" (and {len(self.problems) - 1} more)" if len(self.problems) > 1 else ""
        cause = f"; {self.starved_by}" if self.state is State.STARVED else ""
        return f"lake-crash: {self.state} {counts}: {first}{more}{cause}"


def unrepaired(
    table: str, before: Mapping[str, Account], after: Mapping[str, Account]
) -> list[str]:
    """What a person's repair moved although accounts had counted it, which ticks should have found.

    Args:
        table: its name.
        before: accounts by Hive partition, once ticks had nothing to report.
        after: the same, after the repair.
    """
    return [
        f"{table}: {key}: a repair changed {account.fragments} counted fragments with {account.rows} rows to "
        f"{now.fragments} with {now.rows}: ticks left that undone"
        for key, account in before.items()
        if (now := after.get(key, Account(0, 0, 0, "")))[:3] != account[:3]
    ]


def judge_rows(
    verdict: Verdict,
    table: str,
    expected: Expected,
    answers: Mapping[str, Mapping[tuple[str, str, int, str], Numbers]],
) -> None:
    """Compare what each engine says of a table with what it must hold.

    Args:
        verdict: gets what is found.
        table: its name in `answers`.
        expected: of the oracle.
        answers: by engine, then by table, `RAW` or `EXACT`, journal and hour. What has no rows may be
            left out.
    """
    verdict.committed += sum(numbers.rows for numbers in expected.committed.values())
    verdict.pruned += expected.pruned
    raws: list[int] = []
    lost = doubled = 0
    for engine, answer in answers.items():
        mine = {key[1:]: n for key, n in answer.items() if key[0] == table and n.rows}
        raws.append(sum(n.rows for (kind, *_), n in mine.items() if kind == RAW))
        for kind in (RAW, EXACT):
            by_hour = {key[1:]: n for key, n in mine.items() if key[0] == kind}
            # DuckDB reads each byte once, whatever overlaps.
            is_exact = kind == EXACT or engine == "duckdb"
            found = _Off(f"{table}: {engine}, {kind}")
            if is_exact:
                found.compare(_as_places(expected.committed), _by_journal(by_hour))
            if not (is_exact and expected.is_overlapping):
                found.compare(expected.raw, by_hour)
            lost, doubled = max(lost, found.lost), max(doubled, found.doubled)
            verdict.problems += found.problems
    verdict.raw += max(raws, default=0)
    verdict.lost += lost
    verdict.doubled += doubled


@dataclass
class _Off:
    """How far rows are from what they must be."""

    where: str
    lost: int = 0
    doubled: int = 0
    problems: list[str] = field(default_factory=list)

    def compare(
        self,
        wanted: Mapping[tuple[int, str], Numbers],
        found: Mapping[tuple[int, str], Numbers],
    ) -> None:
        """By journal and hour; an empty hour stands for all."""
        lost = doubled = 0
        for place in sorted(wanted.keys() | found.keys()):
            here, there = wanted.get(place, Numbers()), found.get(place, Numbers())
            if here == there:
                continue
            lost += max(0, here.distinct - there.distinct)
            doubled += max(0, there.rows - here.rows)
            name = "/".join(filter(None, [f"part={place[0]}", place[1] and f"hour={place[1]}"]))
            self.problems.append(f"{self.where}: {name} has {there}, where {here} are")
        self.lost, self.doubled = max(self.lost, lost), max(self.doubled, doubled)


def _as_places(by_journal: Mapping[int, Numbers]) -> dict[tuple[int, str], Numbers]:
    return {(journal, ""): numbers for journal, numbers in by_journal.items() if numbers.rows}


def _by_journal(by_hour: Mapping[tuple[int, str], Numbers]) -> dict[tuple[int, str], Numbers]:
    found: dict[tuple[int, str], Numbers] = {}
    for (journal, _), numbers in by_hour.items():
        found[journal, ""] = found.get((journal, ""), Numbers()).plus(numbers)
    return found


def judge_accounts(
    verdict: Verdict,
    table: str,
    expected: Expected,
    accounts: Mapping[str, Account],
    times: Mapping[str, Account],
) -> None:
    """Compare accounts with what must exist.

    Args:
        verdict: gets what is found.
        table: its name.
        expected: of the oracle.
        accounts: by Hive partition.
        times: of all journals together, by hour.
    """
    wanted = {f"part={j}/hour={hour}": numbers for (j, hour), numbers in expected.raw.items()}
    for key in sorted(wanted.keys() | accounts.keys()):
        rows = accounts[key].rows if key in accounts else 0
        here = wanted.get(key, Numbers())
        least = here.distinct if expected.is_overlapping else here.rows
        if rows is None or not least <= rows <= here.rows:
            verdict.problems.append(
                f"{table}: the account of {key} has {rows} rows, where {here.rows} are"
            )
        if key in accounts and not accounts[key].covered_bytes:
            verdict.problems.append(f"{table}: {key} holds nothing, and was not dropped")
    for hour, time in sorted(times.items()):
        found = [a.rows for key, a in accounts.items() if key.endswith(f"/hour={hour}")]
        if None not in found and time.rows != sum(rows or 0 for rows in found):
            verdict.problems.append(f"{table}: hour {hour} has {time.rows} rows, of {found}")


def judge_events(
    verdict: Verdict,
    table: str,
    accounts: Mapping[str, Account],
    told: Mapping[str, Sequence[Told]],
    partitions: frozenset[str],
) -> None:
    """Compare the events in Dagster with accounts, all by Dagster's partition keys."""
    for key in sorted(accounts.keys() | told.keys()):
        problem = _event_problem(accounts.get(key), told.get(key, ()))
        if problem:
            verdict.events_lost += 1
            verdict.problems.append(f"{table}: of {key} Dagster has {problem}")
    missing = sorted(accounts.keys() - partitions)
    if missing:
        verdict.events_lost += len(missing)
        verdict.problems.append(f"{table}: Dagster has no partition {', '.join(missing)}")
    left = sorted(partitions - accounts.keys())
    if left:
        verdict.events_lost += len(left)
        verdict.problems.append(f"{table}: Dagster still has partition {', '.join(left)}")


def _event_problem(account: Account | None, told: Sequence[Told]) -> str:
    """What is wrong with the events of a time; empty: nothing."""
    if account is None:
        # One that holds nothing any more is dropped, once that was reported.
        return "" if told[-1].rows == 0 else f"{told[-1]}, but it is not there"
    if not told:
        return f"nothing, where it has {account.rows} rows"
    last = told[-1]
    if (last.version, last.rows) != (account.version, account.rows):
        return f"{last} at last, where it has {account.rows} rows, version {account.version}"
    rows = 0
    version = ""
    for event in told:
        if event.added is not None:
            if event.rows != rows + event.added:
                return f"of {event.added} rows more than {rows}, which makes {event.rows}: {told}"
            if event.version == version and not event.is_repair:
                return f"the same twice: {told}"
        rows, version = event.rows or 0, event.version
    return ""
