"""Ends a process that has to end and does not.

A thread that hangs in a disk or a store holds up the interpreter for ever, and so does an event
loop that hangs. If the end was asked for with a time limit, or a second time, it comes all the same.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)

_FAILED = 1

# To log what it hangs in.
_SAY_S = 2.0


@final
class Watchdog:
    """A deadline for the whole process, kept by a thread of its own.

    Args:
        end: ends the process with an exit status; given by tests.

    Attributes:
        describe: says for the log what the process is doing, and where it hangs.
    """

    def __init__(self, end: Callable[[int], None] = os._exit) -> None:
        self._end = end
        self.describe: Callable[[], str] = str
        self._changed = threading.Condition()
        self._deadline = math.inf
        self._why = ""
        self._thread: threading.Thread | None = None

    def arm(self, limit_s: float, why: str) -> None:
        """End the process in `limit_s` seconds, unless it should end sooner already."""
        deadline = time.monotonic() + limit_s
        with self._changed:
            if self._deadline <= deadline:
                return
            self._deadline, self._why = deadline, why
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _watch(self) -> None:
        with self._changed:
            while (left_s := self._deadline - time.monotonic()) > 0:
                self._changed.wait(left_s)
            try:
                aside(self._say, self._why).join(_SAY_S)
            finally:
                self._end(_FAILED)

    def _say(self, why: str) -> None:
        _log.critical("this process does not end by itself and is ended: %s", why)
        _log.critical("what it waits for:\n%s", self.describe())


def aside(call: Callable[..., None], *args: object) -> threading.Thread:
    """Log, in a thread of its own: that may hang, too, in a pipe without a reader or in a disk.

    Returns: the thread; it does not keep the process alive.
    """
    thread = threading.Thread(target=call, args=args, name="log", daemon=True)
    thread.start()
    return thread
