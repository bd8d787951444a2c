"""`format("gazette")` in a real Spark, on a real broker: streams, stopped and started again."""

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
from gazette_platform.platform import tools
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
    prefix = "/test-spark-stream"
    # A JVM beside it keeps it waiting for longer than most tests do.
    with BrokerServer(folder, etcd=etcd_server.endpoint, prefix=prefix, lease_s=30.0) as server:
        yield server


@pytest.fixture(scope="module")
def client(shared):
    with Client(ClientConfig(address=shared.address, file_root=shared.fragments)) as client:
        yield client


@pytest.fixture(scope="module")
def session(shared, tmp_path_factory):
    catalog = "spark.sql.catalog.ice"
    iceberg = {
        "spark.driver.extraClassPath": str(tools.iceberg_spark_runtime()),
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "hadoop",
        f"{catalog}.warehouse": str(tmp_path_factory.mktemp("warehouse")),
    }
    with plain_spark_session(**iceberg) as session:
        register(session)
        yield session


@pytest.fixture
def prefix(request):
    return f"stream/{request.node.name}"


class Sink:
    """A streaming query whose batches land in folders of their own, so that one done again replaces itself."""

    def __init__(self, session, shared, selector, folder, **options):
        self.folder = folder
        self._session = session
        self._reader = (
            session.readStream.format("gazette")
            .options(broker=shared.address, fileRoot=str(shared.fragments), **options)
            .schema("n bigint, _journal string, _begin bigint, _end bigint")
        )
        self._selector = selector
        self.fails_at = -1

    def run(self, *, is_endless=False):
        """One run of the query over all that there is now."""

        def write(rows, batch):
            if batch == self.fails_at:
                self.fails_at = -1
                raise RuntimeError("the sink is away")
            rows.write.mode("overwrite").json(str(self.folder / f"out/{batch:04d}"))

        trigger = {"processingTime": "0 seconds"} if is_endless else {"availableNow": True}
        query = (
            self._reader.load(self._selector)
            .writeStream.foreachBatch(write)
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(**trigger)
            .start()
        )
        try:
            if is_endless:
                query.processAllAvailable()
            else:
                query.awaitTermination(120)
        finally:
            query.stop()

    def batches(self):
        """Of each batch that was written, its rows: `n`, journal, begin and end."""
        found = []
        for folder in sorted((self.folder / "out").iterdir()):
            rows = []
            for path in folder.glob("*.json"):
                for line in path.read_text().splitlines():
                    row = json.loads(line)
                    rows.append((row.get("n"), row["_journal"], row["_begin"], row["_end"]))
            found.append(sorted(rows, key=lambda row: row[1:]))
        return found

    def numbers(self):
        """All that was written, sorted."""
        return sorted(row[0] for batch in self.batches() for row in batch)


def test_table_of_iceberg_has_a_batch_once_that_is_done_again(
    session, shared, client, prefix, tmp_path
):
    [a] = create(client, prefix, "a")
    session.sql("CREATE TABLE ice.db.numbers (n bigint) USING iceberg")

    def run():
        rows = session.readStream.format("gazette").schema("n bigint")
        rows = rows.options(broker=shared.address, fileRoot=str(shared.fragments))
        writing = rows.load(f"name={a}").writeStream.format("iceberg")
        writing = writing.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
        query = writing.toTable("ice.db.numbers")
        try:
            query.awaitTermination(120)
        finally:
            query.stop()
        return sorted(row.n for row in session.table("ice.db.numbers").collect())

    client.append(a, bulk(0, 100))
    assert run() == [*range(100)]
    client.append(a, bulk(100, 100))
    assert run() == [*range(200)]
    # As if the driver had died between the table's commit and the query's own.
    commits = tmp_path / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    for name in (f"{last}", f".{last}.crc"):
        (commits / name).unlink(missing_ok=True)
    client.append(a, bulk(200, 100))
    run()
    assert (commits / f"{last}").exists()
    assert run() == [*range(300)]


class Producer:
    """Numbers of one producer, in transactions or outside of them."""

    def __init__(self, client):
        self._client = client
        self._producer = new_producer_id()
        self._clock = MessageClock(1 << 60)

    def append(self, journal, flags, *numbers):
        lines = []
        for n in numbers:
            uuid = build_uuid(self._producer, self._clock.tick(), flags)
            lines.append({"n": n, "_meta": {"uuid": str(uuid)}})
        content = json_lines(*lines)
        self._client.append(journal, content)
        return content


def test_committed_messages_exist_once_across_batches_and_restarts(
    session, shared, client, prefix, tmp_path
):
    a, b = create(client, prefix, "a", "b")
    outside, continued, ack = Flags.OUTSIDE_TXN, Flags.CONTINUE_TXN, Flags.ACK_TXN
    one, two, three = Producer(client), Producer(client), Producer(client)
    options = {"selector": f"name:prefix={prefix}/", "folder": tmp_path, "committed": "true"}
    sink = Sink(session, shared, **options)
    one.append(a, continued, 1, 2)
    twice = two.append(a, outside, 10)
    three.append(b, continued, 20)
    sink.run()
    assert sink.numbers() == [10]
    client.append(a, twice)
    one.append(a, continued, 3)
    client.flush(f"name={a}")
    two.append(a, continued, 98)  # of a transaction that is never committed
    sink.run()
    assert sink.numbers() == [10]
    one.append(a, ack, 0)
    three.append(b, outside, 21)  # takes back what it had begun
    client.append(b, b"no record\n")
    sink.fails_at = 2
    with pytest.raises(Exception, match="the sink is away"):
        sink.run()
    client.append(a, twice)
    one.append(a, continued, 4)
    one.append(a, ack, 0)
    sink.run()
    sink.run()
    assert [row[0] for row in sink.batches()[2]] == [1, 2, 3, 21, None]
    assert [row[0] for row in sink.batches()[3]] == [4]
    found = [row[0] for batch in sink.batches() for row in batch if row[0] is not None]
    assert sorted(found) == [1, 2, 3, 4, 10, 21]
    all_of_it = Sink(session, shared, f"name:prefix={prefix}/", tmp_path)
    with pytest.raises(Exception, match="committed: the query's checkpoint is of one with another"):
        all_of_it.run()
