"""Dagster's partitions are times: what is reported of several journals together."""

import pytest
from dagster import AssetKey
from dagster_instances import new_instance
from sensor_platform import SPEC, SensorPlatform, line, numbers, total

from gazette_platform.lake import Registrar, StoreRoots, parse_table_spec
from gazette_platform.sensors import events
from gazette_platform.sensors.fragments import fragments_sensor

pytestmark = pytest.mark.long

ASSET = AssetKey(["s", "a"])


@pytest.fixture
def platform(tmp_path):
    with new_instance() as instance:
        made = SensorPlatform(tmp_path, instance)
        made.write_spec("a")
        yield made


def partitions(platform):
    return sorted(platform.instance.get_dynamic_partitions("s.a"))


def newest(platform, partition):
    records = platform.instance.fetch_materializations(ASSET, limit=1000).records
    events = [r.asset_materialization for r in records]
    return next(e for e in events if e.partition == partition)


def settle(platform, ticks=4):
    """Ticks enough for a round over all that is old. Returns: how many events they reported."""
    return sum(len(platform.tick().asset_events) for _ in range(ticks))


def register_untold(platform):
    """As `gazctl lake flush` does, which reports nothing."""
    other = Registrar(platform.files, platform.metastore, StoreRoots(platform.files.roots))
    return other.tick(parse_table_spec(SPEC.format(table="a")), {})


def test_journals_are_folded_into_one_event_a_time(platform):
    for part in range(3):
        for hour in ("05", "06"):
            platform.files.append(f"a/part={part}", line(part) * (part + 1), postfix=f"hour={hour}")
    events = [e for e in platform.tick().asset_events if e.asset_key == ASSET]
    assert sorted(e.partition for e in events) == partitions(platform) == ["05", "06"]
    values = {key: value.value for key, value in newest(platform, "05").metadata.items()}
    assert (values["fragments"], values["dagster/partition_row_count"]) == (3, 6)
    assert values["content_bytes"] == 54
    assert values["journals"] == 3
    assert values["offsets"] == "a/part=0: [0, 9); a/part=1: [0, 18); a/part=2: [0, 27)"
    assert "location" not in values
    assert """WHERE "hour" = '05'""" in values["query"]
    assert newest(platform, "05").description == "3 fragments in 3 journals"
    assert total(platform.instance, "a") == 12
    assert settle(platform) == 0


def test_additions_of_one_journal_are_reported_beside_those_of_others(platform):
    for part in range(3):
        platform.files.append(f"a/part={part}", line(part), postfix="hour=05")
    platform.tick()
    platform.files.append("a/part=1", line(7) * 4, postfix="hour=05")
    result = platform.tick()
    told = [(e.asset_key.path[0], e.partition) for e in result.asset_events]
    assert told == [("s", "05"), ("journals", "a/part=1")]
    values = {key: value.value for key, value in newest(platform, "05").metadata.items()}
    assert (values["rows_added"], values["fragments_added"]) == (4, 1)
    assert (values["dagster/partition_row_count"], values["fragments"]) == (7, 4)
    assert numbers(platform.instance, "a") == {"05": [3, 4]}
    assert settle(platform) == 0


def test_a_table_without_times_has_one_key(platform):
    for part in range(3):
        platform.files.append(f"a/part={part}", line(part))
    platform.tick()
    platform.files.append("a/part=0", line(1))
    platform.tick()
    assert numbers(platform.instance, "a") == {"all": [3, 1]}
    assert partitions(platform) == ["all"]
    assert newest(platform, "all").metadata["journals"].value == 3
    assert settle(platform) == 0


def test_rows_of_a_time_are_not_known_once_those_of_one_journal_are_not(platform):
    platform.files.append("a/part=0", line(1), postfix="hour=05")
    bad = platform.files.append("a/part=1", line(1), postfix="hour=05")
    path = platform.files.root / bad.content_path
    path.write_bytes(path.read_bytes()[:-4])
    platform.tick()
    values = newest(platform, "05").metadata
    assert "dagster/partition_row_count" not in values
    assert values["fragments"].value == 2


def test_a_journal_that_is_gone_still_counts(platform):
    """Its files are still in the table."""
    for part in range(2):
        platform.files.append(f"a/part={part}", line(part), postfix="hour=05")
    platform.tick()
    platform.files.remove("a/part=0")
    platform.cursor = None
    platform.files.append("a/part=1", line(1), postfix="hour=05")
    settle(platform)
    assert numbers(platform.instance, "a") == {"05": [2, 1]}
    assert newest(platform, "05").metadata["dagster/partition_row_count"].value == 3


def test_registrations_of_others_at_a_known_time_are_reported_in_turn(platform):
    """Behind the cursor, so that no tick would touch it as something new."""
    for part in range(2):
        platform.files.append(f"a/part={part}", line(part), postfix="hour=05")
    late = platform.files.append("a/part=0", line(5) * 3, postfix="hour=05")
    platform.files.append("a/part=0", line(1), postfix="hour=06")
    platform.files.forget(late)
    platform.tick()
    platform.files.append("a/part=0", line(5) * 3, postfix="hour=05", begin=late.begin)
    register_untold(platform)
    settle(platform)
    assert numbers(platform.instance, "a") == {"05": [2, 3], "06": [1]}


def test_a_tick_asks_dagster_as_often_for_many_times_as_for_one(platform, monkeypatch):
    calls = []
    instance = platform.instance
    for name in ("fetch_materializations", "get_latest_storage_id_by_partition"):
        method = getattr(instance, name)
        monkeypatch.setattr(
            instance, name, lambda *a, _m=method, _n=name, **k: calls.append(_n) or _m(*a, **k)
        )
    counts = []
    for hours in (1, 60):
        for _ in range(2):  # first reported, and reported again
            for hour in range(hours):
                for part in range(2):
                    platform.files.append(f"a/part={part}", line(1), postfix=f"hour={hour:02}")
            calls.clear()
            assert len([e for e in platform.tick().asset_events if e.asset_key == ASSET]) == hours
            counts.append(len(calls))
    assert max(counts) <= 8, counts


def test_offsets_are_a_line_that_stays_short():
    covered = {f"a/part={n:03}": [(10 * k, 10 * k + 5) for k in range(n)] for n in range(1, 61)}
    shown = events._offsets(covered).split("; ")
    assert shown[:2] == ["a/part=001: [0, 5)", "a/part=002: [0, 5), [10, 15)"]
    assert shown[8].endswith("[60, 65), [70, 75), 1 more")
    assert shown[50:] == ["10 more journals"]
    assert events._offsets({}) == ""


@pytest.mark.parametrize(
    ("count", "says"),
    [
        (1, "1 fragment of a/part=0"),
        (2, "2 fragments of a/part=0"),
    ],
)
def test_events_count_in_the_right_number(platform, count, says):
    for _ in range(count):
        platform.files.append("a/part=0", line(1), postfix="hour=05")
    platform.tick()
    assert newest(platform, "05").description == says
    assert events.moved_aside(1) == "1 file that others cover was moved aside"


def test_the_sensor_says_why_its_ticks_are_called_skipped():
    told = fragments_sensor.description
    assert "starts no runs" in told
    assert "calls a tick skipped that starts none, whatever it did" in told
