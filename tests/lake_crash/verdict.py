"""Whether engines, accounts and Dagster say what was committed: decided purely."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from tests.lake_crash.oracle import Numbers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.lake_crash.oracle import Expected

__all__ = ["EXACT", "RAW", "Account", "Told", "Verdict", "judge_events", "judge_rows"]

RAW, EXACT = "raw", "exact"
"""The table, and its exact view. Of an engine that reads each byte once, both are the table."""


class Account(NamedTuple):
    """What the metastore says of a Hive partition."""

    rows: int | None
    fragments: int
    covered_bytes: int
    version: str


class Told(NamedTuple):
    """An event of a Hive partition."""

    version: str
    rows: int | None
    added: int


@dataclass
class Verdict:
    """What was found. Without problems it is ok."""

    committed: int = 0
    raw: int = 0
    events_lost: int = 0
    lost: int = 0
    doubled: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def is_ok(self) -> bool:
        """Whether all is as it must be."""
        return not (self.problems or self.events_lost or self.lost or self.doubled)

    def summary(self, seed: int, cases: int) -> str:
        """The last line of a run."""
        counts = (
            f"seed={seed} cases={cases} committed={self.committed} raw={self.raw} "
            f"events_lost={self.events_lost} lost={self.lost} doubled={self.doubled}"
        )
        if self.is_ok:
            return f"lake-crash: ok {counts}"
        first = " ".join(self.problems[0].split()) if self.problems else "see above"
        more = f" (and {len(self.problems) - 1} more)" if len(self.problems) > 1 else ""
        return f"lake-crash: FAILED {counts}: {first}{more}"


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
    raws: list[int] = []
    lost = doubled = 0
    for engine, answer in answers.items():
        mine = {key[1:]: n for key, n in answer.items() if key[0] == table and n.rows}
        raws.append(sum(n.rows for (kind, *_), n in mine.items() if kind == RAW))
        for kind in (RAW, EXACT):
            by_hour = {key[1:]: n for key, n in mine.items() if key[0] == kind}
            is_by_hour = expected.is_exact_by_hour if kind == EXACT else True
            # What reads each byte once has no table that shows some twice.
            is_exact = kind == EXACT or engine == "duckdb"
            if is_exact:
                is_by_hour = expected.is_exact_by_hour
                off = _off_journals(expected.committed, by_hour)
                lost = max(lost, sum(max(0, o.distinct) for o in off.values()))
                doubled = max(doubled, sum(n.rows - n.distinct for n in by_hour.values()))
                for journal, o in off.items():
                    if any(o):
                        verdict.problems.append(
                            f"{table}: {engine} says of part={journal}, {kind}, that it has "
                            f"{-o.rows:+} rows, {-o.distinct:+} different ones, ids {-o.ids:+}"
                        )
            if is_by_hour:
                for place in sorted(expected.raw.keys() | by_hour.keys()):
                    wanted = expected.raw.get(place, Numbers())
                    found = by_hour.get(place, Numbers())
                    if wanted == found:
                        continue
                    part, hour = place
                    verdict.problems.append(
                        f"{table}: {engine} finds {found} in part={part}/hour={hour}, {kind}, where "
                        f"{wanted} are"
                    )
                    lost = max(lost, wanted.distinct - found.distinct)
                    doubled = max(doubled, found.rows - wanted.rows)
    verdict.raw += max(raws, default=0)
    verdict.lost += lost
    verdict.doubled += doubled


def _off_journals(
    committed: Mapping[int, Numbers], by_hour: Mapping[tuple[int, str], Numbers]
) -> dict[int, Numbers]:
    """By journal, what is missing; less than nothing: what is there too much."""
    found = dict.fromkeys(committed, Numbers())
    for (journal, _), numbers in by_hour.items():
        found[journal] = found.get(journal, Numbers()).plus(numbers)
    return {
        journal: Numbers(*(a - b for a, b in zip(committed.get(journal, Numbers()), n, strict=True)))
        for journal, n in found.items()
    }


def judge_events(
    verdict: Verdict,
    table: str,
    expected: Expected,
    accounts: Mapping[str, Account],
    told: Mapping[str, Sequence[Told]],
    partitions: frozenset[str],
) -> None:
    """Compare accounts with what must be there, and what Dagster was told with the accounts."""
    wanted = {f"part={j}/hour={hour}": numbers.rows for (j, hour), numbers in expected.raw.items()}
    for key in sorted(wanted.keys() | accounts.keys()):
        rows = accounts[key].rows if key in accounts else 0
        if rows != wanted.get(key, 0):
            verdict.problems.append(
                f"{table}: the account of {key} has {rows} rows, where {wanted.get(key, 0)} are"
            )
    for key in sorted(accounts.keys() | told.keys()):
        problem = _event_problem(accounts.get(key), told.get(key, ()))
        if problem:
            verdict.events_lost += 1
            verdict.problems.append(f"{table}: of {key} Dagster was told {problem}")
    missing = sorted(accounts.keys() - partitions)
    if missing:
        verdict.events_lost += len(missing)
        verdict.problems.append(f"{table}: Dagster has no partition {', '.join(missing)}")


def _event_problem(account: Account | None, told: Sequence[Told]) -> str:
    """What is wrong with the events of a Hive partition; empty: nothing."""
    if account is None:
        return f"{told[-1]}, but it is not there"
    if not told:
        return f"nothing, where it has {account.rows} rows"
    last = told[-1]
    if (last.version, last.rows) != (account.version, account.rows):
        return f"{last} at last, where it has {account.rows} rows, version {account.version}"
    added = sum(event.added for event in told)
    if added != account.rows:
        return f"that {added} rows were added, where it has {account.rows}"
    versions = [event.version for event in told]
    if any(a == b for a, b in zip(versions, versions[1:], strict=False)):
        return f"the same twice in a row: {versions}"
    return ""
