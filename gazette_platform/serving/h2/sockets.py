"""Sockets that are connected to another process, directly or through a proxy."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
from typing import TYPE_CHECKING, Final

from aiohappyeyeballs import start_connection

if TYPE_CHECKING:
    from gazette_platform.serving.proxies import Proxy

__all__ = ["open_socket", "reason_of"]

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
