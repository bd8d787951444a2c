"""Unforeseen errors: contained where they arise, logged, and counted.

The owner of a call, a journal, a store or a key lets an unforeseen error end that one thing, and
reports it here. So a fault in our code costs one answer, and not the process and all that it serves.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Faults"]

_log = logging.getLogger(__name__)

# Few, because each error keeps its traceback, and with it all that the frames refer to.
_RECENT_MAX = 8


@final
class Faults:
    """Where the parts of one process report what they did not foresee.

    Args:
        count: told of each: the kind of thing that it ended, such as ``call`` or ``journal``.

    Attributes:
        reported: how many there were.
        recent: the latest of them, the last one last.
    """

    def __init__(self, count: Callable[[str], None] = lambda _: None) -> None:
        self._count = count
        self.reported = 0
        self.recent: deque[BaseException] = deque(maxlen=_RECENT_MAX)

    @property
    def last(self) -> BaseException | None:
        """The latest of them; None without any."""
        return self.recent[-1] if self.recent else None

    def report(self, kind: str, what: str, error: BaseException) -> None:
        """Log an error with its traceback, and count it.

        Args:
            kind: of few: a label of a metric.
            what: names the thing, and what becomes of it.
        """
        self.reported += 1
        self.recent.append(error)
        self._count(kind)
        _log.error("%s: unforeseen %s: %s", what, type(error).__name__, error, exc_info=error)

    @contextlib.contextmanager
    def contained(self, kind: str, what: str) -> Iterator[None]:
        """Report what the block raises, and go on behind it. Cancellation passes through."""
        try:
            yield
        except Exception as err:  # noqa: BLE001  this is the one place for it
            self.report(kind, what, err)
