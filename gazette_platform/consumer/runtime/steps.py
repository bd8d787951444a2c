"""What a replica was doing when it failed: the words of a status, in the order of calls."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from gazette_platform.errors import ApplicationFailed, Fenced, GazetteError, JournalNotFound

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator, Sequence

    from gazette_platform.message import Envelope

__all__ = ["StepFailed", "cause_of", "done", "error_of", "place_of", "step"]

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
