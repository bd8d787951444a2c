"""What people see in Dagster: rows of tables, keys of partitions, the page of the sensor."""

import json
import re
from pathlib import Path

import dagster_webserver
import pytest
from dagster import AssetKey, DagsterInstance, DynamicPartitionsDefinition
from sensor_platform import SensorPlatform, line, numbers, total

from gazette_platform.lake import PartitionColumn, partition_key
from gazette_platform.sensors import events, fragments, told
from gazette_platform.sensors.cursor import SensorCursor
from gazette_platform.sensors.events import journal_partition
from gazette_platform.sensors.keys import table_partition
from gazette_platform.sensors.told import RowTotal, Totals


@pytest.fixture
def platform(tmp_path):
    with DagsterInstance.ephemeral() as instance:
        yield SensorPlatform(tmp_path, instance)


def test_rows_of_a_table_are_unknown_while_those_of_a_partition_are():
    class Before:
        def __init__(self, rows):
            self.value = rows

        def rows(self, _asset):
            return self.value

    after = RowTotal(Before(10), AssetKey("a")).after
    assert after("p", 5, Totals(rows=3)) == 12
    assert after("p", 6, Totals(rows=3)) == 13  # what was told in this tick counts
    assert after("q", 4, None) == 17
    assert after("q", 1, None) == 14
    assert after("r", None, None) is None
    assert after("q", 2, None) is None
    assert RowTotal(Before(None), AssetKey("a")).after("p", 5, None) is None


def shown(cursor):
    """As the function that shows a cursor in Dagster's web pages has it."""
    if not cursor.startswith('{"__class__"'):
        return cursor
    parts = json.loads(cursor)
    del parts["__class__"]
    return ",".join(f"{key}={value}" for key, value in parts.items() if value not in {None, 0})


def test_the_page_of_the_sensor_shows_no_dump(platform):
    platform.write_spec("a")
    platform.write_spec("b")
    platform.files.append("a/part=0", line(1))
    platform.files.append("a/part=1", line(1))
    cursor = platform.tick().cursor
    assert shown(cursor) == "journals=2,red=1,tables=2"
    assert SensorCursor.parse(cursor).dump() == cursor
    before = json.dumps(json.loads(cursor)["__class__"])  # as former releases wrote it
    assert SensorCursor.parse(before) == SensorCursor.parse(cursor)


def test_dagsters_web_pages_still_show_cursors_so():
    build = Path(dagster_webserver.__file__).parent / "webapp" / "build"
    texts = [path.read_text("utf-8") for path in build.rglob("*.js")]
    shows = [t for t in texts if """startsWith('{"__class__"')""" in t]
    assert any(re.search(r"delete \w+\.__class__", text) for text in shows)


def test_table_partitions_are_short_and_distinct():
    columns = [PartitionColumn(key=k, column=k, type="string") for k in ("a", "b")]
    texts = ("", "%", "x", "x=y", "a/b", "/", "%25", "...", "all", "|")
    values = [(one, two) for one in texts for two in texts]
    keys = [table_partition(partition_key(columns, pair)) for pair in values]
    assert len(set(keys)) == len(keys)
    assert table_partition(partition_key(columns, ("x=y", "5"))) == "x=y/5"
    assert table_partition(partition_key([], [])) == "all"
    assert table_partition(partition_key(columns[:1], [""])) == "%"
    for key in keys:
        DynamicPartitionsDefinition(name="a").build_add_request([key])


def test_a_home_with_keys_of_former_releases_is_told_no_row_twice(platform, monkeypatch):
    platform.write_spec("a")
    for hour in ("05", "06"):
        platform.files.append("a/part=0", line(1), postfix=f"hour={hour}")
    with monkeypatch.context() as former:
        for module in (fragments, events, told):
            former.setattr(module, "table_partition", str)
        platform.tick()
    assert platform.instance.get_dynamic_partitions("s.a") == ["part=0/hour=05", "part=0/hour=06"]
    platform.files.append("a/part=0", line(1), postfix="hour=06")
    platform.tick()
    assert sorted(platform.instance.get_dynamic_partitions("s.a")) == ["0/05", "0/06"]
    assert numbers(platform.instance, "a") == {
        "part=0/hour=05": [1],
        "part=0/hour=06": [1],
        "0/05": [0],
        "0/06": [1],
    }
    assert total(platform.instance, "a") == 3
    assert platform.tick().asset_events == []


def test_journal_partitions_are_readable_and_distinct():
    assert journal_partition("flights/origin=JFK/part=000") == "flights/origin=JFK/part=000"
    assert journal_partition("a...b|c") == "a%2E%2E%2Eb%7Cc"
    assert journal_partition("a%2Fb") != journal_partition("a/b")
