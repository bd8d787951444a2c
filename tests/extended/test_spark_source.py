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
from gazette_platform.testing.broker import BrokerServer

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


def test_bad_records_are_null_with_their_text_or_dropped_or_fail(client, read, prefix):
    [name] = create(client, prefix, "a")
    bad = (b'{"n":"x"}', b"no json", b'{"n":1}{"n":2}', b'{"n":\xff}', b"null")
    good = [b'{"n":%d}' % n for n in range(40)]
    content = [line for pair in zip(good, bad * 8, strict=True) for line in pair]
    client.append(name, b"\n".join([*content, b"", b' {"n":40} ', b""]))
    schema = "n bigint, _begin bigint, _corrupt string"
    rows = read(f"name={name}", schema).orderBy("_begin").collect()
    assert [row.n for row in rows if row._corrupt is None] == [*range(41)]
    told = [row._corrupt for row in rows if row._corrupt is not None]
    assert told == [line.decode("utf-8", "replace") for line in bad * 8]
    assert all(row.n is None for row in rows if row._corrupt is not None)
    kept = read(f"name={name}", "n bigint", mode="dropmalformed").collect()
    assert sorted(row.n for row in kept) == [*range(41)]
    with pytest.raises(Exception, match="the record at offset 8 is not of the schema") as failed:
        read(f"name={name}", schema, mode="failFast").collect()
    assert "mode=permissive" in str(failed.value)


def test_filters_decide_what_is_read_at_all(client, read, prefix, shared):
    a, b = create(client, prefix, "a", "b")
    for name in (a, b):
        client.append(name, bulk(0, 100))
        client.flush(f"name={name}")
        client.append(name, bulk(100, 100))
        client.flush(f"name={name}")
    everything = read(f"name:prefix={prefix}/", "n bigint, _journal string, _begin bigint")
    seam = everything.where("n = 100").first()._begin
    # Of what the filters leave out the files are gone, and nobody sees it.
    for path in shared.fragments.joinpath(b).rglob("*-*-*"):
        path.write_bytes(b"damaged")
    next(shared.fragments.joinpath(a).rglob(f"{0:016x}-*")).write_bytes(b"damaged")
    found = everything.where(f"_journal = '{a}' AND _begin >= {seam}").collect()
    assert sorted(row.n for row in found) == [*range(100, 200)]
    with pytest.raises(Exception, match=r"(?i)gzip|decompress|header|digest"):
        everything.where(f"_journal = '{a}'").collect()


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


def test_columns_are_of_many_types_and_csv_has_them_by_place(client, read, prefix):
    [name] = create(client, prefix, "a")
    client.append(
        name,
        b'{"d":"2026-01-31","t":"2026-01-31T01:02:03.000004Z","x":1.5,"m":12.25,"ok":true,'
        b'"tags":["a",null],"at":{"zip":7,"day":"2026-02-01"}}\n{"d":"2026-02-30"}\n',
    )
    schema = (
        "d date, t timestamp, x double, m decimal(6,2), ok boolean, tags array<string>, "
        "at struct<zip:int,day:date>"
    )
    found = read(f"name={name}", schema).selectExpr("to_json(struct(*)) AS row").collect()
    assert json.loads(found[0].row) == {
        "d": "2026-01-31",
        "t": "2026-01-31T01:02:03.000Z",
        "x": 1.5,
        "m": 12.25,
        "ok": True,
        "tags": ["a", None],
        "at": {"zip": 7, "day": "2026-02-01"},
    }
    assert json.loads(found[1].row) == {}
    [name] = create(client, prefix, "csv", content_type="text/csv")
    uuid = str(build_uuid(new_producer_id(), 160, Flags.OUTSIDE_TXN))
    client.append(name, f'{uuid},1,"a, b"\n{uuid},,\n{uuid},x,c\n'.encode())
    rows = read(f"name={name}", "id string, n int, text string, _uuid string").collect()
    assert [tuple(row) for row in rows] == [
        (uuid, 1, "a, b", uuid),
        (uuid, None, None, uuid),
        (None, None, None, uuid),
    ]


def test_errors_tell_all_that_is_wrong_and_no_secret(client, read, prefix, session):
    [name] = create(client, prefix, "a")
    with pytest.raises(Exception, match="did you mean startingOffsets"):
        read(f"name={name}", startingOffset="latest").collect()
    with pytest.raises(Exception, match="no journal with content matches name=nowhere"):
        read("name=nowhere").collect()
    with pytest.raises(Exception, match="column _begin is bigint, and not string"):
        read(f"name={name}", "_begin string").collect()
    found = read(f"name={name}", authToken="a-secret-token")
    plan = found._jdf.queryExecution().toString()
    assert "gazette" in plan
    assert "a-secret-token" not in plan
