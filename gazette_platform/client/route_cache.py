"""Which brokers serve a journal, as learned from the headers of their responses."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from gazette_platform.ops.lru import Lru
from gazette_platform.serving.interface import Condition

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_platform.ops.clock import Clock
    from gazette_platform.protocol import Route

__all__ = ["RouteCache", "pick_endpoint"]


def _unknown(_: str) -> Condition:
    return Condition.UNKNOWN


def pick_endpoint(
    route: Route,
    zone: str,
    *,
    primary: bool,
    condition: Callable[[str], Condition] = _unknown,
    leaves_zone: bool = False,
) -> str:
    """The endpoint to dial for a journal of `route`; "" when the route names none.

    Args:
        zone: the caller's; replicas there are preferred, then those that did not fail, then those
            that are connected, then the first.
        primary: the call needs the primary.
        condition: of the connection to an endpoint.
        leaves_zone: whether to prefer a replica of another zone to one that failed. A client had
            better fail: it asks its service address next, and leaves traffic between zones to
            brokers that know more.

    Source: the order is that of Gazette's dispatcher, which never leaves the zone.
    """
    if not route.endpoints:
        return ""
    if primary:
        return route.endpoints[route.primary] if route.primary >= 0 else ""
    best = ""
    best_rank: tuple[bool, ...] | None = None
    for member, endpoint in zip(route.members, route.endpoints, strict=False):
        if not endpoint:
            continue
        is_elsewhere, found = member.zone != zone, condition(endpoint)
        has_failed = found is Condition.FAILED
        order = (has_failed, is_elsewhere) if leaves_zone else (is_elsewhere, has_failed)
        rank = (*order, found is not Condition.READY)
        if best_rank is None or rank < best_rank:
            best, best_rank = endpoint, rank
    return best


@final
class RouteCache:
    """Routes of the journals used last.

    An entry lives `ttl_s` from its last update, whether or not it is used. Size 0 remembers
    nothing, so that every call goes to the service address.
    """

    def __init__(self, size: int, ttl_s: float, clock: Clock) -> None:
        self._ttl_s = ttl_s
        self._clock = clock
        self._entries: Lru[str, tuple[Route, float]] = Lru(size)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, journal: str) -> Route | None:
        """The route of `journal`, or None when it is unknown or too old."""
        entry = self._entries.get(journal)
        if entry is None:
            return None
        route, expires_at = entry
        if self._clock.monotonic() >= expires_at:
            self._entries.drop(journal)
            return None
        return route

    def update(self, journal: str, route: Route | None) -> None:
        """Remember `route`; None or one without members forgets the journal."""
        if route is None or not route.members:
            self._entries.drop(journal)
        else:
            self._entries.put(journal, (route, self._clock.monotonic() + self._ttl_s))

    def invalidate(self, journal: str) -> None:
        """Forget the route of `journal`."""
        self._entries.drop(journal)
