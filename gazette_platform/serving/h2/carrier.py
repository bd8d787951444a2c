"""What a call needs of its connection."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from gazette_platform.serving.h2.machine import Machine

if TYPE_CHECKING:
    import asyncio

    from gazette_platform.serving.h2.deadlines import Deadlines

__all__ = ["Carrier"]


class Carrier(Machine):
    """A machine that runs calls.

    Attributes:
        tasks: of all handlers of the server that run.
        is_paused: whether the transport has enough to write.
        blocked: calls that wait for room.
        report_below: the unread bytes are reported once they are fewer.
    """

    loop: asyncio.AbstractEventLoop
    deadlines: Deadlines
    tasks: set[asyncio.Task[None]]
    is_paused: bool
    blocked: set[Any]
    report_below: int

    @abstractmethod
    def flush(self) -> None:
        """Write all that was collected."""

    @abstractmethod
    def report(self) -> None:
        """Count the unread bytes against the budget of the process."""
