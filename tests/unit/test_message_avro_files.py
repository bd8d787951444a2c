"""Avro files as appends: containers, and how a live reader takes them apart."""

import dataclasses
import io

import fastavro
import pytest
from hypothesis import given, strategies as st

from gazette_platform.errors import DataError, ValidationError
from gazette_platform.message import (
    AVRO_CONTENT_TYPE,
    AvroContainers,
    avro_records,
    check_avro_spec,
    encode_avro_file,
)
from gazette_platform.message.avro import FRAGMENT_BYTES
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec, LabelSet

SCHEMA = {
    "type": "record",
    "name": "x.Ride",
    "fields": [{"name": "bike", "type": "long"}, {"name": "note", "type": ["null", "string"]}],
}
OTHER = {"type": "record", "name": "x.Other", "fields": [{"name": "a", "type": "string"}]}
RIDES = [{"bike": n, "note": None if n % 3 else f"Obj\x01{n}"} for n in range(2_000)]


def taken_apart(content, size=0):
    containers, records, files = AvroContainers(), [], 0
    for at in range(0, len(content), size or max(1, len(content))):
        for block in containers.feed(content[at : at + (size or len(content))]):
            files += block.begins_file
            records += avro_records(block)
    containers.end()
    return files, records


@pytest.mark.parametrize("codec", ["null", "deflate"])
@pytest.mark.parametrize("count", [1, 3, 2_000])
def test_each_is_a_file_that_others_read_and_a_fragment_of_its_own(codec, count):
    content = encode_avro_file(SCHEMA, RIDES[:count], codec=codec)
    assert list(fastavro.reader(io.BytesIO(content))) == RIDES[:count]
    # The broker closes what is longer than the spec asks for, so not what is as long.
    assert len(content) > FRAGMENT_BYTES


def test_files_one_after_the_other_are_taken_apart():
    content = (
        encode_avro_file(SCHEMA, RIDES, codec="null")
        + encode_avro_file(OTHER, [{"a": "b"}])
        + encode_avro_file(SCHEMA, RIDES[:1])
    )
    for size in (0, 1, 7, 4096):
        assert taken_apart(content, size) == (3, [*RIDES, {"a": "b"}, RIDES[0]])


@given(
    files=st.lists(
        st.lists(
            st.fixed_dictionaries(
                {
                    "bike": st.integers(-(2**63), 2**63 - 1),
                    "note": st.none() | st.text(alphabet=st.characters(codec="utf-8")),
                }
            ),
            min_size=1,
        ),
        max_size=4,
    ),
    size=st.integers(1, 3_000),
)
def test_any_records_come_back_through_any_cut(files, size):
    content = b"".join(encode_avro_file(SCHEMA, each, codec="null") for each in files)
    found = taken_apart(content, size)
    assert found == (len(files), [one for each in files for one in each])


def test_a_large_block_is_not_joined_again_with_each_piece():
    content = encode_avro_file(OTHER, [{"a": "x" * (8 << 20)}], codec="null")
    containers, joined = AvroContainers(), 0
    for at in range(0, len(content), 1 << 10):
        before = len(containers._held)
        containers.feed(content[at : at + (1 << 10)])
        joined += len(containers._held) <= before
    assert joined < 10


@pytest.mark.parametrize(
    ("schema", "records", "codec", "why"),
    [
        (SCHEMA, [], "null", "without records"),
        (SCHEMA, [{"bike": "no"}], "null", "do not fit"),
        (SCHEMA, [{}], "null", "do not fit"),
        (SCHEMA, RIDES, "brotli-9", "brotli-9 is not a codec"),
        ({"type": "nothing"}, RIDES, "null", "not an Avro schema"),
    ],
)
def test_content_that_is_not_a_file_is_refused(schema, records, codec, why):
    with pytest.raises(ValidationError, match=why):
        encode_avro_file(schema, records, codec=codec)


def damaged():
    good = encode_avro_file(SCHEMA, RIDES, codec="null")
    header = good.index(b"\xa0\x1f")  # 2,000 in zigzag
    return [
        (b"{}\n" + good, "not with an Avro container"),
        (good[header:], "not with an Avro container"),
        (good[:-1] + bytes([good[-1] ^ 1]), "sync marker"),
        (good[:header] + b"\x01" + good[header + 2 :], "cannot have -1 records"),
        (good[:header] + b"\xff" * 20, "no number"),
        (good + b"\xff" * 20, "no number"),
        (b"Obj\x01\x02\xff\xff\xff\xff\x7f", "a text of"),
        (b"Obj\x01" + b"\xfe\xff\xff\xff\x0f", "has 2147483647 entries"),
        (b"Obj\x01\x08" + (b"\xfe\xff\xff\x07" + b"x" * 0x7FFFFF) * 3, "header .* is over"),
        (good[:header] + b"\xfe\xff\xff\xff\x0f" + good[header + 2 :], "cannot have 2147483647"),
        (good[:-1], "unexpected EOF"),
        (good[:20], "unexpected EOF"),
    ]


@pytest.mark.parametrize(("content", "why"), damaged())
def test_damaged_content_is_reported(content, why):
    with pytest.raises(DataError, match=why):
        taken_apart(content)


def test_a_damaged_record_is_reported():
    good = encode_avro_file(SCHEMA, RIDES, codec="deflate")
    [block] = AvroContainers().feed(good)
    middle = len(block.content) // 2
    content = block.content[:middle] + b"\xff" * 8 + block.content[middle + 8 :]
    with pytest.raises(DataError, match="cannot be read"):
        avro_records(block._replace(content=content))


GOOD = JournalSpec(
    "a/journal",
    1,
    labels=LabelSet.of({"content-type": AVRO_CONTENT_TYPE}),
    fragment=FragmentSpec(
        length=FRAGMENT_BYTES,
        codec=CompressionCodec.NONE,
        stores=("file:///",),
        refresh_interval_ns=10**9,
    ),
)


def test_specs_that_keep_files_apart():
    GOOD.validate()
    check_avro_spec(GOOD)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"length": 2048}, "fragment.length: must be 1024"),
        ({"codec": CompressionCodec.GZIP}, "compression_codec: must be NONE"),
    ],
)
def test_specs_that_do_not(changes, why):
    fragment = dataclasses.replace(GOOD.fragment, **changes)
    with pytest.raises(ValidationError, match=why):
        check_avro_spec(dataclasses.replace(GOOD, fragment=fragment))
    with pytest.raises(ValidationError, match="labels"):
        check_avro_spec(dataclasses.replace(GOOD, labels=LabelSet()))
