"""How far writers and readers of Spark have come: marks in registers of journals, and offsets in checkpoints of streams. Pure.

An append that checks and changes registers does both and adds its content, or none of it. So each append of a writer
sets its *mark*, if the one that is there is the one it has seen. Whoever appends the same again, because it was
killed or got no answer, finds that the mark has moved. A journal has one mark for each writer, however often that
writes, and loses those of writers that have been silent for long.

    gazette-spark/<query>         17.2.81985529.1955…0.1795000000    epoch, two numbers, clock, unix seconds
    gazette-spark-once/<write>    0.1.0.0.1795000000                 of a write that is not repeated

The offsets of a stream are JSON in its checkpoint.

    {"initial": true}                                   where a new query begins
    {"from": {"a/b": 0}, "journals": {"a/b": 4096}}     the end of its first batch, which says where that began
    {"journals": {"a/b": 8192, "a/c": 100}}             the end of any other batch
    {"journals": …, "producers": {"a/b": [["6b1f…", 19550868480001, 4000]]}}     of a query of committed messages

Spark asks a source where a query begins each time that it starts its first batch, and `latest` is another place by
then. So the end of the first batch has that place in it, and each batch is a function of its two offsets.

Each also has `"created": {"a/b": 43}`, which journals they are (`protocol.offsets`): a query does not go on in
a journal that was deleted and made again. Offsets of former releases do not have it; the next one notes it.

Which messages are committed depends on all before them. What of those counts is a few numbers of each producer that
has published within a day, or has a transaction open (`ProducerState`): its last clock that was committed, and where its open transaction begins,
or -1. With these after each journal's offset a batch is a function of its offsets again.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, final

from gazette_platform.errors import DataError, ValidationError, WriterFenced
from gazette_platform.message.sequencer import ProducerState
from gazette_platform.message.uuid import PRODUCER_BYTES
from gazette_platform.protocol import LabelSelector, LabelSet, learned, require_same

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gazette_platform.protocol import Label

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


Producers = dict[str, tuple[ProducerState, ...]]
"""Of each journal, those that have published within a day, or have a transaction open."""

PRODUCERS_MAX: Final = 10_000
"""In one offset: each takes some 50 bytes of it, and Spark writes one with each batch."""

INITIAL: Final[dict[str, Any]] = {"initial": True}
"""The offset at which each query begins."""


def offset_of(
    positions: Mapping[str, int],
    begins: Mapping[str, int] | None = None,
    producers: Producers | None = None,
    *,
    created: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """The offset after a batch.

    Args:
        begins: where the batch begins, if it is the first one.
        producers: of committed messages, as of `positions`.
        created: which journals they are (`protocol.offsets`).

    Raises: ValidationError: there are more producers than an offset can hold.

    >>> offset_of({"b": 2, "a": 1}, {"a": 0})
    {'from': {'a': 0}, 'journals': {'a': 1, 'b': 2}}
    """
    first = {} if begins is None else {"from": dict(sorted(begins.items()))}
    found = {**first, "journals": dict(sorted(positions.items()))}
    if created:
        found["created"] = dict(sorted(created.items()))
    if producers is None:
        return found
    count = sum(map(len, producers.values()))
    if count > PRODUCERS_MAX:
        raise ValidationError(
            f"{count} producers have published to these journals within a day, and a stream remembers up to {PRODUCERS_MAX} "
            "(keep a producer for as long as its process lives, read fewer journals in a query, or have a typed table "
            "find what is committed)",
            path="committed",
        )
    states = {
        name: [[one.producer.hex(), one.last_ack, one.begin] for one in sorted(listed)]
        for name, listed in sorted(producers.items())
        if listed
    }
    return {**found, "producers": states}


def producers_of(offset: Mapping[str, Any], *, is_committed: bool) -> Producers:
    """Producers as of an offset; none where a query begins.

    Args:
        is_committed: whether the query reads committed messages. If not, there are none.

    Raises: ValidationError: the offset is of a query that does otherwise, or none of ours.
    """
    found = offset.get("producers", {} if offset == INITIAL or not is_committed else None)
    if found is None or (found and not is_committed):
        raise ValidationError(
            "the query's checkpoint is of one with another value of it: which messages are committed depends on all that was "
            "read before (set it back, or begin with a new checkpoint)",
            path="committed",
        )
    try:
        return {
            name: tuple(
                ProducerState(name, bytes.fromhex(producer), last_ack, begin)
                for producer, last_ack, begin in listed
            )
            for name, listed in found.items()
        }
    except (AttributeError, TypeError, ValueError) as err:
        raise _is_foreign(offset) from err


def positions_of(offset: Mapping[str, Any]) -> dict[str, int]:
    """How far each journal is read. Raises: ValidationError: it is not an offset of ours."""
    positions = offset.get("journals")
    if not isinstance(positions, dict) or not all(isinstance(at, int) for at in positions.values()):
        raise _is_foreign(offset)
    return positions


def created_of(offset: Mapping[str, Any]) -> dict[str, int]:
    """Which journals they are, as far as it was known. Raises: ValidationError: it is not an offset of ours."""
    created = offset.get("created", {})
    if not isinstance(created, dict) or not all(isinstance(at, int) for at in created.values()):
        raise _is_foreign(offset)
    return created


def require_created(offset: Mapping[str, Any], now: Mapping[str, int]) -> dict[str, int]:
    """Refuse an offset of journals that were made again since.

    Args:
        now: which journals exist, by name.

    Returns: which journals these and the others are that the offset names.
    Raises: JournalReplaced.
    """
    kept = created_of(offset)
    for name, created in now.items():
        require_same(
            name,
            kept.get(name, 0),
            created,
            offset=positions_of(offset).get(name, 0),
            advice="begin with a new checkpoint; the newest file in `offsets` of this one has the `startingOffsets` of "
            "the journals that go on",
        )
    known = {name: learned(kept.get(name, 0), created) for name, created in now.items()}
    return {**kept, **{name: created for name, created in known.items() if created}}


def _is_foreign(offset: Mapping[str, Any]) -> ValidationError:
    return ValidationError(
        f"{str(dict(offset))[:200]} is not an offset of format gazette (is the checkpoint another query's?)"
    )


def begins_of(start: Mapping[str, Any], end: Mapping[str, Any]) -> dict[str, int]:
    """Where the batch between two offsets begins in each journal of `end`; in those that came later, at 0.

    Raises: ValidationError: an offset is none of ours. DataError: a journal ends before it begins, or is not there.
    """
    ends = positions_of(end)
    begins = end.get("from") if start == INITIAL else positions_of(start)
    if begins is None:
        raise ValidationError("the end of a first batch does not say where it began")
    for name, begin in begins.items():
        reached = ends.get(name, -1)
        if reached < begin:
            raise _is_shorter(name, begin, reached)
    return {name: begins.get(name, 0) for name in ends}


def reach(positions: Mapping[str, int], heads: Mapping[str, int], bytes_max: int) -> dict[str, int]:
    """How far the next batch may read in each journal: of what is left, each journal has its share.

    Journals that are gone stay where they are, so that they do not come twice if they come back.

    Args:
        positions: how far each is read; others are read from 0.
        heads: of the journals that there are.
        bytes_max: of all together; 0: no limit.

    Raises: DataError: a journal ends before it was read to.

    >>> reach({"a": 10, "gone": 5}, {"a": 110, "new": 300}, 40)
    {'a': 20, 'gone': 5, 'new': 30}
    """
    left = {name: head - positions.get(name, 0) for name, head in heads.items()}
    for name, length in left.items():
        if length < 0:
            raise _is_shorter(name, positions[name], heads[name])
    total = sum(left.values())
    found = dict(positions)
    for name, length in left.items():
        share = length
        if bytes_max and total > bytes_max:
            share = length * bytes_max // total
        found[name] = positions.get(name, 0) + share
    return found


def _is_shorter(name: str, begin: int, end: int) -> DataError:
    return DataError(
        f"{name}: the query has read up to offset {begin}, and it ends at {max(0, end)} (was it deleted and made "
        "again? begin with a new checkpoint)"
    )
