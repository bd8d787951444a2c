"""Records that do not fit: one turns a check yellow, many turn it red and stop rollups, and every place says so."""

from __future__ import annotations

import json
import re

import pytest
from sales import VISITS

from gazette_platform.errors import LakeError
from gazette_platform.testing.waiting import wait_until

TABLE, ROLLUP = "sales.visits", "rollups.visits_by_region"
ROWS = f"SELECT visits, counted, pages FROM iceberg.{ROLLUP}"
# A tick of the sensor; and a look of the automation, a run, and what both wait for.
TOLD_S, MADE_S = 90.0, 200.0
MANY = 21

CHECKS = """query($path: [String!]!) {
  assetCheckExecutions(assetKey: {path: $path}, checkName: "fits_spec", limit: 20) {
    evaluation { success severity description metadataEntries { label
      ... on IntMetadataEntry { intValue } } } } }"""
EVENTS = """query($path: [String!]!) { assetOrError(assetKey: {path: $path}) {
  ... on Asset { assetMaterializations(limit: 1) { metadataEntries { label
    ... on IntMetadataEntry { intValue } } } } } }"""
EVALUATIONS = """query($path: [String!]!) {
  assetConditionEvaluationRecordsOrError(assetKey: {path: $path}, limit: 1) {
    ... on AssetConditionEvaluationRecords { records { numRequested
      evaluationNodes { expandedLabel } } } } }"""


def numbers(entries):
    return {each["label"]: each["intValue"] for each in entries if "intValue" in each}


@pytest.fixture
def check(platform):
    """Wait for a severity of the table's check. Return its newest evaluation."""

    def newest(severity):
        found = platform.ask(CHECKS, path=TABLE.split("."))["assetCheckExecutions"]
        told = [each["evaluation"] for each in found if each["evaluation"]][:1]
        return told if told and (told[0]["success"], told[0]["severity"]) == severity else None

    return lambda severity: wait_until(
        lambda: newest((False, severity)), timeout_s=TOLD_S, poll_s=1.0
    )[0]


@pytest.fixture
def unfit_records(platform):
    """The number in the newest event of an asset."""

    def ask(name):
        events = platform.ask(EVENTS, path=name.split("."))["assetOrError"]
        return numbers(events["assetMaterializations"][0]["metadataEntries"])["unfit_records"]

    return ask


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
def listed(gazctl):
    def ask():
        done = gazctl("lake", "list", TABLE, "-o", "json")
        assert done.code == 0, done.err
        return json.loads(done.out)[0]

    return ask


def test_one_bad_record_is_yellow_and_stops_no_rollup(
    check, rows, listed, unfit_records, gazctl, trino, spark
):
    found = check("WARN")
    assert found["description"].startswith("1 of 1,000 records (0.10 %) in region=eu/")
    assert (
        "does not fit the spec; rollups go on, up to 1 % of a Hive partition"
        in (found["description"])
    )
    assert "pages (bigint): 1, such as '\"many\"' at offset " in found["description"]
    assert numbers(found["metadataEntries"])["unfit_records"] == 1
    assert (listed()["unfit_records"], listed()["blocked"], listed()["problems"]) == (1, False, [])
    quick = gazctl("lake", "check", TABLE, "--quick")
    assert quick.code == 0, quick.out
    assert f"{TABLE}: yellow: fit: 1 of 1,000 records" in quick.out
    gauges = gazctl("lake", "list", TABLE, "-o", "prometheus").out
    assert f'gazette_lake_unfit_records{{table="{TABLE}"}} 1.0' in gauges
    assert f'gazette_lake_blocked{{table="{TABLE}"}} 0.0' in gauges
    # The record is a row, without the value that does not fit: in the rollup as in both engines.
    expected = [(VISITS + 1, VISITS, 2 * VISITS)]
    wait_until(lambda: rows() == expected, timeout_s=MADE_S, poll_s=1.0)
    query = "SELECT count(*), count(pages), sum(pages) FROM {}sales.visits"
    assert trino(query.format("hive.")) == expected
    assert spark(query.format("")) == expected
    assert (unfit_records(TABLE), unfit_records(ROLLUP)) == (1, 1)


def test_two_percent_bad_records_stop_rollups_and_say_so(
    check, rows, listed, unfit_records, gazctl, sales, platform, tmp_path
):
    before = [(VISITS + 1, VISITS, 2 * VISITS)]
    wait_until(lambda: rows() == before, timeout_s=MADE_S, poll_s=1.0)
    sales.visit(MANY, pages="many")
    assert gazctl("lake", "flush", TABLE).code == 0
    found = check("ERROR")
    text = found["description"]
    assert re.match(r"rollups wait: (22|21) of [0-9,]+ records \(.* %\) in region=eu/", text), text
    assert numbers(found["metadataEntries"])["unfit_records"] == 1 + MANY
    assert unfit_records(TABLE) == 1 + MANY
    for part in (
        " since 20",
        "do not fit the spec, and only 1 % may",
        "`gazctl lake apply`",
        f"`gazctl lake set-aside {TABLE} --unfit`",
        f"`gazctl lake check {TABLE}` shows all",
    ):
        assert part in text
    assert (listed()["unfit_records"], listed()["blocked"]) == (1 + MANY, True)
    assert listed()["problems"] == [text]
    assert f"{TABLE}: {text}" in gazctl("lake", "list", TABLE).err
    quick = gazctl("lake", "check", TABLE, "--quick")
    assert quick.code == 1
    assert f"{TABLE}: red: fit: {text}" in quick.out
    assert f"{TABLE}: red: fit: {text}" in gazctl("lake", "check", TABLE).out
    gauges = gazctl("lake", "list", TABLE, "-o", "prometheus").out
    assert f'gazette_lake_blocked{{table="{TABLE}"}} 1.0' in gauges

    def reasons():
        asked = platform.ask(EVALUATIONS, path=ROLLUP.split("."))
        records = asked["assetConditionEvaluationRecordsOrError"]["records"]
        nodes = [node for each in records for node in each["evaluationNodes"]]
        labels = [" ".join(node["expandedLabel"]) for node in nodes]
        return [label for label in labels if "rollups wait: " in label]

    reason = wait_until(reasons, timeout_s=TOLD_S, poll_s=1.0)[-1]
    assert TABLE in reason
    assert "`gazctl lake apply`" in reason
    assert rows() == before

    # The way on that all of them name.
    raised = re.search(r"`(unfit: \{block: .*?\})`", text)[1]
    name = f"{TABLE}.yaml"
    (tmp_path / name).write_text((platform.layout.tables / name).read_text() + f"{raised}\n")
    done = gazctl("lake", "apply", name)
    assert done.code == 0, done.err
    check("WARN")
    after = [(VISITS + 1 + MANY, VISITS, 2 * VISITS)]
    wait_until(lambda: rows() == after, timeout_s=MADE_S, poll_s=1.0)
    # Dagster has the event of a run once its rows exist.
    wait_until(lambda: unfit_records(ROLLUP) == 1 + MANY, timeout_s=TOLD_S, poll_s=1.0)
    assert listed()["problems"] == []
