"""`gazette up --light`, its extension in place, and commands that find the platform by themselves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from gazette_platform.hive import MetastoreClient
from gazette_platform.platform import tools
from gazette_platform.testing.waiting import patient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(300)]

START_TIMEOUT_S = 420
JOURNAL = """
name: light/events
replication: 1
labels:
  - {name: content-type, value: application/x-ndjson}
fragment:
  length: 1048576
  compression_codec: GZIP
  stores: [file:///]
  refresh_interval: 1m0s
"""
TABLE = """
name: light.events
selector: name=light/events
format: json
columns:
  - {name: n, type: bigint}
"""
NAMING = ("GAZETTE_ENDPOINTS", "BROKER_ADDRESS", "GAZETTE_BROKER_ADDRESS")


class Shell:
    """A user's shell, with a home and a working folder of its own, and no variable that names a platform."""

    def __init__(self, home: Path) -> None:
        self.home = self.folder = home
        self.environment = {k: v for k, v in os.environ.items() if k not in NAMING}
        folders = {"XDG_STATE_HOME": str(home / "state"), "XDG_DATA_HOME": str(home / "data")}
        self.environment |= folders

    @property
    def shared(self) -> Path:
        return self.home / "data/gazette"

    def run(
        self, program: str, *argv: object, code: int = 0, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", f"gazette_platform.cli.{program}", *map(str, argv)],
            cwd=self.folder,
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == code, (done.stdout, done.stderr)
        return done

    def gazette(self, *argv: object, code: int = 0) -> subprocess.CompletedProcess[str]:
        return self.run("gazette", *argv, code=code)

    def gazctl(
        self, *argv: object, code: int = 0, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        return self.run("gazctl", *argv, code=code, stdin=stdin)

    def pids(self, root: Path) -> dict[str, int]:
        return json.loads((root / "endpoints.json").read_text())["pids"]

    def publish(self, *lines: str) -> None:
        (self.folder / "journal.yaml").write_text(JOURNAL)
        self.gazctl("journals", "apply", "--specs", "journal.yaml")
        self.gazctl(
            "journals", "append", "-l", "name=light/events", stdin="".join(f"{x}\n" for x in lines)
        )

    def content(self) -> str:
        return self.gazctl("journals", "read", "-l", "name=light/events").stdout


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path.resolve())
    yield shell
    for root in (shell.shared, shell.home / "project/.gazette"):
        if root.is_dir():
            shell.gazette("down", "--root", root)


def test_light_platform_is_found_by_every_command(shell: Shell):
    began = time.monotonic()
    up = shell.gazette("up", "--light")
    print(f"ready after {time.monotonic() - began:.2f} s")
    assert set(shell.pids(shell.shared)) == {"supervisor", "etcd", "broker-1"}
    assert "Next:\n  gazctl journals create" in up.stderr
    note = f"using the platform in {shell.shared}\n"
    shell.publish('{"n": 1}', '{"n": 2}')
    print(f"first append after {time.monotonic() - began:.2f} s")
    listed = shell.gazctl("journals", "list")
    assert "light/events" in listed.stdout
    assert listed.stderr == note
    (shell.shared / "tables/events.yaml").write_text(TABLE)
    found = shell.gazctl("sql", "SELECT sum(n) AS total FROM light.events", "-o", "json")
    assert json.loads(found.stdout) == {"total": 3}
    status = shell.gazette("status", "-o", "json")
    assert json.loads(status.stdout)["phase"] == "ready"
    assert status.stderr == note
    assert "serves at http" in shell.gazette("logs", "broker-1").stdout
    assert f"--- {shell.shared / 'logs/etcd.log'}" in shell.gazette("logs").stdout
    assert "there are broker-1, etcd" in shell.gazette("logs", "trino", code=1).stderr
    assert "export BROKER_ADDRESS=http://127.0.0.1:" in shell.gazette("env").stdout


def test_flags_ini_files_and_variables_win_over_the_platform_that_runs(shell: Shell):
    shell.gazette("up", "--light")
    listing = ("journals", "list")
    flag = shell.gazctl(*listing, "--broker.address=http://127.0.0.1:1", code=1).stderr
    (shell.folder / "gazctl.ini").write_text("[Broker]\nAddress = http://127.0.0.1:2\n")
    ini = shell.gazctl(*listing, code=1).stderr
    (shell.folder / "gazctl.ini").unlink()
    shell.environment["BROKER_ADDRESS"] = "http://127.0.0.1:3"
    variable = shell.gazctl(*listing, code=1).stderr
    for number, said in enumerate((flag, ini, variable), 1):
        assert f"broker http://127.0.0.1:{number} is not reachable" in said
        assert "platform" not in said


def test_platform_that_stopped_is_named_with_the_next_step(shell: Shell):
    said = shell.gazctl("journals", "list", code=1).stderr
    assert "no platform runs: start one with `gazette up --light`" in said
    shell.gazette("up", "--light")
    shell.gazette("down")
    assert f"nothing runs in {shell.shared}" in shell.gazette("down").stdout
    said = shell.gazctl("journals", "list", code=1).stderr
    assert f"the platform in {shell.shared} is not running: start it with `gazette up`" in said
    said = shell.gazette("status", code=1).stdout
    assert f"it is not running: start it with `gazette up --root {shell.shared}`" in said
    assert "no platform is up in" in shell.gazette("env", code=1).stderr


def test_two_platforms_run_at_once_and_each_folder_has_its_own(shell: Shell):
    shell.gazette("up", "--light")
    shell.publish('{"n": 1}')
    project = shell.home / "project"
    (project / ".gazette").mkdir(parents=True)
    shell.folder = project
    shell.gazette("up", "--light")
    listed = shell.gazctl("journals", "list")
    assert "light/events" not in listed.stdout
    note = f"using the platform in {project / '.gazette'} (another one runs in {shell.shared})\n"
    assert listed.stderr.startswith(note)
    shell.publish('{"n": 2}')
    assert shell.content() == '{"n": 2}\n'
    shell.folder = shell.home
    # The last one that was started, for those who are in neither folder.
    assert shell.content() == '{"n": 2}\n'
    shell.gazette("down", "--root", project / ".gazette")
    assert shell.content() == '{"n": 1}\n'
    shell.folder = project
    said = shell.gazctl("journals", "list", code=1).stderr
    assert f"the platform in {project / '.gazette'} is not running" in said


@pytest.mark.hive
def test_light_platform_is_extended_in_place(shell: Shell):
    shell.gazette("up", "--light")
    shell.publish('{"n": 1}')
    before = shell.pids(shell.shared)
    up = shell.gazette("up", "--without", "trino,dagster")
    after = shell.pids(shell.shared)
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) == {"metastore", "typed"}
    assert "etcd" not in up.stderr.partition("gazette platform")[0].replace(str(shell.shared), "")
    assert "metastore: ready after" in up.stderr
    assert "gazctl lake list" in up.stderr
    assert shell.content() == '{"n": 1}\n'
    endpoints = json.loads((shell.shared / "endpoints.json").read_text())
    with MetastoreClient(endpoints["metastore"]).connect() as session:
        assert list(session.databases()) == ["default"]
    shell.gazctl("lake", "list")
    assert shell.pids(shell.shared) == after
    said = shell.gazette("up", "--brokers", 3, code=1).stderr
    assert "would change broker-1" in said
    shell.gazette("up", "--light")
    assert shell.pids(shell.shared) == after


@pytest.mark.hive
def test_extension_that_fails_shows_why_and_leaves_the_platform_alone(shell: Shell):
    shell.gazette("up", "--light")
    before = shell.pids(shell.shared)
    broken = shell.shared / "metastore"
    broken.rmdir()
    broken.write_text("not a folder")
    said = shell.gazette("up", "--without", "trino,dagster", code=1).stderr
    assert "gazette: error: " in said
    assert "broker-1: " not in said
    assert "Traceback" not in said
    assert shell.pids(shell.shared) == before
    shell.gazette("status")
    broken.unlink()
    shell.gazette("up", "--without", "trino,dagster")
    assert {name: shell.pids(shell.shared)[name] for name in before} == before


def test_start_that_fails_shows_the_reason_alone(shell: Shell):
    (shell.shared / "etcd/data").mkdir(parents=True)
    (shell.shared / "etcd/data/member").write_text("not a folder")
    said = shell.gazette("up", "--light", code=1).stderr
    lines = said.splitlines()
    assert lines[0] == f"the platform is in {shell.shared}"
    assert lines[-1].startswith("gazette: error: etcd exited with code 1")
    assert "stopped" not in said
    assert "stopping" not in said
    assert "broker-1" not in said


SPARK = """
from gazette_platform.lake.engines.duckdb import connect
from gazette_platform.spark.source import register
from pyspark.sql import SparkSession
with connect() as sql:
    print(sql.execute("SELECT sum(n) FROM light.events").fetchall())
spark = SparkSession.builder.master("local[1]").getOrCreate()
register(spark)
print(spark.read.format("gazette").option("path", "light/").load().count())
"""


@pytest.mark.spark
def test_programs_find_the_platform_that_runs(shell: Shell):
    shell.gazette("up", "--light")
    shell.publish('{"n": 1}', '{"n": 2}')
    (shell.shared / "tables/events.yaml").write_text(TABLE)
    java = {"JAVA_HOME": str(tools.java(21)), "PYSPARK_PYTHON": sys.executable}
    java["SPARK_LOCAL_IP"] = "127.0.0.1"
    done = subprocess.run(
        [sys.executable, "-c", SPARK],
        cwd=shell.folder,
        env=shell.environment | java,
        capture_output=True,
        text=True,
        timeout=patient(100),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["[(3,)]", "2"], (done.stdout, done.stderr)
    assert f"using the platform in {shell.shared}" in done.stderr
