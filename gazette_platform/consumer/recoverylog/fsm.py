"""The state of a recorded directory: which operation comes next, and which files are live.

Whoever reads a log applies all that is in it, and every reader takes the same operations and leaves the
same ones out: those of recorders that came too late, those written twice, and those of files that the
hints know to be dead. Pure: no I/O, no clock.

State and operation, in the order of the checks:

    hinted segments left, and by another author than the first of them  NOT_HINTED_AUTHOR
    not the next sequence number                                        WRONG_SEQ_NO
    not the checksum of all before                                      CHECKSUM_MISMATCH
    no create, but the next hinted fnode is to be created by it         EXPECTED_HINTED_FNODE
    create or link    of a path that is a link / a property             LINK_EXISTS / PROPERTY_EXISTS
    create            not of the next hinted fnode, while hints last    NOT_TRACKED
    link, unlink, write of an fnode that is not live                    NOT_TRACKED
    unlink            of a path that the fnode does not have            NO_SUCH_LINK
    property          of a path that is a link                          LINK_EXISTS
    otherwise                                                           APPLIED

Only APPLIED and NOT_TRACKED advance the state.

Source: Gazette consumer/recoverylog/fsm.go. Departs where hinted segments are left, but no hinted fnode:
a file that is created there is dead by the time of the hints, and is not tracked. Its removal may be in
a part of the log that is skipped, and it would come to life again. A property of the hints is kept
against older contents for the same reason.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import TYPE_CHECKING, Final, final

import google_crc32c

from gazette_platform.consumer.recoverylog.hints import FnodeSegments, FsmHints, Property, Segment
from gazette_platform.message.framing import FIXED_HEADER, frame_fixed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gazette_platform.protocol.pb import recoverylog_pb2 as pb


class Verdict(enum.Enum):
    """What became of an operation."""

    APPLIED = "applied"
    NOT_HINTED_AUTHOR = "not the hinted author"
    WRONG_SEQ_NO = "wrong sequence number"
    CHECKSUM_MISMATCH = "checksum mismatch"
    LINK_EXISTS = "link exists"
    PROPERTY_EXISTS = "property exists"
    NOT_TRACKED = "fnode not tracked"
    EXPECTED_HINTED_FNODE = "expected the hinted fnode"
    NO_SUCH_LINK = "no such link"

    @property
    def advances(self) -> bool:
        """Whether it was next in the sequence: what follows is to be chained to it."""
        return self in _ADVANCING


_ADVANCING: Final = frozenset({Verdict.APPLIED, Verdict.NOT_TRACKED})


class _Run:
    """A segment that may still grow."""

    __slots__ = ("author", "first", "last_offset", "last_seq_no", "log")

    def __init__(self, first: Segment) -> None:
        # Changed in place, because a store may write a file thousands of times between two hints; a
        # `Segment`, which cannot change, is made only for the hints.
        self.first = first
        self.author = first.author
        self.log = first.log
        self.last_seq_no = first.last_seq_no
        self.last_offset = first.last_offset

    def segment(self, default_log: str) -> Segment:
        first = self.first
        return Segment(
            first.author,
            first.first_seq_no,
            first.first_offset,
            first.first_checksum,
            self.last_seq_no,
            self.last_offset,
            "" if first.log == default_log else first.log,
        )


@final
class LiveFnode:
    """A file that has at least one link.

    Attributes:
        links: its paths, in no order.
    """

    __slots__ = ("_runs", "links")

    def __init__(self) -> None:
        self.links: set[str] = set()
        self._runs: list[_Run] = []

    def segments(self, default_log: str = "") -> tuple[Segment, ...]:
        """What is to be read to have it.

        Args:
            default_log: the log that segments shall not name.
        """
        return tuple(run.segment(default_log) for run in self._runs)

    def extend(self, op: pb.RecordedOp, log: str, first_offset: int, last_offset: int) -> None:
        """Add `op` to its segments."""
        # A segment is what one author wrote to one log, so that a reader can refuse the operations that another
        # author put between. A file that is written for long has a long segment, and its log cannot be pruned.
        if self._runs:
            run = self._runs[-1]
            if run.author == op.author and run.log == log:
                run.last_seq_no = op.seq_no
                run.last_offset = last_offset
                return
        seq_no = op.seq_no
        self._runs.append(
            _Run(Segment(op.author, seq_no, first_offset, op.checksum, seq_no, last_offset, log))
        )


@final
class Fsm:
    """Applies operations in order; see the module for what it takes.

    Attributes:
        next_seq_no: of the operation that comes next.
        next_checksum: that it has to carry.
        last_log: of the last operation that was in sequence; at first that of the hints.
    """

    def __init__(self, hints: FsmHints) -> None:
        """Begin where `hints` begin.

        Raises: ValidationError: the hints are not valid.
        """
        hints.validate()
        self._segments = deque(hints.segments())
        self._fnodes = deque(node.fnode for node in hints.live_nodes)
        self._live: dict[int, LiveFnode] = {}
        self._links: dict[str, int] = {}
        self._properties = {each.path: each.content for each in hints.properties}
        # Even if nothing is played: the files are those of this log, and its recorder needs no no-op to begin.
        self.last_log = hints.log
        self.next_seq_no, self.next_checksum = 1, 0
        if self._segments:
            self._jump()

    # ------------------------------------------------------------------ what it knows

    @property
    def has_hints(self) -> bool:
        """Whether something of the hints was not read yet."""
        return bool(self._segments or self._fnodes)

    @property
    def hinted_segment(self) -> Segment | None:
        """The first segment of the hints that was not read whole yet, with its log."""
        return self._segments[0] if self._segments else None

    def hinted_segments(self) -> Iterator[Segment]:
        """All segments of the hints that were not read whole yet."""
        return iter(self._segments)

    @property
    def live(self) -> Mapping[int, LiveFnode]:
        """Live files by fnode, in the order of their creation."""
        return self._live

    @property
    def links(self) -> Mapping[str, int]:
        """Fnodes by path."""
        return self._links

    @property
    def properties(self) -> Mapping[str, str]:
        """Contents by path."""
        return self._properties

    def build_hints(self, log: str) -> FsmHints:
        """What is to be read to come to this state.

        Args:
            log: where reading goes on.
        """
        # Fnodes are in order of creation, so they ascend, as readers of hints expect: they take the next hinted
        # fnode from the front when its create comes by.
        return FsmHints(
            log,
            tuple(FnodeSegments(fnode, node.segments(log)) for fnode, node in self._live.items()),
            tuple(Property(path, content) for path, content in sorted(self._properties.items())),
        )

    # ------------------------------------------------------------------ what happens

    def apply(
        self, op: pb.RecordedOp, body: bytes, *, log: str, first_offset: int, last_offset: int
    ) -> Verdict:
        """Take the next operation of a log, if it is the one.

        Args:
            op: the operation.
            body: its frame without the header, as it was read or written.
            log: where it is.
            first_offset: where its frame begins, or an offset before.
            last_offset: after its frame and content; 0: not known.
        """
        # While hints last, their author is known. Another author's operation with the right number is one
        # of a recorder that lost the log: the hints were made by the winner.
        if self._segments and op.author != self._segments[0].author:
            return Verdict.NOT_HINTED_AUTHOR
        if op.seq_no != self.next_seq_no:
            return Verdict.WRONG_SEQ_NO
        # Two recorders may write the same number before one of them is fenced. The first in the log wins,
        # and everything that the loser writes later carries a checksum that includes its own operation.
        if op.checksum != self.next_checksum:
            return Verdict.CHECKSUM_MISMATCH
        if op.HasField("create"):
            verdict = self._create(op, log, first_offset, last_offset)
        elif self._fnodes and self._fnodes[0] == op.seq_no:
            return Verdict.EXPECTED_HINTED_FNODE
        else:
            verdict = self._change(op, log, first_offset, last_offset)
        # An operation of a dead file is in sequence, too: later checksums include it.
        if verdict is Verdict.APPLIED or verdict is Verdict.NOT_TRACKED:
            self._advance(op.seq_no, body, log)
        return verdict

    def _change(self, op: pb.RecordedOp, log: str, first_offset: int, last_offset: int) -> Verdict:
        """Apply `op` to the state, if possible."""
        place = (op, log, first_offset, last_offset)
        if op.HasField("unlink"):
            return self._unlink(*place)
        if op.HasField("link"):
            return self._link(*place)
        if op.HasField("property"):
            return self._set_property(op)
        if op.HasField("write"):
            node = self._live.get(op.write.fnode)
            # The file is dead by the time of the hints. The content is passed over, and not written to disk first.
            if node is None:
                return Verdict.NOT_TRACKED
            node.extend(*place)
        return Verdict.APPLIED

    def _create(self, op: pb.RecordedOp, log: str, first_offset: int, last_offset: int) -> Verdict:
        path = op.create.path
        if (taken := self._taken(path)) is not None:
            return taken
        # Hints name every file that was live when they were made. Within their segments any other new file is dead.
        if self._fnodes:
            if self._fnodes[0] != op.seq_no:
                return Verdict.NOT_TRACKED
            self._fnodes.popleft()
        elif self._segments:
            return Verdict.NOT_TRACKED  # see the module
        node = self._live[op.seq_no] = LiveFnode()
        node.links.add(path)
        node.extend(op, log, first_offset, last_offset)
        self._links[path] = op.seq_no
        return Verdict.APPLIED

    def _link(self, op: pb.RecordedOp, log: str, first_offset: int, last_offset: int) -> Verdict:
        fnode, path = op.link.fnode, op.link.path
        if (taken := self._taken(path)) is not None:
            return taken
        node = self._live.get(fnode)
        if node is None:
            return Verdict.NOT_TRACKED
        node.links.add(path)
        node.extend(op, log, first_offset, last_offset)
        self._links[path] = fnode
        return Verdict.APPLIED

    def _unlink(self, op: pb.RecordedOp, log: str, first_offset: int, last_offset: int) -> Verdict:
        fnode, path = op.unlink.fnode, op.unlink.path
        node = self._live.get(fnode)
        if node is None:
            return Verdict.NOT_TRACKED
        if path not in node.links:
            return Verdict.NO_SUCH_LINK
        node.links.remove(path)
        del self._links[path]
        if node.links:
            # Whoever plays the segments must meet the removal, or the file has one path too many.
            node.extend(op, log, first_offset, last_offset)
        else:
            # Its segments go with it: from now on no hints ask for the parts of the log that made it.
            del self._live[fnode]
        return Verdict.APPLIED

    def _set_property(self, op: pb.RecordedOp) -> Verdict:
        path, content = op.property.path, op.property.content
        if path in self._links:
            return Verdict.LINK_EXISTS
        if self._segments:
            self._properties.setdefault(
                path, content
            )  # the hints were made later than this operation
        else:
            self._properties[path] = content
        return Verdict.APPLIED

    def _taken(self, path: str) -> Verdict | None:
        """Why `path` cannot be linked."""
        if path in self._links:
            return Verdict.LINK_EXISTS
        if path in self._properties:
            return Verdict.PROPERTY_EXISTS
        return None

    def _advance(self, seq_no: int, body: bytes, log: str) -> None:
        self.next_seq_no = seq_no + 1
        self.next_checksum = extend_checksum(self.next_checksum, body)
        self.last_log = log
        # A segment ends by number: the recorder that made it did not know the offset of its end.
        if self._segments and self._segments[0].last_seq_no <= seq_no:
            self._segments.popleft()
            if self._segments:
                self._jump()

    def _jump(self) -> None:
        """Go on at the next hinted segment: what lies between is of dead files."""
        self.next_seq_no = self._segments[0].first_seq_no
        self.next_checksum = self._segments[0].first_checksum


# ------------------------------------------------------------------ chain

# Frames of recorded operations, and the checksum that chains them.
#
# Every operation carries the CRC-32C of all frames before it, so that one which was written by an author
# who did not know the last of them differs from one that follows it. Content is not digested. Pure: no
# I/O, no clock.
#
# The bytes that were read or written are digested, and never those of another encoding of them: libraries differ in
# the order of fields, and drop those that they do not know, and the chain would break.

_DIGITS = "0123456789abcdefghijklmnopqrstuv"


def extend_checksum(checksum: int, body: bytes) -> int:
    """The checksum behind an operation.

    Args:
        checksum: that before it; 0 before the first one.
        body: the operation's frame without its header of 8 bytes.

    >>> extend_checksum(extend_checksum(0, b"abc"), b"def")
    1404891121
    """
    return int(google_crc32c.extend(checksum, body))


def encode_op(op: pb.RecordedOp) -> bytes:
    """The frame of an operation. Content of a write is to follow it in the log."""
    return frame_fixed(op.SerializeToString())


def body_of(frame: bytes) -> bytes:
    """What of a frame is digested."""
    return frame[FIXED_HEADER.size :]


def author_label(author: int) -> str:
    """An author as registers have it: in base 32.

    >>> author_label(1337)
    '19p'
    """
    digits = ""
    while True:
        author, digit = divmod(author, 32)
        digits = _DIGITS[digit] + digits
        if not author:
            return digits
