"""The expected rows, from what was appended alone, without a line of the code under test. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.typed_crash.messages import Appended

__all__ = ["Expected", "ProducerAt", "Record", "Row", "expected_of", "last_of_keys"]

_CONTINUE, _ACK = 1, 2
_REASONS = {"wrong": 'n: "a text" is no bigint', "cut": "ends within a record"}


class Row(NamedTuple):
    """A row of a typed table, except where its message begins."""

    end: int
    uuid: str | None
    n: int
    k: str
    at: str
    """As in ``2026-01-02 03:00:00``, in UTC."""
    late: int | None
    partition: str
    """In which its file is: the day of `at`."""


class Record(NamedTuple):
    """A quarantined record, except where it begins."""

    end: int
    uuid: str | None
    reason: str
    raw: bytes


class ProducerAt(NamedTuple):
    """What is to be known of a producer."""

    last_ack: int
    begin: int
    """-1: it has no open transaction."""
    waiting: int
    """Messages of that."""
    again: int
    """How many times some of these occurred again. A run knows where an open transaction begins, and no clock of it:
    what comes again in a later run than before waits as well, until the transaction ends."""


class Expected(NamedTuple):
    """What is committed of a journal, and what is to be known of it."""

    rows: dict[int, Row]
    """By the offset at which the message begins."""
    clocks: dict[int, int]
    """Of these."""
    quarantined: dict[int, Record]
    producers: dict[bytes, ProducerAt]
    head: int
    messages: int
    acks: int
    former_rows: dict[int, Row]
    """If the journal was made again: of the one before."""
    former_quarantined: dict[int, Record]


def expected_of(appended: Sequence[Appended], former: Sequence[Appended] = ()) -> Expected:
    """What a reader finds who reads a journal from end to end, and forgets nothing.

    Args:
        appended: to the journal.
        former: to the one of that name before it, which was read whole. Its open transactions went with it.
    """
    acked: dict[bytes, int] = {}
    spans: dict[bytes, _Span] = {}
    former_rows, former_quarantined, _ = _told(former, acked, spans)
    spans.clear()
    rows, quarantined, clocks = _told(appended, acked, spans)
    producers = {}
    for producer, last_ack in acked.items():
        span = spans.get(producer) or _Span()
        begin = span.messages[0].begin if span.messages else -1
        producers[producer] = ProducerAt(last_ack, begin, len(span.messages), span.again)
    return Expected(
        rows=rows,
        clocks=clocks,
        quarantined=quarantined,
        producers=producers,
        head=appended[-1].end if appended else 0,
        messages=len(former) + len(appended),
        acks=sum(one.message.kind == "ack" for one in (*former, *appended)),
        former_rows=former_rows,
        former_quarantined=former_quarantined,
    )


def _told(
    appended: Sequence[Appended], acked: dict[bytes, int], spans: dict[bytes, _Span]
) -> tuple[dict[int, Row], dict[int, Record], dict[int, int]]:
    """What is committed: rows, quarantined records, and clocks of rows."""
    rows: dict[int, Row] = {}
    quarantined: dict[int, Record] = {}
    clocks: dict[int, int] = {}
    for one in _committed(appended, acked, spans):
        message = one.message
        if message.kind in _REASONS:
            quarantined[one.begin] = Record(one.end, message.uuid, _REASONS[message.kind], one.line)
        elif message.kind != "ack":
            late = message.number if b'"late"' in one.line else None
            rows[one.begin] = Row(
                one.end,
                message.uuid,
                message.number,
                message.key,
                message.at,
                late,
                message.at[:10],
            )
            clocks[one.begin] = message.clock if message.uuid else 0
    return rows, quarantined, clocks


@dataclass
class _Span:
    """A transaction that is open, if there is a message of it."""

    messages: list[Appended] = field(default_factory=list)
    again: int = 0


def _committed(
    appended: Sequence[Appended], acked: dict[bytes, int], spans: dict[bytes, _Span]
) -> Iterator[Appended]:
    """Messages as they are committed. Leaves after what is known of producers: clocks, and open transactions."""
    for one in appended:
        message = one.message
        who, clock = message.producer, message.clock
        if message.uuid is None:
            yield one
            continue
        known = acked.setdefault(who, clock - 1)
        span = spans.setdefault(who, _Span())
        if message.flags == _CONTINUE:
            if clock > max([known, *(other.message.clock for other in span.messages)]):
                span.messages.append(one)
            elif clock > known:
                span.again += 1
        elif clock > known:
            if message.flags == _ACK:
                yield from (other for other in span.messages if other.message.clock <= clock)
            yield one
            acked[who] = clock
            spans[who] = _Span()
        elif message.flags == _ACK:  # a rollback
            acked[who] = clock
            spans[who] = _Span()


def last_of_keys(
    wanted: Mapping[str, Expected],
) -> dict[tuple[str, int], tuple[Row, tuple[str, ...]]]:
    """Rows of a table with the key `k`: where the last message of a key lies, with the journals of all messages of it.

    Of two of one journal the later one is the last. A key that several journals have comes once in each, or again
    without a UUID, so that clocks, and then names of journals, have the others in an order.
    """
    of_key: dict[str, dict[str, int]] = {}
    journals: dict[str, list[str]] = {}
    for journal, one in wanted.items():
        for begin, row in sorted(one.rows.items()):
            of_key.setdefault(row.k, {})[journal] = begin
            journals.setdefault(row.k, []).append(journal)
    found = {}
    for key, last in of_key.items():
        journal = max(last, key=lambda name: (wanted[name].clocks[last[name]], name))
        found[journal, last[journal]] = wanted[journal].rows[last[journal]], tuple(journals[key])
    return found
