"""Unfit records in Dagster: yellow below the threshold, red above it, and the same after a lost cursor."""

from dataclasses import replace

import pytest
from dagster import (
    AssetCheckSeverity,
    AssetKey,
    AssetMaterialization,
    AssetSelection,
    ResourceDefinition,
    materialize,
)
from dagster_instances import new_instance
from sensor_platform import SensorPlatform, parts_of

from gazette_platform.assets import raw_checks
from gazette_platform.lake import parse_table_spec
from gazette_platform.resources import LakeResource
from gazette_platform.sensors.cursor import SensorCursor

pytestmark = pytest.mark.long

GOOD, BAD = b'{"id":1}\n', b'{"id":"x"}\n'
JOURNAL, HOUR = "a/part=0", "hour=05"


def spec_of(block, kind="bigint"):
    return (
        "{name: s.a, selector: 'name:prefix=a/', format: json, "
        f"columns: [{{name: id, type: {kind}}}], unfit: {{block: {block}}}}}"
    )


@pytest.fixture
def platform(tmp_path):
    with new_instance() as instance:
        yield SensorPlatform(tmp_path, instance)


@pytest.fixture
def write(platform):
    def write_spec(block, kind="bigint"):
        (platform.tables / "a.yaml").write_text(spec_of(block, kind))

    return write_spec


@pytest.fixture
def told(platform):
    """Tick until the check `fits_spec` is evaluated."""

    def wait():
        for _ in range(6):
            platform.tick()
            found = [e for e in platform.checks if e.check_name == "fits_spec"]
            if found:
                return found[0]
        return None

    return wait


def colour(evaluation):
    if evaluation.passed:
        return "green"
    return {AssetCheckSeverity.WARN: "yellow", AssetCheckSeverity.ERROR: "red"}[evaluation.severity]


def test_check_is_yellow_below_threshold_and_red_above(platform, write, told):
    write("1%")
    files = platform.files
    files.append(JOURNAL, GOOD * 199, postfix=HOUR)
    assert colour(told()) == "green"
    bad = files.append(JOURNAL, BAD, postfix=HOUR)
    found = told()
    assert colour(found) == "yellow"
    assert found.metadata["unfit_records"].value == 1
    assert f"1 of 200 records (0.50 %) in part=0/{HOUR}" in found.description
    assert f"such as '\"x\"' at offset {bad.begin}" in found.description
    files.append(JOURNAL, BAD * 3, postfix=HOUR)
    found = told()
    assert colour(found) == "red"
    assert found.blocking
    assert found.description.startswith(f"rollups wait: 4 of 203 records (1.97 %) in part=0/{HOUR}")
    assert found.metadata["unfit_records"].value == 4
    # More good records make the share smaller.
    files.append(JOURNAL, GOOD * 300, postfix=HOUR)
    assert colour(told()) == "yellow"


def test_red_check_is_reported_before_the_data_that_it_is_about(platform, write):
    """Rollups are asked for at any moment, also between two events of a tick."""
    write("1%")
    platform.files.append(JOURNAL, GOOD, postfix=HOUR)
    platform.tick()
    platform.files.append(JOURNAL, BAD, postfix=HOUR)
    red, *others = platform.full_tick().asset_events
    assert (red.check_name, colour(red)) == ("fits_spec", "red")
    assert any(isinstance(event, AssetMaterialization) for event in others)


def test_few_good_records_report_nothing_new(platform, write, told):
    write("1%")
    platform.files.append(JOURNAL, GOOD * 1999 + BAD, postfix=HOUR)
    assert colour(told()) == "yellow"
    for _ in range(3):
        platform.files.append(JOURNAL, GOOD, postfix=HOUR)
        platform.tick()
        assert platform.checks == []


def test_another_threshold_turns_the_check_without_new_data(platform, write, told):
    write("1%")
    platform.files.append(JOURNAL, GOOD * 9 + BAD, postfix=HOUR)
    assert colour(told()) == "red"
    write("10%")
    assert colour(told()) == "yellow"
    write("0")
    assert colour(told()) == "red"
    write("never")
    assert colour(told()) == "yellow"


def test_corrected_type_turns_the_check_green(platform, write, told):
    write("1%")
    platform.files.append(JOURNAL, GOOD, postfix=HOUR)
    platform.files.append(JOURNAL, BAD + GOOD, postfix="hour=06")
    assert colour(told()) == "red"
    write("1%", "string")
    assert colour(told()) == "green"
    assert "unfit" not in parts_of(platform.cursor)["audits"]["s.a"]


def test_events_count_unfit_records(platform, write, told):
    write("1%")
    platform.files.append(JOURNAL, GOOD * 2 + BAD, postfix=HOUR)
    told()

    def unfit():
        (record,) = platform.instance.fetch_materializations(AssetKey(["s", "a"]), limit=1).records
        return record.asset_materialization.metadata["unfit_records"].value

    assert unfit() == 1
    write("1%", "string")
    told()
    for _ in range(3):
        platform.tick()
    assert unfit() == 0


def test_lost_cursor_turns_no_red_check_green(platform, write, told):
    write("1%")
    platform.files.append(JOURNAL, GOOD + BAD, postfix=HOUR)
    platform.files.append(JOURNAL, GOOD, postfix="hour=06")
    assert colour(told()) == "red"
    # As when tables are shared out to more sensors: what is registered stays known, what was reported does not.
    before = SensorCursor.parse(platform.cursor)
    platform.cursor = replace(before, audits={}).dump()
    assert colour(told()) == "red"
    assert SensorCursor.parse(platform.cursor).audits["s.a"].unfit == before.audits["s.a"].unfit
    platform.cursor = None
    assert colour(told()) == "red"


def test_executed_check_heeds_the_threshold_of_now(platform, write, told):
    write("1%")
    platform.files.append(JOURNAL, GOOD * 9 + BAD, postfix=HOUR)
    told()
    loaded = parse_table_spec((platform.tables / "a.yaml").read_text())
    write("20%")
    result = materialize(
        raw_checks([loaded]),
        selection=AssetSelection.all_asset_checks(),
        instance=platform.instance,
        raise_on_error=False,
        resources={
            "broker": ResourceDefinition.hardcoded_resource(platform),
            "metastore": ResourceDefinition.hardcoded_resource(platform),
            "lake": LakeResource(tables=str(platform.tables), store_roots=platform.files.roots),
        },
    )
    (found,) = (e for e in result.get_asset_check_evaluations() if e.check_name == "fits_spec")
    assert colour(found) == "yellow"
    assert found.description.startswith(f"1 of 10 records (10 %) in part=0/{HOUR}")
    assert "rollups go on, up to 20 % of a Hive partition" in found.description
