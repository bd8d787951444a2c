"""A server of an Iceberg REST catalog for tests, over a database."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import rest_catalog_main
from object_servers import _listens
from postgres_server import end, spawn, wait_until_ready

from gazette_platform.platform import tools
from gazette_platform.platform.component import HOST, choose_ports
from gazette_platform.platform.download import MavenArtifact, fetch_maven, show_step

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from postgres_server import Postgres

__all__ = ["RestServer", "rest_server"]


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
class RestServer:
    """A running REST catalog."""

    uri: str
    port: int
    pid: int


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
    command = [
        sys.executable,
        rest_catalog_main.__file__,
        str(port),
        jars,
        jdbc,
        database.user,
        warehouse,
    ]
    process = spawn(command, folder, None, log, database.password)
    try:
        wait_until_ready(lambda: _listens(port), process, log)
        yield RestServer(f"http://{HOST}:{port}", port, process.pid)
    finally:
        end(process, signal.SIGTERM)


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
