"""Whether tables and their states say what was committed: decided purely."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.harness import State, judge as judge_reasons
from tests.typed_crash.oracle import last_of_keys

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gazette_platform.lake.typed.planning.state import TypedState
    from tests.typed_crash.oracle import Expected, Record, Row

__all__ = ["Found", "Verdict", "judge"]

_SHOWN = 5


class Found(NamedTuple):
    """What exists of a case at its end."""

    rows: list[tuple[str, int, Row]]
    """Journal and `_begin` of each row of the typed table, and the rest of it, by Spark."""
    quarantined: list[tuple[str, int, Record]]
    """Likewise of its quarantine."""
    state: TypedState
    """Of the snapshot that progress is at."""
    counted: tuple[Mapping[str, int], Mapping[str, int]]
    """What `count_rows` says, by journal: rows, and quarantined."""


@dataclass
class Verdict:
    """What was found. Without problems it is ok."""

    committed: int = 0
    typed: int = 0
    """Messages that rows stand for: of a table with a key several for each."""
    quarantined: int = 0
    lost: int = 0
    doubled: int = 0
    problems: list[str] = field(default_factory=list)
    starved_by: str = ""
    """What starved the run, see `starvation.starved_by`; empty: nothing did."""

    @property
    def state(self) -> State:
        """Whether it was ok, failed or was starved."""
        if self.is_ok:
            return State.OK
        if self.lost or self.doubled or not self.problems:
            return State.FAILED
        return judge_reasons(self.problems, self.starved_by)

    @property
    def is_ok(self) -> bool:
        """Whether nothing was lost, doubled or otherwise wrong, and there was something."""
        return not (self.problems or self.lost or self.doubled) and self.committed > 0

    def summary(self, seed: int, cases: int) -> str:
        """The last line."""
        counts = (
            f"typed-crash: {self.state} seed={seed} cases={cases} "
            f"committed={self.committed} typed={self.typed} quarantined={self.quarantined} "
            f"lost={self.lost} doubled={self.doubled}"
        )
        if not self.problems:
            return counts
        first = " ".join(self.problems[0].split())
        more = f" (and {len(self.problems) - 1} more)" if len(self.problems) > 1 else ""
        cause = f"; {self.starved_by}" if self.state is State.STARVED else ""
        return f"{counts}: {first}{more}{cause}"


def judge(
    verdict: Verdict,
    name: str,
    wanted: Mapping[str, Expected],
    found: Found,
    *,
    is_keyed: bool = False,
    is_parted: bool = False,
) -> None:
    """Add what is to be said of a case.

    Args:
        name: of the case.
        wanted: by journal.
        found: what exists.
        is_keyed: whether of messages of a key the last is a row.
        is_parted: whether the table has partitions.
    """
    stands_for = {
        (journal, begin): (row, (journal,))
        for journal, one in wanted.items()
        for begin, row in one.rows.items()
    }
    if is_keyed:
        stands_for = last_of_keys(wanted)
    stands_for |= {
        (_former(journal), begin): (row, (journal,))
        for journal, one in wanted.items()
        for begin, row in one.former_rows.items()
    }
    committed = sum(len(one.rows) + len(one.former_rows) for one in wanted.values())
    rows = {
        spot: row if is_parted else row._replace(partition="")
        for spot, (row, _) in stands_for.items()
    }
    records = {
        (journal, begin): record
        for journal, one in wanted.items()
        for begin, record in one.quarantined.items()
    }
    records |= {
        (_former(journal), begin): record
        for journal, one in wanted.items()
        for begin, record in one.former_quarantined.items()
    }
    found = _apart(wanted, found)
    _compare(verdict, f"{name}, rows", rows, found.rows)
    _compare(verdict, f"{name}, quarantined", records, found.quarantined)
    # A message that was appended again, at another offset; or a key that has two rows.
    once = {_identity(j, row, is_keyed=is_keyed) for (j, _), row in rows.items()}
    verdict.doubled += sum(
        (j, begin) not in rows and _identity(j, row, is_keyed=is_keyed) in once
        for j, begin, row in found.rows
    )
    spots = ((j, begin) for j, begin, _ in found.rows)
    verdict.typed += sum(len(stands_for[spot][1]) for spot in spots if spot in stands_for)
    verdict.quarantined += len(found.quarantined)
    verdict.committed += committed + len(records)
    _judge_state(verdict, name, wanted, found, Counter(journal for journal, _ in rows))


def _former(journal: str) -> str:
    """A name for what a journal was before it was made again."""
    return f"{journal} (former)"


def _apart(wanted: Mapping[str, Expected], found: Found) -> Found:
    """The content, with that of former journals under their own names: offsets are of both."""
    rows = {(j, b): row.n for j, one in wanted.items() for b, row in one.former_rows.items()}
    records = {
        (j, b): one.raw for j, each in wanted.items() for b, one in each.former_quarantined.items()
    }

    def named(journal: str, begin: int, content: Any, former: dict[tuple[str, int], Any]) -> str:
        if former.get((journal, begin)) != content:
            return journal
        del former[journal, begin]  # the other one may be the same
        return _former(journal)

    return found._replace(
        rows=[(named(j, b, row.n, rows), b, row) for j, b, row in found.rows],
        quarantined=[(named(j, b, one.raw, records), b, one) for j, b, one in found.quarantined],
    )


def _identity(journal: str, row: Row, *, is_keyed: bool) -> tuple[Any, ...]:
    return (row.k,) if is_keyed else (journal, row.n)


def _compare(
    verdict: Verdict,
    what: str,
    wanted: Mapping[tuple[str, int], Any],
    found: Sequence[tuple[str, int, Any]],
) -> None:
    times = Counter((journal, begin) for journal, begin, _ in found)
    lost = sorted(wanted.keys() - times.keys())
    doubled = sorted(spot for spot, count in times.items() if count > 1)
    strange = sorted(times.keys() - wanted.keys())
    verdict.lost += len(lost)
    verdict.doubled += sum(times[spot] - 1 for spot in doubled)
    for kind, spots in (("lost", lost), ("doubled", doubled), ("not committed", strange)):
        if spots:
            verdict.problems.append(f"{what}: {len(spots)} {kind}, such as {spots[:_SHOWN]}")
    changed = [
        (journal, begin, value, wanted[journal, begin])
        for journal, begin, value in found
        if (journal, begin) in wanted and value != wanted[journal, begin]
    ]
    verdict.problems += [
        f"{what}: at {journal} {begin} there is {value}, not {meant}"
        for journal, begin, value, meant in changed[:_SHOWN]
    ]


def _judge_state(
    verdict: Verdict,
    name: str,
    wanted: Mapping[str, Expected],
    found: Found,
    rows: Counter[str],
) -> None:
    """Whether the state says how far it has come, and what has become of what."""
    problems = verdict.problems
    problems += [f"{name}, state of {j}: {why}" for j, why in found.state.unaccounted.items()]
    strange = found.state.journals.keys() - wanted.keys()
    problems += [f"{name}: the state knows {journal}, which is none" for journal in sorted(strange)]
    for journal, one in wanted.items():
        state = found.state.journals.get(journal)
        if state is None:
            if one.head:
                problems.append(f"{name}: the state knows nothing of {journal}")
            continue
        of = f"{name}, state of {journal}"
        counts = state.counts
        quarantined = len(one.quarantined) + len(one.former_quarantined)
        said = {
            "messages": (counts.messages, one.messages),
            "acks": (counts.acks, one.acks),
            "rows": (counts.typed, len(one.rows) + len(one.former_rows)),
            "quarantined": (counts.quarantined, quarantined),
            "waiting": (counts.waiting, sum(at.waiting for at in state.producers.values())),
            "lost bytes": (counts.lost_bytes, 0),
            "offset": (state.offset, one.head),
            "producers": ({p: (at.last_ack, at.begin) for p, at in state.producers.items()}, {p: (at.last_ack, at.begin) for p, at in one.producers.items()}),
            "rows by the check of completeness": (found.counted[0].get(journal, 0), rows[journal] + rows[_former(journal)]),
            "quarantined by the check of completeness": (
                found.counted[1].get(journal, 0),
                quarantined,
            ),
        }  # fmt: skip
        problems += [
            f"{of}: {what} {is_said}, not {meant}"
            for what, (is_said, meant) in said.items()
            if is_said != meant
        ]
        problems += [
            f"{of}: of producer {name.hex()} {at.waiting} messages wait, not {meant.waiting}, "
            f"and no more than {meant.again} of them once more"
            for name, at in state.producers.items()
            if (meant := one.producers.get(name)) is not None
            and not meant.waiting <= at.waiting <= meant.waiting + meant.again
        ]
