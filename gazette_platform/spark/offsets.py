"""The offsets of a stream, as JSON in its checkpoint. Pure.

    {"initial": true}                                   where a new query begins
    {"from": {"a/b": 0}, "journals": {"a/b": 4096}}     the end of its first batch, which says where that began
    {"journals": {"a/b": 8192, "a/c": 100}}             the end of any other batch
    {"journals": …, "producers": {"a/b": [["6b1f…", 19550868480001, 4000]]}}     of a query of committed messages

Spark asks a source where a query begins each time that it starts its first batch, and `latest` is another place by
then. So the end of the first batch has that place in it, and each batch is a function of its two offsets.

Each also has `"created": {"a/b": 43}`, which journals they are (`protocol.identity`): a query does not go on in
a journal that was deleted and made again. Offsets of former releases do not have it; the next one notes it.

Which messages are committed depends on all before them. What of those counts is a few numbers of each producer that
has published within a day, or has a transaction open (`ProducerState`): its last clock that was committed, and where its open transaction begins,
or -1. With these after each journal's offset a batch is a function of its offsets again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gazette_platform.errors import DataError, ValidationError
from gazette_platform.message.sequencer import ProducerState
from gazette_platform.protocol import learned, require_same

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "INITIAL",
    "PRODUCERS_MAX",
    "Producers",
    "begins_of",
    "created_of",
    "offset_of",
    "positions_of",
    "producers_of",
    "reach",
    "require_created",
]

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
        created: which journals they are (`protocol.identity`).

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
