"""Directories of object stores that were listed, and held just what brokers list.

Accounts may differ from what brokers list for long: where a prune looks the same as a store that is
away, say. Each listing costs money, so such a directory is listed again only when something has changed, or after
a while. Known to this process alone: another one lists once more.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final, final

from gazette_platform.ops.lru import Lru

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

_KEPT_S: Final = 600.0
_COUNT_MAX: Final = 10_000


@final
class Looked:
    """What was looked at lately. Any thread may ask.

    Args:
        monotonic_s: gives the time.
    """

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._found: Lru[str, tuple[Hashable, float]] = Lru(_COUNT_MAX)

    def is_known(self, location: str, state: Hashable) -> bool:
        """Whether `location` was well a while ago, when all that is known of it was `state`."""
        with self._lock:
            known = self._found.get(location)
        return known is not None and known[0] == state and self._monotonic_s() < known[1] + _KEPT_S

    def note(self, location: str, state: Hashable) -> None:
        """Note that `location` is well, and what is known of it."""
        with self._lock:
            self._found.put(location, (state, self._monotonic_s()))


looked = Looked()
"""That of this process: sensors make new auditors at each tick."""
