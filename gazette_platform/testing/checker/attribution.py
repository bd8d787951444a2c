"""Whose bytes are these? Finds appends by their content."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from gazette_platform.testing.history import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gazette_platform.testing.history import Append

__all__ = ["ContentIndex", "Segment"]

# Generated payloads differ within these bytes, so that a look-up gives one candidate.
_KEY_BYTES = 16


@dataclass(frozen=True, slots=True)
class Segment:
    """A span of a journal, and the append whose whole content it is; None: of no append."""

    begin: int
    end: int
    op: Append | None
    is_acknowledged: bool = False
    """Whether it is where the append was acknowledged; else it is a copy, or not acknowledged."""


@final
class ContentIndex:
    """The appends of one journal by content.

    Appends of equal content cannot be told apart: then those that may still be visible come first,
    in the order of their invocation.
    """

    def __init__(self, appends: Iterable[Append]) -> None:
        self._by_key: defaultdict[bytes, list[Append]] = defaultdict(list)
        self.length_max = 0
        for op in sorted(appends, key=lambda op: (-len(op.content), op.invoked_at)):
            if op.content:
                self._by_key[op.content[:_KEY_BYTES]].append(op)
                self.length_max = max(self.length_max, len(op.content))
        short = {len(key) for key in self._by_key}
        self._key_lengths = sorted(short | {_KEY_BYTES}, reverse=True)
        self.uses: Counter[int] = Counter()

    def take(self, content: bytes, at: int) -> Append | None:
        """The append whose whole content begins at `at`, if any; counts it as visible there."""
        fits = [op for op in self.candidates(content, at) if content.startswith(op.content, at)]
        if not fits:
            return None
        longest = [op for op in fits if len(op.content) == len(fits[0].content)]
        op = next((op for op in longest if self.uses[op.id] < visible_max(op)), longest[0])
        self.uses[op.id] += 1
        return op

    def candidates(self, content: bytes, at: int) -> Iterator[Append]:
        """Appends whose first bytes are at `at`, longest first."""
        for length in self._key_lengths:
            yield from self._by_key.get(content[at : at + length], ())

    def tile(self, content: bytes, begin: int, end: int, *, base: int) -> Iterator[Segment]:
        """Cut `content` from offset `begin` to `end` into whole appends and what is none.

        Args: base: offset of the first byte of `content`.
        """
        at = stray = 0
        window = content[begin - base : end - base]
        while at < len(window):
            op = self.take(window, at)
            if op is None:
                at += 1
                continue
            if stray < at:
                yield Segment(begin + stray, begin + at, None)
            stray = at + len(op.content)
            yield Segment(begin + at, begin + stray, op)
            at = stray
        if stray < at:
            yield Segment(begin + stray, begin + at, None)

    def torn(self, content: bytes) -> list[Append]:
        """Appends of which `content` holds a part: a beginning, an end, or something between."""
        found = {op.id: op for at in range(len(content)) for op in self.candidates(content, at)}
        if not found and content:
            every = (op for ops in self._by_key.values() for op in ops)
            found = {op.id: op for op in every if content in op.content}
        return list(found.values())

    def seen_at(self, content: bytes, at: int) -> Append | None:
        """The append that covers position `at` of `content`, which may cut it short at the end."""
        for start in range(at, max(-1, at - self.length_max), -1):
            for op in self.candidates(content, start):
                piece = content[start : start + len(op.content)]
                if len(op.content) > at - start and op.content.startswith(piece):
                    return op
        return None


def visible_max(op: Append) -> int:
    """How often an append may be visible, the acknowledged place included."""
    return 0 if op.outcome is Outcome.FAIL else op.attempts
