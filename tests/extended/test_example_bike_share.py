"""The example bike-share: over a real broker, etcd and PostgreSQL, loaded by gazctl, asked over HTTP."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
import uuid
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from google.protobuf import text_format

from examples.bike_share.application import BikeShare
from examples.bike_share.data import HEADER, make
from gazette_platform.consumer.protocol import ReplicaCode, parse_shard_changes
from gazette_platform.consumer.store import sql_engine
from gazette_platform.errors import ApplicationFailed
from gazette_platform.message import Flags, modulo, read_committed
from gazette_platform.protocol.pb import protocol_pb2
from gazette_platform.testing.waiting import eventually
from gazette_platform.yaml_specs.journal_tree import parse_journal_tree

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "bike_share"
RIDES = "app.gazette.dev/message-type=bike_share.Ride"
CYCLES = [f"examples/bike-share/cycles/part-{number:03}" for number in range(2)]
SHARDS = [f"cycles-part-{number:03}" for number in range(4)]
RIDES_OF = {name: f"examples/bike-share/rides/{name.removeprefix('cycles-')}" for name in SHARDS}
DATA = make()
GAZCTL = f"{sys.executable} -m gazette_platform.cli.gazctl"


def shard_of(bike):
    return SHARDS[modulo(str(bike).encode(), len(SHARDS))]


class World:
    def __init__(self, client, consumers, engine, prefix):
        self.client, self.consumers, self.engine = client, consumers, engine
        self.prefix = prefix

    async def start(self, **settings):
        return await self.consumers.start(BikeShare(self.engine), **settings)

    async def create(self):
        changes = parse_shard_changes((FOLDER / "shards.yaml").read_text())
        # An etcd that tests share keeps hints of each apart.
        specs = [
            replace(change.spec, hint_prefix=change.spec.hint_prefix and f"{self.prefix}-hints")
            for change in changes
        ]
        await self.consumers.create_shards(*specs)

    async def shell(self, command, content):
        environ = {
            "BROKER_ADDRESS": self.client.config.address,
            "PYTHONPATH": str(ROOT),
            "PATH": "/usr/bin:/bin",
        }
        done = await asyncio.to_thread(
            subprocess.run,
            ["bash", "-o", "pipefail", "-c", command],
            input=content,
            capture_output=True,
            env=environ,
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    async def keyed(self, rows):
        """Rides as the loader gives them to `gazctl journals append`: a key, and the record."""
        content = "".join(",".join(row) + "\n" for row in [HEADER.split(","), *rows]).encode()
        command = f"{GAZCTL} attach-uuids --skip-header | awk -F, '{{print $13; print}}'"
        return await self.shell(command, content)

    async def append(self, keyed):
        command = f"{GAZCTL} journals append -l {RIDES} --framing=lines --mapping=modulo"
        await self.shell(command, keyed)

    async def cycles(self):
        """All cycles that are committed: bike and stations, in order of bikes."""
        found = []
        for journal in CYCLES:
            async with await read_committed(self.client, journal, block=False) as reader:
                async for batch in reader:
                    for each in batch:
                        if each.uuid.flags == Flags.ACK_TXN:
                            continue
                        cycle = each.message
                        assert set(cycle) == {"UUID", "BikeID", "Steps"}
                        assert CYCLES[modulo(str(cycle["BikeID"]).encode(), 2)] == journal
                        found.append(
                            (cycle["BikeID"], [step["Station"] for step in cycle["Steps"]])
                        )
        return sorted(found)

    async def behind(self, process):
        """Shards that a process has, and that have rides to consume or to commit."""
        heads = {name: await self.client.write_head(RIDES_OF[name]) for name in SHARDS}
        replicas = {name: process.replicas.get(name) for name in SHARDS}
        return [
            name
            for name, replica in replicas.items()
            if replica is not None
            and replica.assignment.slot == 0
            and replica.progress.read_through.get(RIDES_OF[name], 0) < heads[name]
        ]

    async def check_running(self):
        """Raises: one has failed, or no process takes it over from one that leaves."""
        for name in SHARDS:
            await self.consumers.wait_primary(name)


@pytest.fixture
def engine(postgres):
    name = f"bikes_{uuid.uuid4().hex[:8]}"
    postgres.sql(f"CREATE DATABASE {name}")
    engine = sql_engine(postgres.url(name))
    yield engine
    engine.dispose()


@pytest.fixture
async def world(local_consumers, etcd_prefix, engine):
    client = local_consumers.client
    await client.apply(parse_journal_tree((FOLDER / "journals.yaml").read_text()))
    return World(client, local_consumers, engine, etcd_prefix)


def test_the_data_set_has_loops_for_each_shard():
    assert make() == DATA
    assert {shard_of(bike) for bike in DATA.loops} == set(SHARDS)
    starts = [(row[11], row[1]) for row in DATA.rows]
    assert len(set(starts)) == len(starts)
    assert all(len(stations) > 11 for stations in DATA.loops.values())


async def get(process, query, **headers):
    address = f"http://127.0.0.1:{process.http_port}/api/bikes{query}"
    async with aiohttp.ClientSession() as http, http.get(address, headers=headers) as answer:
        return answer.status, answer.headers, await answer.text()


async def test_any_process_returns_last_rides_of_a_bike(world):
    # A call without a token is served, and one with a token that does not verify is not.
    keys = f"{base64.b64encode(b'a key that nobody can guess').decode()},AA=="
    processes = [await world.start(auth_keys=keys), await world.start(auth_keys=keys)]
    await world.create()
    keyed = await world.keyed(DATA.rows)
    await world.append(keyed)
    await world.consumers.wait_through()
    records = [line.decode().split(",") for line in keyed.splitlines()[1::2]]
    served_by = set()
    for bike in {shard_of(bike): bike for bike in DATA.loops}.values():
        rides = [record for record in records if record[12] == str(bike)][-20:]
        for process in processes:
            status, headers, content = await get(process, f"?id={bike}")
            assert (status, headers["X-Shard-ID"]) == (200, shard_of(bike)), content
            header = text_format.Parse(headers["X-Header"], protocol_pb2.Header())
            served_by.add((process.process_id.suffix, header.process_id.suffix))
            assert [json.loads(line) for line in content.splitlines()] == [
                {
                    "UUID": ride[0],
                    "StartTime": ride[2],
                    "EndTime": ride[3],
                    "StartStation": ride[5],
                    "EndStation": ride[9],
                }
                for ride in rides
            ]
    # Each has answered by itself, and for the other.
    names = [process.process_id.suffix for process in processes]
    assert served_by == {(asked, serving) for asked in names for serving in names}

    assert (await get(processes[0], "?id=1"))[2] == ""  # which has no rides


async def test_what_cannot_be_answered_is_418(world):
    process = await world.start()
    for query, reason in {
        "": "expected the number of a bike",
        "?id=x": "expected the number of a bike",
        "?id=14500": "no shard reads",
    }.items():
        status, _, content = await get(process, query)
        assert status == 418
        assert reason in content
    await world.create()
    for header, reason in {
        "nonsense": "nonsense",
        'process_id { zone: "local" suffix: "another" } etcd { cluster_id: 1 revision: 1 }': "our own",
    }.items():
        status, _, content = await get(process, "?id=14500", **{"X-ProxyHeader": header})
        assert status == 418
        assert reason in content


async def test_a_shard_without_a_log_needs_a_database(world):
    world.consumers.expect(ApplicationFailed)
    world.engine = None
    await world.start()
    with pytest.raises(AssertionError, match=r"--bikeshare\.database"):
        await world.create()


async def test_record_that_is_not_a_ride_fails_its_shard(world):
    world.consumers.expect(ApplicationFailed)
    await world.start()
    await world.create()
    (line,) = DATA.rows[:1]
    await world.append(await world.keyed([[*line[:11], "no bike", *line[12:]]]))
    name = shard_of("no bike")
    async with world.consumers.shard_client() as client:

        async def has_failed():
            (listing,) = await client.list(f"id={name}")
            return listing.status if listing.status.code is ReplicaCode.FAILED else None

        status = await eventually(has_failed)
    assert "the 12th is the bike's number" in status.errors[0]
