"""Whether tables and their states say what was committed: decided purely."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gazette_platform.lake.typed.state import TypedState
    from tests.typed_crash.messages import Expected

__all__ = ["Found", "Verdict", "judge"]

_SHOWN = 5


class Found(NamedTuple):
    """What there is of a case at its end."""

    rows: list[tuple[str, int, int | None, int | None]]
    """Journal, `_begin`, `n` and `late` of each row of the typed table, by Spark."""
    quarantined: list[tuple[str, int]]
    """Journal and `_begin` of each row of its quarantine, by Spark."""
    state: TypedState
    """Of the snapshot that progress is at."""
    counted: tuple[Mapping[str, int], Mapping[str, int]]
    """What `count_rows` says, by journal: rows, and quarantined."""


@dataclass
class Verdict:
    """What was found. Without problems it is ok."""

    committed: int = 0
    typed: int = 0
    quarantined: int = 0
    lost: int = 0
    doubled: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def is_ok(self) -> bool:
        """Whether nothing was lost, doubled or otherwise wrong, and there was something."""
        return not (self.problems or self.lost or self.doubled) and self.committed > 0

    def summary(self, seed: int, cases: int) -> str:
        """The last line."""
        return (
            f"typed-crash: {'ok' if self.is_ok else 'FAILED'} seed={seed} cases={cases} "
            f"committed={self.committed} typed={self.typed} quarantined={self.quarantined} "
            f"lost={self.lost} doubled={self.doubled}"
        )


def judge(verdict: Verdict, name: str, wanted: Mapping[str, Expected], found: Found) -> None:
    """Add what is to be said of a case.

    Args:
        name: of the case.
        wanted: by journal.
        found: what there is.
    """
    rows = Counter((journal, begin) for journal, begin, _, _ in found.rows)
    aside = Counter(found.quarantined)
    _compare(verdict, f"{name}, rows", _spots((j, one.rows) for j, one in wanted.items()), rows)
    _compare(
        verdict,
        f"{name}, quarantined",
        _spots((j, one.quarantined) for j, one in wanted.items()),
        aside,
    )
    numbers = {(j, begin): n for j, one in wanted.items() for begin, n in one.rows.items()}
    for journal, begin, number, late in found.rows:
        meant = numbers.get((journal, begin))
        if meant is not None and (number != meant or late not in (None, meant)):
            verdict.problems.append(
                f"{name}: the row at {journal} {begin} has n={number}, late={late}, not {meant}"
            )
    once = {(journal, n) for journal, one in wanted.items() for n in one.rows.values()}
    # A message that was appended again, at another offset.
    verdict.doubled += sum(
        (journal, begin) not in numbers and (journal, number) in once
        for journal, begin, number, _ in found.rows
    )
    verdict.typed += rows.total()
    verdict.quarantined += aside.total()
    verdict.committed += sum(len(one.rows) + len(one.quarantined) for one in wanted.values())
    _judge_state(verdict, name, wanted, found)


def _spots(by_journal: Iterable[tuple[str, Iterable[int]]]) -> set[tuple[str, int]]:
    return {(journal, begin) for journal, begins in by_journal for begin in begins}


def _compare(
    verdict: Verdict, what: str, wanted: set[tuple[str, int]], found: Counter[tuple[str, int]]
) -> None:
    lost = sorted(wanted - found.keys())
    doubled = sorted(spot for spot, count in found.items() if count > 1)
    strange = sorted(found.keys() - wanted)
    verdict.lost += len(lost)
    verdict.doubled += sum(found[spot] - 1 for spot in doubled)
    for kind, spots in (("lost", lost), ("doubled", doubled), ("not committed", strange)):
        if spots:
            verdict.problems.append(f"{what}: {len(spots)} {kind}, such as {spots[:_SHOWN]}")


def _judge_state(verdict: Verdict, name: str, wanted: Mapping[str, Expected], found: Found) -> None:
    """Whether the state says how far it has come, and what has become of what."""
    problems = verdict.problems
    problems += [f"{name}, state of {j}: {why}" for j, why in found.state.unaccounted.items()]
    for journal, one in wanted.items():
        state = found.state.journals.get(journal)
        if state is None:
            if one.head:
                problems.append(f"{name}: the state knows nothing of {journal}")
            continue
        counts = (state.counts.typed, state.counts.quarantined)
        meant = (len(one.rows), len(one.quarantined))
        if counts != meant:
            problems.append(f"{name}, state of {journal}: counts are {counts}, not {meant}")
        if state.offset != one.head:
            problems.append(f"{name}, state of {journal}: is at {state.offset}, not {one.head}")
        known = {p: (at.last_ack, at.begin) for p, at in state.producers.items()}
        true = {p.producer: (p.last_ack, p.begin) for p in one.producers}
        if known != true:
            problems.append(f"{name}, state of {journal}: producers are {known}, not {true}")
        seen = (found.counted[0].get(journal, 0), found.counted[1].get(journal, 0))
        if seen != meant:
            problems.append(
                f"{name}: the check of completeness counts {seen} of {journal}, not {meant}"
            )
