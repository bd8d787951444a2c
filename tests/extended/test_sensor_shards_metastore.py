"""Several sensors at once over a real metastore: what each registers is counted once, also of tables that two have."""

import copy
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from dagster import DagsterInstance
from sensor_platform import SensorPlatform, line, numbers, total

from gazette_platform.lake.partition_state import PartitionState
from gazette_platform.sensors import fragments, fragments_sensor, fragments_sensors

pytestmark = [pytest.mark.hive, pytest.mark.trino, pytest.mark.timeout(400)]

TABLES = [f"shard{n}" for n in range(6)]
ROUNDS = 3


@pytest.fixture
def platform(tmp_path, metastore, monkeypatch):
    monkeypatch.setattr(fragments, "_HAND_OVER_S", 0)
    with DagsterInstance.ephemeral() as instance:
        # Only those that a daemon may run on keep states of sensors.
        monkeypatch.setattr(instance, "all_instigator_state", list)
        made = SensorPlatform(tmp_path, instance)
        made.metastore = metastore
        for table in TABLES:
            made.write_spec(table)
        yield made
    with metastore.connect() as session:
        for table in session.tables("s"):
            if table.startswith("shard"):
                session.drop_table("s", table)


class Ticking:
    """A sensor of the platform, with its cursor. Ticks begin together with those of others."""

    def __init__(self, platform, sensor, meet, told):
        self.cursor, self.sensor, self._told = None, sensor, told
        self._platform, self._meet = platform, meet

    def tick(self):
        self._meet.wait(60)
        mine = copy.copy(self._platform)
        mine.sensor, mine.cursor = self.sensor, self.cursor
        store = mine.store
        mine.store = store if self._told else lambda result: None
        mine.full_tick()
        self.cursor = mine.cursor
        return mine.text


def append_to_all(platform, count):
    for table in TABLES:
        for hour in range(2):
            for _ in range(count):
                platform.files.append(f"{table}/part=0", line(1), postfix=f"hour={hour}")


def accounts(metastore, table):
    """Rows by Hive partition, as registered."""
    with metastore.connect() as session:
        found = session.partitions(session.table("s", table))
        states = {p.values: PartitionState.from_parameters(p.parameters) for p in found}
    return {values: (state.rows, state.ranges) for values, state in states.items()}


@pytest.mark.parametrize("is_handing_over", [False, True])
def test_sensors_at_once_count_everything_once(platform, metastore, is_handing_over):
    """Also while a tick of the one sensor that had all tables before has not ended; what it tells is lost."""
    sensors = fragments_sensors(2) + ([fragments_sensor] if is_handing_over else [])
    meet = threading.Barrier(len(sensors))
    ticking = [Ticking(platform, s, meet, s is not fragments_sensor) for s in sensors]
    with ThreadPoolExecutor(len(sensors)) as threads:
        for _ in range(ROUNDS):
            append_to_all(platform, 2)
            texts = [f.result(120) for f in [threads.submit(each.tick) for each in ticking]]
            assert not [text for text in texts if "another process" in text or "bug" in text]
        for _ in range(2):
            for ticked in [threads.submit(each.tick) for each in ticking]:
                ticked.result(120)
    for table in TABLES:
        expected = {"0/0": 2 * ROUNDS, "0/1": 2 * ROUNDS}
        rows = {"/".join(v): rows for v, (rows, _) in accounts(metastore, table).items()}
        assert rows == expected
        told = Counter({k: sum(rows) for k, rows in numbers(platform.instance, table).items()})
        assert told == {"0": 2 * ROUNDS, "1": 2 * ROUNDS}
        assert total(platform.instance, table) == 4 * ROUNDS
