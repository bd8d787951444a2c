"""`format("gazette")` in a real Spark, on a real broker: writes, of batches and of streams."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest
from lake_servers import plain_spark_session
from pyspark.sql import Row
from spark_journals import create

from gazette_platform import Client, ClientConfig
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
    prefix = "/test-spark-sink"
    # A JVM beside it keeps it waiting for longer than most tests do.
    with BrokerServer(folder, etcd=etcd_server.endpoint, prefix=prefix, lease_s=30.0) as server:
        yield server


@pytest.fixture(scope="module")
def client(shared):
    with Client(ClientConfig(address=shared.address, file_root=shared.fragments)) as client:
        yield client


@pytest.fixture(scope="module")
def session(shared):
    # Tasks that fail are done again.
    options = {
        "spark.master": "local[2,3]",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
    }
    with plain_spark_session(**options) as session:
        register(session)
        yield session


@pytest.fixture
def prefix(request):
    return f"sink/{request.node.name.partition('[')[0]}"


@pytest.fixture
def write(shared):
    def write(rows, **options):
        writer = rows.write.format("gazette").option("broker", shared.address)
        writer.options(**options).mode("append").save()

    return write


@pytest.fixture
def read(session, shared):
    def read(selector, schema=None, **options):
        reader = session.read.format("gazette").option("broker", shared.address)
        reader = reader.options(**options)
        return (reader.schema(schema) if schema else reader).load(selector)

    return read


def content(client, journal):
    with client.read(journal) as reader:
        return b"".join(map(bytes, reader))


SCHEMA = (
    "n bigint, text string, exact decimal(12,3), share double, is_new boolean, day date, at timestamp, "
    "local timestamp_ntz, tags array<string>, place struct<x: int, name: string>"
)
ROWS = [
    Row(
        n=1 << 60,
        text='a "quote", é\nline',
        exact=Decimal("1.500"),
        share=0.1,
        is_new=True,
        day=dt.date(2026, 1, 2),
        at=dt.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=dt.UTC),
        local=dt.datetime(2026, 1, 2, 3, 4, 5),  # noqa: DTZ001  it is of no zone
        tags=["x", "y"],
        place=Row(x=1, name=None),
    ),
    Row(n=2, text="", exact=None, share=None, is_new=None, day=None, at=None, local=None, tags=[], place=None),
    Row(n=None, text=None, exact=None, share=None, is_new=None, day=None, at=None, local=None, tags=None, place=None),
]  # fmt: skip


def test_rows_come_back_from_json_as_they_were(session, client, write, read, prefix):
    [a] = create(client, prefix, "a")
    rows = session.createDataFrame(ROWS, SCHEMA).coalesce(1)
    write(rows, journal=a)
    assert content(client, a).splitlines()[1:] == [b'{"n":2,"text":"","tags":[]}', b"{}"]
    assert read(a, SCHEMA).collect() == rows.collect()


def test_tasks_that_are_done_again_write_nothing_twice(session, client, write, read, prefix):
    names = create(client, prefix, "a", "b", "c")
    [staging] = create(client, f"{prefix}-staging", "x", content_type="")

    def fails_once(n):
        """Fails a task behind most of its rows, the first time that it is done."""
        from pyspark import TaskContext

        if n % 2000 == 1999 and TaskContext.get().attemptNumber() == 0:
            raise RuntimeError("the task is killed")
        return n

    session.udf.register("fails_once", fails_once, "bigint")
    rows = session.range(4_000, numPartitions=2).selectExpr("fails_once(id) AS n", "id AS other")
    options = {"selector": f"name:prefix={prefix}/", "stagingJournal": staging}
    write(rows, mapping="modulo", key="n", uuid="_meta.uuid", **options)
    found = read(f"name:prefix={prefix}/", "n bigint, _journal string", committed="true").collect()
    assert sorted(row.n for row in found) == [*range(4_000)]
    assert {row._journal for row in found} == set(names)
    # Each task is more than what is carried.
    assert client.write_head(staging) == sum(map(client.write_head, names))
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        write(rows.selectExpr("n", "1 / (n - 3999) AS x"), mapping="random", **options)
    found = read(f"name:prefix={prefix}/", "n bigint").count()
    assert found == 4_000


def test_named_batch_exists_once_however_often_it_is_written(session, client, write, prefix):
    [a] = create(client, prefix, "a")
    for _ in range(2):
        write(session.range(3).coalesce(1), journal=a, writer="nightly", epoch="20260102")
    write(session.range(3, 4), journal=a, writer="nightly", epoch="20260103")
    assert content(client, a) == b'{"id":0}\n{"id":1}\n{"id":2}\n{"id":3}\n'
    with pytest.raises(Exception, match="writer nightly is at epoch 20260103, and epoch 20260102"):
        write(session.range(3), journal=a, writer="nightly", epoch="20260102")
