"""The supervisor over components that are small scripts.

Long because every phase of a platform, from start to stop, is tried with the same real processes.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import typer

from gazette_platform.cli.program import run
from gazette_platform.errors import LakeError, SetupError
from gazette_platform.ops.process import ProcessId
from gazette_platform.platform import supervisor as supervising
from gazette_platform.platform.component import Component, log_tail
from gazette_platform.platform.control import extend, platform_state, reason_in, stop_platform
from gazette_platform.platform.layout import ComponentState, PlatformDir, PlatformState
from gazette_platform.platform.platform import NOT_LIGHT, PlatformOptions, upgraded
from gazette_platform.platform.supervisor import ComponentFailed, Supervisor, remove_leftovers
from gazette_platform.testing.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gazette_platform.platform.layout import Endpoints

OPTIONS = PlatformOptions(without=frozenset({"broker", "metastore", "trino", "dagster"}))
# Say when they came up and when they were asked to stop, in one file that shows the order.
SERVER = """
trap 'echo "stop {name}" >> {events}; exit 0' TERM
echo "start {name}" >> {events}
touch {ready}
while :; do sleep 0.02; done
"""
# End by themselves, but not before the test allows it.
FAILING = """
echo "start {name}" >> {events}
touch {ready}
until [ -e {ready}.fails ]; do sleep 0.02; done
exit 3
"""


class Recorder:
    """An observer that may act when the platform is ready."""

    def __init__(self, when_ready: Callable[[Endpoints], None] | None = None) -> None:
        self.phases: list[str] = []
        self.when_ready = when_ready

    def changed(self, state: PlatformState) -> None:
        if self.phases[-1:] != [state.phase]:
            self.phases.append(state.phase)

    def ready(self, endpoints: Endpoints) -> None:
        assert self.when_ready is not None
        self.when_ready(endpoints)


class Stage:
    """A folder, and components in it."""

    def __init__(self, root: Path) -> None:
        self.layout = PlatformDir.at(root)
        self.components: list[Component] = []

    @property
    def events(self) -> list[str]:
        return (self.layout.root / "events").read_text().splitlines()

    def add(self, name: str, script: str = SERVER, **options: object) -> None:
        ready = self.layout.root / f"{name}.up"
        text = script.format(name=name, events=self.layout.root / "events", ready=ready)
        self.components.append(
            Component(
                name=name,
                command=("/bin/sh", "-c", text),
                **{"ready": ready.exists, "stop_timeout_s": 5.0, **options},
            )
        )

    def let_fail(self, name: str) -> None:
        (self.layout.root / f"{name}.up.fails").touch()

    def run(self, observer: Recorder) -> None:
        supervisor = Supervisor(
            self.layout, OPTIONS, observer, build=lambda *_: tuple(self.components)
        )
        if observer.when_ready is None:
            observer.when_ready = lambda _endpoints: supervisor.stop()
        supervisor.run()


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_components_start_after_what_they_require_and_stop_before(stage: Stage):
    stage.add("last", requires=("middle",))
    stage.add("first")
    stage.add("middle", requires=("first",))
    observer = Recorder()
    stage.run(observer)
    assert stage.events == [
        *("start first", "start middle", "start last"),
        *("stop last", "stop middle", "stop first"),
    ]
    assert observer.phases == ["installing", "starting", "ready", "stopping", "stopped"]
    assert not stage.layout.endpoints.exists()


def test_a_component_that_is_only_used_need_not_be_ready_but_is_stopped_later(stage: Stage):
    stage.add("caller", uses=("called",))
    stage.add("called")
    stage.run(Recorder())
    assert stage.events[2:] == ["stop caller", "stop called"]


def test_endpoints_and_state_show_the_pids_while_it_runs(stage: Stage):
    stage.add("server")
    seen: list[dict[str, object]] = []

    def look(endpoints: Endpoints) -> None:
        raw = json.loads(stage.layout.endpoints.read_text())
        state = platform_state(stage.layout)
        assert state.phase == "ready"
        assert state.components["server"].pid == endpoints.pids["server"]
        assert raw["pids"]["supervisor"] == os.getpid()
        assert raw["etcd"].startswith("http://127.0.0.1:")
        seen.append(raw)
        os.kill(os.getpid(), signal.SIGTERM)

    stage.run(Recorder(look))
    assert seen
    assert not ProcessId.of(seen[0]["pids"]["server"]).is_alive()  # type: ignore[index]


def test_component_that_dies_at_start_is_named_and_the_rest_is_stopped(stage: Stage):
    stage.add("good")
    stage.add("bad", "echo port is taken by somebody; exit 3", ready=lambda: False)
    with pytest.raises(ComponentFailed, match="bad exited with code 3") as caught:
        stage.run(Recorder())
    assert "port is taken by somebody" in log_tail(caught.value.log)
    with caught.value.log.open("a") as log:
        log.write("\n--- bad again\nsecond words\n")
    assert log_tail(caught.value.log, of_last_run=True) == "second words"
    state = PlatformState.load(stage.layout.state)
    assert state.phase == "failed"
    assert {n: c.state for n, c in state.components.items()} == {"good": "stopped", "bad": "failed"}


def in_background(look: Callable[[], object]) -> None:
    """Look at a platform that runs in this thread, and end it then."""

    def work() -> None:
        try:
            look()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=work).start()


class Added:
    """What a later `gazette up` asks of the platform of a stage, and what becomes of it."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.server = 0
        self.refusal = ""
        self.endpoints: Endpoints | None = None
        self.left: PlatformState | None = None

    def ask(self, options: PlatformOptions = OPTIONS) -> None:
        layout = self.stage.layout
        self.server = PlatformState.load(layout.state).components["server"].pid
        try:
            self.endpoints = extend(layout, options, Recorder(lambda _endpoints: None))
        except SetupError as error:
            self.refusal = str(error)
        self.left = platform_state(layout)
        assert self.left.phase == "ready"
        assert self.left.components["server"].pid == self.server

    @property
    def states(self) -> dict[str, str]:
        assert self.left is not None
        return {name: component.state for name, component in self.left.components.items()}


def extended(stage: Stage, change: Callable[[], None], options: PlatformOptions = OPTIONS) -> Added:
    added = Added(stage)

    def later() -> None:
        change()
        added.ask(options)

    stage.run(Recorder(lambda _endpoints: in_background(later)))
    return added


def test_more_components_start_beside_those_that_run(stage: Stage):
    stage.add("server")

    def more() -> None:
        stage.add("second", requires=("third",))
        stage.add("third", requires=("server",))

    added = extended(stage, more)
    assert added.refusal == ""
    assert added.states == {"server": "ready", "second": "ready", "third": "ready"}
    assert added.endpoints is not None
    assert set(added.endpoints.pids) == {"supervisor", "server", "second", "third"}
    assert stage.events == [
        *("start server", "start third", "start second"),
        *("stop second", "stop third", "stop server"),
    ]


def test_added_component_that_fails_leaves_what_runs_alone(stage: Stage):
    stage.add("server")

    def more() -> None:
        stage.add("good", requires=("server",))
        stage.add("bad", "exit 3", ready=lambda: False, requires=("good",))

    added = extended(stage, more)
    assert added.refusal.startswith("bad exited with code 3 (its log is ")
    assert added.states == {"server": "ready"}
    assert stage.events == ["start server", "start good", "stop good", "stop server"]


def test_nothing_is_added_that_would_change_what_runs(stage: Stage):
    stage.add("server")

    def change() -> None:
        stage.components.clear()
        stage.add("server", "exit 1")
        stage.add("second")

    added = extended(stage, change)
    assert "would change server, which cannot be changed while the platform runs" in added.refusal
    assert added.states == {"server": "ready"}


def test_component_that_may_restart_gets_its_new_options(stage: Stage):
    stage.add("server")
    stage.add("code", requires=("server",), restartable=True)
    stage.add("web", requires=("code",), restartable=True)

    def change() -> None:
        pids = PlatformState.load(stage.layout.state).components
        assert pids["web"].pid
        stage.components[1:] = [
            replace(each, environment={"GAZETTE_TRINO_URI": "http://t:1"})
            for each in stage.components[1:]
        ]
        stage.add("trino", requires=("server",))

    added = extended(stage, change)
    assert added.refusal == ""
    assert added.states == dict.fromkeys(("server", "code", "web", "trino"), "ready")
    assert stage.events[:8] == [
        *("start server", "start code", "start web", "start trino"),
        *("stop web", "stop code", "start code", "start web"),
    ]


def test_failed_addition_restarts_nothing(stage: Stage):
    stage.add("server")
    stage.add("web", requires=("server",), restartable=True)

    def change() -> None:
        stage.components[1] = replace(stage.components[1], environment={"A": "b"})
        stage.add("bad", "exit 3", ready=lambda: False)

    added = extended(stage, change)
    assert added.refusal.startswith("bad exited with code 3")
    assert added.states == {"server": "ready", "web": "ready"}
    assert stage.events == ["start server", "start web", "stop web", "stop server"]


def test_port_of_what_runs_cannot_be_changed(stage: Stage):
    stage.add("server")
    other = replace(OPTIONS, ports={"etcd": 1})
    added = extended(stage, lambda: None, other)
    assert "would change the port of etcd" in added.refusal


def test_platform_that_has_all_already_is_ready_at_once(stage: Stage):
    stage.add("server")
    added = extended(stage, lambda: None)
    assert added.refusal == ""
    assert added.states == {"server": "ready"}


@pytest.mark.parametrize(
    ("former", "asked", "then"),
    [
        ({"without": NOT_LIGHT}, {}, {}),
        ({"without": NOT_LIGHT}, {"without": {"trino"}}, {"without": {"trino"}}),
        ({}, {"without": NOT_LIGHT}, {}),
        ({"brokers": 3, "store": "s3"}, {}, {"brokers": 3, "store": "s3"}),
        ({"brokers": 3}, {"brokers": 2}, {"brokers": 2}),
        ({"ports": {"etcd": 1}}, {"ports": {"trino": 2}}, {"ports": {"etcd": 1, "trino": 2}}),
        (
            {"without": NOT_LIGHT},
            {"metastore": "thrift://m:1"},
            {"metastore": "thrift://m:1"},
        ),
    ],
)
def test_options_of_a_platform_that_is_extended(former, asked, then):
    def options(raw):
        return PlatformOptions(**raw | {"without": frozenset(raw.get("without", ()))})

    assert upgraded(options(former), options(asked)) == options(then)


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("", ""),
        ("etcd: starting\nerror: etcd exited with code 1\n", "etcd exited with code 1"),
        ("error: cannot read x: error: y\n", "cannot read x: error: y"),
        ("etcd: starting\nTraceback\n  File\nKeyError: 'z'\n", "KeyError: 'z'"),
    ],
)
def test_reason_of_a_failure_is_reported_without_its_progress(log, reason):
    assert reason_in(log) == reason


def test_a_component_that_dies_later_is_started_again_and_nothing_stops(stage: Stage):
    stage.add("victim")
    stage.add("other", requires=("victim",))
    away: list[ComponentState] = []

    def look(former: int) -> None:
        def is_back() -> bool:
            state = platform_state(stage.layout).components["victim"]
            if state.away_since:
                away.append(state)
            pid = json.loads(stage.layout.endpoints.read_text())["pids"]["victim"]
            return pid != former and state.state == "ready"

        wait_until(is_back, poll_s=0.01)
        assert platform_state(stage.layout).components["victim"].away_since == 0

    def kill(endpoints: Endpoints) -> None:
        pid = endpoints.pids["victim"]
        os.kill(pid, signal.SIGKILL)
        in_background(lambda: look(pid))

    stage.run(Recorder(kill))
    assert stage.events.count("start victim") == 2
    assert stage.events.count("start other") == stage.events.count("stop other") == 1
    assert "stop victim" in stage.events
    assert {(one.state, one.why) for one in away} == {("starting", "was killed by SIGKILL")}


def test_errors_of_lake_commands_say_what_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    state = PlatformState(phase="ready")
    state.components["metastore"] = ComponentState(away_since=1_700_000_000.0, why="was killed")
    layout = PlatformDir.at(tmp_path)
    state.save(layout.state)
    monkeypatch.setenv("GAZETTE_ENDPOINTS", str(layout.endpoints))
    app = typer.Typer()

    @app.command()
    def list_tables() -> None:
        raise LakeError("cannot reach the Hive Metastore")

    assert run(app, "gazctl", []) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "cannot reach the Hive Metastore; metastore is away since 2023-11-14T22:13:20Z" in said


def test_a_component_that_ends_again_and_again_ends_nothing_else(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(supervising, "RESTART_STEPS_S", (0.0, 0.1, 0.2))
    stage.add("victim", FAILING)
    stage.add("other")

    def fail(_endpoints: Endpoints) -> None:
        stage.let_fail("victim")
        in_background(lambda: wait_until(lambda: stage.events.count("start victim") == 6))

    stage.run(Recorder(fail))
    assert stage.events.count("start other") == stage.events.count("stop other") == 1
    told = [record.message for record in caplog.records if "starting it again" in record.message]
    assert [message.split(", ")[0] for message in told[:5]] == [
        f"victim exited with code 3: starting it again in {delay} s"
        for delay in ("0", "0.1", "0.2", "0.2", "0.2")
    ]
    assert str(stage.layout.logs / "victim.log") in told[0]


def test_a_component_that_is_not_ready_again_in_time_is_started_once_more(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(supervising, "RESTART_STEPS_S", (0.0,))
    answers = [True, False, False, True]
    stage.add("victim", ready=lambda: answers[stage.events.count("start victim") - 1])

    def kill(endpoints: Endpoints) -> None:
        os.kill(endpoints.pids["victim"], signal.SIGKILL)

        def is_back() -> bool:
            state = platform_state(stage.layout).components["victim"]
            return stage.events.count("start victim") == 4 and state.state == "ready"

        in_background(lambda: wait_until(is_back))

    stage.components[0] = replace(stage.components[0], start_timeout_s=0.5)
    stage.run(Recorder(kill))
    assert stage.events.count("start victim") == 4


@pytest.mark.parametrize(
    "error", [SetupError("Dagster cannot load the code: it is not there"), KeyError("data")]
)
def test_a_component_that_cannot_say_whether_it_is_ready_ends_nothing_else(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, error: Exception
):
    """As a web server whose code servers were killed, too, and are not back yet."""
    monkeypatch.setattr(supervising, "RESTART_STEPS_S", (0.0,))
    stage.add("other")

    def ready() -> bool:
        if stage.events.count("start victim") in (2, 3):
            raise error
        return True

    stage.add("victim", ready=ready)

    def kill(endpoints: Endpoints) -> None:
        os.kill(endpoints.pids["victim"], signal.SIGKILL)

        def is_back() -> bool:
            state = platform_state(stage.layout).components["victim"]
            return stage.events.count("start victim") == 4 and state.state == "ready"

        in_background(lambda: wait_until(is_back))

    stage.run(Recorder(kill))
    assert stage.events.count("start other") == stage.events.count("stop other") == 1


def test_a_full_disk_ends_nothing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    stage.add("other")
    stage.add("victim", requires=("other",))
    save = PlatformState.save

    def fill(endpoints: Endpoints) -> None:
        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        def look() -> None:
            wait_until(lambda: stage.events.count("start victim") == 2)
            monkeypatch.setattr(PlatformState, "save", save)

        monkeypatch.setattr(PlatformState, "save", full)
        os.kill(endpoints.pids["victim"], signal.SIGKILL)
        in_background(look)

    stage.run(Recorder(fill))
    assert stage.events[-2:] == ["stop victim", "stop other"]
    assert stage.events.count("start other") == 1
    assert any("No space left on device" in one.message for one in caplog.records)


def test_a_component_whose_program_is_gone_is_tried_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(supervising, "RESTART_STEPS_S", (0.0, 0.05))
    program = stage.layout.root / "shell"
    stage.layout.root.mkdir(exist_ok=True)
    program.symlink_to("/bin/sh")
    stage.add("victim")
    stage.components[0] = replace(
        stage.components[0], command=(str(program), *stage.components[0].command[1:])
    )

    def lose(endpoints: Endpoints) -> None:
        program.unlink()
        os.kill(endpoints.pids["victim"], signal.SIGKILL)

        def look() -> None:
            def is_missed() -> bool:
                return "cannot start" in platform_state(stage.layout).components["victim"].why

            wait_until(is_missed)
            program.symlink_to("/bin/sh")
            wait_until(lambda: platform_state(stage.layout).components["victim"].state == "ready")

        in_background(look)

    stage.run(Recorder(lose))
    assert stage.events.count("start victim") == 2


def test_component_that_is_never_ready_is_given_up(stage: Stage):
    stage.add("slow", ready=lambda: False, start_timeout_s=0.2)
    with pytest.raises(ComponentFailed, match="slow was not ready within 0 s"):
        stage.run(Recorder())


def test_component_that_ignores_sigterm_is_killed_with_its_children(stage: Stage):
    script = "trap '' TERM; sleep 1000 & echo $! > {ready}; wait; sleep 1000"
    stage.add("deaf", script, stop_timeout_s=0.3)
    stage.run(Recorder())
    orphan = int((stage.layout.root / "deaf.up").read_text())
    wait_until(lambda: not ProcessId.of(orphan).is_alive(), timeout_s=5)


def test_program_that_does_not_exist_is_one_clear_error(stage: Stage):
    stage.components.append(
        Component(name="ghost", command=("/nonexistent/ghost",), ready=lambda: True)
    )
    with pytest.raises(SetupError, match="cannot start ghost: /nonexistent/ghost: No such file"):
        stage.run(Recorder())


def test_folder_has_one_supervisor(stage: Stage):
    stage.add("server")
    refused: list[str] = []

    def second(_endpoints: Endpoints) -> None:
        with pytest.raises(SetupError) as caught:
            Stage(stage.layout.root).run(Recorder())
        refused.append(str(caught.value))
        os.kill(os.getpid(), signal.SIGTERM)

    stage.run(Recorder(second))
    assert f"already runs in {stage.layout.root} (supervisor pid {os.getpid()})" in refused[0]


def test_stop_cleans_up_after_a_killed_supervisor_but_spares_strangers(stage: Stage):
    stage.layout.make()
    left = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    stranger = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    reaper = threading.Thread(target=left.wait)
    reaper.start()
    try:
        state = PlatformState(phase="ready", pid=stranger.pid, started=1)
        for name, pid, started in (
            ("left", left.pid, ProcessId.of(left.pid).started),
            ("stranger", stranger.pid, 1),  # the pid is used again: another start time
        ):
            state.components[name] = ComponentState(state="ready", pid=pid, started=started)
        state.save(stage.layout.state)
        assert platform_state(stage.layout).phase == "dead"
        assert stop_platform(stage.layout, Recorder())
        assert stranger.poll() is None
        assert not ProcessId.of(left.pid).is_alive()
        assert PlatformState.load(stage.layout.state).phase == "stopped"
        assert not stop_platform(stage.layout, Recorder())
    finally:
        for process in (left, stranger):
            process.kill()
        reaper.join()
        stranger.wait()


def test_what_a_platform_writes_is_not_for_all_users(tmp_path: Path):
    stage = Stage(tmp_path / "root")
    stage.add("etcd")
    former = os.umask(0o022)
    try:
        stage.run(Recorder())
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(former)
    modes = {
        path: path.stat().st_mode & 0o777
        for path in [stage.layout.root, *stage.layout.root.rglob("*")]
    }
    assert {path.name for path in modes} >= {"etcd.up", "etcd.log", "supervisor.json"}
    assert {path: oct(mode) for path, mode in modes.items() if mode & 0o027} == {}


def test_a_copy_of_its_folder_leaves_a_platform_running(stage: Stage, tmp_path: Path):
    stage.add("etcd")
    copy = PlatformDir.at(tmp_path / "copy")
    found: list[object] = []

    def when_ready(_: Endpoints) -> None:
        shutil.copytree(stage.layout.root, copy.root)
        state, copied = (PlatformState.load(one.state) for one in (stage.layout, copy))
        found.extend([copied.process.is_alive(), copied.ports == state.ports])
        remove_leftovers(copied)
        found.append(state.components["etcd"].process.is_alive())
        os.kill(os.getpid(), signal.SIGTERM)

    stage.run(Recorder(when_ready))
    assert found == [False, True, True]


def test_children_die_with_a_killed_parent(tmp_path: Path):
    script = f"""
from pathlib import Path
from gazette_platform.platform.component import Child
child = Child("c", ("sleep", "1000"), log=Path({str(tmp_path / "log")!r}), environment={{}}, folder=None)
print(child.id.pid, child.id.started, flush=True)
input()
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = ProcessId(*map(int, parent.stdout.readline().split()))
    assert child.is_alive()
    parent.kill()
    parent.communicate()
    wait_until(lambda: not child.is_alive(), timeout_s=5)
