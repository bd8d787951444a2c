"""The client's side of a connection of HTTP/2, without I/O, clock or tasks.

It has what a client sends to begin a call, and what the headers and trailers of an answer say.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_to_bytes

from typing_extensions import override

from gazette_platform.serving.h2 import frames
from gazette_platform.serving.h2.endpoint import Endpoint
from gazette_platform.serving.h2.frames import ConnectionFault, ErrorCode, Setting, StreamFault
from gazette_platform.serving.h2.hpack import Decoder, HeaderListTooLarge, literal
from gazette_platform.serving.h2.responses import Status
from gazette_platform.serving.interface import NOT_HTTP2, SPEAKS_TLS, Code

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gazette_platform.serving.h2.frames import Limits
    from gazette_platform.serving.h2.hpack import Field
    from gazette_platform.serving.h2.stream import Stream


_CODES: Final = {status.value: Code[status.name] for status in Status if status is not Status.OK}
_CONTENT_TYPE: Final = re.compile(rb"application/grpc(?:[+;].*)?", re.DOTALL)
_PSEUDO_POST: Final = b"\x83"
# Alerts and handshakes; a version follows, whose first byte is 3.
_TLS_RECORDS: Final = frozenset((0x15, 0x16))
_SCHEMES: Final = {False: b"\x86", True: b"\x87"}  # http, https
_TIMEOUT_MS_MAX: Final = 10**8 - 1

# By gRPC's rules for answers that are none of gRPC.
_HTTP_CODES: Final = {
    400: Code.INTERNAL,
    401: Code.UNAUTHENTICATED,
    403: Code.PERMISSION_DENIED,
    404: Code.UNIMPLEMENTED,
    429: Code.UNAVAILABLE,
    502: Code.UNAVAILABLE,
    503: Code.UNAVAILABLE,
    504: Code.UNAVAILABLE,
}
# By gRPC's rules for RST_STREAM; others are INTERNAL. With REFUSED_STREAM, a call was not processed.
_RESET_CODES: Final = {
    ErrorCode.REFUSED_STREAM: Code.UNAVAILABLE,
    ErrorCode.CANCEL: Code.CANCELLED,
    ErrorCode.ENHANCE_YOUR_CALM: Code.RESOURCE_EXHAUSTED,
    ErrorCode.INADEQUATE_SECURITY: Code.PERMISSION_DENIED,
}


def _foreign(data: bytes) -> str:
    """Return what another program speaks that answers in place of a server of HTTP/2."""
    if data.startswith(b"HTTP/"):
        return f"it speaks HTTP/1, {NOT_HTTP2}"
    if data[0] in _TLS_RECORDS and data[1:2] == b"\x03":
        return SPEAKS_TLS
    return f"its answer is {NOT_HTTP2}"


@dataclass(frozen=True, slots=True)
class Answer:
    """Headers or trailers."""

    metadata: Mapping[str, str]
    status: tuple[Code | None, str] | None = None
    """Code and text, if the call has ended; the code of success is None."""
    is_interim: bool = False
    """Whether it says nothing, and another one follows."""


def code_of(number: int) -> Code:
    """Return gRPC's code of a number; UNKNOWN if we have no name for it."""
    return _CODES.get(number, Code.UNKNOWN)


def code_of_reset(error_code: int) -> Code:
    """Return the code of a call whose stream was reset."""
    return _RESET_CODES.get(error_code, Code.INTERNAL)


def request_block(
    path: str, authority: str, *, is_secure: bool, metadata: Sequence[tuple[str, str]]
) -> bytes:
    """Build the headers of a call, without its deadline."""
    fields = (
        (":path", path),
        (":authority", authority),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", "gazette-platform"),
        *metadata,
    )
    return b"".join(
        (
            _PSEUDO_POST,
            _SCHEMES[is_secure],
            *(literal(name.encode(), value.encode()) for name, value in fields),
        )
    )


def timeout_field(timeout_s: float) -> bytes:
    """Build the deadline of a call."""
    ms = min(max(1, int(timeout_s * 1000)), _TIMEOUT_MS_MAX)
    return literal(b"grpc-timeout", b"%dm" % ms)


def read_answer(fields: Iterable[Field], *, is_first: bool, is_last: bool) -> Answer:
    """Read headers or trailers.

    Args:
        is_first: whether they are the headers.
        is_last: whether they end the call.
    """
    found = dict(fields)
    if is_first:
        http = found.pop(b":status", b"")
        if http[:1] == b"1" and not is_last:
            return Answer({}, is_interim=True)
        is_grpc = _CONTENT_TYPE.fullmatch(found.pop(b"content-type", b""))
        if (http != b"200" or not is_grpc) and b"grpc-status" not in found:
            status = int(http) if len(http) == 3 and http.isdigit() else 0
            text = f"the answer is none of gRPC: HTTP status {status}"
            return Answer({}, (_HTTP_CODES.get(status, Code.UNKNOWN), text))
    number = found.pop(b"grpc-status", None)
    text = unquote_to_bytes(found.pop(b"grpc-message", b"")).decode(errors="replace")
    metadata = {
        name.decode(errors="replace"): value.decode(errors="replace")
        for name, value in found.items()
    }
    if not is_last:
        return Answer(metadata)
    if number is None or not number.isdigit() or len(number) > 3:
        return Answer(metadata, (Code.UNKNOWN, "the call ended without a status"))
    return Answer(metadata, (None if number == b"0" else code_of(int(number)), text))


_BLOCKS_MAX: Final = 256
_BLOCK_BYTES_MAX: Final = 1024


class ClientMachine(Endpoint):
    """The client's side of one connection.

    Attributes:
        streams_max: calls that the server lets us have open.
        is_going: whether no new calls may begin.
        why: the server's reason, if it gave another than that it leaves.
    """

    def __init__(self, limits: Limits, message_bytes_max: int) -> None:
        super().__init__(limits, message_bytes_max)
        self.streams_max = frames.WINDOW_MAX
        self.is_going = False
        self.why = ""
        self._hpack = Decoder(limits.header_list_bytes)
        self._known: dict[tuple[bytes, bool, bool], Answer] = {}

    # ------------------------------------------------------------------------------------- hooks
    @abstractmethod
    def on_ready(self) -> None:
        """The server has sent its settings."""

    @abstractmethod
    def on_answer(self, stream: Any, answer: Answer) -> None:
        """Headers or trailers came."""

    @abstractmethod
    def on_reset(self, stream: Any, code: int) -> None:
        """The server has reset a stream."""

    @abstractmethod
    def on_going(self) -> None:
        """No new calls may begin: the server wants none, or there are no more ids."""

    @abstractmethod
    def on_unserved(self, stream: Any) -> None:
        """The server has not processed a stream, and will not."""

    # ------------------------------------------------------------------------------------ output
    def greet(self) -> None:
        """Say what we allow; the first thing on a connection."""
        limits = self.limits
        self.put(frames.PREFACE)
        self.put_settings(
            {
                Setting.ENABLE_PUSH: 0,
                Setting.INITIAL_WINDOW_SIZE: limits.stream_window,
                Setting.MAX_FRAME_SIZE: limits.frame_bytes,
                Setting.MAX_HEADER_LIST_SIZE: limits.header_list_bytes,
            }
        )

    @property
    def has_room_for_streams(self) -> bool:
        """Whether the server takes another call."""
        return not self.is_going and not self.is_over and len(self.streams) < self.streams_max

    def next_id(self) -> int:
        """Return the id of a new stream."""
        stream_id = self._ids.last + 2
        self._ids.open(stream_id)
        if stream_id >= frames.WINDOW_MAX - 1:
            self.is_going = True
            self.on_going()
        return stream_id

    def put_headers(self, stream_id: int, block: bytes, *, is_last: bool) -> None:
        """Begin a stream."""
        end = frames.END_STREAM if is_last else 0
        size = self.peer_frame
        if len(block) <= size:
            self.put(frames.frame(frames.HEADERS, end | frames.END_HEADERS, stream_id, block))
            return
        pieces = [block[at : at + size] for at in range(0, len(block), size)]
        for number, piece in enumerate(pieces):
            kind = frames.CONTINUATION if number else frames.HEADERS
            flags = (0 if number else end) | (
                frames.END_HEADERS if number == len(pieces) - 1 else 0
            )
            self.put(frames.frame(kind, flags, stream_id, piece))

    def finish(self, stream: Stream, *, is_sent: bool) -> None:
        """Forget a stream that the server has ended. What it sent can still be taken.

        Args:
            is_sent: whether we have ended our side.
        """
        if not is_sent:
            self.put(frames.reset(stream.id, ErrorCode.CANCEL))
        messages, stream.messages = stream.messages, deque()
        self._forget(stream)
        stream.messages = messages

    # ------------------------------------------------------------------------------------- input
    @property
    @override
    def is_drained(self) -> bool:
        return self.is_going

    @property
    @override
    def _last_id(self) -> int:
        return 0  # servers open no streams

    @override
    def _preface(self, data: bytes) -> int:
        # A server's first frame is its SETTINGS, shorter than 64 KiB. What other programs say is text, a record
        # of TLS, or a greeting of their own; its first bytes would pass for the length of a huge frame.
        if data[0]:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, _foreign(data))
        self.is_greeted = True
        return 0

    @override
    def _check_late(self, stream_id: int, what: str) -> None:
        # What is on its way when a call is cancelled comes later, however many were.
        self._ids.check_begun(stream_id, what)

    @override
    def _check_reset(self, stream_id: int) -> None:
        self._ids.check_begun(stream_id, "RST_STREAM")

    @override
    def _gone(self, stream: Stream, code: int) -> None:
        if code == ErrorCode.REFUSED_STREAM:
            self.on_unserved(stream)
        else:
            self.on_reset(stream, code)

    @override
    def _settled(self, found: dict[int, int]) -> None:
        self.streams_max = found.get(Setting.MAX_CONCURRENT_STREAMS, self.streams_max)
        self.on_ready()

    @override
    def _pong(self, payload: bytes) -> None:
        pass

    @override
    def _going(self, last_id: int, code: int, text: str) -> None:
        if code != ErrorCode.NO_ERROR:
            self.why = f"GOAWAY received; Error code: {code}; Debug Text: {text}"
        self.is_going = True
        self.on_going()
        for stream in [stream for stream_id, stream in self.streams.items() if stream_id > last_id]:
            self._forget(stream)
            self.on_unserved(stream)
        if not self.streams:
            self.on_idle()

    @override
    def _whole_block(self, stream_id: int, flags: int, block: bytes) -> None:
        stream = self.streams.get(stream_id)
        is_last = bool(flags & frames.END_STREAM)
        is_first = stream is not None and not stream.is_greeted
        key = block, is_first, is_last
        answer = self._known.get(key)
        if answer is None:
            try:
                fields = self._hpack.decode(block)
            except HeaderListTooLarge:
                fields = None
            if self._hpack.is_changed:
                self._known.clear()
            if stream is not None and fields is None:
                text = f"the metadata is larger than {self.limits.header_list_bytes} bytes"
                self.on_broken(stream, Status.RESOURCE_EXHAUSTED, text)
                return
            answer = read_answer(fields or (), is_first=is_first, is_last=is_last)
            if not self._hpack.is_changed and len(block) <= _BLOCK_BYTES_MAX:
                if len(self._known) >= _BLOCKS_MAX:
                    self._known.clear()
                self._known[key] = answer
        if stream is None:
            self._check_late(stream_id, "HEADERS")
            return
        if answer.is_interim:
            return
        if not is_first and not is_last:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR)
        stream.is_greeted = True
        if is_last and stream.is_within_message:
            self.on_broken(stream, Status.INTERNAL, "the stream ended within a message")
        else:
            self.on_answer(stream, answer)

    @override
    def _end(self, stream: Stream) -> None:
        """A server ends a stream by trailers, not by DATA."""
        if not stream.is_closed:
            self.on_broken(stream, Status.INTERNAL, "the stream ended without a status")
