"""Appends to many journals from many callers: in order, gathered into few RPCs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, final

from gazette_platform.client.append_batches import (
    BATCH_BYTES_MAX,
    BUFFER_BYTES_MAX,
    NO_NEEDS,
    as_content,
)
from gazette_platform.client.append_queue import AppendQueue, AppendTicket, wait_for
from gazette_platform.client.appender import AppendOptions
from gazette_platform.client.byte_budget import ByteBudget
from gazette_platform.client.record_writer import RecordWriter
from gazette_platform.errors import ValidationError
from gazette_platform.ops.closing import AsyncClosing
from gazette_platform.protocol import validate_journal_name

if TYPE_CHECKING:
    from collections.abc import Collection

    from gazette_platform.client.append_batches import Batch, Needs
    from gazette_platform.client.transport import Transport
    from gazette_platform.errors import GazetteError

__all__ = ["AppendService", "Dependency"]

# What an append may wait for: other appends, or anything else that ends. If it fails, so does the append.
Dependency = AppendTicket | asyncio.Future[Any]

_PLAIN: Final = AppendOptions()


@final
class AppendService(AsyncClosing):
    """Appends to any number of journals; each caller is told where its own data is.

    Appends to a journal keep the order of the calls. While one RPC of a journal is under way, or
    waits for what it depends on, appends gather in the next, so that RPCs grow with latency. They
    gather only with those of equal options, and of no fewer dependencies. An append is kept whole.

    RPCs are retried with back-off. One that cannot succeed fails its appends, and all that come
    behind it in its journal, until `reset`; other journals go on. An append whose dependency failed
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
            GazetteError: it failed, or one before it did; `may_be_applied` tells what became of it.
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
        batch = self._batch_for(journal, len(data), after, options)
        self._budget.used += len(data)
        return AppendTicket(batch, batch.add(data), len(data))

    async def room(self) -> None:
        """Wait while too much is accepted already, as before a `submit_nowait`. Cancellation: safe."""
        while self._budget.used >= self._budget.limit:
            await self._budget.take(0)

    def writer(self, journal: str, *, options: AppendOptions = _PLAIN) -> RecordWriter:
        """The fastest way for many small records: see `RecordWriter`. Any number may share a journal.

        Raises: ValidationError: not the name of a journal.
        """
        self.queue(journal, is_kept=False)
        return RecordWriter(self, journal, options)

    def pending(self, *, but: str = "") -> frozenset[AppendTicket]:
        """What is accepted and not committed: the last appends of all journals, as what to come `after`.

        Those that failed are among them, until `reset`.

        Args:
            but: a journal to leave out.
        """
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
        """Let appends to a journal begin anew, after one has failed. What failed stays so."""
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
