"""`format("gazette")` in a real Spark, on a real broker: batches."""

from __future__ import annotations

import json

import pytest
from lake_servers import plain_spark_session
from spark_journals import bulk, create, json_lines

from gazette_platform import (
    Client,
    ClientConfig,
    Flags,
    MessageClock,
    build_uuid,
    new_producer_id,
)
from gazette_platform.spark import register
from gazette_platform.testing.servers import BrokerServer

pytestmark = [
    pytest.mark.etcd,
    pytest.mark.spark,
    pytest.mark.timeout(600),
    # Sockets over which Spark gives rows are left to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]


@pytest.fixture(scope="module")
def shared(etcd_server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("broker")
    prefix = "/test-spark-source"
    # A JVM beside it keeps it waiting for longer than most tests do.
    with BrokerServer(folder, etcd=etcd_server.endpoint, prefix=prefix, lease_s=30.0) as server:
        yield server


@pytest.fixture(scope="module")
def client(shared):
    with Client(ClientConfig(address=shared.address, file_root=shared.fragments)) as client:
        yield client


@pytest.fixture(scope="module")
def session(shared):
    with plain_spark_session() as session:
        register(session)
        yield session


@pytest.fixture
def prefix(request):
    return f"source/{request.node.name.partition('[')[0]}"


@pytest.fixture
def read(session, shared):
    def read(selector, schema=None, **options):
        reader = session.read.format("gazette").option("broker", shared.address)
        reader = reader.options(fileRoot=str(shared.fragments), **options)
        return (reader.schema(schema) if schema else reader).load(selector)

    return read


def test_batch_without_schema_has_a_row_a_message_with_its_place(client, read, prefix):
    a, b = create(client, prefix, "a", "b")
    client.append(a, b'{"n":0}\n{"n":1}\n')
    client.flush(f"name={a}")
    client.append(a, b'{"n":2,"_meta":{"uuid":"x"}}\n')
    client.append(b, b'{"n":3}\n')
    rows = read(f"name:prefix={prefix}/").orderBy("_journal", "_begin").collect()
    assert [(r._journal, bytes(r.value), r._begin, r._end, r._uuid) for r in rows] == [
        (a, b'{"n":0}', 0, 8, None),
        (a, b'{"n":1}', 8, 16, None),
        (a, b'{"n":2,"_meta":{"uuid":"x"}}', 16, 45, "x"),
        (b, b'{"n":3}', 0, 8, None),
    ]


def test_many_fragments_and_the_live_tail_meet_without_a_seam(client, read, prefix):
    [name] = create(client, prefix, "a")
    for part in range(12):
        client.append(name, bulk(part * 500, 500))
        client.flush(f"name={name}")
    client.append(name, bulk(6000, 700))
    found = read(
        f"name={name}",
        "n bigint, text string, _begin bigint, _end bigint",
        maxBytesPerPartition="70k",
    )
    assert found.rdd.getNumPartitions() > 5
    rows = sorted(found.collect(), key=lambda row: row._begin)
    assert [row.n for row in rows] == [*range(6700)]
    assert {row.text for row in rows} == {"é" * 20}
    ends = [row._end for row in rows]
    assert [row._begin for row in rows] == [0, *ends[:-1]]
    assert ends[-1] == client.write_head(name)
    middle = rows[3210]._begin
    some = read(
        f"name={name}",
        "n bigint",
        startingOffsets=json.dumps({name: middle}),
        endingOffsets=json.dumps({name: rows[6100]._begin}),
    )
    assert sorted(row.n for row in some.collect()) == [*range(3210, 6100)]


def test_committed_messages_come_once_and_without_acknowledgements(client, read, prefix):
    [name] = create(client, prefix, "a")
    producer, clock = new_producer_id(), MessageClock()

    def framed(flags, tick=None, **fields):
        uuid = build_uuid(producer, tick or clock.tick(), flags)
        return json_lines({"_meta": {"uuid": str(uuid)}, **fields})

    twice = framed(Flags.OUTSIDE_TXN, n=0)
    client.append(name, twice + twice + framed(Flags.CONTINUE_TXN, n=1))
    client.flush(f"name={name}")
    client.append(name, framed(Flags.CONTINUE_TXN, n=2) + framed(Flags.ACK_TXN))
    client.append(name, framed(Flags.CONTINUE_TXN, n=3) + b"no json\n")
    schema = "n bigint, _uuid string, _corrupt string"
    rows = read(f"name={name}", schema, committed="true").collect()
    assert [(row.n, row._corrupt) for row in rows] == [
        (0, None),
        (1, None),
        (2, None),
        (None, "no json"),
    ]
    assert len({row._uuid for row in rows[:3]}) == 3
    assert read(f"name={name}", "n bigint").count() == 7
