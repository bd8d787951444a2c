"""Records of one journal, by the hundred thousand a second."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, Self, final

from gazette_platform.client.append_batches import as_content
from gazette_platform.client.append_queue import wait_for
from gazette_platform.errors import GazetteError, ValidationError
from gazette_platform.protocol.content import CONTENT_CHUNK_BYTES

if TYPE_CHECKING:
    from types import TracebackType

    from gazette_platform.client.append_batches import Batch
    from gazette_platform.client.append_queue import AppendQueue
    from gazette_platform.client.appender import AppendOptions
    from gazette_platform.client.byte_budget import ByteBudget

__all__ = ["RecordWriter"]


class _Service(Protocol):
    """What a writer needs of its append service."""

    @property
    def budget(self) -> ByteBudget: ...

    def queue(self, journal: str) -> AppendQueue: ...

    def begin(self, writer: RecordWriter) -> None: ...


@final
class RecordWriter:
    """A buffered writer of an append service: `write` only takes a record and returns nothing about it.

    As with a stream of asyncio, `await drain()` now and then, which holds a writer up that is faster
    than the brokers, and `await flush()` to know that all is committed. Records go out by themselves
    in the loop's next turn. Each is kept whole, and they stay in order, also among other appends of
    the same task.
    """

    __slots__ = (
        "_error",
        "_last",
        "_options",
        "_parts",
        "_queue",
        "_service",
        "_size",
        "_undrained",
        "journal",
    )

    def __init__(self, service: _Service, journal: str, options: AppendOptions) -> None:
        self.journal = journal
        self._service = service
        self._options = options
        self._parts: list[bytes] = []
        self._size = 0
        self._undrained = 0
        self._last: Batch | None = None
        self._queue: AppendQueue | None = None
        self._error: GazetteError | None = None

    def write(self, record: bytes) -> None:
        """Accept `record`, in order; never waits.

        Raises:
            GazetteError: an earlier append failed for good.
            ValidationError: the service is closed, or more than its bound was written without `drain`.
        """
        if type(record) is not bytes:
            record = as_content(self.journal, record)
        parts = self._parts
        if not parts:
            self._begin()
        size = self._size + len(record)
        parts.append(record)
        self._size = size
        if size >= CONTENT_CHUNK_BYTES:
            self.hand_over()

    def _begin(self) -> None:
        if self._error is not None:
            raise self._error.with_traceback(None)
        limit = self._service.budget.limit
        if self._undrained >= limit:
            raise ValidationError(
                f"{self.journal}: {self._undrained} bytes were written at once, and {limit} may wait "
                "(call `await writer.drain()` between writes)"
            )
        self._service.begin(self)

    def hand_over(self) -> None:
        """Let what was written be appended. An error is raised by the next call."""
        if not self._size:
            self._parts = []
            return
        parts, size = self._parts, self._size
        self._parts, self._size = [], 0
        # Behind a `reset` the journal takes more, but what this writer had written before is lost.
        self._error = self._error or self._failure()
        if self._error is not None:
            return
        try:
            queue = self._service.queue(self.journal)
            batch = queue.batch_for(self._options)
        except GazetteError as err:
            self._error = err
            return
        self._queue = queue
        self._undrained += size
        self._service.budget.used += size
        batch.add_all(parts, size)
        self._last = batch

    async def drain(self) -> None:
        """Let others go on if much was written, and wait while too much is not appended yet.

        Raises: GazetteError: an earlier append failed for good. Cancellation: safe.
        """
        if self._undrained >= CONTENT_CHUNK_BYTES:
            self._undrained = 0
            if self._service.budget.is_full:
                await self._service.budget.take(0)
            else:
                await asyncio.sleep(0)
        self._check()

    async def flush(self) -> None:
        """Wait until all that was written is committed.

        Raises: GazetteError: an append failed for good. Cancellation: safe; appends go on.
        """
        self.hand_over()
        self._undrained = 0
        if self._last is not None:
            await wait_for(self._last)
        self._check()

    def _failure(self) -> GazetteError | None:
        """What the first append failed for of those that hold records of this writer, or came before."""
        if self._last is None or self._queue is None or self._last.error is None:
            return None
        return self._queue.error

    def _check(self) -> None:
        if self._error is None:
            self._error = self._failure()
        if self._error is not None:
            raise self._error.with_traceback(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.flush()
