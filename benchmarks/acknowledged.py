"""What a run saw acknowledged, against what the journal then holds."""

from __future__ import annotations

import hashlib
from itertools import islice, pairwise
from typing import TYPE_CHECKING

from gazette_platform.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gazette_platform.client import AsyncClient

__all__ = ["check_content", "in_order"]

# What is hashed at a time of pieces that are small: a call each would take longer than the hash.
_BLOCK_BYTES = 1 << 20


def in_order(
    head: int, spans: Sequence[tuple[int, int]], contents: Sequence[bytes]
) -> Sequence[bytes]:
    """The contents in the order of their spans, which leave no byte out and share none.

    Args:
        head: where the first of them begins.
        spans: begin and end that each caller got.
        contents: what each of them appended, in the order of `spans`.

    Raises: DataError: a caller got what cannot be.

    >>> in_order(5, [(7, 8), (5, 7)], [b"c", b"ab"])
    [b'ab', b'c']
    """
    order = sorted(range(len(spans)), key=spans.__getitem__)
    for number in order:
        begin, end = spans[number]
        if end - begin != len(contents[number]):
            raise DataError(
                f"{len(contents[number])} bytes were acknowledged as [{begin}, {end}), which is "
                f"{end - begin}"
            )
    if order and (begin := spans[order[0]][0]) != head:
        raise DataError(
            f"the first append was acknowledged at {begin}, the journal ended at {head}"
        )
    for before, after in pairwise(order):
        if spans[before][1] != spans[after][0]:
            raise DataError(
                f"appends were acknowledged as {spans[before]} and {spans[after]}, with nothing "
                "between them"
            )
    return [contents[number] for number in order]


async def check_content(
    client: AsyncClient, journal: str, head: int, pieces: Iterable[bytes], *, piece_bytes: int
) -> None:
    """Check that a journal has `pieces`, one after the other, from `head` to its end.

    Args:
        piece_bytes: size of each piece.

    Raises: DataError: it has something else, or more. Cancellation: safe.
    """
    expected, size = hashlib.sha1(usedforsecurity=False), 0
    left, at_once = iter(pieces), max(1, _BLOCK_BYTES // piece_bytes)
    while block := b"".join(islice(left, at_once)):
        expected.update(block)
        size += len(block)
    if (end := await client.write_head(journal)) != head + size:
        raise DataError(
            f"{journal}: {size} bytes were acknowledged from {head} on, but it ends at {end}"
        )
    found = hashlib.sha1(usedforsecurity=False)
    async with client.read(journal, head, end_offset=end) as reader:
        async for piece in reader:
            found.update(piece)
    if found.digest() != expected.digest():
        raise DataError(f"{journal}: [{head}, {end}) has other bytes than were acknowledged")
