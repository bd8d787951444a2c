"""Which HTTP proxy leads to another process, by the variables that gRPC's libraries read."""

from __future__ import annotations

import base64
import ipaddress
import logging
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, unquote, urlsplit

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Mapping

_log = logging.getLogger(__name__)

# The first one that is set counts; an empty one means no proxy.
_PROXIES: Final = ("grpc_proxy", "https_proxy", "http_proxy")
_EXCEPTIONS: Final = ("no_grpc_proxy", "no_proxy")
# A proxy is for other machines.
_LOOPBACK: Final = re.compile(r"(localhost|127\.[\d.]+|\[::1\]):")
_PORT: Final = 80


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy that passes connections on, if it is asked with CONNECT."""

    host: str
    port: int
    variable: str
    """That names it."""
    authorization: str = field(default="", repr=False)
    """Value of the header Proxy-Authorization; empty: it asks for none."""

    @override
    def __str__(self) -> str:
        return f"the HTTP proxy {self.host}:{self.port} of {self.variable}"


def proxy_for(target: str, environment: Mapping[str, str]) -> Proxy | None:
    """Find the proxy of connections to a target.

    Args:
        target: ``host:port``, or ``unix:`` and a path.
        environment: as `os.environ`.

    Returns: None: there is none, it does not concern this target, or it is none that we can use.
    """
    variable = next((name for name in _PROXIES if name in environment), "")
    value = environment.get(variable, "")
    if not value or target.startswith("unix:") or _LOOPBACK.match(target):
        return None
    spared = next((environment[name] for name in _EXCEPTIONS if name in environment), "")
    host = target.rpartition(":")[0].strip("[]")
    if any(_spares(entry.strip(), host) for entry in spared.split(",")):
        return None
    return _parsed(variable, value)


def _spares(entry: str, host: str) -> bool:
    """Whether an entry of ``no_proxy`` holds for a host: all, a network, an address, or the end of a name."""
    if not entry:
        return False
    if entry == "*" or host.lower().endswith(entry.lower()):
        return True
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False


def _parsed(variable: str, value: str) -> Proxy | None:
    try:
        found = _of_url(variable, urlsplit(value))
    except ValueError:
        found = None
    if found is None:
        # The value may hold a password.
        _log.warning("%s is ignored: give it as http://HOST:PORT", variable)
    return found


def _of_url(variable: str, url: SplitResult) -> Proxy | None:
    """Raises: ValueError: the port is not a number."""
    if url.scheme != "http" or url.hostname is None:
        return None
    authorization = ""
    if url.username is not None:
        secret = f"{unquote(url.username)}:{unquote(url.password or '')}"
        authorization = f"Basic {base64.b64encode(secret.encode()).decode()}"
    return Proxy(url.hostname, url.port or _PORT, variable, authorization)
