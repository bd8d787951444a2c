"""What is done by hand for many records at a time is what is done for each of them with a library."""

from __future__ import annotations

import dataclasses
import io
import json
import random
import struct
from datetime import timedelta

import google_crc32c
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from hypothesis import example, given, settings, strategies as st
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from gazette_platform.errors import DataError
from gazette_platform.kafka.failures import KafkaError, Refused
from gazette_platform.kafka.records.batches import read_batch
from gazette_platform.kafka.records.bulk_lines import bulk_lines, large_lines
from gazette_platform.kafka.records.lines import Stamp, encode_batch
from gazette_platform.kafka.topics import Form
from gazette_platform.kafka.wire import _module, answer_bytes, maker, message_class
from gazette_platform.kafka.wire.batches import (
    FETCH_LEAST,
    FETCH_MOST,
    PRODUCE_LEAST,
    PRODUCE_MOST,
    Appended,
    Fetched,
    FetchedPart,
    read_fetch,
    read_produce,
)
from gazette_platform.message.uuid import Flags

STAMP = Stamp(bytes.fromhex("010203040506"), 0x1EF0_1234_5678_9AB0, Flags.CONTINUE_TXN)
NOW_MS = 5


def batch_of(records, codec=0):
    builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 30)
    for number, (ts, key, value, heads) in enumerate(records):
        builder.append(number, ts, key, value, heads)
    return read_batch(bytes(builder.build()), limit=1 << 24)


def both(records, codec=0):
    """The lines of both ways; None: it is refused."""
    batch = batch_of(records, codec)
    try:
        one_by_one = encode_batch(Form.JSON, batch.records(), STAMP, NOW_MS)
    except Refused:
        one_by_one = None
    return bulk_lines(batch.data, batch.count, STAMP, NOW_MS), one_by_one


names = st.text(max_size=5).filter(lambda name: name != "_meta")
values = st.dictionaries(names, st.integers() | st.text(max_size=20), min_size=1, max_size=2)
texts = st.tuples(values, st.booleans()).map(
    lambda drawn: json.dumps(drawn[0], ensure_ascii=drawn[1]).encode("utf-8", "replace")
)
plain_keys = st.text("azAZ09 -_!~|/=", max_size=70).map(str.encode)
any_keys = st.none() | st.binary(max_size=20) | st.text(max_size=20).map(str.encode) | plain_keys
times = st.integers(0, 10**15) | st.integers(1_700_000_000_000, 1_700_000_000_300)
near = st.integers(1_700_000_000_000, 1_700_000_009_000)


@given(
    st.lists(st.tuples(near, st.none(), texts, st.just([])), min_size=1, max_size=12)
    | st.lists(st.tuples(near, plain_keys, texts, st.just([])), min_size=1, max_size=12),
    st.sampled_from([0, 1]),
)
@settings(deadline=None)
def test_batches_of_small_objects_are_written_at_once(records, codec):
    found, expected = both(records, codec)
    assert found in (None, expected)
    is_small = sum(len(value) for _, _, value, _ in records) <= 100 * len(records)
    assert found is not None or not is_small


odd = st.sampled_from(
    [
        *(None, b"", b"{}", b'{"a":1}\n', b'{"_meta":1}', b'{"a":1,"\\u005fmeta":{}}', b'{"a":1,"_meta":2}'),
        *(b'{"a":1}{"b":2}', b'{"a":1} {"b":2}', b'{"a":1},{"b":2}', b'{"a":[1', b'{"a":[1,', b'2]}', b'{"2]}'),
        *(b'{"a":"\xff"}', b'{"a":"\t"}', b'{"a":"\0"}', b'{"a":1}\0', b'{"a":1}\r', b'{"a":1', b'{ "a":1}'),
        *(b'{"a":"%s"}' % (b"x" * 700), b'{"a":"%s"}' % (b"x" * 5000), b'{"a":"{\\"b\\":{}}"}'),
        b'{"a":1}\0\x14\0\0\2\x01\x0e{"a":2}',
    ]
)  # fmt: skip
some_headers = (
    st.just([])
    | st.lists(st.tuples(st.text(max_size=8), any_keys), max_size=3)
    | st.just([("h", b"x")] * 18)
)


@given(
    st.lists(st.tuples(times, any_keys, texts | odd, some_headers), min_size=1, max_size=6),
    st.integers(0, 20),
)
@example([(9, None, b'{"a":1}', []), (9, None, b'{"b":[1,', []), (9, None, b'{"a":2}', [])], 0)
@example([(2, b"k" * 16, b'{"a":1}', []), (2, b"", b'{"a":"%s"}' % (b"x" * 17), [])], 0)
@settings(deadline=None, max_examples=150)
def test_what_is_written_at_once_is_never_something_else(records, more):
    found, expected = both(records + [(9, None, b'{"a":1}', [])] * more)
    assert found in (None, expected)


@given(st.integers(0, 2**32))
@settings(deadline=None, max_examples=300)
def test_lines_of_damaged_batches_are_one_object_each(seed):
    """Under a good checksum."""
    rng = random.Random(seed)
    keys = [None, b"key"][seed % 2]
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 30)
    for number in range(5):
        builder.append(number, 9, keys, b'{"n":%d}' % number, [])
    data = builder.build()
    for _ in range(rng.randrange(1, 4)):
        data[rng.randrange(23, len(data))] = rng.choice(
            [0, 1, 2, 14, 0x7B, 0x22, rng.randrange(256)]
        )
    struct.pack_into(">I", data, 17, google_crc32c.value(bytes(data[21:])))
    try:
        batch = read_batch(bytes(data), limit=1 << 20)
    except KafkaError:
        return
    found = bulk_lines(batch.data, batch.count, STAMP, NOW_MS)
    if found is not None:
        lines = found.pieces[0].split(b"\n")
        assert len(lines) == batch.count + 1
        for line in lines[:-1]:
            assert line.startswith(b'{"_meta":{"uuid":"')
            assert next(iter(json.loads(line))) == "_meta"


def test_records_without_a_time_have_the_time_of_the_gateway():
    found, expected = both([(-1, None, b'{"a":1}', []), (-1, None, b'{"a":2}', [])])
    assert found == expected
    assert found.pieces[0].count(b'"ts":%d' % NOW_MS) == 2


# ------------------------------------------------------------------ requests and answers

VERSIONS = range(PRODUCE_LEAST, PRODUCE_MOST + 1)
TOPICS = (
    ("one", ((0, b"batch"), (300, None))),
    ("zwei€" * 60, ((1, b""), (2, b"x" * 300))),
    ("none", ()),
)


def request_frame(version, transactional_id=None, client="client"):
    schemas = _module("produce", version, "request")
    request = schemas.ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout=timedelta(seconds=1.5),
        topic_data=tuple(
            schemas.TopicProduceData(
                name=name,
                partition_data=tuple(
                    schemas.PartitionProduceData(index=index, records=records)
                    for index, records in parts
                ),
            )
            for name, parts in TOPICS
        ),
    )
    header, buffer = request.__header_schema__, io.BytesIO()
    entity_writer(header)(
        buffer,
        header(request_api_key=0, request_api_version=version, correlation_id=7, client_id=client),
    )
    entity_writer(type(request))(buffer, request)
    return buffer.getvalue()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("transactional_id", "client"), [(None, None), ("me", "client")])
def test_requests_are_read_as_the_library_writes_them(version, transactional_id, client):
    found = read_produce(request_frame(version, transactional_id, client), version)
    assert found[:4] == (client or "", transactional_id, -1, 1.5)
    assert [(name, [tuple(part) for part in parts]) for name, parts in found.topic_data] == [
        (name, list(parts)) for name, parts in TOPICS
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_requests_that_are_cut_off_are_refused(version):
    frame = request_frame(version)
    assert read_produce(frame + b"more", version) == read_produce(frame, version)
    last = 1 if version >= 9 else 0  # the tags of the end
    for size in range(8, len(frame) - last):
        with pytest.raises((DataError, struct.error)):
            read_produce(frame[:size], version)


def test_tags_are_passed_over():
    frame = request_frame(9)
    tagged = b"\2\0\3abc\5\0"
    assert frame[16:17] == b"\0"
    assert read_produce(frame[:16] + tagged + frame[17:-1] + tagged, 9) == read_produce(frame, 9)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("throttle_s", [0.0, 1.25])
def test_answers_are_packed_as_the_library_writes_them(version, throttle_s):
    topics = [("one", [(0, 17), (300, 1 << 40)]), ("zwei€" * 60, [(1, 0)]), ("none", [])]
    new = {
        kind: maker("produce", version, kind)
        for kind in ("ProduceResponse", "TopicProduceResponse", "PartitionProduceResponse")
    }
    answer = new["ProduceResponse"](
        {
            "throttle_time": timedelta(seconds=throttle_s),
            "responses": tuple(
                new["TopicProduceResponse"](
                    {
                        "name": name,
                        "partition_responses": tuple(
                            new["PartitionProduceResponse"](
                                {
                                    "index": index,
                                    "error_code": ErrorCode.none,
                                    "base_offset": offset,
                                    "log_append_time": None,
                                    "log_start_offset": -1,
                                    "record_errors": (),
                                    "error_message": None,
                                }
                            )
                            for index, offset in parts
                        ),
                    }
                )
                for name, parts in topics
            ),
        }
    )
    frame = b"".join(Appended(version, topics).frame(7, throttle_s))
    assert frame == answer_bytes(7, answer)
    kind = message_class("produce", version, "response")
    header, at = entity_reader(kind.__header_schema__)(frame[4:], 0)
    assert header.correlation_id == 7
    read, _ = entity_reader(kind)(frame[4:], at)
    assert read == answer
    assert dataclasses.is_dataclass(read)


LARGE = b'{"a":"%s"}' % ("\u00e4".encode() * 20_000)


@pytest.mark.parametrize("times", [(7, 7, 9), (-1, 5, -1)])
def test_large_records_have_the_lines_of_others_without_copies(times):
    batch = batch_of([(ts, None, LARGE[:-1] + b',"n":%d}' % ts, []) for ts in times])
    records = batch.records()
    found = large_lines(Form.JSON, records, len(batch.data), STAMP, NOW_MS)
    expected = encode_batch(Form.JSON, records, STAMP, NOW_MS)
    assert found is not None
    assert b"".join(found.pieces) == expected.pieces[0]
    assert found[1:] == expected[1:]
    for form in (Form.PLAIN, Form.ENVELOPE, Form.AVRO):
        assert large_lines(form, records, len(batch.data), STAMP, NOW_MS) is None


@pytest.mark.parametrize(
    ("key", "value", "headers"),
    [
        (b"k", LARGE, []),
        (None, LARGE, [("h", b"1")]),
        (None, None, []),
        (None, b"{ " + LARGE[1:], []),
        (None, LARGE + b"\n", []),
        (None, LARGE + b"\n{}", []),
        (None, LARGE + LARGE, []),
        (None, LARGE[:-1], []),
        (None, LARGE[:-1] + b',"_meta":{}}', []),
        (None, LARGE[:-2] + b'\xff"}', []),
        (None, b'{"a":' + b"[" * 20_000 + b"]" * 20_000 + b"}", []),
        (None, b"[%s]" % LARGE, []),
    ],
)
def test_batches_of_large_records_with_another_are_taken_one_by_one(key, value, headers):
    batch = batch_of([(7, None, LARGE, []), (7, key, value, headers), (7, None, LARGE, [])])
    assert large_lines(Form.JSON, batch.records(), 1 << 20, STAMP, NOW_MS) is None


# ------------------------------------------------------------------ fetch

FETCHES = range(FETCH_LEAST, FETCH_MOST + 1)
WANTED = (("one", ((0, 17, 1 << 20), (300, 1 << 40, 5))), ("zwei€" * 60, ((1, 0, 0),)), ("no", ()))


def filled(api, version, name, **fields):
    """An entity of a request, without the fields that its version does not have."""
    entity = getattr(_module(api, version, "request"), name)
    known = {field.name for field in dataclasses.fields(entity)}
    return entity(**{key: value for key, value in fields.items() if key in known})


def fetch_frame(version, client="client"):
    topics = tuple(
        filled(
            "fetch",
            version,
            "FetchTopic",
            topic=name,
            partitions=tuple(
                filled(
                    "fetch",
                    version,
                    "FetchPartition",
                    partition=number,
                    current_leader_epoch=3,
                    fetch_offset=offset,
                    last_fetched_epoch=4,
                    log_start_offset=5,
                    partition_max_bytes=size,
                )
                for number, offset, size in parts
            ),
        )
        for name, parts in WANTED
    )
    forgotten = (
        filled("fetch", version, "ForgottenTopic", topic="old", partitions=(1, 2))
        if version >= 7
        else None
    )
    request = filled(
        "fetch",
        version,
        "FetchRequest",
        replica_id=-1,
        max_wait=timedelta(seconds=0.5),
        min_bytes=1,
        max_bytes=50,
        isolation_level=1,
        session_id=0,
        session_epoch=-1,
        topics=topics,
        forgotten_topics_data=(forgotten,),
        rack_id="rack",
    )
    header, buffer = request.__header_schema__, io.BytesIO()
    entity_writer(header)(
        buffer,
        header(request_api_key=1, request_api_version=version, correlation_id=7, client_id=client),
    )
    entity_writer(type(request))(buffer, request)
    return buffer.getvalue()


@pytest.mark.parametrize("version", FETCHES)
@pytest.mark.parametrize("client", ["client", None])
def test_fetches_are_read_as_the_library_writes_them(version, client):
    frame = fetch_frame(version, client)
    found = read_fetch(frame, version)
    assert found[:5] == (client or "", 0.5, 1, 50, 1)
    assert [(name, tuple(map(tuple, parts))) for name, parts in found.topics] == [*WANTED]
    assert read_fetch(bytearray(frame) + b"more", version) == found
    for size in range(8, len(frame) - (1 if version >= 12 else 0)):
        with pytest.raises((DataError, struct.error)):
            read_fetch(frame[:size], version)


@pytest.mark.parametrize("version", FETCHES)
@pytest.mark.parametrize("throttle_s", [0.0, 1.25])
def test_fetched_records_are_packed_as_the_library_writes_them(version, throttle_s):
    parts = [
        FetchedPart(0, 0, 1 << 40, 1 << 39, 7, [b"batch", bytearray(b"of"), memoryview(b"pieces")]),
        FetchedPart(300, ErrorCode.offset_out_of_range.value),
        FetchedPart(5, 0, 3, 3, 0, [b"x" * 40_000]),
    ]
    topics = [("one", parts), ("zwei€" * 60, [FetchedPart(1)]), ("none", [])]
    new = {
        kind: maker("fetch", version, kind)
        for kind in ("FetchResponse", "FetchableTopicResponse", "PartitionData")
    }
    answer = new["FetchResponse"](
        {
            "throttle_time": timedelta(seconds=throttle_s),
            "error_code": ErrorCode.none,
            "session_id": 0,
            "responses": tuple(
                new["FetchableTopicResponse"](
                    {
                        "topic": name,
                        "partitions": tuple(
                            new["PartitionData"](
                                {
                                    "partition_index": part.number,
                                    "error_code": ErrorCode(part.error_code),
                                    "high_watermark": part.head,
                                    "last_stable_offset": part.stable,
                                    "log_start_offset": part.start,
                                    "aborted_transactions": None,
                                    "records": b"".join(part.records),
                                }
                            )
                            for part in found
                        ),
                    }
                )
                for name, found in topics
            ),
        }
    )
    fetched = Fetched(version, topics)
    assert b"".join(fetched.frame(7, throttle_s)) == answer_bytes(7, answer)
    assert fetched.has_error
    assert fetched.size == 40_013
