"""The files of a playback on disk: of fnodes while it plays, and at their paths once it is done."""

from __future__ import annotations

import os
import posixpath
import shutil
from typing import TYPE_CHECKING, Final, final

from gazette_platform.consumer.recoverylog.playback import CreateFile, RemoveFile, WriteFile
from gazette_platform.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from gazette_platform.consumer.recoverylog.fsm import Fsm
    from gazette_platform.consumer.recoverylog.playback import Effect

__all__ = ["PlayedFiles"]

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
