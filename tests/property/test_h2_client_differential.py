"""The client's side of our HTTP/2: what a server sends means the same wherever it is cut, and as for the library h2."""

from __future__ import annotations

import h2.config
import h2.connection
import h2.exceptions
from hpack import Encoder
from http2_bench import REQUEST, ClientRecorder, frames_of, message
from hypothesis import given, strategies as st

from gazette_platform.serving.h2 import frames
from gazette_platform.serving.h2.frames import frame

HELLO = frame(frames.SETTINGS, 0, 0)
CALLS = (1, 3, 5)
ids = st.sampled_from([*CALLS, 7])
values = st.sampled_from(["0", "5", "14", "x"]) | st.text("ab%C3", max_size=5)
steps = st.one_of(
    st.tuples(st.just("headers"), ids, st.sampled_from(["200", "200", "103", "503"])),
    st.tuples(st.just("trailers"), ids, values),
    st.tuples(st.just("failure"), ids, values),
    st.tuples(st.just("data"), ids, st.booleans(), st.binary(max_size=30), st.integers(0, 9)),
    st.tuples(st.just("reset"), ids, st.integers(0, 14)),
    st.tuples(st.just("credit"), st.sampled_from([0, *CALLS]), st.integers(0, 1 << 31)),
    st.tuples(
        st.just("settings"), st.sampled_from([1, 3, 4, 5, 6, 9]), st.integers(0, (1 << 32) - 1)
    ),
    st.tuples(st.just("ping"), st.booleans()),
    st.tuples(st.just("goaway"), st.integers(0, 8), st.integers(0, 12)),
    st.tuples(st.just("unknown"), st.integers(0x20, 0xFF), st.binary(max_size=20)),
    st.tuples(
        st.just("raw"), st.integers(0, 9), st.integers(0, 255), ids | st.just(0), st.binary(max_size=12)
    ),
)  # fmt: skip
sequences = st.lists(steps, max_size=14)


def frame_of(step, encoder):  # noqa: C901  a table
    """What a server sends; the blocks of one sequence share an encoder."""
    match step:
        case ("headers", number, status):
            fields = [(":status", status), ("content-type", "application/grpc"), ("a", "b")]
            return frame(frames.HEADERS, 4, number, encoder.encode(fields))
        case ("trailers", number, status):
            fields = [("grpc-status", status), ("grpc-message", status)]
            return frame(frames.HEADERS, 5, number, encoder.encode(fields))
        case ("failure", number, status):
            fields = [(":status", "200"), ("content-type", "application/grpc")]
            raw = encoder.encode([*fields, ("grpc-status", status)])
            return frame(frames.HEADERS, 5, number, raw)
        case ("data", number, end, content, pad):
            body = message(content)
            if pad:
                body = bytes((pad,)) + body + bytes(pad)
            return frame(frames.DATA, (8 if pad else 0) | end, number, body)
        case ("reset", number, code):
            return frames.reset(number, code)
        case ("credit", number, credit):
            return frame(frames.WINDOW_UPDATE, 0, number, credit.to_bytes(4, "big"))
        case ("settings", key, value):
            return frames.settings({key: value})
        case ("ping", is_ack):
            return frame(frames.PING, int(is_ack), 0, b"12345678")
        case ("goaway", last, code):
            return frames.goaway(last, code, "why")
        case ("unknown", kind, payload):
            return frame(kind, 0, 0, payload)
        case ("raw", kind, flags, number, payload):
            return frame(kind, flags, number, payload)
    raise AssertionError(step)


def raw_of(sequence):
    encoder = Encoder()
    return HELLO + b"".join(frame_of(step, encoder) for step in sequence)


@given(sequences, st.data())
def test_boundaries_of_reads_change_nothing_for_a_client(sequence, data):
    raw = raw_of(sequence)
    whole = ClientRecorder()
    whole.receive(raw)
    cut = ClientRecorder()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=12)))
    for begin, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        if end > begin:
            cut.receive(raw[begin:end])
    assert cut.events == whole.events
    assert cut.take_out() == whole.take_out()
    assert cut.streams.keys() == whole.streams.keys()
    assert (cut.unread, cut.recv_room, cut.is_over, cut.is_going) == (
        whole.unread,
        whole.recv_room,
        whole.is_over,
        whole.is_going,
    )


@given(sequences, st.binary(max_size=100), st.integers(0, 400), st.data())
def test_damaged_answers_end_in_nothing_worse_than_a_goaway(sequence, noise, at, data):
    raw = raw_of(sequence)
    raw = raw[:at] + noise + raw[at + len(noise) // 2 :]
    machine, at = ClientRecorder(), 0
    while at < len(raw):
        size = data.draw(st.integers(1, 60))
        machine.receive(raw[at : at + size])
        at += size
    assert machine.unread >= 0
    for stream in machine.streams.values():
        assert stream.unread >= 0


@given(st.lists(st.binary(max_size=3000), max_size=6), st.lists(st.integers(1, 400), min_size=1))
def test_answers_survive_any_frames_and_reads(contents, sizes):
    body = b"".join(map(message, contents))
    encoder = Encoder()
    raw, at, turn = HELLO + frame_of(("headers", 1, "200"), encoder), 0, 0
    while at < len(body):
        size = sizes[turn % len(sizes)]
        raw += frame(frames.DATA, 0, 1, body[at : at + size])
        at, turn = at + size, turn + 1
    raw += frame_of(("trailers", 1, "0"), encoder)
    machine, at = ClientRecorder(), 0
    while at < len(raw):
        size = sizes[turn % len(sizes)]
        machine.receive(raw[at : at + size])
        at, turn = at + size, turn + 1
    assert [event[2] for event in machine.events if event[0] == "message"] == contents
    assert machine.events[-1][:2] == ("answer", 1)
    assert machine.events[-1][2].status == (None, "0")
    assert machine.unread == 0
    assert 1 not in machine.streams


# --------------------------------------------------------------------------- beside the library h2
def library():
    """A client of the library h2 with the same calls."""
    config = h2.config.H2Configuration(client_side=True, header_encoding=None)
    other = h2.connection.H2Connection(config)
    other.initiate_connection()
    for number in CALLS:
        other.send_headers(number, REQUEST)
    other.local_settings.max_frame_size = 1 << 20
    other.receive_data(HELLO)
    other.data_to_send()
    return other


# Frames with random flags and payloads, of kinds for which the library has other rules than RFC 9113.
OTHER_RULES = {frames.RST_STREAM, frames.PUSH_PROMISE, frames.PRIORITY, frames.HEADERS, frames.DATA}


@given(sequences)
def test_client_ends_no_connection_that_the_library_keeps(sequence):
    ours, other, encoder = ClientRecorder(), library(), Encoder()
    ours.receive(HELLO)
    for step in sequence:
        raw = frame_of(step, encoder)
        ours.receive(raw)
        try:
            other.receive_data(raw)
            is_theirs = any(
                answer.kind in {frames.GOAWAY, frames.RST_STREAM}
                for answer in frames_of(other.data_to_send())
            )
        except h2.exceptions.ProtocolError:
            is_theirs = True
        if step[0] == "raw" and step[1] in OTHER_RULES:
            return
        if ours.is_over:
            # The library takes a reset of a stream that was never opened.
            assert is_theirs or step[:2] == ("reset", 7), step
        if ours.is_over or is_theirs:
            return
