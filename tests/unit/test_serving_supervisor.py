"""The supervisor of several processes, with small real ones: readiness, restarts, and how all end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest

from gazette_platform.errors import SetupError
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.serving.supervisor import Member, Supervision, Supervisor
from gazette_platform.testing.waiting import eventually, patient

if TYPE_CHECKING:
    from pathlib import Path

HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))

# It serves once a file named after it exists, and writes down the orders that it gets.
MEMBER = """
import os, socket, sys
from gazette_platform.testing.waiting import wait_until
folder, name = sys.argv[1:]
line = socket.socket(fileno=os.dup(0))
file = line.makefile("rb")
task = file.read(int.from_bytes(file.read(8)))
print("task", task.decode(), flush=True)
if task == b"fails":
    sys.exit(3)
wait_until(lambda: os.path.exists(f"{folder}/{name}"), timeout_s=60)
line.sendall(b"serves\\n")
for order in file:
    print("order", order.decode().strip(), flush=True)
    if order == b"metrics\\n":
        page = b"# TYPE n counter\\nn_total 2.0\\n"
        line.sendall(b"metrics %d\\n" % len(page) + page)
    elif task != b"stays":
        line.sendall(b"leaves\\n")
        sys.exit(5 if task == b"fails late" else 0)
"""


def plan(folder: Path, *tasks: bytes) -> Supervision:
    return Supervision(
        members=[Member(f"m-{number}", task) for number, task in enumerate(tasks)],
        command=(sys.executable, "-c", MEMBER, str(folder)),
        is_json=False,
        host="127.0.0.1",
        port=0,
    )


@contextlib.asynccontextmanager
async def running(folder: Path, *tasks: bytes):
    """A supervisor whose processes all serve; what is left of them is killed."""
    supervisor = Supervisor(plan(folder, *tasks))
    for number in range(len(tasks)):
        (folder / f"m-{number}").touch()
    try:
        await asyncio.wait_for(supervisor.start(), patient(20))
        yield supervisor
    finally:
        supervisor._kill()
        with contextlib.suppress(SetupError):
            await supervisor.drain()


async def asked(supervisor: Supervisor, path: str) -> tuple[int, str]:
    """The status and the body of a page."""

    def ask() -> tuple[int, str]:
        url = f"http://127.0.0.1:{supervisor.port}/debug/{path}"
        try:
            with HTTP.open(url, timeout=patient(10)) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as err:
            return err.code, err.read().decode()

    return await asyncio.to_thread(ask)


async def test_ready_once_each_process_serves(tmp_path):
    supervisor = Supervisor(plan(tmp_path, b"a", b"b"))
    starting = TaskGroup("test").spawn(supervisor.start())
    try:
        (tmp_path / "m-0").touch()
        unready = (503, "starting or draining: m-1\n")
        await eventually(lambda: supervisor.port)
        while (found := await asked(supervisor, "ready")) != unready:
            assert found == (503, "starting or draining: m-0, m-1\n")
        assert not starting.done()
        (tmp_path / "m-1").touch()
        await asyncio.wait_for(starting, patient(20))
        assert await asked(supervisor, "ready") == (200, "ready\n")
    finally:
        starting.cancel()
        await supervisor.abandon()


async def test_not_ready_while_a_process_starts_again(tmp_path, capfd):
    async with running(tmp_path, b"a", b"b") as supervisor:
        (tmp_path / "m-1").unlink()
        former = supervisor._running["m-1"]
        os.kill(former._popen.pid, signal.SIGKILL)
        await eventually(lambda: supervisor._running.get("m-1") not in {None, former})
        assert await asked(supervisor, "ready") == (503, "starting or draining: m-1\n")
        # The counts of the former run had not been asked for; the other process still counts.
        assert (await asked(supervisor, "metrics"))[1].endswith("n_total 2.0\n")
        (tmp_path / "m-1").touch()
        await eventually(lambda: _is_ready(supervisor))
        assert (await asked(supervisor, "metrics"))[1].endswith("n_total 4.0\n")
        await supervisor.drain()
    lines = capfd.readouterr().err.splitlines()
    assert lines.count("m-1: task b") == 2
    assert lines.count("m-0: order leave") == 1


async def _is_ready(supervisor):
    return (await asked(supervisor, "ready"))[0] == 200


async def test_a_process_that_ends_before_all_serve_ends_the_start(tmp_path, capfd):
    supervisor = Supervisor(plan(tmp_path, b"a", b"fails"))
    (tmp_path / "m-0").touch()
    with pytest.raises(SetupError, match="process m-1 exited with code 3 before all served"):
        await asyncio.wait_for(supervisor.start(), patient(20))
    await supervisor.abandon()
    assert "m-0: order leave" in capfd.readouterr().err
    assert not supervisor._running


async def test_a_program_that_is_not_there_is_named(tmp_path):
    found = plan(tmp_path, b"a")
    missing = Supervision(
        members=found.members, command=("/nowhere",), is_json=False, host="127.0.0.1", port=0
    )
    supervisor = Supervisor(missing)
    with pytest.raises(SetupError, match="cannot start m-0: /nowhere: No such file"):
        await asyncio.wait_for(supervisor.start(), patient(20))
    await supervisor.abandon()


async def test_a_process_that_fails_while_it_leaves_is_named(tmp_path):
    async with running(tmp_path, b"a", b"fails late") as supervisor:
        with pytest.raises(SetupError, match="m-1 exited with code 5"):
            await supervisor.drain()


async def test_a_process_that_does_not_leave_is_killed_when_it_hurries(
    tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr("gazette_platform.serving.supervisor.HURRIED_S", 0.1)
    async with running(tmp_path, b"stays", b"a") as supervisor:
        leaving = TaskGroup("test").spawn(supervisor.drain())
        await eventually(lambda: list(supervisor._running) == ["m-0"])
        assert not leaving.done()
        supervisor.hurry()
        with pytest.raises(SetupError, match="m-0 was killed by SIGKILL"):
            await asyncio.wait_for(leaving, patient(20))
    assert "m-0: order hurry" in capfd.readouterr().err


async def test_a_process_that_does_not_answer_is_left_out_of_the_page(tmp_path, monkeypatch):
    async with running(tmp_path, b"a", b"b") as supervisor:
        stopped = supervisor._running["m-1"]._popen
        os.kill(stopped.pid, signal.SIGSTOP)
        monkeypatch.setattr("gazette_platform.serving.supervisor._PAGE_S", 0.2)
        status, page = await asked(supervisor, "metrics")
        assert (status, page.endswith("n_total 2.0\n")) == (200, True)
        os.kill(stopped.pid, signal.SIGCONT)
