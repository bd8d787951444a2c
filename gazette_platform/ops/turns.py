"""Long computations in an event loop that has other work, too."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, final
from weakref import WeakKeyDictionary

__all__ = ["Turns"]

# Short compared with the time of an append, long compared with the cost of a switch.
_TURN_S: Final = 0.01

# Seconds that a computation may take before it has to wait for its first turn; nearly all have ended by
# then. Short, because one round of the loop may run those of many callers.
_FIRST_S: Final = 0.001


@final
class Turns:
    """Lets others go on in between: `take` it in each round of a loop.

    In each round of the event loop one computation has its turn, however many there are: a thousand
    of them are slow, and hold up nobody else.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + _FIRST_S

    async def take(self) -> None:
        """Return at once, or when our next turn comes if this one is over. Cancellation: safe."""
        if self._loop.time() >= self._until:
            queue = _queues.get(self._loop)
            if queue is None:
                queue = _queues[self._loop] = _Queue()
            await queue.turn()
            self._until = self._loop.time() + _TURN_S


@final
class _Queue:
    """Computations of one event loop that wait for their turn, first come, first served.

    It has no reference to the loop: that would keep its own entry in `_queues` alive for ever.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_scheduled = False

    async def turn(self) -> None:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiting.append(waiter)
        if not self._is_scheduled:
            self._is_scheduled = True
            loop.call_soon(self._next)
        await waiter

    def _next(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                break
        self._is_scheduled = bool(self._waiting)
        if self._is_scheduled:
            asyncio.get_running_loop().call_soon(self._next)


_queues: WeakKeyDictionary[asyncio.AbstractEventLoop, _Queue] = WeakKeyDictionary()
