"""What all connections of a gateway may hold at a time, how many parts a request may have, and how often the log names clients."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import cache
from typing import TYPE_CHECKING, Any, Final, final

from gazette_platform.kafka.batch_wire import PARTS_MAX

if TYPE_CHECKING:
    from asyncio import Future

_log = logging.getLogger(__name__)

_TEXT_MAX: Final = 500
_A_MINUTE: Final = 30
_MINUTE_S: Final = 60.0


@final
class Budget:
    """Bytes that may be held at a time. Whoever asks waits until there is room, in the order in which they ask."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.free = limit
        self._waiting: deque[tuple[int, Future[None]]] = deque()

    def take_now(self, size: int) -> int | None:
        """Take room, if there is some. Returns: what to give back: no more than there is at all; None: `take` has to wait."""
        size = min(size, self._limit)
        if size > self.free or self._waiting:
            return None
        self.free -= size
        return size

    async def take(self, size: int) -> int:
        """Wait for room. Returns: as `take_now`. Cancellation: safe."""
        now = self.take_now(size)
        if now is not None:
            return now
        size = min(size, self._limit)
        future: Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, future))
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.give(size)
            else:
                future.cancel()
                self.give(0)
            raise
        return size

    def add(self, size: int) -> None:
        """Take more than was asked for, without waiting: others wait for it."""
        self.free -= size

    def give(self, size: int) -> None:
        """Give room back."""
        self.free += size
        while self._waiting and (self._waiting[0][1].done() or self._waiting[0][0] <= self.free):
            size, future = self._waiting.popleft()
            if not future.done():
                self.free -= size
                future.set_result(None)


@final
class Complaints:
    """Logs what clients do wrong: some of each minute as warnings, so that strangers do not fill the log."""

    def __init__(self) -> None:
        self._began = self._count = 0.0

    def add(self, host: str, what: object) -> None:
        """Log one."""
        now = asyncio.get_running_loop().time()
        if now - self._began >= _MINUTE_S:
            if self._count > _A_MINUTE:
                left_out = self._count - _A_MINUTE
                _log.warning("%d more errors of Kafka clients are in the debug log only", left_out)
            self._began, self._count = now, 0
        self._count += 1
        level = logging.WARNING if self._count <= _A_MINUTE else logging.DEBUG
        _log.log(level, "Kafka client %s: %s", host, str(what)[:_TEXT_MAX])


def parts_of(entity: Any) -> int:
    """How many parts a request has, and the parts of these. Stops counting where there are too many."""
    count = 0
    kind: Any = type(entity)
    for name in _tuples(kind):
        parts = getattr(entity, name) or ()
        count += len(parts)
        if parts and hasattr(parts[0], "__dataclass_fields__"):
            for part in parts:
                if count > PARTS_MAX:
                    break
                count += parts_of(part)
    return count


@cache
def _tuples(kind: Any) -> tuple[str, ...]:
    """The fields of a class that may have parts."""
    fields = kind.__dataclass_fields__.values()
    return tuple(each.name for each in fields if str(each.type).startswith("tuple"))
