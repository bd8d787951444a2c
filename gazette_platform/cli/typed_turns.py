"""Whose turn it is, when several tables are run again and again, one at a time. Knows no clock."""

from collections.abc import Mapping
from typing import Final, final

__all__ = ["TypedTurns"]

_PAUSE_MAX_S: Final = 60.0


@final
class TypedTurns:
    """Tables with the time between the beginnings of their runs.

    A table that is due longest comes first. One whose run left something is due again at once, behind the others that
    are due; one that fails waits longer each time, up to a minute or as long as it would anyway.
    """

    def __init__(self) -> None:
        self._due: dict[str, float] = {}
        self._failures: dict[str, int] = {}

    def take(self, every_s: Mapping[str, float], now: float) -> tuple[str, float]:
        """Whose turn it is.

        Args:
            every_s: tables that there are, with seconds between runs. Those that are new are due.
            now: the time, in seconds.

        Returns: a table, or else "" and how many seconds until one is due; infinite, if there is no table.
        """
        self._due = {name: self._due.get(name, now) for name in every_s}
        self._failures = {n: count for n, count in self._failures.items() if n in every_s}
        name = min(self._due, key=self._due.__getitem__, default="")
        if not name:
            return "", float("inf")
        wait_s = self._due[name] - now
        return (name, 0.0) if wait_s <= 0 else ("", wait_s)

    def ended(self, name: str, *, began: float, now: float, every_s: float, has_more: bool) -> None:
        """A run of `name` is over.

        Args:
            name: of the table.
            began: when.
            now: the time.
            every_s: seconds between the table's runs.
            has_more: whether it left something.
        """
        self._failures.pop(name, None)
        self._due[name] = now if has_more else max(now, began + every_s)

    def failed(self, name: str, *, now: float, every_s: float) -> float:
        """A run of `name` has failed. Returns: in how many seconds it is tried again."""
        count = self._failures[name] = self._failures.get(name, 0) + 1
        pause_s = max(every_s, min(_PAUSE_MAX_S, every_s * 2.0 ** min(count - 1, 10)))
        self._due[name] = now + pause_s
        return pause_s
