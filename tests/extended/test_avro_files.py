"""Journals of Avro files: what brokers close is what Trino and Spark read."""

from __future__ import annotations

import asyncio
import gc
import io
import warnings

import fastavro
import pytest
from journal_specs import journal_spec

from gazette_platform.client import AsyncClient, Change, ClientConfig
from gazette_platform.message import (
    AVRO_CONTENT_TYPE,
    AvroContainers,
    avro_records,
    check_avro_spec,
    encode_avro_file,
)

SCHEMA = {
    "type": "record",
    "name": "x.Ride",
    "fields": [{"name": "bike", "type": "long"}, {"name": "note", "type": ["null", "string"]}],
}
FILES = 40
NAME = "rides/avro"


def spec(replication):
    return journal_spec(
        NAME, replication, length=1024, refresh_s=3600, labels={"content-type": AVRO_CONTENT_TYPE}
    )


def rides(number):
    return [
        {"bike": number * 100 + n, "note": "a\nb" if n % 2 else None} for n in range(number + 1)
    ]


async def append_files(client):
    """Many at once, small and large, so that brokers would batch them if they could."""

    async def append(number):
        await client.append(NAME, encode_avro_file(SCHEMA, rides(number), codec="null"))

    await asyncio.gather(*(append(number) for number in range(FILES)))
    await client.flush(f"name={NAME}")


def files(folder):
    return sorted(path for path in folder.rglob("[!.]*") if path.is_file())


@pytest.mark.etcd
@pytest.mark.parametrize("replication", [1, 3])
async def test_each_fragment_is_one_file(cluster, replication):
    brokers = [await cluster.start(zone=f"zone-{number}") for number in range(replication)]
    check_avro_spec(spec(replication))
    async with AsyncClient(ClientConfig(address=brokers[0].endpoint)) as client:
        await client.apply([Change(spec(replication))])
        await append_files(client)
        containers, seen = AvroContainers(), []
        async for piece in client.read(NAME):
            for block in containers.feed(bytes(piece)):
                seen += [one["bike"] for one in avro_records(block)]
        containers.end()
    stored = files(cluster.fragments / NAME)
    assert len(stored) == FILES
    found = [
        one["bike"] for path in stored for one in fastavro.reader(io.BytesIO(path.read_bytes()))
    ]
    assert found == seen
    assert sorted(found) == [one["bike"] for number in range(FILES) for one in rides(number)]


@pytest.mark.timeout(400)  # its servers, which other tests share, begin with it
@pytest.mark.etcd
@pytest.mark.hive
@pytest.mark.trino
@pytest.mark.spark
async def test_trino_and_spark_read_what_is_stored(cluster, trino, spark):
    broker = await cluster.start()
    async with AsyncClient(ClientConfig(address=broker.endpoint)) as client:
        await client.apply([Change(spec(1))])
        await append_files(client)
    folder = (cluster.fragments / NAME).as_uri()
    expected = [one for number in range(FILES) for one in rides(number)]
    await asyncio.to_thread(trino.query, "CREATE SCHEMA IF NOT EXISTS hive.avro_files")
    await asyncio.to_thread(
        trino.query,
        "CREATE TABLE hive.avro_files.rides (bike bigint, note varchar) "
        f"WITH (format = 'AVRO', external_location = '{folder}')",
    )
    rows = await asyncio.to_thread(
        trino.query, "SELECT bike, note FROM hive.avro_files.rides ORDER BY bike"
    )
    assert [{"bike": bike, "note": note} for bike, note in rows] == expected
    # The table that Trino has made in the metastore is Spark's, too. The sockets that
    # rows come by are left to the garbage collector.
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        found = spark.sql("SELECT bike, note FROM avro_files.rides ORDER BY bike").collect()
        gc.collect()
    assert [row.asDict() for row in found] == expected
