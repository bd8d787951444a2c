"""What a recorder writes for each operation of files, and what it knows of them.

`Recording` turns operations of one directory into bytes for its log. They have to be appended in the
order in which it gave them, each whole, and only if the registers of the journal match
`check_registers`. It believes its own operations; whether they landed, hints and players find out.
Pure: no I/O, no clock.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Final, final

from gazette_platform.consumer.recoverylog.fsm import Verdict, author_label, body_of, encode_op
from gazette_platform.consumer.recoverylog.hints import AUTHOR_MAX
from gazette_platform.errors import ValidationError
from gazette_platform.protocol import LabelSelector, LabelSet
from gazette_platform.protocol.pb import recoverylog_pb2 as pb

if TYPE_CHECKING:
    from gazette_platform.consumer.recoverylog.fsm import Fsm
    from gazette_platform.consumer.recoverylog.hints import FsmHints

PROPERTY_PATHS: Final = frozenset({"/IDENTITY"})
"""Files that are recorded as a whole when they are put in place. RocksDB keeps its own ID so."""

_AUTHOR: Final = "author"


def author_registers(author: int) -> LabelSet:
    """The registers that make `author` the only one who may append."""
    return LabelSet.of({_AUTHOR: author_label(author)})


def still_of(registers: LabelSet) -> LabelSelector:
    """What registers match, as long as the author is the one of `registers`, or there still is none.

    >>> str(still_of(LabelSet.of(author="7", other="x"))), str(still_of(LabelSet.of(other="x")))
    ('author=7', '!author')
    """
    found = registers.values_of(_AUTHOR)
    if not found:
        return LabelSelector(exclude=LabelSet.of({_AUTHOR: ""}))
    return LabelSelector(include=LabelSet.of(*((_AUTHOR, value) for value in found)))


def check_author(author: int) -> None:
    """Raises: ValidationError: not an author."""
    if not 0 < author <= AUTHOR_MAX:
        raise ValidationError(f"expected 1 <= author <= {AUTHOR_MAX} ({author})", path="author")


def handoff_frame(fsm: Fsm, author: int) -> bytes:
    """The no-op that comes next: who reads it knows that `author` has gone on."""
    # It changes no file. Its number and checksum are what counts: the next operation of the former author has the same
    # number, so whichever comes second in the log is refused by every reader.
    return encode_op(
        pb.RecordedOp(seq_no=fsm.next_seq_no, checksum=fsm.next_checksum, author=author)
    )


def recorded_path(directory: str, path: str) -> str:
    """An absolute path below `directory` as operations have it.

    Raises: ValidationError: it is not below.

    >>> recorded_path("/var/lib", "/var/lib//a/../b")
    '/b'
    >>> recorded_path("/", "//a")
    '/a'
    """
    # Of two leading slashes, POSIX lets a system make something else; ours do not.
    base, name = ("/" + posixpath.normpath(each).lstrip("/") for each in (directory, path))
    base = base.rstrip("/")
    if not name.startswith(base + "/") or name == base + "/":
        raise ValidationError(f"{path} is not below the recorded directory {directory}")
    return name[len(base) :]


@final
class Recording:
    """The operations of one recorder on one directory.

    Every method of an operation gives the bytes to append. Some give none, as there is nothing to do.
    Paths are absolute.
    One that cannot be done is an error of the caller: the log says that the file system is otherwise.

    Attributes:
        fsm: the files, as they are once all was appended.
        log: journal to append to.
        author: 1 to 2^32 - 1.
        directory: absolute path that is recorded.
        write_head: of the log, as last learned; nothing that is recorded later lies before it.
    """

    def __init__(self, fsm: Fsm, log: str, author: int, directory: str, *, write_head: int) -> None:
        """Go on from `fsm`.

        Args:
            fsm: that of a player that has ended, or of empty hints.
            log: journal to append to.
            author: the one who was handed over to, if anybody was.
            directory: absolute path.
            write_head: offset, from a barrier.

        Raises: ValidationError: the author is none, the path is relative, or hints are unread.
        """
        check_author(author)
        if not posixpath.isabs(directory):
            raise ValidationError(f"expected an absolute path ({directory})", path="directory")
        if fsm.has_hints:
            raise ValidationError("hints are left to be played before anything is recorded")
        self.fsm = fsm
        self.log = log
        self.author = author
        self.directory = posixpath.normpath(directory)
        self.write_head = write_head

    @property
    def check_registers(self) -> LabelSelector:
        """What the registers of the journal have to match, for each append of this recorder."""
        return LabelSelector(include=author_registers(self.author))

    def begin(self) -> bytes:
        """What the log is to be taken over by; nothing, if that was done.

        There is something if the files come from another log: a no-op, so that the log begins where
        that one is left.
        """
        # In the same log the player's hand-off has taken it over already.
        return b"" if self.fsm.last_log == self.log else self._record(pb.RecordedOp())

    def committed(self, end: int) -> None:
        """Learn that an append of this recorder ended at offset `end`."""
        self.write_head = max(self.write_head, end)

    def build_hints(self) -> FsmHints:
        """The hints of all that was recorded. They hold once that was committed."""
        return self.fsm.build_hints(self.log)

    def span_bytes(self, path: str) -> int:
        """How much of the logs is needed for a file: from where it was made to what is known to be committed.

        Raises: ValidationError: there is no such file.
        """
        # The first segment in the present log reaches to its end: hints ask for all of the log from there on.
        span = 0
        for segment in self.fsm.live[self._fnode_of(self._file_path(path))].segments():
            if segment.log == self.log:
                return span + self.write_head - segment.first_offset
            span += max(0, segment.last_offset - segment.first_offset)  # of a log that was left
        return span

    # ------------------------------------------------------------------ operations

    def create(self, path: str, *, exclusive: bool = False) -> tuple[int, bytes]:
        """An empty file at `path`, in place of an existing one.

        Args:
            path: absolute.
            exclusive: whether no file may exist there.

        Returns: the fnode, and what to append.
        Raises: ValidationError: a file exists, or it is a property.
        """
        name = self._file_path(path)
        frames = b""
        if name in self.fsm.links:
            if exclusive:
                raise ValidationError(f"{name} exists in the recording of {self.log}")
            # As O_TRUNC would do, but a new fnode: players need not read the old content.
            frames = self._unlink(self.fsm.links[name], name)
        fnode = self.fsm.next_seq_no
        frames += self._record(pb.RecordedOp(create=pb.RecordedOp.Create(path=name)))
        return fnode, frames

    def open(self, path: str) -> int:
        """The fnode of a file. Raises: ValidationError: there is none."""
        return self._fnode_of(self._file_path(path))

    def write(self, fnode: int, offset: int, length: int) -> bytes:
        """A write to a file. Its content is to be appended after the frame, and with it.

        Args:
            fnode: from `create` or `open`.
            offset: in the file, bytes.
            length: of the content, bytes.

        Returns: the frame.
        Raises: ValidationError: the file is dead, or the range is negative.
        """
        # A store may hold a file open that has no path any more, as POSIX allows. The log has no such files.
        if fnode not in self.fsm.live:
            raise ValidationError(f"fnode {fnode} is not live in the recording of {self.log}")
        if offset < 0 or length < 0:
            raise ValidationError(f"expected no negative offset {offset} or length {length}")
        return self._record(
            pb.RecordedOp(write=pb.RecordedOp.Write(fnode=fnode, offset=offset, length=length))
        )

    def remove(self, path: str) -> bytes:
        """The end of a link. Raises: ValidationError: there is none."""
        name = self._file_path(path)
        return self._unlink(self._fnode_of(name), name)

    def link(self, source: str, target: str) -> bytes:
        """Another link of the file at `source`. Raises: ValidationError: it cannot be made."""
        fnode, name = self._fnode_of(self._file_path(source)), self._file_path(target)
        if name in self.fsm.links:
            raise ValidationError(f"{name} exists in the recording of {self.log}")
        return self._link(fnode, name)

    def rename(self, source: str, target: str, *, content: str | None = None) -> bytes:
        """The file at `source` moves to `target`, in place of an existing file.

        Args:
            source: existing path.
            target: path; it may exist.
            content: of the file, if `target` is one of `PROPERTY_PATHS`: its content is recorded then.

        Raises: ValidationError: there is no source, or no content of a property.
        """
        old, new = self._file_path(source), self.path_of(target)
        fnode = self._fnode_of(old)
        # Gazette's recorders record the ID of a RocksDB so, and a log may be handed over between the two.
        if new in PROPERTY_PATHS:
            if content is None:
                raise ValidationError(f"expected the content of the property {new}")
            record = pb.RecordedOp(property=pb.Property(path=new, content=content))
            return self._record(record) + self._unlink(fnode, old)
        if self.fsm.links.get(new) == fnode:
            return b""  # as POSIX has it, of two links of one file
        # Three operations, since the log has no rename. A player that stops between them has the target
        # missing, or both paths; stores `settle` that when they open.
        replaced = self.fsm.links.get(new)
        frames = b"" if replaced is None else self._unlink(replaced, new)
        return frames + self._link(fnode, new) + self._unlink(fnode, old)

    # ------------------------------------------------------------------ paths and frames

    def path_of(self, path: str) -> str:
        """The path as operations have it. Raises: ValidationError: not below the directory."""
        return recorded_path(self.directory, path)

    def _file_path(self, path: str) -> str:
        name = self.path_of(path)
        if name in PROPERTY_PATHS or name in self.fsm.properties:
            raise ValidationError(f"{name} is a property: it can only be the target of a rename")
        return name

    def _fnode_of(self, name: str) -> int:
        fnode = self.fsm.links.get(name)
        if fnode is None:
            raise ValidationError(f"{name} does not exist in the recording of {self.log}")
        return fnode

    def _link(self, fnode: int, name: str) -> bytes:
        return self._record(pb.RecordedOp(link=pb.RecordedOp.Link(fnode=fnode, path=name)))

    def _unlink(self, fnode: int, name: str) -> bytes:
        return self._record(pb.RecordedOp(unlink=pb.RecordedOp.Link(fnode=fnode, path=name)))

    def _record(self, op: pb.RecordedOp) -> bytes:
        """Have `op` come next. Returns: its frame."""
        fsm = self.fsm
        op.seq_no, op.checksum, op.author = fsm.next_seq_no, fsm.next_checksum, self.author
        frame = encode_op(op)
        # The offset is a lower bound: the append may land after others' appends. Hints that begin too
        # early cost some reading; hints that begin too late would lose the operation.
        verdict = fsm.apply(
            op, body_of(frame), log=self.log, first_offset=self.write_head, last_offset=0
        )
        assert verdict is Verdict.APPLIED, verdict  # what could be refused was refused above
        return frame
