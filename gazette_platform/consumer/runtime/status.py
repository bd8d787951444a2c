"""What others see of a replica: its readiness and progress, its counts, and the words of its failure.

A failed status names the steps that were under way, outermost first, and where the messages lie.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections import defaultdict
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from gazette_platform.errors import (
    ApplicationFailed,
    Fenced,
    GazetteError,
    JournalNotFound,
    ShardStopped,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator, Mapping, Sequence

    from gazette_platform.consumer.application import Shard
    from gazette_platform.consumer.protocol import Checkpoint
    from gazette_platform.consumer.transaction import CompletedTransaction
    from gazette_platform.message import Envelope

# ------------------------------------------------------------------ readiness and progress


class LocalStep(Enum):
    """What to do about a call that we are to answer."""

    SERVE = auto()
    WAIT = auto()
    STOPPED = auto()
    """Answer SHARD_STOPPED: it cannot come to be served here."""


def local_step(*, is_store_ready: bool, is_loop_ended: bool, is_reached: bool) -> LocalStep:
    """What to do about a call, asked whenever one of these changes.

    A shard that has failed is served still, from the store that it had, as long as no call waits for it
    to read on.

    Args:
        is_store_ready: whether the store has given its checkpoint.
        is_loop_ended: whether the primary's loop has failed, or was cancelled.
        is_reached: whether progress is where the caller waits for it.
    """
    if is_store_ready and is_reached:
        return LocalStep.SERVE
    return LocalStep.STOPPED if is_loop_ended else LocalStep.WAIT


@dataclass(slots=True)
class ShardCounts:
    """What a replica did as primary, for metrics."""

    transactions: int = 0
    """That are committed and acknowledged."""
    read_messages: int = 0
    """Consumed by them."""
    read_bytes: int = 0
    """Consumed, by transactions that are under way as well."""
    phases_s: defaultdict[tuple[str, str], float] = field(
        default_factory=lambda: defaultdict(float)
    )
    """Seconds by type and phase; see `TransactionTimes`."""


@final
class Readiness:
    """Readiness, progress and end of a primary.

    Attributes:
        counts: what it did.
        is_ready: whether the store has given its checkpoint.
        has_ended: whether it consumes no more, or never will.
    """

    def __init__(self, shard: Shard) -> None:
        self.counts = ShardCounts()
        self.is_ready = False
        self.has_ended = False
        self._shard = shard
        self._changed = asyncio.Event()

    def ready(self, checkpoint: Checkpoint) -> None:
        """The store has given a checkpoint, once more perhaps."""
        for journal, offset in checkpoint.read_through.items():
            known = self._shard.progress.read_through
            known[journal] = max(offset, known.get(journal, 0))
        self.is_ready = True
        self._tell()

    def completed(self, transaction: CompletedTransaction | None) -> None:
        """A transaction is done, if there is one."""
        if transaction is None:
            return
        if transaction.times is not None:
            self.counts.transactions += 1
            self.counts.read_messages += transaction.consumed
            for phase, seconds in transaction.times.phases_s().items():
                self.counts.phases_s[phase] += seconds
        self._shard.progress.advance(transaction)
        self._tell()

    def ended(self) -> None:
        """The primary has failed, or was stopped."""
        self.has_ended = True
        self._tell()

    async def wait(self, offsets: Mapping[str, int]) -> None:
        """Wait until the store may be used, and all that lies before `offsets` is in it.

        Returns at once, for no offsets, of a shard that failed after its store was ready.

        Raises: ShardStopped: that will not be. Cancellation: safe.
        """
        while True:
            match local_step(
                is_store_ready=self.is_ready,
                is_loop_ended=self.has_ended,
                is_reached=self._shard.progress.has_reached(offsets, self._shard.spec),
            ):
                case LocalStep.SERVE:
                    return
                case LocalStep.STOPPED:
                    raise ShardStopped(self._shard.id)
                case LocalStep.WAIT:
                    await self._changed.wait()

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


# ------------------------------------------------------------------ errors

T = TypeVar("T")

_JOURNALS_MAX: Final = 4
"""Of a batch, that are named: a status has 2048 characters, and the error follows."""


@final
class StepFailed(GazetteError):
    """A step failed; its cause is the error, or that a step of it failed."""

    def __init__(self, name: str, error: Exception) -> None:
        super().__init__(f"{name}: {_text(error)}")


def _text(error: Exception) -> str:
    if isinstance(error, JournalNotFound) and error.journal:
        return f"named journal does not exist ({error.journal})"  # as Gazette's consumers report it
    if isinstance(error, GazetteError):
        return str(error)
    # Of an application. What it says alone may be no more than a name, as that of a KeyError is.
    return f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def step(name: str) -> Iterator[None]:
    """Have errors say that they come from this step. Cancellation of this task passes through."""
    try:
        yield
    except BaseException as err:
        error = error_of(err)
        if error is None:
            raise
        raise StepFailed(name, error) from error


def error_of(raised: BaseException) -> Exception | None:
    """What a shard has failed with, of anything that was raised.

    A shard whose task just ended would look as if it was at work for ever. So an error is as well that
    something was cancelled which a callback has waited for, and what libraries in other languages raise
    beside `Exception` when they panic.

    Returns: None: nothing has failed; this task is cancelled, or the program is to end.
    """
    if isinstance(raised, Exception):
        return raised
    if isinstance(raised, asyncio.CancelledError):
        task = asyncio.current_task()
        if task is None or task.cancelling():
            return None
        error = ApplicationFailed("something was cancelled that it waited for")
    elif isinstance(raised, KeyboardInterrupt | SystemExit | GeneratorExit):
        return None
    else:
        error = ApplicationFailed(f"{type(raised).__name__}: {raised}")
    error.__cause__ = raised
    return error


def place_of(messages: Sequence[Envelope[Any]]) -> str:
    """Where messages lie, so that a person can look at them, or leave them out.

    >>> from gazette_platform.message import NO_UUID, Envelope
    >>> one, two = Envelope("a", 5, 9, NO_UUID, None), Envelope("b", 0, 7, NO_UUID, None)
    >>> place_of([one])
    'a: the message from offset 5 to 9'
    >>> place_of([one, two, Envelope("a", 9, 20, NO_UUID, None)])
    '3 messages, of a from offset 5 to 20, of b from offset 0 to 7'
    """
    if len(messages) == 1:
        journal, begin, end, *_ = messages[0]
        return f"{journal}: the message from offset {begin} to {end}"
    spans: dict[str, tuple[int, int]] = {}
    for each in messages:
        begin, end = spans.get(each.journal, (each.begin, each.end))
        spans[each.journal] = min(begin, each.begin), max(end, each.end)
    named = [
        f"of {journal} from offset {begin} to {end}" for journal, (begin, end) in spans.items()
    ]
    if len(named) > _JOURNALS_MAX:
        named[_JOURNALS_MAX:] = [f"of {len(named) - _JOURNALS_MAX} other journals"]
    return f"{len(messages)} messages, {', '.join(named)}"


def cause_of(error: Exception) -> Exception:
    """The error that a step failed with: `Fenced`, if that is behind it.

    >>> try:
    ...     with step("outer"), step("inner"):
    ...         raise ValueError("wrong")
    ... except GazetteError as err:
    ...     print(err, repr(cause_of(err)), sep="; ")
    outer: inner: ValueError: wrong; ValueError('wrong')
    """
    while isinstance(error, StepFailed) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    behind: BaseException | None = error
    while behind is not None and not isinstance(behind, Fenced):
        behind = behind.__cause__
    return behind or error


async def done(result: T | Awaitable[T]) -> T:
    """What a callback of an application returned, once it has."""
    if inspect.isawaitable(result):
        return await result
    return result
