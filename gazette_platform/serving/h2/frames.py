"""Frames of HTTP/2: their numbers, and the rules of RFC 9113 that need no more than the frame; how much a peer may send, hold and delay."""

from __future__ import annotations

from dataclasses import dataclass, replace
from struct import Struct
from typing import Final, NamedTuple, Protocol, final

from typing_extensions import override

from gazette_platform.serving.interface import READ_AHEAD_BYTES

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9
KNOWN_KINDS: Final = 10

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY_FLAG: Final = 0x20

WINDOW_MAX: Final = (1 << 31) - 1
_FRAME_BYTES_LEAST: Final = 1 << 14
_FRAME_BYTES_MOST: Final = (1 << 24) - 1


class ErrorCode:
    """Why a stream or a connection ends, by the numbers of RFC 9113."""

    NO_ERROR: Final = 0
    PROTOCOL_ERROR: Final = 1
    INTERNAL_ERROR: Final = 2
    FLOW_CONTROL_ERROR: Final = 3
    STREAM_CLOSED: Final = 5
    FRAME_SIZE_ERROR: Final = 6
    REFUSED_STREAM: Final = 7
    CANCEL: Final = 8
    COMPRESSION_ERROR: Final = 9
    ENHANCE_YOUR_CALM: Final = 11
    INADEQUATE_SECURITY: Final = 12


class Setting:
    """The settings that the server sends or heeds."""

    ENABLE_PUSH: Final = 2
    MAX_CONCURRENT_STREAMS: Final = 3
    INITIAL_WINDOW_SIZE: Final = 4
    MAX_FRAME_SIZE: Final = 5
    MAX_HEADER_LIST_SIZE: Final = 6


class ConnectionFault(Exception):
    """The peer broke a rule, and the connection cannot go on."""

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        super().__init__(text)


class StreamFault(Exception):
    """The peer broke a rule on one stream; the others go on."""

    def __init__(self, stream_id: int, code: int) -> None:
        self.stream_id = stream_id
        self.code = code
        super().__init__(stream_id, code)

    @override
    def __str__(self) -> str:
        return f"stream {self.stream_id} broke a rule (error {self.code})"


# Length and kind share the first word: 24 bits and 8. Then flags, then the id of the stream.
_HEAD = Struct(">IBI")
pack_head = _HEAD.pack
"""Packs ``length << 8 | kind``, flags and stream id."""
unpack_head = _HEAD.unpack_from
_U32 = Struct(">I")
_SETTING = Struct(">HI")
_TWO_WORDS = Struct(">II")
_RESET = Struct(">IBII")


class _Rule(NamedTuple):
    """What a frame of a kind must be like."""

    on_stream: bool | None
    """Whether it is about a stream, or about the connection; None: either."""
    length: int | None = None
    """Its exact length; None: any."""
    is_stream_fault: bool = False
    """Whether a wrong length ends no more than the stream."""


_RULES: Final = {
    DATA: _Rule(on_stream=True),
    HEADERS: _Rule(on_stream=True),
    PRIORITY: _Rule(on_stream=True, length=5, is_stream_fault=True),
    RST_STREAM: _Rule(on_stream=True, length=4),
    SETTINGS: _Rule(on_stream=False),
    PING: _Rule(on_stream=False, length=8),
    GOAWAY: _Rule(on_stream=False),
    WINDOW_UPDATE: _Rule(on_stream=None, length=4),
    CONTINUATION: _Rule(on_stream=True),
}
_NAMES: Final = [
    "DATA",
    "HEADERS",
    "PRIORITY",
    "RST_STREAM",
    "SETTINGS",
    "PUSH_PROMISE",
    "PING",
    "GOAWAY",
    "WINDOW_UPDATE",
    "CONTINUATION",
]


def check_frame(kind: int, flags: int, stream_id: int, length: int) -> None:
    """Check what the head of a frame of a known kind says.

    Raises: ConnectionFault, StreamFault: by RFC 9113, section 6.
    """
    name = _NAMES[kind]
    rule = _RULES.get(kind)
    if rule is None:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"{name} is not allowed")
    if rule.on_stream is not None and (stream_id != 0) is not rule.on_stream:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"{name} on stream {stream_id}")
    if rule.length is not None and length != rule.length:
        if rule.is_stream_fault:
            raise StreamFault(stream_id, ErrorCode.FRAME_SIZE_ERROR)
        raise _bad_length(name, length)
    if kind == SETTINGS and (length if flags & ACK else length % 6):
        raise _bad_length(name, length)
    if kind == GOAWAY and length < 8:
        raise _bad_length(name, length)


def _bad_length(name: str, length: int) -> ConnectionFault:
    return ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"{name} of {length} bytes")


def unpadded(flags: int, data: bytes, start: int, end: int) -> tuple[int, int]:
    """Find the header block inside a HEADERS frame, without padding and priority.

    Returns: where it begins and ends.
    Raises: ConnectionFault: the padding is longer than the frame.
    """
    if flags & PADDED:
        if start == end:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "no length of the padding")
        end -= data[start]
        start += 1
    if flags & PRIORITY_FLAG:
        start += 5
    if end < start:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the padding is longer than the frame")
    return start, end


def priority_parent(data: bytes, start: int) -> int:
    """Read the stream that another one depends on, from the priority at `start`."""
    parent: int = _U32.unpack_from(data, start)[0] & WINDOW_MAX
    return parent


def window_increment(data: bytes, start: int) -> int:
    """Read the increment of a WINDOW_UPDATE frame whose payload begins at `start`."""
    increment: int = _U32.unpack_from(data, start)[0] & WINDOW_MAX
    return increment


def error_code(data: bytes, start: int) -> int:
    """Read the reason of a RST_STREAM frame whose payload begins at `start`."""
    code: int = _U32.unpack_from(data, start)[0]
    return code


def read_goaway(data: bytes, start: int, stop: int) -> tuple[int, int, str]:
    """Read a GOAWAY frame. Returns: the last stream that is served, the reason, and more about it."""
    last_id, code = _TWO_WORDS.unpack_from(data, start)
    return last_id & WINDOW_MAX, code, data[start + 8 : stop].decode(errors="backslashreplace")


def read_settings(payload: bytes) -> dict[int, int]:
    """Read a SETTINGS frame whose length was checked; the last value of a setting counts.

    Raises: ConnectionFault: a value is out of range.
    """
    found: dict[int, int] = {}
    for key, value in _SETTING.iter_unpack(payload):
        if key == Setting.ENABLE_PUSH and value > 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"ENABLE_PUSH of {value}")
        if key == Setting.INITIAL_WINDOW_SIZE and value > WINDOW_MAX:
            raise ConnectionFault(
                ErrorCode.FLOW_CONTROL_ERROR, f"INITIAL_WINDOW_SIZE of {value} bytes"
            )
        if key == Setting.MAX_FRAME_SIZE and not _FRAME_BYTES_LEAST <= value <= _FRAME_BYTES_MOST:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"MAX_FRAME_SIZE of {value} bytes")
        found[key] = value
    return found


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Build a frame."""
    return pack_head(len(payload) << 8 | kind, flags, stream_id) + payload


def settings(values: dict[int, int]) -> bytes:
    """Build a SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*one) for one in values.items()))


def window_update(stream_id: int, increment: int) -> bytes:
    """Build a WINDOW_UPDATE frame; stream 0 is the connection."""
    return _RESET.pack(4 << 8 | WINDOW_UPDATE, 0, stream_id, increment)


def reset(stream_id: int, code: int) -> bytes:
    """Build a RST_STREAM frame."""
    return _RESET.pack(4 << 8 | RST_STREAM, 0, stream_id, code)


def goaway(last_id: int, code: int, text: str = "") -> bytes:
    """Build a GOAWAY frame; streams above `last_id` were not and will not be processed."""
    return frame(GOAWAY, 0, 0, _TWO_WORDS.pack(last_id, code) + text.encode())


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Bounds of a server and its connections."""

    stall_s: float = 60.0
    """Seconds that a response may wait for its caller to take it, or an open call for its first message."""

    ping_every_s: float = 20.0
    """Seconds of silence after which the server pings. Callers may be far away, and slow. But once their
    machine is gone, they must not hold calls, spools and memory indefinitely."""

    ping_timeout_s: float = 30.0
    """Seconds without any answer after which the connection counts as broken. A ping waits for the content
    ahead of it, so this covers a slow link."""

    handshake_s: float = 20.0
    """Seconds for the preface of HTTP/2 to arrive."""

    close_s: float = 5.0
    """Seconds for a client to take the last bytes of a connection that the server closes."""

    squeeze_s: float = 10.0
    """Seconds for which a connection may stand still because of its unread messages. Then the call with
    most of them ends: it may hold up the call that would read on."""

    streams: int = 16_384
    """Calls that a connection may have open. A client that tails ten thousand journals needs as many."""

    header_list_bytes: int = 16_384
    """Size of a header list by the rule of RFC 7541, which adds 32 bytes for each field; and of its block."""

    continuations: int = 16
    """CONTINUATION frames that a block may have."""

    noise: int = 10_000
    """Frames without use: PING, SETTINGS, PRIORITY, empty DATA, tiny WINDOW_UPDATE and unknown ones. The
    count halves each second. A client with one ping on the way may send some thousands a second on one
    machine, so its pings do not count while it receives messages."""

    resets: int = 2_000
    """Calls that a client takes back in the second in which it began them, or breaks; the count halves
    each second. A client that cancels ten thousand tails at its end is not meant."""

    frame_bytes: int = 1 << 20
    """Largest frame that a client may send."""

    stream_window: int = READ_AHEAD_BYTES
    """Bytes that a client may send ahead of the handler of a call."""

    connection_bytes: int = 64 << 20
    """Unread bytes and flow-control credit of a connection together. Sixteen calls have room for all that
    they may send ahead."""

    process_bytes: int = 256 << 20
    """Unread bytes of all connections together, with what their objects take, above which those that bring
    more are not read."""

    @property
    def sweep_s(self) -> float:
        """Seconds between two looks at all connections: a second, or less where a limit needs it."""
        return min(1.0, self.stall_s / 4, self.ping_every_s / 4, self.ping_timeout_s / 4)


LIMITS = Limits()
"""Of a server that is not given others."""

PEER_LIMITS = Limits(
    noise=1_000_000, resets=1_000_000, stream_window=1 << 20, connection_bytes=1 << 30
)
"""Of what a channel receives. It chose whom to call, so floods are not a concern. A call whose caller has stopped
holds two messages of the usual size; eight times as much was no faster when measured over loopback. The
connection has room for a thousand of them: a call that is not read must delay no other."""

CLIENT_LIMITS = replace(PEER_LIMITS, stream_window=2 << 20)
"""Of what a client receives. Brokers may be far away: with 50 ms between them, a read comes at 40 MB/s. A window
of 8 MiB costs half as much CPU again over loopback, as content leaves the processor's caches before it is read."""


REPORT_BYTES: Final = 1 << 20
"""A connection reports its unread bytes whenever they have changed by so much."""


class Reader(Protocol):
    """A connection, as the budget knows it."""

    def hold(self, *, is_held: bool) -> None:
        """Read nothing, or go on."""


@final
class UnreadBudget:
    """Unread bytes of all connections. Above the limit, those that bring more are not read.

    Attributes:
        total: bytes, less what connections have not reported yet.
    """

    def __init__(self, bytes_max: int) -> None:
        self.total = 0
        self._bytes_max = bytes_max
        self._waiting: set[Reader] = set()

    def report(self, connection: Reader, change: int) -> None:
        """Count a change. A connection that goes beyond the budget is held until there is room again."""
        self.total += change
        if change > 0:
            if self.total > self._bytes_max:
                self._waiting.add(connection)
                connection.hold(is_held=True)
        elif self._waiting and self.total < self._bytes_max - (self._bytes_max >> 2):
            waiting, self._waiting = self._waiting, set()
            for each in waiting:
                each.hold(is_held=False)

    def forget(self, connection: Reader, reported: int) -> None:
        """A connection has ended."""
        self._waiting.discard(connection)
        self.report(connection, -reported)
