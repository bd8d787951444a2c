"""What strangers may ask of a gateway: parts of requests, records of batches, and lines of the log."""

from __future__ import annotations

import asyncio
import logging
import struct
import time

import cramjam
import google_crc32c
import pytest

pytest.importorskip("kio")

from kio.schema.errors import ErrorCode

from gazette_platform.errors import DataError
from gazette_platform.kafka.failures import KafkaError, coordinator_code_of, fetch_code_of
from gazette_platform.kafka.records.batches import read_batch
from gazette_platform.kafka.wire.batches import PARTS_MAX, read_produce
from gazette_platform.kafka.wire.bounds import Budget, Complaints
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.testing.waiting import turns

LIMIT = 16 << 20
GZIP, SNAPPY, ZSTD = 1, 2, 4


def batch(content, count, codec=0):
    """A batch of records that are given as bytes."""
    after = struct.pack(">hiqqqhii", codec, count - 1, 0, 0, -1, -1, -1, count) + content
    body = struct.pack(">ibI", -1, 2, google_crc32c.value(after)) + after
    return struct.pack(">qi", 0, len(body)) + body


def unsigned(value):
    found = b""
    while value > 0x7F:
        found += bytes((value & 0x7F | 0x80,))
        value >>= 7
    return found + bytes((value,))


def varint(value):
    return unsigned(value << 1)


def sized(content):
    """A record, with its length."""
    return varint(len(content)) + content


NOTHING = sized(b"\0\0\0\x01\x01\0")  # no key, no value, no headers
HEADER = b"\0\x01"  # no name, no value


def code_of(data):
    began = time.process_time()
    with pytest.raises(KafkaError) as caught:
        read_batch(data, limit=LIMIT).records()
    assert time.process_time() - began < 1.0
    return caught.value.code


def test_batch_of_two_million_records_is_refused():
    count = LIMIT // len(NOTHING) - 100
    content = bytes(cramjam.gzip.compress(NOTHING * count))
    assert len(content) < 100_000
    assert code_of(batch(content, count, GZIP)) is ErrorCode.message_too_large


def test_batch_that_claims_records_which_it_cannot_hold_is_refused():
    assert code_of(batch(NOTHING, 200_000)) is ErrorCode.corrupt_message


@pytest.mark.parametrize("records", [1, 1000])
def test_batch_of_millions_of_headers_is_refused(records):
    headers = 4_000_000 // records
    record = sized(b"\0\0\0\x01\x01" + varint(headers) + HEADER * headers)
    content = bytes(cramjam.gzip.compress(record * records))
    assert code_of(batch(content, records, GZIP)) is ErrorCode.message_too_large


def test_large_batch_of_some_headers_is_taken():
    record = sized(b"\0\0\0\x01" + varint(2000) + bytes(2000) + varint(3) + HEADER * 3)
    data = batch(record * 1000, 1000)
    assert len(data) > 1 << 20
    assert len(read_batch(data, limit=LIMIT).records()) == 1000


def test_chunks_of_snappy_that_hold_next_to_nothing_are_refused():
    chunk = bytes(cramjam.snappy.compress_raw(b"x"))
    head = b"\x82SNAPPY\0" + bytes(8)
    content = head + (struct.pack(">i", len(chunk)) + chunk) * 50_000
    assert code_of(batch(content, 1, SNAPPY)) is ErrorCode.message_too_large


@pytest.mark.parametrize("codec", [GZIP, ZSTD, 3, SNAPPY])
def test_batch_that_becomes_gigabytes_is_refused(codec):
    zeros = bytes(LIMIT + 1)
    compressed = {
        GZIP: cramjam.gzip.compress,
        SNAPPY: cramjam.snappy.compress_raw,
        3: cramjam.lz4.compress,
        ZSTD: cramjam.zstd.compress,
    }[codec](zeros)
    assert code_of(batch(bytes(compressed), 1, codec)) is ErrorCode.message_too_large


# ------------------------------------------------------------------ requests


def produce(version, topics, parts, *, tags=0):
    """A Produce request whose parts hold no records."""
    head = struct.pack(">hhi", 0, version, 7) + struct.pack(">h", -1)
    if version < 9:
        one = struct.pack(">ii", 0, -1) * parts
        topic = struct.pack(">h", 1) + b"t" + struct.pack(">i", parts) + one
        return head + struct.pack(">hhii", -1, -1, 1000, topics) + topic * topics
    tagged = unsigned(tags) + b"\x09\x01x" * tags
    topic = b"\x02t" + unsigned(parts + 1) + (struct.pack(">i", 0) + b"\0" + tagged) * parts + b"\0"
    return head + b"\0\0" + struct.pack(">hi", -1, 1000) + unsigned(topics + 1) + topic * topics


@pytest.mark.parametrize("version", [8, 9])
def test_parts_of_produce_are_counted_as_they_are_read(version):
    assert len(read_produce(produce(version, 10, 100), version).topic_data) == 10
    many = [produce(version, 1, PARTS_MAX), produce(version, PARTS_MAX + 1, 0)]
    if version == 9:
        many.append(produce(version, 1, 1000, tags=PARTS_MAX // 1000))
    for frame in many:
        with pytest.raises(DataError, match="more than 50000 parts"):
            read_produce(frame, version)


# ------------------------------------------------------------------ room, log, codes


async def test_room_is_given_in_the_order_of_asking():
    budget, order = Budget(10), []

    async def take(name, size):
        order.append((name, await budget.take(size)))

    await take("first", 8)
    group = TaskGroup("asking")
    tasks = [group.spawn(take(*each), name="ask") for each in (("a", 9), ("b", 1), ("c", 99))]
    await turns()
    assert order == [("first", 8)]  # b has room, and a was first
    tasks[0].cancel()
    await tasks[1]
    assert order[1:] == [("b", 1)]
    budget.give(8)
    await turns()
    assert order[2:] == []
    budget.give(1)
    await tasks[2]
    assert order[2:] == [("c", 10)]
    assert budget.free == 0


async def test_room_of_one_who_left_when_it_came_is_given_back():
    budget = Budget(10)
    await budget.take(10)
    task = TaskGroup("asking").spawn(budget.take(5), name="ask")
    await turns()
    budget.give(10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert budget.free == 10


async def test_strangers_do_not_fill_the_log(caplog):
    complaints = Complaints()
    for number in range(1000):
        complaints.add("1.2.3.4", f"{number} " + "x" * 100_000)
    shown = [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert len(shown) == 30
    assert sum(len(one.getMessage()) for one in shown) < 30_000


def test_consumers_get_no_code_that_ends_them():
    for code in (ErrorCode.leader_not_available, ErrorCode.not_enough_replicas):
        assert fetch_code_of(KafkaError(code)) is ErrorCode.not_leader_or_follower
        assert coordinator_code_of(KafkaError(code)) is ErrorCode.coordinator_not_available
    for code in (ErrorCode.offset_out_of_range, ErrorCode.topic_authorization_failed):
        assert fetch_code_of(KafkaError(code)) is coordinator_code_of(KafkaError(code)) is code
    assert fetch_code_of(ValueError()) is ErrorCode.unknown_server_error
