"""The appends of one journal in the background: batch after batch, in order."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, final

from gazette_platform.client.append_batches import NO_NEEDS, Batch, BatchChain, Needs
from gazette_platform.client.appender import Content, append
from gazette_platform.errors import (
    DependencyFailed,
    GazetteError,
    TransportError,
    ValidationError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from gazette_platform.client.appender import AppendOptions
    from gazette_platform.client.byte_budget import ByteBudget
    from gazette_platform.client.results import AppendResult
    from gazette_platform.client.transport import Transport

__all__ = ["AppendQueue", "AppendTicket", "wait_for"]


# Waiters of a batch that go on in one turn of the event loop. What these append is on its way to the broker
# while the others go on: a thousand in one turn would keep it waiting.
_WOKEN_MAX: Final = 256


def _wake(waiters: list[asyncio.Future[None]], at: int) -> None:
    """Let waiters go on, in their order, from the one numbered `at`."""
    end = at + _WOKEN_MAX
    for waiter in waiters[at:end]:
        if not waiter.done():
            waiter.set_result(None)
    if end < len(waiters):
        asyncio.get_running_loop().call_soon(_wake, waiters, end)


async def wait_for(batch: Batch) -> None:
    """Wait until `batch` was committed or has failed. Cancellation: safe, the append goes on."""
    if not batch.is_done:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        batch.waiters.append(waiter)
        await waiter


@final
class AppendTicket:
    """A write that was accepted. Await it for the [begin, end) that it was committed at."""

    __slots__ = ("_batch", "_delta", "_length")

    def __init__(self, batch: Batch, delta: int, length: int) -> None:
        self._batch = batch
        self._delta = delta
        self._length = length

    @property
    def batch(self) -> Batch:
        """What it is appended with."""
        return self._batch

    @property
    def is_done(self) -> bool:
        """Whether the write was committed or has failed."""
        return self._batch.is_done

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the event loop once the write was committed or has failed."""
        if self._batch.is_done:
            asyncio.get_running_loop().call_soon(callback)
        else:
            self._batch.callbacks.append(callback)

    @property
    def attempts(self) -> int:
        """How often it was sent whole and not refused, so how often it may be in the journal."""
        return self._batch.attempts

    def span(self) -> tuple[int, int]:
        """Begin and end of the write, once it is done.

        Raises: GazetteError: what the append failed for.
        """
        batch = self._batch
        if batch.error is not None:
            raise batch.error.with_traceback(None)  # others raise it too
        begin = batch.begin + self._delta
        return begin, begin + self._length

    def __await__(self) -> Generator[object, None, tuple[int, int]]:
        if not self._batch.is_done:
            yield from wait_for(self._batch).__await__()
        return self.span()


@final
class AppendQueue:
    """Appends what it is given, for as long as that works, and in that order.

    While an append is under way, or waits for what it needs, writes gather in the next one, so that
    batches grow with latency. Appends are retried with back-off. One that cannot succeed ends the
    queue: what waits behind it is not appended, and nothing is accepted any more.

    Attributes:
        chain: the batches.
        error: what the queue ended by.
        refusal: what further appends are refused with; nothing of them was appended.
        failed: the batch that it ended at.
        last_result: the latest commit; covers a whole batch.
        committed_bytes: in all.
    """

    def __init__(
        self,
        transport: Transport,
        journal: str,
        budget: ByteBudget,
        *,
        batch_bytes_max: int,
        owner: str,
        on_idle: Callable[[], None] | None = None,
    ) -> None:
        self.journal = journal
        self.chain = BatchChain(batch_bytes_max)
        self.error: GazetteError | None = None
        self.refusal: GazetteError | None = None
        self.failed: Batch | None = None
        self.last_result: AppendResult | None = None
        self.committed_bytes = 0
        self._transport = transport
        self._budget = budget
        self._owner = owner
        self._on_idle = on_idle
        self._is_draining = False

    def batch_for(self, options: AppendOptions, needs: Needs = NO_NEEDS) -> Batch:
        """The batch to add the next write to, at once; its bytes are of the budget already.

        Raises: GazetteError: `refusal`. ValidationError: the client is closed.
        """
        if self.refusal is not None:
            raise self.refusal.with_traceback(None)
        if not self._is_draining:
            self._start()
        if needs:
            needs = self._open(needs)
        return self.chain.batch_for(options, needs)

    def _open(self, needs: Needs) -> Needs:
        """Those that have not succeeded yet. Order sees to those of this queue."""
        return frozenset(
            need
            for need in needs
            if not (
                need.chain is self.chain or (need.is_done and need.error is None)
                if isinstance(need, Batch)
                else need.done() and not need.cancelled() and need.exception() is None
            )
        )

    async def flush(self) -> None:
        """Wait until all that was accepted so far is committed.

        Raises: GazetteError: what the queue ended by. Cancellation: safe; appends go on.
        """
        if (last := self.chain.last) is not None:
            await wait_for(last)
        if self.error is not None:
            raise self.error.with_traceback(None)

    def _start(self) -> None:
        """Append what is accepted from now on, until nothing is left."""
        asyncio.get_running_loop()
        try:
            task = self._transport.tasks.spawn(self._drain(), name=f"append {self.journal}")
        except RuntimeError as err:  # the task group was closed
            raise ValidationError(
                f"{self.journal}: the client of the append {self._owner} is closed"
            ) from err
        task.add_done_callback(self._drained)
        self._is_draining = True

    async def _drain(self) -> GazetteError | None:
        """Append batch after batch until none is left. Returns: why one of them failed."""
        chain = self.chain
        while chain.waiting:
            if (needs := chain.waiting[0].needs) and (error := await self._met(needs)) is not None:
                return error
            batch = chain.start()
            batch.content = Content.of_messages(batch.messages())
            try:
                result = await append(
                    self._transport,
                    self.journal,
                    batch.content,
                    batch.options,
                    retry_failed=True,
                )
            except GazetteError as err:
                return err
            self.last_result = result
            self.committed_bytes += batch.size
            self._tell(chain.committed(result.begin))
        return None

    async def _met(self, needs: Needs) -> GazetteError | None:
        """Wait for what a batch needs. Returns: why it cannot be appended."""
        for need in needs:
            error: BaseException | None
            if isinstance(need, Batch):
                await wait_for(need)
                error = need.error
            else:
                await asyncio.wait((need,))  # which leaves it alone, if we are cancelled
                error = asyncio.CancelledError() if need.cancelled() else need.exception()
            if error is not None:
                failed = DependencyFailed(
                    f"{self.journal}: not appended: dependency failed: {str(error) or repr(error)} (nothing "
                    "more is appended there, as its order would break)"
                )
                failed.__cause__ = error
                return failed
        return None

    def _drained(self, task: asyncio.Task[GazetteError | None]) -> None:
        """Answer all that was accepted, in whatever way the task ended.

        The task itself cannot do it: if it is cancelled before its first step, it never runs.
        """
        self._is_draining = False
        chain = self.chain
        if task.cancelled():
            if chain.last is not None:
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
        elif chain.waiting:  # accepted after the last look at it
            try:
                self._start()
            except ValidationError as err:
                self._fail(err, err)
            else:
                return
        if self._on_idle is not None:
            self._on_idle()

    def _told(self, error: BaseException) -> tuple[GazetteError, GazetteError]:
        """The error of the batch that failed, and of what was accepted behind it."""
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
        self.error = error if self.chain.current is not None else behind
        self.refusal = behind
        failed = self.chain.fail(error, behind)
        self.failed = failed[0] if failed else None
        for batch in failed:
            self._tell(batch)

    def _tell(self, batch: Batch) -> None:
        """Let all go on who wait for `batch`, which has ended."""
        self._budget.give_back(batch.size)
        if batch.callbacks:
            callbacks, batch.callbacks = batch.callbacks, []
            call_soon = asyncio.get_running_loop().call_soon
            for callback in callbacks:
                call_soon(callback)
        waiters, batch.waiters = batch.waiters, []
        _wake(waiters, 0)
