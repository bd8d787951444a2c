"""Our HTTP/2 beside the libraries h2 and hpack: the same bytes, cut anywhere, mean the same."""

from __future__ import annotations

import h2.config
import h2.connection
import h2.exceptions
import hpack
from http2_bench import START, Recorder, block, frames_of, message
from hypothesis import given, strategies as st

from gazette_platform.serving.h2 import frames
from gazette_platform.serving.h2.frames import ConnectionFault, frame
from gazette_platform.serving.h2.hpack import Decoder, HuffmanError, decode_huffman, literal

names = st.sampled_from([b":path", b"grpc-timeout", b"authorization", b"x-a", b"x-b", b"cookie"])
fields = st.tuples(names | st.binary(max_size=40), st.binary(max_size=200))
blocks = st.lists(fields, max_size=12)


@given(st.lists(st.tuples(blocks, st.none() | st.integers(0, 4096), st.booleans()), max_size=8))
def test_blocks_of_the_library_are_read(sequence):
    encoder, decoder = hpack.Encoder(), Decoder(1 << 20)
    for wanted, size, is_coded in sequence:
        if size is not None:
            encoder.header_table_size = size
        assert decoder.decode(encoder.encode(wanted, huffman=is_coded)) == wanted


@given(st.lists(st.binary(max_size=60), max_size=6))
def test_any_bytes_are_read_as_the_library_does(sequence):
    ours, theirs = Decoder(1 << 20), hpack.Decoder(max_header_list_size=1 << 20)
    theirs.max_allowed_table_size = 4096
    for raw in sequence:
        try:
            expected = theirs.decode(raw, raw=True)
        except hpack.HPACKError:
            expected = None
        try:
            found = ours.decode(raw)
        except ConnectionFault:
            found = None
        if expected is None or found is None:
            # We refuse integers of more than 28 bits, and changes of the size within a block, earlier.
            assert expected is None or found is None
            return
        assert found == [tuple(field) for field in expected]


@given(st.binary(max_size=60))
def test_huffman_strings_are_read_as_the_library_does(raw):
    from hpack.huffman_table import decode_huffman as other

    try:
        expected = other(raw)
    except hpack.HPACKDecodingError:
        expected = None
    try:
        found = decode_huffman(raw)
    except HuffmanError:
        found = None
    assert found == expected


@given(blocks)
def test_our_literals_are_read_by_the_library(wanted):
    raw = b"".join(literal(name, value) for name, value in wanted)
    assert [tuple(f) for f in hpack.Decoder().decode(raw, raw=True)] == wanted


# ------------------------------------------------------------------------------------------ states
CALL = block()
ids = st.sampled_from([1, 3, 5, 7])
steps = st.one_of(
    st.tuples(st.just("open"), ids, st.booleans()),
    st.tuples(st.just("data"), ids, st.booleans(), st.binary(max_size=30), st.integers(0, 9)),
    st.tuples(st.just("trailers"), ids, st.booleans()),
    st.tuples(st.just("reset"), ids),
    st.tuples(st.just("credit"), st.sampled_from([0, 1, 3, 5]), st.integers(0, 1 << 31)),
    st.tuples(
        st.just("settings"), st.sampled_from([1, 3, 4, 5, 6, 9]), st.integers(0, (1 << 32) - 1)
    ),
    st.tuples(st.just("ping"), st.binary(min_size=8, max_size=8)),
    st.tuples(st.just("priority"), ids, st.integers(0, 9)),
    st.tuples(st.just("unknown"), st.integers(0x20, 0xFF), st.binary(max_size=20)),
    st.tuples(
        st.just("raw"),
        st.integers(0, 9),
        st.integers(0, 255),
        ids | st.just(0),
        st.binary(max_size=12),
    ),
)


def frame_of(step):
    match step:
        case ("open", number, end):
            return frame(frames.HEADERS, 5 if end else 4, number, CALL)
        case ("data", number, end, content, pad):
            body = message(content)
            if pad:
                body = bytes((pad,)) + body + bytes(pad)
            return frame(frames.DATA, (8 if pad else 0) | end, number, body)
        case ("trailers", number, end):
            return frame(frames.HEADERS, 4 | end, number, literal(b"a", b"b"))
        case ("reset", number):
            return frames.reset(number, 8)
        case ("credit", number, credit):
            return frame(frames.WINDOW_UPDATE, 0, number, credit.to_bytes(4, "big"))
        case ("settings", key, value):
            return frames.settings({key: value})
        case ("ping", payload):
            return frame(frames.PING, 0, 0, payload)
        case ("priority", number, parent):
            return frame(frames.PRIORITY, 0, number, parent.to_bytes(4, "big") + b"\0")
        case ("unknown", kind, payload):
            return frame(kind, 0, 0, payload)
        case ("raw", kind, flags, number, payload):
            return frame(kind, flags, number, payload)
    raise AssertionError(step)


def library():
    """A server of the library h2 that has greeted its client."""
    config = h2.config.H2Configuration(client_side=False, header_encoding=None)
    other = h2.connection.H2Connection(config)
    other.initiate_connection()
    other.local_settings.max_frame_size = 1 << 20
    other.receive_data(START)
    other.data_to_send()
    return other


def has_fault(answers):
    """Whether a server has reset a stream, or ended the connection, for a fault."""
    kinds = {frames.GOAWAY, frames.RST_STREAM}
    return any(answer.kind in kinds and answer.code for answer in answers)


def may_differ(step, before, *, is_ours):
    """Whether the library is known to judge a step in another way than the RFC.

    Args:
        before: the steps before it.
        is_ours: whether it is we who see a fault.
    """
    if step[0] == "reset" or step[:2] == ("raw", frames.RST_STREAM):
        return True  # of a stream that is idle: we take it, and the library does at times
    if is_ours:  # it takes a client's PUSH_PROMISE
        return step[:2] == ("raw", frames.PUSH_PROMISE)
    if step[:2] == ("raw", frames.WINDOW_UPDATE) and step[4][:1] >= b"\x80":
        return True  # it takes the reserved bit for part of the increment
    return any(each[:2] == ("raw", frames.GOAWAY) for each in before)  # it takes nothing after one


@given(st.lists(steps, max_size=14))
def test_steps_are_faults_where_the_library_sees_one(sequence):
    ours, other = Recorder(), library()
    ours.receive(START)
    for number, step in enumerate(sequence):
        raw = frame_of(step)
        ours.receive(raw)
        try:
            other.receive_data(raw)
            is_theirs = has_fault(frames_of(other.data_to_send()))
        except h2.exceptions.ProtocolError:
            is_theirs = True
        is_ours = has_fault(ours.answered())
        if is_ours is not is_theirs:
            assert may_differ(step, sequence[:number], is_ours=is_ours), (step, is_ours)
        if is_ours or is_theirs:
            return


@given(st.lists(steps, max_size=14), st.data())
def test_boundaries_of_reads_change_nothing(sequence, data):
    raw = START + b"".join(map(frame_of, sequence))
    whole = Recorder()
    whole.receive(raw)
    cut = Recorder()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=12)))
    for begin, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        if end > begin:
            cut.receive(raw[begin:end])
    assert cut.events == whole.events
    assert cut.take_out() == whole.take_out()
    assert (cut.unread, cut.recv_room, cut.is_over) == (
        whole.unread,
        whole.recv_room,
        whole.is_over,
    )


@given(st.binary(max_size=400), st.data())
def test_any_bytes_end_in_nothing_worse_than_a_goaway(raw, data):
    machine = Recorder()
    machine.receive(START)
    at = 0
    while at < len(raw):
        size = data.draw(st.integers(1, 60))
        machine.receive(raw[at : at + size])
        at += size
    assert machine.unread >= 0
    assert frames_of(b"".join(machine.take_out()))


@given(st.lists(st.binary(max_size=3000), max_size=6), st.lists(st.integers(1, 400), min_size=1))
def test_messages_survive_any_frames_and_reads(contents, sizes):
    body = b"".join(map(message, contents))
    raw, at, turn = START + frame(frames.HEADERS, 4, 1, CALL), 0, 0
    while at < len(body):
        size = sizes[turn % len(sizes)]
        raw += frame(frames.DATA, 0, 1, body[at : at + size])
        at, turn = at + size, turn + 1
    raw += frame(frames.DATA, 1, 1)
    machine, at = Recorder(), 0
    while at < len(raw):
        size = sizes[turn % len(sizes)]
        machine.receive(raw[at : at + size])
        at, turn = at + size, turn + 1
    assert [event[2] for event in machine.events if event[0] == "message"] == contents
    assert machine.unread == 0
    assert machine.events[-1] == ("end", 1)
