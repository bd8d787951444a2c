"""Waiting that an event on the same loop may end, without a task or a future of its own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar, final

from gazette_platform.errors import GazetteError

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["Interrupt", "Interrupted"]

T = TypeVar("T")


@final
class Interrupted(GazetteError):
    """What was waited for does not matter any more."""


@final
class Interrupt:
    """Ends one task's waits once `fire` was called; it is never taken back."""

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

    async def wait(self, work: Coroutine[object, object, T]) -> T:
        """Await `work`.

        Raises: Interrupted: `fire` was called; `work` was cancelled, or not begun.
        Cancellation: cancels `work`.
        """
        if self.is_fired:
            work.close()
            raise Interrupted("interrupted")
        waiting = asyncio.current_task()
        assert waiting is not None
        self._waiting = waiting
        try:
            return await work
        except asyncio.CancelledError:
            # Unless whoever owns the task cancelled it at the same time.
            if self._ends(waiting):
                raise Interrupted("interrupted") from None
            raise
        finally:
            self._waiting = None

    def _ends(self, waiting: asyncio.Task[object]) -> bool:
        return self.is_fired and waiting.uncancel() == 0
