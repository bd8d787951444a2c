"""Keeps foreign web pages away from a web server that does not look where requests come from.

Every page that a browser shows may send requests to loopback ports, and one whose name resolves to
a loopback address reads the answers too. Browsers tell who asks: ``Host`` is the name that the page
believes it talks to, ``Origin`` the page's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from gazette_platform.ops.network import HostGuard

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    Scope = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
    Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
    Application = Callable[[Scope, Receive, Send], Awaitable[None]]

__all__ = ["WebGuard", "refusal"]

# By the rules of brokers' own HTTP ports: names of this machine and addresses, pages of this server.
_GUARD = HostGuard((), ())
_POLICY_VIOLATION = 1008


def refusal(method: str, path: str, query: str, *, host: str, origin: str) -> str:
    """Why a request is refused; empty: it is not.

    Args:
        method: upper case; a WebSocket's is POST, because it may change things.
        query: of the URL.
    """
    if _GUARD.refused_host(host):
        return f"this server does not go by the name {host!r}: use localhost or its address"
    if _GUARD.refused_origin(method, host, origin):
        return f"pages of {origin} may not change anything here"
    # A page can have a GET sent that does not say where it comes from, as for an image.
    if method in ("GET", "HEAD") and path.rstrip("/").endswith("/graphql") and query:
        return "GraphQL is taken by POST here, not by GET"
    return ""


@final
class WebGuard:
    """An ASGI application around another one, for what passes `refusal`."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection of ASGI."""
        if scope["type"] not in ("http", "websocket"):
            await self._application(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        why = refusal(
            scope.get("method", "POST"),
            scope["path"],
            scope["query_string"].decode("latin-1"),
            host=headers.get(b"host", b"").decode("latin-1"),
            origin=headers.get(b"origin", b"").decode("latin-1"),
        )
        if not why:
            await self._application(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": why})
        else:
            plain = [(b"content-type", b"text/plain; charset=utf-8")]
            await send({"type": "http.response.start", "status": 403, "headers": plain})
            await send({"type": "http.response.body", "body": f"{why}\n".encode()})
