"""Which brokers serve a journal, as learned from the headers of their responses."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from gazette_platform.ops.clock import Clock
    from gazette_platform.protocol import Route

__all__ = ["RouteCache", "pick_endpoint"]


def pick_endpoint(route: Route, zone: str, *, primary: bool) -> str:
    """The endpoint to dial for a journal of `route`; "" when the route names none.

    Args: zone: the caller's; among replicas the first one there wins, else the first of all.
        primary: the call needs the primary.
    """
    if not route.endpoints:
        return ""
    if primary:
        return route.endpoints[route.primary] if route.primary >= 0 else ""
    reachable = [
        (member.zone != zone, index)
        for index, (member, endpoint) in enumerate(
            zip(route.members, route.endpoints, strict=False)
        )
        if endpoint
    ]
    return route.endpoints[min(reachable)[1]] if reachable else ""


@final
class RouteCache:
    """Routes of the journals used last.

    An entry lives `ttl_s` from its last update, whether or not it is used. Size 0 remembers
    nothing, so that every call goes to the service address.
    """

    def __init__(self, size: int, ttl_s: float, clock: Clock) -> None:
        self._size = size
        self._ttl_s = ttl_s
        self._clock = clock
        self._entries: OrderedDict[str, tuple[Route, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, journal: str) -> Route | None:
        """The route of `journal`, or None when it is unknown or too old."""
        entry = self._entries.get(journal)
        if entry is None:
            return None
        route, expires_at = entry
        if self._clock.monotonic() >= expires_at:
            del self._entries[journal]
            return None
        self._entries.move_to_end(journal)
        return route

    def update(self, journal: str, route: Route | None) -> None:
        """Remember `route`; None or one without members forgets the journal."""
        if route is None or not route.members or self._size == 0:
            self._entries.pop(journal, None)
            return
        self._entries[journal] = (route, self._clock.monotonic() + self._ttl_s)
        self._entries.move_to_end(journal)
        if len(self._entries) > self._size:
            self._entries.popitem(last=False)

    def invalidate(self, journal: str) -> None:
        """Forget the route of `journal`."""
        self._entries.pop(journal, None)
