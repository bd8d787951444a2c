"""Servers of Iceberg catalogs for tests: a PostgreSQL, and an Iceberg REST server over a database of it."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import rest_catalog_main
from object_servers import _listens

from gazette_platform.embedded import tools
from gazette_platform.embedded.maven import MavenArtifact, fetch_maven
from gazette_platform.embedded.ports import HOST, choose_ports
from gazette_platform.embedded.progress import show_step
from gazette_platform.errors import SetupError
from gazette_platform.testing.waiting import patient

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import psycopg

__all__ = ["Postgres", "RestServer", "postgres", "rest_server"]

_USER = "iceberg"
_TIMEOUT_S = 60.0
_LOG_LINES = 40


def _iceberg(artifact: str, size_bytes: int, sha256: str, classifier: str = "") -> MavenArtifact:
    return MavenArtifact(
        group="org.apache.iceberg", artifact=artifact, version="1.11.0", extension="jar", size_bytes=size_bytes,
        sha256=sha256, classifier=classifier,
    )  # fmt: skip


def _apache(part: str, artifact: str, version: str, size_bytes: int, sha256: str) -> MavenArtifact:
    return MavenArtifact(
        group=f"org.apache.httpcomponents.{part}", artifact=artifact, version=version, extension="jar",
        size_bytes=size_bytes, sha256=sha256,
    )  # fmt: skip


# Of Iceberg the last that publishes its tests, where the servlet is; and what PySpark has not of what they call.
_ARTIFACTS = (
    _iceberg("iceberg-core", 1804337, "4284719a5f0eb7db01e9f784a0ed4ca8bacf7d6f9951924143afc083428d8be3", "tests"),
    _iceberg("iceberg-core", 2575099, "53b9eb7a8c34fb9958ea7d9a4d19ba5bc96f592d0f05e8625b0778c70b1f0090"),
    _iceberg("iceberg-api", 705698, "f00675a12ceb6d833bb9c22024823a3e7afdedf7abcefe34719f45b0d211995a"),
    _iceberg("iceberg-common", 31895, "b2835d00db7c92bdfa728123ad7cdcb488e2f2805c1c51fb9ae94e8bd203bd7d"),
    _iceberg("iceberg-bundled-guava", 1785615, "396d48d93ef5735f2ddef0cf9b3d6968ebd67b64b5cfe753d41c429d3f46a2a1"),
    MavenArtifact(
        group="com.github.ben-manes.caffeine", artifact="caffeine", version="2.9.3", extension="jar",
        size_bytes=912143, sha256="1e0a7bbef1dd791653143f3f05d0e489934bf5481e58a87c9e619cd46b68729b",
    ),
    _apache("client5", "httpclient5", "5.6.1", 1054142, "1e3d8444c3c27772e4b9d42a790f06b3345a8ece4fd16d00981f2f2460e1e772"),
    _apache("core5", "httpcore5", "5.4", 952936, "cec2981fa7f520efb63f0787c24f10af2679e31f9f75c448c4dde40a3ae8100d"),
    _apache("core5", "httpcore5-h2", "5.4", 263347, "2e0f4ace15db2d1609c2b06eca6012e7582afe4a99ad8d15073f62dd8edb3460"),
)  # fmt: skip


@dataclass(frozen=True)
class Postgres:
    """A running PostgreSQL."""

    port: int
    password: str = field(repr=False)
    pid: int

    def uri(self, database: str, port: int = 0) -> str:
        """As GAZETTE_ICEBERG_CATALOG has it, without a name."""
        return f"postgresql://{_USER}@{HOST}:{port or self.port}/{database}"

    def connected(self, database: str) -> psycopg.Connection[Any]:
        """A connection of one's own."""
        import psycopg

        return psycopg.connect(
            host=HOST, port=self.port, user=_USER, password=self.password, dbname=database,
            connect_timeout=10,
        )  # fmt: skip

    def sql(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run a statement. Returns: its rows."""
        with self.connected(database) as connection:
            connection.autocommit = True
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []


@dataclass(frozen=True)
class RestServer:
    """A running REST catalog."""

    uri: str
    port: int
    pid: int


def _binaries() -> Path:
    """The folder of PostgreSQL's programs; Debian has them outside of PATH."""
    named = os.environ.get("GAZETTE_POSTGRES", "")
    if named:
        return Path(named)
    on_path = shutil.which("initdb")
    if on_path:
        return Path(on_path).resolve().parent
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        pytest.skip("needs PostgreSQL (apt-get install postgresql, or GAZETTE_POSTGRES)")
    return found[-1].parent


@contextmanager
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL on loopback, empty, that asks for a password. As it does not run as root, another user does then.

    Raises: SetupError: it did not start; with the end of its log.
    """
    binaries = _binaries()
    # Not below pytest's folder, which is its user's alone.
    folder = Path(tempfile.mkdtemp(prefix="gazette-postgres-"))
    who = _other_user() if os.geteuid() == 0 else None
    password = secrets.token_urlsafe(16)
    port = choose_ports(["postgres"])["postgres"]
    try:
        (folder / "password").write_text(password)
        if who is not None:
            os.chown(folder, who.pw_uid, who.pw_gid)
            os.chown(folder / "password", who.pw_uid, who.pw_gid)
        made = _started(
            [str(binaries / "initdb"), "-D", f"{folder}/data", "-U", _USER, "--auth=scram-sha-256", "-E", "UTF8",
             f"--pwfile={folder}/password", "--locale=C", "--no-sync"], folder, who, folder / "initdb.log",
        )  # fmt: skip
        if made.wait(patient(_TIMEOUT_S)) != 0:
            raise SetupError("initdb failed:\n" + _tail(folder / "initdb.log"))
        settings = {"listen_addresses": HOST, "port": port, "unix_socket_directories": "", "fsync": "off"}  # fmt: skip
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        log = folder / "postgres.log"
        command = [str(binaries / "postgres"), "-D", f"{folder}/data", *options]
        with _ending(_started(command, folder, who, log)) as server:
            running = Postgres(port, password, server.pid)
            _until(lambda: running.sql("SELECT 1"), server, log)
            yield running
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def rest_server(database: Postgres, folder: Path) -> Iterator[RestServer]:
    """An Iceberg REST server, with its tables in the database ``served``, which is made.

    Raises: SetupError: it did not start; with the end of its log.
    """
    database.sql("CREATE DATABASE served")
    port = choose_ports(["rest"])["rest"]
    log = folder / "rest.log"
    jars = ":".join(map(str, [*_jars(), tools.postgres_driver()]))
    jdbc = f"jdbc:postgresql://{HOST}:{database.port}/served"
    warehouse = (folder / "served").as_uri()
    command = [sys.executable, rest_catalog_main.__file__, str(port), jars, jdbc, _USER, warehouse]
    process = _started(command, folder, None, log, database.password)
    with _ending(process) as server:
        _until(lambda: _listens(port), server, log)
        yield RestServer(f"http://{HOST}:{port}", port, server.pid)


def _other_user() -> pwd.struct_passwd:
    # Debian's package has one of its own.
    with suppress(KeyError):
        return pwd.getpwnam("postgres")
    return pwd.getpwnam("nobody")


def _started(
    command: Sequence[str], folder: Path, who: Any, log: Path, said: str = ""
) -> subprocess.Popen[bytes]:
    as_other = {} if who is None else {"user": who.pw_uid, "group": who.pw_gid, "extra_groups": []}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, cwd=folder,
            start_new_session=True, **as_other,
        )  # fmt: skip
    assert process.stdin is not None
    with process.stdin as stdin:
        stdin.write(f"{said}\n".encode())
    return process


@contextmanager
def _ending(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _until(is_ready: Any, process: subprocess.Popen[bytes], log: Path) -> None:
    import psycopg

    deadline = time.monotonic() + patient(_TIMEOUT_S)
    while True:
        with suppress(psycopg.OperationalError):
            if is_ready():
                return
        if process.poll() is not None or time.monotonic() > deadline:
            raise SetupError(f"{process.args!r} does not serve:\n" + _tail(log))
        time.sleep(0.05)


def _tail(log: Path) -> str:
    return "\n".join(log.read_text("utf-8", "replace").splitlines()[-_LOG_LINES:])


def _jars() -> list[Path]:
    found = []
    for artifact in _ARTIFACTS:
        target = tools.cache_dir() / "jars" / artifact.file_name
        found.append(target)
        if target.exists():
            continue
        with show_step(f"downloading {artifact.file_name}", artifact.size_bytes) as step:
            repository = os.environ.get("GAZETTE_MAVEN_REPOSITORY", "")
            fetch_maven(
                artifact, target, java_home=tools.java(21), step=step, repository=repository
            )
    return found
