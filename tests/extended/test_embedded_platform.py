"""`gazette up` and `down` with real servers."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest

from gazette_platform.embedded import tools
from gazette_platform.embedded.layout import PlatformDir
from gazette_platform.embedded.process import ProcessId
from gazette_platform.hive import MetastoreClient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import trino as trino_client

pytestmark = [pytest.mark.hive, pytest.mark.timeout(300)]

START_TIMEOUT_S = 420


def gazette(*argv: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "gazette_platform.cli.gazette", *argv],
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done


def up(root: Path, without: str) -> dict[str, object]:
    gazette("up", "--root", str(root), "--without", without, "--detach")
    return json.loads((root / "endpoints.json").read_text())


def processes_of(root: Path) -> list[str]:
    """Command lines of processes that mention the folder."""
    shown = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True)
    return [line for line in shown.stdout.splitlines() if str(root) in line]


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    root = tmp_path / "platform"
    root.mkdir()
    yield root
    gazette("down", "--root", str(root))
    assert processes_of(root) == []


def databases(uri: str) -> list[str]:
    with MetastoreClient(uri).connect() as session:
        return sorted(session.databases())


def test_metastore_keeps_its_data_and_its_port_over_a_restart(root: Path):
    first = up(root, "broker,dagster,trino")
    assert set(first) == {"etcd", "metastore", "pids"}
    assert databases(str(first["metastore"])) == ["default"]
    uri = str(first["metastore"])
    with MetastoreClient(uri).connect() as session:
        session.ensure_database("kept", location=f"file://{root}/warehouse/kept")
    gazette("down", "--root", str(root))
    assert not (root / "endpoints.json").exists()
    assert processes_of(root) == []
    second = up(root, "broker,dagster,trino")
    assert second["metastore"] == uri
    assert databases(uri) == ["default", "kept"]


def test_metastore_survives_sigkill_of_the_supervisor(root: Path):
    pids = up(root, "broker,dagster,trino")["pids"]
    children = [ProcessId.of(pids[name]) for name in ("etcd", "metastore")]
    os.kill(pids["supervisor"], signal.SIGKILL)
    deadline = time.monotonic() + 20
    while any(child.is_alive() for child in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(child.is_alive() for child in children)
    gazette("status", "--root", str(root), code=1)
    assert databases(str(up(root, "broker,dagster,trino")["metastore"])) == ["default"]


def test_component_that_dies_is_named_with_the_end_of_its_log(root: Path):
    pids = up(root, "broker,dagster,trino")["pids"]
    os.kill(pids["metastore"], signal.SIGKILL)
    supervisor = ProcessId.of(pids["supervisor"])
    deadline = time.monotonic() + 30
    while supervisor.is_alive() and time.monotonic() < deadline:
        time.sleep(0.05)
    shown = gazette("status", "--root", str(root), code=1).stdout
    assert "metastore was killed by SIGKILL" in shown
    assert not (root / "endpoints.json").exists()


def test_component_that_cannot_start_shows_the_end_of_its_log(root: Path):
    (root / "etcd" / "data").mkdir(parents=True)
    (root / "etcd" / "data" / "member").write_text("not a folder")
    said = gazette(
        "up", "--root", str(root), "--without", "broker,dagster,trino,metastore", "--detach", code=1
    ).stderr
    assert "gazette: error: etcd exited with code 1" in said
    assert f"--- the end of {PlatformDir.at(root).logs / 'etcd.log'}" in said
    assert "not a directory" in said
    assert "Traceback" not in said


@pytest.mark.trino
@pytest.mark.timeout(600)
def test_trino_reads_and_writes_through_the_metastore(root: Path):
    import trino

    endpoints = up(root, "broker,dagster")
    port = int(str(endpoints["trino"]).rpartition(":")[2])
    connection = trino.dbapi.connect(
        host="127.0.0.1", port=port, user="test", request_timeout=120.0
    )
    try:
        assert query(connection, "SELECT 1") == [[1]]
        assert query(connection, "SHOW CATALOGS") == [["hive"], ["iceberg"], ["system"], ["tpch"]]
        query(connection, "CREATE SCHEMA iceberg.test")
        query(connection, "CREATE TABLE iceberg.test.t AS SELECT name FROM tpch.tiny.region")
        assert query(connection, "SELECT count(*) FROM iceberg.test.t") == [[5]]
        # One name serves both: Hive's catalog redirects to Iceberg's.
        assert query(connection, "SELECT count(*) FROM hive.test.t") == [[5]]
        location = query(connection, 'SELECT "$path" FROM iceberg.test.t LIMIT 1')[0][0]
        assert str(root / "warehouse" / "test.db") in str(location)
        see_new_files(connection, root)
        only_the_guard_is_found(root, port)
    finally:
        connection.close()
    assert tools.trino().is_dir()


def only_the_guard_is_found(root: Path, port: int) -> None:
    """Trino is not where its users look: the guard is, and refuses what foreign pages ask."""
    config = (root / "trino" / "etc" / "config.properties").read_text()
    hidden = {
        key: re.search(rf"^{key}=(.*)$", config, re.MULTILINE)[1]
        for key in ("node.bind-ip", "http-server.http.port")
    }
    host, hidden_port = hidden["node.bind-ip"], int(hidden["http-server.http.port"])
    socket.create_connection((host, hidden_port), 10).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", hidden_port), 10)
    commands = processes_of(root)
    assert commands
    assert not [line for line in commands if host in line]
    for foreign in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/statement",
            data=b"SELECT 1",
            headers={"X-Trino-User": "page", **foreign},
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=30)
        assert refused.value.code == 403
        refused.value.close()


def see_new_files(connection: trino_client.dbapi.Connection, root: Path) -> None:
    """A file added to a directory that was read before is in the next answer."""
    folder = root / "fragments" / "j"
    folder.mkdir(parents=True)
    (folder / "a.raw").write_text("one\n")
    query(connection, "CREATE SCHEMA hive.raw")
    query(
        connection,
        "CREATE TABLE hive.raw.lines (line varchar) WITH (format = 'TEXTFILE', "
        f"external_location = '{folder.as_uri()}')",
    )
    assert query(connection, "SELECT count(*) FROM hive.raw.lines") == [[1]]
    (folder / "b.raw").write_text("two\nthree\n")
    assert query(connection, "SELECT count(*) FROM hive.raw.lines") == [[3]]


def query(connection: trino_client.dbapi.Connection, sql: str) -> list[list[object]]:
    cursor = connection.cursor()
    cursor.execute(sql)
    return [list(row) for row in cursor.fetchall()]
