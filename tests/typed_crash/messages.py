"""What is appended to journals: producers that repeat themselves, roll back, and send what is not a record."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

import orjson

from gazette_platform.message import Flags, build_uuid
from tests.typed_crash.oracle import expected_of

if TYPE_CHECKING:
    from random import Random

    from tests.typed_crash.oracle import Expected

__all__ = ["PRODUCERS", "Appended", "JournalLog", "Message", "Writer"]

PRODUCERS = tuple(bytes([number]) * 6 for number in (1, 3, 5))
# Some year of this century; clocks of a case are close together, so that no producer is forgotten.
_CLOCK = 0x1F0 << 52
_OUT, _CONTINUE, _ACK = map(int, Flags)
# Of batches that may come again.
_REPEATED = 4
_BEGAN_AT = datetime(2026, 1, 1, tzinfo=UTC)
# Of keys: this many of a journal come again and again; and each so many'th number is a key of all journals, once.
_KEYS, _SHARED = 4, 7


class Message(NamedTuple):
    """One record, as it is meant."""

    kind: str
    """``good``; ``plain``: good, without a UUID; ``wrong``: of another type; ``cut``: half of it is missing; ``ack``."""
    producer: bytes
    clock: int
    flags: int
    number: int
    key: str

    @property
    def uuid(self) -> str | None:
        """As readers find it, who see none in half a record."""
        if self.kind in ("plain", "cut"):
            return None
        return str(build_uuid(self.producer, self.clock, self.flags))

    @property
    def at(self) -> str:
        """An hour of its own, from which its partition follows."""
        return f"{_BEGAN_AT + timedelta(hours=self.number):%Y-%m-%d %H:%M:%S}"


class Appended(NamedTuple):
    """A record where it lies."""

    begin: int
    end: int
    message: Message
    line: bytes
    """Newline included."""


def _line_of(message: Message, *, has_late: bool) -> bytes:
    late = {"late": message.number} if has_late else {}
    values = {"n": message.number, "k": message.key, "at": message.at.replace(" ", "T") + "Z", **late}  # fmt: skip
    if message.kind == "plain":
        return orjson.dumps(values) + b"\n"
    told = build_uuid(message.producer, message.clock, message.flags)
    meta = {"_meta": {"uuid": str(told)}}
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
    name: str = ""
    """Of the journal, in keys that have several messages; empty: each message has its own key."""
    number: int = 0
    clocks: list[int] = field(
        default_factory=lambda: [_CLOCK + 1000 * n for n in range(1, len(PRODUCERS) + 1)]
    )
    acked: list[int] = field(default_factory=list)
    sent: list[list[Message]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.acked = list(self.clocks)

    def batch(self, acts: tuple[str, ...]) -> list[Message]:
        """What one append holds.

        Args:
            acts: one of these is drawn: ``out``, ``continue``, ``ack``, ``rollback``, ``again``, ``odd``.
        """
        draw = self.random
        who, act = draw.randrange(len(PRODUCERS)), draw.choice(acts)
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
        key = f"k{self.number}"
        if self.name and self.number % _SHARED:
            key = f"{self.name}-{self.number % _KEYS}"
        return Message(kind, PRODUCERS[who], clock, flags, self.number, key)


@dataclass
class JournalLog:
    """All that was appended to a journal, in order."""

    messages: list[Appended] = field(default_factory=list)
    former: list[Appended] = field(default_factory=list)
    """If the journal was made again: of the one before."""

    @property
    def head(self) -> int:
        """Where the next one begins."""
        return self.messages[-1].end if self.messages else 0

    def add(self, batch: list[Message], *, has_late: bool) -> bytes:
        """Note a batch. Returns: its content.

        Args:
            has_late: whether records have the key `late`.
        """
        first = len(self.messages)
        for message in batch:
            line = _line_of(message, has_late=has_late)
            self.messages.append(Appended(self.head, self.head + len(line), message, line))
        return b"".join(one.line for one in self.messages[first:])

    def expected(self) -> Expected:
        """What is committed of it, with `late` where records have it."""
        return expected_of(self.messages, self.former)

    def make_again(self) -> None:
        """Note that the journal was made again."""
        self.former, self.messages = self.messages, []
