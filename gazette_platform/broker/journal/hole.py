"""The hole before a spool: content that other brokers had when it began, and are about to store."""

from __future__ import annotations

import math
from itertools import accumulate
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from gazette_platform.fragment.index import Index
    from gazette_platform.ops.clock import Clock

__all__ = ["Hole"]

# A replica looks for that content in the stores so many seconds after its spool began.
_REFRESHES_S = tuple(accumulate((0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 30, 60)))


@final
class Hole:
    """The hole before the spool of one replica. It opens once, with each spool that begins elsewhere.

    Once its content was seen in a store it is closed for good. What is missing there from then on was
    pruned, and no broker is about to store it: to wait for that would hold up reads for minutes.

    Attributes:
        end: where the spool began, while the hole is open; else 0.
    """

    def __init__(self, index: Index, clock: Clock) -> None:
        self.end = 0
        self._began_at = -math.inf
        self._index = index
        self._clock = clock

    def begin(self, end: int) -> None:
        """Note that a spool begins at offset `end`, after all that is known."""
        self.end = end
        self._began_at = self._clock.monotonic()

    def look(self) -> None:
        """See whether it has closed. To be called whenever more is known to be stored."""
        if self.end > 0 and not self.is_open:
            self.end = 0

    @property
    def is_open(self) -> bool:
        """Whether its content is neither here nor known to be in a store."""
        # Its last byte is enough to know: content before that may have been pruned.
        return self.end > 0 and not self._index.covers(self.end - 1, self.end)

    @property
    def is_filling(self) -> bool:
        """Whether it is open, and its content is expected still.

        If that takes minutes, reads stop waiting for content that no replica says it has.
        """
        return self.refresh_s() < math.inf and self.is_open

    def refresh_s(self) -> float:
        """Seconds until stores are listed for its content; infinity: never again."""
        age_s = self._clock.monotonic() - self._began_at
        return next((at_s - age_s for at_s in _REFRESHES_S if at_s > age_s), math.inf)
