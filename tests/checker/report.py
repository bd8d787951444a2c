"""What a check found, and whose bytes it found: appends by their content."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from typing_extensions import override

from tests.checker.history import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tests.checker.history import Append, Poll

ANOMALIES = {
    "lost-write": "an acknowledged append is not in the journal",
    "duplicate": "an append occurs more often than it was attempted",
    "inconsistent-offsets": "one offset held different bytes, by acknowledgements or reads",
    "unexpected": "bytes that no client appended",
    "unseen": "acknowledged appends of a journal whose final content is not in the history",
    "G0": "only a part of an append is visible: writes were torn or mixed",
    "G0-realtime": "an append lies before one that had ended before it was invoked",
    "nonmonotonic-send": "the same, of one process",
    "G1a": "an append that failed is visible",
    "G1c-realtime": "a read saw an append before it was invoked",
    "precommitted-read": "a read saw content, or a write head, that was never committed",
    "poll-skip": "a reader continued after content that it was not given",
    "nonmonotonic-poll": "a reader went back",
    "int-poll-skip": "the pieces of one poll leave content out",
    "int-nonmonotonic-poll": "the pieces of one poll go back",
    "stale-head": "a reader got a head below its content, or below what had been acknowledged before",
    "nonmonotonic-head": "a reader got a head below the one that it got before",
    "stuck-read": "a reader waited too long for content that was acknowledged",
    "wrong-refusal": "an append was refused for a reason that did not hold while it was under way",
    "nonlinearizable": "registers do not behave as compare-and-set",
}
"""The anomalies by name, as Jepsen's log checkers and Elle have them, and what each means here."""


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One thing that must not happen, with the fewest operations that show it."""

    name: str
    """Key of `ANOMALIES`."""
    journal: str
    text: str
    operations: tuple[Append | Poll, ...] = ()
    """By the time of their invocation."""

    @override
    def __str__(self) -> str:
        lines = [f"{self.name} ({ANOMALIES[self.name]}) in {self.journal}: {self.text}"]
        lines += [f"  {operation}" for operation in self.operations]
        return "\n".join(lines)


@dataclass(slots=True, kw_only=True)
class Report:
    """The outcome of a check."""

    anomalies: list[Anomaly] = field(default_factory=list)
    suppressed: Counter[str] = field(default_factory=Counter)
    """Anomalies by name beyond the first few of a journal, which are counted only."""
    operations: int = 0
    appends_ok: int = 0
    appends_failed: int = 0
    appends_unknown: int = 0
    unknown_visible: int = 0
    """Appends of unknown outcome that turned out to be in their journal."""
    polls: int = 0
    bytes_read: int = 0
    unseen: int = 0
    """Acknowledged appends that no poll saw, though there were polls of their journal."""
    worst_realtime_lag_s: float = 0.0
    """Longest time from an acknowledgement until a reader that follows the journal saw it."""

    @property
    def is_valid(self) -> bool:
        """Whether nothing was found."""
        return not self.anomalies

    @property
    def anomaly_count(self) -> int:
        """All anomalies, suppressed ones included."""
        return len(self.anomalies) + self.suppressed.total()

    @property
    def shortest(self) -> Anomaly | None:
        """The anomaly that takes the fewest operations to explain, and of these the earliest."""
        return min(self.anomalies, key=_effort, default=None)

    def add(self, anomaly: Anomaly, *, kept_max: int) -> None:
        """Take in an anomaly; beyond `kept_max` of a name and journal they are only counted."""
        kept = sum(a.name == anomaly.name and a.journal == anomaly.journal for a in self.anomalies)
        if kept < kept_max:
            self.anomalies.append(anomaly)
        else:
            self.suppressed[anomaly.name] += 1

    @override
    def __str__(self) -> str:
        counts = (
            f"{self.operations} operations: appends {self.appends_ok} ok, {self.appends_failed} "
            f"failed, {self.appends_unknown} unknown ({self.unknown_visible} of them visible); "
            f"{self.polls} polls of {self.bytes_read} bytes, {self.unseen} appends unseen, "
            f"worst lag {self.worst_realtime_lag_s:.3f} s; {self.anomaly_count} anomalies"
        )
        lines = [counts]
        lines += [str(anomaly) for anomaly in sorted(self.anomalies, key=_effort)]
        lines += [f"and {count} more of {name}" for name, count in sorted(self.suppressed.items())]
        return "\n".join(lines)


def _effort(anomaly: Anomaly) -> tuple[int, float]:
    first = min((op.invoked_at for op in anomaly.operations), default=math.inf)
    return len(anomaly.operations), first


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
        """Return appends that `content` holds a part of: a beginning, an end, or something between."""
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
