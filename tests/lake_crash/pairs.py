"""Pairs of calls that followed one another in a life, and between which of them one went wrong.

A life is *aimed*: it is killed between the first two calls between which nothing went wrong yet, in any
case, whatever its history has planned for it. It lives again then, and gets on further each time, so that in
the end nothing is left between which a registrar was not killed.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["AIMED", "Pair", "Pairs", "pairs_of"]

AIMED = "! aimed"
"""How the last line of a life begins that was killed so."""


class Pair(NamedTuple):
    """A call that took effect and the one that was begun next; empty: the begin, or end, of a life."""

    before: str
    begun: str

    def __str__(self) -> str:
        return f"{self.before or 'its begin'} and {self.begun or 'its end'}"


class Pairs:
    """Of all lives together. Threads of several cases may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: set[Pair] = set()
        self._wrong: Counter[Pair] = Counter()

    def note(self, calls: Iterable[str]) -> None:
        """What one life did, as `Calls` writes it."""
        with self._lock:
            for pair, is_wrong in pairs_of(calls):
                self._seen.add(pair)
                self._wrong.update([pair] if is_wrong else [])

    @property
    def seen(self) -> frozenset[Pair]:
        """All that there were."""
        with self._lock:
            return frozenset(self._seen)

    @property
    def wrong(self) -> Counter[Pair]:
        """How often a life ended, or went wrong, there."""
        with self._lock:
            return self._wrong.copy()

    @property
    def left(self) -> list[Pair]:
        """Where nothing ever went wrong."""
        return sorted(self.seen - self.wrong.keys())


def pairs_of(calls: Iterable[str]) -> Iterator[tuple[Pair, bool]]:
    """Pairs of one life in their order, and whether something went wrong there."""
    before = begun = ""
    for line in calls:
        if line.startswith("! "):
            yield Pair(before, begun), True
        elif line.endswith("."):
            before, begun = line.removesuffix("."), ""
        else:
            begun = line
            yield Pair(before, begun), False
