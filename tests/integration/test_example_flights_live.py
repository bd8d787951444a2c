"""The example flights-live: flights that are joined with their planes, over a real broker and etcd."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from examples.flights_live.application import FlightsLive
from examples.flights_live.messages import ENRICHED, FLIGHTS, PLANES, Enriched, Flight, Plane
from examples.flights_live.player import play
from gazette_platform.consumer.protocol import ReplicaCode, ShardChange, parse_shard_changes
from gazette_platform.errors import ApplicationFailed, ValidationError
from gazette_platform.message import (
    Flags,
    JsonFraming,
    modulo,
    read_committed,
)
from gazette_platform.testing.waiting import eventually
from gazette_platform.yaml_specs.journal_tree import parse_journal_tree

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers, pytest.mark.timeout(180)]

FOLDER = Path(__file__).parents[2] / "examples" / "flights_live"
SHARDS = ["enrich-000", "enrich-001"]
ORIGINS = ["EWR", "JFK", "LGA"]
FRAMING = JsonFraming(message_type=Enriched)


def shard_of(tailnum):
    return SHARDS[modulo((tailnum or "").encode(), len(SHARDS))]


def flight(tailnum, dest="SFO", *, origin="JFK", at="2013-01-01T10:00:00Z", number=1, late=0):
    return Flight(
        tailnum=tailnum,
        departs_at=at,
        carrier="UA",
        flight=number,
        origin=origin,
        dest=dest,
        distance=2586,
        dep_delay=late,
        arr_delay=late,
    )


class World:
    def __init__(self, client, consumers, prefix):
        self.client, self.consumers, self.prefix = client, consumers, prefix

    async def start(self):
        return await self.consumers.start(FlightsLive())

    async def create(self, **other):
        changes = parse_shard_changes((FOLDER / "shards.yaml").read_text())
        # An etcd that tests share keeps hints of each apart.
        other["hint_prefix"] = f"{self.prefix}-hints"
        specs = [replace(each.spec, **other) for each in changes]
        await self.consumers.create_shards(*specs)

    async def play(self, *messages):
        """Publish flights, or planes; consumers have taken them when it returns."""
        selector = PLANES if isinstance(messages[0], Plane) else FLIGHTS
        await play(self.client, selector, messages)
        await self.consumers.wait_through()

    async def lines(self, read=read_committed):
        """Messages of all journals, in the order of each; ACKs are left out."""
        found = []
        for origin in ORIGINS:
            journal = f"examples/flights-live/enriched/origin={origin}"
            async with await read(self.client, journal, framing=FRAMING, block=False) as reader:
                async for batch in reader:
                    for each in batch:
                        if each.uuid.flags != Flags.ACK_TXN:
                            assert each.message.origin == origin
                            found.append(replace(each.message, UUID=""))
        return found


@pytest.fixture
async def world(local_consumers, etcd_prefix):
    client = local_consumers.client
    await client.apply(parse_journal_tree((FOLDER / "journals.yaml").read_text()))
    return World(client, local_consumers, etcd_prefix)


async def test_journals_of_the_table_are_read_by_engines_and_others_are_small(world):
    listed = {each.name: each.spec for each in await world.client.list("prefix=examples/")}
    codecs = {name: spec.fragment.codec.name for name, spec in listed.items()}
    assert {codec for name, codec in codecs.items() if "/enriched/" in name} == {"GZIP"}
    assert {codec for name, codec in codecs.items() if "/enriched/" not in name} == {"SNAPPY"}
    assert {spec.fragment.stores for spec in listed.values()} == {("file:///",)}


async def test_a_flight_is_joined_with_its_plane_and_its_flights_before(world):
    await world.start()
    await world.create()
    await world.play(
        Plane(tailnum="N1", year=2001, manufacturer="BOEING", model="737", seats=149),
        Plane(tailnum="N2", year=None, manufacturer="AIRBUS", model="A320", seats=182),
    )
    await world.play(
        first := flight("N1", "SFO", late=30),
        cancelled := replace(flight("N1", "ORD", origin="LGA"), dep_delay=None, arr_delay=None),
        third := flight("N1", "BOS", origin="LGA", at="2013-01-02T03:04:00Z"),
        other := flight("N2", origin="EWR"),
        unknown := flight("N3", origin="EWR"),
        without := flight(None),
    )
    n1 = {"plane_age": 12, "manufacturer": "BOEING", "model": "737", "seats": 149}
    n2 = {"manufacturer": "AIRBUS", "model": "A320", "seats": 182}
    expected = [
        (other, {"plane_flight": 1, **n2}),
        (unknown, {"plane_flight": 1}),
        (first, {"plane_flight": 1, **n1}),
        (without, {}),
        (cancelled, {"plane_flight": 2, "former_dest": "SFO", "former_arr_delay": 30, **n1}),
        # The flight before did not take place, so that the plane is as late as it was.
        (third, {"plane_flight": 3, "former_dest": "ORD", "former_arr_delay": 30, **n1}),
    ]

    def key(found):
        return repr(sorted(asdict(found).items()))

    expected = [Enriched(**asdict(flown) | {"UUID": ""} | more) for flown, more in expected]
    assert sorted(await world.lines(), key=key) == sorted(expected, key=key)

    # What is said of a plane later holds for what is flown later.
    await world.play(Plane(tailnum="N3", year=2010, manufacturer="CESSNA"))
    await world.play(flight("N3", origin="EWR"))
    last = [each for each in await world.lines() if each.tailnum == "N3"][-1]
    assert (last.plane_flight, last.plane_age, last.manufacturer) == (2, 3, "CESSNA")


async def failure_of(world, spec=None, *, shard=""):
    """Why a shard has failed, which is created here, or there already."""
    async with world.consumers.shard_client() as client:
        if spec is not None:
            await client.apply([ShardChange(spec)])

        async def has_failed():
            (listing,) = await client.list(f"id={shard or spec.id}")
            return listing.status if listing.status.code is ReplicaCode.FAILED else None

        status = await eventually(has_failed)
    return status.errors[0]


async def test_a_flight_of_no_journal_fails_its_shard(world):
    world.consumers.expect(ApplicationFailed)
    await world.start()
    await world.create()
    await play(world.client, FLIGHTS, [flight("N1", origin="BOS")])
    failure = await failure_of(world, shard=shard_of("N1"))
    assert f"departs from 'BOS', which no journal of {ENRICHED} has" in failure


async def test_a_source_of_another_kind_fails_its_shard(world):
    world.consumers.expect(ValidationError)
    await world.start()
    (first, _) = parse_shard_changes((FOLDER / "shards.yaml").read_text())
    # Which is none of flights nor of planes.
    source = replace(first.spec.sources[0], journal="examples/flights-live/enriched/origin=JFK")
    spec = replace(first.spec, sources=(source,), hint_prefix=f"{world.prefix}-hints")
    assert "must say flights_live.Flight or flights_live.Plane" in await failure_of(world, spec)


async def test_a_shard_without_a_log_is_refused(world):
    world.consumers.expect(ApplicationFailed)
    await world.start()
    (first, _) = parse_shard_changes((FOLDER / "shards.yaml").read_text())
    spec = replace(first.spec, recovery_log_prefix="", hint_prefix="", hint_backups=0)
    assert "needs a recovery log" in await failure_of(world, spec)
