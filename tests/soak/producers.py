"""Who publishes: chunkers, and one whose clock jumps."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, final

from examples.stream_sum.messages import ID_BYTES, SUMS, Sum
from gazette_platform.message import JsonFraming, Mapped, Publisher
from gazette_platform.ops.clock import SystemClock

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from gazette_platform.client import AsyncClient
    from gazette_platform.ops.clock import Clock

_JUMP_S = 25 * 3600.0
"""Longer than readers remember a producer."""


@final
class JumpingClock:
    """The machine's clock, of a host that goes ahead of all others."""

    def __init__(self) -> None:
        self._ahead_s = 0.0
        self._clock = SystemClock()
        self.monotonic = self._clock.monotonic

    def jump(self) -> None:
        """Go on 25 hours later."""
        self._ahead_s += _JUMP_S

    def unix_s(self) -> float:
        """Unix seconds."""
        return self._clock.unix_s() + self._ahead_s

    def now(self) -> datetime:
        """The same as an instant, aware, UTC."""
        return datetime.fromtimestamp(self.unix_s(), UTC)


@final
class OddSums:
    """Publishes sums without chunks among those of the consumers, by a clock of its own.

    Args:
        expect: called with each sum before it is published.
    """

    def __init__(
        self,
        client: AsyncClient,
        clock: Clock,
        dice: random.Random,
        expect: Callable[[Sum], None],
    ) -> None:
        self._dice = dice
        self._expect = expect
        self._publisher: Publisher[Sum] = Publisher(
            client.append_service(),
            lambda _: Mapped(SUMS, "application/x-ndjson"),
            clock,
            framing=JsonFraming(message_type=Sum),
        )

    async def publish(self) -> None:
        """Publish one, and wait until it is appended. Raises: GazetteError."""
        total = Sum(ID=list(self._dice.randbytes(ID_BYTES)), Value=self._dice.getrandbits(64))
        self._expect(total)
        await (await self._publisher.publish_committed(total))
