"""One server of the platform: what starts it, what it needs, and when it is ready."""

from __future__ import annotations

import http.client
import socket
import urllib.request
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

__all__ = ["Component", "answer_of", "answers_http", "answers_tcp"]

_PROBE_TIMEOUT_S = 5.0
# What variables such as http_proxy name is for other machines.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, kw_only=True)
class Component:
    """A process that the supervisor starts, watches and stops."""

    name: str
    """Unique; also the name of its log."""
    command: tuple[str, ...]
    """Program and arguments."""
    ready: Callable[[], bool]
    """One try, of seconds at most; called in a worker thread, again and again until true."""
    requires: tuple[str, ...] = ()
    """Names of components that must be ready before this one is started."""
    uses: tuple[str, ...] = ()
    """Names of components that it calls but can start without; they are stopped after it."""
    ports: tuple[int, ...] = ()
    """TCP ports of 127.0.0.1 that it will bind; checked to be free just before it starts."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to the supervisor's own."""
    folder: Path | None = None
    """Working folder."""
    start_timeout_s: float = 120.0
    """Seconds from start to ready."""
    stop_timeout_s: float = 20.0
    """Seconds from SIGTERM to SIGKILL."""


def answer_of(
    request: str | urllib.request.Request, *, timeout_s: float = _PROBE_TIMEOUT_S
) -> bytes | None:
    """What a server of this machine answers, or None: it does not yet, or refuses, or is not an HTTP server."""
    try:
        with _DIRECT.open(request, timeout=timeout_s) as response:
            return bytes(response.read())
    except (OSError, http.client.HTTPException):
        return None


def answers_http(url: str) -> bool:
    """Whether a GET of `url` gives a status below 400."""
    return answer_of(url) is not None


def answers_tcp(host: str, port: int) -> bool:
    """Whether something accepts connections there."""
    try:
        with socket.create_connection((host, port), timeout=_PROBE_TIMEOUT_S):
            return True
    except OSError:
        return False
