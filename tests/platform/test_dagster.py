"""What Dagster knows of tables without a run: its sensors register, report and check, as its web server answers."""

from __future__ import annotations

import json
import os
import signal

import pytest
from sales import COMMITTED, ORDERS

from gazette_platform.platform.dagster import children_of
from gazette_platform.testing.waiting import wait_until

TOLD_S = 90.0
"""For a busy sensor's tick to report what a test waits for."""

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
TARGETING = """query($path: [String!]!) { assetNodeOrError(assetKey: {path: $path}) {
  ... on AssetNode { targetingInstigators { ... on Sensor { name } } } } }"""
COLUMNS = """query($path: [String!]!) { assetNodeOrError(assetKey: {path: $path}) {
  ... on AssetNode { metadataEntries { label
    ... on TableSchemaMetadataEntry { schema { columns { name constraints { other } } } } } } } }"""
NEWEST_COLUMNS = """query($path: [String!]!) { assetOrError(assetKey: {path: $path}) {
  ... on Asset { assetMaterializations(limit: 1) { metadataEntries { label
    ... on TableSchemaMetadataEntry { schema { columns { name constraints { other } } } } } } } } }"""
EVALUATIONS = """query($path: [String!]!) { assetConditionEvaluationRecordsOrError(
  assetKey: {path: $path}, limit: 5) { ... on AssetConditionEvaluationRecords { records {
    numRequested evaluationNodes { expandedLabel numTrue } } } } }"""
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


def test_green_checks_say_how_much_was_checked(sales, evaluation):
    def is_told(told):
        count, _, text = (told["description"] or "").partition(" records, 0 ")
        return text == "unfit." and int(count.replace(",", "")) >= 2 * ORDERS

    evaluation(["sales", "purchases"], "fits_spec", is_told)
    evaluation(
        ["sales", "purchases"], "no_gap", lambda told: told["description"] == "2 journals, 0 gaps."
    )


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


def test_pages_name_the_sensor_that_fills_an_asset(ask):
    def sensors(*path):
        found = ask(TARGETING, path=path)["assetNodeOrError"]["targetingInstigators"]
        return [each["name"] for each in found]

    assert sensors("sales", "purchases") == ["fragments"]
    assert sensors("journals", "sales", "purchases") == ["fragments"]
    assert sensors("typed", "payments_quarantine") == ["typed"]
    assert sorted(sensors("typed", "payments")) == ["typed", "typed_automation"]
    assert sensors("rollups", "sales_by_customer") == ["rollup_automation"]


def test_partition_columns_are_in_the_column_list(ask):
    entries = ask(COLUMNS, path=["sales", "purchases"])["assetNodeOrError"]["metadataEntries"]
    (schema,) = [e["schema"] for e in entries if e["label"] == "dagster/column_schema"]
    columns = {c["name"]: c["constraints"]["other"] for c in schema["columns"]}
    assert columns == {
        **{key: [] for key in ("id", "customer", "amount", "ordered")},
        **{key: ["partition column"] for key in ("date", "hour")},
    }


def test_columns_of_events_include_undescribed_partitions(ask, sales):
    """The spec describes `date` and `hour`, and not the `region` in the journals' names."""

    def columns():
        found = ask(NEWEST_COLUMNS, path=["sales", "purchases"])["assetOrError"]
        events = found.get("assetMaterializations", [])
        entries = [e for event in events for e in event["metadataEntries"]]
        return [
            [c["name"] for c in e["schema"]["columns"] if c["constraints"]["other"]]
            for e in entries
            if e["label"] == "dagster/column_schema"
        ]

    assert wait_until(columns, timeout_s=TOLD_S, poll_s=1.0) == [["region", "date", "hour"]]


def test_evaluation_says_why_a_rollup_is_not_asked_for(ask):
    def reasons():
        found = ask(EVALUATIONS, path=["rollups", "sales_by_customer"])
        records = found["assetConditionEvaluationRecordsOrError"].get("records", [])
        return [
            " ".join(node["expandedLabel"])
            for record in records
            if not record["numRequested"]
            for node in record["evaluationNodes"]
        ]

    wait_until(
        lambda: "nothing new in sales.purchases since the last run" in reasons(),
        timeout_s=TOLD_S,
        poll_s=1.0,
    )


WRONG = """-- name: rollups.wrong_names
-- sources: [sales.purchases]
SELECT custom, count(*) AS orders FROM purchases GROUP BY custom
"""


def test_wrong_query_is_red_before_its_first_run(ask, evaluation, platform, gazctl):
    file = platform.layout.rollups / "trino" / "wrong_names.sql"
    path, text = (
        ["rollups", "wrong_names"],
        "no source has a column `custom` (did you mean `customer`?)",
    )
    file.write_text(WRONG)
    try:
        found = evaluation(path, "query_fits", lambda told: not told["success"])
        assert found["severity"] == "ERROR"
        assert found["description"].startswith(text)
        checked = gazctl("lake", "check", "--quick", "-o", "json")
        assert checked.code == 1
        (told,) = [each for each in json.loads(checked.out) if each["check"] == "query"]
        assert (told["table"], told["severity"]) == ("rollups.wrong_names", "error")
        assert told["text"].startswith(text)
        named = gazctl("lake", "check", "rollups.wrong_names", "-o", "json")
        assert (named.code, [each["text"] for each in json.loads(named.out)]) == (1, [told["text"]])
        described = gazctl("lake", "describe", "rollups.wrong_names").out
        assert "blocked" in described
        assert "check query_fits of rollups.wrong_names is red" in described
        # No run of it is asked for, which could only fail.
        wait_until(
            lambda: any(
                node["expandedLabel"][0].startswith(
                    "the query is wrong: rollups.wrong_names query_fits: no source"
                )
                for record in ask(EVALUATIONS, path=path)[
                    "assetConditionEvaluationRecordsOrError"
                ].get("records", [])
                for node in record["evaluationNodes"]
            ),
            timeout_s=TOLD_S,
            poll_s=1.0,
        )
        file.write_text(WRONG.replace("custom", "customer"))
        evaluation(path, "query_fits", lambda told: told["success"])
    finally:
        file.unlink()


def test_sensors_tick_without_failure(ask):
    sensors = {each["name"]: each for each in ask(SENSORS)["sensorsOrError"]["results"]}
    for name in ("fragments", "typed", "catalog", "rollup_automation"):
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
    # What is new after it: once that is registered, so was all that came before it.
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
