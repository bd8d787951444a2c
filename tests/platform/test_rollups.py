"""Rollups: Iceberg tables that Dagster keeps of raw tables, and both engines read."""

from __future__ import annotations

import json

import pytest
from sales import ORDERS

from gazette_platform.errors import LakeError
from gazette_platform.testing.waiting import wait_until

TABLE = "rollups.sales_by_customer"
ROWS = f"SELECT region, customer, orders, total FROM iceberg.{TABLE} ORDER BY 1, 2"
LAUNCH = """mutation($path: [String!]!) { launchPipelineExecution(executionParams: {
  selector: {repositoryName: "__repository__", repositoryLocationName: "gazette_platform.definitions",
    pipelineName: "__ASSET_JOB", assetSelection: [{path: $path}], assetCheckSelection: []},
  runConfigData: {}}) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""
# The automation looks twice a minute, and a run is a process that has to be started.
MADE_S = 150.0


@pytest.fixture
def rows(trino):
    """Rows of the rollup; none until it is made."""

    def ask():
        try:
            return trino(ROWS)
        except LakeError:
            return []

    return ask


@pytest.fixture
def made(sales, rows):
    """Wait until the rollup has all orders. Dagster's automation makes it, without a request."""
    wait_until(lambda: rows() == sales.by_customer(), timeout_s=MADE_S, poll_s=1.0)


def launch(platform, rollup):
    launched = platform.ask(LAUNCH, path=rollup.split("."))["launchPipelineExecution"]
    assert launched["__typename"] == "LaunchRunSuccess", launched


def test_rollup_agrees_with_raw_in_both_engines(made, sales, trino, spark):
    query = "SELECT region, customer, count(*), sum(amount) FROM {}sales.purchases GROUP BY 1, 2 ORDER BY 1, 2"
    expected = sales.by_customer()
    assert sum(row[2] for row in expected) >= 2 * ORDERS
    assert trino(query.format("hive.")) == expected
    assert trino(ROWS) == expected
    assert spark(ROWS) == expected


def test_late_data_remakes_only_its_slice(made, sales, rows, trino, gazctl, platform):
    files = f"SELECT DISTINCT \"$path\" FROM iceberg.{TABLE} WHERE region = 'eu'"
    before = trino(files)
    sales.order("us", 100)
    assert gazctl("lake", "flush", "sales.purchases").code == 0
    # By hand, so that no test waits for the minute of the automation.
    launch(platform, TABLE)
    wait_until(lambda: rows() == sales.by_customer(), timeout_s=MADE_S, poll_s=0.5)
    assert trino(files) == before


def test_snapshot_names_its_offsets(made, trino, client):
    snapshots = f'iceberg.rollups."{TABLE.split(".")[1]}$snapshots"'
    newest = (
        f"SELECT summary['gazette.offsets'] FROM {snapshots} ORDER BY committed_at DESC LIMIT 1"
    )
    journals = [f"sales/purchases/region={region}" for region in ("eu", "us")]
    told = dict(each.rsplit(" ", 1) for each in trino(newest)[0][0].split("; "))
    assert told == {journal: f"0-{client.write_head(journal)}" for journal in journals}


def test_list_shows_the_state_of_each_rollup_and_why(made, gazctl, platform):
    launch(platform, "rollups.sales_broken")
    names = [TABLE, *(f"rollups.sales_{name}" for name in ("words", "broken", "unasked"))]

    def listed():
        done = gazctl("lake", "list", *names, "-o", "json")
        assert done.code == 0, done.err
        return {each["table"]: each for each in json.loads(done.out)}

    states = ["fresh", "blocked", "failed", "never made"]
    wait_until(
        lambda: [listed()[name]["state"] for name in names] == states, timeout_s=MADE_S, poll_s=2.0
    )
    found = listed()
    assert found[TABLE]["rows"]
    assert found[TABLE]["problems"] == []
    (blocked,) = found[names[1]]["problems"]
    assert blocked.startswith("blocked: check fits_spec of sales.picky is red since ")
    assert "`gazctl lake check sales.picky` shows all" in blocked
    (failed,) = found[names[2]]["problems"]
    assert "Cannot cast 'c" in failed
    shown = gazctl("lake", "describe", names[2])
    assert "  State:      failed" in shown.out
    assert any(
        line.split()[:3] == [TABLE, "rollup", "fresh"]
        for line in gazctl("lake", "list").out.splitlines()
    )
