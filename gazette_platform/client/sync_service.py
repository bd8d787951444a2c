"""The append service for threads."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, final

from gazette_platform.client.appender import AppendOptions
from gazette_platform.client.sync_writer import SyncAppendWriter
from gazette_platform.errors import TransportError
from gazette_platform.ops.closing import Closing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gazette_platform.client.append_queue import AppendTicket
    from gazette_platform.client.append_service import AppendService
    from gazette_platform.client.loop_thread import LoopThread

__all__ = ["SyncAppendService", "SyncServiceTicket"]

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
