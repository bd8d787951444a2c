"""Whether all sums exist, once, and right, in time. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from examples.stream_sum.messages import Sum, id_of
from tests.harness import Judged, Late, headline

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tests.soak.summer import Tally


@dataclass(frozen=True, slots=True)
class Sums:
    """What came of the streams."""

    wrong: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    twice: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    """Sums of streams that were not published to their end."""

    @property
    def count(self) -> int:
        """Streams that are not right."""
        return len({*self.wrong, *self.missing, *self.twice, *self.unknown})

    def reasons(self, what: str = "sums", *, is_all_read: bool = True) -> list[str]:
        """Return a line for each kind of trouble.

        Args:
            what: they are.
            is_all_read: whether consumers had read all chunks; else a sum may only be late.
        """
        told = {
            "wrong": self.wrong,
            "missing": self.missing,
            "duplicated": self.twice,
            "of streams that were not published": self.unknown,
        }
        found = []
        for how, streams in told.items():
            text = f"{len(streams)} {what} are {how}: {' '.join(streams[:5])}"
            if streams:
                found.append(Late(text) if how == "missing" and not is_all_read else text)
        return found


def compare(expected: Mapping[bytes, Sum], found: Iterable[Sum]) -> Sums:
    """Compare all sums that were published with those of the streams, by stream."""
    counts: Counter[bytes] = Counter()
    wrong = set()
    for total in found:
        stream = id_of(total)
        counts[stream] += 1
        wanted = expected.get(stream)
        if wanted and (wanted.SeqNo, wanted.Value) != (total.SeqNo, total.Value):
            wrong.add(stream)

    def names(streams: Iterable[bytes]) -> tuple[str, ...]:
        return tuple(sorted(stream.hex() for stream in streams))

    return Sums(
        wrong=names(wrong),
        missing=names(expected.keys() - counts.keys()),
        twice=names(stream for stream, count in counts.items() if count > 1 and stream in expected),
        unknown=names(counts.keys() - expected.keys()),
    )


def miscounted(tallies: Sequence[Tally]) -> list[str]:
    """What is wrong with the count of the shard behind: it goes up by one, from 1, in the order of its journal."""
    for number, tally in enumerate(tallies, start=1):
        if tally.Number != number:
            counted = f"sum {number} that was passed on was counted as number {tally.Number}"
            return [f"{counted}: its shard does not count exactly once"]
    return []


@dataclass(frozen=True, slots=True)
class SoakResult(Judged):
    """How a run went."""

    seed: int
    streams: int
    """Whose sums were awaited."""
    faults: Counter[str]
    sums: Sums
    passed_on: Sums
    """The same, by the shard after them."""
    late_s_max: float
    """Seconds from the last chunk of a stream to its sum, at most."""
    reasons: list[str] = field(default_factory=list)
    """Return why it is not ok, the clearest reason first."""
    folder: str = ""
    """Where logs are kept; empty: they are not."""
    left_out: int = 0
    """Parts that this machine cannot play."""
    starved_by: str = ""
    """What starved the run, see `starvation.starved_by`; empty: nothing did."""

    @property
    def summary(self) -> str:
        """The last line of the run."""
        left_out = f"left_out={self.left_out} " if self.left_out else ""
        wrong = self.sums.count + self.passed_on.count
        line = (
            f"soak: {self.state} seed={self.seed} {left_out}streams={self.streams} "
            f"faults={self.faults.total()} wrong={wrong} late_s_max={self.late_s_max:.1f}"
        )
        if self.is_ok:
            return line
        return f"{line}: {headline(self.reasons, self.starved_by)}"
