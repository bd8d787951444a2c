"""What a case's table must hold, from its history alone: decided purely.

A record is committed if a fragment of it was stored, or the broker acknowledged it; it must exist unless
it was pruned. Record n of a journal has the id `FIRST_ID` + n, so that each has the same length and sums
tell them apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from tests.lake_crash.plan import LIVE_HOUR, Case, Live, Prune, Store

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "FIRST_ID",
    "RECORD_BYTES",
    "Expected",
    "Numbers",
    "Piece",
    "content",
    "expected",
    "gone",
    "kept",
    "listed",
    "numbers",
    "pieces",
    "pruned",
]

FIRST_ID = 1_000_000
RECORD_BYTES = len(b'{"id":1000000}\n')


class Numbers(NamedTuple):
    """Rows, how many different ones, and the sum of their ids."""

    rows: int = 0
    distinct: int = 0
    ids: int = 0

    def plus(self, other: Numbers) -> Numbers:
        """Of both, which share no row."""
        return Numbers(*(a + b for a, b in zip(self, other, strict=True)))


class Piece(NamedTuple):
    """Records [begin, end) of a journal, in a file of an hour."""

    journal: int
    begin: int
    end: int
    hour: str


@dataclass
class Expected:
    """What must be found of one table."""

    committed: dict[int, Numbers] = field(default_factory=dict)
    """By journal: each record once that was not pruned."""
    pruned: int = 0
    """Records that were."""
    raw: dict[tuple[int, str], Numbers] = field(default_factory=dict)
    """By journal and hour, once all is repaired that can be."""
    is_overlapping: bool = False
    """Whether files that stay overlap: then the exact view has other rows than the table, and accounts
    count a file or not, as the order has it in which they came."""


def content(begin: int, end: int) -> bytes:
    """Records [begin, end)."""
    return b"".join(b'{"id":%d}\n' % (FIRST_ID + n) for n in range(begin, end))


def pieces(case: Case) -> list[Piece]:
    """All files that the history leaves behind, in its order."""
    return _pieces(case)[0]


def pruned(found: Iterable[Piece], step: Prune) -> list[Piece]:
    """Those of the files that a prune removes: all within its range but the end of the journal."""
    mine = [piece for piece in found if piece.journal == step.journal]
    last = max((piece.end for piece in mine), default=0)
    return [p for p in mine if step.begin <= p.begin and p.end <= step.end and p.end != last]


def gone(case: Case) -> list[Piece]:
    """All files that were pruned."""
    return _pieces(case)[1]


def _pieces(case: Case) -> tuple[list[Piece], list[Piece]]:
    found: list[Piece] = []
    removed: list[Piece] = []
    heads = [0] * case.journals
    for step in case.steps:
        match step:
            case Store(journal, begin, end, hour):
                found.append(Piece(journal, begin, end, hour))
                heads[journal] = max(heads[journal], end)
            case Live(journal, count):
                begin = heads[journal]
                found.append(Piece(journal, begin, begin + count, LIVE_HOUR))
                heads[journal] += count
            case Prune():
                removed += pruned(found, step)
                found = [piece for piece in found if piece not in removed]
    return found, removed


def listed(found: Iterable[Piece]) -> set[tuple[int, int, int]]:
    """Journal, begin and end of what brokers list: spans that lie within no other one."""
    spans = {piece[:3] for piece in found}
    return {
        (journal, begin, end)
        for journal, begin, end in spans
        if not any(
            j == journal and b <= begin and end <= e and (b, e) != (begin, end) for j, b, e in spans
        )
    }


def kept(case: Case, hours: Mapping[tuple[int, int, int], str]) -> list[Piece]:
    """Files that stay in their places when all others that hold the same are moved aside.

    Args:
        hours: where brokers say that a span is, which settles the matter of two in different hours.
    """
    found = pieces(case)
    if case.theme == "partial":
        return found
    return [Piece(*span, hours.get(span, "")) for span in sorted(listed(found))]


def expected(case: Case, hours: Mapping[tuple[int, int, int], str]) -> Expected:
    """What each engine must answer for the table of a case, and accounts must say."""
    found = Expected(is_overlapping=case.theme == "partial")
    committed: dict[int, set[int]] = {journal: set() for journal in range(case.journals)}
    for piece in pieces(case):
        committed[piece.journal].update(range(piece.begin, piece.end))
    for journal, records in committed.items():
        found.committed[journal] = numbers(sorted(records))
    found.pruned = sum(piece.end - piece.begin for piece in gone(case))
    raw: dict[tuple[int, str], list[int]] = {}
    for piece in kept(case, hours):
        raw.setdefault((piece.journal, piece.hour), []).extend(range(piece.begin, piece.end))
    found.raw = {place: numbers(records) for place, records in raw.items()}
    return found


def numbers(records: list[int]) -> Numbers:
    """Of rows that hold these records."""
    return Numbers(len(records), len(set(records)), sum(FIRST_ID + n for n in records))
