"""The fragment sensor: events, partitions, cursor, and problems that hold up no other table."""

import json
from contextlib import contextmanager

import pytest
from dagster import AssetKey, DagsterInstance, build_sensor_context

from gazette_platform.errors import TransportError, ValidationError
from gazette_platform.resources import LakeResource
from gazette_platform.sensors import fragments_sensor
from gazette_platform.sensors.cursor import SensorCursor, problem_digest
from gazette_platform.sensors.events import journal_partition
from gazette_platform.testing.lake import FragmentFiles, MemoryMetastore

SPEC = """
name: s.{table}
selector: name:prefix={table}/
format: json
columns: [{{name: id, type: bigint}}]
"""


class Platform:
    """A broker, a metastore and a folder of specs; `tick` runs the sensor and keeps its cursor."""

    def __init__(self, tmp_path):
        self.files = FragmentFiles(tmp_path / "fragments")
        self.metastore = MemoryMetastore()
        self.tables = tmp_path / "tables"
        self.tables.mkdir()
        self.instance = DagsterInstance.ephemeral()
        self.cursor = None
        self.failure = None

    @contextmanager
    def source(self):
        yield self

    def journals(self, selector):
        if self.failure is not None:
            raise self.failure
        return self.files.journals(selector)

    def fragments(self, journal, offset, limit):
        return self.files.fragments(journal, offset, limit)

    def client(self):
        return self.metastore

    def write_spec(self, table):
        (self.tables / f"{table}.yaml").write_text(SPEC.format(table=table))

    def tick(self):
        context = build_sensor_context(
            instance=self.instance,
            cursor=self.cursor,
            resources={
                "broker": self,
                "metastore": self,
                "lake": LakeResource(
                    tables=str(self.tables),
                    store_roots=self.files.roots,
                    trino_ui="http://trino:1",
                ),
            },
        )
        result = fragments_sensor(context)
        self.cursor = result.cursor
        return result


@pytest.fixture
def platform(tmp_path):
    return Platform(tmp_path)


def line(n):
    return b'{"id":%d}\n' % n


def test_no_specs(platform):
    result = platform.tick()
    assert "No table specs" in result.skip_reason.skip_message
    assert result.asset_events == []


def test_each_partition_gives_one_event_with_its_accounts(platform):
    platform.write_spec("a")
    for n in range(4):
        platform.files.append("a/part=0", line(n), postfix="hour=05")
    platform.files.append("a/part=0", line(9), postfix="hour=06")
    result = platform.tick()
    first, second, journal = result.asset_events
    assert first.asset_key == second.asset_key == AssetKey(["s", "a"])
    assert (first.partition, second.partition) == ("part=0/hour=05", "part=0/hour=06")
    values = {key: value.value for key, value in first.metadata.items()}
    assert values["dagster/partition_row_count"] == 4
    assert values["rows_added"] == 4
    assert values["fragments"] == 4
    assert (values["begin"], values["end"]) == (0, 36)
    assert values["offsets"] == [[0, 36]]
    assert values["content_bytes"] == 36
    assert values["journal"] == "a/part=0"
    assert values["location"].endswith("/a/part=0/hour=05")
    assert values["dagster/table_name"] == "hive.s.a"
    assert values["trino"] == "http://trino:1/ui/"
    assert [c.name for c in values["dagster/column_schema"].columns] == ["id"]
    assert first.tags["dagster/data_version"] == "0-36"
    assert (journal.asset_key, journal.partition) == (AssetKey(["journals", "s", "a"]), "a/part=0")
    assert journal.metadata["write_head"].value == journal.metadata["registered"].value == 45
    requests = {r.partitions_def_name: r.partition_keys for r in result.dynamic_partitions_requests}
    assert requests == {
        "s.a": ["part=0/hour=05", "part=0/hour=06"],
        "journals.s.a": ["a/part=0"],
    }
    assert result.skip_reason.skip_message == "s.a: 5 fragments in 2 Hive partitions, 5 rows."
    assert json.loads(result.cursor) == {"version": 1, "tables": {"s.a": {"a/part=0": 45}}}


def test_quiet_tick_tells_nothing_and_keeps_the_cursor(platform):
    platform.write_spec("a")
    platform.files.append("a/part=0", line(1), postfix="hour=05")
    first = platform.tick()
    again = platform.tick()
    assert again.asset_events == []
    assert again.dynamic_partitions_requests == []
    assert again.skip_reason.skip_message == "No new fragments."
    assert again.cursor == first.cursor


def test_replay_after_a_lost_cursor_tells_nothing_twice(platform):
    platform.write_spec("a")
    platform.files.append("a/part=0", line(1), postfix="hour=05")
    cursor = platform.tick().cursor
    platform.cursor = None
    again = platform.tick()
    assert again.asset_events == []
    assert again.cursor == cursor


def test_data_version_changes_with_the_covered_offsets(platform):
    platform.write_spec("a")
    versions = []
    for n in range(3):
        platform.files.append("a/part=0", line(n), postfix="hour=05")
        versions.append(platform.tick().asset_events[0].tags["dagster/data_version"])
    assert versions == ["0-9", "0-18", "0-27"]
    platform.files.append("a/part=0", line(3), postfix="hour=06")
    platform.tick()
    platform.files.append("a/part=0", line(4), postfix="hour=05")
    event = platform.tick().asset_events[0]
    assert event.tags["dagster/data_version"] == "0-27_36-45"
    assert event.metadata["gaps"].value == 1


def test_spec_written_later_works_at_the_next_tick(platform):
    platform.write_spec("a")
    platform.files.append("a/part=0", line(1))
    platform.files.append("b/part=0", line(1))
    platform.tick()
    platform.write_spec("b")
    result = platform.tick()
    assert [e.asset_key.path[-1] for e in result.asset_events] == ["b", "b"]


def test_broken_spec_and_bad_data_hold_up_no_other_table(platform):
    (platform.tables / "broken.yaml").write_text("name: [")
    for table in ("bad", "good"):
        platform.write_spec(table)
    platform.files.append("bad/part=0", b"not json\n")
    platform.files.append("good/part=0", line(1))
    result = platform.tick()
    message = result.skip_reason.skip_message
    assert "broken.yaml: not valid YAML" in message
    assert "s.bad: fragment bad/part=0/" in message
    assert "s.good: 1 fragments in 1 Hive partitions, 1 rows." in message
    problems = [e for e in result.asset_events if "problem" in e.metadata]
    assert [e.asset_key for e in problems] == [AssetKey(["s", "bad"])]
    again = platform.tick()
    assert again.asset_events == []
    assert "s.bad: fragment" in again.skip_reason.skip_message


def test_problem_that_has_gone_is_told_once(platform):
    platform.write_spec("a")
    bad = platform.files.append("a/part=0", b"not json\n")
    platform.tick()
    platform.files.forget(bad)
    platform.files.append("a/part=0", line(1))
    result = platform.tick()
    problems = [e.metadata["problem"].value for e in result.asset_events if "problem" in e.metadata]
    assert problems == ["none any more"]
    assert "problems" not in json.loads(result.cursor)


def test_unreachable_broker_fails_the_tick(platform):
    platform.write_spec("a")
    platform.failure = TransportError("cannot reach http://x:1")
    with pytest.raises(TransportError, match="cannot reach"):
        platform.tick()
    assert platform.cursor is None


def test_spec_that_is_gone_is_forgotten(platform):
    platform.write_spec("a")
    platform.files.append("a/part=0", line(1))
    platform.tick()
    (platform.tables / "a.yaml").unlink()
    assert json.loads(platform.tick().cursor) == {"version": 1, "tables": {}}


def test_cursor_keeps_problems_told():
    cursor = SensorCursor(problems={"s.a": problem_digest(["x"])})
    assert SensorCursor.parse(cursor.dump()) == cursor
    assert problem_digest([]) == ""
    with pytest.raises(ValidationError, match="clear it in the Dagster UI"):
        SensorCursor.parse('{"version": 9}')
    with pytest.raises(ValidationError, match="problems"):
        SensorCursor.parse('{"version":1,"tables":{},"problems":3}')


def test_journal_partitions_are_readable_and_distinct():
    assert journal_partition("flights/origin=JFK/part=000") == "flights/origin=JFK/part=000"
    assert journal_partition("a...b|c") == "a%2E%2E%2Eb%7Cc"
    assert journal_partition("a%2Fb") != journal_partition("a/b")
