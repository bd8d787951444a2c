"""What a replica was doing when it failed: the words of a status, in the order of calls."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from typing import TYPE_CHECKING, TypeVar, final

from gazette_platform.errors import ApplicationFailed, Fenced, GazetteError, JournalNotFound

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator

__all__ = ["StepFailed", "cause_of", "done", "error_of", "step"]

T = TypeVar("T")


@final
class StepFailed(GazetteError):
    """A step failed; its cause is the error, or that a step of it failed."""

    def __init__(self, name: str, error: Exception) -> None:
        super().__init__(f"{name}: {_text(error)}")


def _text(error: Exception) -> str:
    if isinstance(error, JournalNotFound) and error.journal:
        return f"named journal does not exist ({error.journal})"  # as Gazette's consumers tell it
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
    """What a callback of an application returned, once it is there."""
    if inspect.isawaitable(result):
        return await result
    return result
