"""What the process does when it is told to end, or when a callback of its event loop fails."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import TYPE_CHECKING, Any, Final, Protocol, final

if TYPE_CHECKING:
    from gazette_platform.broker.process.watchdog import Watchdog
    from gazette_platform.ops.faults import Faults

__all__ = ["HURRIED_S", "Leaver", "Signals", "on_loop_error"]

_log = logging.getLogger(__name__)

HURRIED_S: Final = 10.0
"""Seconds that are left to a process that was told to end twice, or has nothing left to do."""


class Leaver(Protocol):
    """What signals ask of a broker."""

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
    """What SIGTERM and SIGINT do: the first asks the broker to leave, the next to do so at once.

    Attributes:
        stop: set by the first.
        starting: limits the start of the broker while it is under way; the first ends it.
    """

    def __init__(self, broker: Leaver, watchdog: Watchdog) -> None:
        self._broker = broker
        self._watchdog = watchdog
        self.stop = asyncio.Event()
        self.starting: asyncio.Timeout | None = None
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)

    def leave(self) -> None:
        """The broker begins to leave, by a signal or by a failure."""
        limit_s = self._broker.leaves_within_s
        if limit_s is not None:
            self._watchdog.arm(limit_s, "--broker.drain-timeout is long over")

    def _on_signal(self) -> None:
        if self.stop.is_set():
            _log.warning("told to leave again: nothing is waited for any more")
            self._broker.hurry()
            self._watchdog.arm(HURRIED_S, "it was told so twice")
            return
        _log.info("told to leave")
        self.stop.set()
        if self.starting is not None and not self.starting.expired():
            self.leave()
            self.starting.reschedule(asyncio.get_running_loop().time())


def on_loop_error(broker: Leaver, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A callback, or a task that nobody waits for, has failed. Its owner has lost that one call."""
    error, what = context.get("exception"), str(context.get("message"))
    if error is None or "PollerCompletionQueue" in what:  # the latter is grpc.aio's, and harmless
        loop.default_exception_handler(context)
    else:
        broker.faults.report("callback", what, error)
