"""How much a process holds of messages that were not taken, over all of its connections."""

from __future__ import annotations

from typing import Final, Protocol, final

__all__ = ["REPORT_BYTES", "UnreadBudget"]

REPORT_BYTES: Final = 1 << 20
"""A connection reports its unread bytes whenever they have changed by so much."""


class Reader(Protocol):
    """A connection, as the budget knows it."""

    def hold(self, *, is_held: bool) -> None:
        """Read nothing, or go on."""


@final
class UnreadBudget:
    """Unread bytes of all connections. Above the limit, those that bring more are not read.

    Attributes:
        total: bytes, less what connections have not reported yet.
    """

    def __init__(self, bytes_max: int) -> None:
        self.total = 0
        self._bytes_max = bytes_max
        self._held: set[Reader] = set()

    def report(self, connection: Reader, change: int) -> None:
        """Count a change. A connection that goes beyond the budget is held until there is room again."""
        self.total += change
        if change > 0:
            if self.total > self._bytes_max:
                self._held.add(connection)
                connection.hold(is_held=True)
        elif self._held and self.total < self._bytes_max - (self._bytes_max >> 2):
            held, self._held = self._held, set()
            for each in held:
                each.hold(is_held=False)

    def forget(self, connection: Reader, reported: int) -> None:
        """A connection has ended."""
        self._held.discard(connection)
        self.report(connection, -reported)
