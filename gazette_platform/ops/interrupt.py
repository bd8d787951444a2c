"""Waits that an event on the same loop ends, and whose cancellation a `CancelledError` is.

An `Interrupt` is a cancel scope of asyncio's that costs neither a task nor a future.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar, final

from gazette_platform.errors import GazetteError

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["Interrupt", "Interrupted", "is_cancelled"]

T = TypeVar("T")


@final
class Interrupted(GazetteError):
    """What was waited for does not matter any more."""


@final
class Interrupt:
    """Ends one task's waits once `fire` was called; it is never taken back.

    A wait is what is awaited in a ``with`` statement of it.
    """

    __slots__ = ("_waiting", "is_fired")

    def __init__(self) -> None:
        self.is_fired = False
        self._waiting: asyncio.Task[object] | None = None

    def fire(self) -> None:
        """End the wait under way, and all later ones. Idempotent."""
        if not self.is_fired:
            self.is_fired = True
            if self._waiting is not None:
                self._waiting.cancel()

    def __enter__(self) -> None:
        """Begin a wait. Raises: Interrupted: `fire` was called."""
        if self.is_fired:
            raise Interrupted("interrupted")
        self._waiting = asyncio.current_task()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        """End it. Raises: Interrupted: `fire` was called meanwhile."""
        waiting, self._waiting = self._waiting, None
        # Unless the task was cancelled by its owner at the same time.
        is_ours = self.is_fired and kind is asyncio.CancelledError
        if is_ours and waiting is not None and waiting.uncancel() == 0:
            raise Interrupted("interrupted") from None

    async def wait(self, work: Coroutine[object, object, T]) -> T:
        """Await `work`.

        Raises: Interrupted: `fire` was called; `work` was cancelled, or not begun.
        Cancellation: cancels `work`.
        """
        if self.is_fired:
            work.close()
        with self:
            return await work


def is_cancelled() -> bool:
    """Whether a `CancelledError` is the caller's own: somebody cancelled its task.

    Else what it awaits was cancelled, such as a call whose channel was closed: an error, like others.
    """
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
