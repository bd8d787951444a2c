"""The sensor of fragments goes on from the cursor and the metastore of a former version."""

from __future__ import annotations

import json

import golden_former
import pytest
from dagster_instances import new_instance
from sensor_platform import SensorPlatform, line, numbers

from gazette_platform.lake.raw.partition_state import PartitionState
from gazette_platform.sensors.cursor import SensorCursor, unpacked

pytestmark = pytest.mark.long

ROWS = {"a": 6, "b": 2}


@pytest.fixture(params=golden_former.former_versions(), ids=lambda path: path.name)
def data(request):
    return request.param


@pytest.fixture
def platform(data, tmp_path):
    with new_instance() as instance:
        platform = SensorPlatform(tmp_path, instance)
        golden_former.write_raw(platform)
        dump = json.loads((data / "metastore.json").read_text())
        golden_former.restore_metastore(platform.metastore.thrift, dump, platform.files.root)
        platform.cursor = (data / "cursor.txt").read_text().strip()
        yield platform


def rows(platform):
    """Of each table, as its accounts say; a table without partitions has its account itself."""
    found = {}
    with platform.metastore.connect() as session:
        for name in ROWS:
            table = session.table("s", name)
            held = session.partitions(table) if table.partition_columns else [table]
            found[name] = sum(PartitionState.from_parameters(each.parameters).rows for each in held)
    return found


def test_cursor_says_the_same_when_it_is_written_again(platform):
    parsed = SensorCursor.parse(platform.cursor)
    assert {table: len(journals) for table, journals in parsed.registered.tables.items()} == {
        "s.a": 2,
        "s.b": 1,
    }
    assert unpacked(parsed.dump()) == unpacked(platform.cursor)


@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "cleared"])
def test_nothing_is_added_again_and_new_rows_once(platform, is_kept):
    if not is_kept:
        platform.cursor = None
    assert rows(platform) == ROWS
    platform.tick()
    assert rows(platform) == ROWS
    assert platform.metastore.partitions_added == 0
    platform.files.append("a/part=0", line(20) + line(21), postfix="hour=01")
    platform.files.append("a/part=0", line(22), postfix="hour=07")
    for _ in range(2):
        platform.tick()
    assert rows(platform) == {**ROWS, "a": ROWS["a"] + 3}
    assert numbers(platform.instance, "a")["07"] == [1]
    assert platform.metastore.partitions_added == 1
