"""Servers of object stores for tests: real programs, each on a free port over a folder of its own."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from gazette_platform.errors import SetupError
from gazette_platform.platform import tools
from gazette_platform.platform.component import choose_ports
from gazette_platform.testing.waiting import TooLate, patient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from azure.storage.blob import BlobServiceClient

    from gazette_platform.testing.etcd import CertificateAuthority

__all__ = [
    "AzureServer",
    "GcsServer",
    "S3Server",
    "azure_server",
    "gcs_server",
    "need_go",
    "need_npm",
    "s3_server",
    "serving",
    "use_keys",
]

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 20.0
_LOG_LINES = 40


def need_go(variable: str) -> None:
    """Skip the test if nothing could build its server; where servers are required that is a failure.

    Args:
        variable: of the environment, which may name a server that runs already.
    """
    if not os.environ.get(variable) and shutil.which("go") is None:
        pytest.skip(f"needs Go, to build a server (https://go.dev/dl/, or {variable})")


def need_npm(variable: str) -> None:
    """As `need_go`, of npm."""
    if not os.environ.get(variable) and shutil.which("npm") is None:
        pytest.skip(f"needs npm, to install a server (https://nodejs.org/, or {variable})")


@contextmanager
def serving(
    command: list[str], *, port: int, log: Path, environment: dict[str, str] | None = None
) -> Iterator[int]:
    """Run a program until the scope ends; it is entered once the program listens.

    Gives: its process id.
    Raises: SetupError: it ended early, or (`TooLate`) did not listen in time; with the end of its log.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    try:
        limit_s = patient(_START_TIMEOUT_S)
        deadline = time.monotonic() + limit_s
        while not _listens(port):
            is_late = time.monotonic() > deadline
            if process.poll() is not None or is_late:
                tail = "\n".join(log.read_text("utf-8", "replace").splitlines()[-_LOG_LINES:])
                if process.poll() is not None:
                    raise SetupError(f"{command[0]} does not serve:\n{tail}")
                raise TooLate(f"{command[0]} does not serve after {limit_s:g} s:\n{tail}")
            time.sleep(0.05)
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(patient(_STOP_TIMEOUT_S))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


@dataclass(frozen=True)
class S3Server:
    """A running versitygw."""

    endpoint: str
    access_key: str
    secret_key: str
    folder: Path
    binary: Path
    pid: int

    def make_bucket(self, name: str) -> None:
        """Make an empty bucket of its main user."""
        (self.folder / name).mkdir()

    def add_user(self, access_key: str, secret_key: str) -> None:
        """A user who may do nothing in the buckets of others."""
        command = [str(self.binary), "admin", "--endpoint-url", self.endpoint]
        command += ["--access", self.access_key, "--secret", self.secret_key, "create-user"]
        command += ["--access", access_key, "--secret", secret_key, "--role", "user"]
        subprocess.run(command, check=True, capture_output=True, timeout=60)


def use_keys(server: S3Server, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Have AWS tools of this process find the server's own keys, and nothing of this machine's user."""
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret_key)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(folder / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(folder / "credentials"))


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """A real S3 server, empty, over `folder`.

    Raises: SetupError: it could not be built (it needs Go) or started.
    """
    binary = tools.s3_server()
    for name in ("objects", "attributes", "users"):
        (folder / name).mkdir(parents=True)
    (port,) = choose_ports(["s3"]).values()
    access_key, secret_key = "main", "main-secret"
    objects = folder / "objects"
    command = [str(binary), "--quiet", "--port", f"127.0.0.1:{port}", "--iam-dir"]
    # Not every file system keeps extended attributes, so they lie in files of their own.
    command += [str(folder / "users"), "posix", "--sidecar", str(folder / "attributes")]
    command.append(str(objects))
    keys = {"ROOT_ACCESS_KEY": access_key, "ROOT_SECRET_KEY": secret_key}
    with serving(command, port=port, log=folder / "versitygw.log", environment=keys) as pid:
        yield S3Server(f"http://127.0.0.1:{port}", access_key, secret_key, objects, binary, pid)


@dataclass(frozen=True)
class AzureServer:
    """A running azurite, with the account that it always has."""

    endpoint: str
    ca: str | None = None
    """The certificate that signed its own; None: it speaks HTTP."""
    account: str = "devstoreaccount1"
    key: str = (
        "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
    )

    def make_container(self, name: str) -> None:
        """Make an empty container."""
        with self._client() as client:
            client.create_container(name)

    def put_blob(self, container: str, key: str, content: bytes) -> None:
        """Store a blob of any key, as other programs may."""
        with self._client() as client:
            client.get_blob_client(container, key).upload_blob(content)

    def _client(self) -> BlobServiceClient:
        from azure.storage.blob import BlobServiceClient

        verify = True if self.ca is None else self.ca
        return BlobServiceClient(self.endpoint, credential=self.key, connection_verify=verify)


@contextmanager
def azure_server(
    folder: Path, authority: CertificateAuthority | None = None
) -> Iterator[AzureServer]:
    """An emulator of Azure Blob Storage, empty, over `folder`.

    Args:
        authority: signs its certificate. It then speaks HTTPS, and takes tokens, too: it checks their
            issuer, audience and times, but not the signature.

    Raises: SetupError: it could not be installed (it needs npm) or started.
    """
    binary = tools.azure_server()
    folder.mkdir(parents=True, exist_ok=True)
    (port,) = choose_ports(["azure"]).values()
    command = [str(binary), "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    command += ["--location", str(folder), "--skipApiVersionCheck", "--disableTelemetry"]
    command += ["--silent"]
    scheme, ca = "http", None
    if authority is not None:
        certificate = authority.issue("azurite")
        command += [
            "--oauth",
            "basic",
            "--cert",
            str(certificate.cert),
            "--key",
            str(certificate.key),
        ]
        scheme, ca = "https", str(authority.ca)
    with serving(command, port=port, log=folder / "azurite.log"):
        yield AzureServer(f"{scheme}://127.0.0.1:{port}/devstoreaccount1", ca)


@dataclass(frozen=True)
class GcsServer:
    """A running fake-gcs-server, which authenticates no caller."""

    endpoint: str

    def make_bucket(self, name: str) -> None:
        """Make an empty bucket."""
        self._post("/storage/v1/b", json.dumps({"name": name}).encode())

    def put_object(self, bucket: str, key: str, content: bytes) -> None:
        """Store an object of any key, as other programs may."""
        path = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(key, safe='')}"
        self._post(path, content)

    def _post(self, path: str, body: bytes) -> None:
        request = urllib.request.Request(self.endpoint + path, body, method="POST")
        with urllib.request.urlopen(request, timeout=60):
            pass


@contextmanager
def gcs_server(folder: Path) -> Iterator[GcsServer]:
    """An emulator of Google Cloud Storage, empty, in memory; its log lies in `folder`.

    Raises: SetupError: it could not be built (it needs Go) or started.
    """
    binary = tools.gcs_server()
    folder.mkdir(parents=True, exist_ok=True)
    (port,) = choose_ports(["gcs"]).values()
    command = [str(binary), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
    command += ["-backend", "memory", "-public-host", f"127.0.0.1:{port}", "-log-level", "warn"]
    with serving(command, port=port, log=folder / "fake-gcs-server.log"):
        yield GcsServer(f"http://127.0.0.1:{port}")
