"""`gazette up` and `down` with real servers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from gazette_platform.hive import MetastoreClient
from gazette_platform.ops.process import ProcessId
from gazette_platform.platform.control import platform_state
from gazette_platform.platform.layout import PlatformDir
from gazette_platform.testing.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gazette_platform.platform.layout import ComponentState


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
    wait_until(lambda: not any(child.is_alive() for child in children))
    gazette("status", "--root", str(root), code=1)
    assert databases(str(up(root, "broker,dagster,trino")["metastore"])) == ["default"]


def test_a_metastore_that_dies_stops_nothing_and_comes_back(root: Path):
    endpoints = up(root, "dagster,trino")
    pids = endpoints["pids"]
    os.kill(pids["metastore"], signal.SIGKILL)

    def component() -> ComponentState:
        return platform_state(PlatformDir.at(root)).components["metastore"]

    wait_until(lambda: component().away_since > 0, timeout_s=30)
    shown = gazette("status", "--root", str(root), code=1).stdout
    assert "metastore is away since" in shown
    assert "(was killed by SIGKILL" in shown
    for name in ("etcd", "broker-1", "supervisor"):
        assert ProcessId.of(pids[name]).is_alive()
    wait_until(lambda: component().state == "ready", timeout_s=120)
    gazette("status", "--root", str(root))
    assert databases(str(endpoints["metastore"])) == ["default"]


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
