"""The folder in which a process keeps files of its shards, and those that killed processes have left.

Such files are worth nothing once their process is gone, and may be large. Each process has a folder of its
own, and beside it a file that it holds a lock of as long as it lives: who gets that lock may delete both.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import shutil
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Scratch"]

_log = logging.getLogger(__name__)

_NAME: Final = "gazette-consumer-"
_LOCK_SUFFIX: Final = ".lock"


@final
class Scratch:
    """A folder below another one, which is deleted in the end, by whomever. Calls block.

    Attributes:
        path: where files may be made: the parent itself, if there cannot be a folder, as for a process
            whose shards need no files.
    """

    def __init__(self, parent: Path) -> None:
        """Nothing is made yet."""
        self.path = parent
        self._parent = parent
        self._lock: int | None = None
        self._lock_path = parent

    def open(self) -> None:
        """Make the folder, and hold its lock."""
        name = f"{_NAME}{secrets.token_hex(8)}"
        self._lock_path, path = self._parent / f"{name}{_LOCK_SUFFIX}", self._parent / name
        try:
            self._lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            # Another process that looks for leftovers may hold it for a moment, and then delete it.
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.fstat(self._lock).st_nlink:
                raise FileNotFoundError(f"{self._lock_path} was deleted by another process")
            path.mkdir(0o700)
        except OSError as err:
            _log.warning(
                "%s: no folder of this process alone can be made there (%s): files of its shards stay behind "
                "if it is killed",
                self._parent,
                err,
            )
            self.close()
            return
        self.path = path

    def sweep(self) -> None:
        """Delete what processes of this user have left that are gone."""
        uid = os.geteuid()
        for lock_path in sorted(self._parent.glob(f"{_NAME}*{_LOCK_SUFFIX}")):
            folder = lock_path.with_name(lock_path.name.removesuffix(_LOCK_SUFFIX))
            try:
                lock = os.open(lock_path, os.O_RDWR | os.O_NOFOLLOW)
            except OSError:
                continue  # deleted meanwhile, or of another user
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(lock).st_uid == uid and os.fstat(lock).st_nlink:
                    _log.info("%s: files of a process that is gone are deleted", folder)
                    shutil.rmtree(folder, ignore_errors=True)
                    lock_path.unlink(missing_ok=True)
            except OSError:
                pass  # it lives, or another process is at it
            finally:
                os.close(lock)

    def close(self) -> None:
        """Delete the folder, with all that is in it. May be called again."""
        if self._lock is None:
            return
        if self.path != self._parent:
            shutil.rmtree(self.path, ignore_errors=True)
        self._lock_path.unlink(missing_ok=True)
        os.close(self._lock)
        self._lock = None
