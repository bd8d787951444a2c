"""Recovery logs: the files of a directory, kept in a journal.

A *recorder* appends every operation on the files to a journal of content-type
`application/x-gazette-recoverylog`; a *player* reads it and has the same files. An operation is of an
*fnode*, a file by the sequence number that created it, which may have several links. *Hints* name the
live fnodes and the segments of the log that made them, so that dead parts are neither read nor kept.

Operations are numbered, and each carries the checksum of all before it: of several recorders that write
at the same time every reader follows the same one. A player takes a log over by a no-op of a new
*author*, whose name it puts into the registers of the journal; appends of others are refused then.

Each operation costs a frame of some 40 bytes and its content. `Fsm`, `Recording`, `Playback` and the
rules of pruning decide, and do no I/O; `Recorder` and `Player` carry it out. Formats are Gazette's.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Final, Self, final

from gazette_platform.client import AppendOptions, AppendTicket
from gazette_platform.consumer.recoverylog.fsm import (
    Fsm,
    LiveFnode,
    Verdict,
    author_label,
    encode_op,
    extend_checksum,
)
from gazette_platform.consumer.recoverylog.hints import (
    AUTHOR_MAX,
    FnodeSegments,
    FsmHints,
    LogNeeds,
    Property,
    Segment,
    SegmentSet,
    ShardHints,
    judge_fragment,
    merge_segments,
    needs_of,
    pick_hints,
)
from gazette_platform.consumer.recoverylog.playback import Playback
from gazette_platform.consumer.recoverylog.player import Played, Player, take_over
from gazette_platform.consumer.recoverylog.recording import Recording, author_registers
from gazette_platform.errors import DataError, Fenced, GazetteError, RegisterMismatch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection
    from random import Random

    from gazette_platform.client import AppendService, AsyncClient, Dependency


__all__ = [
    "CONTENT_TYPE",
    "FnodeSegments",
    "Fsm",
    "FsmHints",
    "LiveFnode",
    "LogNeeds",
    "Playback",
    "Played",
    "Player",
    "Property",
    "Recorder",
    "Recording",
    "Segment",
    "SegmentSet",
    "ShardHints",
    "Verdict",
    "author_label",
    "author_registers",
    "encode_op",
    "extend_checksum",
    "judge_fragment",
    "merge_segments",
    "needs_of",
    "new_author",
    "pick_hints",
]

CONTENT_TYPE: Final = "application/x-gazette-recoverylog"
"""Label that journals of recovery logs have to have."""


def new_author(dice: Random) -> int:
    """A unique author, except with a chance of 1 to 2^32."""
    return dice.randint(1, AUTHOR_MAX)


@final
class Recorder:
    """Appends what happens to the files of a directory, in the order of the calls.

    Paths are absolute. Operations may come from any thread, and return at once; what they have
    recorded is committed when a `barrier` that was begun later has ended. They go on when appends have
    failed, for the files that they describe have changed already: it is barriers that raise then. Callers
    limit how much they record by waiting for `room`, and never take an operation back.
    """

    def __init__(self, recording: Recording, client: AsyncClient, service: AppendService) -> None:
        """Use `start`."""
        self._recording = recording
        self._client = client
        self._service = service
        self._options = AppendOptions(check_registers=recording.check_registers)
        self._loop = asyncio.get_running_loop()
        # Held for an operation and for its place among what is appended, which have to be in one order.
        self._lock = threading.Lock()
        self._waiting: list[bytes] = []
        self._gate: tuple[Dependency, ...] = ()
        self._last: AppendTicket | None = None
        self._error: GazetteError | None = None
        self._end = recording.write_head  # of the last operations that are known to be appended

    @classmethod
    async def start(
        cls,
        client: AsyncClient,
        service: AppendService,
        played: Played,
        author: int,
        *,
        log: str = "",
        confirm: Callable[[], Awaitable[None]] | None = None,
    ) -> Self:
        """Go on with files that were played.

        Args:
            client: appends barriers.
            service: appends operations; it may be that of other journals, too, but not one that
                another recorder of this log has used: once that is fenced, it takes no more of the log.
            played: what a player has ended with.
            author: the one who was handed over to, if anybody was.
            log: journal to append to, if it is to be another one than was played. It is taken over.
            confirm: see `take_over`.

        Raises: GazetteError: the log cannot be appended to. Whatever `confirm` raises.
        Cancellation: safe; the log may have a no-op more.
        """
        log = log or played.log
        # An empty append learns the head, below which nothing of ours can be.
        barrier = await client.append(log, b"")
        recording = Recording(
            played.fsm, log, author, str(played.directory), write_head=barrier.end
        )
        if frames := recording.begin():
            recording.committed(await take_over(client, log, frames, author, confirm=confirm))
        return cls(recording, client, service)

    @property
    def log(self) -> str:
        """Journal that it appends to."""
        return self._recording.log

    @property
    def author(self) -> int:
        """Who records."""
        return self._recording.author

    @property
    def directory(self) -> str:
        """Absolute path that is recorded."""
        return self._recording.directory

    @property
    def has_files(self) -> bool:
        """Whether the directory has files, as it is recorded."""
        with self._lock:
            return bool(self._recording.fsm.links)

    def span_bytes(self, path: str) -> int:
        """How much of the log is needed for a file: from where it was made to what is committed.

        Raises: ValidationError: there is no such file.
        """
        with self._lock:
            return self._recording.span_bytes(path)

    # ------------------------------------------------------------------ operations

    def create(self, path: str, *, exclusive: bool = False) -> int:
        """An empty file, in place of an existing one. Returns: its fnode.

        Raises: ValidationError: a file exists that must not.
        """
        with self._lock:
            fnode, frames = self._recording.create(path, exclusive=exclusive)
            self._record(frames)
        return fnode

    def open(self, path: str) -> int:
        """The fnode of a file. Raises: ValidationError: there is none."""
        with self._lock:
            return self._recording.open(path)

    def write(self, fnode: int, offset: int, content: bytes | memoryview) -> None:
        """Content at an offset of a file, in bytes. Raises: ValidationError: the file is dead."""
        with self._lock:
            frame = self._recording.write(fnode, offset, memoryview(content).nbytes)
            self._record(b"".join((frame, content)))

    def remove(self, path: str) -> None:
        """The end of a link. Raises: ValidationError: there is none."""
        with self._lock:
            self._record(self._recording.remove(path))

    def link(self, source: str, target: str) -> None:
        """Another link of a file. Raises: ValidationError: it cannot be made."""
        with self._lock:
            self._record(self._recording.link(source, target))

    def rename(self, source: str, target: str, *, content: str | None = None) -> None:
        """A file moves, in place of an existing one.

        Args:
            source: path.
            target: path.
            content: of the file, if `target` is a property; see `Recording.rename`.

        Raises: ValidationError: there is no source.
        """
        with self._lock:
            self._record(self._recording.rename(source, target, content=content))

    def _record(self, frames: bytes) -> None:
        if not frames:
            return
        # One wake-up of the loop for many operations: SQLite alone makes thousands in a transaction.
        if not self._waiting:
            self._loop.call_soon_threadsafe(self._hand_over)
        self._waiting.append(frames)

    # ------------------------------------------------------------------ commits

    async def room(self) -> None:
        """Wait while too much is recorded and not committed. Cancellation: safe."""
        self._hand_over()
        await self._service.room()

    def gate(self, after: Collection[Dependency]) -> None:
        """Let what is recorded from now on be appended only once all of these have succeeded.

        If one fails, nothing more is ever appended, and barriers raise. On the thread of the event loop.

        Args:
            after: as of `barrier`.
        """
        self._hand_over()
        self._gate = (*self._gate, *after)

    async def barrier(self, after: Collection[Dependency] = ()) -> None:
        """Wait until all that was recorded before the call is committed.

        Args:
            after: what has to succeed before; of other journals, or anything that ends.

        Raises:
            Fenced: another process has taken the log over. What was recorded may be lost.
            DataError: the log goes back before what was recorded.
            GazetteError: an append failed, or what it was to come `after`.

        Cancellation: safe; appends go on.
        """
        self._hand_over()
        last, after = self._last, (*self._gate, *after)
        # Shielded: others wait for the same futures, and a barrier that is cancelled must not cancel them.
        for need in after:
            await (need if isinstance(need, AppendTicket) else asyncio.shield(need))
        try:
            # Every barrier raises the same error, and each would add to its traceback.
            if self._error is not None:
                raise self._error.with_traceback(None)
            is_pending = last is not None and not last.is_done
            if last is not None:
                await last
            # A commit proves that we own the log, so appends under way need no further proof. Without
            # any, or if they were sent before what `after` waited for, an empty append asks: another
            # process may have taken the log over meanwhile.
            if after or not is_pending:
                known = self._end
                result = await self._client.append(
                    self.log, b"", check_registers=self._options.check_registers
                )
                self._check_goes_on(known, result.end)
            if self._error is not None:
                raise self._error.with_traceback(None)
        except GazetteError as err:
            if (fenced := self._fence_in(err)) is not None:
                raise fenced from err
            raise

    async def build_hints(self) -> FsmHints:
        """Hints of all that was recorded, once it is committed.

        Raises: as `barrier`. Cancellation: safe.
        """
        # Hints first, barrier second: the barrier then covers each operation that the hints name.
        with self._lock:
            hints = self._recording.build_hints()
        await self.barrier()
        return hints

    def _hand_over(self) -> None:
        """Have appended what waits."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            # After an error nothing is appended any more: it would follow operations that are not in the log, and every
            # reader would refuse it by its number.
            if not waiting or self._error is not None:
                return
            try:
                ticket = self._service.submit_nowait(
                    self.log, b"".join(waiting), after=self._gate, options=self._options
                )
            except GazetteError as err:
                self._error = err
                return
            # Later operations come after this one in the order of the journal, so the gate holds them up as well.
            self._last, self._gate = ticket, ()

        def on_end() -> None:
            try:
                begin, end = ticket.span()
            except GazetteError:
                return  # barriers raise
            self._check_goes_on(self._end, begin)
            self._end = end
            with self._lock:
                self._recording.committed(end)

        ticket.add_done_callback(on_end)

    def _check_goes_on(self, known: int, begin: int) -> None:
        """End here if an append is before what was appended earlier."""
        # Offsets of a journal only rise. A lower one belongs to a journal that was deleted and made again under the same
        # name, or restored without its end.
        if begin < known and self._error is None:
            self._error = DataError(
                f"{self.log}: an append is at offset {begin}, and a former one has ended at {known}: the log was made "
                "again, or has lost its end, and does not have all of the state any more (bring its content back, or "
                "let the shard begin again with another log)"
            )

    def _fence_in(self, error: GazetteError) -> Fenced | None:
        """The error that another process has the log, if this is why an append failed."""
        # Appends after the refused one fail because of it (`DependencyFailed`), so the refusal may be deep down.
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, RegisterMismatch):
                return Fenced(
                    f"{self.log}: the recorder {self._options.check_registers} in {self.directory} was "
                    "fenced: another process has taken the log over, and goes on with what was committed "
                    "before (stop this one; nothing that it records is appended any more)"
                )
            cause = cause.__cause__
        return None
