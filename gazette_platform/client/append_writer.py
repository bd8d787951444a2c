"""Appends of a journal in the background: many small writes, few RPCs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self, final

from gazette_platform.client.appender import AppendOptions, Content, append
from gazette_platform.errors import GazetteError, TransportError, ValidationError
from gazette_platform.protocol.content import CONTENT_CHUNK_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import TracebackType

    from gazette_platform.client.results import AppendResult
    from gazette_platform.client.transport import Transport

__all__ = ["AppendTicket", "AppendWriter"]


@final
class _Batch:
    """Writes that become one RPC, grouped so that each group is one content message."""

    __slots__ = (
        *("committed_at", "done", "error", "groups", "last_group_bytes", "sent", "size"),
        "_attempts",
    )

    def __init__(self, done: asyncio.Future[None]) -> None:
        self.groups: list[list[bytes]] = [[]]
        self.last_group_bytes = 0
        self.size = 0
        self.committed_at = -1
        self.error: GazetteError | None = None
        self.sent: Content | None = None
        self._attempts = 0
        self.done = done

    @property
    def attempts(self) -> int:
        return self.sent.attempts if self.sent is not None else self._attempts

    def forget_content(self) -> None:
        """Let go of the content: callers may keep their tickets for long."""
        self._attempts, self.sent, self.groups = self.attempts, None, []

    def add(self, data: bytes) -> None:
        if self.last_group_bytes >= CONTENT_CHUNK_BYTES:
            self.groups.append([])
            self.last_group_bytes = 0
        self.groups[-1].append(data)
        self.last_group_bytes += len(data)
        self.size += len(data)

    def content(self) -> bytes | list[bytes]:
        if len(self.groups) == 1:
            group = self.groups[0]
            return group[0] if len(group) == 1 else b"".join(group)
        return [b"".join(group) for group in self.groups]


@final
class AppendTicket:
    """A write that was accepted. Await it for the [begin, end) that it was committed at."""

    __slots__ = ("_batch", "_delta", "_length")

    def __init__(self, batch: _Batch, delta: int, length: int) -> None:
        self._batch = batch
        self._delta = delta
        self._length = length

    @property
    def is_done(self) -> bool:
        """Whether the write was committed or has failed."""
        return self._batch.done.done()

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the event loop once the write was committed or has failed."""
        self._batch.done.add_done_callback(lambda _: callback())

    @property
    def attempts(self) -> int:
        """How often it was sent whole and not refused, so how often it may be in the journal."""
        return self._batch.attempts

    def span(self) -> tuple[int, int]:
        """Begin and end of the write, once it is done.

        Raises: GazetteError: what the append failed for.
        """
        if self._batch.error is not None:
            raise self._batch.error
        begin = self._batch.committed_at + self._delta
        return begin, begin + self._length

    def __await__(self) -> Generator[object, None, tuple[int, int]]:
        if not self._batch.done.done():
            # Shielded: one waiter's cancellation must not end the wait of the others.
            yield from asyncio.shield(self._batch.done).__await__()
        return self.span()


@final
class AppendWriter:
    """An ordered, coalescing writer of one journal.

    Each write is kept whole: it never straddles two appends. While an append is under way,
    writes gather into the next one, so that batches grow with latency. Appends are retried with
    back-off; one that cannot succeed fails its own tickets and ends the writer: every later
    `write`, `flush` and `close` raises the same error, and nothing after it is appended.

    At-least-once: a batch whose answer was lost is appended again. Use from one event loop.
    """

    def __init__(
        self,
        transport: Transport,
        journal: str,
        options: AppendOptions,
        *,
        batch_bytes_max: int = 16 << 20,
        buffer_bytes_max: int = 64 << 20,
    ) -> None:
        if batch_bytes_max < 1 or buffer_bytes_max < 1:
            raise ValidationError("batch_bytes_max and buffer_bytes_max must be positive")
        if options.offset:
            raise ValidationError("an append writer cannot check offsets", path="offset")
        self.journal = journal
        self._transport = transport
        self._options = options
        self._batch_bytes_max = batch_bytes_max
        self._buffer_bytes_max = buffer_bytes_max
        self._queue: list[_Batch] = []
        self._current: _Batch | None = None
        self._buffered_bytes = 0
        self._committed_bytes = 0
        self._is_draining = False
        self._is_closed = False
        self._error: GazetteError | None = None
        self._has_space = asyncio.Event()
        self._has_space.set()
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self.last_result: AppendResult | None = None
        """The latest commit; covers a whole batch."""

    @property
    def committed_bytes(self) -> int:
        """Bytes written here that are committed."""
        return self._committed_bytes

    @property
    def buffered_bytes(self) -> int:
        """Bytes accepted and not yet committed."""
        return self._buffered_bytes

    async def write(self, data: bytes) -> AppendTicket:
        """Accept `data`, in order; waits only while the buffer is full.

        Returns: a ticket to await the commit with. It may be dropped: `flush` and `close` raise too.
        Raises: GazetteError: an earlier append failed for good. ValidationError: closed, or empty.
        Cancellation: safe; data is accepted whole or not at all.
        """
        while self._buffered_bytes >= self._buffer_bytes_max and self._error is None:
            self._has_space.clear()
            await self._has_space.wait()
        return self.write_nowait(data)

    def write_nowait(self, data: bytes) -> AppendTicket:
        """As `write`, but never waits: the caller limits how much it hands over."""
        if self._error is not None:
            raise self._error
        if self._is_closed:
            raise ValidationError(f"{self.journal}: the append writer is closed")
        if not data:
            raise ValidationError(f"{self.journal}: nothing to write")
        if not self._is_draining:
            self._start()
        if not self._queue or self._queue[-1].size >= self._batch_bytes_max:
            self._queue.append(_Batch(asyncio.get_running_loop().create_future()))
        batch = self._queue[-1]
        ticket = AppendTicket(batch, batch.size, len(data))
        batch.add(data)
        self._buffered_bytes += len(data)
        return ticket

    async def flush(self) -> None:
        """Wait until everything written so far is committed.

        Raises: GazetteError: an append failed for good. Cancellation: safe; appends go on.
        """
        batch = self._queue[-1] if self._queue else self._current
        if batch is not None:
            await asyncio.shield(batch.done)
        if self._error is not None:
            raise self._error

    async def close(self) -> None:
        """Refuse further writes and `flush`. May be called again."""
        self._is_closed = True
        while not self._is_idle.is_set():
            await self._is_idle.wait()
        if self._error is not None:
            raise self._error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def _start(self) -> None:
        """Append what is written from now on, until nothing is left."""
        asyncio.get_running_loop()
        try:
            task = self._transport.tasks.spawn(self._drain(), name=f"append {self.journal}")
        except RuntimeError as err:  # the task group was closed
            raise ValidationError(
                f"{self.journal}: the client of the append writer is closed"
            ) from err
        task.add_done_callback(self._drained)
        self._is_draining = True
        self._is_idle.clear()

    async def _drain(self) -> GazetteError | None:
        """Append batch after batch until none is left. Returns: why one of them failed."""
        while self._queue:
            batch = self._current = self._queue.pop(0)
            batch.sent = Content(batch.content())
            try:
                result = await append(
                    self._transport,
                    self.journal,
                    batch.sent,
                    self._options,
                    retry_failed=True,
                )
            except GazetteError as err:
                return err
            self._current = None
            self.last_result = result
            self._committed_bytes += batch.size
            batch.committed_at = result.begin
            self._end(batch, None)
            self._has_space.set()
        return None

    def _drained(self, task: asyncio.Task[GazetteError | None]) -> None:
        """Answer all that was written, in whatever way the task ended.

        The task itself cannot do it: if it is cancelled before its first step, it never runs.
        """
        self._is_draining = False
        if task.cancelled():
            if self._current is not None or self._queue:
                self._fail(
                    TransportError(
                        f"{self.journal}: the client was closed during an append; its outcome is "
                        "unknown"
                    ),
                    ValidationError(
                        f"{self.journal}: the client was closed before all was appended"
                    ),
                )
        elif (error := task.exception() or task.result()) is not None:
            self._fail(*self._told(error))
        elif self._queue:  # written after the last look at it
            try:
                self._start()
            except ValidationError as err:
                self._fail(err, err)
            else:
                return
        self._has_space.set()
        self._is_idle.set()

    def _told(self, error: BaseException) -> tuple[GazetteError, GazetteError]:
        """The error of the batch that failed, and of what was written behind it."""
        if not isinstance(error, GazetteError):
            unexpected = error
            error = TransportError(
                f"append to {self.journal} failed unexpectedly: {unexpected!r} (its outcome is unknown)"
            )
            error.__cause__ = unexpected
        if not error.may_be_applied:
            return error, error
        behind = TransportError(
            f"{self.journal}: not appended, as an append before failed: {error}"
        )
        behind.may_be_applied = False
        behind.__cause__ = error
        return error, behind

    def _fail(self, error: GazetteError, behind: GazetteError) -> None:
        """End the writer: order would break if later batches were appended."""
        batch, self._current = self._current, None
        queue, self._queue = self._queue, []
        self._error = error if batch is not None else behind
        if batch is not None:
            self._end(batch, error)
        for each in queue:
            self._end(each, behind)

    def _end(self, batch: _Batch, error: GazetteError | None) -> None:
        self._buffered_bytes -= batch.size
        batch.forget_content()
        batch.error = error
        batch.done.set_result(None)
