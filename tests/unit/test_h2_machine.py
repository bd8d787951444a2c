"""Connections of HTTP/2: each rule of RFC 9113 that a client can break, and each bound."""

from __future__ import annotations

import struct
from dataclasses import replace
from random import Random

import pytest
from hpack import Encoder
from http2_bench import (
    LIMITS,
    REFUSED,
    REQUEST,
    START,
    Recorder,
    block,
    conn,
    frames_of,
    headers,
    message,
    played,
    stream,
    word,
)

from gazette_platform.serving.h2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PRIORITY_FLAG,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    ErrorCode as E,
    Limits,
    Setting,
    frame,
    settings,
    window_update,
)

OPEN = headers()
ENDED = headers(end=True)
DONE = frame(DATA, END_STREAM, 1, message(b"hi"))


FAULTS = {
    # ---- frames (sections 4 and 6)
    "frame larger than allowed": (
        frame(DATA, 0, 1, bytes((1 << 20) + 1)),
        conn(E.FRAME_SIZE_ERROR),
    ),
    "large SETTINGS": (frame(SETTINGS, 0, 0, bytes(6 * 3000)), conn(E.ENHANCE_YOUR_CALM)),
    "DATA on stream 0": (frame(DATA, 0, 0, b"x"), conn(E.PROTOCOL_ERROR)),
    "DATA with padding beyond it": (
        OPEN + frame(DATA, PADDED, 1, b"\xffxxxxx"),
        conn(E.PROTOCOL_ERROR),
    ),
    "DATA without the length of its padding": (
        OPEN + frame(DATA, PADDED, 1),
        conn(E.FRAME_SIZE_ERROR),
    ),
    "HEADERS on stream 0": (headers(0), conn(E.PROTOCOL_ERROR)),
    "HEADERS with padding beyond them": (
        frame(HEADERS, END_HEADERS | PADDED, 1, b"\xff" + block()),
        conn(E.PROTOCOL_ERROR),
    ),
    "HEADERS without the length of their padding": (
        frame(HEADERS, END_HEADERS | PADDED, 1),
        conn(E.FRAME_SIZE_ERROR),
    ),
    "HEADERS shorter than their priority": (
        frame(HEADERS, END_HEADERS | PRIORITY_FLAG, 1, b"abc"),
        conn(E.PROTOCOL_ERROR),
    ),
    "HEADERS that depend on their stream": (
        frame(HEADERS, END_HEADERS | PRIORITY_FLAG, 1, word(1) + b"\0" + block()),
        conn(E.PROTOCOL_ERROR),
    ),
    "PRIORITY on stream 0": (frame(PRIORITY, 0, 0, bytes(5)), conn(E.PROTOCOL_ERROR)),
    "PRIORITY of 4 bytes": (OPEN + frame(PRIORITY, 0, 1, bytes(4)), stream(E.FRAME_SIZE_ERROR)),
    "PRIORITY on its stream": (frame(PRIORITY, 0, 1, word(1) + b"\0"), conn(E.PROTOCOL_ERROR)),
    "RST_STREAM on stream 0": (frame(RST_STREAM, 0, 0, bytes(4)), conn(E.PROTOCOL_ERROR)),
    "RST_STREAM of 3 bytes": (OPEN + frame(RST_STREAM, 0, 1, bytes(3)), conn(E.FRAME_SIZE_ERROR)),
    "RST_STREAM on a stream of the server": (
        frame(RST_STREAM, 0, 8, bytes(4)),
        conn(E.PROTOCOL_ERROR),
    ),
    "SETTINGS on a stream": (frame(SETTINGS, 0, 1), conn(E.PROTOCOL_ERROR)),
    "SETTINGS of 5 bytes": (frame(SETTINGS, 0, 0, bytes(5)), conn(E.FRAME_SIZE_ERROR)),
    "SETTINGS ACK with content": (frame(SETTINGS, ACK, 0, bytes(6)), conn(E.FRAME_SIZE_ERROR)),
    "ENABLE_PUSH of 2": (settings({Setting.ENABLE_PUSH: 2}), conn(E.PROTOCOL_ERROR)),
    "window of 2 GiB": (
        settings({Setting.INITIAL_WINDOW_SIZE: 1 << 31}),
        conn(E.FLOW_CONTROL_ERROR),
    ),
    "frames below 16 KiB": (settings({Setting.MAX_FRAME_SIZE: 16383}), conn(E.PROTOCOL_ERROR)),
    "frames beyond 16 MiB": (settings({Setting.MAX_FRAME_SIZE: 1 << 24}), conn(E.PROTOCOL_ERROR)),
    "window of a stream beyond 2 GiB by SETTINGS": (
        OPEN
        + window_update(1, (1 << 31) - 1 - 65535)
        + settings({Setting.INITIAL_WINDOW_SIZE: 65536}),
        conn(E.FLOW_CONTROL_ERROR),
    ),
    "PUSH_PROMISE": (frame(PUSH_PROMISE, 4, 1, word(2) + block()), conn(E.PROTOCOL_ERROR)),
    "PING on a stream": (frame(PING, 0, 1, bytes(8)), conn(E.PROTOCOL_ERROR)),
    "PING of 7 bytes": (frame(PING, 0, 0, bytes(7)), conn(E.FRAME_SIZE_ERROR)),
    "GOAWAY on a stream": (frame(GOAWAY, 0, 1, bytes(8)), conn(E.PROTOCOL_ERROR)),
    "GOAWAY of 7 bytes": (frame(GOAWAY, 0, 0, bytes(7)), conn(E.FRAME_SIZE_ERROR)),
    "WINDOW_UPDATE of 3 bytes": (frame(WINDOW_UPDATE, 0, 0, bytes(3)), conn(E.FRAME_SIZE_ERROR)),
    "credit of 0 for the connection": (window_update(0, 0), conn(E.PROTOCOL_ERROR)),
    "credit of 0 for a stream": (OPEN + window_update(1, 0), stream(E.PROTOCOL_ERROR)),
    "too much credit for the connection": (
        2 * window_update(0, (1 << 31) - 1),
        conn(E.FLOW_CONTROL_ERROR),
    ),
    "too much credit for a stream": (
        OPEN + 2 * window_update(1, (1 << 31) - 1),
        stream(E.FLOW_CONTROL_ERROR),
    ),
    "CONTINUATION on stream 0": (frame(CONTINUATION, 4, 0, b""), conn(E.PROTOCOL_ERROR)),
    "CONTINUATION of nothing": (OPEN + frame(CONTINUATION, 4, 1, b""), conn(E.PROTOCOL_ERROR)),
    "CONTINUATION of another stream": (
        frame(HEADERS, 0, 1, block()) + frame(CONTINUATION, 4, 3),
        conn(E.PROTOCOL_ERROR),
    ),
    "DATA within a block": (
        frame(HEADERS, 0, 1, block()) + frame(DATA, 0, 1, b"x"),
        conn(E.PROTOCOL_ERROR),
    ),
    "an unknown frame within a block": (
        frame(HEADERS, 0, 1, block()) + frame(0x20, 0, 0, b"x"),
        conn(E.PROTOCOL_ERROR),
    ),
    # ---- states of streams (section 5)
    "DATA on an idle stream": (frame(DATA, 1, 7, b"x"), conn(E.PROTOCOL_ERROR)),
    "WINDOW_UPDATE on an idle stream": (window_update(7, 100), conn(E.PROTOCOL_ERROR)),
    "DATA after the end": (ENDED + frame(DATA, 0, 1, b"x"), stream(E.STREAM_CLOSED)),
    "HEADERS after the end": (ENDED + headers(end=True), stream(E.STREAM_CLOSED)),
    "DATA on a stream that the client reset": (
        OPEN + frame(RST_STREAM, 0, 1, word(8)) + frame(DATA, 0, 1, b"x"),
        conn(E.STREAM_CLOSED),
    ),
    "HEADERS on a stream that the client reset": (
        OPEN + frame(RST_STREAM, 0, 1, word(8)) + headers(),
        conn(E.STREAM_CLOSED),
    ),
    "even stream id": (headers(2), conn(E.PROTOCOL_ERROR)),
    "stream id that goes back": (headers(5) + headers(3), conn(E.PROTOCOL_ERROR)),
    "first stream id that goes back": (headers(3) + headers(1), conn(E.PROTOCOL_ERROR)),
    # ---- requests (section 8)
    "upper-case name": (headers(1, (b"X-Test", b"1")), stream(E.PROTOCOL_ERROR)),
    "unknown pseudo-header": (headers(1, (b":test", b"1")), stream(E.PROTOCOL_ERROR)),
    "pseudo-header of responses": (headers(1, (b":status", b"200")), stream(E.PROTOCOL_ERROR)),
    "pseudo-header after others": (
        frame(HEADERS, END_HEADERS, 1, block(without=[b":path"]) + block()),
        stream(E.PROTOCOL_ERROR),
    ),
    "pseudo-header twice": (
        frame(HEADERS, END_HEADERS, 1, b"\x86" + block()),
        stream(E.PROTOCOL_ERROR),
    ),
    "no method": (headers(without=[b":method"]), stream(E.PROTOCOL_ERROR)),
    "no scheme": (headers(without=[b":scheme"]), stream(E.PROTOCOL_ERROR)),
    "no path": (headers(without=[b":path"]), stream(E.PROTOCOL_ERROR)),
    "empty path": (headers(path=b""), stream(E.PROTOCOL_ERROR)),
    "header of connections": (headers(1, (b"connection", b"close")), stream(E.PROTOCOL_ERROR)),
    "te that is not trailers": (headers(1, (b"te", b"gzip")), stream(E.PROTOCOL_ERROR)),
    "line feed in a value": (headers(1, (b"a", b"b\nc")), stream(E.PROTOCOL_ERROR)),
    "content-length that is none": (
        headers(1, (b"content-length", b"-1")),
        stream(E.PROTOCOL_ERROR),
    ),
    "body shorter than content-length": (
        headers(1, (b"content-length", b"8")) + DONE,
        stream(E.PROTOCOL_ERROR),
    ),
    "body longer than content-length": (
        headers(1, (b"content-length", b"6")) + DONE,
        stream(E.PROTOCOL_ERROR),
    ),
    "trailers without the end": (
        OPEN + frame(HEADERS, END_HEADERS, 1, b""),
        stream(E.PROTOCOL_ERROR),
    ),
    "trailers with a pseudo-header": (
        OPEN + frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x84"),
        stream(E.PROTOCOL_ERROR),
    ),
    # ---- header compression
    "index beyond the tables": (
        frame(HEADERS, END_HEADERS, 1, b"\xff\xff\x7f"),
        conn(E.COMPRESSION_ERROR),
    ),
    "block that ends early": (
        frame(HEADERS, END_HEADERS, 1, b"\x40\x7f"),
        conn(E.COMPRESSION_ERROR),
    ),
}


@pytest.mark.parametrize(("raw", "outcome"), FAULTS.values(), ids=FAULTS)
def test_fault_of_the_client_ends_what_the_rfc_says(raw, outcome):
    assert played(raw).outcome() == outcome


@pytest.mark.parametrize(("raw", "outcome"), FAULTS.values(), ids=FAULTS)
def test_fault_is_found_byte_by_byte(raw, outcome):
    if len(raw) > 5000:
        raw, rest = raw[:5000], raw[5000:]
    else:
        rest = b""
    machine = Recorder()
    for byte in START + raw:
        machine.receive(bytes((byte,)))
    machine.receive(rest)
    assert machine.outcome() == outcome


def give(machine, raw, dice):
    """Give what a peer sent in pieces, and large messages where they belong. Returns: bytes of the latter."""
    view, placed = memoryview(raw), 0
    while view:
        place = machine.place()
        size = min(dice.choice((1, 9, 1000, 70_000, 400_000)), len(view))
        if place is None:
            machine.receive(bytes(view[:size]))
        else:
            size = min(size, len(place))
            place[:size] = view[:size]
            machine.filled(size)
            placed += size
        view = view[size:]
    return placed


@pytest.mark.parametrize("seed", range(8))
def test_messages_that_are_received_where_they_belong_are_the_same(seed):
    """However they are cut: several of them in a frame, several frames for one, and padding behind."""
    dice, raw, number = Random(seed), b"", 1
    for number in range(1, 16, 2):
        sizes = dice.choices((0, 5, 65_535, 65_536, 131_072, 300_000), k=3)
        body = b"".join(message(dice.randbytes(size)) for size in sizes)
        raw += headers(number)
        while body:
            size = dice.choice((100, 80_000, 900_000, 900_000))
            content, body = body[:size], body[size:]
            end = 0 if body else END_STREAM
            if dice.random() < 0.3:
                raw += frame(DATA, PADDED | end, number, b"\x07" + content + bytes(7))
            else:
                raw += frame(DATA, end, number, content)
    whole, machine = played(raw), Recorder()
    machine.receive(START)
    assert give(machine, raw, dice) > 100_000
    assert machine.outcome() is None
    assert messages(machine) == messages(whole)
    assert (machine.unread, machine.streams.keys()) == (0, whole.streams.keys())


def messages(machine):
    return [event for event in machine.events if event[0] in {"message", "end"}]


def test_what_is_announced_takes_no_memory_before_it_comes():
    """Only a frame has a place, which its peer's windows allow; not a message that is longer than it."""
    machine = played(OPEN + frame(DATA, 0, 1, message(bytes(900_000))[:200_000]))
    assert machine.place() is None
    machine.receive(frame(DATA, 0, 1, bytes(500_000))[:100])
    assert machine.place() is None
    machine = played(OPEN + frame(DATA, 0, 1, message(bytes(200_000)))[:100])
    assert len(machine.place()) == 200_000 - 100 + 9 + 5


def test_a_place_ends_with_its_stream():
    raw = frame(DATA, 0, 1, message(bytes(200_000)))
    machine = played(OPEN + raw[:100])
    machine.place()[:] = bytes(200_014 - 100)
    machine.filled(50_000)
    machine.cancel(machine.opened[1])
    assert machine.place() is None
    assert machine.outcome() == stream(E.CANCEL)
    machine.receive(raw[50_100:] + headers(3) + frame(DATA, END_STREAM, 3, message(b"next")))
    assert machine.outcome() is None
    assert messages(machine)[-2:] == [("message", 3, b"next"), ("end", 3)]


def test_a_fault_behind_a_place_ends_the_connection():
    """A body of another length than announced, once too often: the transport gets a GOAWAY and no exception."""
    body = message(bytes(200_000))
    length = str(len(body) + 1).encode()
    raw = headers(1, (b"content-length", length)) + frame(DATA, END_STREAM, 1, body)
    machine = Recorder(replace(LIMITS, resets=0))
    machine.receive(START + raw[:100])
    rest = raw[100:]
    machine.place()[:] = rest
    machine.filled(len(rest))
    assert machine.outcome() == conn(E.ENHANCE_YOUR_CALM)
    assert machine.is_over


SOUND = {
    "unknown frame": frame(0x20, 0xFF, 0, b"abc"),
    "large unknown frame": frame(0x20, 0, 1, bytes(1 << 20)),
    "SETTINGS ACK": frame(SETTINGS, ACK, 0),
    "unknown setting": settings({0x77: 5}),
    "PRIORITY on an idle stream": frame(PRIORITY, 0, 3, word(0) + b"\0"),
    "RST_STREAM on an idle stream": frame(RST_STREAM, 0, 9, word(8)),
    "GOAWAY": frame(GOAWAY, 0, 0, bytes(8)),
    "unknown flags": frame(PING, 0x16, 0, bytes(8)),
    "reserved bit": frame(WINDOW_UPDATE, 0, 0, word(1 << 31 | 2000)),
}


@pytest.mark.parametrize("raw", SOUND.values(), ids=SOUND)
def test_call_succeeds_after_what_is_to_be_ignored(raw):
    machine = played(raw + OPEN + DONE)
    assert machine.outcome() is None
    assert [event[0] for event in machine.events if event[0] != "room"] == [
        "request",
        "message",
        "end",
    ]


def test_blanks_around_a_value_are_not_a_fault():
    assert played(headers(1, (b"a", b" b\t")) + DONE).outcome() is None


@pytest.mark.parametrize("raw", [window_update(1, 100), frame(RST_STREAM, 0, 1, word(8))])
def test_credit_and_resets_may_follow_the_end_of_a_stream(raw):
    machine = played(ENDED)
    machine.close(machine.opened[1])
    machine.receive(raw)
    assert machine.outcome() is None


def test_all_calls_may_be_ended_at_once_while_their_clients_still_send():
    ids = range(1, 2 * Limits().streams, 2)
    machine = played(b"".join(map(headers, ids)))
    for stream_id in ids:
        machine.close(machine.opened[stream_id])
    for stream_id in ids:
        machine.receive(frame(DATA, 0, stream_id, b"x"))
    assert not machine.is_over


@pytest.mark.parametrize(
    "raw", [frame(DATA, 0, 1, b"x"), headers(end=True)], ids=["DATA", "HEADERS"]
)
def test_frame_on_a_stream_that_both_sides_ended_ends_the_connection(raw):
    machine = played(ENDED)
    machine.close(machine.opened[1])
    machine.receive(raw)
    assert machine.outcome() == conn(E.STREAM_CLOSED)


@pytest.mark.parametrize(
    "raw", [frame(DATA, 0, 1, bytes(1000)), headers(end=True), frame(RST_STREAM, 0, 1, word(8))]
)
def test_frames_on_their_way_to_a_stream_that_we_reset_are_ignored(raw):
    machine = played(OPEN)
    machine.close(machine.opened[1])
    machine.answered()
    machine.receive(raw + headers(3))
    assert machine.outcome() is None
    assert machine.events[-1][:2] == ("request", 3)


def test_first_bytes_say_what_is_allowed():
    machine = Recorder()
    machine.greet()
    first, credit = machine.answered()
    values = dict(struct.iter_unpack(">HI", first.payload))
    assert first.kind == SETTINGS
    assert values == {3: 16384, 4: 4 << 20, 5: 1 << 20, 6: 16384}
    assert 65535 + struct.unpack(">I", credit.payload)[0] == 64 << 20


@pytest.mark.parametrize(
    "raw", [b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nXX", b"\0" * 30]
)
def test_other_protocols_are_refused(raw):
    machine = Recorder()
    machine.receive(raw)
    assert machine.outcome() == conn(E.PROTOCOL_ERROR)


@pytest.mark.parametrize("first", [OPEN, frame(SETTINGS, ACK, 0), frame(PING, 0, 0, bytes(8))])
def test_settings_must_come_first(first):
    machine = Recorder()
    machine.receive(PREFACE + first)
    assert machine.outcome() == conn(E.PROTOCOL_ERROR)


def test_ping_is_answered_with_its_content():
    machine = played(b"")
    machine.answered()
    machine.receive(frame(PING, 0, 0, b"12345678"))
    (pong,) = machine.answered()
    assert (pong.kind, pong.flags, pong.payload) == (PING, ACK, b"12345678")


def test_settings_are_acknowledged_and_change_open_streams():
    machine = played(OPEN)
    machine.answered()
    machine.receive(settings({Setting.INITIAL_WINDOW_SIZE: 100, Setting.MAX_FRAME_SIZE: 20000}))
    (ack,) = machine.answered()
    assert (ack.kind, ack.flags, ack.payload) == (SETTINGS, ACK, b"")
    assert machine.opened[1].send_room == 100
    assert machine.peer_frame == 20000
    assert ("room", None) in machine.events


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"method": b"GET"}, b"405"),
        ({"without": [b"content-type"]}, b"415"),
    ],
)
def test_request_that_is_not_grpc_gets_a_status_of_http(more, status):
    machine = played(headers(end=True, **more))
    answer = machine.answered()[-1]
    assert (answer.kind, answer.flags) == (HEADERS, END_HEADERS | END_STREAM)
    assert answer.payload.endswith(status)


def test_request_that_is_not_grpc_is_read_to_its_end_before_the_answer():
    machine = Recorder(Limits(stall_s=5.0))
    machine.receive(START + headers(method=b"PUT"))
    for _ in range(500):
        machine.receive(frame(DATA, 0, 1, bytes(100_000)))
    assert machine.outcome() is None
    assert machine.unread == 0
    machine.receive(frame(DATA, END_STREAM, 1))
    (answer,) = machine.answered()
    assert answer.payload.endswith(b"405")
    assert not machine._refused


def test_request_that_is_not_grpc_ends_by_the_stall_limit():
    machine = Recorder(Limits(stall_s=5.0))
    machine.receive(START + headers(method=b"PUT"))
    machine.decay(5.0)
    assert machine.outcome() is None
    machine.decay(5.1)
    assert machine.outcome() == stream(E.CANCEL)


def test_unknown_method_is_unimplemented():
    machine = played(headers(end=True, path=REFUSED))
    answer = machine.answered()[-1]
    assert b"grpc-status\x0212" in answer.payload
    assert b"Method not found!" in answer.payload


@pytest.mark.parametrize(
    ("value", "timeout_s"), [(b"5S", 5.0), (b"50m", 0.05), (b"99999999H", 99999999 * 3600.0)]
)
def test_deadline_is_read(value, timeout_s):
    machine = played(headers(1, (b"grpc-timeout", value)))
    assert machine.events[0][3] == timeout_s


@pytest.mark.parametrize("value", [b"999999999H", b"5", b"S", b"5s", b"-1S", b"5 S", b""])
def test_malformed_deadline_is_refused(value):
    machine = played(headers(1, (b"grpc-timeout", value)) + headers(3))
    assert b"malformed grpc-timeout" in machine.answered()[-2].payload
    assert [event[1] for event in machine.events] == [3]


def test_metadata_reaches_the_handler():
    machine = played(headers(1, (b"authorization", b"Bearer x"), (b"odd", b"\xff")))
    request = machine.events[0][2]
    assert request.metadata == {"authorization": "Bearer x", "odd": "\\xff"}


def test_blocks_that_change_the_table_are_read_again():
    """An index may mean another field after each of them."""
    encoder, machine = Encoder(), played(b"")
    pairs = [(name.decode(), value.decode()) for name, value in REQUEST]
    for number in range(300):
        stream_id = 2 * number + 1
        more = [("grpc-timeout", f"{number % 7}S"), ("key", f"value {number % 5}" * 20)]
        raw = encoder.encode([*pairs, *more])
        machine.receive(frame(HEADERS, END_HEADERS | END_STREAM, stream_id, raw))
        _, _, request, timeout_s = machine.events[-2]
        assert request.metadata["key"] == more[1][1]
        assert timeout_s == number % 7
        machine.close(machine.opened[stream_id])


# ---------------------------------------------------------------------------------------- messages
def test_messages_are_cut_from_frames_of_any_size():
    body = message(b"one") + message(b"") + message(b"x" * 300)
    for size in range(1, len(body)):
        raw = b"".join(frame(DATA, 0, 1, body[at : at + size]) for at in range(0, len(body), size))
        machine = played(OPEN + raw + frame(DATA, END_STREAM, 1))
        contents = [event[2] for event in machine.events if event[0] == "message"]
        assert contents == [b"one", b"", b"x" * 300]
        assert machine.events[-1] == ("end", 1)


@pytest.mark.parametrize("pad", [0, 1, 255])
def test_padding_is_left_out(pad):
    content = bytes((pad,)) + message(b"padded") + bytes(pad)
    raw = START + OPEN + frame(DATA, PADDED | END_STREAM, 1, content) + headers(3)
    for cut in range(len(START), len(raw)):
        machine = Recorder()
        machine.receive(raw[:cut])
        machine.receive(raw[cut:])
        assert ("message", 1, b"padded") in machine.events
        assert machine.events[-1][:2] == ("request", 3)


@pytest.mark.parametrize(
    ("body", "number", "text"),
    [
        (message(b"x", compressed=1), 12, "messages are compressed in an unknown way"),
        (message(bytes(11)), 8, "SERVER: Received message larger than max (11 vs. 10)"),
        (struct.pack(">BI", 0, (1 << 32) - 1), 8, "SERVER: Received message larger than max"),
    ],
)
def test_message_that_is_not_taken_ends_its_call(body, number, text):
    machine = Recorder(message_bytes_max=10)
    machine.receive(START + OPEN + frame(DATA, 0, 1, body) + headers(3))
    kind, stream_id, status, said = machine.events[1]
    assert (kind, stream_id, status) == ("broken", 1, number)
    assert said.startswith(text)
    assert machine.events[-1][:2] == ("request", 3)


@pytest.mark.parametrize("body", [message(b"hello")[:-2], b"\0\0"])
def test_stream_that_ends_within_a_message_is_broken(body):
    machine = played(OPEN + frame(DATA, END_STREAM, 1, body))
    assert machine.events[-1][:3] == ("broken", 1, 13)


# ------------------------------------------------------------------------------------------- drain
def test_drain_serves_calls_on_their_way_and_refuses_later_ones():
    machine = played(OPEN)
    machine.answered()
    machine.drain()
    goaway, ping = machine.answered()
    assert struct.unpack(">II", goaway.payload) == ((1 << 31) - 1, 0)
    machine.receive(headers(3))
    assert machine.events[-1][:2] == ("request", 3)
    machine.receive(frame(PING, ACK, 0, ping.payload))
    (last,) = machine.answered()
    assert struct.unpack(">II", last.payload) == (3, 0)
    machine.receive(headers(5))
    assert machine.outcome() == stream(E.REFUSED_STREAM, 5)
    machine.receive(DONE)
    machine.close(machine.opened[1])
    assert ("idle",) not in machine.events
    machine.close(machine.opened[3])
    assert machine.events[-1] == ("idle",)


def test_nothing_is_taken_after_a_fault():
    machine = played(frame(PING, 0, 1, bytes(8)))
    machine.receive(OPEN)
    assert machine.events == []
    assert len([f for f in frames_of(b"".join(machine.take_out())) if f.kind == GOAWAY]) == 1
