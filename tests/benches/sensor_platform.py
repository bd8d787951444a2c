"""The fragment sensor with all around it: a broker's files, a metastore, a folder of specs, a Dagster."""

import logging.handlers
from contextlib import contextmanager

from dagster import (
    AssetCheckEvaluation,
    AssetKey,
    DeleteDynamicPartitionsRequest,
    build_sensor_context,
)
from lake_bench import FragmentFiles, MemoryMetastore

from gazette_platform.assets import SPECS_KEY
from gazette_platform.assets.checks import KEEPS_UP_CHECK
from gazette_platform.resources import LakeResource
from gazette_platform.sensors import fragments_sensor
from gazette_platform.sensors.cursor import unpacked

__all__ = ["SPEC", "SensorPlatform", "line", "numbers", "parts_of", "total"]

SPEC = """
name: s.{table}
selector: name:prefix={table}/
format: json
columns: [{{name: id, type: bigint}}]
"""


class SensorPlatform:
    """A broker, a metastore and a folder of specs; `tick` runs the sensor and keeps its cursor."""

    def __init__(self, tmp_path, instance):
        self.files = FragmentFiles(tmp_path / "fragments")
        self.metastore = MemoryMetastore()
        self.tables = tmp_path / "tables"
        self.tables.mkdir()
        self.instance = instance
        self.sensor = fragments_sensor
        self.cursor = None
        self.failure = None
        self.failing = {}

    @contextmanager
    def source(self):
        yield self

    def journals(self, selector):
        if self.failure is not None:
            raise self.failure
        return self.files.journals(selector)

    def created(self, selector):
        """Create revisions of the journals that match, by name."""
        return self.files.created(selector)

    def fragments(self, journal, offset, limit):
        if journal in self.failing:
            raise self.failing[journal]
        return self.files.fragments(journal, offset, limit)

    def client(self):
        return self.metastore

    def write_spec(self, table):
        (self.tables / f"{table}.yaml").write_text(SPEC.format(table=table))

    def tick(self):
        """The events of tables and journals; checks, and reports about the folder, are kept apart."""
        result = self.full_tick()
        events = [e for e in result.asset_events if e.asset_key != SPECS_KEY]
        self.of_folder = [e for e in result.asset_events if e.asset_key == SPECS_KEY]
        evaluations = [e for e in events if isinstance(e, AssetCheckEvaluation)]
        self.kept_up = {
            e.asset_key.path[-1]: e for e in evaluations if e.check_name == KEEPS_UP_CHECK
        }
        self.checks = [e for e in evaluations if e.check_name != KEEPS_UP_CHECK]
        return result._replace(asset_events=[e for e in events if e not in evaluations])

    def full_tick(self):
        context = build_sensor_context(
            instance=self.instance,
            cursor=self.cursor,
            resources={
                "broker": self,
                "metastore": self,
                "lake": LakeResource(
                    tables=str(self.tables),
                    store_roots=self.files.roots,
                    table_url="http://sql/{catalog}/{schema}/{table}",
                ),
            },
        )
        logged = logging.handlers.BufferingHandler(10_000)
        context.log.addHandler(logged)
        result = self.sensor(context)
        self.store(result)
        self.text = "\n".join(record.getMessage() for record in logged.buffer)
        self.levels = [record.levelname for record in logged.buffer]
        return result

    def full_tick_untold(self):
        """A tick whose process ends before it has reported anything."""
        store, self.store = self.store, lambda result: None
        try:
            return self.full_tick()
        finally:
            self.store = store

    def store(self, result, *, events=None, is_killed=False):
        """Keep what a tick returned, as the daemon does: events, partitions, cursor, in this order.

        With `is_killed` the daemon dies after the first `events` events.
        """
        for event in result.asset_events[:events]:
            self.instance.report_runless_asset_event(event)
        if not is_killed:
            for request in result.dynamic_partitions_requests or ():
                name, keys = request.partitions_def_name, request.partition_keys
                if isinstance(request, DeleteDynamicPartitionsRequest):
                    for key in keys:
                        self.instance.delete_dynamic_partition(name, key)
                else:
                    self.instance.add_dynamic_partitions(name, keys)
            self.cursor = result.cursor


def line(n):
    return b'{"id":%d}\n' % n


def parts_of(cursor):
    """What a cursor's text holds for the sensor."""
    return unpacked(cursor)


def numbers(instance, table):
    """Return what was reported to Dagster of each partition of a table: rows added, one number an event."""
    records = instance.fetch_materializations(AssetKey(["s", table]), limit=1000).records
    found = {}
    for event in (record.asset_materialization for record in reversed(records)):
        found.setdefault(event.partition, []).append(event.metadata["rows_added"].value)
    return found


def total(instance, table):
    """Rows of a table, as its newest event says."""
    (record,) = instance.fetch_materializations(AssetKey(["s", table]), limit=1).records
    return record.asset_materialization.metadata["dagster/row_count"].value
