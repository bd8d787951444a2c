"""What people see in Dagster: rows of tables, keys of partitions, the page of the sensor."""

import json
import re
from pathlib import Path

import dagster_webserver
import pytest
from dagster import AssetKey, AssetMaterialization
from dagster_instances import new_instance
from sensor_platform import SensorPlatform, line, total

from gazette_platform.sensors.cursor import SensorCursor
from gazette_platform.sensors.events import (
    RowTotal,
    TableRows,
    Totals,
    journal_name,
    journal_partition,
)


@pytest.fixture
def platform(tmp_path):
    with new_instance() as instance:
        yield SensorPlatform(tmp_path, instance)


def test_rows_of_a_table_are_counted_on_while_those_of_a_partition_are_not_known():
    class Before:
        def __init__(self, rows):
            self.value = rows and TableRows(known=rows)

        def rows(self, _asset):
            return self.value

    after = RowTotal(Before(10), AssetKey("a")).after
    assert after("p", 5, Totals(rows=3)) == TableRows(known=12)
    assert after("p", 6, Totals(rows=3)) == TableRows(
        known=13
    )  # what was reported in this tick counts
    assert after("q", 4, None) == TableRows(known=17)
    assert after("q", 1, None) == TableRows(known=14)
    assert after("r", None, None) == TableRows(known=14, uncounted=1)
    assert after("q", 2, None) == TableRows(known=15, uncounted=1)
    assert after("s", 1, Totals(rows=None)) == TableRows(known=16)  # of an earlier tick
    assert after("r", 5, None) == TableRows(known=21)
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


def test_dagsters_web_pages_still_show_cursors_so():
    build = Path(dagster_webserver.__file__).parent / "webapp" / "build"
    texts = [path.read_text("utf-8") for path in build.rglob("*.js")]
    shows = [t for t in texts if """startsWith('{"__class__"')""" in t]
    assert any(re.search(r"delete \w+\.__class__", text) for text in shows)


def test_journal_partitions_are_readable_and_distinct():
    assert journal_partition("flights/origin=JFK/part=000") == "flights/origin=JFK/part=000"
    assert journal_partition("a...b|c") == "a%2E%2E%2Eb%7Cc"
    assert journal_partition("a%2Fb") != journal_partition("a/b")
    for journal in ("flights/origin=JFK/part=000", "a...b|c", "a%2Fb", "a/b", "x,y%"):
        assert journal_name(journal_partition(journal)) == journal


def test_rows_of_a_table_are_reported_again_once_a_damaged_file_is_restored(platform):
    platform.write_spec("a")
    first = platform.files.append("a/part=0", line(1), postfix="hour=05")
    path = platform.files.root / first.content_path
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    platform.files.append("a/part=0", line(2), postfix="hour=06")
    events = platform.tick().asset_events
    told = [e.metadata for e in events if e.asset_key == AssetKey(["s", "a"]) and e.partition]
    assert not any("dagster/row_count" in metadata for metadata in told)
    assert [metadata["partitions_uncounted"].value for metadata in told] == [1, 1]
    # Another one in between, as anybody may report.
    platform.instance.report_runless_asset_event(AssetMaterialization(AssetKey(["s", "a"])))
    path.write_bytes(content)
    for _ in range(4):
        platform.tick()
    assert total(platform.instance, "a") == 2
