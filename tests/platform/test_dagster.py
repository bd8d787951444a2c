"""What Dagster knows of tables without a run: its sensors register, tell and check, as its web server answers."""

from __future__ import annotations

import os
import signal

import pytest
from sales import COMMITTED, ORDERS

from gazette_platform.embedded.dagster_code_main import children_of
from gazette_platform.testing.waiting import wait_until

TOLD_S = 90.0
"""For a tick of a sensor that has been busy to tell of what a test waits for."""

ASSETS = """{ assetNodes { assetKey { path } groupName description
  dependencyKeys { path } owners { ... on TeamAssetOwner { team } }
  internalFreshnessPolicy { ... on TimeWindowFreshnessPolicy { failWindowSeconds } } } }"""
EVENTS = """query($path: [String!]!, $limit: Int!) { assetOrError(assetKey: {path: $path}) {
  ... on Asset { assetMaterializations(limit: $limit) { partition metadataEntries { label
    ... on IntMetadataEntry { intValue } ... on JsonMetadataEntry { jsonString }
    ... on TextMetadataEntry { text } } } } } }"""
PARTITIONS = """query($path: [String!]!) { assetNodeOrError(assetKey: {path: $path}) {
  ... on AssetNode { partitionKeys partitionStats { numMaterialized numPartitions } } } }"""
EXECUTIONS = """query($path: [String!]!, $check: String!) {
  assetCheckExecutions(assetKey: {path: $path}, checkName: $check, limit: 20) {
    status evaluation { success severity description } } }"""
SENSORS = """{ sensorsOrError(repositorySelector: {repositoryName: "__repository__",
    repositoryLocationName: "gazette_platform.definitions"}) {
  ... on Sensors { results { name sensorState { status
    ticks(limit: 20) { status error { message } } } } } } }"""
CURSOR = """mutation($cursor: String) { setSensorCursor(cursor: $cursor, sensorSelector: {
  sensorName: "fragments", repositoryName: "__repository__",
  repositoryLocationName: "gazette_platform.definitions"}) {
  __typename ... on Sensor { sensorState { id } } ... on PythonError { message } } }"""


@pytest.fixture
def ask(platform):
    return platform.ask


@pytest.fixture
def evaluation(ask):
    """Wait for a check of an asset that says what is expected. Return its newest evaluation."""

    def wait(path, check, is_expected):
        def newest():
            found = ask(EXECUTIONS, path=path, check=check)["assetCheckExecutions"]
            told = [each["evaluation"] for each in found if each["evaluation"]][:1]
            return told if told and is_expected(told[0]) else None

        return wait_until(newest, timeout_s=TOLD_S, poll_s=1.0)[0]

    return wait


@pytest.fixture
def events(ask):
    def ask_for(path, limit=100):
        found = ask(EVENTS, path=path, limit=limit)["assetOrError"]
        return [
            {"partition": each["partition"]}
            | {
                entry["label"]: entry.get("intValue", entry.get("jsonString", entry.get("text")))
                for entry in each["metadataEntries"]
            }
            for each in found.get("assetMaterializations", [])
        ]

    return ask_for


def rows_of(events, path):
    """Rows of a table, as its newest event says."""
    found = events(path, 1)
    return found[0].get("dagster/row_count") if found else None


def test_assets_show_lineage_from_journals_to_rollup(ask):
    nodes = {tuple(n["assetKey"]["path"]): n for n in ask(ASSETS)["assetNodes"]}

    def made_of(*path):
        return {tuple(key["path"]) for key in nodes[path]["dependencyKeys"]}

    orders = nodes["sales", "purchases"]
    assert "Orders as they came." in orders["description"]
    assert orders["owners"] == [{"team": "sales"}]
    assert ("journals", "sales", "purchases") in made_of("sales", "purchases")
    assert made_of("rollups", "sales_by_customer") == {("sales", "purchases")}
    assert ("sales", "payments") in made_of("typed", "payments")
    assert ("typed", "payments_quarantine") in nodes


def test_partitions_are_times_of_appends(ask, sales, platform, events):
    path = ["sales", "purchases"]
    wait_until(lambda: rows_of(events, path) == total(sales), timeout_s=TOLD_S, poll_s=1.0)
    folders = (platform.layout.fragments / "sales" / "purchases").rglob("hour=*")
    expected = {
        f"{f.parent.name.partition('=')[2]}/{int(f.name.partition('=')[2])}" for f in folders
    }
    node = ask(PARTITIONS, path=path)["assetNodeOrError"]
    assert set(node["partitionKeys"]) == expected
    assert node["partitionStats"]["numMaterialized"] == len(expected)


def total(sales):
    return sum(map(len, sales.purchases.values()))


def test_events_of_a_table_add_up_to_its_rows(sales, events):
    path = ["sales", "purchases"]
    assert total(sales) >= 2 * ORDERS
    wait_until(lambda: rows_of(events, path) == total(sales), timeout_s=TOLD_S, poll_s=1.0)
    assert sum(each["rows_added"] for each in events(path)) == total(sales)


def test_checks_are_green_on_good_data(evaluation):
    for check in ("keeps_up", "no_gap", "no_overlap", "counts_agree", "fits_spec"):
        evaluation(["sales", "purchases"], check, lambda told: told["success"])


def test_check_is_red_and_shows_the_bad_record(evaluation):
    found = evaluation(["sales", "picky"], "fits_spec", lambda told: not told["success"])
    assert found["severity"] == "ERROR"
    assert '"two"' in found["description"]


def test_typed_table_is_checked_and_counted(typed_payments, evaluation, events):
    path = ["typed", "payments"]
    evaluation(path, "complete", lambda told: told["success"])
    quarantine = evaluation(path, "quarantine", lambda told: not told["success"])
    assert "2" in quarantine["description"]
    assert rows_of(events, path) == sum(map(len, COMMITTED.values()))


def test_stale_tables_have_a_freshness_policy(ask):
    nodes = {tuple(n["assetKey"]["path"]): n for n in ask(ASSETS)["assetNodes"]}
    for path in (("sales", "purchases"), ("rollups", "sales_by_customer")):
        assert nodes[path]["internalFreshnessPolicy"]["failWindowSeconds"] >= 24 * 3600


def test_sensors_tick_without_failure(ask):
    sensors = {each["name"]: each for each in ask(SENSORS)["sensorsOrError"]["results"]}
    for name in ("fragments", "typed", "catalog", "rollups__sales_by_customer_automation"):
        state = sensors[name]["sensorState"]
        assert state["status"] == "RUNNING", name
        failed = [tick["error"] for tick in state["ticks"] if tick["status"] == "FAILURE"]
        assert failed == [], name
    assert sensors["fragments"]["sensorState"]["ticks"]


def test_lost_cursor_registers_no_row_twice(ask, sales, events, trino):
    path = ["sales", "purchases"]
    wait_until(lambda: rows_of(events, path) == total(sales), timeout_s=TOLD_S, poll_s=1.0)
    told = len(events(path))
    lost = ask(CURSOR, cursor=None)["setSensorCursor"]
    assert lost["__typename"] == "Sensor", lost
    # What is new behind it: once that is registered, so was all that came before it.
    sales.order("eu", 10)
    sales.client.flush("name:prefix=sales/purchases/")
    wait_until(lambda: rows_of(events, path) == total(sales), timeout_s=TOLD_S, poll_s=1.0)
    assert sum(each["rows_added"] for each in events(path)) == total(sales)
    assert len(events(path)) == told + 1
    counted = trino("SELECT count(*), count(DISTINCT id) FROM hive.sales.purchases")
    assert counted == [(total(sales), total(sales))]


def test_killed_sensor_registers_no_row_twice(ask, sales, events, platform, trino):
    path = ["sales", "purchases"]
    wait_until(lambda: rows_of(events, path) == total(sales), timeout_s=TOLD_S, poll_s=1.0)
    told = len(events(path))
    # The process in which the sensors run ends while there is something to register. Another one takes its place.
    code = platform.endpoints.pids["dagster-code"]
    (former,) = wait_until(lambda: len(found := children_of(code)) == 1 and found)
    sales.order("eu", 10)
    sales.client.flush("name:prefix=sales/purchases/")
    os.kill(former, signal.SIGKILL)
    wait_until(lambda: rows_of(events, path) == total(sales), timeout_s=TOLD_S, poll_s=1.0)
    assert former not in children_of(code)
    assert sum(each["rows_added"] for each in events(path)) == total(sales)
    assert len(events(path)) == told + 1
    counted = trino("SELECT count(*), count(DISTINCT id) FROM hive.sales.purchases")
    assert counted == [(total(sales), total(sales))]
