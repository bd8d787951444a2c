"""Whether tables and their states say what was committed: decided purely."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gazette_platform.lake.typed.progress import TypedProgress
    from tests.typed_crash.messages import Aside, Expected, Row

__all__ = ["Found", "Verdict", "judge"]

_SHOWN = 5


class Found(NamedTuple):
    """What there is of a case at its end."""

    rows: list[tuple[str, int, Row]]
    """Journal and `_begin` of each row of the typed table, and the rest of it, by Spark."""
    quarantined: list[tuple[str, int, Aside]]
    """Likewise of its quarantine."""
    progress: TypedProgress
    """What the table says of itself."""
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
    rows = _compare(
        verdict, f"{name}, rows", {j: one.rows for j, one in wanted.items()}, found.rows
    )
    aside = _compare(
        verdict,
        f"{name}, quarantined",
        {j: one.quarantined for j, one in wanted.items()},
        found.quarantined,
    )
    once = {(journal, row.n) for journal, one in wanted.items() for row in one.rows.values()}
    # A message that was appended again, at another offset.
    verdict.doubled += sum(
        (journal, row.n) in once
        for journal, begin, row in found.rows
        if journal not in wanted or begin not in wanted[journal].rows
    )
    verdict.typed += rows.total()
    verdict.quarantined += aside.total()
    verdict.committed += sum(len(one.rows) + len(one.quarantined) for one in wanted.values())
    _judge_state(verdict, name, wanted, found)
    _judge_progress(verdict, name, found)


def _compare(
    verdict: Verdict,
    what: str,
    wanted: Mapping[str, Mapping[int, tuple[object, ...]]],
    found: Sequence[tuple[str, int, tuple[object, ...]]],
) -> Counter[tuple[str, int]]:
    """Whether each is there once, with all of its values. Returns: how often each is."""
    meant = {
        (journal, begin): one for journal, of_it in wanted.items() for begin, one in of_it.items()
    }
    counts = Counter((journal, begin) for journal, begin, _ in found)
    lost = sorted(meant.keys() - counts.keys())
    doubled = sorted(spot for spot, count in counts.items() if count > 1)
    strange = sorted(counts.keys() - meant.keys())
    verdict.lost += len(lost)
    verdict.doubled += sum(counts[spot] - 1 for spot in doubled)
    for kind, spots in (("lost", lost), ("doubled", doubled), ("not committed", strange)):
        if spots:
            verdict.problems.append(f"{what}: {len(spots)} {kind}, such as {spots[:_SHOWN]}")
    verdict.problems += [
        f"{what}: at {journal} {begin} is {one}, not {meant[journal, begin]}"
        for journal, begin, one in found
        if meant.get((journal, begin), one) != one
    ]
    return counts


def _judge_state(verdict: Verdict, name: str, wanted: Mapping[str, Expected], found: Found) -> None:
    """Whether the state says how far it has come, and what has become of what."""
    problems = verdict.problems
    known_of = found.progress.state
    problems += [f"{name}, state of {j}: {why}" for j, why in known_of.unaccounted.items()]
    problems += [
        f"{name}: the state tells of {journal}, which is none of the table"
        for journal in sorted(known_of.journals.keys() - wanted.keys())
    ]
    for journal, one in wanted.items():
        state = known_of.journals.get(journal)
        if state is None:
            if one.head:
                problems.append(f"{name}: the state knows nothing of {journal}")
            continue
        counts = (state.counts.typed, state.counts.quarantined)
        meant = (len(one.rows), len(one.quarantined))
        if counts != meant:
            problems.append(f"{name}, state of {journal}: counts are {counts}, not {meant}")
        read = (state.counts.messages, state.counts.lost_bytes)
        if read != (one.messages, 0):
            problems.append(
                f"{name}, state of {journal}: messages and lost bytes are {read}, not {one.messages} and none"
            )
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


def _judge_progress(verdict: Verdict, name: str, found: Found) -> None:
    """Whether the table says all that people are shown of it, and says it of the rows that there are."""
    told = found.progress
    missing = [
        key
        for key in ("run", "complete_at", "read_bytes", "seconds")
        if getattr(told, key) in (None, "")
    ]
    if missing:
        verdict.problems.append(f"{name}: the newest run does not tell {', '.join(missing)}")
    if told.rows not in (None, len(found.rows)):
        verdict.problems.append(
            f"{name}: the table says that it has {told.rows} rows, and has {len(found.rows)}"
        )
