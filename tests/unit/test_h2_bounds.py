"""Bounds of a connection: windows, budgets, floods, and blocks of headers that grow."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hpack import Encoder
from http2_bench import (
    REQUEST,
    START,
    Lazy,
    Recorder,
    block,
    conn,
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
    LIMITS,
    PADDED,
    PING,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    ErrorCode as E,
    Limits,
    frame,
    window_update,
)
from gazette_platform.serving.h2.stream import MESSAGE_COST

OPEN = headers()
ENDED = headers(end=True)
DONE = frame(DATA, END_STREAM, 1, message(b"hi"))


def test_client_that_exceeds_the_window_of_its_stream_is_reset():
    machine = Lazy(Limits(stream_window=100_000))
    machine.receive(START + OPEN + 2 * frame(DATA, 0, 1, message(bytes(50_001))))
    assert machine.outcome() == stream(E.FLOW_CONTROL_ERROR)
    assert machine.unread == 0


def test_client_that_exceeds_the_window_of_the_connection_is_cut_off():
    machine = Lazy(Limits(connection_bytes=100_000))
    raw = b"".join(headers(i) + frame(DATA, 0, i, message(bytes(40_000))) for i in (1, 3, 5))
    machine.receive(START + raw)
    assert machine.outcome() == conn(E.FLOW_CONTROL_ERROR)


def test_unread_bytes_and_credit_never_exceed_the_budget():
    machine = Lazy(Limits(connection_bytes=1 << 20, stream_window=1 << 19))
    machine.receive(START + b"".join(headers(i) for i in range(1, 20, 2)))
    granted = 1 << 20
    for turn in range(200):
        number = 2 * (turn % 10) + 1
        while machine.recv_room < 20_005 or machine.opened[number].recv_room < 20_005:
            busiest = max(machine.opened.values(), key=lambda each: each.unread)
            while busiest.messages:
                machine.take(busiest)
        machine.receive(frame(DATA, 0, number, message(bytes(20_000))))
        assert machine.outcome() is None
        count = sum(len(each.messages) for each in machine.opened.values())
        assert machine.unread + machine.recv_room <= granted + count * MESSAGE_COST
    for each in machine.opened.values():
        machine.cancel(each)
    assert machine.unread == 0


def test_message_larger_than_the_window_gets_credit_for_its_size():
    machine = Lazy(Limits(stream_window=65_536), message_bytes_max=1 << 20)
    body = message(bytes(500_000))
    machine.receive(START + OPEN)
    machine.answered()
    sent, room = 0, 65_536
    while sent < len(body):
        size = min(room, len(body) - sent)
        assert size, "the message never becomes whole"
        machine.receive(frame(DATA, 0, 1, body[sent : sent + size]))
        sent += size
        room -= size
        for each in machine.answered():
            if each.kind == WINDOW_UPDATE and each.stream == 1:
                room += struct.unpack(">I", each.payload)[0]
    assert len(machine.take(machine.opened[1])) == 500_000
    lent = [struct.unpack(">I", e.payload)[0] for e in machine.answered() if e.stream == 1]
    assert room + sum(lent) == 65_536, "the window is as large as before"


def credit_of(machine, stream):
    """All that a machine has granted a stream since it was asked last."""
    found = [each for each in machine.answered() if each.kind == WINDOW_UPDATE]
    return sum(struct.unpack(">I", each.payload)[0] for each in found if each.stream == stream)


def test_credit_that_is_lent_spares_what_is_on_its_way():
    machine = Lazy(Limits(stream_window=65_536), message_bytes_max=1 << 20)
    raw = frame(DATA, 0, 1, message(bytes(100_000))[:16_384])
    machine.receive(START + OPEN + raw[:1000])
    assert credit_of(machine, 1) == 100_005 - 65_536
    machine.receive(raw[1000:])
    assert credit_of(machine, 1) == 0


def test_padding_is_credited_like_content():
    machine = Lazy(Limits(stream_window=65_536))
    machine.receive(START + OPEN)
    granted = 65_536
    for _ in range(2000):
        granted -= 211
        assert granted >= 0, "padding uses the window up"
        machine.receive(frame(DATA, PADDED, 1, b"\xc8" + message(b"hello") + bytes(200)))
        machine.take(machine.opened[1])
        granted += credit_of(machine, 1)
    assert machine.outcome() is None


def test_data_within_a_block_of_headers_ends_the_connection():
    machine = played(OPEN + frame(HEADERS, 0, 3, block()[:5]) + DONE)
    assert machine.outcome() == conn(E.PROTOCOL_ERROR)


def held_by(machine, reads):
    """Bytes that are allocated for what a machine reads, and that it keeps."""
    tracemalloc.start()
    try:
        for raw in reads:
            machine.receive(raw)
        machine.answered()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


SMALL = {
    "messages": [frame(DATA, 0, 1, message(b"ab") * 2000)] * 20,
    "frames": [frame(DATA, 0, 1, message(bytes(1 << 19))[:1000])]
    + [frame(DATA, 0, 1, b"ab") * 1000] * 60,
    "reads": [frame(DATA, 0, 1, message(bytes(1 << 19))[:1000])]
    + [frame(DATA, 0, 1, bytes(20))] * 6000,
}


@pytest.mark.parametrize("reads", SMALL.values(), ids=SMALL)
def test_small_pieces_count_with_the_memory_that_they_take(reads):
    machine = Lazy()
    machine.receive(START + OPEN)
    held = held_by(machine, reads)
    assert machine.outcome() is None
    assert held < 2 * machine.unread
    while machine.opened[1].messages:
        machine.take(machine.opened[1])
    assert machine.unread == 0 or machine.opened[1].is_within_message


@pytest.mark.parametrize(
    "more", [[(b"x-a", b"a" * 14_000)], [(b"x-%d" % i, b"") for i in range(300)]]
)
def test_unusual_metadata_of_open_calls_counts_as_unread(more):
    machine = Lazy()
    machine.receive(START + OPEN)
    assert machine.unread == 0
    machine.receive(headers(3, *more))
    assert machine.unread > 10_000
    machine.close(machine.opened[3])
    assert machine.unread == 0


def flood(raw, times, *, before=b"", limits=LIMITS):
    machine = Recorder(limits)
    machine.receive(START + before)
    for _ in range(times):
        machine.receive(raw)
        if machine.is_over:
            break
    return machine


FLOODS = {
    "SETTINGS": frame(SETTINGS, 0, 0),
    "SETTINGS ACK": frame(SETTINGS, ACK, 0),
    "PING": frame(PING, 0, 0, bytes(8)),
    "PRIORITY": frame(PRIORITY, 0, 3, bytes(5)),
    "empty DATA": frame(DATA, 0, 1),
    "tiny credit": window_update(0, 1),
    "unknown frames": frame(0x20, 0, 0),
    "GOAWAY": frame(GOAWAY, 0, 0, bytes(8)),
}


@pytest.mark.parametrize("raw", FLOODS.values(), ids=FLOODS)
def test_flood_of_frames_without_use_ends_the_connection(raw):
    assert flood(raw, 20_000, before=OPEN).outcome() == conn(E.ENHANCE_YOUR_CALM)


@pytest.mark.parametrize("raw", FLOODS.values(), ids=FLOODS)
def test_moderate_noise_is_forgiven_each_second(raw):
    machine = Recorder()
    machine.receive(START + OPEN)
    for second in range(10):
        machine.receive(raw * 4_000)
        machine.decay(float(second))
    assert not machine.is_over


def test_pings_of_a_client_that_receives_messages_do_not_count():
    machine = played(OPEN)
    for _ in range(20_000):
        machine.put_message(b"", b"")
        machine.receive(frame(PING, 0, 0, bytes(8)))
    assert not machine.is_over


def test_settings_that_change_many_windows_count_as_more():
    opened = b"".join(headers(number) for number in range(1, 8_000, 2))
    windows = [frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 70_000 + n)) for n in range(50)]
    assert flood(b"".join(windows), 1, before=opened).outcome() == conn(E.ENHANCE_YOUR_CALM)
    assert flood(b"".join(windows), 1, before=OPEN).outcome() is None


def test_rapid_resets_end_the_connection():
    machine = played(b"")
    for number in range(1, 10_000, 2):
        machine.receive(headers(number) + frame(RST_STREAM, 0, number, word(8)))
    assert machine.outcome() == conn(E.ENHANCE_YOUR_CALM)


def test_moderate_resets_are_forgiven_each_second():
    machine = played(b"")
    number = 1
    for second in range(10):
        for _ in range(LIMITS.resets // 2 - 10):
            machine.receive(headers(number) + frame(RST_STREAM, 0, number, word(8)))
            number += 2
        machine.decay(float(second))
    assert machine.outcome() is None


def test_resets_that_the_client_provokes_count_as_its_own():
    machine = played(b"")
    for number in range(1, 10_000, 2):
        machine.receive(headers(number) + window_update(number, 0))
    assert [f.code for f in machine.answered() if f.kind == GOAWAY] == [E.ENHANCE_YOUR_CALM]


def test_client_may_cancel_thousands_of_old_calls():
    machine = played(b"".join(headers(number) for number in range(1, 20_000, 2)))
    machine.decay(1.0)
    machine.receive(b"".join(frame(RST_STREAM, 0, n, word(8)) for n in range(1, 20_000, 2)))
    assert machine.outcome() is None
    assert not machine.streams


def test_calls_beyond_the_limit_are_refused_unprocessed():
    machine = Recorder(Limits(streams=3))
    machine.receive(START + b"".join(headers(number) for number in (1, 3, 5, 7)))
    assert machine.outcome() == stream(E.REFUSED_STREAM, 7)
    assert len(machine.streams) == 3


@pytest.mark.parametrize("piece", [b"", b"\0\1a\1b"])
def test_flood_of_continuations_ends_the_connection(piece):
    raw = frame(HEADERS, 0, 1, block()) + 1000 * frame(CONTINUATION, 0, 1, piece)
    assert played(raw).outcome() == conn(E.ENHANCE_YOUR_CALM)


def test_block_in_sixteen_continuations_is_read():
    raw = block()
    pieces = [raw[at : at + 10] for at in range(0, len(raw), 10)]
    first, *rest = pieces[:-1]
    machine = played(
        frame(HEADERS, 0, 1, first)
        + b"".join(frame(CONTINUATION, 0, 1, piece) for piece in rest)
        + frame(CONTINUATION, END_HEADERS, 1, pieces[-1])
    )
    assert machine.events[0][:2] == ("request", 1)


def test_header_list_that_grows_by_indices_is_refused_and_the_rest_goes_on():
    encoder = Encoder()
    pairs = [(name.decode(), value.decode()) for name, value in REQUEST]
    large = encoder.encode([*pairs, ("a", "b" * 3500)])
    machine = played(
        frame(HEADERS, END_HEADERS, 1, large) + frame(HEADERS, END_HEADERS, 3, b"\xbe" * 16_000)
    )
    machine.receive(frame(HEADERS, END_HEADERS, 5, encoder.encode(pairs)))
    assert [event[1] for event in machine.events] == [1, 5]
    assert any(b"the metadata is larger than" in each.payload for each in machine.answered())
