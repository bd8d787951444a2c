"""Hints: which parts of a recovery log to read for the files of a store, and which parts to prune.

`FsmHints` names the live files, each with the segments of the log that made it, so that playback can
skip dead parts. Etcd has it as JSON, in the bytes of Go's `encoding/json`. Pure: no I/O, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, Self, final

import orjson
from google.protobuf.message import DecodeError
from typing_extensions import override

from gazette_platform.errors import DataError, ValidationError
from gazette_platform.protocol import escape_html, validate_journal_name
from gazette_platform.protocol.names import check_field
from gazette_platform.protocol.pb import recoverylog_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


# ------------------------------------------------------------------ hints

_INT64_MAX: Final = (1 << 63) - 1


@final
@dataclass(frozen=True, slots=True)
class Property:
    """A small file that is replaced as a whole."""

    path: str
    content: str


@final
@dataclass(frozen=True, slots=True)
class FnodeSegments:
    """A live file, and the segments that hold its operations."""

    fnode: int
    """Sequence number of the operation that created it."""
    segments: tuple[Segment, ...] = ()
    """One per run of an author in a log; the log is empty where it is that of the hints."""


@final
@dataclass(frozen=True, slots=True)
class FsmHints:
    """What is to be read, and where to read on."""

    log: str = ""
    """The log that is read after all segments, and that of segments which name none."""
    live_nodes: tuple[FnodeSegments, ...] = ()
    """Ascending by fnode; empty of a store without files."""
    properties: tuple[Property, ...] = ()

    # ------------------------------------------------------------------ forms

    @classmethod
    def from_pb(cls, message: pb.FSMHints) -> Self:
        """The hints of a message, not validated."""
        return cls(
            message.log,
            tuple(
                FnodeSegments(node.fnode, tuple(map(Segment.from_pb, node.segments)))
                for node in message.live_nodes
            ),
            tuple(Property(each.path, each.content) for each in message.properties),
        )

    def to_pb(self) -> pb.FSMHints:
        """The hints as a message."""
        message = pb.FSMHints(log=self.log)
        for node in self.live_nodes:
            message.live_nodes.add(
                fnode=node.fnode, segments=[segment.to_pb() for segment in node.segments]
            )
        for each in self.properties:
            message.properties.add(path=each.path, content=each.content)
        return message

    @classmethod
    def from_bytes(cls, value: bytes) -> Self:
        """The hints of a value of etcd: JSON if it begins with ``{``, else protobuf. Not validated.

        Raises: DataError: it is neither.
        """
        # No `FSMHints` message begins with this byte: it would be a group, field 15. So one byte tells the forms apart.
        if not value.startswith(b"{"):
            try:
                return cls.from_pb(pb.FSMHints.FromString(value))
            except DecodeError as err:
                raise _undecodable(value, err) from err
        try:
            document = orjson.loads(value)
            return cls(
                _field(document, "log", str),
                tuple(map(_node_of, _listed(document, "live_nodes"))),
                tuple(
                    Property(_field(each, "path", str), _field(each, "content", str))
                    for each in _listed(document, "properties")
                ),
            )
        except (ValueError, TypeError, AttributeError) as err:
            raise _undecodable(value, err) from err

    def to_json(self) -> bytes:
        """The JSON that is kept in etcd.

        >>> FsmHints("a/log").to_json().decode()
        '{"log":"a/log","live_nodes":null,"properties":null}'
        """
        nodes = [
            _present(fnode=node.fnode)
            | {"segments": [_segment_json(each) for each in node.segments] or None}
            for node in self.live_nodes
        ]
        properties = [_present(path=each.path, content=each.content) for each in self.properties]
        # Go prints an empty list that was never made as `null`, and leaves scalars out that are zero.
        document = _present(log=self.log) | {
            "live_nodes": nodes or None,
            "properties": properties or None,
        }
        return escape_html(orjson.dumps(document))

    # ------------------------------------------------------------------ rules

    def segments_of(self, node: FnodeSegments) -> tuple[Segment, ...]:
        """The segments of a live file, each with its log."""
        return tuple(
            segment if segment.log else replace(segment, log=self.log) for segment in node.segments
        )

    def segments(self) -> SegmentSet:
        """The segments of all live files, merged, each with its log.

        Raises: ValidationError: they contradict each other.
        """
        return SegmentSet(each for node in self.live_nodes for each in self.segments_of(node))

    def logs(self) -> tuple[str, ...]:
        """All logs that are to be read, in order; the last one is that of the hints."""
        names = [segment.log for segment in self.segments()]
        return (*dict.fromkeys(name for name in names if name != self.log), self.log)

    def validate(self) -> None:
        """Check that the hints can be played.

        Raises: ValidationError: the path names the field.
        """
        check_field("Log", validate_journal_name, self.log)
        last_fnode = 0
        for index, node in enumerate(self.live_nodes):
            check_field(f"LiveNodes[{index}]", self._validate_node, node)
            if node.fnode <= last_fnode:
                raise ValidationError(
                    f"expected monotonic Fnode ({node.fnode}; expected > {last_fnode})",
                    path=f"LiveNodes[{index}]",
                )
            last_fnode = node.fnode
        # Playback continues after the last segment, in the log of the hints. Were they different logs, the
        # operations between them would be unknown.
        segments = self.segments()
        if len(segments) and segments[-1].log != self.log:
            raise ValidationError(
                f"expected the Log of the last Segment to be that of the hints ({segments[-1].log}; "
                f"expected {self.log})"
            )
        seen: set[str] = set()
        for index, each in enumerate(self.properties):
            if each.path in seen:
                raise ValidationError(
                    f"expected unique paths ({each.path})", path=f"Properties[{index}]"
                )
            seen.add(each.path)

    def _validate_node(self, node: FnodeSegments) -> None:
        if not node.segments:
            raise ValidationError("expected at least one Segment", path="Segments")
        for index, segment in enumerate(node.segments):
            check_field(f"Segments[{index}]", segment.validate)
            # Gazette's rule, so that the same hints have one form.
            if self.log == segment.log:
                raise ValidationError(
                    f"expected no Log where it is that of the hints ({segment.log})",
                    path=f"Segments[{index}]",
                )
        # A file is named by the operation that created it, so its first segment begins with that one.
        if node.fnode != node.segments[0].first_seq_no:
            raise ValidationError(
                f"expected Fnode to be the first FirstSeqNo ({node.fnode}; expected "
                f"{node.segments[0].first_seq_no})"
            )


def pick_hints(slots: Sequence[FsmHints | None], log: str) -> FsmHints:
    """The hints to play: the first that exist, else those of an empty store.

    Args:
        slots: primary first, then backups, newest first; None where there is no value.
        log: of the shard.
    """
    # Slots are not combined. Each is complete by itself, and playback goes on after its last segment, so an older one
    # costs more reading and loses nothing, as long as pruning has spared its segments (`needs_of`).
    return next((hints for hints in slots if hints is not None), FsmHints(log))


def _undecodable(value: bytes, err: Exception) -> DataError:
    return DataError(
        f"hints of {len(value)} bytes, that begin with {value[:16]!r}, are neither JSON nor protobuf: "
        f"{err} (recover from a backup of the hints)"
    )


def _present(**fields: str | int) -> dict[str, Any]:
    """The fields that Go writes: those with a value."""
    return {name: value for name, value in fields.items() if value}


def _segment_json(segment: Segment) -> dict[str, Any]:
    return _present(
        author=segment.author,
        first_seq_no=segment.first_seq_no,
        first_offset=segment.first_offset,
        first_checksum=segment.first_checksum,
        last_seq_no=segment.last_seq_no,
        last_offset=segment.last_offset,
        log=segment.log,
    )


def _field(document: dict[str, Any], name: str, kind: type[Any]) -> Any:
    value = document.get(name)
    if value is None:
        return kind()
    if type(value) is not kind:
        raise TypeError(f"{name}: expected {kind.__name__}, found {value!r}")
    # Refused here, with the name of the field. Protobuf would refuse it later, when another process asks for the hints.
    if kind is int and value > _INT64_MAX:
        raise ValueError(f"{name}: {value} is more than 63 bits")
    return value


def _listed(document: dict[str, Any], name: str) -> list[dict[str, Any]]:
    values: list[dict[str, Any]] = _field(document, name, list)
    return values


def _node_of(document: dict[str, Any]) -> FnodeSegments:
    segments = tuple(
        Segment(
            _field(each, "author", int),
            _field(each, "first_seq_no", int),
            _field(each, "first_offset", int),
            _field(each, "first_checksum", int),
            _field(each, "last_seq_no", int),
            _field(each, "last_offset", int),
            _field(each, "log", str),
        )
        for each in _listed(document, "segments")
    )
    return FnodeSegments(_field(document, "fnode", int), segments)


# ------------------------------------------------------------------ segments

# Which parts of recovery logs hold operations that are still needed.
#
# A *segment* is a run of consecutive operations of one author in one log. A `SegmentSet` has those of a
# whole store: ascending by sequence number, and no two of them overlap. Pure: no I/O, no clock.

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

    The order in which segments come makes no difference. Building a set of n takes O(n log n).
    """

    __slots__ = ("_segments",)

    def __init__(self, segments: Iterable[Segment] = ()) -> None:
        """Raises: ValidationError: one is invalid, or they contradict each other."""
        merged: list[Segment] = []
        # Once they are sorted, a segment can overlap only the last one that was merged.
        for segment in sorted(segments, key=_place):
            segment.validate()
            if merged:
                merged[-1:] = merge_segments(merged[-1], segment)
            else:
                merged.append(segment)
        _check_offsets(merged)
        self._segments = tuple(merged)

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
    # A player reads segments in order of numbers and only moves forward in a log: were an offset to fall, it would pass
    # over what it needs. Only what the present recorder wrote has unknown ends: what it played before has known ones.
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


# ------------------------------------------------------------------ pruning


@final
@dataclass(frozen=True, slots=True)
class ShardHints:
    """A shard's log, and the value of each of its slots of hints."""

    log: str
    slots: tuple[FsmHints | None, ...]
    """Primary and all backups; None where there is no value."""

    @property
    def is_complete(self) -> bool:
        """Whether each slot has hints with files, so that nothing is known to be unknown."""
        return bool(self.slots) and all(
            hints is not None and hints.live_nodes for hints in self.slots
        )


@final
@dataclass(frozen=True, slots=True)
class LogNeeds:
    """What is known of the logs of many shards."""

    segments: Mapping[str, tuple[Segment, ...]]
    """By log that may be pruned: what some hints need. They overlap each other."""
    skipped: tuple[str, ...]
    """Logs not to touch, as hints of their shards are missing or have no files; ascending."""


def needs_of(shards: Iterable[ShardHints]) -> LogNeeds:
    """What the hints of all `shards` need. They have to be all that share history in their logs.

    The last segment of each hints has no end, as playback continues after it.

    Raises: ValidationError: hints contradict themselves.
    """
    segments: dict[str, list[Segment]] = {}
    skipped: set[str] = set()
    for shard in shards:
        # An empty slot does not prove that nothing is needed: a shard without hints is played from offset 0.
        if not shard.is_complete:
            skipped.add(shard.log)
        # The present part of incomplete hints still counts, for the other logs that they name.
        for hints in shard.slots:
            if hints is None:
                continue
            ordered: Sequence[Segment] = tuple(hints.segments())
            # Playback reads on after the last segment, to what was recorded since the hints were made.
            if ordered:
                ordered = (*ordered[:-1], replace(ordered[-1], last_offset=0))
            for segment in ordered:
                segments.setdefault(segment.log, []).append(segment)
    return LogNeeds(
        {log: tuple(found) for log, found in segments.items() if log not in skipped},
        tuple(sorted(skipped)),
    )


def judge_fragment(
    segments: Sequence[Segment], *, begin: int, end: int, is_persisted: bool
) -> Literal["keep", "delete", "abort"]:
    """What to do about a fragment of a log.

    Args:
        segments: that are needed of the log; without any, all is kept.
        begin: offset of its first byte.
        end: after its last byte; 0: it still grows.
        is_persisted: whether it is in a store.

    Returns: ``abort`` if nothing needs it although it is not stored yet: then it is so new that a
        shard which writes it is missing from the selection, and nothing more may be deleted.
    """
    # A log that no hints name may be that of a shard which has not kept hints of it yet.
    if not segments or any(segment.overlaps(begin, end) for segment in segments):
        return "keep"
    return "delete" if is_persisted else "abort"
