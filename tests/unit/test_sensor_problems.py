"""What is wrong with specs and selectors is red in Dagster, whole, and reported once."""

import pytest
from dagster import AssetCheckEvaluation, AssetCheckSeverity
from dagster_instances import new_instance
from sensor_platform import SensorPlatform, line, parts_of


@pytest.fixture
def platform(tmp_path):
    with new_instance() as instance:
        yield SensorPlatform(tmp_path, instance)


def test_a_refused_spec_is_red_with_all_errors_and_the_name_of_its_file(platform):
    platform.write_spec("a")
    platform.files.append("a/part=0", line(1))
    platform.tick()
    assert [e.passed for e in platform.of_folder if isinstance(e, AssetCheckEvaluation)] == [True]
    assert platform.of_folder[0].metadata["tables"].value == {"s.a": "a.yaml"}
    assert platform.kept_up["a"].passed
    good = (platform.tables / "a.yaml").read_text()
    bad = good.replace("id, type: bigint", "id, type: bigit}, {name: x y, type: int").replace(
        "name:prefix=a/", "''"
    )
    (platform.tables / "a.yaml").write_text(bad + "\nnonsense: 1\n")
    (platform.tables / "other.yaml").write_text("- 1\n")
    platform.tick()
    red = platform.kept_up["a"]
    assert (red.passed, red.severity) == (False, AssetCheckSeverity.ERROR)
    lines = red.description.splitlines()
    for told in (
        "a.yaml: Object contains unknown field `nonsense`",
        "a.yaml: selector: may not be empty",
        "a.yaml: columns[0].type: unknown type 'bigit'",
        "a.yaml: columns[1].name: 'x y' is not a column name",
    ):
        assert any(text.startswith(told) for text in lines), told
    event, check = platform.of_folder
    assert event.metadata["refused"].value.keys() == {"a.yaml", "other.yaml"}
    assert (check.passed, check.severity) == (False, AssetCheckSeverity.ERROR)
    assert {text.partition(": ")[0] for text in check.description.splitlines()} == {
        "a.yaml",
        "other.yaml",
    }
    again = platform.tick()
    assert (again.asset_events, platform.kept_up, platform.of_folder) == ([], {}, [])
    assert "a.yaml: selector: may not be empty" in again.skip_reason.skip_message
    (platform.tables / "a.yaml").write_text(good)
    (platform.tables / "other.yaml").unlink()
    platform.tick()
    assert platform.kept_up["a"].passed
    assert platform.of_folder[1].passed


def test_table_whose_spec_was_never_good_is_reported_once(platform):
    (platform.tables / "a.yaml").write_text("name: s.a\nselector: [\n")
    platform.tick()
    assert not platform.kept_up["a"].passed
    platform.tick()
    assert not platform.kept_up


def test_a_selector_that_matches_no_journal_is_red_until_it_does(platform):
    platform.write_spec("a")
    platform.tick()
    red = platform.kept_up["a"]
    assert (red.passed, red.severity) == (False, AssetCheckSeverity.ERROR)
    assert "'name:prefix=a/' matches no journal: correct it" in red.description
    platform.tick()
    assert not platform.kept_up
    platform.files.append("a/part=0", line(1))
    platform.tick()
    assert platform.kept_up["a"].passed


def test_what_is_wrong_with_journals_is_reported_before_they_hold_anything(platform):
    platform.write_spec("a")
    platform.files.create("a/part=0", stores=())
    platform.tick()
    assert "a/part=0 has no fragment store" in platform.kept_up["a"].description


def test_missing_folder_is_reported_and_nothing_is_forgotten(platform):
    platform.write_spec("a")
    platform.files.append("a/part=0", line(1))
    before = parts_of(platform.tick().cursor)["tables"]
    (platform.tables / "a.yaml").unlink()
    result = platform.tick()
    assert platform.of_folder[0].metadata["tables"].value == {}
    assert parts_of(result.cursor)["tables"] == before
    assert "No table specs" in platform.tick().skip_reason.skip_message
