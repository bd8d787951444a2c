"""Real servers for tests: one broker or consumer, a process with its files and its log in a folder.

Each listens on free loopback ports and is stopped by its process id. The wire is the server's own, unless
``GAZETTE_TEST_WIRE`` names others; of several, separated by commas, each start takes the next.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final, Self, final

from typing_extensions import override

from gazette_platform.errors import SetupError
from gazette_platform.platform.component import answer_of, choose_ports
from gazette_platform.serving.config import Wire
from gazette_platform.serving.http_server import NOT_SERVING
from gazette_platform.testing.waiting import TooLate, core_wait, patient

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["BrokerServer", "ConsumerServer", "ServerProcess", "wire_flags", "wire_settings"]

_VARIABLE: Final = "GAZETTE_TEST_WIRE"
_turn = itertools.count()


def wire_flags(group: str) -> tuple[str, ...]:
    """Return the flags of a server, which begin with `group`."""
    return tuple(f"--{group}.wire={wire.value}" for wire in wire_settings().values())


def wire_settings() -> dict[str, Any]:
    """Return the settings of a server.

    Of several wires, separated by commas, each start takes the next.

    Raises: ValueError: the variable does not name a wire.
    """
    chosen = os.environ.get(_VARIABLE)
    if not chosen:
        return {}
    wires = [Wire(name) for name in chosen.split(",")]
    return {"wire": wires[next(_turn) % len(wires)]}


_POLL_S = 0.02
_LOG_TAIL_BYTES = 16384
# Seconds that a server has after a second signal.
_HURRIED_S = 15.0


class ServerProcess(ABC):
    """One process that serves gRPC and HTTP, from `start` to `stop`; it may be started again.

    Args:
        what: it is, as ``broker b-1``, for errors.
        log: file; its folder has to exist when it starts.
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
            # After a second signal it ends, and logs what it hangs in.
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


@final
class BrokerServer(ServerProcess):
    """One broker process, from `start` to `stop`; its store outlives `kill` and a second `start`.

    Args:
        folder: for its store (``fragments``), spool and log; created if it is not there.
        etcd: endpoint of a running etcd.
        prefix: key prefix of the cluster.
        flags: more flags of `gazette serve`; the last of a flag counts.
        broker_id: of the member; unique in its zone.
        zone: of the member.
        fragments: folder of the store, where it is not ``fragments`` in `folder`: brokers of one
            cluster share it.
        lease_s: seconds after which etcd forgets it.
        program: what to run as `gazette`; empty: the one of this interpreter.

    Attributes:
        fragments: folder of the store.
        spool: folder of its spools and temporary files.
        flags, program: may be changed before `start`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        etcd: str,
        prefix: str,
        flags: Sequence[str] = (),
        broker_id: str = "test-broker",
        zone: str = "local",
        fragments: Path | None = None,
        lease_s: float = 2.0,
        program: Sequence[str] = (),
    ) -> None:
        self.fragments = fragments or folder / "fragments"
        self.spool = folder / "spool"
        super().__init__(f"broker {broker_id}", log=folder / "broker.log", temporary=self.spool)
        self._etcd = etcd
        self._prefix = prefix
        self.flags = tuple(flags)
        self.id = broker_id
        self.zone = zone
        self._lease_s = lease_s
        self.program = tuple(program) or (sys.executable, "-m", "gazette_platform.cli.gazette")

    def move(self, *, is_empty: bool = False) -> None:
        """Give a broker that does not run another address, as of another machine.

        Args:
            is_empty: its spools stay behind.
        """
        self.port, self.http_port = choose_ports(["grpc", "http"]).values()
        if is_empty:
            shutil.rmtree(self.spool)

    @override
    def start(self, *, timeout_s: float = 30.0) -> None:
        """Start, and wait until it is ready.

        Raises: SetupError: it ended or was not ready in time; with the end of its log.
        """
        self.fragments.mkdir(parents=True, exist_ok=True)
        self.spool.mkdir(parents=True, exist_ok=True)
        command = [
            *self.program,
            "serve",
            f"--broker.id={self.id}",
            f"--broker.zone={self.zone}",
            "--broker.host=127.0.0.1",
            f"--broker.port={self.port}",
            "--broker.http-host=127.0.0.1",
            f"--broker.http-port={self.http_port}",
            f"--broker.file-root={self.fragments}",
            f"--broker.spool-dir={self.spool}",
            "--broker.drain-timeout=10s",
            f"--etcd.address={self._etcd}",
            f"--etcd.prefix={self._prefix}",
            f"--etcd.lease={self._lease_s:g}s",
            "--log.level=info",
            *wire_flags("broker"),
            *self.flags,
        ]
        self.run(command, timeout_s=timeout_s)


# It is on this machine, where no proxy is asked.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@final
class ConsumerServer(ServerProcess):
    """One consumer process, from `start` to `stop`.

    Args:
        folder: for its files and log; created if it is not there.
        program: what runs the application, as ``(sys.executable, "counts.py")``.
        etcd: endpoint of a running etcd.
        prefix: key prefix of the group.
        broker: addresses of brokers.
        flags: more flags of its `serve`; the last of a flag counts.
        consumer_id: of the member; unique in its zone.
        zone: of the member.
        lease_s: seconds after which etcd forgets it.

    Attributes:
        files: folder of the files of its shards.
        flags, program: may be changed before `start`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        program: Sequence[str],
        etcd: str,
        prefix: str,
        broker: str,
        flags: Sequence[str] = (),
        consumer_id: str = "test-consumer",
        zone: str = "local",
        lease_s: float = 2.0,
    ) -> None:
        self.files = folder / "shards"
        super().__init__(
            f"consumer {consumer_id}", log=folder / "consumer.log", temporary=self.files
        )
        self.flags = tuple(flags)
        self.id = consumer_id
        self.zone = zone
        self.program = tuple(program)
        self._etcd = etcd
        self._prefix = prefix
        self._broker = broker
        self._lease_s = lease_s

    @override
    def start(self, *, timeout_s: float = 30.0) -> None:
        """Start, and wait until it is a member of its group.

        Raises: SetupError: it ended or was not ready in time; with the end of its log.
        """
        self.files.mkdir(parents=True, exist_ok=True)
        command = [
            *self.program,
            "serve",
            f"--consumer.id={self.id}",
            f"--consumer.zone={self.zone}",
            "--consumer.host=127.0.0.1",
            f"--consumer.port={self.port}",
            "--consumer.http-host=127.0.0.1",
            f"--consumer.http-port={self.http_port}",
            f"--consumer.directory={self.files}",
            "--consumer.drain-timeout=20s",
            f"--broker.address={self._broker}",
            f"--etcd.address={self._etcd}",
            f"--etcd.prefix={self._prefix}",
            f"--etcd.lease={self._lease_s:g}s",
            "--log.level=info",
            *wire_flags("consumer"),
            *self.flags,
        ]
        self.run(command, timeout_s=timeout_s)

    @override
    def _is_ready(self) -> bool:
        """Whether it serves, also if shards that it got have failed already."""
        try:
            with _DIRECT.open(f"{self.http_address}/debug/ready", timeout=1.0):
                return True
        except urllib.error.HTTPError as err:
            return err.read().decode().strip() != NOT_SERVING
        except (OSError, http.client.HTTPException):
            return False
