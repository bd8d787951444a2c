"""Sockets: those that listen, and those that are connected to another process, directly or through a proxy.

Which HTTP proxy leads to another process, by the variables that gRPC's libraries read.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
import ipaddress
import logging
import os
import re
import socket
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, unquote, urlsplit

from aiohappyeyeballs import start_connection
from typing_extensions import override

from gazette_platform.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

BACKLOG: Final = 1024
"""Connections that may wait to be accepted."""

# These mean all addresses of the machine, of either family.
_ANY: Final = frozenset(("", "0.0.0.0", "::"))  # noqa: S104 - it is compared


def listen(host: str, port: int, path: Path | None, flags: str) -> list[socket.socket]:
    """Listen on a port of all addresses of a host, or on a Unix socket.

    Clients may connect from then on; they wait until they are accepted.

    Args:
        port: 0: any free one, the same for all addresses.
        path: of a Unix socket in place of host and port.
        flags: what the flags of the port begin with, for errors.

    Raises: SetupError: it cannot listen there.
    """
    try:
        if path is not None:
            return [_unix(path)]
        return _tcp(host.removeprefix("[").removesuffix("]"), port)
    except OSError as err:
        address = f"unix:{path}" if path is not None else f"{host}:{port}"
        text = f"cannot listen on {address}{_reason(err, path, flags)}"
        raise SetupError(text) from err


def why_not(host: str, port: int, path: Path | None, flags: str) -> str:
    """Find out why one cannot listen, for a library that does not say so, and what to do about it."""
    if path is None:
        try:
            family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            with socket.socket(family) as probe:
                probe.bind(address)
        except OSError as err:
            return _reason(err, path, flags)
        return f" (is it in use? choose another with --{flags}.port)"
    return _reason(None, path, flags)


def _reason(err: OSError | None, path: Path | None, flags: str) -> str:
    if path is not None or err is None:
        return f" (is it in use, and its folder there? choose another with --{flags}.port)"
    if isinstance(err, socket.gaierror):
        return f": {err.strerror} (check the host that --{flags}.host names)"
    if err.errno == errno.EADDRNOTAVAIL:
        return (
            f": {err.strerror} (--{flags}.host must be an address of this machine; to announce "
            f"another one, use --{flags}.advertise)"
        )
    return f": {err.strerror} (choose another port with --{flags}.port)"


def _unix(path: Path) -> socket.socket:
    if path.is_socket():  # of a process that has ended
        path.unlink()
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(path))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _tcp(host: str, port: int) -> list[socket.socket]:
    if host in _ANY and socket.has_dualstack_ipv6():
        return [
            socket.create_server(
                ("", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True
            )
        ]
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM)
    addresses = {(family, address[0]): address for family, *_, address in found}
    with contextlib.ExitStack() as stack:
        listeners: list[socket.socket] = []
        for (family, _), address in addresses.items():
            at = (address[0], port, *address[2:])
            listeners.append(stack.enter_context(_listener(family, at)))
            port = listeners[0].getsockname()[1]
        stack.pop_all()
    return listeners


def _listener(family: int, address: tuple[object, ...]) -> socket.socket:
    """Two processes on one port must fail, not share it: there is no SO_REUSEPORT."""
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


# A name may have several addresses: so many seconds later, the next one is tried as well (RFC 8305).
_NEXT_ADDRESS_S: Final = 0.25
_HEAD_BYTES_MAX: Final = 16 << 10
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.[01] (\d{3})\b")


async def open_socket(target: str, proxy: Proxy | None) -> socket.socket:
    """Connect.

    Args:
        target: ``host:port``.
        proxy: to ask for the connection.

    Raises: OSError. Cancellation: safe.
    """
    host, _, port = target.rpartition(":")
    if proxy is None:
        return await _connect(host.strip("[]"), int(port))
    sock = await _connect(proxy.host, proxy.port)
    try:
        await _pass_through(sock, target, proxy)
    except BaseException:
        sock.close()
        raise
    return sock


def reason_of(err: Exception) -> str:
    """Say in a few words why there is no connection."""
    if isinstance(err, TimeoutError):
        return "it took too long"
    said = str(err) or type(err).__name__
    if not isinstance(err, OSError):
        return said
    if err.errno and err.errno > 0 and not isinstance(err, ssl.SSLError):
        return os.strerror(err.errno)  # the loop's own words name the address, or both
    return err.strerror or said


async def _connect(host: str, port: int) -> socket.socket:
    loop = asyncio.get_running_loop()
    try:
        found = _numeric(host, port) or await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as err:
        raise OSError(f"name resolution failed for {host}: {reason_of(err)}") from err
    try:
        sock = await start_connection(found, happy_eyeballs_delay=_NEXT_ADDRESS_S, loop=loop)
    except RuntimeError as err:  # uvloop's, at times
        raise OSError(str(err)) from err
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _numeric(host: str, port: int) -> list[tuple[int, int, int, str, tuple[str, int]]] | None:
    """Addresses that need no resolver, and no thread to wait for it."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except (OSError, ValueError):
            continue
        return [(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port))]
    return None


async def _pass_through(sock: socket.socket, target: str, proxy: Proxy) -> None:
    """Ask a proxy for a connection. Raises: OSError: it refused, or left."""
    loop = asyncio.get_running_loop()
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    if proxy.authorization:
        lines.append(f"Proxy-Authorization: {proxy.authorization}")
    await loop.sock_sendall(sock, "\r\n".join((*lines, "", "")).encode())
    head = bytearray()
    # Byte by byte: what follows is of the other process, and may have come already.
    while not head.endswith(b"\r\n\r\n"):
        byte = await loop.sock_recv(sock, 1)
        if not byte or len(head) >= _HEAD_BYTES_MAX:
            raise ConnectionError("it gave no answer of HTTP")
        head += byte
    status = _STATUS_LINE.match(head)
    if status is None or status[1][:1] != b"2":
        code = status[1].decode() if status is not None else "unknown"
        raise ConnectionError(f"it refused, with response code {code}")


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
