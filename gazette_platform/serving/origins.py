"""Headers for pages of other origins that may use the port."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiohttp import web

__all__ = ["Origins"]

# Headers that pages of another origin may see.
_EXPOSED = (
    "Content-Range, X-Write-Head, X-Route-Token, X-Fragment-Name, X-Fragment-Last-Modified, "
    "X-Fragment-Location, X-Commit-Begin, X-Commit-End, X-Commit-SHA1-Sum"
)


@final
class Origins:
    """Who is let in.

    Args:
        allowed: origins whose pages may use the port; ``*`` among them: all.
    """

    def __init__(self, allowed: Iterable[str]) -> None:
        self._allowed = frozenset(allowed)

    def headers(self, request: web.Request) -> dict[str, str]:
        """Headers of any answer to `request`; empty: no foreign page asks, or may."""
        origin = request.headers.get("Origin", "")
        if not origin or self._allowed.isdisjoint((origin, "*")):
            return {}
        return {
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Expose-Headers": _EXPOSED,
            "Vary": "Origin",
        }

    @staticmethod
    def preflight(request: web.Request, methods: str) -> dict[str, str]:
        """What the answer to a preflight says beside `headers`."""
        wanted = request.headers.get("Access-Control-Request-Headers", "Authorization")
        return {
            "Access-Control-Allow-Methods": methods,
            "Access-Control-Allow-Headers": wanted,
            "Access-Control-Max-Age": "3600",
        }
