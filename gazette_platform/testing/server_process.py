"""A real server for tests: one process of this platform, with its log in a folder."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

from gazette_platform.embedded.component import answer_of
from gazette_platform.embedded.ports import choose_ports
from gazette_platform.errors import SetupError
from gazette_platform.testing.waiting import TooLate, core_wait, patient

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["ServerProcess"]

_POLL_S = 0.02
_LOG_TAIL_BYTES = 16384
# Seconds that a server is given which was told to end for the second time.
_HURRIED_S = 15.0


class ServerProcess(ABC):
    """One process that serves gRPC and HTTP, from `start` to `stop`; it may be started again.

    Args:
        what: it is, as ``broker b-1``, for errors.
        log: file; its folder has to be there when it starts.
        temporary: folder of its temporary files, likewise.

    Attributes:
        log: file.
        what: it is.
    """

    def __init__(self, what: str, *, log: Path, temporary: Path) -> None:
        self.what = what
        self.log = log
        self._temporary = temporary
        self._process: subprocess.Popen[bytes] | None = None
        self._log_begin = 0
        self.port, self.http_port = choose_ports(["grpc", "http"]).values()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kill()

    @abstractmethod
    def start(self, *, timeout_s: float = 30.0) -> None:
        """Start, and wait until it is ready.

        Raises: SetupError: as `run`.
        """

    @property
    def address(self) -> str:
        """The endpoint of its gRPC service; stays the same over a restart."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def http_address(self) -> str:
        """The URL of readiness and metrics."""
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def pid(self) -> int:
        """The process id while it runs, else 0."""
        return self._process.pid if self._process is not None else 0

    def run(self, command: Sequence[str], *, timeout_s: float) -> None:
        """Start a program, and wait until it is ready.

        Args:
            command: to run.
            timeout_s: seconds until it counts as not ready, before `patient` scales them.

        Raises: SetupError: it ended, or (`TooLate`) was not ready in time; with the end of its log.
        """
        with self.log.open("ab") as log:
            self._log_begin = log.tell()
            self._process = subprocess.Popen(
                list(command),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=os.environ | {"TMPDIR": str(self._temporary)},
            )
        limit_s = patient(timeout_s)
        deadline = time.monotonic() + limit_s
        while not self._is_ready():
            code = self._process.poll()
            if code is not None:
                self.kill()
                raise SetupError(
                    f"{self.what} exited with {code}; its log ends:\n{self.log_tail()}"
                )
            if time.monotonic() > deadline:
                _, waited_s = core_wait(self._process.pid)
                self.kill()
                raise TooLate(
                    f"{self.what} not ready in {limit_s:g} s; its log ends:\n{self.log_tail()}",
                    waited=waited_s / limit_s,
                )
            time.sleep(_POLL_S)

    def stop(self, *, timeout_s: float = 30.0) -> int:
        """Send SIGTERM, and wait for it to drain. Returns: its exit status."""
        return self._end(signal.SIGTERM, timeout_s)

    def terminate(self) -> None:
        """Send SIGTERM, and do not wait; `wait` does. Nothing if it does not run."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)  # a paused process would not see SIGTERM
            self._process.send_signal(signal.SIGTERM)

    def wait(self, *, timeout_s: float = 30.0) -> int:
        """Wait until it has ended by itself, or after `terminate`. Returns: its exit status.

        Raises: SetupError: it did not end in time, and was killed; with the end of its log.
        """
        return self._end(None, timeout_s)

    def pause(self) -> None:
        """Send SIGSTOP: connections stay open, nothing answers, and its lease runs out."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT after `pause`."""
        self._signal(signal.SIGCONT)

    @property
    def has_ended(self) -> bool:
        """Whether the process that was started is gone without being asked to, or never was."""
        return self._process is None or self._process.poll() is not None

    def strike(self) -> None:
        """Send SIGKILL, and do not wait; `kill` does. Nothing if it does not run."""
        if self._process is not None:
            self._process.kill()

    def kill(self) -> None:
        """Send SIGKILL; nothing if it does not run."""
        if self._process is not None:
            self._end(signal.SIGKILL, 10.0)

    def log_tail(self) -> str:
        """The end of its log."""
        with self.log.open("rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - _LOG_TAIL_BYTES))
            return log.read().decode(errors="replace")

    def log_of_run(self) -> str:
        """The log of the process that was started last, and of none before it."""
        with self.log.open("rb") as log:
            log.seek(self._log_begin)
            return log.read().decode(errors="replace")

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None:
            raise SetupError(f"{self.what} does not run; call start() first")
        self._process.send_signal(number)

    def _end(self, number: signal.Signals | None, timeout_s: float) -> int:
        process, self._process = self._process, None
        if process is None:
            raise ValueError(f"{self.what} does not run")
        if number is not None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(number)
        limit_s = patient(timeout_s)
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired as err:
            # Told twice, it ends, and logs what it hangs in.
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_HURRIED_S)
            process.kill()
            process.wait()
            raise TooLate(
                f"{self.what} did not end within {limit_s:g} s; its log ends:\n{self.log_tail()}"
            ) from err

    def _is_ready(self) -> bool:
        return answer_of(f"{self.http_address}/debug/ready", timeout_s=1.0) is not None
