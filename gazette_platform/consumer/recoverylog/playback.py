"""What a player reads of recovery logs, what it does with it, and how it comes to own them.

`Playback.next` says what to do next: read some bytes of a log, or append to it. What was read is given
to `feed`, which returns the operations on files that follow from it. Pure: no I/O, no clock.

    state      next                           at the head of the log
    BACKFILL   read up to the read-through    go on as TAIL
    TAIL       read on, and wait for more     if it is to finish: DONE; if it is to hand over: INJECT
    INJECT     append a no-op of its own      AWAIT, once that was appended
    AWAIT      read up to behind the no-op    the no-op was in sequence: DONE; it was not: TAIL

The read-through of a log is an offset that was its head after the playback had begun: all that the
hints name is before it.

Source: Gazette consumer/recoverylog/player.go. Departs: a frame that holds no operation, or that is not
whole at the head of the log, is passed over like other garbage, because an append is whole or not there.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from google.protobuf.message import DecodeError

from gazette_platform.consumer.recoverylog.fsm import Fsm, Verdict
from gazette_platform.consumer.recoverylog.recording import check_author, handoff_frame
from gazette_platform.errors import DataError, Desynchronized, ValidationError
from gazette_platform.message.framing import FIXED_HEADER, FIXED_MAGIC, FRAME_BYTES_MAX
from gazette_platform.protocol.pb import recoverylog_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gazette_platform.consumer.recoverylog.hints import FsmHints


@dataclass(frozen=True, slots=True)
class Read:
    """Read a log from an offset on, and `feed` what comes; or call `at_head`, or `jumped`."""

    log: str
    offset: int
    is_blocking: bool
    """Whether to wait at the head of the log. Else call `at_head` there."""


@dataclass(frozen=True, slots=True)
class Inject:
    """Take a log over by appending to it, and call `injected`."""

    log: str
    content: bytes
    author: int
    """Whose the log is to be."""


Step = Read | Inject


@dataclass(frozen=True, slots=True)
class CreateFile:
    """A new and empty file begins."""

    fnode: int


@dataclass(frozen=True, slots=True)
class WriteFile:
    """Content of a file."""

    fnode: int
    offset: int
    """In the file, bytes."""
    content: memoryview
    """Of what was fed; not a copy."""


@dataclass(frozen=True, slots=True)
class RemoveFile:
    """A file has lost its last link."""

    fnode: int


@dataclass(frozen=True, slots=True)
class Skipped:
    """Bytes of the log that are not an operation; worth a warning."""

    log: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Ignored:
    """An operation that does not fit, and not for a reason that is to be expected; worth a warning."""

    log: str
    offset: int
    seq_no: int
    verdict: Verdict


Effect = CreateFile | WriteFile | RemoveFile | Skipped | Ignored


class _State(enum.Enum):
    BACKFILL = enum.auto()
    TAIL = enum.auto()
    INJECT = enum.auto()
    AWAIT = enum.auto()
    DONE = enum.auto()


# How a frame begins, or the part of its beginning at the end of what was fed. There may be a magic at
# every fourth byte, and none of a frame: those whose length cannot be are passed over here as well.
_FRAME_BEGIN: Final = re.compile(
    rb"\x66(?:\x33(?:\x93(?:\x36(?:...[\x00-\x04]|.{0,3}\Z)|\Z)|\Z)|\Z)", re.DOTALL
)

# Read again after a retry, or of a recorder that came too late, or of a file that is dead.
_EXPECTED: Final = frozenset({Verdict.NOT_TRACKED, Verdict.NOT_HINTED_AUTHOR})


@final
class Playback:
    """Plays the files of hints; see the module.

    Attributes:
        fsm: the files as far as it has come; to record on with, once it is done.
        log: that is read.
    """

    def __init__(self, hints: FsmHints, read_through: Mapping[str, int]) -> None:
        """Begin at the first segment of `hints`.

        Args:
            hints: what to play.
            read_through: by log, for each of ``hints.logs()``, its head after an empty append.

        Raises: ValidationError: the hints are not valid. DataError: a log ends before they do.
        """
        self.fsm = Fsm(hints)
        self.log = hints.log
        self._read_through = dict(read_through)
        for segment in self.fsm.hinted_segments():
            head = self._read_through[segment.log]
            # A log that is shorter than its hints was deleted and made again, or lost its end. Waiting for
            # more would wait for other content at these offsets.
            if segment.first_offset >= head or segment.last_offset > head:
                raise DataError(
                    f"{segment.log}: its head {head} is before what the hints need, {segment}: possible "
                    "data loss (recover from a backup of the hints)"
                )
        self._state = _State.BACKFILL
        self._finishes = False
        self._author = 0
        # What was fed and not taken yet: from `_pos` of the buffer on, and then what is pending. It is
        # joined only when it is enough to go on, so that each byte is copied once at most.
        self._buffer = memoryview(b"")
        self._base = 0  # offset of its first byte
        self._pos = 0
        self._pending: list[bytes | memoryview] = []
        self._pending_bytes = 0
        self._wanted_bytes = FIXED_HEADER.size
        # What is left of the content of a write, and where it belongs.
        self._content_left = 0
        self._content_fnode = 0  # 0: nowhere
        self._content_at = 0
        # A hole after all hints; author of the last operation that was in sequence, if any was; and where one is that
        # follows others than the former ones.
        self._hole: tuple[int, int] | None = None
        self._last_author: int | None = None
        self._torn_at: int | None = None
        self._own: Verdict | None = None  # of an operation of its own, whose content is being read
        self._effects: list[Effect] = []
        self._seek()

    # ------------------------------------------------------------------ what it knows

    @property
    def offset(self) -> int:
        """Of the next byte that is to be fed."""
        return self._base + len(self._buffer) + self._pending_bytes

    @property
    def is_tailing(self) -> bool:
        """Whether it has come to what was the head of the log when it began."""
        return self._state is not _State.BACKFILL

    @property
    def is_done(self) -> bool:
        """Whether nothing more is to be read: the files are to be put in place now."""
        return self._state is _State.DONE

    # ---------------------------------------------------------------- -- events

    def finish_at_write_head(self) -> None:
        """End at the head of the log. May be called at any time, once, and not with `inject_handoff`."""
        self._check_unasked()
        self._finishes = True

    def inject_handoff(self, author: int) -> None:
        """End as the owner of the log, who is `author`. Others who record there are fenced.

        May be called at any time, once, and not with `finish_at_write_head`.

        Raises: ValidationError: not an author, or it was called before.
        """
        check_author(author)
        self._check_unasked()
        self._author = author

    def _check_unasked(self) -> None:
        if self._finishes or self._author:
            raise ValidationError(f"the playback of {self.log} was asked to end before")

    def next(self) -> Step | None:
        """What to do next; None once it is done.

        Raises: DataError: the logs do not have what the hints name, or what they lead to.
        """
        if self._state is _State.BACKFILL and self._is_through:
            # All that hints name was committed before the hints were, so it lies before this head.
            self._check_whole()
            self._state = _State.TAIL
        if self._state is _State.DONE:
            return None
        if self._state is _State.INJECT:
            content = handoff_frame(self.fsm, self._author)
            return Inject(self.log, content, self._author)
        # In AWAIT the read waits again: our own no-op is certain to come.
        wants_to_end = self._finishes or self._author
        is_blocking = not (self._state is _State.TAIL and wants_to_end)
        return Read(self.log, self.offset, is_blocking=is_blocking)

    def at_head(self) -> list[Effect]:
        """The log ends where a read that was not blocking would go on.

        Raises: DataError: it ends within content, or before all hints were used; or part of it is missing.
        """
        if self._content_left:
            raise self._short(f"the log ends at {self.offset}")
        if self._state is _State.TAIL:
            # Appends are atomic, so part of a frame at the head is garbage and will not be completed.
            self._give_up_held()
            self._check_whole()
            if self._finishes:
                self._state = _State.DONE
            elif self._author:
                self._state = _State.INJECT
        return self._taken_effects()

    def injected(self, end: int) -> None:
        """What `Inject` asked for was appended, and ends at offset `end`."""
        if self._state is _State.INJECT:
            self._state = _State.AWAIT
            self._read_through[self.log] = end

    def jumped(self, offset: int) -> None:
        """The log has no content up to `offset`, where reading goes on: it was deleted.

        After all hints it may be that nothing was missed, as content may be of others who came too late.
        What is read after the hole shows it, and is an error then, or the log would be taken over with the
        former files.

        Raises: DataError: something of it is needed.
        """
        if self._content_left:
            raise self._short(f"the log was deleted up to {offset}")
        # A recorder knows only a lower bound of where its segment begins, so the hole may be before its operations. If
        # some of them were in it, the rest is out of sequence, and hints are left over.
        segment = self.fsm.hinted_segment
        if segment is not None and 0 < segment.last_offset <= offset:
            raise DataError(
                f"{self.log}: content from {self.offset} to {offset} is gone, and the hints need "
                f"{segment}: possible data loss (recover from a backup of the hints)"
            )
        if segment is None:
            self._hole = self.offset, offset
        self._go_to(self.log, offset)

    def feed(self, content: bytes | memoryview) -> list[Effect]:
        """Take the next bytes of the log.

        Returns: what follows for files, in order. More may have been given than was needed: the next
            `Read` says where to continue.

        Raises: Desynchronized: its own no-op is not where it was appended. DataError: part of the log is
            missing.
        """
        self._pending.append(content)
        self._pending_bytes += len(content)
        if len(self._buffer) - self._pos + self._pending_bytes >= self._wanted_bytes:
            self._join()
            self._run()
        # A standby may tail for weeks before anything asks it to end. If operations are missing, it has to fail now,
        # while the primary still has the state, and not when it is promoted.
        if self._state is _State.TAIL:
            self._check_whole()
        if self._state is _State.AWAIT and self._is_through:
            self._give_up_held()
            if self._state is _State.AWAIT:
                raise Desynchronized(
                    f"{self.log}: the hand-off that was appended before {self.offset} is not to be found "
                    "(something before it is taken for content)"
                )
        return self._taken_effects()

    # ------------------------------------------------------------------ reading

    @property
    def _is_through(self) -> bool:
        return not self._content_left and self.offset >= self._read_through[self.log]

    def _join(self) -> None:
        rest = self._buffer[self._pos :]
        self._base += self._pos
        self._pos = 0
        if rest or len(self._pending) != 1:
            self._buffer = memoryview(b"".join((rest, *self._pending)))
        else:
            self._buffer = memoryview(self._pending[0])
        self._pending, self._pending_bytes = [], 0

    def _go_to(self, log: str, offset: int) -> None:
        """Go on elsewhere; within what was fed, if it has that."""
        # Segments are often close together: what was read already is not read again.
        if log != self.log or not self._base <= offset <= self._base + len(self._buffer):
            self._buffer, self._base = memoryview(b""), offset
            self._pending, self._pending_bytes = [], 0
        self.log, self._pos = log, offset - self._base
        self._wanted_bytes = FIXED_HEADER.size

    def _seek(self) -> None:
        """Go to the next hinted segment, if that is elsewhere: what lies between is of dead files."""
        segment = self.fsm.hinted_segment
        if segment is not None and (
            segment.log != self.log or self._base + self._pos < segment.first_offset
        ):
            self._go_to(segment.log, segment.first_offset)

    def _run(self) -> None:
        while self._state is not _State.DONE and self._take():
            pass

    def _take(self) -> bool:
        """Take the next part of what was fed. Returns: whether there was one."""
        left = len(self._buffer) - self._pos
        if self._content_left:
            self._wanted_bytes = 1
            if left:
                self._take_content(min(left, self._content_left))
            return bool(left)
        self._wanted_bytes = FIXED_HEADER.size
        if left < FIXED_HEADER.size:
            return False
        magic, length = FIXED_HEADER.unpack_from(self._buffer, self._pos)
        if magic == FIXED_MAGIC and length <= FRAME_BYTES_MAX:
            size = FIXED_HEADER.size + length
            if size > left:
                self._wanted_bytes = size
                return False
            body = bytes(self._buffer[self._pos + FIXED_HEADER.size : self._pos + size])
            if (op := _decoded(body)) is not None:
                self._take_op(op, body, size)
                return True
        self._pass_over()
        return True

    def _take_op(self, op: pb.RecordedOp, body: bytes, size: int) -> None:
        fsm, begin = self.fsm, self._base + self._pos
        self._pos += size
        length = op.write.length if op.HasField("write") else 0
        # A retried append writes the same operations twice. Asked before `apply`, which moves the number on.
        is_old = op.seq_no < fsm.next_seq_no
        verdict = fsm.apply(
            op, body, log=self.log, first_offset=begin, last_offset=begin + size + length
        )
        if verdict.advances:
            # Its checksum includes all operations before it, so none of them was in the hole.
            self._hole, self._torn_at, self._last_author = None, None, op.author
        elif verdict is Verdict.WRONG_SEQ_NO and not is_old and self._misses(op.author):
            self._torn_at = begin if self._torn_at is None else self._torn_at
        # Whether our no-op was in sequence decides whether the log is ours. Its append alone does not: an
        # operation of the former owner may have landed just before it.
        if self._state is _State.AWAIT and op.author == self._author:
            self._own = verdict
        # Content has no frame of its own. That of a refused write is passed over as well, or it would be read as
        # operations: an application may store anything, even bytes of a recovery log.
        self._content_left, self._content_fnode = length, 0
        if verdict is Verdict.APPLIED:
            if op.HasField("write"):
                self._content_fnode, self._content_at = op.write.fnode, op.write.offset
            elif op.HasField("create"):
                self._effects.append(CreateFile(op.seq_no))
            # Links need nothing on disk before the end: the file is staged by its fnode.
            elif op.HasField("unlink") and op.unlink.fnode not in fsm.live:
                self._effects.append(RemoveFile(op.unlink.fnode))
        elif verdict not in _EXPECTED and not (verdict is Verdict.WRONG_SEQ_NO and is_old):
            self._effects.append(Ignored(self.log, begin, op.seq_no, verdict))
        if not length:
            self._op_ended()

    def _misses(self, author: int) -> bool:
        """Whether an operation that is not the next one shows that others before it are missing.

        One of another author, who came too late, does not. But no author leaves out a number, nor does a log begin
        with another one than the first.
        """
        return self._hole is not None or self._last_author in (None, author)

    def _take_content(self, size: int) -> None:
        if self._content_fnode:
            content = self._buffer[self._pos : self._pos + size]
            self._effects.append(WriteFile(self._content_fnode, self._content_at, content))
        self._content_at += size
        self._content_left -= size
        self._pos += size
        if not self._content_left:
            self._op_ended()

    def _op_ended(self) -> None:
        """An operation was read, with its content."""
        own, self._own = self._own, None
        if own is Verdict.APPLIED:
            assert not self.fsm.has_hints  # looked at before the no-op was appended
            self._state = _State.DONE
            return
        if own is not None:
            self._state = _State.TAIL  # another write came first: inject again after it
        self._seek()

    # ------------------------------------------------------------------ garbage

    def _pass_over(self) -> None:
        """Go to what may be the next frame after this byte."""
        # Searched for in place: copying the rest of the buffer at each magic takes time with the square of the garbage.
        begin = self._pos
        found = _FRAME_BEGIN.search(self._buffer, begin + 1)
        self._pos = found.start() if found is not None else len(self._buffer)
        skipped = Skipped(self.log, self._base + begin, self._base + self._pos)
        before = self._effects[-1] if self._effects else None
        if isinstance(before, Skipped) and (before.log, before.end) == (self.log, skipped.begin):
            skipped = Skipped(self.log, before.begin, skipped.end)
            self._effects.pop()
        self._effects.append(skipped)

    def _give_up_held(self) -> None:
        """What is held of a frame is not a frame: the rest of it will not come."""
        self._join()
        while self._state is not _State.DONE and self._pos < len(self._buffer):
            if self._content_left:
                raise self._short(f"the log ends at {self.offset}")
            self._pass_over()
            self._run()

    def _taken_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    # ------------------------------------------------------------------ errors

    def _check_whole(self) -> None:
        if self.fsm.has_hints:
            raise DataError(
                f"{self.log}: read to {self._base + self._pos}, and hints are left that were not found "
                f"({self.fsm.hinted_segment}, next {self.fsm.next_seq_no}): possible data loss (recover "
                "from a backup of the hints)"
            )
        if self._torn_at is not None:
            why = "it was made again, or has lost its end"
            if self._hole is not None:
                why = f"from {self._hole[0]} on there is nothing up to {self._hole[1]}"
            raise DataError(
                f"{self.log}: {why}, and operations from {self._torn_at} on follow others than the former ones (the "
                f"next would be {self.fsm.next_seq_no}): possible data loss (recover from hints that begin after it; "
                "to begin without any state use another log)"
            )

    def _short(self, why: str) -> DataError:
        return DataError(
            f"{self.log}: unexpected EOF: {self._content_left} bytes of the content of a write are "
            f"missing, as {why}"
        )


def _decoded(body: bytes) -> pb.RecordedOp | None:
    """The operation of a frame; None if it holds none."""
    try:
        op = pb.RecordedOp.FromString(body)
    except DecodeError:
        return None
    is_sound = op.seq_no > 0 and op.write.length >= 0 and op.write.offset >= 0
    return op if is_sound else None
