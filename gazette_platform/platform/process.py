"""Child processes: started with a log of their own, and ended with their group; and Java virtual machines over py4j."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, final

from gazette_platform.errors import SetupError
from gazette_platform.ops.process import ProcessId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path
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
