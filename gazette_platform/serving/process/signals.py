"""What the process does on a signal to end, or when a callback of its event loop fails."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, final

from gazette_platform.serving.process.watchdog import aside

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_platform.ops.faults import Faults
    from gazette_platform.serving.process.watchdog import Watchdog

_log = logging.getLogger(__name__)

_NUMBERS: Final = (signal.SIGTERM, signal.SIGINT)

HURRIED_S: Final = 10.0
"""Seconds that are left to a process after a second signal, or with nothing left to do."""


class Leaver(Protocol):
    """What signals ask of a server."""

    faults: Faults

    @property
    def leaves_within_s(self) -> float | None:
        """Seconds that it takes at most to leave; None: as long as others, and stores, take."""
        ...

    def hurry(self) -> None:
        """Wait for nothing any more on the way out."""
        ...


@final
class Signals:
    """What SIGTERM and SIGINT do: the first asks the server to leave, the next to do so at once.

    A thread of its own hears them, and arms the watchdog before anything else: the event loop may
    hang, and a thread that hangs in a disk takes no signal at all. Make it in the main thread before
    others begin: those, and what the process starts, inherit that they do not take these signals.

    Attributes:
        stop: set by the first.
        starting: limits the start of the server while it is under way; the first ends it.

    Args:
        flag: sets the time for leaving.
    """

    def __init__(self, server: Leaver, watchdog: Watchdog, *, flag: str) -> None:
        self._server = server
        self._flag = flag
        self._watchdog = watchdog
        self._loop = asyncio.get_running_loop()
        self.stop = asyncio.Event()
        self.starting: asyncio.Timeout | None = None
        signal.pthread_sigmask(signal.SIG_BLOCK, _NUMBERS)
        hearing = threading.Thread(target=self._hear, name="signals", daemon=True)
        hearing.start()
        assert hearing.ident is not None
        for number in _NUMBERS:  # that an earlier thread took
            pass_on = partial(signal.pthread_kill, hearing.ident, number)
            self._loop.add_signal_handler(number, pass_on)

    def ask(self) -> None:
        """Ask the server to leave; nothing if it was asked before. May be called by any thread."""
        self.leave()
        self._tell(self._stop)
        aside(_log.info, "asked to leave")

    def hurry(self) -> None:
        """Ask the server, which was asked before, to leave at once. May be called by any thread."""
        self._watchdog.arm(HURRIED_S, "it got a second signal")
        self._tell(self._server.hurry)
        aside(_log.warning, "asked to leave again: no more waiting")

    def leave(self) -> None:
        """The server begins to leave, by a signal or by a failure. May be called by any thread."""
        limit_s = self._server.leaves_within_s
        if limit_s is not None:
            self._watchdog.arm(limit_s, f"--{self._flag} is long over")

    def _hear(self) -> None:
        signal.sigwait(_NUMBERS)
        self.ask()
        while True:
            signal.sigwait(_NUMBERS)
            self.hurry()

    def _tell(self, callback: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: only the watchdog is left
            self._loop.call_soon_threadsafe(callback)

    def _stop(self) -> None:
        self.stop.set()
        if self.starting is not None and not self.starting.expired():
            self.starting.reschedule(self._loop.time())


def on_loop_error(server: Leaver, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A callback, or a task that is not awaited, has failed. Its owner has lost that one call."""
    error, what = context.get("exception"), str(context.get("message"))
    if error is None or "PollerCompletionQueue" in what:  # the latter is grpc.aio's, and harmless
        loop.default_exception_handler(context)
    else:
        server.faults.report("callback", what, error)
