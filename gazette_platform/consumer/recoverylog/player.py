"""Plays recovery logs into a directory."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, final

from gazette_platform.consumer.recoverylog.files import PlayedFiles
from gazette_platform.consumer.recoverylog.playback import Ignored, Inject, Playback, Skipped
from gazette_platform.consumer.recoverylog.takeover import take_over
from gazette_platform.errors import OffsetJump, ValidationError
from gazette_platform.ops.tasks import run_in

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from gazette_platform.client import AsyncClient, Reader
    from gazette_platform.consumer.recoverylog.fsm import Fsm
    from gazette_platform.consumer.recoverylog.hints import FsmHints
    from gazette_platform.consumer.recoverylog.playback import Effect, Read

__all__ = ["Played", "Player"]

_log = logging.getLogger(__name__)

# Of each piece that is read.
_WARNINGS_MAX: Final = 4


@final
@dataclass(frozen=True, slots=True)
class Played:
    """Files that were played, and what a recorder goes on with."""

    log: str
    fsm: Fsm
    directory: Path


@final
class Player:
    """Plays the files of hints into a directory, and follows the log until it is asked to end.

    Attributes:
        tailing: set once it has come to what was the head of the log when it began.
    """

    def __init__(
        self, client: AsyncClient, hints: FsmHints, directory: Path, *, created: int = 0
    ) -> None:
        """Make ready to `play`.

        Args:
            client: reads and appends.
            hints: what to play.
            directory: for the files alone: what it holds is deleted.
            created: which journal the log is, in case it is made again while it is followed; 0: not known.

        Raises: ValidationError: the hints are not valid.
        """
        hints.validate()
        self.tailing = asyncio.Event()
        self._client = client
        self._hints = hints
        self._directory = directory
        self._created = created
        self._playback: Playback | None = None
        self._author: int | None = None  # 0: to finish at the head
        self._confirm: Callable[[], Awaitable[None]] | None = None
        self._reader: Reader | None = None
        self._is_blocking = False

    def finish_at_write_head(self) -> None:
        """End at the head of the log, without owning it. Once, and at any time."""
        self._ask(0)

    def inject_handoff(
        self, author: int, *, confirm: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Take the log over as `author`, and end. Once, and at any time.

        Args:
            confirm: asked when the log was played to its head, whether it is to be taken over still; see
                `take_over`. What it raises `play` raises.

        Raises: ValidationError: not an author, or it was asked to end before.
        """
        self._confirm = confirm
        self._ask(author)

    def _ask(self, author: int) -> None:
        if self._author is not None:
            raise ValidationError(f"the player of {self._hints.log} was asked to end before")
        if self._playback is not None:
            _tell(self._playback, author)
        self._author = author
        if self._reader is not None and self._is_blocking:
            self._reader.end()  # it may wait for content that nobody writes

    async def play(self) -> Played:
        """Play to the end. A tail waits for ever, for that is what a standby does.

        Raises:
            DataError: the logs do not have what the hints need.
            GazetteError: a log cannot be read, or appended to.
            Exception: whatever `confirm` raises.
            OSError: the files cannot be written.

        Cancellation: deletes the directory, as every error does.
        """
        with ThreadPoolExecutor(1, f"player {self._hints.log}") as disk:
            files = PlayedFiles(self._directory)
            try:
                await run_in(disk, files.begin)
                # All that the hints name was there before, so it is before these.
                heads = {
                    log: (await self._client.append(log, b"")).end for log in self._hints.logs()
                }
                playback = self._playback = await run_in(disk, Playback, self._hints, heads)
                if self._author is not None:
                    _tell(playback, self._author)
                while (step := playback.next()) is not None:
                    if playback.is_tailing:
                        self.tailing.set()
                    if isinstance(step, Inject):
                        end = await take_over(
                            self._client,
                            step.log,
                            step.content,
                            step.author,
                            confirm=self._confirm,
                        )
                        playback.injected(end)
                        continue
                    take = await self._read(playback, step)
                    # Much may be of a piece, or nothing: others have their turn meanwhile.
                    _warn(await run_in(disk, _applied, files, take))
                self.tailing.set()
                await run_in(disk, files.make_live, playback.fsm)
            except BaseException:
                await run_in(disk, files.discard)
                raise
            finally:
                self._end_read()
        return Played(playback.log, playback.fsm, self._directory)

    async def _read(self, playback: Playback, step: Read) -> Callable[[], list[Effect]]:
        """Read on. Returns: tells the playback what came of it, in the thread of the disk."""
        reader = self._reader
        if reader is None or (reader.journal, self._is_blocking) != (step.log, step.is_blocking):
            self._end_read()
            is_tail = step.is_blocking and step.log == self._hints.log
            reader = self._client.read(
                step.log,
                step.offset,
                block=step.is_blocking,
                direct=True,
                created=self._created if is_tail else 0,
            )
            self._reader, self._is_blocking = reader, step.is_blocking
        elif reader.offset != step.offset:
            reader.seek(step.offset)
        try:
            piece = await anext(reader)
        except StopAsyncIteration:
            self._reader = None
            # A blocking read ends only as it was interrupted: there is something else to do.
            return list if step.is_blocking else playback.at_head
        except OffsetJump as jump:
            playback.jumped(jump.to_offset)
            return list
        return partial(playback.feed, piece)

    def _end_read(self) -> None:
        if self._reader is not None:
            self._reader.end()
            self._reader = None


def _tell(playback: Playback, author: int) -> None:
    if author:
        playback.inject_handoff(author)
    else:
        playback.finish_at_write_head()


def _applied(files: PlayedFiles, take: Callable[[], list[Effect]]) -> list[Effect]:
    """What follows of a piece, done to the files."""
    effects = take()
    files.apply(effects)
    return effects


def _warn(effects: list[Effect]) -> None:
    """Log what is odd of a piece of the log, a few lines at most: others may have written garbage there."""
    odd = [each for each in effects if isinstance(each, Skipped | Ignored)]
    for each in odd[:_WARNINGS_MAX]:
        if isinstance(each, Skipped):
            _log.warning(
                "%s: bytes %d to %d are no operation, and are skipped",
                each.log,
                each.begin,
                each.end,
            )
        else:
            _log.warning(
                "%s: operation %d at %d is ignored: %s",
                each.log,
                each.seq_no,
                each.offset,
                each.verdict.value,
            )
    if len(odd) > _WARNINGS_MAX:
        _log.warning("%s: and %d more like these", odd[-1].log, len(odd) - _WARNINGS_MAX)
