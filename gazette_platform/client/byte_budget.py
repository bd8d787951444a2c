"""Back-pressure: how many bytes may wait in memory."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import final

from gazette_platform.errors import ValidationError

__all__ = ["ByteBudget"]


@final
class ByteBudget:
    """Bytes that were accepted and have not ended. Use from one event loop.

    Who finds it full waits, first come, first served. It is full from `limit` on, so that one piece
    beyond it is accepted, of whatever size.

    Attributes:
        limit: bytes.
        used: bytes.
    """

    __slots__ = ("_waiting", "limit", "used")

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValidationError("must be positive", path="buffer_bytes_max")
        self.limit = limit
        self.used = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    @property
    def is_full(self) -> bool:
        """Whether the next one has to wait."""
        return self.used >= self.limit or bool(self._waiting)

    async def take(self, size: int) -> None:
        """Take `size` bytes, when it is not full. Cancellation: safe, nothing is taken then."""
        if not self.is_full:
            self.used += size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((turn, size))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(size)  # it was our turn already
            else:
                self.give_back(0)  # those behind need not wait for us
            raise

    def give_back(self, size: int) -> None:
        """Let go of `size` bytes, and let those go on who waited for them."""
        self.used -= size
        while self._waiting:
            turn, wanted = self._waiting[0]
            if not turn.done():
                if self.used >= self.limit:
                    return
                self.used += wanted
                turn.set_result(None)
            self._waiting.popleft()
