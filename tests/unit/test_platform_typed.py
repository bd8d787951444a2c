"""What writes typed tables without end under `gazette up`: started when a spec asks for it, stopped when none does."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from gazette_platform.platform import typed_writer
from gazette_platform.platform.layout import PlatformDir
from gazette_platform.platform.platform import PlatformOptions, components_of, upgraded
from gazette_platform.platform.supervisor import outdated
from gazette_platform.platform.typed_writer import is_wanted, watch
from gazette_platform.testing.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

SPEC = """\
name: s.orders
selector: name:prefix=orders/
format: json
columns: [{name: id, type: bigint}]
typed:
  uuid: none
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "tables"
    made.mkdir()
    return made


def write(folder: Path, more: str = "") -> None:
    (folder / "orders.yaml").write_text(SPEC + more)


def test_only_a_good_spec_that_says_every_asks_for_it(folder: Path):
    assert not is_wanted(folder)
    write(folder)
    assert not is_wanted(folder)
    write(folder, "  # not every\n")
    assert not is_wanted(folder)
    write(folder, "  every: 30s\n")
    assert is_wanted(folder)
    write(folder, "  every: never\n")
    assert not is_wanted(folder)


def play(folder: Path, script: str, steps) -> list[str]:
    """What the command left behind while `steps` went on in another thread, and it was watched in this one."""
    stop = threading.Event()
    marks = folder.parent / "marks"

    def told() -> list[str]:
        return marks.read_text().split() if marks.exists() else []

    def run() -> None:
        try:
            steps(told)
        finally:
            stop.set()

    thread = threading.Thread(target=run)
    thread.start()
    command = ("/bin/sh", "-c", script.replace("MARKS", str(marks)))
    try:
        watch(folder, folder.parent / "log", stop, command=command, look_s=0.1, pause_s=0.05)
    finally:
        stop.set()
        thread.join()
    return told()


ENDLESS = (
    "trap 'echo ended >> MARKS; exit 0' TERM; echo began >> MARKS; while :; do sleep 0.05; done"
)


def test_typed_writer_runs_while_a_spec_asks_for_it_and_ends_on_request(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    looks: list[Path] = []

    def look(at: Path) -> bool:
        looks.append(at)
        return is_wanted(at)

    monkeypatch.setattr(typed_writer, "is_wanted", look)

    def steps(told) -> None:
        write(folder)
        seen = len(looks)
        wait_until(lambda: len(looks) > seen + 2)
        assert told() == []
        write(folder, "  every: 30s\n")
        wait_until(lambda: told() == ["began"])
        write(folder)
        wait_until(lambda: told() == ["began", "ended"])
        write(folder, "  every: 30s\n")
        wait_until(lambda: told() == ["began", "ended", "began"])

    assert play(folder, ENDLESS, steps) == ["began", "ended", "began", "ended"]


def test_one_that_ends_by_itself_is_started_again_later_each_time(folder: Path, capfd):
    write(folder, "  every: 30s\n")
    play(folder, "echo began >> MARKS; exit 3", lambda told: wait_until(lambda: len(told()) >= 3))
    said = capfd.readouterr().err
    assert "exited with code 3: it is started again in 0.05 s" in said
    assert "it is started again in 0.1 s" in said


def test_it_is_part_of_a_platform_that_has_brokers_and_a_catalog(tmp_path: Path):
    layout = PlatformDir.at(tmp_path)
    ports = {"etcd": 1, "etcd-peer": 2, "broker-1": 3, "broker-1-http": 4}

    def names(*without: str, **more: str) -> list[str]:
        left_out = frozenset({"metastore", "trino", "dagster", *without})
        options = PlatformOptions(without=left_out, **more)
        return [each.name for each in components_of(layout, options, ports)]

    catalog = {"catalog": "http://catalog:8181"}
    assert names(**catalog) == ["etcd", "broker-1", "typed"]
    assert names() == ["etcd", "broker-1"]
    assert names("typed", **catalog) == ["etcd", "broker-1"]
    assert names("broker", **catalog) == ["etcd"]


def test_platform_that_gains_trino_restarts_only_dagster_and_the_typed_writer(tmp_path: Path):
    layout = PlatformDir.at(tmp_path)
    layout.make()
    ports = dict.fromkeys(
        ("etcd", "etcd-peer", "broker-1", "broker-1-http", "dagster", "dagster-code"), 1
    )
    without = frozenset({"metastore", "trino"})
    former = PlatformOptions(without=without, catalog="http://catalog:8181")
    asked = replace(former, without=without - {"trino"}, trino="http://trino:8080")
    running = components_of(layout, former, ports)
    changed = outdated(running, components_of(layout, upgraded(former, asked), ports))
    assert {each.name for each in changed} == {"typed", "dagster-code", "dagster", "dagster-daemon"}
    assert all(each.restartable for each in changed)
