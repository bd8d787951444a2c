"""Spark's own `format("kafka")`, unchanged, at a real gateway."""

from __future__ import annotations

import json

import pyspark
import pytest
from kafka_docs import program_does
from kafka_jars import jars_of, version_of
from kafka_servers import LEASE_S, Gateways
from lake_servers import plain_spark_session

pytestmark = [
    pytest.mark.etcd,
    pytest.mark.spark,
    pytest.mark.timeout(600),
    # Sockets over which Spark gives rows are left to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

RECORDS = 200
PROGRAM = f'Spark {pyspark.__version__}, `format("kafka")` {version_of("spark")}'


@pytest.fixture(scope="module")
def session():
    jars = ":".join(str(jar) for jar in sorted(jars_of("spark").glob("*.jar")))
    with plain_spark_session(**{"spark.driver.extraClassPath": jars}) as session:
        yield session


@pytest.fixture
async def servers(start_servers):
    gateways = Gateways(start_servers, "a", lease_s=LEASE_S)
    for topic in ("in", "out"):
        await gateways.make_topic(topic, partitions=2)
    return gateways.servers


def records(session, begin, end):
    """Records of Kafka whose values, keys and headers are made of numbers."""
    return session.range(begin, end, numPartitions=2).selectExpr(
        "concat('k', id) AS key",
        "to_json(struct(id AS n, 'grün' AS text)) AS value",
        "array(struct('h' AS key, cast(cast(id AS string) AS binary) AS value)) AS headers",
    )


def write(session, servers, begin, end, topic="in"):
    writer = records(session, begin, end).write.format("kafka")
    writer.options(**{"kafka.bootstrap.servers": servers, "includeHeaders": "true"}).option(
        "topic", topic
    ).save()


def read(session, servers, topic="in", **options):
    which = {} if "assign" in options or "subscribePattern" in options else {"subscribe": topic}
    reader = session.read.format("kafka").option("kafka.bootstrap.servers", servers)
    return reader.options(**which, **options).load()


def numbers(frame):
    return sorted(json.loads(bytes(row.value))["n"] for row in frame.select("value").collect())


def test_batch_has_what_a_batch_wrote(session, servers, request):
    write(session, servers, 0, RECORDS)
    rows = read(session, servers, includeHeaders="true").collect()
    assert sorted(bytes(row.key).decode() for row in rows) == sorted(
        f"k{n}" for n in range(RECORDS)
    )
    for row in rows:
        n = int(bytes(row.key)[1:])
        assert json.loads(bytes(row.value)) == {"n": n, "text": "grün"}
        assert [(h.key, bytes(h.value)) for h in row.headers] == [("h", str(n).encode())]
        assert row.topic == "in"
        assert row.timestamp is not None
    assert {row.partition for row in rows} == {0, 1}
    assert numbers(read(session, servers, subscribePattern="i.*")) == [*range(RECORDS)]
    program_does(
        request.config, PROGRAM, "writes and reads batches with keys, headers and timestamps"
    )


def test_batch_begins_and_ends_at_offsets_and_times(session, servers, request):
    write(session, servers, 0, RECORDS)
    write(session, servers, RECORDS, 2 * RECORDS)
    rows = read(session, servers, assign='{"in":[0]}').orderBy("offset").collect()
    first, last = rows[10], rows[30]
    some = read(
        session,
        servers,
        assign='{"in":[0]}',
        startingOffsets=json.dumps({"in": {"0": first.offset}}),
        endingOffsets=json.dumps({"in": {"0": last.offset}}),
    )
    assert [row.offset for row in some.collect()] == [row.offset for row in rows[10:30]]
    # Ranges of a partition that are cut anywhere have each record once.
    cut = read(session, servers, minPartitions="7")
    assert cut.rdd.getNumPartitions() >= 7
    assert numbers(cut) == [*range(2 * RECORDS)]
    times = sorted(row.timestamp for row in read(session, servers).collect())
    second = times[RECORDS]
    assert times[RECORDS - 1] < second
    millis = str(int(second.timestamp() * 1000))
    assert numbers(read(session, servers, startingTimestamp=millis)) == [
        *range(RECORDS, 2 * RECORDS)
    ]
    assert numbers(read(session, servers, endingTimestamp=millis)) == [*range(RECORDS)]
    program_does(
        request.config,
        PROGRAM,
        "reads from and to offsets and timestamps, and cuts partitions (`minPartitions`)",
    )


def test_stream_goes_on_from_its_checkpoint(session, servers, tmp_path, request):
    def run():
        source = session.readStream.format("kafka").options(
            **{
                "kafka.bootstrap.servers": servers,
                "subscribe": "in",
                "startingOffsets": "earliest",
                "maxOffsetsPerTrigger": "5000",
                "failOnDataLoss": "true",
            }
        )
        sink = source.load().selectExpr("key", "value").writeStream.format("kafka")
        query = sink.options(
            **{
                "kafka.bootstrap.servers": servers,
                "topic": "out",
                "checkpointLocation": str(tmp_path / "checkpoint"),
            }
        ).trigger(availableNow=True)
        query = query.start()
        assert query.awaitTermination(120)
        return len(query.recentProgress)

    write(session, servers, 0, RECORDS)
    assert run() > 1
    write(session, servers, RECORDS, 2 * RECORDS)
    run()
    assert numbers(read(session, servers, "out")) == [*range(2 * RECORDS)]
    program_does(
        request.config,
        PROGRAM,
        "streams from a topic to a topic, and goes on from its checkpoint",
    )
