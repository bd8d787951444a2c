"""Appends of a journal in the background: many small writes, few RPCs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, final

from gazette_platform.client.append_batches import BATCH_BYTES_MAX, BUFFER_BYTES_MAX, as_content
from gazette_platform.client.append_queue import AppendQueue, AppendTicket
from gazette_platform.client.byte_budget import ByteBudget
from gazette_platform.errors import ValidationError
from gazette_platform.ops.closing import AsyncClosing
from gazette_platform.protocol.content import CONTENT_CHUNK_BYTES

if TYPE_CHECKING:
    from gazette_platform.client.appender import AppendOptions
    from gazette_platform.client.results import AppendResult
    from gazette_platform.client.transport import Transport

__all__ = ["AppendWriter"]


@final
class AppendWriter(AsyncClosing):
    """An ordered, coalescing writer of one journal, with a queue and a buffer of its own.

    Each write is kept whole: it never straddles two appends. While an append is under way,
    writes gather into the next one, so that batches grow with latency. Appends are retried with
    back-off; one that cannot succeed fails its own tickets and ends the writer: every later
    `flush` and `close` raises the same error, `write` says that nothing is appended after it.

    At-least-once: a batch whose answer was lost is appended again. Use from one event loop.
    """

    def __init__(
        self,
        transport: Transport,
        journal: str,
        options: AppendOptions,
        batch_bytes_max: int = BATCH_BYTES_MAX,
        buffer_bytes_max: int = BUFFER_BYTES_MAX,
    ) -> None:
        if options.offset:
            raise ValidationError("an append writer cannot check offsets", path="offset")
        self.journal = journal
        self._options = options
        self._budget = ByteBudget(buffer_bytes_max)
        self._queue = AppendQueue(
            transport, journal, self._budget, batch_bytes_max=batch_bytes_max, owner="writer"
        )
        self._unsent_bytes = 0  # since others had their turn
        self._is_closed = False

    @property
    def last_result(self) -> AppendResult | None:
        """The latest commit; covers a whole batch."""
        return self._queue.last_result

    @property
    def committed_bytes(self) -> int:
        """Bytes written here that are committed."""
        return self._queue.committed_bytes

    @property
    def buffered_bytes(self) -> int:
        """Bytes accepted and not yet committed."""
        return self._budget.used

    async def write(self, data: bytes) -> AppendTicket:
        """Accept `data`, in order; waits only while the buffer is full.

        Returns: a ticket to await the commit with. It may be dropped: `flush` and `close` raise too.
        Raises: GazetteError: an earlier append failed for good. ValidationError: closed, or empty.
        Cancellation: safe; data is accepted whole or not at all.
        """
        if self._unsent_bytes >= CONTENT_CHUNK_BYTES:
            # Else nothing is sent before the buffer is full, and then nothing is written meanwhile.
            self._unsent_bytes = 0
            await asyncio.sleep(0)
        if type(data) is not bytes:
            data = as_content(self.journal, data)
        if not self._budget.is_full or self._queue.error is not None:
            return self.write_nowait(data)
        await self._budget.take(len(data))
        try:
            return self._accept(data)
        except BaseException:
            self._budget.give_back(len(data))
            raise

    def write_nowait(self, data: bytes) -> AppendTicket:
        """As `write`, but never waits: the caller limits how much it hands over."""
        if type(data) is not bytes:
            data = as_content(self.journal, data)
        ticket = self._accept(data)
        self._budget.used += len(data)
        return ticket

    def _accept(self, data: bytes) -> AppendTicket:
        if self._is_closed and self._queue.error is None:
            raise ValidationError(f"{self.journal}: the append writer is closed")
        if not data:
            raise ValidationError(f"{self.journal}: nothing to write")
        batch = self._queue.batch_for(self._options)
        self._unsent_bytes += len(data)
        return AppendTicket(batch, batch.add(data), len(data))

    async def flush(self) -> None:
        """Wait until everything written so far is committed.

        Raises: GazetteError: an append failed for good. Cancellation: safe; appends go on.
        """
        await self._queue.flush()

    async def close(self) -> None:
        """Refuse further writes and `flush`. May be called again."""
        self._is_closed = True
        await self._queue.flush()
