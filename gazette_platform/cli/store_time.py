"""What time it is by the clocks of fragment stores, which date the fragments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from gazette_platform.errors import StoreError
from gazette_platform.stores import clock_probe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gazette_platform.ops.clock import Clock
    from gazette_platform.stores import FragmentStore

__all__ = ["StoreTime"]

# Clocks that differ by less are not worth a line: retentions are hours.
_TOLD_S: Final = 60.0


@final
class StoreTime:
    """Asks each store once. The clock of this machine may be wrong, and would have young fragments go.

    Args:
        tell: takes a line for the person at the terminal.
    """

    def __init__(self, clock: Clock, tell: Callable[[str], None]) -> None:
        self._clock = clock
        self._tell = tell
        # Of each store: its Unix time, less the seconds of our monotonic clock.
        self._ahead_s: dict[str, float] = {}

    async def now_s(self, stores: Iterable[FragmentStore]) -> float:
        """Unix seconds by the clock of these stores; if they differ, by the one that is most behind.

        For a store that does not answer, the clock of this machine counts, and a warning says so.

        Cancellation: an object of a few bytes may stay in a store, where no journal is.
        """
        monotonic_s = self._clock.monotonic
        known = [await self._ahead(store) for store in stores]
        return min(known) + monotonic_s() if known else self._clock.unix_s()

    async def _ahead(self, store: FragmentStore) -> float:
        if store.url not in self._ahead_s:
            self._ahead_s[store.url] = await self._ask(store)
        return self._ahead_s[store.url]

    async def _ask(self, store: FragmentStore) -> float:
        own_s, began_s = self._clock.unix_s(), self._clock.monotonic()
        try:
            stored_at = await clock_probe(store)
        except StoreError as err:
            self._tell(
                f"warning: {store.url} does not report its time: ages of fragments are by the clock of this "
                f"machine ({err})"
            )
            return own_s - began_s
        ended_s = self._clock.monotonic()
        # It was written between the two, and the store reports whole seconds, so this cannot be too late.
        skew_s = max(own_s - stored_at - 1, stored_at - own_s - (ended_s - began_s))
        if skew_s > _TOLD_S:
            word = "behind" if stored_at < own_s else "ahead of"
            self._tell(
                f"warning: the clock of {store.url} is {skew_s / 60:.0f} min {word} that of this machine: ages "
                "of fragments are by the store's"
            )
        return stored_at - ended_s
