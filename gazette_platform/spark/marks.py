"""How far writers have come, as journals note it in their registers. Pure.

An append that checks and changes registers does both and adds its content, or none of it. So each append of a writer
sets its *mark*, if the one that is there is the one it has seen. Whoever appends the same again, because it was
killed or got no answer, finds that the mark has moved. A journal has one mark for each writer, however often that
writes, and loses those of writers that have been silent for long.

    gazette-spark/<query>         17.2.81985529.1955…0.1795000000    epoch, two numbers, clock, unix seconds
    gazette-spark-once/<write>    0.1.0.0.1795000000                 of a write that is not repeated
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Self, final

from gazette_platform.errors import DataError, WriterFenced
from gazette_platform.message.uuid import PRODUCER_BYTES
from gazette_platform.protocol import LabelSelector, LabelSet

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gazette_platform.protocol import Label

__all__ = ["Change", "Mark", "Writer", "advance", "mark_of", "reached"]

_LASTING: Final = "gazette-spark/"
_PASSING: Final = "gazette-spark-once/"
# How long a mark is kept of a writer that is silent. A write that is not repeated is retried for a minute.
_LASTING_S: Final = 90 * 24 * 3600
_PASSING_S: Final = 3600
# Of none of them more digits than 64 bits have: others may set registers of these names, to anything.
_MARK: Final = re.compile(r"(\d{1,19})\.(\d{1,19})\.(\d{1,19})\.(\d{1,20})\.(\d{1,19})\Z", re.ASCII)
_CLOCK_MAX: Final = 2**64 - 1


@final
@dataclass(frozen=True, slots=True)
class Writer:
    """Who writes: a query, a program's named batches, or one write that is not repeated."""

    name: str
    """Letters, digits and ``-+/._``, up to 48: of a query its id."""
    is_lasting: bool = True
    """Whether it may come back, and do an epoch again."""

    @property
    def label(self) -> str:
        """Name of its register."""
        return f"{_LASTING if self.is_lasting else _PASSING}{self.name}"

    @property
    def producer(self) -> bytes:
        """Of the UUIDs of its messages. One for all its epochs: readers remember each that they see for a day."""
        drawn = hashlib.sha256(self.name.encode()).digest()[:PRODUCER_BYTES]
        # As of `new_producer_id`.
        return bytes((drawn[0] | 1, *drawn[1:]))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What a journal notes of a writer."""

    epoch: int
    place: tuple[int, int]
    """In a journal that is written to: how many appends of the epoch it has, and their plan, 0 for none. In a staging
    journal: where the plan begins and ends."""
    clock: int = 0
    """Of the writer's last message; 0: it had no UUID."""
    at: int
    """Unix seconds at which it was set."""

    @property
    def text(self) -> str:
        """As in the register."""
        return ".".join(map(str, (self.epoch, *self.place, self.clock, self.at)))

    @classmethod
    def parse(cls, text: str) -> Self:
        """The mark whose `text` it is. Raises: DataError: it is none."""
        match = _MARK.match(text)
        if match is None or int(match[4]) > _CLOCK_MAX:
            raise DataError(
                f"the mark of a writer is {text[:80]!r}, which is none of ours (who else sets registers of this name?)"
            )
        epoch, first, second, clock, at = map(int, match.groups())
        return cls(epoch=epoch, place=(first, second), clock=clock, at=at)


class Change(NamedTuple):
    """Registers of an append."""

    check: LabelSelector
    union: LabelSet
    subtract: LabelSet


def mark_of(registers: LabelSet, writer: Writer) -> Mark | None:
    """What a journal with these registers notes of a writer; None: nothing. Raises: DataError: nonsense."""
    text = registers.value_of(writer.label)
    return Mark.parse(text) if text else None


def reached(mark: Mark | None, epoch: int, journal: str, writer: Writer) -> Mark | None:
    """The mark, if it is of this epoch; None: it has nothing of the epoch.

    Raises: WriterFenced: the writer has gone on to a later one.
    """
    if mark is None or mark.epoch < epoch:
        return None
    if mark.epoch > epoch:
        raise WriterFenced(
            f"{journal}: writer {writer.name} is at epoch {mark.epoch}, and epoch {epoch} comes late: nothing of it was "
            "appended (does another driver run the same query? a batch that is new needs a larger epoch)"
        )
    return mark


def advance(registers: LabelSet, writer: Writer, mark: Mark) -> Change:
    """The registers of an append that sets a mark, unless another one was set since.

    Args:
        registers: of the journal, as they were seen.
    """
    seen = registers.value_of(writer.label)
    label = LabelSet.of((writer.label, seen))
    others = (one for one in registers if one.name != writer.label)
    return Change(
        # An empty value stands for any.
        check=LabelSelector(include=label) if seen else LabelSelector(exclude=label),
        union=LabelSet.of((writer.label, mark.text)),
        subtract=LabelSet(tuple(_silent(others, mark.at))),
    )


def _silent(labels: Iterable[Label], now: int) -> Iterable[Label]:
    """Marks of writers that were silent for long. One that moves at this moment is kept: its value is another."""
    for label in labels:
        horizon = {_LASTING: _LASTING_S, _PASSING: _PASSING_S}.get(
            label.name[: label.name.find("/") + 1]
        )
        match = _MARK.match(label.value)
        if horizon is not None and match is not None and int(match[5]) < now - horizon:
            yield label
