"""One server of the platform: what starts it, what it needs, which ports it has, and when it is ready."""

from __future__ import annotations

import fcntl
import http.client
import os
import secrets
import socket
import tempfile
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gazette_platform.errors import SetupError
from gazette_platform.ops.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

HOST = "127.0.0.1"

# Below the range that Linux gives to outgoing connections, which could take a port between the
# moment it is chosen and the moment its server binds it.
_FIRST = 20_000
_LAST = 29_999
_TRIES_MAX = 1_000

# From the choice of a port to its server's first moment there may be minutes: platforms and test
# servers that start together leave alone for so long what another process has chosen.
_CLAIM_S = 600.0

# Hidden servers are below those that are known, and so never in their way.
_HIDDEN_FIRST = 10_000


def is_free(port: int, host: str = HOST) -> bool:
    """Whether a server could bind `port` of the loopback address `host` now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: a connection that lingers after a restart is not a reason to move.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def choose_ports(
    names: Iterable[str],
    *,
    fixed: Mapping[str, int] | None = None,
    former: Mapping[str, int] | None = None,
    kept: Collection[str] = (),
) -> dict[str, int]:
    """A port for each name, hard to guess: web pages may try the ports that they know.

    Args:
        fixed: ports asked for by the user.
        former: ports of the last run, kept where they are still free.
        kept: names whose former port is written down elsewhere, so that no other will do.

    Raises: SetupError: a fixed port is taken, or one that is to be kept, or none is free.
    """
    fixed = fixed or {}
    former = former or {}
    for name in kept:
        port = former.get(name, 0)
        if port and fixed.get(name, port) != port:
            raise SetupError(
                f"{name} had port {port} of {HOST} before, and journals and tables refer to it: "
                f"leave out `--port {name}={fixed[name]}`"
            )
        if port and not is_free(port):
            raise SetupError(
                f"port {port} of {HOST}, which journals and tables know as {name}, is in use: stop "
                "what listens there"
            )
    chosen: dict[str, int] = {}
    for name, port in fixed.items():
        if not is_free(port):
            raise SetupError(
                f"port {port} of {HOST}, asked for {name}, is in use: stop what listens there, or "
                f"choose another port"
            )
        chosen[name] = port
    # A random begin: platforms that start together do not compete for the same ports.
    at = _FIRST + secrets.randbelow(_LAST - _FIRST)
    for name in names:
        if name in chosen:
            continue
        taken = set(chosen.values())
        port = former.get(name, 0)
        if not port or port in taken or not is_free(port):
            # Names not chosen yet keep what they had, so their former ports are not taken either.
            at = port = _next_free(at, taken | set(former.values()))
        chosen[name] = port
    for port in chosen.values():
        _claim(port)
    return chosen


def hidden_address() -> tuple[str, int]:
    """A loopback host and port, free now, for a server that web pages cannot find by trying.

    There are 2^24 hosts, each with its ports, and the choice is another each time. Where 127.0.0.1
    is the only one, as on macOS, it is that.

    Raises: SetupError: none was free.
    """
    for attempt in range(_TRIES_MAX):
        parts = [1 + secrets.randbelow(254) for _ in range(3)]
        is_late = attempt > _TRIES_MAX // 2
        host = HOST if is_late else ".".join(["127", *map(str, parts)])
        port = _HIDDEN_FIRST + secrets.randbelow(_FIRST - _HIDDEN_FIRST)
        if is_free(port, host):
            return host, port
    raise SetupError(f"no free port among {_TRIES_MAX} from {_HIDDEN_FIRST} to {_FIRST - 1}")


def _next_free(at: int, taken: set[int]) -> int:
    for _ in range(_TRIES_MAX):
        at = at + 1 if at < _LAST else _FIRST
        # The claim comes first: looking whether a port is free would be in the way of its server.
        if at not in taken and _claim(at) and is_free(at):
            return at
    raise SetupError(f"no free port among {_TRIES_MAX} of {HOST} from {_FIRST} to {_LAST}")


def _claim(port: int) -> bool:
    """Announce to other processes that `port` is chosen; false: one of them, or this, had done so lately.

    Claims are files of the user's temporary folder. Where none can be written, every port is free to
    claim: two that choose at the same time may then meet, and the later one learns it.
    """
    folder = Path(tempfile.gettempdir()) / f"gazette-ports-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        fd = os.open(folder / str(port), os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found = os.fstat(fd)
            age_s = SystemClock().unix_s() - found.st_mtime
            if found.st_size and 0 <= age_s < _CLAIM_S:
                return False
            os.pwrite(fd, f"{os.getpid():<10}\n".encode(), 0)
    except BlockingIOError:  # it is being claimed
        return False
    except OSError:
        return True
    return True


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
    restartable: bool = False
    """Whether the supervisor may restart it when its options change. All components that require it must be, too."""


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
