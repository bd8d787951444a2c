"""Long computations in an event loop that others need, too."""

from __future__ import annotations

import asyncio
from typing import Final, final

__all__ = ["Turns"]

# Short beside what clients wait for an append, long beside what a switch costs.
_TURN_S: Final = 0.01


@final
class Turns:
    """Lets others go on in between: `take` it in each round of a loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + _TURN_S

    async def take(self) -> None:
        """Return at once, or when others had their turn if ours is over. Cancellation: safe."""
        if self._loop.time() >= self._until:
            await asyncio.sleep(0)
            self._until = self._loop.time() + _TURN_S
