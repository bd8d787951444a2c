"""What Dagster's daemon makes of the settings of `gazette up`: limits of pools hold, sensors tick side by side.

And sensors know the cursors of others.
"""

import json
import os
import signal
import subprocess
import sys
from itertools import pairwise

import pytest
from dagster import DagsterInstance, DagsterRunStatus

from gazette_platform.assets.checks import CHECKS_POOL
from gazette_platform.platform.dagster import CODE_SERVER, dagster_components
from gazette_platform.testing.waiting import wait_until

ROLLUP_POOL = "iceberg.sums.by_country"
# Both of a machine that is several times slower.
DEADLINE_S = 720
BESIDE_S = 400
# Dagster gives a pool that it has never seen its limit only after the pass that launches the first runs of it, so
# a run that has both comes before the others.
# Each work says when it began and ended. That of the rollup, and the first one of a check, end only when both have
# begun: it is the pool that keeps the checks apart, not that only one run is made at a time.
DEFINITIONS = f'''
import time
from pathlib import Path

import dagster as dg

from gazette_platform.lake.raw.reconcile import Break
from gazette_platform.sensors.cursor import SensorCursor
from gazette_platform.sensors.fragments import former_cursors, former_retention
from gazette_platform.sensors.prunes import RetentionState
from gazette_platform.testing.waiting import block_for, wait_until

FOLDER = Path(__file__).parent / "work"


def job_of(name, pool, other):
    @dg.op(name=name, pool=pool)
    def work(context):
        mine = FOLDER / f"{{name}}-{{context.run_id}}"
        mine.with_suffix(".begun").write_text(str(time.time()))
        wait_until(lambda: list(FOLDER.glob(f"{{other}}-*.begun")), timeout_s={BESIDE_S})
        block_for(1)
        mine.with_suffix(".ended").write_text(str(time.time()))

    @dg.job(name=f"{{name}}_job", executor_def=dg.in_process_executor)
    def made():
        work()

    return made


check = job_of("check", "{CHECKS_POOL}", "rollup")
rollup = job_of("rollup", "{ROLLUP_POOL}", "check")


@dg.op(pool="{CHECKS_POOL}")
def first_check():
    pass


@dg.op(pool="{ROLLUP_POOL}")
def first_rollup():
    (FOLDER / "pools.known").touch()


@dg.job(executor_def=dg.in_process_executor)
def first():
    first_check()
    first_rollup()


@dg.sensor(
    jobs=[first, check, rollup],
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=2,
)
def ask(context):
    yield dg.RunRequest(run_key="first", job_name="first")
    if not (FOLDER / "pools.known").exists():
        return
    for n in range(3):
        yield dg.RunRequest(run_key=f"check {{n}}", job_name="check_job")
    yield dg.RunRequest(run_key="rollup", job_name="rollup_job")


def sensor_that_meets(name, other):
    @dg.sensor(
        name=name, default_status=dg.DefaultSensorStatus.RUNNING, minimum_interval_seconds=2
    )
    def meet(context):
        (FOLDER / f"{{name}}.ticks").touch()
        wait_until((FOLDER / f"{{other}}.ticks").exists, timeout_s=45)
        (FOLDER / f"{{name}}.met").touch()
        passed_on = former_retention(former_cursors(context)).broken
        if passed_on == {{"s.fragments": {{"j": Break(7)}}, "s.fragments_1": {{"j": Break(7)}}}}:
            (FOLDER / f"{{name}}.passed_on").touch()
        mine = RetentionState(broken={{f"s.{{name}}": {{"j": Break(7)}}}})
        return dg.SensorResult(skip_reason="met", cursor=SensorCursor(retention=mine).dump())

    return meet


meeting = [
    sensor_that_meets("fragments", "fragments_1"),
    sensor_that_meets("fragments_1", "fragments"),
]
defs = dg.Definitions(jobs=[first, check, rollup], sensors=[ask, *meeting])
'''


@pytest.fixture
def home(tmp_path):
    """DAGSTER_HOME as `gazette up` makes it."""
    folder = tmp_path / "home"
    folder.mkdir()
    options = {"port": 1, "code_ports": {CODE_SERVER: 2}, "environment": {}, "requires": ()}
    dagster_components(folder, uses=(), **options)
    with DagsterInstance.from_config(str(folder)):
        pass  # makes its databases, as one process has to before there are several
    return folder


@pytest.fixture
def daemon(tmp_path, home):
    """Dagster's daemon, over that home and the definitions above."""
    (tmp_path / "work").mkdir()
    (tmp_path / "defs.py").write_text(DEFINITIONS)
    with (tmp_path / "daemon.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "dagster._daemon", "run", "-f", str(tmp_path / "defs.py")],
            cwd=home,
            env={**os.environ, "DAGSTER_HOME": str(home), "DAGSTER_DISABLE_TELEMETRY": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)
        print((tmp_path / "daemon.log").read_text()[-6000:])


@pytest.mark.timeout(DEADLINE_S + 120)
def test_runs_that_use_one_pool_wait_for_each_other_and_sensors_do_not(tmp_path, home, daemon):
    folder = tmp_path / "work"
    with DagsterInstance.from_config(str(home)) as instance:
        assert instance.get_concurrency_config().pool_config.default_pool_limit == 1

        def is_done():
            failed = [r for r in instance.get_runs() if r.status is DagsterRunStatus.FAILURE]
            assert not failed
            assert daemon.poll() is None
            return len([*folder.glob("*.ended"), *folder.glob("*.passed_on")]) >= 6

        wait_until(is_done, timeout_s=DEADLINE_S, poll_s=0.2)
        runs = instance.get_runs()
    assert len(runs) == 5
    assert len(list(folder.glob("*.met"))) == 2
    spans = {
        path.stem: (float(path.with_suffix(".begun").read_text()), float(path.read_text()))
        for path in folder.glob("*.ended")
    }
    checks = sorted(span for name, span in spans.items() if name.startswith("check"))
    ((begun, ended),) = [span for name, span in spans.items() if name.startswith("rollup")]
    assert len(checks) == 3
    assert all(before[1] <= after[0] for before, after in pairwise(checks)), json.dumps(checks)
    assert any(one[0] < ended and begun < one[1] for one in checks)
