"""Rollups: Iceberg tables that Dagster keeps of raw tables, and both engines read."""

from __future__ import annotations

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
    """Wait until the rollup has all orders. Dagster's automation makes it; nobody asks for a run."""
    wait_until(lambda: rows() == sales.by_customer(), timeout_s=MADE_S, poll_s=1.0)


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
    path = TABLE.split(".")
    launched = platform.ask(LAUNCH, path=path)["launchPipelineExecution"]
    assert launched["__typename"] == "LaunchRunSuccess", launched
    wait_until(lambda: rows() == sales.by_customer(), timeout_s=MADE_S, poll_s=0.5)
    assert trino(files) == before


def test_snapshot_says_of_which_offsets_it_is(made, trino, client):
    snapshots = f'iceberg.rollups."{TABLE.split(".")[1]}$snapshots"'
    newest = (
        f"SELECT summary['gazette.offsets'] FROM {snapshots} ORDER BY committed_at DESC LIMIT 1"
    )
    journals = [f"sales/purchases/region={region}" for region in ("eu", "us")]
    told = dict(each.rsplit(" ", 1) for each in trino(newest)[0][0].split("; "))
    assert told == {journal: f"0-{client.write_head(journal)}" for journal in journals}
