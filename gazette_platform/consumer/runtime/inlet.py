"""Messages that were read, and wait to be sequenced."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar, final

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_platform.message import Envelope

__all__ = ["Inlet"]

M = TypeVar("M")


@final
class Inlet(Generic[M]):
    """A bounded queue from several readers, in batches, to one who takes messages.

    It holds one batch more than its size at most: a batch is taken in whole once there is room.

    Attributes:
        entries: to be taken from its left; call `made_room` behind it.

    Args:
        size: messages.
        wake: called when there is something new.
    """

    def __init__(self, size: int, wake: Callable[[], None]) -> None:
        self.entries: deque[Envelope[M]] = deque()
        self._size = size
        self._wake = wake
        self._error: Exception | None = None
        self._is_closed = False
        self._room = asyncio.Event()
        self._room.set()

    async def put(self, batch: list[Envelope[M]]) -> None:
        """Add messages of one journal. Cancellation: safe; they are added or not."""
        while not self._room.is_set():
            await self._room.wait()
        self.entries.extend(batch)
        if len(self.entries) >= self._size:
            self._room.clear()
        self._wake()

    def fail(self, error: Exception) -> None:
        """No more can be read. What was read before is used first; of several errors the first counts."""
        if self._error is None:
            self._error = error
        self._wake()

    def close(self) -> None:
        """There is no more."""
        self._is_closed = True
        self._wake()

    @property
    def has_entry(self) -> bool:
        """Whether there is a message to take."""
        return bool(self.entries)

    @property
    def is_closed(self) -> bool:
        """Whether nothing comes any more; `check` says whether that is an error's doing.

        So what was read before an error is committed, and whoever goes on behind what could not be read
        has all that lies before it.
        """
        return (self._is_closed or self._error is not None) and not self.entries

    def check(self) -> None:
        """Raises: what the reading failed with, once all before was taken."""
        if self._error is not None and not self.entries:
            raise self._error

    def made_room(self) -> None:
        """Messages were taken: let readers go on once half of them were."""
        if len(self.entries) <= self._size // 2:
            self._room.set()
