"""Content that is missing before other content of a journal: who waits for it, and for how long."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, final

from gazette_platform.broker.wire.interface import Code, RpcFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_platform.fragment.index import Index
    from gazette_platform.ops.clock import Clock

__all__ = ["Gaps"]

# What is missing for longer is lost; so many places are remembered.
_LOST_S = 140.0
_OFFSETS_MAX = 1000
_REFRESH_S = 0.5


@final
class Gaps:
    """The gaps that reads have met at one replica.

    Brokers that had a journal store what they have of it in any order: what follows may be in the
    store, and what precedes it still with another broker. A read must not end there as if there were
    no more.

    Args: refresh: has the stores listed soon.
    """

    def __init__(
        self, journal: str, index: Index, *, clock: Clock, refresh: Callable[[], None]
    ) -> None:
        self._journal = journal
        self._index = index
        self._clock = clock
        self._refresh = refresh
        self._refresh_at = 0.0
        self._met_at: dict[int, float] = {}

    async def wait(self, offset: int, *, timeout_s: float) -> bool:
        """Wait for content at `offset`, which lies before content that is known.

        Args: timeout_s: seconds for this read.
        Returns: whether it is there; False: it is lost, or the replica closes.
        Raises: RpcFailed: UNAVAILABLE: it did not come: ask again. Cancellation: safe.
        """
        index, now = self._index, self._clock.monotonic
        if now() - self._met_at.setdefault(offset, now()) > _LOST_S:
            return False
        if len(self._met_at) > _OFFSETS_MAX:
            del self._met_at[next(iter(self._met_at))]
        try:
            async with asyncio.timeout(timeout_s):
                while not index.covers(offset, offset + 1):
                    if now() >= self._refresh_at:
                        self._refresh_at = now() + _REFRESH_S
                        self._refresh()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_REFRESH_S):
                            if not await index.wait_change():
                                return False
        except TimeoutError as err:
            what = f"another broker has content at {offset} that is not stored yet; ask again"
            raise RpcFailed(Code.UNAVAILABLE, f"{self._journal}: {what}") from err
        return True
