"""Credentials and keys that end, and are fetched again before they do."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Generic, TypeVar, final

from gazette_platform.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Renewed"]

T = TypeVar("T")

# After a renewal that failed, while the present value is still good.
_RETRY_AFTER: Final = timedelta(minutes=1)


@final
class Renewed(Generic[T]):
    """A value with an end, which is renewed when half of its life is over. Used from several threads.

    Drivers renew credentials *before* an operation. obstore asks for them in the middle of one, too, in
    threads of its own, where there is no event loop, and where all its operations wait for the answer.
    """

    def __init__(
        self, fetch: Callable[[], tuple[T, datetime]], now: Callable[[], datetime]
    ) -> None:
        """Without a value.

        Args:
            fetch: gets a value, and when it ends; blocks, and may raise a `StoreError`.
            now: aware, as the ends of values.
        """
        self._fetch = fetch
        self._now = now
        self._lock = threading.Lock()
        self._attempts = 0  # that ended
        self._error: StoreError | None = None
        self._held: tuple[T, datetime] | None = None
        self._due_at = datetime.min.replace(tzinfo=UTC)

    def is_due(self) -> bool:
        """Whether `current` would fetch a value."""
        return self._now() >= self._due_at

    def current(self) -> tuple[T, datetime]:
        """The value, and when it ends. If it is due, this fetches one, or waits until another thread did.

        A value that cannot be renewed serves on to its end.

        Raises: StoreError: there is none.
        """
        attempts = self._attempts
        with self._lock:
            if self._attempts != attempts and self._error is not None:
                raise self._error  # of the attempt that this one waited for
            if self.is_due():
                self._renew()
            assert self._held is not None
            return self._held

    def held(self) -> tuple[T, datetime]:
        """The value as it is, unless it has ended; then as `current`."""
        held = self._held
        return held if held is not None and self._now() < held[1] else self.current()

    def _renew(self) -> None:
        began = self._now()
        try:
            value, ends_at = self._fetch()
        except StoreError as err:
            self._attempts += 1
            if self._held is None or self._now() >= self._held[1]:
                self._error = err
                raise
            self._due_at = min(began + _RETRY_AFTER, self._held[1])
            return
        self._attempts += 1
        self._error = None
        self._held = value, ends_at
        self._due_at = began + (ends_at - began) / 2
