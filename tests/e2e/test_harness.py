"""The hard end of a run stops what it started, also what its parents have left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gazette_platform.testing.waiting import patient, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.etcd]

# A run with an etcd and a process whose parent has ended. It never ends by itself; a stubborn one not even if asked to.
RUN = """
import asyncio, subprocess, sys
from pathlib import Path
from gazette_platform.testing.etcd import EtcdServer
from tests.harness import Harness

harness = Harness("trial", "seed=7", planned_s=float(sys.argv[2]), grace_s=1.0)
orphan = "import subprocess, sys; print(subprocess.Popen(['sleep', '600'], stdout=subprocess.DEVNULL).pid)"

async def never():
    harness.attach()
    with EtcdServer(Path(sys.argv[1])) as etcd:
        found = subprocess.run([sys.executable, "-c", orphan], stdout=subprocess.PIPE, text=True)
        print(etcd.pid, found.stdout.strip(), flush=True)
        harness.note("waiting for appends")
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if sys.argv[3] != "stubborn":
                    raise

sys.exit(harness.run(lambda: asyncio.run(never())))
"""


def is_gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize("kind", ["willing", "stubborn"])
def test_hard_end_stops_all_processes(etcd_binary, kind):
    ran = subprocess.run(
        [sys.executable, "-c", RUN, str(etcd_binary), "5", kind],
        capture_output=True,
        text=True,
        timeout=patient(60),
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        check=False,
    )
    pids, last = ran.stdout.splitlines()
    limit_s = patient(5)
    over = f"seed=7: not over after {limit_s:g} s; it was doing: waiting for appends"
    # A busy machine may have starved it.
    verdict, code = ("starved", 2) if ran.returncode == 2 else ("FAILED", 1)
    assert (last.startswith(f"trial: {verdict} {over}"), ran.returncode) == (True, code), ran
    assert "never" in ran.stderr  # the task that hangs
    assert [wait_until(lambda pid=pid: is_gone(pid)) for pid in pids.split()] == [True] * 2
