"""Programs of other gRPC libraries, and servers for them; `tests.interop` says what they do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
from grpc_core_bench import GrpcBench
from h2_server_bench import Bench

from gazette_platform.platform import tools
from gazette_platform.serving.auth import TlsMaterial
from gazette_platform.testing.etcd import CertificateAuthority
from gazette_platform.testing.waiting import patient

SOURCES = Path(__file__).parents[1] / "interop"
CHECKS = [
    "unary", "upload", "download", "both", "compressed", "metadata", "deadline", "cancel", "error",
    "missing", "too-large", "early", "many",
]  # fmt: skip
_BUILD_S = 600.0


def _run(command, folder):
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=patient(_BUILD_S), check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]


def go_program(folder):
    """Build the program of grpc-go. Returns: its command."""
    if shutil.which("go") is None:
        pytest.skip("needs Go, to build a client of grpc-go (https://go.dev/dl/)")
    _run(["go", "build", "-o", str(folder / "interop"), "."], SOURCES / "go")
    return [str(folder / "interop")]


def java_program(folder):
    """Compile the client of grpc-java. Returns: its command."""
    if shutil.which("javac") is None:
        pytest.skip("needs javac, to compile a client of grpc-java (Debian: default-jdk-headless)")
    jars = f"{tools.grpc_java_jars()}/*"
    source = str(SOURCES / "java" / "Interop.java")
    _run(["javac", "-cp", jars, "-d", str(folder), source], folder)
    options = ["-Xmx512m", "-XX:+UseSerialGC"]
    return ["java", *options, "-cp", f"{folder}:{jars}", "Interop"]


def python_program(library):
    """Return the command of a client in Python."""
    return [sys.executable, str(SOURCES / "client.py"), library]


@dataclass
class Security:
    """Files of TLS; without any, all is plain text."""

    ca: Path | None = None
    server: tuple[Path, Path] | None = None
    client: tuple[Path, Path] | None = None

    @classmethod
    def make(cls, folder, kind):
        if kind == "plain":
            return cls()
        authority = CertificateAuthority(folder)
        client = authority.issue("client") if kind == "mutual" else None
        return cls(authority.ca, authority.issue("server"), client)

    def client_options(self):
        """Options of a client."""
        return _options(self.ca, self.client)

    def server_options(self):
        """Options of a server in another language. It asks for certificates if it has an authority."""
        return _options(self.client and self.ca, self.server)

    def material(self):
        """The same for our server; None: plain text."""
        if self.server is None:
            return None
        cert, key = (path.read_bytes() for path in self.server)
        return TlsMaterial(cert, key, self.ca.read_bytes() if self.client else b"")

    def credentials(self):
        """The same for the gRPC library's server."""
        found = self.material()
        if found is None:
            return None
        return grpc.ssl_server_credentials(
            [(found.key, found.cert)], found.ca or None, bool(found.ca)
        )


def _options(ca, pair):
    named = {"-ca": ca, "-cert": pair and pair[0], "-key": pair and pair[1]}
    return [word for name, path in named.items() if path for word in (name, str(path))]


@contextlib.asynccontextmanager
async def running(command, errors):
    """Run a program until the scope ends, with its stderr in a file."""
    with errors.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.communicate()


async def line_of(process):
    """Return the next line that a program writes; empty at its end."""
    raw = await process.stdout.readline()
    return json.loads(raw) if raw else {}


@dataclass
class Served:
    """A server that leaves when it is asked to; `successor` takes its place."""

    security: Security
    folder: Path
    stack: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)
    port: int = 0

    async def __aenter__(self):
        await self.start()
        return self

    async def __aexit__(self, *exc_info):
        await self.stack.aclose()

    async def successor(self):
        """Start another server at the same port, and let this one end its calls."""
        other = type(self)(self.security, self.folder, port=self.port)
        await self.hand_over(other)
        self.stack.push_async_exit(other)
        return other


class OurServer(Served):
    """Our own."""

    async def start(self):
        self.bench = Bench(port=self.port, tls=self.security.material())
        self.port = self.bench.server.port
        await self.stack.enter_async_context(self.bench)

    async def hand_over(self, other):
        # It closes its port, and no client knows: none may find the port closed.
        await self.bench.server._end_accepting()
        await other.start()
        stopping = self.bench.server.stop(grace_s=patient(60.0))
        self.leaving = asyncio.get_running_loop().create_task(stopping)

    def open_gate(self):
        self.bench.echo.gate.set()


class CoreServer(Served):
    """The gRPC library's for Python."""

    async def start(self):
        self.bench = GrpcBench(port=self.port, credentials=self.security.credentials())
        self.port = self.bench.port
        await self.stack.enter_async_context(self.bench)

    async def hand_over(self, other):
        await other.start()
        stopping = self.bench.server.stop(patient(60.0))
        self.leaving = asyncio.get_running_loop().create_task(stopping)

    def open_gate(self):
        self.bench.gate.set()


class GoServer(Served):
    """That of grpc-go, whose program `command` is."""

    command = ()

    async def start(self):
        command = [*self.command, "-address", f"127.0.0.1:{self.port}"]
        command += [*self.security.server_options(), "server"]
        errors = self.folder / f"go-server-{id(self)}.log"
        self.process = await self.stack.enter_async_context(running(command, errors))
        found = await line_of(self.process)
        assert found, errors.read_text()
        self.port = found["port"]

    async def hand_over(self, other):
        await other.start()
        self.process.send_signal(signal.SIGTERM)
        self.leaving = asyncio.get_running_loop().create_task(self.process.wait())

    def open_gate(self):
        self.process.stdin.write(b"\n")
