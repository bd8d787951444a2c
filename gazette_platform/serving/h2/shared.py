"""What the connections of a server have in common."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, final

from gazette_platform.serving.h2.blocks import Requests
from gazette_platform.serving.h2.budget import UnreadBudget
from gazette_platform.serving.h2.deadlines import Deadlines

if TYPE_CHECKING:
    from gazette_platform.serving.h2.call import Method
    from gazette_platform.serving.h2.limits import Limits

__all__ = ["Shared"]


class Served(Protocol):
    """A connection, as its server knows it."""

    def hold(self, *, is_held: bool) -> None:
        """Read nothing, or go on."""

    def close_soon(self) -> None:
        """Take no more calls, and close once those that are open have ended."""

    def close_now(self, text: str) -> None:
        """Cancel all calls, and close."""

    def abort(self) -> None:
        """Drop the connection, whatever is on its way."""

    def sweep(self, now: float) -> None:
        """End what lasts for too long."""

    def be_lenient(self, lost_s: float) -> None:
        """Give back the time for which this process was busy with something else."""


@final
class Shared:
    """What the connections of a server have in common; one for each server.

    Attributes:
        tasks: of all handlers that run.
        swept_at: when connections were swept last.
    """

    def __init__(
        self, methods: dict[bytes, Method], limits: Limits, message_bytes_max: int
    ) -> None:
        self.methods = methods
        self.limits = limits
        self.message_bytes_max = message_bytes_max
        self.requests = Requests()
        self.budget = UnreadBudget(limits.process_bytes)
        self.deadlines = Deadlines()
        self.connections: set[Served] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.is_stopping = False
        self.swept_at = 0.0
        self.loop: asyncio.AbstractEventLoop
        self.emptied = asyncio.Event()

    def forget(self, connection: Served, reported: int) -> None:
        """A connection has ended; the last one sets `emptied`."""
        self.connections.discard(connection)
        self.budget.forget(connection, reported)
        if not self.connections:
            self.emptied.set()
