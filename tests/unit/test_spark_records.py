"""Records of `format("gazette")`: lines and frames as rows of Spark's."""

import json
from itertools import pairwise
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from gazette_platform.errors import DataError, ValidationError
from gazette_platform.message.framing import frame_fixed
from gazette_platform.spark import reading
from gazette_platform.spark.options import DEFAULT_SCHEMA, columns_of
from gazette_platform.spark.reading import Range
from gazette_platform.spark.records import CSV, JSON, Records

PLACED = "n bigint, text string, x double, _begin bigint, _end bigint, _corrupt binary"
# Each is good or bad by itself: among others it must be the same.
LINES = [
    b'{"n":1}',
    b'{"n":2,"text":"a","x":1e3,"other":[1]}',
    b'{"text":null}',
    b"{}",
    b' {"n":3}\t',
    b'{"n":4}\r',
    b"",
    b"  ",
    b"null",
    b"[1]",
    b"1",
    b"{",
    b"}",
    b'{"n":"5"}',
    b'{"n":9223372036854775808}',
    b'{"n":1.0}',
    b'{"x":NaN}',
    b'{"x":Infinity}',
    b'{"text":"\xff"}',
    b'{"n":6}{"n":7}',
    b'{"n":8',
    b',"x":1}',
    b'{"text":"\\ud800"}',
    b'{"n":1,"n":2}',
    b"[" * 1200,
]


TYPES = {
    "bigint": LongType(),
    "int": IntegerType(),
    "string": StringType(),
    "binary": BinaryType(),
    "double": DoubleType(),
    "date": DateType(),
    "timestamp": TimestampType(),
    "decimal(5,2)": DecimalType(5, 2),
    "array<double>": ArrayType(DoubleType()),
    "map<string,int>": MapType(StringType(), IntegerType()),
    "struct<d:date>": StructType([StructField("d", DateType())]),
    "struct<b:binary>": StructType([StructField("b", BinaryType())]),
}


def columns(ddl):
    """Of a schema as Spark writes it, whose own parser needs a JVM."""
    pairs = (column.split(" ") for column in ddl.split(", "))
    return columns_of(StructType([StructField(name, TYPES[kind]) for name, kind in pairs]))


def rows_of(content, ddl=PLACED, *, kind=JSON, mode="permissive", begin=100, pieces=None):
    made = Records(kind, columns(ddl), uuid_path=("_meta", "uuid"), mode=mode)
    parts = pieces or [content]
    at, placed = begin, []
    for part in parts:
        placed.append((at, part))
        at += len(part)
    found = []
    for block in reading._lines("a/b", iter(placed)):
        for batch in made.batches(block):
            assert batch.schema == made._columns.schema
            batch.validate(full=True)
            found += batch.to_pylist()
    return found


def keeping(row):
    return {name: value for name, value in row.items() if name not in ("_begin", "_end")}


ALONE = {line: [keeping(row) for row in rows_of(line + b"\n")] for line in LINES}


def test_lines_that_are_not_records_are_reported():
    bad = {line for line, rows in ALONE.items() if rows and rows[0]["_corrupt"] is not None}
    assert bad == set(LINES[8:])
    assert [line for line, rows in ALONE.items() if not rows] == [b"", b"  "]
    assert ALONE[LINES[1]] == [{"n": 2, "text": "a", "x": 1000.0, "_corrupt": None}]
    assert all(ALONE[line][0]["_corrupt"] == line for line in bad)


@given(st.lists(st.sampled_from(LINES), max_size=12), st.data())
def test_line_is_among_others_what_it_is_alone_however_it_is_cut(lines, data):
    content = b"".join(line + b"\n" for line in lines)
    if content and data.draw(st.booleans()):
        content = content[:-1]  # no append has ended the last line
    cuts = data.draw(st.lists(st.integers(0, len(content)), max_size=4))
    pieces = [content[a:b] for a, b in pairwise(sorted({0, *cuts, len(content)}))]
    found = rows_of(content, pieces=pieces)
    assert [keeping(row) for row in found] == [row for line in lines for row in ALONE[line]]
    begins = [row["_begin"] for row in found]
    assert begins == sorted(begins)
    for row in found:
        raw = content[row["_begin"] - 100 : row["_end"] - 100]
        assert raw.count(b"\n") <= 1
        if row["_corrupt"] is not None:
            assert raw.removesuffix(b"\n") == row["_corrupt"]


def test_large_content_is_cut_into_blocks_of_whole_lines():
    line = json.dumps({"n": 1, "text": "x" * 700}).encode() + b"\n"
    content = line * 5000 + b'{"n":2,"text":"' + b"y" * (3 << 20) + b'"}\n' + line
    step = 100_000
    pieces = [(at, content[at : at + step]) for at in range(0, len(content), step)]
    blocks = list(reading._lines("a/b", iter(pieces)))
    assert b"".join(block.content for block in blocks) == content
    assert all(block.content.endswith(b"\n") for block in blocks)
    assert len(blocks) >= 5
    assert sum(len(block.begins) for block in blocks) == 5002
    ends = [end for block in blocks for end in block.ends.to_pylist()]
    assert [0, *ends[:-1]] == [at for block in blocks for at in block.begins.to_pylist()]


def test_content_after_a_hole_restarts():
    pieces = [(0, b'{"n":1}\n{"n'), (50, b'{"n":3}\n')]
    blocks = list(reading._lines("a/b", iter(pieces)))
    assert [(block.begins.to_pylist(), block.ends.to_pylist()) for block in blocks] == [
        ([0, 8], [8, 11]),
        ([50], [58]),
    ]


def test_modes_drop_or_fail():
    content = b'{"n":1}\nno\n{"n":2}\n{"n":"x"}\n'
    assert [row["n"] for row in rows_of(content, mode="dropMalformed")] == [1, 2]
    with pytest.raises(
        DataError, match="a/b: the record at offset 108 is not of the schema: it is"
    ):
        rows_of(content, mode="failFast")
    assert [row["n"] for row in rows_of(content, "n int")] == [1, None, 2, None]


def test_values_that_no_column_holds_are_refused():
    ddl = "m decimal(5,2), d date, t timestamp, a array<double>, s struct<d:date>, _corrupt string"
    good = {"m": 1.25, "d": "2026-01-31", "t": "2026-01-31T00:00:00Z", "a": [1.5], "s": None}
    changes = [
        {"m": 1234},
        {"d": "0000-01-01"},
        {"d": "2026-02-30"},
        {"t": "0000-01-01T00:00:00Z"},
        {"t": "9999-12-31T23:59:59-14:00"},
        {"t": "0001-01-01T00:00:00+14:00"},
        {"s": {"d": "2026-13-01"}},
        {"a": [1, "2"]},
    ]
    content = b"".join(json.dumps(good | change).encode() + b"\n" for change in [{}, *changes])
    content += b'{"a":[NaN]}\n'
    found = rows_of(content, ddl)
    assert [row["_corrupt"] is None for row in found] == [True] + [False] * 9
    assert str(found[0]["m"]) == "1.25"


def test_value_and_uuid_of_json_are_found_whatever_stands_beside_them():
    uuid = "0000000a-0000-1000-8000-070203040506"
    content = b"no json\n" + json.dumps({"_meta": {"uuid": uuid}, "n": 1}).encode() + b"\n\n{}\n"
    for text in (content, content[8:]):
        found = rows_of(text, DEFAULT_SCHEMA)
        assert [row["_uuid"] for row in found][-2:] == [uuid, None]
        assert [row["value"] for row in found][-1] == b"{}"
        assert {row["_journal"] for row in found} == {"a/b"}


def test_csv_of_years_that_python_does_not_have_is_refused():
    content = b"0000-01-01,\n,0000-01-01T00:00:00Z\n,9999-12-31T23:59:59-14:00\n0001-01-01,9999-12-31T23:59:59Z\n"
    found = rows_of(content, "d date, t timestamp, _corrupt string", kind=CSV)
    assert [row["_corrupt"] is None for row in found] == [False, False, False, True]


def test_a_byte_order_mark_is_part_of_a_csv_record_wherever_a_block_begins():
    marked = b"\xef\xbb\xbfa\n"
    for content in (marked + b"b\n", b"b\n" + marked):
        found = rows_of(content, "text string, _corrupt string", kind=CSV)
        assert sorted(row["text"] for row in found) == ["b", "\ufeffa"]


def test_csv_is_a_line_a_record_with_columns_by_place():
    content = b'1,"a ""b"",c"\n\nx,y\n2,"open\n3,\n4,d,e\n'
    found = rows_of(content, "n int, text string, _corrupt string", kind=CSV)
    assert [(row["n"], row["text"], row["_corrupt"]) for row in found] == [
        (1, 'a "b",c', None),
        (None, None, "x,y"),
        (None, None, '2,"open'),
        (3, None, None),
        (None, None, "4,d,e"),
    ]


def test_frames_of_other_content_types_are_values():
    made = Records(
        "application/x-protobuf-fixed",
        columns("value binary, _begin bigint, _end bigint"),
        uuid_path=("x",),
        mode="permissive",
    )
    frames = [frame_fixed(b"one"), frame_fixed(b"longer"), frame_fixed(b"")]
    content = b"".join(frames)
    span = Range(
        journal="a/b", content_type="application/x-protobuf-fixed", begin=7, end=7 + len(content)
    )
    pieces = [(7, content[:13]), (20, content[13:])]
    found = [
        row
        for block in reading._frames(span, iter(pieces), needs_uuid=False)
        for batch in made.batches(block)
        for row in batch.to_pylist()
    ]
    assert found == [
        {"value": frames[0], "_begin": 7, "_end": 18},
        {"value": frames[1], "_begin": 18, "_end": 32},
        {"value": frames[2], "_begin": 32, "_end": 40},
    ]
    with pytest.raises(DataError, match="after offset 32: unexpected EOF"):
        list(reading._frames(span, iter([(7, content[:-1])]), needs_uuid=False))
    with pytest.raises(ValidationError, match="ask for `value binary`"):
        Records("application/x-protobuf-fixed", columns("n int"), uuid_path=("x",), mode="failFast")


def test_columns_that_cannot_be_read_are_reported_together():
    with pytest.raises(ValidationError) as failed:
        columns("_begin int, _uuid binary, m map<string,int>, b binary, s struct<b:binary>")
    for part in (
        "column _begin is bigint, and not int",
        "column _uuid is string, and not binary",
        "column m: map<string, int32",
        "column b: binary is of the column `value` alone",
        "column s: binary is of",
    ):
        assert part in str(failed.value)


def test_key_named_value_is_a_column_unless_it_is_binary():
    assert rows_of(b'{"value":"x"}\n', "value string") == [{"value": "x"}]
    assert rows_of(b'{"value":"x"}\n', "value binary") == [{"value": b'{"value":"x"}'}]
    assert columns("value string").data == pa.schema([("value", pa.string())])


def test_known_uuids_are_as_they_were_framed():
    assert reading._text_of(reading.NO_UUID) is None
    parts = reading.UuidParts(bytes.fromhex("070203040506"), 160, 0)
    assert UUID(reading._text_of(parts)).node == int("070203040506", 16)
