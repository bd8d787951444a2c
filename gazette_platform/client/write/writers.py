"""Background writers on an event loop: `AppendService` (many journals), `AppendWriter`, `RecordWriter`.

All keep the order of writes and gather them into few RPCs (`append_queue`). An `AppendService` shares
one bound of memory between journals, and an append may wait for appends to other journals. A
`RecordWriter` skips the ticket of each write, for hundreds of thousands of records a second.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Self, final

from gazette_platform.client.write.append import AppendOptions
from gazette_platform.client.write.append_queue import (
    BATCH_BYTES_MAX,
    BUFFER_BYTES_MAX,
    NO_NEEDS,
    AppendQueue,
    AppendTicket,
    ByteBudget,
    as_content,
    wait_for,
)
from gazette_platform.errors import GazetteError, ValidationError
from gazette_platform.ops.tasks import AsyncClosing
from gazette_platform.protocol import validate_journal_name
from gazette_platform.protocol.content import CONTENT_CHUNK_BYTES

if TYPE_CHECKING:
    from collections.abc import Collection
    from types import TracebackType

    from gazette_platform.client.results import AppendResult
    from gazette_platform.client.transport import Transport
    from gazette_platform.client.write.append_queue import Batch, Needs


# ------------------------------------------------------------------ many journals

# What an append may wait for: other appends, or anything else that ends. If it fails, so does the append.
Dependency = AppendTicket | asyncio.Future[Any]
_PLAIN: Final = AppendOptions()


@final
class AppendService(AsyncClosing):
    """Appends to any number of journals; each caller receives the place of its own data.

    Appends to a journal keep the order of the calls. While one RPC of a journal is under way, or
    waits for what it depends on, appends gather in the next, so that RPCs grow with latency. They
    gather only with those of equal options, and of no fewer dependencies. An append is kept whole.

    RPCs are retried with back-off. One that cannot succeed fails its appends, and all that come
    after it in its journal, until `reset`; other journals go on. An append whose dependency failed
    does so too. At-least-once: an RPC whose answer was lost is made again. Use from one event loop.
    """

    def __init__(
        self,
        transport: Transport,
        batch_bytes_max: int = BATCH_BYTES_MAX,
        buffer_bytes_max: int = BUFFER_BYTES_MAX,
    ) -> None:
        if batch_bytes_max < 1:
            raise ValidationError("must be positive", path="batch_bytes_max")
        self._transport = transport
        self._batch_bytes_max = batch_bytes_max
        self._budget = ByteBudget(buffer_bytes_max)
        self._queues: dict[str, AppendQueue] = {}
        self._unhanded: list[RecordWriter] = []
        self._is_closed = False

    @property
    def buffered_bytes(self) -> int:
        """Bytes accepted and not yet committed, of all journals."""
        return self._budget.used

    @property
    def budget(self) -> ByteBudget:
        """The bytes that may wait, of all journals together."""
        return self._budget

    async def append(
        self,
        journal: str,
        data: bytes,
        *,
        after: Collection[Dependency] = (),
        options: AppendOptions = _PLAIN,
    ) -> tuple[int, int]:
        """Append `data`, and wait until it is committed. Calls of many tasks share RPCs.

        Args:
            journal: its name.
            data: bytes; not empty.
            after: what has to succeed before; appends of the same journal need not be named.
            options: conditions and effects, which all appends of an RPC share; no offset.

        Returns: begin and end of `data` in the journal.

        Raises:
            DependencyFailed: one of `after` failed; nothing was appended.
            GazetteError: it failed, or one before it did; `may_be_applied` says what became of it.
            ValidationError: closed, no journal's name, or no data.

        Cancellation: safe; data that was accepted is appended all the same.
        """
        if type(data) is not bytes:
            data = as_content(journal, data)
        size = len(data)
        budget = self._budget
        if budget.is_full:
            await budget.take(size)
        else:
            budget.used += size
        queue = self._queues.get(journal)
        batch: Batch | None = None
        if queue is not None and queue.chain.waiting and size and not after:
            batch = queue.chain.waiting[-1]
        # Most calls join the batch that another one has begun. What it takes to begin one costs them a fifth.
        if (
            batch is None
            or batch.options is not options
            or batch.size >= self._batch_bytes_max
            or self._unhanded
            or self._is_closed
        ):
            try:
                batch = self._batch_for(journal, size, after, options)
            except BaseException:
                budget.give_back(size)
                raise
        delta = batch.add(data)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        batch.waiters.append(waiter)
        await waiter
        if batch.error is not None:
            raise batch.error.with_traceback(None)  # others raise it too
        begin = batch.begin + delta
        return begin, begin + size

    async def submit(
        self,
        journal: str,
        data: bytes,
        *,
        after: Collection[Dependency] = (),
        options: AppendOptions = _PLAIN,
    ) -> AppendTicket:
        """As `append`, but wait only while too much is accepted already.

        Returns: a ticket to await, or to name to others as what they come `after`; it may be dropped.
        Raises: as `append`, of earlier ones. Cancellation: safe; accepted whole or not at all.
        """
        if type(data) is not bytes:
            data = as_content(journal, data)
        size = len(data)
        await self._budget.take(size)
        try:
            batch = self._batch_for(journal, size, after, options)
        except BaseException:
            self._budget.give_back(size)
            raise
        return AppendTicket(batch, batch.add(data), size)

    def submit_nowait(
        self,
        journal: str,
        data: bytes,
        *,
        after: Collection[Dependency] = (),
        options: AppendOptions = _PLAIN,
    ) -> AppendTicket:
        """As `submit`, but never waits: the caller limits how much it hands over."""
        if type(data) is not bytes:
            data = as_content(journal, data)
        # Counted even beyond the limit, so that those who may wait do wait for these bytes, too.
        batch = self._batch_for(journal, len(data), after, options)
        self._budget.used += len(data)
        return AppendTicket(batch, batch.add(data), len(data))

    async def room(self) -> None:
        """Wait while too much is accepted already, as before a `submit_nowait`. Cancellation: safe."""
        # Again after each turn: whoever waited for the same room may have used it up without waiting.
        while self._budget.used >= self._budget.limit:
            await self._budget.take(0)

    def writer(self, journal: str, *, options: AppendOptions = _PLAIN) -> RecordWriter:
        """The fastest way for many small records: see `RecordWriter`. Any number may share a journal.

        Raises: ValidationError: not the name of a journal.
        """
        # Only checks the name and that the service is open; the first record makes the queue.
        self.queue(journal, is_kept=False)
        return RecordWriter(self, journal, options)

    def pending(self, *, but: str = "") -> frozenset[AppendTicket]:
        """What is accepted and not committed: the last appends of all journals, as what to come `after`.

        Those that failed are among them, until `reset`.

        Args:
            but: a journal to leave out.
        """
        # A failed append is named as well: a transaction that comes `after` it must fail, and not commit
        # as if the append had never been asked for.
        self.hand_over()
        last = {
            name: queue.chain.last or queue.failed
            for name, queue in self._queues.items()
            if name != but
        }
        return frozenset(
            AppendTicket(batch, 0, batch.size) for batch in last.values() if batch is not None
        )

    async def flush(self, journal: str = "") -> None:
        """Wait until all that was accepted so far is committed.

        Args:
            journal: its name; "": all.

        Raises: GazetteError: what an append failed for, once all have ended; of several the first.
        Cancellation: safe; appends go on.
        """
        self.hand_over()
        error: GazetteError | None = None
        for queue in [queue for name, queue in self._queues.items() if journal in ("", name)]:
            # In turn: they are appended at the same time all the same.
            if (last := queue.chain.last) is not None:
                await wait_for(last)
            error = error or queue.error
        if error is not None:
            raise error.with_traceback(None)

    def reset(self, journal: str) -> None:
        """Accept appends to a journal again after one failed. Failed ones stay failed."""
        queue = self._queues.get(journal)
        if queue is not None and queue.error is not None:
            del self._queues[journal]

    async def close(self) -> None:
        """Refuse further appends and `flush`. May be called again."""
        self.hand_over()
        self._is_closed = True
        await self.flush()

    def queue(self, journal: str, *, is_kept: bool = True) -> AppendQueue:
        """The queue of a journal; those without appends are forgotten.

        Raises: ValidationError: closed, or not the name of a journal.
        """
        if self._is_closed:
            raise ValidationError(f"{journal}: the append service is closed")
        queue = self._queues.get(journal)
        if queue is None:
            try:
                validate_journal_name(journal, meta=True)
            except ValidationError as err:
                raise err.within("Journal") from err

            # Queues of idle journals would add up, as applications map to ever new journals. A failed
            # queue stays, since a new one would append after the gap.
            def on_idle() -> None:
                found = self._queues.get(journal)
                if found is new and new.error is None:
                    del self._queues[journal]

            queue = new = AppendQueue(
                self._transport,
                journal,
                self._budget,
                batch_bytes_max=self._batch_bytes_max,
                owner="service",
                on_idle=on_idle,
            )
            if is_kept:
                self._queues[journal] = queue
        return queue

    def _batch_for(
        self, journal: str, size: int, after: Collection[Dependency], options: AppendOptions
    ) -> Batch:
        if self._unhanded:
            self.hand_over()  # what was written before comes first
        queue = self._queues.get(journal)
        if queue is None or self._is_closed:
            queue = self.queue(journal)
        if not size:
            raise ValidationError(f"{journal}: nothing to append")
        return queue.batch_for(options, _needs(after) if after else NO_NEEDS)

    # ------------------------------------------------------------------ for its writers

    def begin(self, writer: RecordWriter) -> None:
        """Ask `writer` for its records in the loop's next turn. Raises: ValidationError: closed."""
        if self._is_closed:
            raise ValidationError(f"{writer.journal}: the append service is closed")
        if not self._unhanded:
            asyncio.get_running_loop().call_soon(self.hand_over)
        self._unhanded.append(writer)

    def hand_over(self) -> None:
        """Take what writers hold."""
        writers, self._unhanded = self._unhanded, []
        for writer in writers:
            writer.hand_over()


def _needs(after: Collection[Dependency]) -> Needs:
    return frozenset(need.batch if isinstance(need, AppendTicket) else need for need in after)


# ------------------------------------------------------------------ writes of one journal


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

    @property
    def buffer_bytes_max(self) -> int:
        """Bytes from which on `write` waits."""
        return self._budget.limit

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


# ------------------------------------------------------------------ records of one journal


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

    def __init__(self, service: AppendService, journal: str, options: AppendOptions) -> None:
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
