"""Frames, checksums, registers and hints of recovery logs, byte for byte."""

import google_crc32c
import orjson
import pytest

from gazette_platform.consumer.recoverylog import (
    FnodeSegments,
    Fsm,
    FsmHints,
    Playback,
    Property,
    Recording,
    Segment,
    author_label,
    author_registers,
    extend_checksum,
    pick_hints,
)
from gazette_platform.consumer.recoverylog.fsm import body_of
from gazette_platform.consumer.recoverylog.playback import CreateFile, Read, WriteFile
from gazette_platform.consumer.recoverylog.recording import handoff_frame
from gazette_platform.errors import DataError, ValidationError

CREATE = "66339336180000000801 1dd2040000 220f0a0d2f706174682f746f2f66696c65"
WRITE = "66339336120000000802154e8e8e561dd20400003a0408011805"
NO_OP = "663393360c00000008031584af96e01d2e160000"
JSON = (
    b'{"log":"a/log","live_nodes":[{"fnode":1,"segments":[{"author":1234,"first_seq_no":1,'
    b'"last_seq_no":2,"last_offset":63}]}],"properties":null}'
)


def test_checksums_are_computed_by_c():
    assert google_crc32c.implementation == "c"  # else by Python, byte after byte


def test_checksum_of_pieces_is_that_of_the_whole():
    assert extend_checksum(extend_checksum(0, b"abc"), b"def") == 1404891121
    assert extend_checksum(0, b"abcdef") == 1404891121


def test_gr1_recorded_operations_have_the_bytes_of_the_contract():
    recording = Recording(Fsm(FsmHints("a/log")), "a/log", 1234, "/dir", write_head=0)
    fnode, frame = recording.create("/dir/path/to/file")
    assert fnode == 1
    assert frame == bytes.fromhex(CREATE)
    assert recording.fsm.next_checksum == 0x568E8E4E
    frame = recording.write(fnode, 0, 5)
    assert frame == bytes.fromhex(WRITE)
    assert recording.fsm.next_checksum == 0xE096AF84
    assert handoff_frame(recording.fsm, 5678) == bytes.fromhex(NO_OP)
    assert body_of(frame) == frame[8:]


def test_the_operations_of_the_contract_are_a_log_that_has_its_hints():
    """As a player reads them: the no-op of the other author is not a part of the file."""
    log = bytes.fromhex(CREATE) + bytes.fromhex(WRITE) + b"hello" + bytes.fromhex(NO_OP)
    for hints in (FsmHints("a/log"), FsmHints.from_bytes(JSON)):
        playback = Playback(hints, {"a/log": len(log)})
        playback.finish_at_write_head()
        effects = []
        while (step := playback.next()) is not None:
            assert isinstance(step, Read)
            effects += playback.feed(log[step.offset :]) or playback.at_head()
        assert effects == [CreateFile(1), WriteFile(1, 0, b"hello")]
        fsm = playback.fsm
        assert fsm.build_hints("a/log").to_json() == JSON
        assert fsm.next_seq_no == 4
        assert fsm.next_checksum == extend_checksum(0xE096AF84, bytes.fromhex(NO_OP)[8:])
        assert fsm.links == {"/path/to/file": 1}


@pytest.mark.parametrize(
    ("author", "label"),
    [
        (1, "1"),
        (31, "v"),
        (32, "10"),
        (1234, "16i"),
        (1337, "19p"),
        (4294967295, "3vvvvvv"),
    ],
)
def test_author_label_is_in_base_32(author, label):
    assert author_label(author) == label
    assert author_registers(author).value_of("author") == label


def segment(first=1, last=None, **fields):
    fields = {"author": 1234, "last_offset": 63} | fields
    return Segment(first_seq_no=first, last_seq_no=first + 1 if last is None else last, **fields)


HINTS = FsmHints("a/log", (FnodeSegments(1, (segment(),)),))


def test_hints_have_the_json_of_the_contract():
    assert HINTS.to_json() == JSON
    assert FsmHints.from_bytes(JSON) == HINTS


def test_hints_are_written_as_go_does():
    hints = FsmHints(
        "a/log",
        (FnodeSegments(3, ()),),
        (Property("/IDENTITY", "<a&b>\u2028é\n"), Property("/empty", "")),
    )
    assert hints.to_json() == (
        b'{"log":"a/log","live_nodes":[{"fnode":3,"segments":null}],"properties":[{"path":"/IDENTITY",'
        b'"content":"\\u003ca\\u0026b\\u003e\\u2028\xc3\xa9\\n"},{"path":"/empty"}]}'
    )
    assert FsmHints.from_bytes(hints.to_json()) == hints


def test_hints_are_read_from_protobuf_too():
    hints = FsmHints("a/log", HINTS.live_nodes, (Property("/IDENTITY", "x"),))
    message = hints.to_pb().SerializeToString()
    assert not message.startswith(b"{")
    assert FsmHints.from_bytes(message) == hints


@pytest.mark.parametrize(
    "value",
    [
        b"{",
        b'{"log":7}',
        b'{"live_nodes":{}}',
        b'{"live_nodes":[7]}',
        b'{"live_nodes":[{"fnode":"1"}]}',
        b'{"live_nodes":[{"fnode":9223372036854775808}]}',
        b'{"live_nodes":[{"fnode":1,"segments":[{"last_offset":18446744073709551615}]}]}',
        b"\xff\xff",
    ],
)
def test_hints_that_cannot_be_read_are_reported(value):
    with pytest.raises(DataError, match="neither JSON nor protobuf"):
        FsmHints.from_bytes(value)


def test_hints_are_picked_in_order_of_slots():
    backup = FsmHints("a/log", ())
    assert pick_hints((HINTS, backup), "b/log") is HINTS
    assert pick_hints((None, backup, HINTS), "b/log") is backup
    assert pick_hints((None, None), "b/log") == FsmHints("b/log")


def node(*segments):
    return FnodeSegments(segments[0].first_seq_no, segments)


@pytest.mark.parametrize(
    ("hints", "error"),
    [
        (FsmHints(), "Log: invalid length"),
        (FsmHints("not a log!"), "Log: not a valid token"),
        (FsmHints("a/log", (FnodeSegments(1),)), r"LiveNodes\[0\].Segments: expected at least one"),
        (
            FsmHints("a/log", (FnodeSegments(2, (segment(),)),)),
            r"LiveNodes\[0\]: expected Fnode to be the first FirstSeqNo \(2; expected 1\)",
        ),
        (
            FsmHints("a/log", (node(segment(5)), node(segment(1)))),
            r"LiveNodes\[1\]: expected monotonic Fnode",
        ),
        (
            FsmHints("a/log", (node(segment(5)), node(segment(5)))),
            r"LiveNodes\[1\]: expected monotonic Fnode",
        ),
        (
            FsmHints("a/log", (node(segment(author=0)),)),
            r"LiveNodes\[0\].Segments\[0\]: invalid Author",
        ),
        (
            FsmHints("a/log", (node(segment(log="a/log")),)),
            "expected no Log where it is that of the hints",
        ),
        (
            FsmHints("a/log", (node(segment(log="b/log")),)),
            "expected the Log of the last Segment to be that of the hints",
        ),
        (
            FsmHints("a/log", (node(segment(1, 4)), node(segment(2, 3, author=7)))),
            "expected Author equality",
        ),
        (
            FsmHints("a/log", (), (Property("/a", ""), Property("/a", "x"))),
            r"Properties\[1\]: expected unique paths \(/a\)$",
        ),
    ],
)
def test_hints_that_cannot_be_played_are_refused(hints, error):
    with pytest.raises(ValidationError, match=error):
        hints.validate()


def test_hints_of_two_logs_are_played_in_their_order():
    old = segment(1, 2, log="b/log")
    hints = FsmHints("a/log", (node(old, segment(5, author=7)), node(segment(7, author=7))))
    hints.validate()
    assert hints.logs() == ("b/log", "a/log")
    assert [each.log for each in hints.segments()] == ["b/log", "a/log"]
    assert orjson.loads(hints.to_json())["live_nodes"][0]["segments"][0]["log"] == "b/log"
