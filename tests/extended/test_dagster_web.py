"""What `gazctl lake list` asks of Dagster, asked of a real web server over runs that failed and checks that are red."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest
from dagster import DagsterInstance, materialize

from gazette_platform.lake.dagster_web import DagsterWeb
from gazette_platform.platform.component import answers_http, choose_ports
from gazette_platform.testing.waiting import patient, wait_until

pytestmark = pytest.mark.timeout(patient(180))

DEFINITIONS = """
from dagster import AssetCheckResult, AssetCheckSeverity, AssetCheckSpec, AssetKey, Definitions, MaterializeResult, asset

ORDERS = AssetKey(["shop", "orders"])
CHECKS = {"fits_spec": True, "no_gap": True, "counts_agree": True, "keeps_up": False}

@asset(key=ORDERS, check_specs=[AssetCheckSpec(name, asset=ORDERS, blocking=b) for name, b in CHECKS.items()])
def orders():
    return MaterializeResult(check_results=[
        AssetCheckResult(check_name="fits_spec", passed=False, description="2 of 4 records do not fit\\nsuch as"),
        AssetCheckResult(check_name="no_gap", passed=False, severity=AssetCheckSeverity.WARN),
        AssetCheckResult(check_name="counts_agree", passed=True),
        AssetCheckResult(check_name="keeps_up", passed=False),
    ])

@asset(key=["rollups", "good"])
def good(): ...

@asset(key=["rollups", "broken"])
def broken():
    raise ValueError("Cannot cast 'c0' to BIGINT\\nat line 1")

@asset(key=["rollups", "new"])
def new(): ...

definitions = Definitions([orders, good, broken, new])
"""


@pytest.fixture
def web(tmp_path):
    """The web server of a Dagster whose assets were run once, except the last one."""
    file = tmp_path / "assets_of_the_test.py"
    file.write_text(DEFINITIONS)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    with DagsterInstance.from_config(str(tmp_path)) as instance:
        for each in (module.orders, module.good, module.broken):
            materialize([each], instance=instance, raise_on_error=False)
    port = choose_ports(["web"])["web"]
    command = ["-m", "dagster_webserver", "-h", "127.0.0.1", "-p", str(port), "-f", str(file)]
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(
            [sys.executable, *command],
            env={"DAGSTER_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
            cwd=tmp_path,
            stdout=log,
            stderr=log,
        ) as process,
    ):
        try:
            uri = f"http://127.0.0.1:{port}"
            wait_until(lambda: answers_http(f"{uri}/server_info"), timeout_s=90, poll_s=0.5)
            yield DagsterWeb(uri)
        finally:
            process.terminate()


def test_red_blocking_checks_and_failed_runs_are_found(web):
    (red,) = web.red_checks(["shop.orders", "rollups.good", "shop.unknown"])
    assert (red.table, red.check, red.text) == (
        "shop.orders", "fits_spec", "2 of 4 records do not fit"
    )  # fmt: skip
    both = web.red_checks(["shop.orders"], {"keeps_up"})
    assert {each.check for each in both} == {"fits_spec", "keeps_up"}
    runs = web.last_runs(["rollups.good", "rollups.broken", "rollups.new"])
    assert {name: run.has_failed for name, run in runs.items()} == {
        "rollups.good": False, "rollups.broken": True
    }  # fmt: skip
    failed = runs["rollups.broken"]
    assert failed.ended_at > red.since
    assert web.why_failed(failed.run_id) == "ValueError: Cannot cast 'c0' to BIGINT"
