"""The appends of one journal in the background: many writes, few RPCs, in order.

While an RPC is under way, writes gather in the next batch, so batches grow with latency. A batch that
cannot be appended ends its queue, since later writes would break the order. `ByteBudget` bounds the
bytes that wait; writers wait for it, first come, first served.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final, final

from gazette_platform.client.write.append import Content, append
from gazette_platform.errors import DependencyFailed, GazetteError, TransportError, ValidationError
from gazette_platform.protocol.content import (
    CONTENT_CHUNK_BYTES,
    encode_append_content,
    encode_append_pieces,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from gazette_platform.client.results import AppendResult
    from gazette_platform.client.transport import Transport
    from gazette_platform.client.write.append import AppendOptions

# ------------------------------------------------------------------ back-pressure


@final
class ByteBudget:
    """Bytes that were accepted and have not ended. Use from one event loop.

    Who finds it full waits, first come, first served. It is full from `limit` on, so that one piece
    beyond it is accepted, of whatever size.

    Attributes:
        limit: bytes.
        used: bytes.
    """

    __slots__ = ("_waiting", "limit", "used")

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValidationError("must be positive", path="buffer_bytes_max")
        self.limit = limit
        self.used = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    @property
    def is_full(self) -> bool:
        """Whether the next one has to wait."""
        return self.used >= self.limit or bool(self._waiting)

    async def take(self, size: int) -> None:
        """Take `size` bytes, when it is not full. Cancellation: safe, nothing is taken then."""
        if not self.is_full:
            self.used += size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((turn, size))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(size)  # it was our turn already
            else:
                self.give_back(0)  # those behind need not wait for us
            raise

    def give_back(self, size: int) -> None:
        """Let go of `size` bytes, and let those go on who waited for them."""
        self.used -= size
        while self._waiting:
            turn, wanted = self._waiting[0]
            if not turn.done():
                if self.used >= self.limit:
                    return
                self.used += wanted
                turn.set_result(None)
            self._waiting.popleft()


# ------------------------------------------------------------------ batches

BATCH_BYTES_MAX: Final = 16 << 20
"""Bytes that become one append by default: all of them are sent again if it fails."""

BUFFER_BYTES_MAX: Final = 64 << 20
"""Bytes that may wait by default: the batch under way, and some after it."""


def as_content(journal: str, data: object) -> bytes:
    """Immutable bytes, as a memoryview whose items are single bytes.

    A batch belongs to many callers: what cannot be joined to it must not get there.

    Raises: ValidationError: it is not bytes.
    """
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise ValidationError(f"{journal}: {type(data).__name__} cannot be appended, but bytes")


@final
class Batch:
    """Writes that become one RPC. Content is encoded as it comes, in messages of a good size.

    Attributes:
        options: conditions and effects of its append.
        needs: what has to succeed before it may be appended; never changes.
        size: bytes of content, in all.
        begin: offset that it was committed at.
        error: why it was not.
        is_done: whether one of both is known.
        content: what is under way; None before and after.
        waiters: futures to end with it; one may have been cancelled.
        callbacks: to call when it is done.
    """

    __slots__ = (
        *("_attempts", "_messages", "_parts", "_parts_bytes", "begin", "callbacks", "chain"),
        *("content", "error", "is_done", "needs", "options", "size", "waiters"),
    )

    def __init__(self, chain: BatchChain, options: AppendOptions, needs: Needs) -> None:
        self.chain = chain
        self.options = options
        self.needs = needs
        self.size = 0
        self.begin = -1
        self.error: GazetteError | None = None
        self.is_done = False
        self.content: Content | None = None
        self.waiters: list[asyncio.Future[None]] = []
        self.callbacks: list[Callable[[], None]] = []
        self._messages: list[bytes] = []
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._attempts = 0

    @property
    def attempts(self) -> int:
        """How often it was sent whole and not refused, so how often it may be in the journal."""
        return self._attempts if self.content is None else self.content.attempts

    def add(self, data: bytes) -> int:
        """Take a write. Returns: where it is in the batch, in bytes from its begin."""
        at = self.size
        self._parts.append(data)
        self.size = at + len(data)
        self._parts_bytes += len(data)
        if self._parts_bytes >= CONTENT_CHUNK_BYTES:
            self._encode()
        return at

    def add_all(self, pieces: Sequence[bytes], size: int) -> int:
        """As `add`, of several writes with `size` bytes together."""
        at = self.size
        self._parts += pieces
        self.size = at + size
        self._parts_bytes += size
        if self._parts_bytes >= CONTENT_CHUNK_BYTES:
            self._encode()
        return at

    def messages(self) -> list[bytes]:
        """All of it, as encoded messages."""
        if self._parts:
            self._encode()
        return self._messages

    def _encode(self) -> None:
        parts, size = self._parts, self._parts_bytes
        self._parts, self._parts_bytes = [], 0
        if size < 2 * CONTENT_CHUNK_BYTES:
            self._messages.append(encode_append_pieces(parts, size))
            return
        view = memoryview(parts[0] if len(parts) == 1 else b"".join(parts))
        for begin in range(0, size, CONTENT_CHUNK_BYTES):
            self._messages.append(encode_append_content(view[begin : begin + CONTENT_CHUNK_BYTES]))

    def end(self, error: GazetteError | None, begin: int = -1) -> None:
        """Note what became of it, and let go of its content, as tickets may be kept for long."""
        self._attempts, self.content, self._messages, self._parts = self.attempts, None, [], []
        self.error, self.begin, self.is_done = error, begin, True
        self.needs = NO_NEEDS


# What an append waits for: batches of other journals, or futures of the caller's own.
Needs = frozenset[Batch | asyncio.Future[Any]]

NO_NEEDS: Final[Needs] = frozenset()


@final
class BatchChain:
    """The batches of one journal, in the order in which they are appended, one at a time.

    Needs of a batch are made before the batch is, and are never added to, so that batches cannot wait
    for each other in a circle.

    Attributes:
        waiting: those to come; the last takes more writes.
        current: the one under way.
    """

    def __init__(self, batch_bytes_max: int) -> None:
        if batch_bytes_max < 1:
            raise ValidationError("must be positive", path="batch_bytes_max")
        self._batch_bytes_max = batch_bytes_max
        self.waiting: deque[Batch] = deque()
        self.current: Batch | None = None

    @property
    def last(self) -> Batch | None:
        """The batch that ends last; None: all have ended."""
        return self.waiting[-1] if self.waiting else self.current

    def batch_for(self, options: AppendOptions, needs: Needs = NO_NEEDS) -> Batch:
        """Return the batch that takes the next write: the last one, or a new one.

        The last one takes it unless it is full, is appended on other terms, or is ready before all of
        `needs` may be. A write is not split, so the one that fills a batch may exceed the bound.

        Raises: ValidationError: an offset cannot be checked of what is appended together.
        """
        if self.waiting:
            last = self.waiting[-1]
            if (
                last.size < self._batch_bytes_max
                and (options is last.options or options == last.options)
                and (not needs or needs <= last.needs)
            ):
                return last
        # Where a batch begins depends on the writes that happen to share it.
        if options.offset:
            raise ValidationError(
                "appends that are gathered cannot check offsets (use `append` of the client)",
                path="offset",
            )
        batch = Batch(self, options, needs)
        self.waiting.append(batch)
        return batch

    def start(self) -> Batch:
        """Take the first of those that wait: it is under way, and takes no more writes."""
        self.current = self.waiting.popleft()
        return self.current

    def committed(self, begin: int) -> Batch:
        """End the batch under way, which is in the journal from `begin` on."""
        batch, self.current = self.current, None
        assert batch is not None, "no batch is under way"
        batch.end(None, begin)
        return batch

    def fail(self, error: GazetteError, behind: GazetteError) -> list[Batch]:
        """End all: order would break if later ones were appended.

        Args:
            error: of the batch under way.
            behind: of those that wait.
        """
        failed = [*([self.current] if self.current is not None else []), *self.waiting]
        for batch in failed:
            batch.end(error if batch is self.current else behind)
        self.waiting.clear()
        self.current = None
        return failed


# ------------------------------------------------------------------ the queue of a journal


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
    queue: later batches are not appended, and nothing is accepted any more.

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
        asyncio.get_running_loop()  # raises here without a loop, and not in a task that is not awaited
        try:
            # A task only while there is something to append: a service may have thousands of journals.
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
            # Only the first batch waits. Those behind gather meanwhile, and waiting for them earlier would
            # not append them earlier.
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
                    # No caller waits who could decide, and a failed batch ends the queue for all.
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
        """The error of the batch that failed, and of all accepted after it."""
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
        # Nothing behind the failed batch is appended, even if the journal would take it: readers of a
        # journal would see later writes without the earlier ones.
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
