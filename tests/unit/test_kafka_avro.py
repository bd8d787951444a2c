"""Avro values as JSON objects: the same values come back, and what would not is refused."""

from __future__ import annotations

import json
import struct
from datetime import UTC, date, datetime, time
from decimal import Decimal
from io import BytesIO
from random import Random
from types import SimpleNamespace
from uuid import UUID

import fastavro
import pytest
from hypothesis import given, strategies as st

from gazette_platform.errors import DataError, ValidationError
from gazette_platform.kafka.records import avro_json
from gazette_platform.kafka.records.avro_json import AvroCodec, schema_id_of
from gazette_platform.kafka.records.lines import (
    Block,
    Refused,
    Stamp,
    decode_lines,
    encode_batch,
    schema_ids_of,
)
from gazette_platform.kafka.topics import Form

ID = 7
HEAD = struct.pack(">BI", 0, ID)


def record(**fields):
    parts = [{"name": name, "type": kind} for name, kind in fields.items()]
    return {"type": "record", "name": "Flight", "namespace": "a.b", "fields": parts}


def logical(kind, name, **more):
    return {"type": kind, "logicalType": name, **more}


def codec_of(schema):
    return AvroCodec(ID, json.dumps(schema))


def value_of(schema, value):
    out = BytesIO(HEAD)
    out.seek(len(HEAD))
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


INNER = {"type": "record", "name": "Inner", "fields": [{"name": "raw", "type": "bytes"}]}
ENUM = {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}
FIXED = {"type": "fixed", "name": "Three", "size": 3}
EXACT = [
    ("boolean", True, "true"),
    ("int", -5, "-5"),
    ("long", -(2**63), "-9223372036854775808"),
    ("float", 0.5, "0.5"),
    ("double", -0.0, "-0.0"),
    ("string", 'a"}\n\x00é€😀', None),
    ("bytes", b"\xff\x00", '"/wA="'),
    (FIXED, b"123", '"MTIz"'),
    (ENUM, "B", '"B"'),
    (INNER, {"raw": b"a"}, '{"raw":"YQ=="}'),
    (["null", INNER], {"raw": b"a"}, '{"raw":"YQ=="}'),
    (["null", "string"], None, "null"),
    (["string", "null"], "a", '"a"'),
    (["null", "bytes"], b"a", '"YQ=="'),
    ({"type": "array", "items": "bytes"}, [b"a", b""], '["YQ==",""]'),
    ({"type": "array", "items": ["null", "long"]}, [None, 1], "[null,1]"),
    ({"type": "map", "values": "bytes"}, {"_meta": b"", "-type": b"a"}, None),
    (logical("int", "date"), date(2024, 2, 29), '"2024-02-29"'),
    (logical("int", "time-millis"), time(1, 2, 3, 4000), '"01:02:03.004000"'),
    (logical("long", "time-micros"), time(1, 2, 3, 4), '"01:02:03.000004"'),
    (
        logical("long", "timestamp-millis"),
        datetime(2024, 1, 1, 0, 0, 0, 5000, UTC),
        '"2024-01-01T00:00:00.005000Z"',
    ),
    (
        logical("long", "timestamp-micros"),
        datetime(1969, 1, 1, 0, 0, 0, 5, UTC),
        '"1969-01-01T00:00:00.000005Z"',
    ),
    (
        logical("long", "local-timestamp-millis"),
        datetime(2024, 1, 1, tzinfo=UTC).replace(tzinfo=None),
        '"2024-01-01T00:00:00"',
    ),
    (logical("bytes", "decimal", precision=9, scale=2), Decimal("-1.20"), '"-1.20"'),
    (logical("string", "uuid"), UUID(int=5), '"00000000-0000-0000-0000-000000000005"'),
    (["null", logical("long", "timestamp-millis"), "string"], "a", '"a"'),
    (logical("long", "of-our-own"), 5, "5"),
]


@pytest.mark.parametrize(("kind", "value", "shown"), EXACT, ids=lambda one: str(one)[:30])
def test_values_come_back_as_they_were(kind, value, shown):
    schema = record(x=kind, after="string")
    codec, binary = codec_of(schema), value_of(schema, {"x": value, "after": "a"})
    text = codec.to_json(binary)
    assert b"\n" not in text
    if shown is not None:
        assert text == f'{{"x":{shown},"after":"a"}}'.encode()
    assert codec.to_avro(text) == binary
    assert codec.to_avro(b'{"_meta":{"uuid":"a"},' + text[1:]) == binary


def test_a_named_type_may_be_used_again():
    schema = record(
        x=INNER, y="Inner", z=["null", "Inner"], k=ENUM, l="a.b.Kind", f=FIXED, g="Three"
    )
    value = {
        "x": {"raw": b"a"},
        "y": {"raw": b"b"},
        "z": {"raw": b"c"},
        "k": "A",
        "l": "B",
        "f": b"123",
        "g": b"456",
    }
    binary = value_of(schema, value)
    codec = codec_of(schema)
    assert codec.to_avro(codec.to_json(binary)) == binary


def test_arrays_in_blocks_of_other_writers_are_the_same_values():
    codec = codec_of(record(x={"type": "array", "items": "int"}))
    # A block of two with its size in bytes, then one of one.
    blocks = HEAD + b"\x03\x04\x02\x04" + b"\x02\x06" + b"\x00"
    assert codec.to_json(blocks) == b'{"x":[1,2,3]}'


OTHER = {"type": "record", "name": "Other", "fields": [{"name": "raw", "type": "bytes"}]}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("double", float("nan")),
        (["null", "double"], float("inf")),
        (["string", "bytes"], b"abcd"),
        (["bytes", "string"], "abcd"),
        ([INNER, OTHER], ("a.b.Other", {"raw": b""})),
        (["string", logical("long", "timestamp-millis")], datetime(2024, 1, 1, tzinfo=UTC)),
    ],
    ids=str,
)
def test_what_json_cannot_hold_is_refused(kind, value):
    schema = record(x=kind)
    with pytest.raises(DataError, match="JSON cannot hold the value"):
        codec_of(schema).to_json(value_of(schema, {"x": value}))


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ("string", "not of a record"),
        (record(), "has no fields"),
        (record(x="null"), "takes no bytes"),
        (record(x={"type": "array", "items": "null"}), "takes no bytes"),
        (record(x={"type": "fixed", "name": "Zero", "size": 0}), "has no bytes"),
        (record(x=["null", "Flight"]), "holds itself"),
        (record(x=["null", {"type": "array", "items": "a.b.Flight"}]), "holds itself"),
        (record(x="Elsewhere"), "not defined"),
        (record(_meta="int"), "a field _meta"),
        (record(x=[]), "not a schema"),
        ({"type": "record"}, "not a schema"),
        (5, "not a schema"),
    ],
    ids=str,
)
def test_schemas_without_lines_or_without_limits_are_refused(schema, why):
    with pytest.raises(ValidationError, match=why):
        codec_of(schema)


def nested(depth):
    kind = "int"
    for number in range(depth):
        kind = {"type": "record", "name": f"R{number}", "fields": [{"name": "x", "type": kind}]}
    return kind


def test_the_height_of_a_schema_limits_its_values():
    codec_of(nested(avro_json._HEIGHT_MAX - 1))
    for depth in (avro_json._HEIGHT_MAX, 300):
        with pytest.raises(ValidationError, match="nest"):
            codec_of(nested(depth))
    for text in ('{"type":' * 5000 + "5" + "}" * 5000, '{"type":' * 900 + "5" + "}" * 900):
        with pytest.raises(ValidationError, match=r"not a schema|not defined"):
            AvroCodec(ID, text)
    many = record(x={"type": "array", "items": "boolean"})
    binary = HEAD + b"\xfe\xff\xff\x01" + b"\x00" * (2 << 20)
    with pytest.raises(DataError, match="at most are taken"):
        codec_of(many).to_json(binary)


def test_damaged_values_are_refused_or_come_back_as_they_are():
    fields = {f"f{number}": kind for number, (kind, _, _) in enumerate(EXACT[:9])}
    fields |= {f"g{number}": kind for number, (kind, _, _) in enumerate(EXACT[11:-1])}
    schema = record(**fields)
    values = [value for _, value, _ in EXACT[:9]] + [value for _, value, _ in EXACT[11:-1]]
    codec = codec_of(schema)
    binary = value_of(schema, dict(zip(fields, values, strict=True)))
    assert codec.to_avro(codec.to_json(binary)) == binary
    random, kept = Random(5), 0
    for _ in range(5000):
        damaged = bytearray(binary)
        for _ in range(random.randrange(1, 4)):
            damaged[random.randrange(len(HEAD), len(damaged))] = random.randrange(256)
        try:
            text = codec.to_json(bytes(damaged))
        except DataError:
            continue
        assert codec._typed(codec.to_avro(text)) == codec._typed(bytes(damaged))
        kept += 1
    assert 0 < kept < 5000
    for end in range(len(HEAD), len(binary)):
        with pytest.raises(DataError):
            codec.to_json(binary[:end])


def test_ids_of_values():
    assert schema_id_of(HEAD + b"a") == ID
    assert schema_id_of(HEAD) == ID
    assert schema_id_of(HEAD[:-1]) is None
    assert schema_id_of(b"\x01" + HEAD[1:]) is None
    assert schema_id_of(b"") is None


SMALL = record(id="string", raw="bytes")
STAMP = Stamp(b"abcdef", 1 << 40, 0)
keys = st.none() | st.binary(max_size=8) | st.text(max_size=8).map(str.encode)
values = st.none() | st.tuples(st.text(max_size=8), st.binary(max_size=8)).map(
    lambda drawn: value_of(SMALL, {"id": drawn[0], "raw": drawn[1]})
)
headers = st.lists(st.tuples(st.text(max_size=4), keys), max_size=2)
records = st.tuples(st.integers(0, 10**15), keys, values, headers)


def made(ts, key, value, heads):
    return SimpleNamespace(timestamp=ts, key=key, value=value, headers=heads)


@given(st.lists(records, min_size=1, max_size=5))
def test_records_are_lines_and_come_back(drawn):
    codecs = {ID: codec_of(SMALL)}
    lines = encode_batch(Form.AVRO, [made(*each) for each in drawn], STAMP, 5, codecs)
    assert lines.pieces[0].count(b"\n") == len(drawn)
    assert lines.pieces[0][lines.first_bytes - 1] == 10
    ids = {ID if value is not None else 0 for _, _, value, _ in drawn}
    block = Block(b"{}\n%s{}\n" % lines.pieces[0], 3, 3 + len(lines.pieces[0]))
    assert schema_ids_of(block) == ids
    found = []
    decode_lines(Form.AVRO, block, lambda _, *each: found.append(each), codecs=codecs)
    assert found == drawn


def test_lines_that_name_no_schema_or_do_not_fit_it():
    def values_of(*lines):
        found = []
        block = b"".join(line + b"\n" for line in lines)
        codecs = {ID: codec_of(SMALL), 0: codec_of(record(n="int"))}
        decode_lines(
            Form.AVRO,
            Block(block, 0, len(block)),
            lambda at, ts, key, value, heads: found.append((at, value)),
            codecs=codecs,
        )
        return found

    uuid = "3fedd8d9-ebec-11f1-8000-fda640868e30"
    unknown = b'{"_meta":{"uuid":"%s","ts":1,"schema":9},"id":"a"}' % uuid.encode()
    unfit = b'{"_meta":{"uuid":"%s","ts":1,"schema":7},"id":5}' % uuid.encode()
    found = values_of(b'{"n":5}', b'{"n":"a"}', b"no json", unknown, unfit)
    assert [value for _, value in found] == [
        value_of(record(n="int"), {"n": 5}),
        b'{"n":"a"}',
        b"no json",
        b'{"id":"a"}',
        b'{"id":5}',
    ]
    assert found[0][0] == len(b'{"n":5}')


def test_all_bad_records_of_a_batch_are_named():
    good = value_of(SMALL, {"id": "a", "raw": b""})
    codecs = {ID: codec_of(SMALL), 8: "schema 8: of no use"}
    batch = [good, good + b"a", b"{}", struct.pack(">BI", 0, 8), struct.pack(">BI", 0, 9), good]
    with pytest.raises(Refused) as refused:
        encode_batch(Form.AVRO, [made(1, None, each, []) for each in batch], STAMP, 5, codecs)
    assert [each.number for each in refused.value.records] == [1, 2, 3, 4]
    whys = [each.why for each in refused.value.records]
    assert whys[2] == "schema 8: of no use"
    assert "no schema 9" in whys[3]
