"""Hints: what of a recovery log is to be read to have the files of a store.

`FsmHints` names the live files, each with the segments of the log that made it, so that playback can
skip whatever is dead. Etcd has it as JSON, in the bytes of Go's `encoding/json`. Pure: no I/O, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Self, final

import orjson
from google.protobuf.message import DecodeError

from gazette_platform.consumer.recoverylog.segments import Segment, SegmentSet
from gazette_platform.errors import DataError, ValidationError
from gazette_platform.protocol import escape_html, validate_journal_name
from gazette_platform.protocol.names import check_field
from gazette_platform.protocol.pb import recoverylog_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["FnodeSegments", "FsmHints", "Property", "pick_hints"]

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
    """The log that is read on behind all segments, and that of segments which name none."""
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
            if self.log == segment.log:
                raise ValidationError(
                    f"expected no Log where it is that of the hints ({segment.log})",
                    path=f"Segments[{index}]",
                )
        if node.fnode != node.segments[0].first_seq_no:
            raise ValidationError(
                f"expected Fnode to be the first FirstSeqNo ({node.fnode}; expected "
                f"{node.segments[0].first_seq_no})"
            )


def pick_hints(slots: Sequence[FsmHints | None], log: str) -> FsmHints:
    """The hints to play: the first that are there, else those of an empty store.

    Args:
        slots: primary first, then backups, newest first; None where there is no value.
        log: of the shard.
    """
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
