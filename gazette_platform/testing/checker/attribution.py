"""Whose bytes are these? Finds appends by their content."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from gazette_platform.testing.history import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gazette_platform.testing.history import Append

__all__ = ["Acknowledged", "AcknowledgedContent", "ContentIndex", "Segment", "visible_max"]

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

    def candidates(self, content: bytes, at: int) -> Iterator[Append]:
        """Appends whose first bytes are at `at`, longest first."""
        for length in self._key_lengths:
            yield from self._by_key.get(content[at : at + length], ())

    def tile(self, content: bytes, begin: int, end: int, *, base: int) -> Iterator[Segment]:
        """Cut `content` from offset `begin` to `end` into whole appends and what is none.

        Taking the longest append that fits at each place is quick, and right unless a content
        begins with another one; if it leaves bytes over, the cut that leaves the fewest is looked for.

        Args:
            base: offset of the first byte of `content`.
        """
        window = content[begin - base : end - base]
        cut = self._cut(window, rest=None)
        if sum(length for _, length, op in cut if op is None):
            for _, _, op in cut:
                if op is not None:
                    self.uses[op.id] -= 1
            cut = self._cut(window, rest=self._fewest_left(window))
        for at, length, op in cut:
            yield Segment(begin + at, begin + at + length, op)

    def _cut(self, window: bytes, rest: list[int] | None) -> list[tuple[int, int, Append | None]]:
        """Position, length and append of each part; counts the appends as visible there.

        Args:
            rest: of each position, the fewest bytes that can be left over from it on; None: take
                the longest append that fits.
        """
        cut: list[tuple[int, int, Append | None]] = []
        at = stray = 0
        while at < len(window):
            op = self._choose(window, at, rest)
            if op is None:
                at += 1
                continue
            if stray < at:
                cut.append((stray, at - stray, None))
            self.uses[op.id] += 1
            cut.append((at, len(op.content), op))
            at = stray = at + len(op.content)
        if stray < at:
            cut.append((stray, at - stray, None))
        return cut

    def _choose(self, window: bytes, at: int, rest: list[int] | None) -> Append | None:
        fits = self._fits(window, at)
        if rest is not None:
            fits = [op for op in fits if rest[at + len(op.content)] == rest[at]]
        elif fits:
            fits = [op for op in fits if len(op.content) == len(fits[0].content)]
        unused = (op for op in fits if self.uses[op.id] < visible_max(op))
        return next(unused, fits[0] if fits else None)

    def _fewest_left(self, window: bytes) -> list[int]:
        """Of each position, the fewest bytes that belong to no append from it on."""
        rest = [0] * (len(window) + 1)
        for at in reversed(range(len(window))):
            ends = [rest[at + len(op.content)] for op in self._fits(window, at)]
            rest[at] = min(*ends, rest[at + 1] + 1, len(window))
        return rest

    def _fits(self, content: bytes, at: int) -> list[Append]:
        """Appends whose whole content is at `at`, longest first."""
        return [op for op in self.candidates(content, at) if content.startswith(op.content, at)]

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


@final
class Acknowledged:
    """Answers of any instant: up to where had the journal been acknowledged?"""

    def __init__(self, appends: Sequence[Append]) -> None:
        ops = sorted(
            (op for op in appends if op.outcome is Outcome.OK), key=lambda op: op.completed_at
        )
        self._times = [op.completed_at for op in ops]
        self._furthest: list[Append] = []
        for op in ops:
            furthest = self._furthest[-1] if self._furthest else op
            self._furthest.append(op if op.end >= furthest.end else furthest)

    def before(self, at: float) -> Append | None:
        """Of the appends that had ended before `at`, the one that reaches furthest."""
        number = bisect_left(self._times, at)
        return self._furthest[number - 1] if number else None


@final
class AcknowledgedContent:
    """What a journal held by its acknowledgements, even where it was pruned since."""

    def __init__(self, appends: Iterable[Append]) -> None:
        self._ops = sorted(
            (op for op in appends if op.outcome is Outcome.OK and op.content),
            key=lambda op: op.begin,
        )
        self._begins = [op.begin for op in self._ops]

    def within(self, begin: int, end: int) -> tuple[bytes, list[Append]] | None:
        """The bytes from `begin` to `end`, and whose they are; None: not all are known."""
        content, ops = b"", []
        number = max(0, bisect_right(self._begins, begin) - 1)
        for op in self._ops[number:]:
            at = begin + len(content)
            if at >= end or op.begin > at:
                break
            content += op.content[at - op.begin : end - op.begin]
            ops.append(op)
        return (content, ops) if begin + len(content) == end else None
