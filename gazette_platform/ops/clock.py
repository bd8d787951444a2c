"""Clocks, passed in wherever a decision depends on time."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol, final


class Clock(Protocol):
    """Gives wall-clock instants and monotonic seconds."""

    def now(self) -> datetime:
        """The current instant, aware, UTC."""
        ...

    def unix_s(self) -> float:
        """The same as unix seconds, for a tenth of the time."""
        ...

    def monotonic(self) -> float:
        """Seconds since an arbitrary origin; never goes back."""
        ...


@final
class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """The current instant, aware, UTC."""
        return datetime.now(UTC)  # noqa: TID251  the one place that reads it

    # Asked for several times an append.
    unix_s = staticmethod(time.time)  # noqa: TID251  as above
    monotonic = staticmethod(time.monotonic)


@final
class ManualClock:
    """A clock that stands still until advanced: for tests and simulations."""

    def __init__(self, start: datetime = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)) -> None:
        self._now = start
        self._monotonic = 0.0

    def now(self) -> datetime:
        """The current instant, aware, UTC."""
        return self._now

    def unix_s(self) -> float:
        """The same as unix seconds."""
        return self._now.timestamp()

    def monotonic(self) -> float:
        """Seconds advanced so far."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Move both clocks on by `seconds`."""
        self._now += timedelta(seconds=seconds)
        self._monotonic += seconds
