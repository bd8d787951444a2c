"""Hand-encoded content messages are the bytes that protobuf itself writes and reads."""

import pytest

from gazette_platform.protocol import content
from gazette_platform.protocol.pb import protocol_pb2 as pb

LENGTHS = [1, 127, 128, 16383, 16384, 100_000]
OFFSETS = [0, 1, 127, 128, 2**31, 2**63 - 1]


@pytest.mark.parametrize("length", LENGTHS)
def test_append_content_is_what_protobuf_writes(length):
    data = bytes(i % 251 for i in range(length))
    raw = content.encode_append_content(data)
    assert raw == pb.AppendRequest(content=data).SerializeToString()
    assert content.decode_append_content(raw) == data


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("length", LENGTHS)
def test_read_content_is_what_protobuf_writes(offset, length):
    data = bytes(i % 251 for i in range(length))
    raw = content.encode_read_content(offset, data)
    assert raw == pb.ReadResponse(offset=offset, content=data).SerializeToString()
    assert content.decode_read_content(raw) == (offset, data)


def test_commit_marker_is_an_empty_message():
    assert pb.AppendRequest().SerializeToString() == content.COMMIT_MARKER
    assert content.decode_append_content(b"") == b""
    with pytest.raises(ValueError, match="commit"):
        content.encode_append_content(b"")


@pytest.mark.parametrize(
    "message",
    [
        pb.AppendRequest(journal="a/journal"),
        pb.AppendRequest(journal="a/journal", content=b"x"),
        pb.AppendRequest(content=b"x", offset=3),
    ],
    ids=str,
)
def test_append_with_other_fields_is_left_to_protobuf(message):
    assert content.decode_append_content(message.SerializeToString()) is None


@pytest.mark.parametrize(
    "message",
    [
        pb.ReadResponse(),
        pb.ReadResponse(offset=3),
        pb.ReadResponse(offset=3, write_head=9),
        pb.ReadResponse(status=pb.OFFSET_NOT_YET_AVAILABLE, offset=3, content=b"x"),
    ],
    ids=str,
)
def test_read_with_other_fields_is_left_to_protobuf(message):
    assert content.decode_read_content(message.SerializeToString()) is None


@pytest.mark.parametrize("raw", [b"\x22", b"\x22\x05abc", b"\x22\xff\xff", b"\x22" + b"\xff" * 11])
def test_truncated_append_is_not_taken(raw):
    assert content.decode_append_content(raw) is None


@pytest.mark.parametrize(
    "raw", [b"\x18", b"\x18\x80", b"\x18\x05", b"\x3a\x05abc", b"\x18\x05\x3a"]
)
def test_truncated_read_is_not_taken(raw):
    assert content.decode_read_content(raw) is None


@pytest.mark.parametrize("delta", OFFSETS)
@pytest.mark.parametrize("length", LENGTHS)
def test_replicated_content_is_what_protobuf_writes(delta, length):
    data = bytes(i % 251 for i in range(length))
    pieces = [data[: length // 2], memoryview(data)[length // 2 :]]
    raw = content.encode_replicate_content(pieces, delta)
    assert raw == pb.ReplicateRequest(content=data, content_delta=delta).SerializeToString()
    assert content.decode_replicate_content(raw) == (delta, data)


def test_replicated_content_is_never_empty():
    with pytest.raises(ValueError, match="empty"):
        content.encode_replicate_content([b""], 3)


@pytest.mark.parametrize(
    "message",
    [
        pb.ReplicateRequest(),
        pb.ReplicateRequest(content_delta=3),
        pb.ReplicateRequest(content=b"x", acknowledge=True),
        pb.ReplicateRequest(content=b"x", content_delta=3, acknowledge=True),
        pb.ReplicateRequest(proposal=pb.Fragment(), acknowledge=True),
    ],
    ids=str,
)
def test_other_messages_to_replicas_are_left_to_protobuf(message):
    assert content.decode_replicate_content(message.SerializeToString()) is None


@pytest.mark.parametrize("raw", [b"\x22", b"\x22\x05abc", b"\x22\x01a\x28", b"\x22\x01a\x28\x80"])
def test_broken_messages_to_replicas_are_left_to_protobuf(raw):
    assert content.decode_replicate_content(raw) is None
