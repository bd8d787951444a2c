"""Framings of messages: bytes that are Gazette's, whole frames only, and what is done about bad ones."""

import dataclasses
import uuid as python_uuid

import msgspec
import pytest
from google.protobuf import descriptor_pb2, wrappers_pb2

from gazette_platform.errors import DataError, Desynchronized, ValidationError
from gazette_platform.message import (
    FIXED_MAGIC,
    NO_UUID,
    CsvFraming,
    Flags,
    JsonFraming,
    ProtoFraming,
    build_uuid,
    frame_fixed,
    framing_of,
    framing_of_labels,
    go_json,
    parse_uuid,
    register_framing,
)
from gazette_platform.protocol import LabelSet

UUID = build_uuid(bytes.fromhex("070203040506"), 160, Flags.CONTINUE_TXN)
OTHER = build_uuid(bytes.fromhex("070203040506"), 320, Flags.ACK_TXN)
Wrapped = wrappers_pb2.BytesValue
PROTO = ProtoFraming(message_type=Wrapped, uuid_field="value")


def decoded(framing, content, size=0):
    """Messages, or names of errors, of content in pieces of `size`; then what its end says."""
    decoder, found, taken = framing.decoder(), [], 0
    size = size or max(1, len(content))
    for at in range(0, len(content), size):
        frames = decoder.feed(content[at : at + size])
        taken += sum(map(len, frames))
        assert taken + decoder.held_bytes == len(content[: at + size])
        for frame in frames:
            try:
                found.append(decoder.decode(frame))
            except DataError as err:
                found.append(type(err))
    try:
        decoder.end()
    except DataError as err:
        found.append("EOF" if "unexpected EOF" in str(err) else str(err))
    return found


def test_mf1_fixed_frames_are_exact():
    assert ProtoFraming().encode(b"foo") == bytes.fromhex("66339336 03000000 666f6f")
    message = Wrapped(value=UUID.bytes)
    assert PROTO.encode(message) == frame_fixed(message.SerializeToString())
    assert decoded(ProtoFraming(), frame_fixed(b"foo") + frame_fixed(b"")) == [b"foo", b""]


def test_mf2_what_cannot_be_written_is_refused():
    missing = descriptor_pb2.UninterpretedOption.NamePart()
    framing = ProtoFraming(message_type=type(missing), uuid_field="name_part")
    with pytest.raises(ValidationError, match=r"cannot be written.*name_part"):
        framing.encode(missing)
    with pytest.raises(ValidationError, match="no JSON of dict"):
        JsonFraming().encode({"a": object()})
    with pytest.raises(ValidationError, match="list of text"):
        CsvFraming().encode(["a", None])


@pytest.mark.parametrize("size", [1, 2, 7, 16, 0])
def test_mf3_exactly_the_frames_are_taken(size):
    content = frame_fixed(b"foo") + frame_fixed(b"x" * 40) + frame_fixed(b"bar")[:-1]
    assert decoded(ProtoFraming(), content, size) == [b"foo", b"x" * 40, "EOF"]
    decoder = ProtoFraming().decoder()
    assert decoder.feed(content) == [frame_fixed(b"foo"), frame_fixed(b"x" * 40)]
    assert decoder.held_bytes == 10
    assert decoder.feed(b"r") == [frame_fixed(b"bar")]
    assert decoder.held_bytes == 0


def test_mf4_a_newline_may_end_frames():
    assert decoded(ProtoFraming(), frame_fixed(b"foo") + b"\n") == [b"foo"]
    assert decoded(ProtoFraming(), frame_fixed(b"foo") + b"\n\n") == [b"foo", "EOF"]
    assert decoded(ProtoFraming(), b"\n" + frame_fixed(b"foo")) == [Desynchronized, b"foo"]


@pytest.mark.parametrize("size", [16, 5, 1, 0])
@pytest.mark.parametrize(
    "garbage",
    [
        b"garbage!",
        b"x" * 100,
        FIXED_MAGIC[:3],
        FIXED_MAGIC[:2] * 9,
        FIXED_MAGIC + b"\xff\xff\xff\xff",
        b"x" * 13 + FIXED_MAGIC[:1],
    ],
)
def test_mf5_garbage_is_reported_and_left_behind(garbage, size):
    content = frame_fixed(b"foo") + garbage + frame_fixed(b"bar") + frame_fixed(b"baz")
    found = decoded(ProtoFraming(), content, size)
    assert [one for one in found if one is not Desynchronized] == [b"foo", b"bar", b"baz"]
    assert found[0] == b"foo"
    assert Desynchronized in found
    if not size:
        assert found.count(Desynchronized) == 1
    decoder = ProtoFraming().decoder()
    frame = decoder.feed(garbage + frame_fixed(b""))[0]
    with pytest.raises(Desynchronized, match=f"detected de-synchronization: {len(frame)} bytes"):
        decoder.decode(frame)


@pytest.mark.parametrize(
    ("framing", "content"),
    [
        (JsonFraming(), b'{"a":1}\n'),
        (CsvFraming(), b'a,"b\nc"\r\n'),
        (ProtoFraming(), frame_fixed(b"foo")),
    ],
)
def test_mf6_an_end_is_clean_between_frames_only(framing, content):
    assert decoded(framing, b"") == []
    for cut in range(1, len(content)):
        assert decoded(framing, content[:cut]) == ["EOF"]
    assert len(decoded(framing, content)) == 1
    for cut in range(1, len(content)):
        assert decoded(framing, content + content[:cut])[1:] == ["EOF"]


def test_mf7_json_is_gos():
    value = {
        "UUID": str(UUID),
        "html": "<a&b>",
        "bytes": b"\x00\xff",
        "array": [1, 2],
        "u": "ü\u2028",
    }
    assert JsonFraming().encode(value) == (
        b'{"UUID":"0000000a-0000-1000-8001-070203040506","html":"\\u003ca\\u0026b\\u003e",'
        b'"bytes":"AP8=","array":[1,2],"u":"\xc3\xbc\\u2028"}\n'
    )
    assert decoded(JsonFraming(), JsonFraming().encode(value))[0]["html"] == "<a&b>"
    assert go_json("\\<") == b'"\\\\\\u003c"'
    # A line that is none is consumed.
    content = b'{"a":1}\nnope\n\n{"b":2}\n{"c":'
    assert decoded(JsonFraming(), content) == [{"a": 1}, DataError, DataError, {"b": 2}, "EOF"]
    assert decoded(JsonFraming(), b'{"a":' * 100_000 + b"\n") == [DataError]


def test_mf8_json_may_be_of_your_types_and_use_your_hooks():
    class Point(msgspec.Struct):
        at: complex = 0j
        uuid: python_uuid.UUID = python_uuid.UUID(int=0)

    framing = JsonFraming(
        message_type=Point,
        uuid_field="uuid",
        enc_hook=lambda value: [value.real, value.imag],
        dec_hook=lambda kind, value: complex(*value),
    )
    point = framing.stamp(Point(1 + 2j), UUID)
    line = framing.encode(point)
    assert line == b'{"at":[1.0,2.0],"uuid":"%s"}\n' % str(UUID).encode()
    assert decoded(framing, line) == [point]
    assert framing.uuid_of(point) == parse_uuid(UUID)
    assert framing.acknowledgement(point) == Point()


def test_mf9_csv_quotes_as_gazette_does():
    fields = ["u", "a b", " lead", 'q"x', "c,d", "nl\nx", "", "\\."]
    line = b'u,a b," lead","q""x","c,d","nl\nx",,"\\."\n'
    assert CsvFraming().encode(fields) == line
    assert CsvFraming().encode(["\u00a0a", "\x1ca", "a ", "\ra"]) == b'"\xc2\xa0a",\x1ca,a ,"\ra"\n'
    for size in (1, 3, 0):
        assert decoded(CsvFraming(), line * 2, size) == [fields, fields]
    assert decoded(CsvFraming(), b'a,b\r\n"c\r\nd",\r\n') == [["a", "b"], ["c\r\nd", ""]]
    assert decoded(CsvFraming(), b"a\n\n\r\nb\n\n") == [["a"], ["b"]]
    assert decoded(CsvFraming(), b'"\n\n",x\n') == [["\n\n", "x"]]


def test_mf9_csv_records_have_the_same_columns():
    content = b"a,b\nc\nd,e,f\ng,h\n"
    assert decoded(CsvFraming(), content) == [["a", "b"], DataError, DataError, ["g", "h"]]


def test_mf9_the_first_column_is_the_uuid():
    framing = CsvFraming()
    record = framing.stamp(["", "x"], UUID)
    assert record == [str(UUID), "x"]
    assert framing.uuid_of(record) == parse_uuid(UUID)
    with pytest.raises(DataError, match="'x' is not a UUID"):
        framing.uuid_of(["x", "y"])
    ack = framing.stamp(framing.acknowledgement(["a", "b", "c"]), OTHER)
    assert framing.encode(ack) == b"%s,,\n" % str(OTHER).encode()
    with pytest.raises(ValidationError, match="first column"):
        framing.stamp([], UUID)


@pytest.mark.parametrize(
    "bad",
    [b'a"b\n', b'"a"b\n', b'"a\nb"c\n', b'x,"a" \n', b'"a"",b\n"x\n', b'"a\n","b\n"c\n', b"\xff\n"],
)
def test_mf9_a_bad_csv_record_costs_itself_alone(bad):
    found = decoded(CsvFraming(), b"x\n" + bad + b"y\nz\n")
    assert found[0] == ["x"]
    assert DataError in found
    assert found[-2:] == [["y"], ["z"]]


def test_mf9_csv_takes_no_longer_than_its_length():
    for hostile in (b'"' * 200_001, b'",' * 100_000, b'a,"' * 70_000, b'""' * 100_000 + b"x"):
        decoded(CsvFraming(), b"a\n" + hostile + b"\n" + hostile + b"\nb\n")
    many = b'"' + b"x\n" * 200_000 + b'"\n'
    assert len(decoded(CsvFraming(), many, 4096)) == 1


def test_mf10_recovery_logs_have_no_framing():
    with pytest.raises(
        ValidationError,
        match=r"unrecognized content-type \(application/x-gazette-recoverylog\).*text/csv",
    ):
        framing_of("application/x-gazette-recoverylog")
    for labels in (LabelSet(), LabelSet.of(("content-type", "a/b"), ("content-type", "c/d"))):
        with pytest.raises(ValidationError, match="one label content-type"):
            framing_of_labels(labels)


@pytest.mark.parametrize("framing", [JsonFraming(), CsvFraming(), ProtoFraming()])
def test_mf11_long_messages_cross_pieces(framing):
    long = "x" * 300_000
    message = {JsonFraming: {"a": long}, CsvFraming: [long], ProtoFraming: long.encode()}[
        type(framing)
    ]
    assert decoded(framing, framing.encode(message) * 2, 4096) == [message, message]


def test_framings_can_be_replaced():
    mine = JsonFraming(uuid_field="id")
    assert isinstance(framing_of("text/csv"), CsvFraming)
    former = register_framing(mine)
    try:
        assert framing_of_labels(LabelSet.of(("content-type", "application/x-ndjson"))) is mine
    finally:
        assert register_framing(former) is mine


class Frozen(msgspec.Struct, frozen=True):
    uuid: str = ""


@dataclasses.dataclass
class Plain:
    meta: Frozen
    uuid: python_uuid.UUID | None = None


@pytest.mark.parametrize(
    ("field", "message", "stamped"),
    [
        ("UUID", {"a": 1}, {"a": 1, "UUID": str(UUID)}),
        ("_meta.uuid", {"a": 1}, {"a": 1, "_meta": {"uuid": str(UUID)}}),
        ("_meta.uuid", {"_meta": {"x": 1}}, {"_meta": {"x": 1, "uuid": str(UUID)}}),
        ("uuid", Frozen(), Frozen(str(UUID))),
        ("meta.uuid", Plain(Frozen()), Plain(Frozen(str(UUID)))),
        ("uuid", Plain(Frozen()), Plain(Frozen(), UUID)),
    ],
)
def test_json_messages_have_their_uuid_where_it_is_said(field, message, stamped):
    framing = JsonFraming(uuid_field=field)
    if not isinstance(message, (Frozen, Plain)):
        assert framing.uuid_of(message) == NO_UUID
    assert framing.stamp(message, UUID) == stamped
    assert framing.uuid_of(stamped) == parse_uuid(UUID)


@pytest.mark.parametrize(
    "message", [{}, {"UUID": None}, [], 1, "x", {"UUID": str(python_uuid.UUID(int=0))}]
)
def test_json_without_a_uuid_has_none(message):
    assert JsonFraming().uuid_of(message) == NO_UUID


def test_json_with_something_else_for_a_uuid_is_reported():
    with pytest.raises(DataError, match="UUID is not a UUID but int"):
        JsonFraming().uuid_of({"UUID": 7})
    with pytest.raises(DataError, match="'x' is not a UUID"):
        JsonFraming().uuid_of({"UUID": "x"})
    with pytest.raises(ValidationError, match="str takes no UUID"):
        JsonFraming(uuid_field="a.b").stamp({"a": "x"}, UUID)
    with pytest.raises(ValidationError, match="uuid_field"):
        JsonFraming(uuid_field="a..b")


def test_acknowledgements_of_types_that_need_values_are_made_by_you():
    class Needs(msgspec.Struct):
        a: int
        UUID: str = ""

    with pytest.raises(ValidationError, match="`empty`"):
        JsonFraming(message_type=Needs).acknowledgement(Needs(1))
    framing = JsonFraming(message_type=Needs, empty=lambda: Needs(0))
    assert framing.encode(framing.stamp(framing.acknowledgement(Needs(1)), OTHER)) == (
        b'{"a":0,"UUID":"%s"}\n' % str(OTHER).encode()
    )
    assert JsonFraming().acknowledgement({"a": 1}) == {}


def test_proto_messages_have_their_uuid_in_a_field():
    message = PROTO.stamp(Wrapped(), UUID)
    assert PROTO.uuid_of(message) == parse_uuid(UUID)
    assert PROTO.uuid_of(PROTO.acknowledgement(message)) == NO_UUID
    with pytest.raises(DataError, match="16 bytes, and not 3"):
        PROTO.uuid_of(Wrapped(value=b"abc"))
    with pytest.raises(ValidationError, match="BytesValue has no such field"):
        ProtoFraming(message_type=Wrapped)
    assert decoded(PROTO, frame_fixed(b"\xff") + PROTO.encode(message)) == [DataError, message]
    assert ProtoFraming().uuid_of(b"x") == NO_UUID
    assert ProtoFraming().acknowledgement(b"x") == b""
    with pytest.raises(ValidationError, match="no place for a UUID"):
        ProtoFraming().stamp(b"x", UUID)


def test_typed_messages_without_uuids_are_read_when_asked_for():
    class Bare(msgspec.Struct):
        n: int = 0

    framing = JsonFraming(message_type=Bare, uuid_field=None)
    message = framing.decoder().decode(b'{"n":1}')
    assert framing.uuid_of(message) == NO_UUID
    with pytest.raises(ValidationError, match="no place for a UUID"):
        framing.stamp(message, UUID)
