"""Messages that were read, and wait to be sequenced."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, Generic, TypeVar, final

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_platform.message import Envelope

__all__ = ["SHARD_BYTES_MAX", "Inlet", "ReadBudget"]

M = TypeVar("M")

SHARD_BYTES_MAX: Final = 64 << 20
"""Bytes of messages that a shard has read and not consumed, and one batch more. Those of open transactions are
bounded by as much, and read again when they are committed.
"""

PROCESS_BYTES_MAX: Final = 256 << 20
"""The same of all shards of a process, and one batch of each more."""


@final
class ReadBudget:
    """Bytes of messages that the shards of a process have read and not consumed.

    Attributes:
        used: as of now.
        waiting: set once there is room.
    """

    def __init__(self, limit: int = PROCESS_BYTES_MAX) -> None:
        self.used = 0
        self.waiting: set[asyncio.Event] = set()
        self._limit = limit

    @property
    def has_room(self) -> bool:
        """Whether more may be read by shards that have something to consume."""
        return self.used < self._limit

    def give_back(self, size: int) -> None:
        """Count bytes as consumed."""
        self.used -= size
        if size and self.has_room:
            for each in self.waiting:
                each.set()
            self.waiting.clear()


@final
class Inlet(Generic[M]):
    """A bounded queue from several readers, in batches, to one who takes messages.

    It holds one batch more than its bounds at most: a batch is taken in whole once there is room. While `budget`
    is used up, a reader waits unless the queue is empty, so that each shard goes on.

    Attributes:
        entries: to be taken from its left; call `made_room` once they are used.

    Args:
        size: messages.
        wake: called when there is something new.
        bytes_max: of messages, as they are in their journals.
        budget: that shards share.
    """

    def __init__(
        self,
        size: int,
        wake: Callable[[], None],
        *,
        bytes_max: int = SHARD_BYTES_MAX,
        budget: ReadBudget | None = None,
    ) -> None:
        self.entries: deque[Envelope[M]] = deque()
        self._size = size
        self._bytes_max = bytes_max
        self._budget = budget or ReadBudget()
        self._wake = wake
        self._error: Exception | None = None
        self._is_closed = False
        self._room = asyncio.Event()
        self._is_full = False
        # Of each batch that is not used up: its bytes, and how many messages were put up to its end.
        self._batches: deque[tuple[int, int]] = deque()
        self._bytes = 0
        self._put = 0

    async def put(self, batch: list[Envelope[M]]) -> None:
        """Add messages of one journal. Cancellation: safe; they are added or not."""
        while self._is_full or (self.entries and not self._budget.has_room):
            self._room.clear()
            self._budget.waiting.add(self._room)
            await self._room.wait()
        self.entries.extend(batch)
        size = batch[-1].end - batch[0].begin if batch else 0
        self._put += len(batch)
        self._batches.append((size, self._put))
        self._bytes += size
        self._budget.used += size
        self._is_full = len(self.entries) >= self._size or self._bytes >= self._bytes_max
        self._wake()

    def made_room(self) -> None:
        """Messages were taken, and used: let readers go on once half of them were."""
        used, freed = self._put - len(self.entries), 0
        while self._batches and self._batches[0][1] <= used:
            freed += self._batches.popleft()[0]
        self._bytes -= freed
        if len(self.entries) <= self._size // 2 and self._bytes <= self._bytes_max // 2:
            self._is_full = False
            self._room.set()
        self._budget.give_back(freed)

    def drop(self) -> None:
        """Forget all messages: nothing more is taken, nor put."""
        self.entries.clear()
        self.made_room()

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

        So what was read before an error is committed, and a reader that continues after what could not be read
        has all that lies before it.
        """
        return (self._is_closed or self._error is not None) and not self.entries

    def check(self) -> None:
        """Raises: what the reading failed with, once all before was taken."""
        if self._error is not None and not self.entries:
            raise self._error
