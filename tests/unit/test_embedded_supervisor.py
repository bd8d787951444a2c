"""The supervisor over components that are small scripts."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from gazette_platform.embedded import supervisor as supervising
from gazette_platform.embedded.component import Component
from gazette_platform.embedded.control import platform_state, stop_platform
from gazette_platform.embedded.endpoints import ComponentState, PlatformState
from gazette_platform.embedded.layout import PlatformDir
from gazette_platform.embedded.platform import PlatformOptions, components_of
from gazette_platform.embedded.process import ProcessId, log_tail
from gazette_platform.embedded.supervisor import ComponentFailed, Supervisor, remove_leftovers
from gazette_platform.errors import SetupError
from gazette_platform.testing.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gazette_platform.embedded.endpoints import Endpoints

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


def test_endpoints_and_state_tell_the_pids_while_it_runs(stage: Stage):
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


def test_component_that_dies_later_ends_the_platform(stage: Stage):
    stage.add("victim")
    stage.add("other")

    def kill(endpoints: Endpoints) -> None:
        os.kill(endpoints.pids["victim"], signal.SIGKILL)

    with pytest.raises(ComponentFailed, match="victim was killed by SIGKILL"):
        stage.run(Recorder(kill))
    assert stage.events[-1] == "stop other"


def test_a_component_that_is_to_be_restarted_and_ends_is_started_again_and_nothing_stops(
    stage: Stage,
):
    stage.add("victim", is_restarted=True)
    stage.add("other")

    def kill(endpoints: Endpoints) -> None:
        os.kill(endpoints.pids["victim"], signal.SIGKILL)
        threading.Thread(target=look, args=(endpoints.pids["victim"],)).start()

    def look(former: int) -> None:
        def is_back() -> bool:
            pid = json.loads(stage.layout.endpoints.read_text())["pids"]["victim"]
            return pid != former and stage.events.count("start victim") == 2

        try:
            wait_until(is_back)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    stage.run(Recorder(kill))
    assert stage.events.count("start victim") == 2
    assert stage.events.count("start other") == stage.events.count("stop other") == 1
    assert "stop victim" in stage.events


def test_a_component_that_is_to_be_restarted_and_ends_again_and_again_ends_the_platform(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(supervising, "_RESTART_DELAYS_S", (0.0, 0.1, 0.2))
    stage.add("victim", FAILING, is_restarted=True)
    stage.add("other")
    with pytest.raises(ComponentFailed, match="victim exited with code 3"):
        stage.run(Recorder(lambda _endpoints: stage.let_fail("victim")))
    assert stage.events.count("start victim") == 4
    told = [record.message for record in caplog.records if "starting it again" in record.message]
    assert [message.split(", ")[0] for message in told] == [
        f"victim exited with code 3: starting it again in {delay} s"
        for delay in ("0", "0.1", "0.2")
    ]
    assert str(stage.layout.logs / "victim.log") in told[0]


def test_a_component_that_ends_between_two_looks_at_it_is_restarted(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(supervising, "_RESTART_DELAYS_S", (0.0,))
    looked_too_early: set[int] = set()

    class EndsAfterLook(supervising.Child):
        """The first look at a process that has ended comes just before it ends."""

        def exit_code(self) -> int | None:
            code = super().exit_code()
            if code is None or self.id.pid in looked_too_early:
                return code
            looked_too_early.add(self.id.pid)
            return None

    monkeypatch.setattr(supervising, "Child", EndsAfterLook)
    stage.add("victim", FAILING, is_restarted=True)
    with pytest.raises(ComponentFailed, match="victim exited with code 3"):
        stage.run(Recorder(lambda _endpoints: stage.let_fail("victim")))
    assert stage.events.count("start victim") == 2


def test_a_lone_broker_is_restarted(tmp_path: Path):
    """As one of several is: clients wait for it, and what it persisted is still there."""
    layout = PlatformDir.at(tmp_path)
    ports = {"etcd": 1, "etcd-peer": 2, "broker-1": 3, "broker-1-http": 4}
    options = PlatformOptions(without=frozenset({"metastore", "trino", "dagster"}))
    found = {each.name: each.is_restarted for each in components_of(layout, options, ports)}
    assert found == {"etcd": False, "broker-1": True}


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
from gazette_platform.embedded.process import Child
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
