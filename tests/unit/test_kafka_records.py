"""Kafka's records as lines of a journal: what is produced is what is fetched, byte for byte."""

from __future__ import annotations

import contextlib
import json
import random
import struct

import cramjam
import google_crc32c
import orjson
import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import example, given, settings, strategies as st
from kio.schema.errors import ErrorCode

from gazette_platform.kafka.failures import KafkaError, Refused
from gazette_platform.kafka.records.batches import (
    LargeBuilder,
    finish_batch,
    new_builder,
    read_batch,
)
from gazette_platform.kafka.records.lines import Block, Stamp, decode_lines, encode_batch, has_marks
from gazette_platform.kafka.topics import Form
from gazette_platform.message.uuid import Flags, build_uuid, parse_uuid, uuid_text

PRODUCER = bytes.fromhex("010203040506")
CLOCK = 0x1EF0_1234_5678_9AB0
LIMIT = 1 << 20
CODECS = {0: "none", 1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}

json_values = st.dictionaries(
    st.text(max_size=8).filter(lambda name: name != "_meta"),
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
        ),
        max_leaves=6,
    ),
    max_size=4,
)
separators = st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", " :")])
texts = st.tuples(json_values, separators, st.booleans()).map(
    lambda drawn: json.dumps(drawn[0], separators=drawn[1], ensure_ascii=drawn[2]).encode(
        "utf-8", "replace"
    )
)
padded = st.sampled_from([b"{ }", b'{ "a":1 }', b'{"a":1}\r', b'{\t"}":"}"}  ', b"{}"])
keys = st.none() | st.binary(max_size=20) | st.text(max_size=20).map(str.encode)
headers = st.lists(st.tuples(st.text(max_size=8), keys), max_size=3)
timestamps = st.integers(0, 10**15)


def records_of(values):
    return st.lists(st.tuples(timestamps, keys, values, headers), min_size=1, max_size=40)


def batch_of(records, codec=0, **state):
    builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 30)
    for number, (ts, key, value, heads) in enumerate(records):
        builder.append(number, ts, key, value, heads)
    return bytes(builder.build())


def encode(form, records, codec=0, clock=CLOCK, flags=Flags.OUTSIDE_TXN):
    batch = read_batch(batch_of(records, codec), limit=LIMIT)
    stamp = Stamp(PRODUCER, clock, flags)
    lines = encode_batch(form, batch.records(), stamp, 5)
    content = b"".join(lines.pieces)
    assert len(content) == lines.size
    return content, lines.first_bytes


def block_of(content):
    """The lines amid others, which do not count."""
    around = b'{"_meta":{"uuid":"00000000-0000-1000-8001-000000000000"}}\n'
    return Block(around + content + around[:-1], len(around), len(around) + len(content))


def fetch(form, content, *, base=1000, **options):
    builder = new_builder()
    done = decode_lines(form, block_of(content), builder.append, base=base, **options)
    return b"".join(finish_batch(builder, done.records, base=base, end=base + done.size))


def records_in(batch):
    found = DefaultRecordBatch(batch)
    assert found.validate_crc()
    return found, [
        (each.offset, each.timestamp, each.key, each.value, each.headers) for each in found
    ]


def expect_same(form, records, codec=0):
    content, first = encode(form, records, codec)
    lines = (
        content.splitlines(keepends=True)
        if b"\r" not in content
        else [line + b"\n" for line in content.split(b"\n")[:-1]]
    )
    assert len(lines) == len(records)
    assert first == len(lines[0])
    batch, found = records_in(fetch(form, content))
    assert [each[1:] for each in found] == records
    ends = [1000 + sum(map(len, lines[: n + 1])) - 1 for n in range(len(lines))]
    assert [each[0] for each in found] == ends
    assert batch.next_offset == 1000 + len(content)
    return lines


@given(records_of(st.none() | texts | padded), st.sampled_from(sorted(CODECS)))
@example([(n % 2, [None, b"k"][n % 2], b'{"n":1}', []) for n in range(4)], 0)
@example([(0, None, value, []) for value in (b"{ }", b'{"a":1}', b"{}", b"{ }", b'{"a":1}')], 0)
@settings(deadline=None)
def test_json_topic_gives_back_what_was_produced(records, codec):
    for line in expect_same(Form.JSON, records, codec):
        assert parse_uuid(orjson.loads(line)["_meta"]["uuid"]).producer == PRODUCER


@given(records_of(st.none() | st.binary(max_size=60) | texts), st.sampled_from(sorted(CODECS)))
@settings(deadline=None)
def test_envelope_topic_gives_back_what_was_produced(records, codec):
    for line in expect_same(Form.ENVELOPE, records, codec):
        orjson.loads(line)


@given(st.lists(texts | padded, min_size=1, max_size=40))
@settings(deadline=None)
def test_plain_topic_has_the_values_alone(values):
    content, first = encode(Form.PLAIN, [(7, b"lost", value, []) for value in values])
    assert content == b"".join(value + b"\n" for value in values)
    assert first == len(values[0]) + 1
    _, found = records_in(fetch(Form.PLAIN, content, else_ms=9))
    assert [each[3] for each in found] == values


@given(st.lists(st.binary(max_size=80) | texts, min_size=1, max_size=20), st.sampled_from(Form))
@settings(deadline=None)
def test_line_of_another_writer_is_a_record_as_it_is(values, form):
    values = [value.replace(b"\n", b"") for value in values]
    _, found = records_in(fetch(form, b"".join(value + b"\n" for value in values), else_ms=9))
    assert [(each[1], each[2], each[3]) for each in found] == [(9, None, value) for value in values]


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"[1]",
        b"7",
        b"text",
        b'{"a":1}\n',
        b'{"a":\n1}',
        b' {"a":1}',
        b'{"_meta":1}',
        b'{"a":1,"\\u005fmeta":{}}',
        b'{"a":1}{"b":2}',
        b'{"a":1},{"b":2}',
        b'{"a":"\xff"}',
        b'{"a":"\t"}',
        b'{"a":' + b"[" * 100_000,
        b'{"a":1',
    ],
)
def test_value_other_than_a_json_object_on_a_line_is_refused_by_number(value):
    good = (1, None, b'{"a":1}', [])
    with pytest.raises(Refused) as refused:
        encode(Form.JSON, [good, good, (1, None, value, []), good])
    assert [bad.number for bad in refused.value.records] == [2]
    assert "form envelope" in refused.value.records[0].why


def test_halves_of_objects_do_not_join():
    with pytest.raises(Refused) as refused:
        encode(Form.JSON, [(1, None, b'{"a":1', []), (1, None, b'"b":2}', [])])
    assert [bad.number for bad in refused.value.records] == [0, 1]


def test_plain_topic_refuses_null():
    with pytest.raises(Refused, match="no null values"):
        encode(Form.PLAIN, [(1, None, None, [])])


@pytest.mark.parametrize("count", [1, 15, 16, 17, 1000])
@pytest.mark.parametrize("clock", [CLOCK, 0x0FFF_FFFF_F << 4, (1 << 64) - 64 * 16])
def test_uuids_count_up(count, clock):
    records = [(1, None, b"{}", [])] * count
    lines = encode(Form.JSON, records, clock=clock, flags=Flags.CONTINUE_TXN)[0].splitlines()
    parts = [parse_uuid(orjson.loads(line)["_meta"]["uuid"]) for line in lines]
    assert [part.clock for part in parts] == list(range(clock, clock + count))
    assert {(part.producer, part.flags) for part in parts} == {(PRODUCER, Flags.CONTINUE_TXN)}
    assert Stamp(PRODUCER, clock, 0).end(count) >= clock + count


class Verdicts:
    def __init__(self, known):
        self.known = known

    def of(self, producer, clock, offset):
        return self.known[clock]


def line_of(clock, flags, text=b""):
    return b'{"_meta":{"uuid":"%s"}%s}\n' % (uuid_text(PRODUCER, clock, flags).encode(), text)


def test_acknowledgements_are_never_records():
    content = line_of(16, Flags.OUTSIDE_TXN) + line_of(32, Flags.ACK_TXN) + b'{"b":1}\n'
    _, found = records_in(fetch(Form.JSON, content))
    assert [each[3] for each in found] == [line_of(16, 0)[:-1], b'{"b":1}']


@pytest.mark.parametrize("is_ours", [True, False])
def test_committed_records_are_shown_up_to_the_first_that_is_undecided(is_ours):
    def line(clock):
        if not is_ours:
            return line_of(clock, Flags.CONTINUE_TXN, b',"n":%d' % clock)
        record = [(1, None, b'{"n":%d}' % clock, [])]
        return encode(Form.JSON, record, clock=clock, flags=Flags.CONTINUE_TXN)[0]

    lines = [line(16), line(32), line(48), line(64)]
    verdicts = Verdicts({16: True, 32: False, 48: True, 64: None})
    builder = new_builder()
    done = decode_lines(Form.JSON, block_of(b"".join(lines)), builder.append, verdicts=verdicts)
    assert done == (2, sum(map(len, lines[:3])))
    found, records = records_in(b"".join(finish_batch(builder, 2, base=0, end=done.size)))
    assert [orjson.loads(each[3])["n"] for each in records] == [16, 48]
    assert found.next_offset == done.size


def test_empty_batch_moves_a_consumer_on():
    content = line_of(32, Flags.ACK_TXN)
    found, records = records_in(fetch(Form.JSON, content, base=70))
    assert records == []
    assert found.next_offset == 70 + len(content)


HEAD = b'{"_meta":{"uuid":"%s","ts":' % uuid_text(PRODUCER, CLOCK, Flags.OUTSIDE_TXN).encode()


def as_json(value):
    return json.dumps(value).encode()


odd_values = st.sampled_from(["a", "", None, True, 5, -5, 2**63, 2**64, 1e300, [], ["a"]])
odd_headers = st.lists(st.lists(odd_values, min_size=2, max_size=3), max_size=2) | odd_values
odd_members = st.dictionaries(
    st.sampled_from(["key", "key64", "tombstone", "value", "value64", "x"]), odd_values, max_size=3
)
# As ours begin, with members that are not.
odd_lines = st.one_of(
    st.builds(lambda ts: HEAD + b'%s,"key":"k\\n"},"value":"v"}' % ts, odd_values.map(as_json)),
    st.builds(lambda all_: HEAD + b'5,"headers":%s},"a":1}' % all_, odd_headers.map(as_json)),
    st.builds(lambda all_: HEAD + b'5},"value":"","headers":%s}' % all_, odd_headers.map(as_json)),
    st.builds(lambda all_: HEAD + b"5," + as_json(all_)[1:] + b',"a":1}', odd_members),
    st.builds(lambda all_: HEAD + b"5}," + as_json(all_)[1:], odd_members),
)
foreign_lines = st.one_of(
    odd_lines,
    st.builds(lambda line, size: line[:size], odd_lines, st.integers(0, 200)),
    texts,
    st.binary(max_size=60).map(lambda line: line.replace(b"\n", b"")),
)


@given(st.lists(foreign_lines, min_size=1, max_size=4), st.sampled_from(Form))
@settings(deadline=None, max_examples=200)
def test_no_line_of_another_writer_stops_consumers(lines, form):
    """Whatever it holds, its record ends at its last byte, and those around it are whole."""
    # Of the form avro it names no schema, as the lines of other writers.
    good, _ = encode(Form.JSON if form is Form.AVRO else form, [(7, None, b'{"a":1}', [])])
    content = b"".join(good + line + b"\n" for line in lines) + good
    batch, found = records_in(fetch(form, content, else_ms=9))
    ends = [1000 + at for at, byte in enumerate(content) if byte == 0x0A]
    assert [each[0] for each in found] == ends
    assert [each[3] for each in found[::2]] == [b'{"a":1}'] * (len(lines) + 1)
    assert batch.next_offset == 1000 + len(content)


@given(foreign_lines.map(lambda line: line.replace(b"}", b"")), st.sampled_from(Form))
@example(HEAD + b"123", Form.JSON)
@settings(deadline=None)
def test_line_that_was_cut_off_is_a_record_as_it_is(line, form):
    _, found = records_in(fetch(form, line + b"\n"))
    assert [each[3] for each in found] == [line]


def test_timestamp_of_another_writer_is_its_clock():
    clock = (122_192_928_000_000_000 + 1_700_000_000_123 * 10_000) << 4
    uuid = str(build_uuid(PRODUCER, clock, Flags.OUTSIDE_TXN))
    for line in ({"_meta": {"uuid": uuid}}, {"a": 1, "_meta": {"b": 2, "uuid": uuid}}):
        _, found = records_in(fetch(Form.JSON, orjson.dumps(line) + b"\n", else_ms=9))
        assert found[0][1] == 1_700_000_000_123


# ------------------------------------------------------------------ hostile batches


def code_of(data, limit=LIMIT):
    with pytest.raises(KafkaError) as failed:
        read_batch(data, limit=limit).records()
    return failed.value.code


GOOD = batch_of([(1, b"k", b"v" * 100, [("h", b"x")])])


def signed(data):
    data = bytearray(data)
    struct.pack_into(">I", data, 17, google_crc32c.value(bytes(data[21:])))
    return bytes(data)


@pytest.mark.parametrize("codec", sorted(CODECS)[1:])
def test_compression_is_undone_up_to_a_limit(codec):
    data = batch_of([(1, None, b"x" * 500_000, [])], codec)
    assert [len(record.value) for record in read_batch(data, limit=600_000).records()] == [500_000]
    assert code_of(data, limit=400_000) == ErrorCode.message_too_large


def test_snappy_without_frames_is_undone():
    raw = batch_of([(1, None, b"x" * 5000, [])])
    data = bytearray(raw[:61] + bytes(cramjam.snappy.compress_raw(raw[61:])))
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">h", data, 21, 2)
    assert [record.value for record in read_batch(signed(data), limit=LIMIT).records()] == [
        b"x" * 5000
    ]


def test_batch_that_breaks_the_format_is_refused():
    assert code_of(GOOD[:-1]) == ErrorCode.invalid_record
    assert code_of(GOOD + GOOD) == ErrorCode.invalid_record
    assert code_of(GOOD[:30]) == ErrorCode.corrupt_message
    assert code_of(GOOD[:-1] + b"!") == ErrorCode.corrupt_message
    assert code_of(GOOD, limit=50) == ErrorCode.message_too_large
    assert code_of(b"\0" * 16 + b"\1" + b"\0" * 60) == ErrorCode.unsupported_for_message_format
    control = bytearray(GOOD)
    control[22] |= 0x20
    assert code_of(signed(control)) == ErrorCode.invalid_record
    unknown = bytearray(GOOD)
    unknown[22] |= 0x07
    assert code_of(signed(unknown)) == ErrorCode.unsupported_compression_type


@given(st.integers(0, 2**32), st.sampled_from(sorted(CODECS)))
@settings(deadline=None, max_examples=200)
def test_damaged_batch_is_refused_or_read(seed, codec):
    """No damage ends in an error that the gateway does not expect, even under a good checksum."""
    rng = random.Random(seed)
    data = bytearray(batch_of([(1, b"k", b"v" * 50, [("h", b"x")])] * 5, codec))
    for _ in range(rng.randrange(1, 4)):
        data[rng.randrange(12, len(data))] = rng.randrange(256)
    with contextlib.suppress(KafkaError):
        read_batch(signed(data), limit=LIMIT).records()


@given(
    st.lists(
        st.tuples(st.integers(1, 2**22), timestamps, keys, st.none() | st.binary(), headers),
        min_size=1,
        max_size=8,
    )
)
@example([(1, 5, None, b"x" * 70_000, [("a", None)]), (2**21, 3, b"", None, [])])
@settings(deadline=None)
def test_batches_of_large_and_of_small_records_are_built_alike(records):
    offset = 0
    builders = new_builder(1 << 20), new_builder(1)
    for step, *record in records:
        offset += step
        for builder in builders:
            builder.append(offset, *record)
    built = [
        b"".join(finish_batch(builder, len(records), base=1000, end=1001 + offset))
        for builder in builders
    ]
    assert type(builders[0]) is not type(builders[1])
    assert built[0] == built[1]


@pytest.mark.parametrize("key", [None, b"key"])
def test_large_values_are_built_of_the_lines_themselves(key):
    values = [b'{"a":"%s"}' % (b"x" * size) for size in (20_000, 3, 70_000, 16 << 10)]
    content = encode(Form.JSON, [(9, key, value, []) for value in values])[0]
    builder = LargeBuilder()
    options = {"add_rest": builder.append_rest, "base": 1000}
    done = decode_lines(Form.JSON, block_of(content), builder.append, **options)
    pieces = finish_batch(builder, done.records, base=1000, end=1000 + done.size)
    assert sum(isinstance(piece, memoryview) for piece in pieces) == 3
    assert b"".join(pieces) == fetch(Form.JSON, content)


@pytest.mark.parametrize("size", [0, 40_000])
@pytest.mark.parametrize("flags", Flags)
def test_marks_of_transactions_are_found_in_short_and_long_lines(size, flags):
    value = b'{"a":"%s"}' % (b"x" * size)
    plain, _ = encode(Form.JSON, [(7, None, value, [])])
    ours, _ = encode(Form.JSON, [(7, None, value, [])], flags=flags)
    theirs = b'{"a":"%s","_meta":%s\n' % (b"x" * size, ours[len(b'{"_meta":') :].split(b",")[0])
    for line in (ours, theirs):
        assert has_marks(block_of(plain + line + plain)) is (flags != Flags.OUTSIDE_TXN)


def test_lines_that_are_cut_short_are_those_of_another_writer():
    whole, _ = encode(Form.JSON, [(7, None, b'{"a":1}', [])])
    cuts = [whole[:at] + b"\n" for at in range(len(whole) - 8)]
    _, found = records_in(fetch(Form.JSON, whole + b"".join(cuts) + whole, else_ms=9))
    assert [each[3] for each in found] == [b'{"a":1}', *(cut[:-1] for cut in cuts), b'{"a":1}']


def test_uuid_of_an_object_in_another_does_not_count():
    """An acknowledgement, or a message of a transaction, that a record only quotes."""
    for flags in Flags:
        quoted, _ = encode(Form.JSON, [(7, None, b'{"a":1}', [])], flags=flags)
        line = b'{"quoted":' + quoted[:-1] + b"}\n"
        _, found = records_in(fetch(Form.PLAIN, line, else_ms=9, verdicts=Verdicts({CLOCK: None})))
        assert [each[3] for each in found] == [line[:-1]]
