"""Background writers for threads: the append writer and the append service.

A step to the event loop costs more than a small write. So writes gather on the thread's side while
an append is under way, and cross to the loop together.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from typing import TYPE_CHECKING, Final, Protocol, final

from gazette_platform.client.write.append import AppendOptions
from gazette_platform.client.write.append_queue import as_content
from gazette_platform.errors import GazetteError, TransportError, ValidationError
from gazette_platform.ops.tasks import Closing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gazette_platform.client.write.append_queue import AppendTicket
    from gazette_platform.client.write.writers import AppendService
    from gazette_platform.ops.tasks import LoopThread


class _Writer(Protocol):
    """What appends on the event loop: an `AppendWriter`, or an append service with a journal."""

    @property
    def journal(self) -> str: ...

    def write_nowait(self, data: bytes) -> AppendTicket: ...


@final
class _Staged:
    """Writes that go to the event loop in one step."""

    __slots__ = ("begin", "done", "parts", "size")

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0
        self.begin = -1
        self.done: concurrent.futures.Future[None] = concurrent.futures.Future()


@final
class SyncAppendTicket:
    """A write that was accepted; `result` waits for its commit."""

    __slots__ = ("_delta", "_length", "_staged")

    def __init__(self, staged: _Staged, delta: int, length: int) -> None:
        self._staged = staged
        self._delta = delta
        self._length = length

    @property
    def is_done(self) -> bool:
        """Whether the write was committed or has failed."""
        return self._staged.done.done()

    def result(self, timeout_s: float | None = None) -> tuple[int, int]:
        """Begin and end that the write was committed at.

        Raises: GazetteError: what the append failed for. TransportError: not within `timeout_s`.
        """
        try:
            self._staged.done.result(timeout_s)
        except TimeoutError as err:
            raise TransportError(f"the write was not committed within {timeout_s} s") from err
        begin = self._staged.begin + self._delta
        return begin, begin + self._length


@final
class SyncAppendWriter(Closing):
    """A writer of one journal for any number of threads: ordered, coalescing, bounded.

    Writes gather here while an append is under way, and cross to the event loop in one step for
    many, because a step costs more than a small write.
    """

    def __init__(self, loop: LoopThread, writer: _Writer, *, buffer_bytes_max: int) -> None:
        self._loop = loop
        self._writer = writer
        self._buffer_bytes_max = buffer_bytes_max
        self._changed = threading.Condition()
        self._staged = _Staged()
        self._under_way: _Staged | None = None
        self._buffered_bytes = 0
        self._is_closed = False
        self._error: GazetteError | None = None

    @property
    def journal(self) -> str:
        """Name of the journal."""
        return self._writer.journal

    def write(self, data: bytes) -> SyncAppendTicket:
        """Accept `data`, in order; waits only while the buffer is full.

        Returns: a ticket to wait for the commit with; it may be dropped.
        Raises: GazetteError: an earlier append failed for good.
            ValidationError: closed, empty, or no bytes.
        """
        if type(data) is not bytes:
            data = as_content(self.journal, data)
        if not data:
            raise ValidationError(f"{self.journal}: nothing to write")
        self._check()  # before the lock, which is held for ever in a fork of a busy process
        with self._changed:
            self._check()
            while self._buffered_bytes >= self._buffer_bytes_max:
                self._changed.wait()
                self._check()
            if self._is_closed:
                raise ValidationError(f"{self.journal}: the append writer is closed")
            # One future for all writes of a step: a ticket is an offset in it, and costs no future.
            staged = self._staged
            ticket = SyncAppendTicket(staged, staged.size, len(data))
            staged.parts.append(data)
            staged.size += len(data)
            self._buffered_bytes += len(data)
            if self._under_way is None:
                self._hand_over()
        return ticket

    def flush(self) -> None:
        """Wait until everything written so far is committed.

        Raises: GazetteError: an append failed for good.
        """
        self._check()
        with self._changed:
            last = self._staged if self._staged.parts else self._under_way
        if last is not None:
            last.done.result()
        with self._changed:
            self._check()

    def close(self) -> None:
        """Refuse further writes and `flush`. May be called again."""
        self._is_closed = True
        self.flush()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if self._loop.is_closed:
            raise self._closed()

    def _closed(self) -> ValidationError:
        return ValidationError(
            f"{self.journal}: the client of the append writer {self._loop.closed_why}"
        )

    def _hand_over(self) -> None:
        """Send what is staged to the loop. Called with the lock held."""
        staged, self._staged = self._staged, _Staged()
        self._under_way = staged
        if not self._loop.post(self._append, staged):
            self._under_way = None
            self._buffered_bytes -= staged.size
            self._error = self._closed()
            staged.done.set_exception(self._error)
            self._changed.notify_all()

    def _append(self, staged: _Staged) -> None:
        """On the loop: append, and be called back."""
        try:
            ticket = self._writer.write_nowait(b"".join(staged.parts))
        except GazetteError as err:
            self._finish(staged, err)
        except Exception as err:  # noqa: BLE001  whatever it is, the waiting caller gets it
            self._finish(staged, GazetteError(f"{self.journal}: nothing was appended: {err!r}"))
        else:
            ticket.add_done_callback(lambda: self._appended(staged, ticket))

    def _appended(self, staged: _Staged, ticket: AppendTicket) -> None:
        try:
            staged.begin, _ = ticket.span()
        except GazetteError as err:
            self._finish(staged, err)
        else:
            self._finish(staged, None)

    def _finish(self, staged: _Staged, error: GazetteError | None) -> None:
        # Futures are set without the lock, because their callbacks may write again.
        ended = [staged]
        with self._changed:
            self._buffered_bytes -= staged.size
            self._under_way = None
            if error is not None:
                self._error = error
                ended.append(self._staged)
                self._staged = _Staged()
            elif self._staged.parts:
                self._hand_over()
            self._changed.notify_all()
        for each in ended:
            if error is None:
                each.done.set_result(None)
            else:
                each.done.set_exception(error)


_PLAIN: Final = AppendOptions()


@final
class SyncServiceTicket:
    """An append that was accepted; `result` waits for its commit."""

    __slots__ = ("_loop", "ticket")

    def __init__(self, loop: LoopThread, ticket: AppendTicket) -> None:
        self._loop = loop
        self.ticket = ticket

    @property
    def is_done(self) -> bool:
        """Whether it was committed or has failed."""
        return self.ticket.is_done

    def result(self, timeout_s: float | None = None) -> tuple[int, int]:
        """Begin and end that it was committed at.

        Raises: GazetteError: what it failed for. TransportError: not within `timeout_s`.
        """
        if self.ticket.is_done:
            return self.ticket.span()

        async def wait() -> tuple[int, int]:
            async with asyncio.timeout(timeout_s):
                return await self.ticket

        try:
            return self._loop.run(wait())
        except TimeoutError as err:
            raise TransportError(f"the append was not committed within {timeout_s} s") from err


@final
class _JournalOfService:
    """What a writer of threads hands its writes to."""

    def __init__(self, service: AppendService, journal: str, options: AppendOptions) -> None:
        self.journal = journal
        self._service = service
        self._options = options

    def write_nowait(self, data: bytes) -> AppendTicket:
        return self._service.submit_nowait(self.journal, data, options=self._options)


@final
class SyncAppendService(Closing):
    """An `AppendService` for any number of threads, whose appends share RPCs.

    In a forked child it is closed, as its client is: make both after the fork.
    """

    def __init__(self, loop: LoopThread, service: AppendService) -> None:
        self._loop = loop
        self._service = service

    @property
    def buffered_bytes(self) -> int:
        """As `AppendService.buffered_bytes`."""
        return self._service.buffered_bytes

    def append(
        self,
        journal: str,
        data: bytes,
        *,
        after: Iterable[SyncServiceTicket] = (),
        options: AppendOptions = _PLAIN,
    ) -> tuple[int, int]:
        """As `AppendService.append`."""
        needs = [need.ticket for need in after]
        return self._loop.run(self._service.append(journal, data, after=needs, options=options))

    def submit(
        self,
        journal: str,
        data: bytes,
        *,
        after: Iterable[SyncServiceTicket] = (),
        options: AppendOptions = _PLAIN,
    ) -> SyncServiceTicket:
        """As `AppendService.submit`."""
        needs = [need.ticket for need in after]
        ticket = self._loop.run(self._service.submit(journal, data, after=needs, options=options))
        return SyncServiceTicket(self._loop, ticket)

    def writer(self, journal: str, *, options: AppendOptions = _PLAIN) -> SyncAppendWriter:
        """A writer of many small records, which threads may share.

        Its own buffer is as large as the service's, and its writes are kept whole, in order.
        """
        writer = _JournalOfService(self._service, journal, options)
        limit = self._service.budget.limit
        return SyncAppendWriter(self._loop, writer, buffer_bytes_max=limit)

    def pending(self, *, but: str = "") -> frozenset[SyncServiceTicket]:
        """As `AppendService.pending`."""

        async def pending() -> frozenset[AppendTicket]:
            return self._service.pending(but=but)

        return frozenset(SyncServiceTicket(self._loop, each) for each in self._loop.run(pending()))

    def flush(self, journal: str = "") -> None:
        """As `AppendService.flush`. What writers hold is flushed by themselves."""
        self._loop.run(self._service.flush(journal))

    def reset(self, journal: str) -> None:
        """As `AppendService.reset`."""

        async def reset() -> None:
            self._service.reset(journal)

        self._loop.run(reset())

    def close(self) -> None:
        """As `AppendService.close`. Close its writers first."""
        self._loop.run(self._service.close())
