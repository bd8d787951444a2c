"""What is appended to journals, and what one sequencer makes of it that reads each from end to end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import orjson

from gazette_platform.message import Envelope, Flags, Sequencer, UuidParts, build_uuid

if TYPE_CHECKING:
    from random import Random

    from gazette_platform.message.sequencer import ProducerState

__all__ = ["Aside", "Expected", "JournalLog", "Message", "Placed", "Row", "Writer", "line_of"]

_PRODUCERS = tuple(bytes([number]) * 6 for number in (1, 3, 5))
# Some year of this century; clocks of a case are close together, so that no producer is forgotten.
_CLOCK = 0x1F0 << 52
_OUT, _CONTINUE, _ACK = map(int, Flags)
_NONE = UuidParts(bytes(6), 0, 0)
# Of batches that may come again.
_REPEATED = 4
# What people are told of records that are none.
_REASONS = {"wrong": 'n: "a text" is no bigint', "cut": "ends within a record"}


class Message(NamedTuple):
    """One record, as it is meant."""

    kind: str
    """``good``; ``plain``: good, without a UUID; ``wrong``: of another type; ``cut``: half of it is missing; ``ack``."""
    producer: int
    clock: int
    flags: int
    number: int

    @property
    def parts(self) -> UuidParts:
        """The UUID that readers find."""
        if self.kind in ("plain", "cut"):
            return _NONE
        return UuidParts(_PRODUCERS[self.producer], self.clock, self.flags)


def line_of(message: Message, *, has_late: bool = False) -> bytes:
    """The record's bytes, newline included.

    Args:
        has_late: whether records have a key that came later.
    """
    late = {"late": message.number} if has_late else {}
    values = {"n": message.number, "k": f"k{message.number}", **late}
    if message.kind == "plain":
        return orjson.dumps(values) + b"\n"
    meta = {"_meta": {"uuid": str(build_uuid(*message.parts))}}
    match message.kind:
        case "ack":
            return orjson.dumps(meta) + b"\n"
        case "wrong":
            return orjson.dumps({**meta, **values, "n": "a text"}) + b"\n"
        case "cut":
            return orjson.dumps({**meta, **values})[:20] + b"\n"
        case _:
            return orjson.dumps({**meta, **values}) + b"\n"


@dataclass
class Writer:
    """Producers of one journal that tick, append batches that may come again, roll back, acknowledge late or never."""

    random: Random
    number: int = 0
    clocks: list[int] = field(
        default_factory=lambda: [_CLOCK + 1000 * n for n in range(1, len(_PRODUCERS) + 1)]
    )
    acked: list[int] = field(default_factory=list)
    sent: list[list[Message]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.acked = list(self.clocks)

    def batch(self, acts: tuple[str, ...]) -> list[Message]:
        """What one append holds.

        Args:
            acts: of which one is drawn: ``out``, ``continue``, ``ack``, ``rollback``, ``again``, ``odd``.
        """
        draw = self.random
        who, act = draw.randrange(len(_PRODUCERS)), draw.choice(acts)
        if act == "again" and self.sent:
            return draw.choice(self.sent[-_REPEATED:])
        batch = []
        match act:
            case "ack":
                self.clocks[who] += 1
                self.acked[who] = self.clocks[who]
                batch = [self._message("ack", who, self.clocks[who], _ACK)]
            case "rollback":
                self.clocks[who] = self.acked[who]
                batch = [self._message("ack", who, self.acked[who], _ACK)]
            case "odd":
                kinds = draw.choices(("wrong", "cut", "plain"), k=draw.randint(1, 3))
                batch = [self._next(kind, who, _OUT) for kind in kinds]
                self.acked[who] = self.clocks[who]
            case _:
                flags = _CONTINUE if act == "continue" else _OUT
                batch = [self._next("good", who, flags) for _ in range(draw.randint(1, 6))]
                if flags == _OUT:
                    self.acked[who] = self.clocks[who]
        self.sent.append(batch)
        return batch

    def _next(self, kind: str, who: int, flags: int) -> Message:
        self.clocks[who] += 1
        return self._message(kind, who, self.clocks[who], flags)

    def _message(self, kind: str, who: int, clock: int, flags: int) -> Message:
        self.number += 1
        return Message(kind, who, clock, flags, self.number)


class Placed(NamedTuple):
    """A message in its journal."""

    begin: int
    end: int
    message: Message
    has_late: bool

    @property
    def line(self) -> bytes:
        """As it lies there."""
        return line_of(self.message, has_late=self.has_late)

    @property
    def uuid(self) -> str | None:
        """As tables have it."""
        parts = self.message.parts
        return None if parts == _NONE else str(build_uuid(*parts))


class Row(NamedTuple):
    """All values of a row of the typed table, but for its journal and where it begins."""

    end: int
    uuid: str | None
    n: int
    k: str
    late: int | None


class Aside(NamedTuple):
    """All values of a quarantined record, but for its journal and where it begins."""

    end: int
    uuid: str | None
    reason: str
    raw: bytes


class Expected(NamedTuple):
    """What is committed of a journal."""

    rows: dict[int, Row]
    """By the offset at which its message begins."""
    quarantined: dict[int, Aside]
    """Likewise."""
    producers: tuple[ProducerState, ...]
    head: int
    messages: int
    """That there are, whatever became of them."""


@dataclass
class JournalLog:
    """All that was appended to a journal, in order."""

    messages: list[Placed] = field(default_factory=list)

    @property
    def head(self) -> int:
        """Where the next one begins."""
        return self.messages[-1].end if self.messages else 0

    def add(self, batch: list[Message], *, has_late: bool) -> bytes:
        """Note a batch. Returns: its content."""
        lines = [line_of(message, has_late=has_late) for message in batch]
        for message, line in zip(batch, lines, strict=True):
            begin = self.head
            self.messages.append(Placed(begin, begin + len(line), message, has_late))
        return b"".join(lines)

    def expected(self) -> Expected:
        """What one sequencer says of it that forgets nothing."""
        sequencer: Sequencer[Placed] = Sequencer(ring_size=1 << 16, warn=lambda _: None)
        rows: dict[int, Row] = {}
        quarantined: dict[int, Aside] = {}
        for placed in self.messages:
            sequencer.queue(Envelope("", placed.begin, placed.end, placed.message.parts, placed))
            assert sequencer.replay is None
            while (used := sequencer.dequeued) is not None:
                _note(used.message, rows, quarantined)
                sequencer.step()
        producers = sequencer.checkpoint(horizon=None).producers
        return Expected(rows, quarantined, tuple(producers), self.head, len(self.messages))


def _note(placed: Placed, rows: dict[int, Row], quarantined: dict[int, Aside]) -> None:
    """What becomes of a message that is committed."""
    message = placed.message
    match message.kind:
        case "good" | "plain":
            late = message.number if placed.has_late else None
            rows[placed.begin] = Row(
                placed.end, placed.uuid, message.number, f"k{message.number}", late
            )
        case "wrong" | "cut":
            quarantined[placed.begin] = Aside(
                placed.end, placed.uuid, _REASONS[message.kind], placed.line
            )
