"""The readers of `format("gazette")` on a real broker, as Spark calls them, without a JVM."""

from __future__ import annotations

import json
import pickle
from itertools import accumulate, pairwise

import pytest
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType
from spark_journals import bulk, create, json_lines, make_again

from gazette_platform import Client, ClientConfig
from gazette_platform.errors import DataError, JournalReplaced, OffsetJump, ValidationError
from gazette_platform.message.framing import frame_fixed
from gazette_platform.spark.options import columns_of, parse_options
from gazette_platform.spark.progress import INITIAL, positions_of
from gazette_platform.spark.source import BatchReader, StreamReader
from gazette_platform.testing.local import store_fragment
from gazette_platform.testing.waiting import wait_until

pytestmark = pytest.mark.etcd
NUMBERS = StructType(
    [
        StructField("n", LongType()),
        StructField("_begin", LongType()),
        StructField("_end", LongType()),
    ]
)
VALUES = StructType([StructField("value", BinaryType()), StructField("_uuid", StringType())])


@pytest.fixture(scope="module")
def client(shared):
    with Client(ClientConfig(address=shared.address, file_root=shared.fragments)) as client:
        yield client


@pytest.fixture
def prefix(names):
    return names.prefix


@pytest.fixture
def options(shared):
    def options(selector, **given):
        given = {"broker": shared.address, "fileRoot": str(shared.fragments)} | given
        return parse_options({"selector": selector} | given, {})

    return options


@pytest.fixture
def batch(options):
    def batch(selector, schema=NUMBERS, **given):
        return BatchReader(options(selector, **given), columns_of(schema))

    return batch


@pytest.fixture
def stream(options):
    readers = []

    def stream(selector, schema=NUMBERS, **given):
        readers.append(StreamReader(options(selector, **given), columns_of(schema)))
        return readers[-1]

    yield stream
    for reader in readers:
        reader.stop()


def rows_of(reader, partitions):
    """All rows, read as by executors: what they get was pickled."""
    reader, partitions = pickle.loads(pickle.dumps((reader, partitions)))
    return [row for one in partitions for made in reader.read(one) for row in made.to_pylist()]


def numbers(reader):
    return sorted(row["n"] for row in rows_of(reader, reader.partitions()))


def all_batches(reader):
    """Offsets of a new query's batches, until there is nothing new."""
    offsets = [INITIAL]
    while (end := reader.latestOffset()) != offsets[-1]:
        reader.partitions(offsets[-1], end)
        offsets.append(end)
        assert len(offsets) < 1000
    return offsets


def store(client, name, content):
    begin = client.write_head(name)
    client.append(name, content)
    client.flush(f"name={name}")
    return begin


def prune_first(client, shared, name):
    """Remove the first fragment, and wait until brokers know."""
    listed = client.fragments(name)
    first = min((each.fragment for each in listed), key=lambda each: each.begin)
    (shared.fragments / first.content_path).unlink()
    wait_until(lambda: min(each.fragment.begin for each in client.fragments(name)) > 0)
    return first.end


def test_pruned_beginning_is_passed_over_and_other_holes_are_errors(
    client, shared, batch, stream, prefix
):
    [name] = create(client, prefix, "a")
    for part in range(3):
        store(client, name, bulk(part * 100, 100))
    end = prune_first(client, shared, name)
    assert numbers(batch(f"name={name}")) == [*range(100, 300)]
    amid = {"startingOffsets": json.dumps({name: 10})}
    with pytest.raises(OffsetJump, match=str(end)):
        batch(f"name={name}", **amid).partitions()
    assert numbers(batch(f"name={name}", onJump="continue", **amid)) == [*range(100, 300)]
    # A stream that is given little at a time does not make batches of nothing out of what is gone.
    reader = stream(f"name={name}", maxBytesPerTrigger="3000")
    offsets = all_batches(reader)
    read = [rows_of(reader, reader.partitions(a, b)) for a, b in pairwise(offsets)]
    assert [row["n"] for rows in read for row in rows] == [*range(100, 300)]
    assert all(read)
    gone = stream(f"name={name}", **amid)
    with pytest.raises(OffsetJump):
        gone.partitions(INITIAL, gone.latestOffset())


def test_store_out_of_reach_is_read_through_brokers(client, batch, prefix, tmp_path):
    [name] = create(client, prefix, "a")
    store(client, name, bulk(0, 100))
    client.append(name, bulk(100, 10))
    assert numbers(batch(f"name={name}", fileRoot=str(tmp_path))) == [*range(110)]


def test_overlapping_fragments_are_read_once(client, shared, batch, prefix):
    [name] = create(client, prefix, "a")
    store(client, name, bulk(0, 50))
    seam = store(client, name, bulk(50, 50))
    end = client.write_head(name)
    whole = bytes(client.read(name, 0, end_offset=end).read())
    store_fragment(shared.fragments, name, 0, whole[: whole.index(b"\n", seam + 100) + 1])
    wait_until(
        lambda: len(client.fragments(name)) > 2 or client.fragments(name)[0].fragment.end > seam
    )
    client.append(name, bulk(100, 5))
    reader = batch(f"name={name}", maxBytesPerPartition="1")
    rows = rows_of(reader, reader.partitions())
    assert [row["n"] for row in rows] == [*range(105)]
    assert [row["_begin"] for row in rows] == [0, *(row["_end"] for row in rows[:-1])]


def test_batches_of_frames_end_with_fragments(client, stream, prefix):
    [name] = create(client, prefix, "a", content_type="application/x-protobuf-fixed")
    ends = []
    for part in range(4):
        store(client, name, b"".join(frame_fixed(b"%d-%d" % (part, n)) for n in range(50)))
        ends.append(client.write_head(name))
    client.append(name, frame_fixed(b"tail"))
    reader = stream(f"name={name}", VALUES, maxBytesPerTrigger=str(ends[1] + 100))
    offsets = all_batches(reader)
    assert [positions_of(each)[name] for each in offsets[1:]] == [ends[1], client.write_head(name)]
    rows = rows_of(reader, reader.partitions(offsets[1], offsets[2]))
    assert len(rows) == 101
    assert rows[-1] == {"value": frame_fixed(b"tail"), "_uuid": None}


def test_message_that_is_longer_than_a_batch_is_one(client, stream, prefix):
    [name] = create(client, prefix, "a")
    long = {"n": 1, "text": "x" * 300_000}
    client.append(name, json_lines({"n": 0}, long, {"n": 2}))
    reader = stream(f"name={name}", maxBytesPerTrigger="1000")
    offsets = all_batches(reader)
    read = [rows_of(reader, reader.partitions(a, b)) for a, b in pairwise(offsets)]
    assert [[row["n"] for row in rows] for rows in read] == [[0], [1], [2]]


def test_query_that_is_started_again_goes_on_where_spark_says(client, stream, prefix):
    [a] = create(client, prefix, "a")
    client.append(a, bulk(0, 100))
    first = stream(f"name:prefix={prefix}/", maxBytesPerTrigger="2000")
    offsets = all_batches(first)
    client.append(a, bulk(100, 100))
    create(client, prefix, "b")
    client.append(f"{prefix}/b", bulk(200, 10))
    again = stream(f"name:prefix={prefix}/", maxBytesPerTrigger="2000")
    assert again.partitions(offsets[-1], offsets[-1]) == []
    reached = again.latestOffset()
    before, after = positions_of(offsets[-1]), positions_of(reached)
    assert 0 < after[a] - before[a] < 2000
    assert 0 < after[f"{prefix}/b"] < 2000
    # Whoever reads a batch again has the same rows, though it is stored by then.
    rows = rows_of(again, again.partitions(offsets[-1], reached))
    client.flush(f"name:prefix={prefix}/")
    other = stream(f"name:prefix={prefix}/")
    assert rows_of(other, other.partitions(offsets[-1], reached)) == rows
    # Another selector leaves out what was read before: it stays where it is.
    fewer = stream(f"name={a}")
    fewer.partitions(reached, reached)
    assert positions_of(fewer.latestOffset())[f"{prefix}/b"] == after[f"{prefix}/b"]


def test_stream_refuses_a_journal_that_was_made_again(client, shared, stream, prefix):
    """However long the new one is: when it has passed the offset, the query would go on amid its content."""
    [name] = create(client, prefix, "a")
    client.append(name, bulk(0, 100))
    offsets = all_batches(stream(f"name={name}"))
    client.append(name, bulk(100, 10))
    planned = stream(f"name={name}")
    planned.partitions(offsets[-1], offsets[-1])
    offsets.append(planned.latestOffset())
    make_again(client, shared, name)
    client.append(name, bulk(1000, 10))
    for _ in range(2):
        again = stream(f"name={name}")
        again.partitions(offsets[-1], offsets[-1])  # so Spark starts a query again
        with pytest.raises(JournalReplaced, match="begin with a new checkpoint"):
            again.latestOffset()
        with pytest.raises(JournalReplaced):
            again.partitions(*offsets[-2:])  # a batch that was planned, and not committed
        client.append(name, bulk(2000, 300))
    assert client.write_head(name) > positions_of(offsets[-1])[name]


@pytest.mark.parametrize("committed", ["false", "true"])
def test_tasks_refuse_a_journal_that_was_made_again_since_they_were_planned(
    client, shared, stream, batch, prefix, committed
):
    [name] = create(client, prefix, "a")
    client.append(name, bulk(0, 10))
    streaming = stream(f"name={name}", committed=committed)
    of_stream = streaming.partitions(INITIAL, streaming.latestOffset())
    batching = batch(f"name={name}", committed=committed)
    of_batch = batching.partitions()
    make_again(client, shared, name)
    client.append(name, bulk(2000, 300))
    for reader, partitions in (streaming, of_stream), (batching, of_batch):
        with pytest.raises(JournalReplaced):
            rows_of(reader, partitions)


def test_places_of_a_journal_that_was_made_again_are_refused(client, shared, batch, prefix):
    [name] = create(client, prefix, "a")
    client.append(name, bulk(0, 10))
    label = prefix.replace("/", "-")
    made = client.create_savepoint(label, f"name={name}")
    make_again(client, shared, name)
    client.append(name, bulk(0, 100))
    for given in {"startingSavepoint": label}, {"startingOffsets": json.dumps(made.places)}:
        with pytest.raises(JournalReplaced, match="name an offset of this one in startingOffsets"):
            batch(f"name={name}", **given).partitions()
    offsets = json.dumps(dict(made.offsets))  # says nothing of journals
    assert batch(f"name={name}", startingOffsets=offsets).partitions()


def test_stream_of_a_former_release_notes_its_journals(client, shared, stream, prefix):
    [name] = create(client, prefix, "a")
    client.append(name, bulk(0, 100))
    former = {
        key: value
        for key, value in all_batches(stream(f"name={name}"))[-1].items()
        if key != "created"
    }
    again = stream(f"name={name}")
    again.partitions(former, former)
    noted = again.latestOffset()
    assert (positions_of(noted), noted["created"]) == (
        positions_of(former),
        {name: client.get(name).created},
    )
    again.partitions(former, noted)
    assert again.latestOffset() == noted


def test_offsets_that_cannot_be_are_reported(client, batch, stream, prefix):
    [name] = create(client, prefix, "a")
    client.append(name, bulk(0, 10))
    head = client.write_head(name)
    for given, told in [
        ({"startingOffsets": json.dumps({name: head + 1})}, "is behind the write head"),
        ({"endingOffsets": json.dumps({"else/where": 1})}, "names else/where, which the selector"),
        ({"maxBytesPerTrigger": "1k"}, "maxBytesPerTrigger: is of readStream only"),
    ]:
        with pytest.raises(ValidationError, match=told):
            batch(f"name={name}", **given).partitions()
    with pytest.raises(ValidationError, match="endingOffsets: are of batches only"):
        stream(f"name={name}", endingOffsets=json.dumps({name: head}))
    reader = stream(f"name={name}")
    end = reader.latestOffset()
    with pytest.raises(DataError, match=f"read up to offset {head + 5}"):
        reader.partitions({"journals": {name: head + 5}}, end)


@pytest.mark.parametrize("content_type", ["application/x-ndjson", "application/x-protobuf-fixed"])
def test_offsets_within_messages_are_refused(client, batch, stream, prefix, content_type):
    [name] = create(client, prefix, "a", content_type=content_type)
    framed = (
        json_lines if content_type.endswith("json") else lambda row: frame_fixed(b"%d" % row["n"])
    )
    messages = [framed({"n": n}) for n in range(10)]
    ends = [*accumulate(map(len, messages))]
    client.append(name, b"".join(messages))

    def place(side, offset):
        return {f"{side}Offsets": json.dumps({name: offset})}

    for side in ("starting", "ending"):
        for wrong in (1, ends[3] - 1, ends[3] + 1, ends[-1] - 1):
            told = f"{side}Offsets: {name}: {wrong} is within a message"
            with pytest.raises(ValidationError, match=told):
                batch(f"name={name}", VALUES, **place(side, wrong)).partitions()
    with pytest.raises(ValidationError, match=f"startingOffsets: {name}: 1 is within a message"):
        stream(f"name={name}", VALUES, **place("starting", 1)).latestOffset()
    label = prefix.replace("/", "-")
    client.create_savepoint(f"{label}-within", offsets={name: ends[3] + 1})
    with pytest.raises(ValidationError, match=r"startingSavepoint: .* is within a message"):
        batch(f"name={name}", VALUES, startingSavepoint=f"{label}-within").partitions()
    for begin, end in ((0, ends[3]), (ends[3], ends[7]), (ends[3], ends[3]), (ends[-1], ends[-1])):
        reader = batch(f"name={name}", VALUES, **place("starting", begin), **place("ending", end))
        found = [row["value"].rstrip(b"\n") for row in rows_of(reader, reader.partitions())]
        first, last = (0 if at == 0 else ends.index(at) + 1 for at in (begin, end))
        assert found == [message.rstrip(b"\n") for message in messages[first:last]]


def test_offset_where_pruned_content_ended_is_between_messages(client, shared, batch, prefix):
    [name] = create(client, prefix, "a")
    for part in range(2):
        store(client, name, bulk(part * 100, 100))
    end = prune_first(client, shared, name)
    assert numbers(batch(f"name={name}", startingOffsets=json.dumps({name: end}))) == [
        *range(100, 200)
    ]


def test_batch_that_ends_before_it_begins_is_refused(client, batch, prefix):
    [name] = create(client, prefix, "a")
    client.append(name, bulk(0, 10))
    middle = client.write_head(name)
    client.append(name, bulk(10, 10))
    given = {"endingOffsets": json.dumps({name: middle})}
    for begin in ("latest", json.dumps({name: client.write_head(name)})):
        with pytest.raises(ValidationError, match=f"endingOffsets: {name}: {middle} is before"):
            batch(f"name={name}", startingOffsets=begin, **given).partitions()


def test_stream_that_matches_nothing_says_so_once(client, stream, prefix, caplog):
    reader = stream(f"name:prefix={prefix}/")
    for _ in range(3):
        assert positions_of(reader.latestOffset()) == {}
    (told,) = [record.getMessage() for record in caplog.records if "matches" in record.getMessage()]
    assert told.startswith(f"no journal with content matches name:prefix={prefix}/ yet")
    [name] = create(client, prefix, "a")
    client.append(name, bulk(0, 1))
    assert positions_of(reader.latestOffset()) == {name: client.write_head(name)}


def test_savepoints_are_places(client, batch, prefix):
    [name] = create(client, prefix, "a")
    client.append(name, bulk(0, 10))
    begin = client.write_head(name)
    client.append(name, bulk(10, 10))
    label = prefix.replace("/", "-")
    client.create_savepoint(f"{label}-from", offsets={name: begin})
    client.create_savepoint(f"{label}-to", offsets={name: client.write_head(name)})
    client.append(name, bulk(20, 10))
    found = batch(f"name={name}", startingSavepoint=f"{label}-from", endingSavepoint=f"{label}-to")
    assert numbers(found) == [*range(10, 20)]
