"""Which parts of recovery logs hold operations that are still needed.

A *segment* is a run of consecutive operations of one author in one log. A `SegmentSet` has those of a
whole store: ascending by sequence number, and no two of them overlap. Pure: no I/O, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Self, final

from typing_extensions import override

from gazette_platform.errors import ValidationError
from gazette_platform.protocol.pb import recoverylog_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["AUTHOR_MAX", "Segment", "SegmentSet", "merge_segments"]

AUTHOR_MAX: Final = (1 << 32) - 1


@final
@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive operations of one author in one log."""

    author: int
    """1 to `AUTHOR_MAX`."""
    first_seq_no: int
    first_offset: int = 0
    """Where the first operation begins, in bytes; the log before it needs no reading.

    Exact if a player has made it. A recorder only knows an offset that is not after it.
    """
    first_checksum: int = 0
    """The one that the first operation carries."""
    last_seq_no: int = 0
    """Inclusive."""
    last_offset: int = 0
    """After the last operation and its content; 0 if not known, as in what a recorder has made."""
    log: str = ""

    @classmethod
    def from_pb(cls, message: pb.Segment) -> Self:
        """The segment of a message, not validated."""
        return cls(
            message.author,
            message.first_seq_no,
            message.first_offset,
            message.first_checksum,
            message.last_seq_no,
            message.last_offset,
            message.log,
        )

    def to_pb(self) -> pb.Segment:
        """The segment as a message."""
        return pb.Segment(
            author=self.author,
            first_seq_no=self.first_seq_no,
            first_offset=self.first_offset,
            first_checksum=self.first_checksum,
            last_seq_no=self.last_seq_no,
            last_offset=self.last_offset,
            log=self.log,
        )

    def validate(self) -> None:
        """Check each field, and their order.

        Raises: ValidationError.
        """
        if not 0 < self.author <= AUTHOR_MAX:
            raise ValidationError(
                f"invalid Author ({self.author}; expected 1 <= Author <= {AUTHOR_MAX})"
            )
        if self.first_seq_no <= 0:
            raise ValidationError(f"invalid FirstSeqNo ({self.first_seq_no}; expected > 0)")
        if self.first_offset < 0:
            raise ValidationError(f"invalid FirstOffset ({self.first_offset}; expected >= 0)")
        if not 0 <= self.first_checksum <= AUTHOR_MAX:
            raise ValidationError(
                f"invalid FirstChecksum ({self.first_checksum}; expected 32 bits)"
            )
        if self.last_seq_no < self.first_seq_no:
            raise ValidationError(
                f"invalid LastSeqNo ({self.last_seq_no}; expected >= FirstSeqNo {self.first_seq_no})"
            )
        if self.last_offset and self.last_offset <= self.first_offset:
            raise ValidationError(
                f"invalid LastOffset ({self.last_offset}; expected 0, or > FirstOffset "
                f"{self.first_offset})"
            )

    def overlaps(self, begin: int, end: int) -> bool:
        """Whether bytes [begin, end) of its log may hold some of it.

        Args:
            begin: offset of the first byte.
            end: after the last byte; 0: the log goes on.
        """
        return (self.first_offset < end or end == 0) and (
            self.last_offset > begin or self.last_offset == 0
        )


def merge_segments(one: Segment, other: Segment) -> tuple[Segment, ...]:
    """One segment in place of two that overlap or adjoin, else both, in order.

    Those that only adjoin may be of different authors or logs, and then stay two. The order of the
    arguments makes no difference.

    Raises: ValidationError: they contradict each other.
    """
    low, high = sorted((one, other), key=lambda each: (each.first_seq_no, each.last_seq_no))
    if low.last_seq_no + 1 < high.first_seq_no:
        return low, high
    if (low.author, low.log) != (high.author, high.log):
        if low.last_seq_no < high.first_seq_no:
            return low, high
        what = "Author" if low.author != high.author else "Log"
        raise _contradiction(low, high, f"expected {what} equality where they overlap")
    first_offset = low.first_offset
    if low.first_seq_no == high.first_seq_no:
        if low.first_checksum != high.first_checksum:
            raise _contradiction(low, high, "expected FirstChecksum equality")
        # Both are not behind the operation, so that the greater one is nearer to it.
        first_offset = max(low.first_offset, high.first_offset)
    elif low.first_offset > high.first_offset:
        raise _contradiction(low, high, "expected monotonic FirstOffset")
    ahead, behind = sorted((low, high), key=lambda each: each.last_seq_no)
    last_offset = behind.last_offset
    if ahead.last_seq_no == behind.last_seq_no:
        last_offset = max(low.last_offset, high.last_offset)  # what is known, if one of them is
    elif ahead.last_offset > last_offset != 0:
        raise _contradiction(low, high, "expected monotonic LastOffset")
    merged = replace(
        low, first_offset=first_offset, last_seq_no=behind.last_seq_no, last_offset=last_offset
    )
    return (merged,)


def _contradiction(low: Segment, high: Segment, expected: str) -> ValidationError:
    return ValidationError(f"{expected} (segments {low} and {high}; the hints are not of one log)")


@final
class SegmentSet:
    """Segments that were merged: ascending by sequence number, without overlaps.

    It depends on what it is of, and not on the order in which that comes. Building it takes
    O(n log n), and adding one segment as well.
    """

    __slots__ = ("_segments",)

    def __init__(self, segments: Iterable[Segment] = ()) -> None:
        """Raises: ValidationError: one is invalid, or they contradict each other."""
        merged: list[Segment] = []
        for segment in sorted(segments, key=_place):
            segment.validate()
            if merged:
                merged[-1:] = merge_segments(merged[-1], segment)
            else:
                merged.append(segment)
        _check_offsets(merged)
        self._segments = tuple(merged)

    def with_added(self, *segments: Segment) -> SegmentSet:
        """This set with more segments. Raises: ValidationError: as of the constructor."""
        return SegmentSet((*self._segments, *segments))

    def overlapping(self, log: str, begin: int, end: int) -> SegmentSet:
        """The segments that bytes [begin, end) of `log` may hold some of; `end` 0: the log goes on."""
        return SegmentSet(s for s in self._segments if s.log == log and s.overlaps(begin, end))

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def __len__(self) -> int:
        return len(self._segments)

    def __getitem__(self, index: int) -> Segment:
        return self._segments[index]

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, SegmentSet) and self._segments == other._segments

    @override
    def __hash__(self) -> int:
        return hash(self._segments)

    @override
    def __repr__(self) -> str:
        return f"SegmentSet({list(self._segments)!r})"


def _place(segment: Segment) -> tuple[int, int]:
    return segment.first_seq_no, segment.last_seq_no


def _check_offsets(segments: list[Segment]) -> None:
    """Check what holds between all segments of a set, be they next to each other or not.

    Raises: ValidationError.
    """
    latest: dict[str, Segment] = {}
    previous: Segment | None = None
    for segment in segments:
        if previous is not None and not previous.last_offset:
            if previous.log != segment.log:
                raise _contradiction(previous, segment, "expected a LastOffset before another Log")
            if segment.last_offset:
                raise _contradiction(previous, segment, "expected LastOffsets up to the known ones")
        before = latest.get(segment.log)
        if before is not None:
            if before.first_offset > segment.first_offset:
                raise _contradiction(before, segment, "expected monotonic FirstOffset")
            if segment.last_offset and before.last_offset > segment.last_offset:
                raise _contradiction(before, segment, "expected monotonic LastOffset")
        latest[segment.log] = previous = segment
