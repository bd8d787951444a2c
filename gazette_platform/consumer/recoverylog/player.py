"""Play recovery logs into a directory, and take a log over from its former author.

`Playback` decides what to read next and which files follow from it; here it is done. Files have names
of fnodes while they are played, and get their paths at the end, since a path may change hands meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import os
import posixpath
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, final

from gazette_platform.consumer.recoverylog.playback import (
    CreateFile,
    Ignored,
    Inject,
    Playback,
    RemoveFile,
    Skipped,
    WriteFile,
)
from gazette_platform.consumer.recoverylog.recording import author_registers, still_of
from gazette_platform.errors import (
    DataError,
    OffsetJump,
    OutcomeUnknown,
    RegisterMismatch,
    ValidationError,
)
from gazette_platform.ops.faults import backoff_s
from gazette_platform.ops.tasks import run_in

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from pathlib import Path

    from gazette_platform.client import AsyncClient, Reader
    from gazette_platform.consumer.recoverylog.fsm import Fsm
    from gazette_platform.consumer.recoverylog.hints import FsmHints
    from gazette_platform.consumer.recoverylog.playback import Effect, Read

_log = logging.getLogger(__name__)


# ------------------------------------------------------------------ the player

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
            self._reader.end()  # it may wait for content that is never written

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
                # All that the hints name was committed before they were kept, so it lies before these
                # heads. An empty append and not a listing, because only the primary knows the head.
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
                        # At the head as of now. If the former owner writes meanwhile, our no-op is out
                        # of sequence, and the playback asks for another one after that.
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
        """Read on. Returns: passes the result to the playback, in the thread of the disk."""
        reader = self._reader
        if reader is None or (reader.journal, self._is_blocking) != (step.log, step.is_blocking):
            self._end_read()
            # A tail may last for weeks, in which the log can be deleted and made again: the reader then
            # raises, where offsets of the new log would look like those of the old one.
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
                "%s: bytes %d to %d are not an operation, and are skipped",
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


# ------------------------------------------------------------------ files

# Files that are kept open. A store writes to few at the same time.
_OPEN_MAX: Final = 64
_STAGING: Final = ".fnodes"


@final
class PlayedFiles:
    """Files below a directory, which is theirs alone. Calls block; make them from one thread at a time.

    Nothing is synced to disk: what counts is the log.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._staging = directory / _STAGING
        self._open: dict[
            int, int
        ] = {}  # descriptors by fnode, in the order in which they were opened

    def begin(self) -> None:
        """Make the directory, and delete what it holds. Raises: OSError: it cannot be made."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self._staging.mkdir(parents=True)

    def apply(self, effects: Iterable[Effect]) -> None:
        """Do to the files what a playback says. Raises: OSError: the disk is full, or broken."""
        for effect in effects:
            if isinstance(effect, WriteFile):
                self._write(effect)
            elif isinstance(effect, CreateFile):
                self._keep(effect.fnode, os.O_CREAT | os.O_EXCL)
            elif isinstance(effect, RemoveFile):
                self._close(effect.fnode)
                self._path(effect.fnode).unlink()

    def make_live(self, fsm: Fsm) -> None:
        """Have each file at all of its paths, and properties at theirs.

        Raises: DataError: a path of the log leads elsewhere. OSError.
        """
        self.close()
        # Links and not copies: a database may have gigabytes, and a takeover waits for this.
        for fnode, node in fsm.live.items():
            backing = self._path(fnode)
            for link in sorted(node.links):
                self._place(link).hardlink_to(backing)
            backing.unlink()
        self._staging.rmdir()
        for link, content in fsm.properties.items():
            with self._place(link).open("x", encoding="utf-8", newline="") as file:
                file.write(content)

    def close(self) -> None:
        """Close all files."""
        for fnode in list(self._open):
            self._close(fnode)

    def discard(self) -> None:
        """Close all files, and delete the directory."""
        self.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _write(self, effect: WriteFile) -> None:
        descriptor = self._open.get(effect.fnode)
        if descriptor is None:
            descriptor = self._keep(effect.fnode, 0)
        content, offset = effect.content, effect.offset
        while content:
            written = os.pwrite(descriptor, content, offset)
            content, offset = content[written:], offset + written

    def _keep(self, fnode: int, flags: int) -> int:
        if len(self._open) >= _OPEN_MAX:
            self._close(next(iter(self._open)))
        descriptor = os.open(self._path(fnode), os.O_WRONLY | os.O_CLOEXEC | flags, 0o600)
        self._open[fnode] = descriptor
        return descriptor

    def _close(self, fnode: int) -> None:
        descriptor = self._open.pop(fnode, None)
        if descriptor is not None:
            os.close(descriptor)

    def _path(self, fnode: int) -> Path:
        return self._staging / str(fnode)

    def _place(self, link: str) -> Path:
        """Where a path of the log is on disk; its folder exists then."""
        is_clean = posixpath.normpath(link) == link and link.startswith("/") and "\0" not in link
        if not is_clean or link.split("/")[1] in ("", _STAGING):
            raise DataError(
                f"{link!r} is not a path below the recorded directory (a recorder writes none like it: the log "
                "was made by something else)"
            )
        place = self.directory / link[1:]
        place.parent.mkdir(parents=True, exist_ok=True)
        return place


# ------------------------------------------------------------------ takeover

# The append with which an author takes a log over.
#
# It puts the author into the registers of the journal; appends of the former one are refused from then on.
# A late process must not do so, or it fences the present owner: a process that was
# stopped for longer than its lease, or an append that was sent and not answered for long. So it is done
# in this order:
#
#     1. ask for the registers
#     2. have it confirmed that the log is ours to take
#     3. append, if the author in the registers is still that of 1; else begin again
#
# Who is confirmed after us has, when we are late, changed the registers since 1, and 3 is refused; who was
# confirmed before us is late by himself. It holds as long as brokers keep registers.
#
# Source: Gazette consumer/recoverylog/player.go. Departs: there the append is made whatever the registers are.


async def take_over(
    client: AsyncClient,
    log: str,
    content: bytes,
    author: int,
    *,
    confirm: Callable[[], Awaitable[None]] | None = None,
) -> int:
    """Append the first operation of `author`, who owns the log from there on.

    Args:
        content: the operation. It may be in the log several times.
        confirm: returns once it is certain that the log may be taken over, or raises; called again for
            each attempt. None: it always may.

    Returns: the offset after it.
    Raises: GazetteError: the log cannot be appended to. Whatever `confirm` raises.
    Cancellation: leaves open whether it was appended.
    """
    attempt = 0
    while True:
        found = (await client.append(log, b"")).registers
        if confirm is not None:
            await confirm()
        try:
            result = await client.append(
                log,
                content,
                check_registers=still_of(found),
                union_registers=author_registers(author),
            )
        except (RegisterMismatch, OutcomeUnknown) as err:
            # If it was us, by an attempt that was not answered, the next one is behind that, which counts.
            _log.info("%s: another process has taken the log over meanwhile: %s", log, err)
        else:
            return result.end
        await asyncio.sleep(backoff_s(attempt))
        attempt += 1
