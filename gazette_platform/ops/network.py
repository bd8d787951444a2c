"""Rules for connections: which HTTP requests a foreign web page may make, and when a gRPC peer counts as gone. Pure.

DNS rebinding: a page of any site can have its own name resolve to one of our addresses. To the browser the page
then talks to its own server, and reads our answers. Only the ``Host`` of the request shows it. `HostGuard` checks
it where nothing else keeps such a page out, that is without tokens and without TLS: the page has no token, and we
have no certificate of its name. A ``Host`` that is an IP address never belongs to a page.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterable

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_LOCAL = "localhost"


@final
class HostGuard:
    """Distinguishes requests that are meant for this broker from those that a foreign page made.

    Args:
        names: hosts that this broker goes by; ``*`` among them: any.
        origins: whose pages may change things; ``*`` among them: all.
    """

    def __init__(self, names: Iterable[str], origins: Iterable[str]) -> None:
        self._names = frozenset(name.lower().rstrip(".") for name in names)
        self._origins = frozenset(origins)

    def refused_host(self, host: str) -> str:
        """Why a request with this ``Host`` is refused; empty: it is not."""
        name = host_name(host)
        is_ours = (
            "*" in self._names
            or name in self._names
            or name == _LOCAL
            or name.endswith(f".{_LOCAL}")
            or _is_address(name)
        )
        # Without one it is not a browser's.
        if not host or is_ours:
            return ""
        return (
            f"this broker does not go by the name {name or host!r}; if it is one of its names, start it "
            "with --broker.allow-host (give * for any name)"
        )

    def refused_origin(self, method: str, host: str, origin: str) -> str:
        """Why a page of this ``Origin`` may not have its request carried out; empty: it may."""
        is_foreign = bool(origin) and _netloc(origin) != host.lower()
        if method in _SAFE_METHODS or not is_foreign or self._origins & {origin, "*"}:
            return ""
        return (
            f"pages of {origin} may not change anything here; if they should, start the broker with "
            "--broker.allow-origin"
        )


def host_name(host: str) -> str:
    """The name or address of a ``Host``, in lower case, without its port; empty: it is malformed."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _netloc(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def keepalive_options(interval_s: float, timeout_s: float) -> tuple[tuple[str, int], ...]:
    """Channel or server options: pings while calls are open, and what an unanswered one means.

    A ping waits for content that is on its way: `timeout_s` has to cover that on a slow link.

    Args:
        interval_s: seconds without anything received before a ping is sent.
        timeout_s: seconds without an answer to it after which the connection counts as broken.
    """
    timeout_ms = int(timeout_s * 1000)
    return (
        ("grpc.keepalive_time_ms", int(interval_s * 1000)),
        # gRPC has a timeout for pings of any kind, too (by default 60 s), and the shorter of the two
        # counts. That of keepalive is also set on the TCP socket, for data that is not acknowledged.
        ("grpc.keepalive_timeout_ms", timeout_ms),
        ("grpc.http2.ping_timeout_ms", timeout_ms),
        ("grpc.http2.max_pings_without_data", 0),
    )
