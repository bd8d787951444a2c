"""The offsets of a stream, as JSON in its checkpoint. Pure.

    {"initial": true}                                   where a new query begins
    {"from": {"a/b": 0}, "journals": {"a/b": 4096}}     the end of its first batch, which says where that began
    {"journals": {"a/b": 8192, "a/c": 100}}             the end of any other batch

Spark asks a source where a query begins each time that it starts its first batch, and `latest` is another place by
then. So the end of the first batch has that place in it, and each batch is a function of its two offsets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gazette_platform.errors import DataError, ValidationError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["INITIAL", "begins_of", "offset_of", "positions_of", "reach"]

INITIAL: Final[dict[str, Any]] = {"initial": True}
"""The offset at which each query begins."""


def offset_of(
    positions: Mapping[str, int], begins: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """The offset behind a batch.

    Args:
        begins: where the batch begins, if it is the first one.

    >>> offset_of({"b": 2, "a": 1}, {"a": 0})
    {'from': {'a': 0}, 'journals': {'a': 1, 'b': 2}}
    """
    first = {} if begins is None else {"from": dict(sorted(begins.items()))}
    return {**first, "journals": dict(sorted(positions.items()))}


def positions_of(offset: Mapping[str, Any]) -> dict[str, int]:
    """How far each journal is read. Raises: ValidationError: it is no offset of ours."""
    positions = offset.get("journals")
    if not isinstance(positions, dict) or not all(isinstance(at, int) for at in positions.values()):
        raise ValidationError(
            f"{str(dict(offset))[:200]} is no offset of format gazette (is the checkpoint another query's?)"
        )
    return positions


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
        "anew? begin with a new checkpoint)"
    )
