"""Rates of one append: the least that its client must sustain, the most that its journal takes.

And how much of all appends together is held in memory.

Source: Gazette's append_flow_control.go. As there, a client has one second of credit before it is
judged, the journal's balance starts with one second's worth and banks at most ten, and it carries
from one append of a journal to the next.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import final

__all__ = ["CHUNK_COST_BYTES", "TICK_S", "Flow", "RateBalance", "Stock"]

# How often a client that owes content is judged.
TICK_S = 0.05

_BANKED_S_MAX = 10.0

# Of a chunk beside its content: two objects and their place in a queue. A client that sends single
# bytes makes us hold this for each of them.
CHUNK_COST_BYTES = 256


@final
@dataclass(slots=True)
class RateBalance:
    """Bytes that a journal may take now; shared by its appends, one after the other."""

    rate: float
    """Bytes per second; 0: unlimited."""
    balance: float = 0.0
    updated_at: float = 0.0
    """Monotonic seconds."""
    released: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the appends that began with it are held back no more."""

    @classmethod
    def start(cls, rate: float, now: float) -> RateBalance:
        """One second's worth, at `now`."""
        return cls(rate, rate, now)

    def release(self) -> None:
        """Let the appends under way finish at any rate: a hand-over waits for them."""
        self.released.set()
        self.released = asyncio.Event()

    def refill(self, now: float) -> None:
        """Add what the rate gave since the last call."""
        if self.rate > 0:
            gained = (now - self.updated_at) * self.rate
            # A charge (negative balance) is paid in full before anything is banked.
            self.balance = min(self.balance + gained, self.rate * _BANKED_S_MAX)
        self.updated_at = now

    def take(self, length: int, now: float) -> float:
        """Charge `length` bytes.

        Returns: seconds to wait until the charge is paid; 0 if the balance covers it.
        """
        if self.rate <= 0:
            return 0.0
        self.refill(now)
        self.balance -= length
        return 0.0 if self.balance >= 0 else -self.balance / self.rate


@final
@dataclass(slots=True)
class Flow:
    """What one client still has in hand before it is too slow."""

    min_rate: float
    """Bytes per second that it must sustain; 0: never judged."""
    credit: float
    """Bytes."""
    updated_at: float
    """Monotonic seconds."""

    @classmethod
    def start(cls, min_rate: float, now: float) -> Flow:
        """One second of credit, from `now`."""
        return cls(min_rate, min_rate, now)

    def on_content(self, length: int) -> None:
        """Content arrived. More than a second's worth is not banked."""
        if self.credit < self.min_rate:
            self.credit = min(self.credit + length, self.min_rate)

    def on_held(self, now: float) -> None:
        """We, not the client, caused the time until `now` to pass."""
        self.updated_at = now

    def underflows(self, now: float) -> bool:
        """Charge the time since the last call. Returns: whether the client is too slow."""
        self.credit -= (now - self.updated_at) * self.min_rate
        self.updated_at = now
        return self.min_rate > 0 and self.credit < 0


@final
class Stock:
    """Bytes that a broker holds of its appends: content in Python, and what gRPC has of those that wait.

    What an append that has its turn has received goes to disk at once, and is bounded by a stream's
    own limit.
    """

    # Up to here whatever comes is gathered, so that many appends are written together and a slow
    # client holds nobody up: 64 of 1 MiB are. Beyond, an append waits for its turn with what it has.
    _FULL_BYTES = 80 << 20

    # Beyond, appends that are not small are refused. A message of the usual 512 KiB and the window
    # of 4 MiB of about fifty appends that wait for their turn fit.
    _OVERFULL_BYTES = 256 << 20

    def __init__(self) -> None:
        self.held_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether appends should take no more than they have to."""
        return self.held_bytes >= self._FULL_BYTES

    @property
    def is_overfull(self) -> bool:
        """Whether there is no room even for that."""
        return self.held_bytes >= self._OVERFULL_BYTES
