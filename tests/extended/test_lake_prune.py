"""Prunes by `gazctl` of a real broker's journal, followed into a real metastore, Trino and Dagster."""

import asyncio
from dataclasses import replace

import pytest
from dagster import AssetKey, AssetMaterialization, DagsterInstance, DeleteDynamicPartitionsRequest

from gazette_platform.cli.gazctl import main
from gazette_platform.client import AsyncClient, Change, Client, ClientConfig
from gazette_platform.hive import SharedMetastore
from gazette_platform.lake import (
    Auditor,
    BrokerSource,
    FitChecker,
    Registrar,
    Repairer,
    Shrinker,
    SpecFolder,
    StoreRoots,
    parse_table_spec,
)
from gazette_platform.lake.full_audit import audit_table
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.durations import SECOND_NS
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec
from gazette_platform.sensors.audits import TableAudits
from gazette_platform.sensors.cursor import SensorCursor
from gazette_platform.sensors.fragments import TickPorts, run_tick
from gazette_platform.sensors.retention import Retention
from gazette_platform.sensors.told import InstanceTold
from gazette_platform.testing.broker import BrokerServer
from gazette_platform.testing.local_broker import store_fragment
from gazette_platform.testing.waiting import eventually

pytestmark = [pytest.mark.etcd, pytest.mark.hive, pytest.mark.trino, pytest.mark.timeout(400)]

JOURNAL = "prune/part=0"
SPEC = parse_table_spec(
    "{name: pruning.events, selector: 'name:prefix=prune/', format: json, "
    "columns: [{name: id, type: bigint}]}"
)
LINE = b'{"id":1}\n'
HOUR_S = 3600


class Platform:
    """A sensor over real servers: its ticks, and what Dagster keeps of them."""

    def __init__(self, client, metastore, roots, instance):
        self.source = BrokerSource(client)
        self.metastore = metastore
        self.roots = StoreRoots(roots)
        self.instance = instance
        self.cursor = None
        self.text = ""

    def tick(self):
        with SharedMetastore(self.metastore) as shared:
            ports = TickPorts(
                registrar=Registrar(self.source, shared, self.roots),
                audits=TableAudits(
                    Auditor(self.source, self.roots),
                    Repairer(self.source, self.roots),
                    FitChecker(self.source, self.roots),
                    shared,
                ),
                retention=Retention(Shrinker(self.source, self.roots), shared),
                told=InstanceTold(self.instance),
            )
            outcome = run_tick(
                ports, SpecFolder({SPEC.name: SPEC}), SensorCursor.parse(self.cursor)
            )
        for event in outcome.events:
            self.instance.report_runless_asset_event(event)
        for request in outcome.partitions:
            if isinstance(request, DeleteDynamicPartitionsRequest):
                for key in request.partition_keys:
                    self.instance.delete_dynamic_partition(request.partitions_def_name, key)
            else:
                self.instance.add_dynamic_partitions(
                    request.partitions_def_name, request.partition_keys
                )
        self.cursor = outcome.cursor.dump()
        self.text = outcome.text

    def names(self):
        """Hive partitions, and the partitions of Dagster."""
        with self.metastore.connect() as session:
            table = session.table(SPEC.schema, SPEC.table)
            found = session.partition_names(table) if table is not None else []
        return found, sorted(self.instance.get_dynamic_partitions(SPEC.name))

    def events(self):
        records = self.instance.fetch_materializations(
            AssetKey(["pruning", "events"]), limit=100
        ).records
        return [record.asset_materialization for record in reversed(records)]

    def findings(self):
        """What all audits at once find."""
        with self.metastore.connect() as session:
            table = session.table(SPEC.schema, SPEC.table)
            return list(audit_table(session, SPEC, table, self.source, self.roots))


@pytest.fixture
def server(etcd_server, etcd_prefix, tmp_path):
    with BrokerServer(tmp_path, etcd=etcd_server.endpoint, prefix=etcd_prefix) as server:
        yield server


@pytest.fixture
def platform(server, metastore):
    roots = {"file:///": f"file://{server.fragments}/"}
    with (
        DagsterInstance.ephemeral() as instance,
        Client(ClientConfig(address=server.address)) as client,
    ):
        yield Platform(client, metastore, roots, instance)
    with metastore.connect() as session:
        for name in session.tables(SPEC.schema):
            session.drop_table(SPEC.schema, name)


def store(server, begin, hour, age_h, journal=JOURNAL):
    """A line, stored so many hours ago in the directory of an hour."""
    made = store_fragment(
        server.fragments,
        journal,
        begin * len(LINE),
        LINE,
        codec=CompressionCodec.GZIP,
        stored_at=SystemClock().unix_s() - age_h * HOUR_S,
    )
    target = server.fragments / journal / f"hour={hour:02}" / made.content_name
    target.parent.mkdir(parents=True, exist_ok=True)
    (server.fragments / made.content_path).rename(target)


def spec(**changes):
    fragment = FragmentSpec(
        length=1 << 20,
        codec=CompressionCodec.GZIP,
        stores=("file:///",),
        refresh_interval_ns=SECOND_NS,
        retention_ns=24 * HOUR_S * SECOND_NS,
    )
    return JournalSpec(JOURNAL, 1, fragment=replace(fragment, **changes))


async def settled(platform, *hours):
    """Tick until there are just these Hive partitions, in the metastore and in Dagster."""
    names = [f"part=0/hour={hour:02}" for hour in hours]
    keys = [f"{hour:02}" for hour in hours]

    async def is_so():
        await asyncio.to_thread(platform.tick)
        return await asyncio.to_thread(platform.names) == (names, keys)

    await eventually(is_so, timeout_s=120)


@pytest.fixture
async def client(server):
    async with AsyncClient(ClientConfig(address=server.address)) as client:
        await client.apply([Change(spec())])
        yield client


@pytest.fixture
def prune(server, tmp_path, monkeypatch):
    """`gazctl journals prune` of the journal."""
    monkeypatch.setenv("HOME", str(tmp_path))
    arguments = ["--file-root", str(server.fragments), "--broker.address", server.address]

    async def run(*flags):
        command = ["journals", "prune", JOURNAL, *arguments, *map(str, flags)]
        assert await asyncio.to_thread(main, command) == 0

    return run


async def listed(client, count, journal=JOURNAL):
    """Wait until the broker lists so many fragments."""

    async def is_so():
        return len(await client.fragments(journal)) == count

    await eventually(is_so)


async def counted(trino):
    query = "SELECT hour, count(*) FROM hive.pruning.events GROUP BY 1 ORDER BY 1"
    return await asyncio.to_thread(trino.query, query)


async def ticks(platform, count=6):
    for _ in range(count):
        await asyncio.to_thread(platform.tick)


async def test_prunes_are_followed_and_told_once(server, client, platform, trino, prune):
    # Two an hour; of the third hour one is old. Reads jump to the last ones.
    ages = [(1, 40), (1, 39), (2, 38), (2, 37), (3, 25), (3, 20), (4, 13), (4, 12), (5, 8), (5, 7)]
    for begin, (hour, age_h) in enumerate(ages):
        store(server, begin, hour, age_h)
    await listed(client, 10)
    await settled(platform, 1, 2, 3, 4, 5)
    assert await counted(trino) == [(f"{h:02}", 2) for h in range(1, 6)]

    await prune()
    await listed(client, 5)
    await settled(platform, 3, 4, 5)
    assert await counted(trino) == [("03", 1), ("04", 2), ("05", 2)]
    events = await asyncio.to_thread(platform.events)
    assert sorted(
        (e.partition, e.metadata["rows_added"].value, e.metadata["fragments"].value)
        for e in events[5:]
    ) == [
        ("01", -2, 0),
        ("02", -2, 0),
        ("03", -1, 1),
    ]
    assert await asyncio.to_thread(platform.findings) == []

    await prune("--from-offset", 6 * len(LINE), "--before-offset", 8 * len(LINE))
    await listed(client, 3)
    await settled(platform, 3, 5)
    # A lost cursor finds all done, and tells nothing.
    count = len(await asyncio.to_thread(platform.events))
    platform.cursor = None
    await ticks(platform)
    assert len(await asyncio.to_thread(platform.events)) == count
    findings = await asyncio.to_thread(platform.findings)
    assert [(f.kind, f.is_error) for f in findings] == [("gap", False)]
    assert await counted(trino) == [("03", 1), ("05", 2)]


async def test_a_time_is_of_all_journals_also_when_one_is_pruned(
    server, client, platform, trino, prune
):
    """And Dagster has partitions of a former release, one a Hive partition."""
    other = "prune/part=1"
    await client.apply([Change(replace(spec(), name=other))])
    for begin, (hour, age_h) in enumerate([(1, 40), (2, 38), (3, 13), (4, 7)]):
        store(server, begin, hour, age_h)
    for begin, (hour, age_h) in enumerate([(1, 8), (4, 7)]):
        store(server, begin, hour, age_h, journal=other)
    await listed(client, 4)
    await listed(client, 2, other)
    formers = ["0/01", "1/01", "part=0/hour=02"]
    platform.instance.add_dynamic_partitions(SPEC.name, formers)
    for count, key in enumerate(formers, 1):
        event = AssetMaterialization(
            AssetKey(["pruning", "events"]),
            partition=key,
            metadata={
                "fragments": 1,
                "content_bytes": len(LINE),
                "rows_added": 1,
                "dagster/partition_row_count": 1,
                "dagster/row_count": count,
            },
            tags={"dagster/data_version": f"0-{len(LINE)}"},
        )
        platform.instance.report_runless_asset_event(event)

    def hive(*parts):
        return [f"part={part}/hour={hour:02}" for part, hour in parts]

    async def come_to(names, keys):
        async def is_so():
            await asyncio.to_thread(platform.tick)
            return await asyncio.to_thread(platform.names) == (names, keys)

        await eventually(is_so, timeout_s=120)

    all_of_one, all_of_other = [(0, 1), (0, 2), (0, 3), (0, 4)], [(1, 1), (1, 4)]
    await come_to(hive(*all_of_one, *all_of_other), ["01", "02", "03", "04"])
    assert await counted(trino) == [("01", 2), ("02", 1), ("03", 1), ("04", 2)]

    def told():
        """Rows added under the new keys, and those that the table has."""
        added, events = {}, platform.events()[len(formers) :]
        for event in events:
            rows = event.metadata["rows_added"].value
            added.setdefault(event.partition, []).append(rows)
        return added, events[-1].metadata["dagster/row_count"].value

    first = {"01": [0], "02": [0], "03": [1], "04": [2]}
    assert await asyncio.to_thread(told) == (first, 6)

    await prune()
    await listed(client, 2)
    # At hour 1 the other journal has something left, at hour 2 nobody has.
    await come_to(hive((0, 3), (0, 4), *all_of_other), ["01", "03", "04"])
    await ticks(platform)
    assert await asyncio.to_thread(told) == (first | {"01": [0, -1], "02": [0, -1]}, 4)
    assert await counted(trino) == [("01", 1), ("03", 1), ("04", 2)]
    # A lost cursor finds all done, and tells nothing.
    platform.cursor = None
    await ticks(platform)
    assert await asyncio.to_thread(told) == (first | {"01": [0, -1], "02": [0, -1]}, 4)


async def test_a_store_that_went_away_is_no_prune(server, client, platform, trino, tmp_path):
    for begin, hour in enumerate((3, 4, 5)):
        store(server, begin, hour, 10 - hour)
    await listed(client, 3)
    await settled(platform, 3, 4, 5)
    # The folder of the journal is empty, and brokers believe it. Then something is stored there.
    away = tmp_path / "away"
    (server.fragments / JOURNAL).rename(away)
    await listed(client, 0)
    await ticks(platform)
    store(server, 3, 6, 0)
    await listed(client, 1)
    await settled(platform, 3, 4, 5, 6)
    await ticks(platform)
    assert "may not have been pruned" in platform.text
    await settled(platform, 3, 4, 5, 6)

    for folder in away.iterdir():
        folder.rename(server.fragments / JOURNAL / folder.name)
    await listed(client, 4)

    async def is_quiet():
        await ticks(platform, 1)
        return "may not have been pruned" not in platform.text

    await eventually(is_quiet, timeout_s=60)
    await settled(platform, 3, 4, 5, 6)
    assert await counted(trino) == [(f"{h:02}", 1) for h in (3, 4, 5, 6)]
