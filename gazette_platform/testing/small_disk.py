"""A disk of its own for a folder, so small that a test can fill it."""

from __future__ import annotations

import errno
import os
import subprocess
from typing import TYPE_CHECKING, Self, final

from gazette_platform.errors import SetupError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["SmallDisk"]

_BALLAST = ".ballast"
_PIECE_BYTES = 1 << 20
_TIMEOUT_S = 20


@final
class SmallDisk:
    """A tmpfs mounted on a folder while it is entered; what is in it is lost with it.

    To mount takes root, or CAP_SYS_ADMIN: without it `is_mounted` stays False, the folder is one
    like any other, and `fill` does nothing.

    Args:
        folder: created if it is not there; must be empty.
        size_bytes: of the disk.
    """

    def __init__(self, folder: Path, *, size_bytes: int) -> None:
        self.folder = folder
        self.is_mounted = False
        self._size_bytes = size_bytes

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        options = f"size={self._size_bytes},mode=0755"
        done = _run("mount", "-t", "tmpfs", "-o", options, "gazette-test", str(self.folder))
        self.is_mounted = done == 0
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self.is_mounted:
            # Lazily: a process that was just killed may not have let go of its files.
            _run("umount", "--lazy", str(self.folder))
            self.is_mounted = False

    def fill(self) -> None:
        """Leave not one byte of room, until `free`. Blocks.

        Raises: SetupError: the disk takes more than it should hold.
        """
        if not self.is_mounted:
            return
        with (self.folder / _BALLAST).open("ab", buffering=0) as file:
            size = _PIECE_BYTES
            while size:
                try:
                    if not file.write(bytes(size)):
                        size //= 2
                except OSError as err:
                    if err.errno != errno.ENOSPC:
                        raise SetupError(f"cannot fill {self.folder}: {err.strerror}") from err
                    size //= 2

    def free(self) -> None:
        """Undo `fill`."""
        (self.folder / _BALLAST).unlink(missing_ok=True)


def _run(*command: str) -> int:
    try:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            timeout=_TIMEOUT_S,
            env=os.environ | {"LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return 1
    return done.returncode
