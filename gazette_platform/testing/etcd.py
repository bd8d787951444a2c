"""A real etcd for tests: one process, one temporary folder, two free loopback ports; and certificates for its TLS."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import ssl
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self, final

from gazette_platform.errors import SetupError
from gazette_platform.platform.component import choose_ports
from gazette_platform.testing.waiting import TooLate, core_wait, patient

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


__all__ = ["Certificate", "CertificateAuthority", "EtcdServer", "EtcdTrio", "find_etcd"]

_LOG_TAIL_BYTES = 4096
# A port is free when chosen and may be taken before etcd binds it: then another pair is tried.
_START_ATTEMPTS = 3
_POLL_S = 0.02


def find_etcd() -> Path | None:
    """The etcd binary named by ``GAZETTE_ETCD``, else the one on ``PATH``; None if there is none.

    ``GAZETTE_TOOLS=own`` makes it ignore ``PATH``, so that a missing install step shows.

    Raises: SetupError: ``GAZETTE_ETCD`` names a file that does not exist or cannot be run.
    """
    named = os.environ.get("GAZETTE_ETCD")
    if named:
        path = Path(named)
        if not os.access(path, os.X_OK):
            raise SetupError(
                f"GAZETTE_ETCD={named} is not an executable file; name an etcd binary or unset it"
            )
        return path
    if os.environ.get("GAZETTE_TOOLS") == "own":
        return None
    found = shutil.which("etcd")
    return Path(found) if found else None


@final
class EtcdServer:
    """One etcd process, from `start` to `stop`; its data outlives `kill` and a second `start`.

    Nothing is synced to disk (tests do not survive a power cut), hence it starts in 0.1 to 0.3 s.

    Args:
        binary: the etcd executable, see `find_etcd`.
        tls: its certificate, and the authority of clients, which must then show one as well; None:
            it is plain.
        name: of a cluster's member.
        peer_ports: where each member of the cluster listens for the others, by name; None: it is
            alone.
        arguments: further options, such as ``--quota-backend-bytes=…``.
    """

    def __init__(
        self,
        binary: Path,
        *,
        tls: tuple[Certificate, Path] | None = None,
        name: str = "test",
        peer_ports: Mapping[str, int] | None = None,
        arguments: Sequence[str] = (),
    ) -> None:
        self._binary = binary
        self._arguments = tuple(arguments)
        self._name = name
        self._peer_ports = peer_ports
        self._tls = tls
        self._dir: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._client_port = 0
        self._peer_port = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    @property
    def endpoint(self) -> str:
        """The client URL; stays the same over `kill` and `start`."""
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://127.0.0.1:{self._client_port}"

    @property
    def pid(self) -> int:
        """The process id while it runs, else 0."""
        return self._process.pid if self._process is not None else 0

    @property
    def log_path(self) -> Path:
        """Where etcd writes its log."""
        if self._dir is None:
            raise SetupError("this etcd was never started; call start() first")
        return self._dir / "etcd.log"

    def start(self, *, timeout_s: float = 20.0) -> None:
        """Start, and wait until it serves.

        Args:
            timeout_s: seconds until the start counts as failed, before `patient` scales them.

        Raises: SetupError: it exited, or (`TooLate`) did not get ready in time; holds the end of its log.
        """
        if self._process is not None:
            raise SetupError(f"this etcd runs already, as process {self.pid}")
        is_first = self._dir is None
        if self._dir is None:
            self._dir = Path(tempfile.mkdtemp(prefix="gazette-etcd-"))
        for attempt in range(_START_ATTEMPTS):
            if is_first:
                self._client_port, self._peer_port = choose_ports(["client", "peer"]).values()
            if self._peer_ports is not None:
                self._peer_port = self._peer_ports[self._name]
            self._spawn()
            try:
                self._wait_ready(timeout_s)
            except SetupError as err:
                self._end(signal.SIGKILL)
                is_last = attempt == _START_ATTEMPTS - 1
                if is_last or "address already in use" not in str(err):
                    if is_first:
                        self._remove_dir()
                    raise
                continue
            return

    def stop(self) -> None:
        """Stop it and remove its data. Does nothing if it never started."""
        self._end(signal.SIGTERM)
        self._remove_dir()

    def kill(self) -> None:
        """SIGKILL; data and ports are kept for the next `start`."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT after `pause`."""
        self._signal(signal.SIGCONT)

    def log_tail(self) -> str:
        """The last 4 KiB of its log."""
        raw = self.log_path.read_bytes() if self.log_path.exists() else b""
        return raw[-_LOG_TAIL_BYTES:].decode(errors="replace")

    def _spawn(self) -> None:
        assert self._dir is not None
        peer = f"http://127.0.0.1:{self._peer_port}"
        members = self._peer_ports or {self._name: self._peer_port}
        initial = ",".join(f"{name}=http://127.0.0.1:{port}" for name, port in members.items())
        arguments = [
            str(self._binary),
            f"--name={self._name}",
            f"--data-dir={self._dir / 'data'}",
            f"--listen-client-urls={self.endpoint}",
            f"--advertise-client-urls={self.endpoint}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster={initial}",
            "--unsafe-no-fsync",
            "--experimental-watch-progress-notify-interval=1s",
            "--logger=zap",
            "--log-outputs=stderr",
            *self._arguments,
        ]
        if self._tls is not None:
            (cert, key), ca = self._tls
            arguments += [f"--cert-file={cert}", f"--key-file={key}"]
            arguments += ["--client-cert-auth", f"--trusted-ca-file={ca}"]
        # Settings of a real etcd on this machine must not reach the one under test.
        env = {k: v for k, v in os.environ.items() if not k.startswith("ETCD_")}
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env
            )

    def _wait_ready(self, timeout_s: float) -> None:
        assert self._process is not None
        limit_s = patient(timeout_s)
        deadline = time.monotonic() + limit_s
        pause = threading.Event()
        while True:
            code = self._process.poll()
            if code is not None:
                raise SetupError(
                    f"{self._binary} exited with {code}; its log ends:\n{self.log_tail()}"
                )
            if self._is_healthy():
                return
            if time.monotonic() >= deadline:
                _, waited_s = core_wait(self._process.pid)
                raise TooLate(
                    f"{self._binary} was not ready after {limit_s:g} s; its log ends:\n{self.log_tail()}",
                    waited=waited_s / limit_s,
                )
            pause.wait(_POLL_S)

    @property
    def is_leader(self) -> bool:
        """Whether it leads its cluster, as it says itself; false while it does not answer."""
        return b"\netcd_server_is_leader 1\n" in self._get("/metrics")

    def _is_healthy(self) -> bool:
        return b"true" in self._get("/health")

    def _get(self, path: str) -> bytes:
        """Returns: what it answers; nothing if it fails."""
        # http.client ignores proxy variables, which urllib would obey even for loopback.
        connection = self._connect()
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.read() if response.status == http.HTTPStatus.OK else b""
        except (OSError, http.client.HTTPException):
            return b""
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection("127.0.0.1", self._client_port, timeout=1.0)
        (cert, key), ca = self._tls
        context = ssl.create_default_context(cafile=ca)
        context.load_cert_chain(cert, key)
        return http.client.HTTPSConnection(
            "127.0.0.1", self._client_port, timeout=1.0, context=context
        )

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None:
            raise SetupError("this etcd does not run; call start() first")
        self._process.send_signal(number)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGCONT)  # a paused process would not see SIGTERM
        process.send_signal(number)
        try:
            process.wait(patient(5.0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(patient(5.0))

    def _remove_dir(self) -> None:
        if self._dir is not None:
            shutil.rmtree(self._dir, ignore_errors=True)
            self._dir = None


@final
class EtcdTrio:
    """An etcd of three members, which goes on when one of them is killed.

    Args:
        binary: the etcd executable.

    Attributes:
        members: the processes; each can be killed and started by itself.
    """

    def __init__(self, binary: Path) -> None:
        names = ("one", "two", "three")
        ports = choose_ports(names)
        self.members = tuple(EtcdServer(binary, name=name, peer_ports=ports) for name in names)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    @property
    def endpoint(self) -> str:
        """The client URLs of all members, separated by commas."""
        return ",".join(member.endpoint for member in self.members)

    @property
    def pid(self) -> int:
        """That of a member while all run, else 0."""
        return min(member.pid for member in self.members)

    def start(self) -> None:
        """Start the members that do not run, and wait until all serve. Raises: SetupError."""
        ended = [member for member in self.members if not member.pid]
        # None of them is ready before another one is.
        with ThreadPoolExecutor(len(self.members)) as threads:
            for started in [threads.submit(member.start) for member in ended]:
                started.result()

    def stop(self) -> None:
        """Stop all and remove their data."""
        for member in self.members:
            member.stop()

    def kill(self) -> None:
        """SIGKILL all; data and ports are kept for the next `start`."""
        for member in self.members:
            member.kill()

    def leader(self, *, timeout_s: float = 20.0) -> EtcdServer:
        """The member that leads, once one does. Raises: TooLate: none does in time."""
        limit_s = patient(timeout_s)
        deadline = time.monotonic() + limit_s
        pause = threading.Event()
        while time.monotonic() < deadline:
            for member in self.members:
                if member.pid and member.is_leader:
                    return member
            pause.wait(_POLL_S)
        raise TooLate(f"no member of etcd leads after {limit_s:g} s")


_DEADLINE_S = 30.0
_DAYS = "30"

_CONFIG = """
[req]
distinguished_name = name
prompt = no
[name]
CN = {common_name}
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[holder]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature, keyEncipherment
extendedKeyUsage = serverAuth, clientAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
subjectAltName = {alternatives}
"""


class Certificate(NamedTuple):
    """PEM files of a certificate and its key."""

    cert: Path
    key: Path


@final
class CertificateAuthority:
    """Signs certificates that only the holder of `ca` trusts.

    Args:
        folder: for its files; exists.

    Raises: SetupError: there is no openssl on PATH, or it failed.
    """

    def __init__(self, folder: Path, *, name: str = "test authority") -> None:
        found = os.environ.get("GAZETTE_OPENSSL") or shutil.which("openssl")
        if found is None:
            raise SetupError("openssl is not on PATH (Debian: apt-get install openssl)")
        self._openssl = found
        self._folder = folder
        self._stem = name.replace(" ", "-")
        made = self._make(self._stem, name, "authority")
        self.ca, self._key = made

    def issue(self, name: str, hosts: tuple[str, ...] = ("localhost", "127.0.0.1")) -> Certificate:
        """A certificate for a server at `hosts`, or for a client called `name`."""
        alternatives = ",".join(
            f"IP:{host}" if host.replace(".", "").isdigit() else f"DNS:{host}" for host in hosts
        )
        signed_by = ("-CA", str(self.ca), "-CAkey", str(self._key))
        return self._make(f"{self._stem}-{name}", name, "holder", alternatives, signed_by)

    def _make(
        self,
        stem: str,
        common_name: str,
        section: str,
        alternatives: str = "DNS:localhost",
        signed_by: tuple[str, ...] = (),
    ) -> Certificate:
        config = self._folder / f"{stem}.cnf"
        config.write_text(_CONFIG.format(common_name=common_name, alternatives=alternatives))
        made = Certificate(self._folder / f"{stem}.pem", self._folder / f"{stem}.key")
        command = [self._openssl, "req", "-x509", "-config", str(config), "-extensions", section]
        command += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        command += ["-days", _DAYS, "-keyout", str(made.key), "-out", str(made.cert), *signed_by]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_DEADLINE_S, check=False
        )
        if done.returncode:
            raise SetupError(f"openssl req failed: {done.stderr.strip()}")
        return made
