"""A recovery log in memory, which can be cut at each of its operations.

For tests of stores: what is recorded here is what a recorder would append, and it is played by what plays
the logs of brokers.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, final

from gazette_platform.consumer.recoverylog import Fsm, FsmHints, Playback, Recording
from gazette_platform.consumer.recoverylog.playback import Read
from gazette_platform.consumer.recoverylog.player import PlayedFiles
from gazette_platform.message.framing import FIXED_HEADER

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from gazette_platform.client import Dependency

__all__ = ["KeptRecorder"]

_LOG: Final = "kept/log"
_READ_BYTES: Final = 64 << 10


@final
class KeptRecorder:
    """Has the methods of a `Recorder`, and keeps what that would append.

    Attributes:
        directory: absolute path that is recorded.
        operations: each as it would be in the log, with its content.
        gates: of each, behind how many operations it is, and what it waits for.
    """

    def __init__(
        self,
        directory: Path,
        *,
        fsm: Fsm | None = None,
        operations: Collection[bytes] = (),
        author: int = 1,
    ) -> None:
        """Record `directory` from its begin, or go on where `play` has ended.

        Args:
            fsm: of what was played.
            operations: that were played.
            author: whose name operations have.
        """
        self.directory = str(directory)
        self.operations = list(operations)
        self.gates: list[tuple[int, tuple[Dependency, ...]]] = []
        self._log_bytes = sum(map(len, self.operations))
        self._recording = Recording(
            fsm or Fsm(FsmHints(_LOG)), _LOG, author, self.directory, write_head=self._log_bytes
        )

    @property
    def log(self) -> str:
        """Name of the log."""
        return _LOG

    @property
    def log_bytes(self) -> int:
        """Its length."""
        return self._log_bytes

    # ------------------------------------------------------------------ operations

    def create(self, path: str, *, exclusive: bool = False) -> int:
        """As of a `Recorder`."""
        fnode, frames = self._recording.create(path, exclusive=exclusive)
        self._keep(frames)
        return fnode

    def open(self, path: str) -> int:
        """As of a `Recorder`."""
        return self._recording.open(path)

    def write(self, fnode: int, offset: int, content: bytes | memoryview) -> None:
        """As of a `Recorder`."""
        frame = self._recording.write(fnode, offset, len(content))
        self._append(b"".join((frame, content)))

    def remove(self, path: str) -> None:
        """As of a `Recorder`."""
        self._keep(self._recording.remove(path))

    def link(self, source: str, target: str) -> None:
        """As of a `Recorder`."""
        self._keep(self._recording.link(source, target))

    def rename(self, source: str, target: str, *, content: str | None = None) -> None:
        """As of a `Recorder`."""
        self._keep(self._recording.rename(source, target, content=content))

    def span_bytes(self, path: str) -> int:
        """As of a `Recorder`."""
        return self._recording.span_bytes(path)

    def gate(self, after: Collection[Dependency]) -> None:
        """Keep what it would wait for."""
        self.gates.append((len(self.operations), tuple(after)))

    async def barrier(self, after: Collection[Dependency] = ()) -> None:
        """Run the wait that was passed in. Raises: what that raises."""
        for _, gate in self.gates:
            for need in gate:
                await (asyncio.shield(need) if isinstance(need, asyncio.Future) else need)
        for need in after:
            await (asyncio.shield(need) if isinstance(need, asyncio.Future) else need)

    async def room(self) -> None:
        """Return at once."""

    def hints(self) -> FsmHints:
        """Hints of all that was recorded."""
        return self._recording.build_hints()

    def _keep(self, frames: bytes) -> None:
        """Keep operations without content, each by itself."""
        while frames:
            _, length = FIXED_HEADER.unpack_from(frames)
            size = FIXED_HEADER.size + length
            self._append(frames[:size])
            frames = frames[size:]

    def _append(self, operation: bytes) -> None:
        self.operations.append(operation)
        self._log_bytes += len(operation)
        self._recording.committed(self._log_bytes)

    # ------------------------------------------------------------------ playing

    def play(
        self, directory: Path, *, operations: int | None = None, hints: FsmHints | None = None
    ) -> tuple[Fsm, int]:
        """Have the files of the log in `directory`.

        Args:
            operations: how many of them the log has; None: all.
            hints: what to play.

        Returns: what a recorder goes on with, and how many bytes of the log were read.
        Raises: DataError: the hints do not fit. OSError.
        """
        content = b"".join(self.operations[:operations])
        playback = Playback(hints or FsmHints(_LOG), {_LOG: len(content)})
        playback.finish_at_write_head()
        files = PlayedFiles(directory)
        files.begin()
        read_bytes = 0
        while (step := playback.next()) is not None:
            assert isinstance(step, Read)  # it was not asked to hand over
            piece = content[step.offset : step.offset + _READ_BYTES]
            read_bytes += len(piece)
            files.apply(playback.feed(piece) if piece else playback.at_head())
        files.make_live(playback.fsm)
        return playback.fsm, read_bytes

    def cut(self, directory: Path, operations: int) -> KeptRecorder:
        """A recorder that goes on in `directory` where the log was cut behind `operations`."""
        fsm, _ = self.play(directory, operations=operations)
        return KeptRecorder(directory, fsm=fsm, operations=self.operations[:operations], author=2)
