"""One server of the platform: what starts it, what it needs, which ports it has, and when it is ready.

`Child` is a process with a log of its own, which ends with its group; `Jvm` one with a Java virtual machine, over py4j.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import http.client
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from gazette_platform.errors import SetupError
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.process import ProcessId

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType


_PR_SET_PDEATHSIG = 1
_POLL_S = 0.05
_KILL_WAIT_S = 5.0
_RUN_MARK = "--- "
_LOG_TAIL_BYTES = 8192


@contextlib.contextmanager
def private_files() -> Iterator[None]:
    """Keep other users from what this process, and those that it starts meanwhile, write.

    The same modes as brokers give to fragments: 0640 and 0750, or less where the umask says so.
    """
    former = os.umask(0o077)
    os.umask(former | 0o027)
    try:
        yield
    finally:
        os.umask(former)


@final
class Child:
    """A running child of this process, in a session and process group of its own.

    The kernel sends it SIGTERM when the thread that started it ends, however that happens, so no
    child outlives a killed supervisor. Start it from a thread that lives as long: the main one.

    Args:
        name: for messages.
        command: program and arguments.
        log: appended to.

    Raises: SetupError: the program cannot be started.
    """

    def __init__(
        self,
        name: str,
        command: tuple[str, ...],
        *,
        log: Path,
        environment: Mapping[str, str],
        folder: Path | None,
    ) -> None:
        self.name = name
        self.log = log
        tie = _tie_to_parent(os.getpid())
        try:
            with log.open("ab") as output:
                output.write(f"\n{_RUN_MARK}{' '.join(command)}\n".encode())
                output.flush()
                self._popen: subprocess.Popen[bytes] = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=dict(environment),
                    cwd=folder,
                    start_new_session=True,
                    preexec_fn=tie,  # noqa: PLW1509  one system call, no lock is taken
                )
        except OSError as error:
            raise SetupError(f"cannot start {name}: {command[0]}: {error.strerror}") from error
        self.id = ProcessId.of(self._popen.pid)

    def exit_code(self) -> int | None:
        """None while it runs; negative for a signal."""
        return self._popen.poll()

    def how_it_ended(self) -> str:
        """In words."""
        code = self._popen.poll()
        if code is None:
            return "still runs"
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"exited with code {code}"

    def ask_to_stop(self) -> None:
        """Send SIGTERM."""
        with contextlib.suppress(ProcessLookupError):
            self._popen.send_signal(signal.SIGTERM)

    def end_group(self) -> None:
        """Kill it, if it still runs, and whatever it started and left behind. Blocks briefly."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(_KILL_WAIT_S)


def _tie_to_parent(parent: int) -> Callable[[], None] | None:
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)

    def tie() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        # The parent may have died before the call: then the signal would never be sent.
        if os.getppid() != parent:
            os._exit(1)

    return tie


def stop_process(process: ProcessId, *, timeout_s: float) -> None:
    """Stop a process that is not a child of ours, and its group: SIGTERM, then SIGKILL.

    Args:
        timeout_s: seconds from one to the other.
    """
    if process.is_alive():
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + timeout_s
        while process.is_alive() and time.monotonic() < deadline:
            time.sleep(_POLL_S)
    # The leader's group goes even if the leader is gone, unless its number belongs to others now.
    leader = ProcessId.of(process.pid)
    if leader.started in {0, process.started}:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def log_tail(log: Path, *, lines: int = 15, of_last_run: bool = False) -> str:
    """The last lines of a log; empty if there is none.

    Args:
        of_last_run: only what the `Child` that wrote last has said, without its command.
    """
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _LOG_TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    found = text.rstrip().splitlines()
    if of_last_run:
        marks = [index for index, line in enumerate(found) if line.startswith(_RUN_MARK)]
        found = found[marks[-1] + 1 :] if marks else found
    return "\n".join(found[-lines:])


_CAUSES_MAX = 20


@final
class Jvm:
    """A JVM that lives as long as the block, and never longer than this process.

    Entering gives py4j's view of it. py4j's gateway exits when its standard input breaks, so the
    JVM ends with this process, however that ends. Calls need a token, and go over loopback.

    Args:
        java_home: of the runtime.
        classpath: jars, folders and ``folder/*``.
        options: of the java command.
        cwd: working folder of the JVM.

    Raises: SetupError: on entering: it did not start.
    """

    def __init__(
        self,
        *,
        java_home: Path,
        classpath: Sequence[str],
        options: Sequence[str] = (),
        cwd: Path | None = None,
    ) -> None:
        self._java = java_home / "bin" / "java"
        self._classpath = os.pathsep.join(classpath)
        self._options = list(options)
        self._cwd = cwd
        self._gateway: Any = None
        self._process: Any = None

    def __enter__(self) -> Any:
        return self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def open(self) -> Any:
        """Start it. Returns: py4j's view, through which Java classes are reached by name."""
        from py4j.java_gateway import (  # type: ignore[import-untyped]  # noqa: PLC0415  an extra
            GatewayParameters,
            JavaGateway,
            launch_gateway,
        )

        # Descriptors of our own, since py4j closes what it is given when the JVM has ended.
        output = os.fdopen(os.dup(2), "w")
        errors = os.fdopen(os.dup(2), "w")
        try:
            port, token, self._process = launch_gateway(
                classpath=self._classpath,
                javaopts=self._options,
                java_path=str(self._java),
                die_on_exit=True,
                enable_auth=True,
                return_proc=True,
                redirect_stdout=output,
                redirect_stderr=errors,
                # Signals are ours to handle: an interrupt of the terminal must not kill it midway.
                create_new_process_group=True,
                cwd=None if self._cwd is None else str(self._cwd),
            )
        except (OSError, ValueError) as error:
            # ValueError: it printed something else than the port, or nothing.
            output.close()
            raise SetupError(
                f"{self._java} did not start: {error} (its output is above)"
            ) from error
        finally:
            errors.close()
        self._gateway = JavaGateway(
            gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True)
        )
        return self._gateway.jvm

    def close(self) -> None:
        """End it, if it was started. Safe to call twice."""
        if self._gateway is not None:
            self._gateway.shutdown()
            self._gateway = None
        if self._process is not None:
            self._process.stdin.close()
            self._process.wait(timeout=10)
            self._process = None


def root_cause(error: Exception) -> str:
    """What a failed call says at its root: Java's outer exceptions are wrappers."""
    throwable: Any = getattr(error, "java_exception", None)
    if throwable is None:
        return str(error)
    for _ in range(_CAUSES_MAX):
        cause = throwable.getCause()
        if cause is None:
            break
        throwable = cause
    return str(throwable.toString())


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
    preferred: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """A port for each name, hard to guess: web pages may try the ports that they know.

    Args:
        fixed: ports asked for by the user.
        former: ports of the last run, kept where they are still free.
        kept: names whose former port is written down elsewhere, so that no other will do.
        preferred: ports that are well known; taken the first time, if they are free.

    Raises: SetupError: a fixed port is taken, or one that is to be kept, or none is free.
    """
    fixed = fixed or {}
    former = former or {}
    preferred = preferred or {}
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
        port = former.get(name, 0) or preferred.get(name, 0)
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
