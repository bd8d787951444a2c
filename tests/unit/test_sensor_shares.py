"""Sensors that share the tables out: each table has one, whatever their number, and however often that is changed."""

import random
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
from dagster import AssetCheckEvaluation, AssetKey, AssetMaterialization
from dagster_instances import new_instance
from hypothesis import given, strategies as st
from sensor_platform import SensorPlatform, line, numbers, parts_of, total

from gazette_platform.assets import SPECS_KEY
from gazette_platform.assets.checks import SPECS_CHECK
from gazette_platform.components import GazetteLake
from gazette_platform.definitions import lake_definitions
from gazette_platform.errors import ValidationError
from gazette_platform.lake import LakeSettings
from gazette_platform.sensors import fragments, fragments_sensors
from gazette_platform.sensors.cursor import SensorCursor
from gazette_platform.sensors.fragments import SENSORS_MAX, Share, epoch_of, shares
from gazette_platform.sensors.prunes import RetentionState

pytestmark = pytest.mark.long

TABLES = ["a", "b", "c", "d", "e", "f"]


class Shared(SensorPlatform):
    """A platform with several sensors, each with its cursor, which its name keeps."""

    def __init__(self, tmp_path, instance):
        super().__init__(tmp_path, instance)
        self.cursors = {}
        self.killed = ()

    def tick_of(self, sensor):
        self.sensor, self.cursor = sensor, self.cursors.get(sensor.name)
        result = self.full_tick()
        self.cursors[sensor.name] = self.cursor
        return result

    def ticks(self, count):
        """A tick of each of `count` sensors, by name."""
        return {sensor.name: self.tick_of(sensor) for sensor in fragments_sensors(count)}

    def killed_tick(self, sensor, events):
        """The daemon dies after some events of this tick, and keeps neither partitions nor cursor."""
        store = self.store
        self.store = lambda result: store(result, events=events, is_killed=True)
        try:
            return self.tick_of(sensor)
        finally:
            self.store = store

    def states(self):
        """What Dagster keeps of sensors, also of those that no longer exist."""
        return [
            SimpleNamespace(
                instigator_name=name, sensor_instigator_data=SimpleNamespace(cursor=text)
            )
            for name, text in [*self.cursors.items(), ("catalog", "x"), ("fragments_9", "x")]
        ]

    def cursor_of(self, name):
        return parts_of(self.cursors[name])


@pytest.fixture
def platform(tmp_path, monkeypatch):
    monkeypatch.setattr(fragments, "_HAND_OVER_S", 0)
    with new_instance() as instance:
        made = Shared(tmp_path, instance)
        # Only those that a daemon may run on keep states of sensors.
        monkeypatch.setattr(instance, "all_instigator_state", made.states)
        yield made


def owner(table, count):
    return next(share.name for share in shares(count) if share.owns(f"s.{table}"))


def tables_told(result):
    return {e.asset_key.path[-1] for e in result.asset_events if e.asset_key != SPECS_KEY}


@given(st.text(min_size=1), st.integers(1, SENSORS_MAX))
def test_each_table_has_one_sensor(table, count):
    assert sum(share.owns(table) for share in shares(count)) == 1
    assert Share().owns(table)


def test_tables_are_shared_out_evenly_and_as_they_always_were():
    names = [f"s.t{n}" for n in range(1000)]
    found = Counter(share.index for name in names for share in shares(4) if share.owns(name))
    assert all(200 < found[n] < 300 for n in range(4))
    # Another release, or process, must not give a table to another sensor: it would have two meanwhile.
    owned = [next(s.index for s in shares(8) if s.owns(name)) for name in names[:12]]
    assert owned == [1, 1, 7, 1, 6, 3, 3, 7, 7, 6, 4, 0]


@pytest.mark.parametrize("count", [0, -1, SENSORS_MAX + 1])
def test_a_number_of_sensors_that_cannot_be_is_refused(count):
    with pytest.raises(ValidationError, match=f"{count} is not between 1 and 32"):
        fragments_sensors(count)


def test_each_sensor_has_its_tables_and_nothing_of_others(platform):
    for table in TABLES:
        platform.write_spec(table)
        platform.files.append(f"{table}/part=0", line(1), postfix="hour=05")
    for sensor in fragments_sensors(3):
        platform.files.calls.clear()
        result = platform.tick_of(sensor)
        mine = {table for table in TABLES if owner(table, 3) == sensor.name}
        assert mine  # the names are so chosen
        assert tables_told(result) == mine
        assert platform.cursor_of(sensor.name)["tables"].keys() == {f"s.{t}" for t in mine}
        assert {c[1].partition("/")[0] for c in platform.files.calls if c[0] == "fragments"} == mine
    assert all(numbers(platform.instance, table) == {"05": [1]} for table in TABLES)
    again = platform.ticks(3)
    assert not any(result.asset_events for result in again.values())


def test_a_spec_that_is_new_needs_no_reload(platform):
    platform.write_spec("a")
    loaded = fragments_sensors(4)
    for sensor in loaded:
        platform.tick_of(sensor)
    for table in TABLES[1:]:
        platform.write_spec(table)
        platform.files.append(f"{table}/part=0", line(1), postfix="hour=05")
    for sensor in loaded:
        platform.tick_of(sensor)
    assert all(numbers(platform.instance, table) == {"05": [1]} for table in TABLES[1:])


def test_one_sensor_reports_the_folder_and_the_tables_sensor_a_refused_file(platform):
    for table in TABLES:
        platform.write_spec(table)
    (platform.tables / "a.yaml").write_text("name: s.a\nselector: [")
    (platform.tables / "nameless.yaml").write_text("columns: [")
    found = platform.ticks(3)
    assert len(found) == 3
    texts = {}
    for name, result in found.items():
        of_folder = [e for e in result.asset_events if e.asset_key == SPECS_KEY]
        assert [type(e) for e in of_folder] == (
            [AssetMaterialization, AssetCheckEvaluation] if name == "fragments_0" else []
        )
        texts[name] = {
            e.asset_key.path[-1]
            for e in result.asset_events
            if "refused" in str(e) or "YAML" in str(e)
        }
        if of_folder:
            assert of_folder[0].metadata["refused"].value.keys() == {"a.yaml", "nameless.yaml"}
            assert of_folder[1].check_name == SPECS_CHECK
            assert of_folder[1].metadata["tables"].value == len(TABLES) - 1
    assert [name for name, told in texts.items() if "a" in told] == [owner("a", 3)]
    # What belongs to none is said by the first alone.
    platform.cursors.clear()
    said = []
    for sensor in fragments_sensors(3):
        platform.tick_of(sensor)
        said += [sensor.name] if "nameless.yaml" in platform.text else []
    assert said == ["fragments_0"]


def test_no_table_is_forgotten_while_a_file_of_another_sensor_is_refused(platform):
    for table in TABLES:
        platform.write_spec(table)
        platform.files.append(f"{table}/part=0", line(1), postfix="hour=05")
    platform.ticks(3)
    before = {name: platform.cursor_of(name)["tables"] for name in platform.cursors}
    assert sum(map(len, before.values())) == len(TABLES)
    mine = owner("a", 3)
    (platform.tables / "a.yaml").write_text("columns: [")
    platform.ticks(3)
    assert {name: platform.cursor_of(name)["tables"] for name in platform.cursors} == before
    (platform.tables / "a.yaml").unlink()
    platform.ticks(3)
    del before[mine]["s.a"]
    assert {name: platform.cursor_of(name)["tables"] for name in platform.cursors} == before


def test_a_sensor_without_a_table_forgets_that_it_had_one(platform):
    for table in TABLES:
        platform.write_spec(table)
    platform.ticks(6)
    lonely = [t for t in TABLES if sum(owner(t, 6) == owner(o, 6) for o in TABLES) == 1]
    (platform.tables / f"{lonely[0]}.yaml").unlink()
    platform.ticks(6)
    assert platform.cursor_of(owner(lonely[0], 6))["tables"] == {}


@pytest.mark.parametrize("seed", range(2))
def test_however_often_their_number_changes_all_is_reported_once(platform, seed):
    chance = random.Random(seed)
    appended = {table: Counter() for table in TABLES}
    for table in TABLES:
        platform.write_spec(table)
    for count in (1, 3, 2, 5, 1):
        for _ in range(2):
            for table in TABLES:
                for _ in range(chance.randrange(3)):
                    part, hour = chance.randrange(2), chance.randrange(2)
                    platform.files.append(f"{table}/part={part}", line(1), postfix=f"hour={hour}")
                    appended[table][str(hour)] += 1
            for sensor in fragments_sensors(count):
                if chance.random() < 0.4:
                    platform.killed_tick(sensor, chance.randrange(4))
                else:
                    platform.tick_of(sensor)
    for _ in range(3):
        found = platform.ticks(1)
    assert not found["fragments"].asset_events
    for table in TABLES:
        told = {key: sum(rows) for key, rows in numbers(platform.instance, table).items()}
        assert told == appended[table]
        assert total(platform.instance, table) == sum(appended[table].values())
        assert set(platform.instance.get_dynamic_partitions(f"s.{table}")) == set(told)
        with platform.metastore.connect() as session:
            found = session.partitions(session.table("s", table))
            rows = sum(int(partition.parameters["numRows"]) for partition in found)
        assert rows == sum(appended[table].values())


def newest(instance, table):
    """What Dagster shows of the check `keeps_up`."""
    from dagster import AssetCheckKey

    from gazette_platform.assets.checks import newest_evaluations

    key = AssetCheckKey(AssetKey(["s", table]), "keeps_up")
    return newest_evaluations(instance, [key])[key].passed


def test_reports_of_others_meanwhile_are_corrected(platform):
    """A cursor of long ago says that green was reported, and it is green again; but it was red in between."""
    platform.write_spec("a")
    platform.files.append("a/part=0", line(1), postfix="hour=05")
    platform.ticks(1)
    assert newest(platform.instance, "a")
    (platform.tables / "a.yaml").write_text("name: s.a\nselector: [")
    platform.ticks(2)
    assert not newest(platform.instance, "a")
    platform.write_spec("a")
    platform.ticks(1)
    assert newest(platform.instance, "a")
    of_folder = [e for e in platform.full_tick().asset_events if e.asset_key == SPECS_KEY]
    assert not of_folder
    records = platform.instance.fetch_materializations(SPECS_KEY, limit=1).records
    assert records[0].asset_materialization.metadata["refused"].value == {}
    assert [epoch_of(platform.instance, share) for share in (Share(), Share(1, 2))] == [2, 3]


def test_after_a_change_of_their_number_former_ticks_have_time_to_end(platform, monkeypatch):
    monkeypatch.setattr(fragments, "_HAND_OVER_S", 3600)
    platform.write_spec("a")
    platform.files.append("a/part=0", line(1), postfix="hour=05")
    platform.ticks(1)
    assert numbers(platform.instance, "a") == {"05": [1]}  # none existed before
    platform.files.append("a/part=0", line(1), postfix="hour=05")
    for _ in range(2):
        for result in platform.ticks(2).values():
            assert not result.asset_events
            assert "shared out again" in result.skip_reason.skip_message
    monkeypatch.setattr(fragments, "_HAND_OVER_S", 0)
    platform.ticks(2)
    monkeypatch.setattr(fragments, "_HAND_OVER_S", 3600)
    platform.files.append("a/part=0", line(1), postfix="hour=05")
    platform.ticks(2)
    assert numbers(platform.instance, "a") == {"05": [1, 1, 1]}


def test_that_brokers_once_listed_nothing_of_a_journal_is_passed_on(platform, monkeypatch):
    """Else what is gone with a store that is away could be taken for a prune."""

    def broken(count):
        found = [parts_of(platform.cursors[s.name]).get("retention", {}) for s in shares(count)]
        return {t: journals for each in found for t, journals in each.get("broken", {}).items()}

    for table in TABLES:
        platform.write_spec(table)
    former = {"s.a": {"a/part=0": [9, None]}, "s.b": {"b/part=0": [7, None], "b/part=1": [8, 9]}}
    state = RetentionState.from_json({"broken": former})
    platform.cursors["fragments"] = SensorCursor(retention=state).dump()
    platform.ticks(1)
    assert broken(1) == former
    for count in (2, 5):
        # Each rests first, and by then none has forgotten what is another one's from now on.
        monkeypatch.setattr(fragments, "_HAND_OVER_S", 3600)
        platform.ticks(count)
        monkeypatch.setattr(fragments, "_HAND_OVER_S", 0)
        platform.ticks(count)
        assert broken(count) == former
        assert len([n for n in shares(count) if broken_of(platform, n) == former]) == 0
    # What is known to be mended by now is not brought back by a cursor of long ago.
    for share in shares(5):
        cursor = SensorCursor.parse(platform.cursors[share.name])
        mended = replace(cursor, retention=RetentionState())
        platform.cursors[share.name] = mended.dump()
    platform.ticks(1)
    assert broken(1) == {}


def broken_of(platform, share):
    return parts_of(platform.cursors[share.name]).get("retention", {}).get("broken")


@pytest.mark.parametrize(
    ("variable", "attribute", "names"),
    [
        ({}, None, ["fragments"]),
        ({"GAZETTE_FRAGMENT_SENSORS": "1"}, None, ["fragments"]),
        ({"GAZETTE_FRAGMENT_SENSORS": "3"}, None, ["fragments_0", "fragments_1", "fragments_2"]),
        ({"GAZETTE_FRAGMENT_SENSORS": "3"}, 2, ["fragments_0", "fragments_1"]),
        ({"GAZETTE_FRAGMENT_SENSORS": "3"}, 1, ["fragments"]),
    ],
)
def test_definitions_have_as_many_as_are_asked_for(
    variable, attribute, names, monkeypatch, tmp_path
):
    for name, value in variable.items():
        monkeypatch.setenv(name, value)
    settings = GazetteLake(fragment_sensors=attribute).settings(tmp_path)
    made = lake_definitions(settings)
    assert [s.name for s in made.sensors] == [*names, "typed", "catalog"]
    assert {s.default_status.value for s in made.sensors} == {"RUNNING"}


@pytest.mark.parametrize("text", ["two", "-1", "1.5", "0", "33"])
def test_variable_that_is_not_a_number_of_sensors_is_refused(text):
    with pytest.raises(ValidationError, match="GAZETTE_FRAGMENT_SENSORS"):
        lake_definitions(LakeSettings.from_environment({"GAZETTE_FRAGMENT_SENSORS": text}))
