"""HTTP/2 as a client writes it, and a machine that records what it is asked to do."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from gazette_platform.serving.h2.client_machine import ClientMachine
from gazette_platform.serving.h2.frames import (
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    LIMITS,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    frame,
)
from gazette_platform.serving.h2.hpack import literal
from gazette_platform.serving.h2.server_machine import Machine, Requests
from gazette_platform.serving.h2.stream import Stream

REQUEST = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/test.Echo/Unary"),
    (b":authority", b"x"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
)
START = PREFACE + frame(SETTINGS, 0, 0)
REFUSED = b"/test.Echo/Missing"


def block(*more, without=(), **replaced):
    """A header block; `replaced` are pseudo-headers, without their colon."""
    fields = [
        (name, replaced.pop(name[1:].decode(), value) if name[:1] == b":" else value)
        for name, value in REQUEST
        if name not in without
    ]
    return b"".join(literal(name, value) for name, value in (*fields, *more))


def headers(stream=1, *more, end=False, **replaced):
    """A HEADERS frame that begins a call."""
    flags = END_HEADERS | (END_STREAM if end else 0)
    return frame(HEADERS, flags, stream, block(*more, **replaced))


def message(content, *, compressed=0):
    """A message of gRPC, with its prefix."""
    return struct.pack(">BI", compressed, len(content)) + content


@dataclass(frozen=True)
class Frame:
    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def code(self):
        """Of RST_STREAM and GOAWAY."""
        return struct.unpack(
            ">I", self.payload[:4] if self.kind == RST_STREAM else self.payload[4:8]
        )[0]


def frames_of(raw):
    """The frames in what a server sent; the last may be cut."""
    found, at = [], 0
    while len(raw) - at >= 9:
        head, flags, stream = struct.unpack_from(">IBI", raw, at)
        length = head >> 8
        found.append(Frame(head & 255, flags, stream, raw[at + 9 : at + 9 + length]))
        at += 9 + length
    return found


class Events:
    """What both sides record in the same way."""

    def on_broken(self, stream, number, text):
        self.events.append(("broken", stream.id, number, text))

    def on_gone(self, stream):
        self.events.append(("gone", stream.id))

    def on_room(self, stream):
        self.events.append(("room", stream and stream.id))

    def on_idle(self):
        self.events.append(("idle",))

    def on_output(self):
        pass


class Recorder(Events, Machine):
    """Records events: kind, stream id, and more."""

    def __init__(self, limits=LIMITS, message_bytes_max=1 << 20):
        super().__init__(limits, message_bytes_max, Requests())
        self.events = []
        self.opened = {}
        self.sent = b""

    def on_request(self, stream_id, request, timeout_s):
        if request.path == REFUSED:
            return None
        self.events.append(("request", stream_id, request, timeout_s))
        self.opened[stream_id] = Stream(
            stream_id,
            send_room=self.peer_window,
            recv_room=self.limits.stream_window,
            opened_at=self.swept_at,
        )
        return self.opened[stream_id]

    def on_progress(self, stream):
        while stream.messages:
            self.events.append(("message", stream.id, self.take(stream)))
        if stream.is_ended:
            self.events.append(("end", stream.id))

    def on_broken(self, stream, number, text):
        super().on_broken(stream, number, text)
        self.close(stream)

    def answered(self):
        """The frames that were sent since the last call."""
        return frames_of(b"".join(self.take_out()))

    def outcome(self):
        """How faults ended: ``("connection", code)``, ``("stream", id, code)``, or None."""
        for each in self.answered():
            if each.kind == GOAWAY and each.code:
                return ("connection", each.code)
            if each.kind == RST_STREAM and each.code:
                return ("stream", each.stream, each.code)
        return None


class ClientRecorder(Events, ClientMachine):
    """A client's machine with some calls under way. Records events: kind, stream id, and more."""

    def __init__(self, calls=3, limits=LIMITS, message_bytes_max=1 << 20):
        super().__init__(limits, message_bytes_max)
        self.events = []
        self.greet()
        for _ in range(calls):
            stream_id = self.next_id()
            self.streams[stream_id] = Stream(
                stream_id,
                send_room=self.peer_window,
                recv_room=limits.stream_window,
                opened_at=self.swept_at,
            )
            self.put_headers(stream_id, block(), is_last=False)

    def on_ready(self):
        self.events.append(("ready", self.streams_max))

    def on_answer(self, stream, answer):
        self.events.append(("answer", stream.id, answer))
        if answer.status is not None:
            self.finish(stream, is_sent=False)

    def on_reset(self, stream, code):
        self.events.append(("reset", stream.id, code))

    def on_going(self):
        self.events.append(("going", self.why))

    def on_unserved(self, stream):
        self.events.append(("unserved", stream.id))

    def on_progress(self, stream):
        while stream.messages:
            self.events.append(("message", stream.id, self.take(stream)))

    def on_broken(self, stream, number, text):
        super().on_broken(stream, number, text)
        self.cancel(stream)


class Lazy(Recorder):
    """Takes no message by itself."""

    def on_progress(self, stream):
        self.events.append(("progress", stream.id))


def word(value):
    return struct.pack(">I", value)


def conn(code):
    return ("connection", code)


def stream(code, number=1):
    return ("stream", number, code)


def played(raw, machine=None):
    machine = machine or Recorder()
    machine.receive(START + raw)
    return machine


def give(connection, raw):
    """Let a connection read, as its transport does."""
    view = memoryview(raw)
    while view:
        place = connection.get_buffer(-1)
        size = min(len(place), len(view))
        place[:size] = view[:size]
        connection.buffer_updated(size)
        view = view[size:]
