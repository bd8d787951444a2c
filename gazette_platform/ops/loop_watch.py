"""Notices that something blocks an event loop, and where in the code."""

from __future__ import annotations

import asyncio
import logging
import sys
import sysconfig
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["LoopWatch"]

_log = logging.getLogger(__name__)

# Where frames are not an application's: what blocks is its call of them. An application may be installed as libraries are.
_OURS: Final = (sysconfig.get_path("stdlib"), str(Path(__file__).parents[1]))
_LIBRARIES: Final = (*_OURS, sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))


@final
class LoopWatch:
    """Watches the event loop that it is made in, from a thread: `start` it, and in the end `stop` it.

    A process that is stopped as a whole stops the thread too, so that it is not taken for a blocked loop.

    Args:
        limit_s: seconds without a turn of the loop, after which it counts as blocked.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._beaten_at = time.monotonic()
        self._where = ""
        self._said, self._said_at = "", 0.0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="loop watch", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for the thread, which takes a moment."""
        self._stopped.set()
        self._thread.join()

    def said(self, within_s: float) -> str:
        """Describe the last time that the loop was blocked, if that ended within so many seconds; or ""."""
        self._beat()
        return self._said if self._said and time.monotonic() - self._said_at < within_s else ""

    def _watch(self) -> None:
        pause_s = self._limit_s / 4
        while not self._stopped.is_set():
            asked_at = time.monotonic()
            self._loop.call_soon_threadsafe(self._beat)
            if self._stopped.wait(pause_s):
                return
            now_s = time.monotonic()
            was_paused = now_s - asked_at > self._limit_s
            if now_s - self._beaten_at > self._limit_s and not was_paused and not self._where:
                self._where = _place(sys._current_frames().get(self._loop_thread))  # noqa: SLF001

    def _beat(self) -> None:
        """On the loop: it has a turn."""
        now_s = time.monotonic()
        blocked_s, self._beaten_at = now_s - self._beaten_at, now_s
        where, self._where = self._where, ""
        if where:
            self._said, self._said_at = (
                f"{where} blocked its event loop for {blocked_s:.0f} s",
                now_s,
            )
            _log.warning(
                "%s: all else of the process waited, its lease too (have a thread do what takes long, as by "
                "`asyncio.to_thread`)",
                self._said,
            )


def _place(frame: FrameType | None) -> str:
    """Where a thread is, as an application's author would look for it."""
    stack = traceback.extract_stack(frame)
    own, loose = (
        [each for each in stack if not each.filename.startswith(others)]
        for others in (_LIBRARIES, _OURS)
    )
    at = (own or loose or stack)[-1]
    return f"{at.name} at {Path(at.filename).name}:{at.lineno}"
