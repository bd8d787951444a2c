"""Messages as Avro single objects."""

import random
import subprocess
import sys
from uuid import UUID

import pytest

from gazette_platform.errors import DataError, Desynchronized, ValidationError
from gazette_platform.message import (
    NO_UUID,
    AvroFraming,
    Flags,
    UncommittedReader,
    build_uuid,
    framing_of,
    parse_uuid,
    register_framing,
)

ONE = build_uuid(bytes.fromhex("070203040506"), 160, Flags.CONTINUE_TXN)


def record(*fields):
    return {"type": "record", "name": "x.Ride", "fields": list(fields)}


TEXT = {"name": "uuid", "type": "string", "default": ""}
BIKE = {"name": "bike", "type": "long", "default": 0}
TAGS = {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}, "default": []}
SCHEMA = record(TEXT, BIKE, TAGS)
FRAMING = AvroFraming(SCHEMA)
MESSAGE = {"uuid": str(ONE), "bike": 70_000, "tags": ["a" * 300, None]}


def decoded(framing, content, size=0):
    decoder, found, taken = framing.decoder(), [], 0
    for at in range(0, len(content), size or len(content)):
        frames = decoder.feed(content[at : at + (size or len(content))])
        taken += sum(map(len, frames))
        assert taken + decoder.held_bytes == min(len(content), at + (size or len(content)))
        for frame in frames:
            try:
                found.append(decoder.decode(frame))
            except DataError as err:
                found.append(type(err))
    try:
        decoder.end()
    except DataError:
        found.append("EOF")
    return found


def fingerprint(text):
    """CRC-64-AVRO of a schema in canonical form, as Avro's specification defines it."""
    empty = 0xC15D213AA4D7A795
    table = list(range(256))
    for _ in range(8):
        table = [(one >> 1) ^ (empty if one & 1 else 0) for one in table]
    digest = empty
    for byte in text.encode():
        digest = (digest >> 8) ^ table[(digest ^ byte) & 0xFF]
    return digest


def test_objects_are_those_of_the_specification():
    assert fingerprint('"int"') == 0x7275D51A3F395C8F
    canonical = (
        '{"name":"x.Ride","type":"record","fields":[{"name":"uuid","type":"string"},'
        '{"name":"bike","type":"long"},'
        '{"name":"tags","type":{"type":"array","items":["null","string"]}}]}'
    )
    frame = FRAMING.encode(MESSAGE)
    assert frame[:10] == b"\xc3\x01" + fingerprint(canonical).to_bytes(8, "little")
    assert frame[10:47] == bytes([2 * 36]) + str(ONE).encode()
    # What does not change the data, does not change the fingerprint.
    assert AvroFraming(record({**TEXT, "doc": "text"}, BIKE, TAGS)).encode(MESSAGE) == frame


@pytest.mark.parametrize("size", [1, 7, 100, 0])
def test_exactly_the_objects_are_taken(size):
    content = FRAMING.encode(MESSAGE) * 3
    assert decoded(FRAMING, content, size) == [MESSAGE] * 3
    assert decoded(FRAMING, content[:-1], size) == [MESSAGE, MESSAGE, "EOF"]


def test_an_end_is_clean_between_objects_only():
    frame = FRAMING.encode(MESSAGE)
    for cut in range(1, len(frame)):
        assert decoded(FRAMING, frame + frame[:cut]) == [MESSAGE, "EOF"]


@pytest.mark.parametrize("size", [1, 16, 0])
@pytest.mark.parametrize("garbage", [b"x" * 11, b"\xc3\x01" * 9, b"\xc3" * 20, bytes(100)])
def test_garbage_is_reported_and_left_behind(garbage, size):
    frame = FRAMING.encode(MESSAGE)
    found = decoded(FRAMING, frame + garbage + frame + frame, size)
    assert [one for one in found if isinstance(one, dict)] == [MESSAGE] * 3
    assert found[0] == MESSAGE
    assert found[1] in {Desynchronized, DataError}


def test_an_object_that_does_not_fit_costs_itself_alone():
    frame = bytearray(FRAMING.encode(MESSAGE))
    frame[-2:] = b"\x7f\x7f"  # no such branch of the union
    good = FRAMING.encode(MESSAGE)
    assert decoded(FRAMING, bytes(frame) + good + good) == [DataError, MESSAGE, MESSAGE]


def test_damage_raises_nothing_else():
    drawn = random.Random(7)
    frame = FRAMING.encode(MESSAGE)
    for _ in range(2000):
        damaged = bytearray(frame * 3)
        for _ in range(drawn.randint(1, 4)):
            damaged[drawn.randrange(len(damaged))] = drawn.randrange(256)
        decoded(FRAMING, bytes(damaged), drawn.choice([0, 50]))


def test_older_schemas_are_read_as_the_newest():
    old = AvroFraming(record(TEXT, BIKE))
    content = old.encode({"uuid": str(ONE), "bike": 7}) + FRAMING.encode(MESSAGE)
    assert decoded(FRAMING, content) == [DataError, MESSAGE]
    both = AvroFraming(SCHEMA, older=[record(TEXT, BIKE)])
    assert decoded(both, content) == [{"uuid": str(ONE), "bike": 7, "tags": []}, MESSAGE]
    decoder = FRAMING.decoder()
    frame = decoder.feed(content)[0]
    with pytest.raises(DataError, match=r"fingerprint [0-9a-f]{16}.*`older`"):
        decoder.decode(frame)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("string", str(ONE)),
        (["null", "string"], str(ONE)),
        ({"type": "string", "logicalType": "uuid"}, ONE),
        ("bytes", ONE.bytes),
        ({"type": "fixed", "name": "Id", "size": 16}, ONE.bytes),
    ],
)
def test_the_uuid_may_be_text_or_bytes(kind, value):
    framing = AvroFraming(record({"name": "id", "type": kind}), uuid_field="id")
    message = framing.stamp({}, ONE)
    (read,) = decoded(framing, framing.encode(message))
    assert read == {"id": value}
    assert framing.uuid_of(read) == parse_uuid(ONE)


def test_acknowledgements_have_the_defaults_of_their_schema():
    ack = FRAMING.stamp(FRAMING.acknowledgement(MESSAGE), ONE)
    assert decoded(FRAMING, FRAMING.encode(ack)) == [{"uuid": str(ONE), "bike": 0, "tags": []}]
    assert FRAMING.uuid_of({"uuid": ""}) == FRAMING.uuid_of({}) == NO_UUID


@pytest.mark.parametrize(
    ("schema", "field", "why"),
    [
        ({"type": "record"}, "uuid", "schema: is not an Avro schema"),
        ({"type": "nope"}, "uuid", "schema: is not an Avro schema"),
        (SCHEMA, "id", r"uuid_field: must be a field .*\(id\)"),
        (SCHEMA, "bike", "uuid_field: must be a field"),
        ("string", "uuid", "uuid_field: must be a field"),
    ],
)
def test_schemas_without_a_place_for_uuids_are_refused(schema, field, why):
    with pytest.raises(ValidationError, match=why):
        AvroFraming(schema, uuid_field=field)


@pytest.mark.parametrize("message", [{"bike": "x"}, {"uuid": 1}, [], {"tags": [1]}])
def test_a_message_that_does_not_fit_is_refused(message):
    with pytest.raises(ValidationError, match="does not fit its Avro schema"):
        FRAMING.encode(message)


async def test_a_reader_takes_avro_when_it_is_registered():
    class Content:
        journal, offset = "a/journal", 0

        async def __anext__(self):
            content = FRAMING.encode(MESSAGE) * 2
            self.offset += len(content)
            return content

    with pytest.raises(ValidationError, match="unrecognized content-type"):
        framing_of(FRAMING.content_type)
    other = AvroFraming(SCHEMA, content_type="application/x-mine")
    assert register_framing(other) is None
    reader = UncommittedReader(Content(), framing_of("application/x-mine"))
    batch = await anext(reader)
    assert [one.message for one in batch] == [MESSAGE, MESSAGE]
    assert batch[1].end == 2 * batch[0].end == 2 * len(FRAMING.encode(MESSAGE))
    assert batch[0].uuid == parse_uuid(UUID(str(ONE)))


def test_without_fastavro_it_says_what_to_install():
    program = """
import sys
sys.modules["fastavro"] = None
from gazette_platform.errors import SetupError
from gazette_platform.message import AvroFraming
try:
    AvroFraming({})
except SetupError as err:
    assert "gazette-platform[avro]" in str(err), err
else:
    raise SystemExit("no error")
"""
    subprocess.run([sys.executable, "-c", program], check=True)
