"""When calls expire. Thousands a second have a deadline a minute ahead, and next to none reaches it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, final

if TYPE_CHECKING:
    import asyncio

__all__ = ["Deadlines"]

# Deadlines are kept to this precision, so that a call costs two operations on sets and no timer. Clients
# watch their deadlines themselves.
_STEP_S: Final = 0.02

# A call that may last for longer has no deadline to speak of; timers may not know so large a number.
_LIMIT_S: Final = 30 * 24 * 3600.0


class Expiring(Protocol):
    """A call, as its deadline knows it."""

    def expire(self) -> None:
        """The deadline has come."""


@final
class Deadlines:
    """Deadlines of the calls of one server, by steps of time; one timer serves all of them."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._steps: dict[int, set[Expiring]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_step = 0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Use the timers of `loop`."""
        self._loop = loop

    def add(self, call: Expiring, timeout_s: float) -> int:
        """Let a call expire in so many seconds. Returns: what to pass to `discard`."""
        assert self._loop is not None
        step = int((self._loop.time() + min(timeout_s, _LIMIT_S)) / _STEP_S) + 1
        calls = self._steps.get(step)
        if calls is None:
            calls = self._steps[step] = set()
            if self._timer is None or step < self._timer_step:
                self._arm(self._loop, step)
        calls.add(call)
        return step

    def left_s(self, step: int) -> float:
        """Return the seconds until a deadline, which `add` returned."""
        assert self._loop is not None
        return max(0.0, step * _STEP_S - self._loop.time())

    def discard(self, call: Expiring, step: int) -> None:
        """A call has ended before its deadline."""
        calls = self._steps.get(step)
        if calls is not None:
            calls.discard(call)
            if not calls:
                del self._steps[step]

    def stop(self) -> None:
        """Let no more calls expire."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._steps.clear()

    def _arm(self, loop: asyncio.AbstractEventLoop, step: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_step = step
        self._timer = loop.call_at(step * _STEP_S, self._expire)

    def _expire(self) -> None:
        assert self._loop is not None
        now = self._loop.time() / _STEP_S
        self._timer = None
        for step in [step for step in self._steps if step <= now]:
            for call in self._steps.pop(step):
                call.expire()
        if self._steps:
            self._arm(self._loop, min(self._steps))
