"""Sockets to listen on, and why there are none."""

from __future__ import annotations

import contextlib
import errno
import socket as sockets
from typing import TYPE_CHECKING, Final

from gazette_platform.errors import SetupError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["BACKLOG", "listen", "why_not"]

BACKLOG: Final = 1024
"""Connections that may wait to be accepted."""

# These mean all addresses of the machine, of either family.
_ANY: Final = frozenset(("", "0.0.0.0", "::"))  # noqa: S104 - it is compared


def listen(host: str, port: int, path: Path | None, flags: str) -> list[sockets.socket]:
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
            family, *_, address = sockets.getaddrinfo(host, port, type=sockets.SOCK_STREAM)[0]
            with sockets.socket(family) as probe:
                probe.bind(address)
        except OSError as err:
            return _reason(err, path, flags)
        return f" (is it in use? choose another with --{flags}.port)"
    return _reason(None, path, flags)


def _reason(err: OSError | None, path: Path | None, flags: str) -> str:
    if path is not None or err is None:
        return f" (is it in use, and its folder there? choose another with --{flags}.port)"
    if isinstance(err, sockets.gaierror):
        return f": {err.strerror} (check the host that --{flags}.host names)"
    if err.errno == errno.EADDRNOTAVAIL:
        return (
            f": {err.strerror} (--{flags}.host must be an address of this machine; to announce "
            f"another one, use --{flags}.advertise)"
        )
    return f": {err.strerror} (choose another port with --{flags}.port)"


def _unix(path: Path) -> sockets.socket:
    if path.is_socket():  # of a process that has ended
        path.unlink()
    listener = sockets.socket(sockets.AF_UNIX)
    try:
        listener.bind(str(path))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _tcp(host: str, port: int) -> list[sockets.socket]:
    if host in _ANY and sockets.has_dualstack_ipv6():
        return [
            sockets.create_server(
                ("", port), family=sockets.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True
            )
        ]
    found = sockets.getaddrinfo(host or None, port, type=sockets.SOCK_STREAM)
    addresses = {(family, address[0]): address for family, *_, address in found}
    with contextlib.ExitStack() as stack:
        listeners: list[sockets.socket] = []
        for (family, _), address in addresses.items():
            at = (address[0], port, *address[2:])
            listeners.append(stack.enter_context(_listener(family, at)))
            port = listeners[0].getsockname()[1]
        stack.pop_all()
    return listeners


def _listener(family: int, address: tuple[object, ...]) -> sockets.socket:
    """Two processes on one port must fail, not share it: there is no SO_REUSEPORT."""
    listener = sockets.socket(family)
    try:
        listener.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
        if family == sockets.AF_INET6:
            listener.setsockopt(sockets.IPPROTO_IPV6, sockets.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
