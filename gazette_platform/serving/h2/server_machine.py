"""The server's side of a connection of HTTP/2, without I/O, clock or tasks.

| event | stream is open | ended by the client | idle | reset by us | closed otherwise |
|---|---|---|---|---|---|
| HEADERS | trailers, which must end it | STREAM_CLOSED | opens it | ignored | STREAM_CLOSED; skipped id: PROTOCOL_ERROR |
| DATA | body | STREAM_CLOSED | PROTOCOL_ERROR | ignored | STREAM_CLOSED |
| RST_STREAM | is gone | is gone | ignored | ignored | ignored |
| WINDOW_UPDATE | credit | credit | PROTOCOL_ERROR | ignored | ignored |
| PRIORITY | ignored | ignored | ignored | ignored | ignored |

A block of headers becomes a request by the rules of RFC 9113, section 8, and of gRPC over HTTP/2. A client's
calls differ in little, so most blocks are equal to an earlier one and mean the same, as long as the dynamic
table of HPACK is unchanged. The deadline differs from call to call and changes the table, so requests are
also remembered by their other fields.

Source: RFC 9113, sections 5.1 and 6.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from typing_extensions import override

from gazette_platform.serving.h2 import frames, responses
from gazette_platform.serving.h2.endpoint import Endpoint
from gazette_platform.serving.h2.frames import ConnectionFault, ErrorCode, Setting, StreamFault
from gazette_platform.serving.h2.hpack import Decoder, Field, HeaderListTooLarge
from gazette_platform.serving.h2.responses import Status
from gazette_platform.serving.h2.stream import ENCODINGS, Stream

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gazette_platform.serving.h2.frames import Limits

_PSEUDO: Final = frozenset((b":method", b":scheme", b":path", b":authority"))
_REQUIRED: Final = frozenset((b":method", b":scheme", b":path"))
_OF_CONNECTIONS: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)
# The transport uses these itself.
_OURS: Final = frozenset(
    (
        b"content-type",
        b"content-length",
        b"te",
        b"grpc-timeout",
        b"grpc-encoding",
        b"grpc-accept-encoding",
    )
)
_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
# RFC 9113 forbids blanks around a value, too. gRPC's servers take them: who sends an empty token is to be
# answered so, and not with a reset of the stream.
_BAD_VALUE: Final = re.compile(rb"[\0\r\n]")
_CONTENT_TYPE: Final = re.compile(rb"application/grpc(?:[+;].*)?", re.DOTALL)

# Bytes that the objects of a field take beside its text, and that a usual call's metadata takes in all.
_FIELD_COST: Final = 128
_USUAL_BYTES: Final = 4096

_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNITS_S: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}


class Malformed(Exception):
    """A request that breaks the rules of HTTP/2."""


class BadTimeout(Exception):
    """A ``grpc-timeout`` that is none."""


@dataclass(frozen=True, slots=True)
class Request:
    """A call, as its headers ask for it."""

    path: bytes
    metadata: Mapping[str, str]
    content_length: int | None = None
    """Bytes of the body, if the client says so."""
    encoding: bytes = b""
    """How messages may be compressed; empty: in no way that we know."""
    http_status: int = 200
    """Another one refuses what is not a call of gRPC."""
    extra_bytes: int = 0
    """Memory that its metadata takes as long as the call is open, beyond what is usual."""


def is_timeout(field: Field) -> bool:
    """Say whether a field is the deadline, which differs from call to call."""
    return field[0] == b"grpc-timeout"


def read_timeout(value: bytes) -> float:
    """Read a ``grpc-timeout``. Returns: seconds. Raises: BadTimeout."""
    found = _TIMEOUT.fullmatch(value)
    if found is None:
        raise BadTimeout
    return int(found[1]) * _UNITS_S[found[2]]


def read_request(fields: Iterable[Field]) -> Request:
    """Read the headers of a request.

    Raises: Malformed: it breaks a rule of RFC 9113.
    """
    pseudo: dict[bytes, bytes] = {}
    regular: dict[bytes, bytes] = {}
    for field in fields:
        name, value = field
        if name[:1] == b":":
            if regular or name in pseudo or name not in _PSEUDO:
                raise Malformed
            pseudo[name] = value
        else:
            _check_regular(name, value)
            # gRPC takes values of one name that are joined by commas for several.
            regular[name] = regular[name] + b"," + value if name in regular else value
        if _BAD_VALUE.search(value):
            raise Malformed
    path = pseudo.get(b":path")
    if not path or not pseudo.keys() >= _REQUIRED:
        raise Malformed
    encoding = regular.get(b"grpc-encoding", b"")
    return Request(
        path,
        {name.decode(): _text(value) for name, value in regular.items() if name not in _OURS},
        _content_length(regular.get(b"content-length")),
        encoding if encoding in ENCODINGS else b"",
        _http_status(pseudo[b":method"], regular.get(b"content-type", b"")),
        max(0, sum(_FIELD_COST + len(n) + len(v) for n, v in regular.items()) - _USUAL_BYTES),
    )


def check_trailers(fields: Iterable[Field]) -> None:
    """Check the fields that end a request. Raises: Malformed."""
    for name, value in fields:
        _check_regular(name, value)
        if _BAD_VALUE.search(value):
            raise Malformed


def _check_regular(name: bytes, value: bytes) -> None:
    if name in _OF_CONNECTIONS or not _NAME.fullmatch(name):
        raise Malformed
    if name == b"te" and value != b"trailers":
        raise Malformed


def _content_length(value: bytes | None) -> int | None:
    if value is None:
        return None
    if not value.isdigit() or len(value) > 18:
        raise Malformed
    return int(value)


def _http_status(method: bytes, content_type: bytes) -> int:
    if method != b"POST":
        return 405
    return 200 if _CONTENT_TYPE.fullmatch(content_type) else 415


def _text(value: bytes) -> str:
    """Decode a value; one that is not UTF-8 is neither a token nor a name."""
    return value.decode(errors="backslashreplace")


# So much is remembered: by a connection of blocks, and by a server of requests.
_BLOCKS_MAX: Final = 256
_BLOCK_BYTES_MAX: Final = 1024
_REQUESTS_MAX: Final = 1024
_REQUEST_BYTES_MAX: Final = 2048


class Wanted(NamedTuple):
    """A call that a block asks for."""

    request: Request
    timeout_s: float | None
    """Seconds until its deadline."""


class Refusal(NamedTuple):
    """A call that a block asks for, and that is refused."""

    number: int
    """Of gRPC's code."""
    text: str


@final
class Requests:
    """Requests by their fields; the connections of a server share them."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[tuple[Field, ...], Request] = {}

    def of(self, fields: tuple[Field, ...]) -> Request:
        """Read headers, without the deadline. Raises: Malformed."""
        request = self._known.get(fields)
        if request is None:
            request = read_request(fields)
            if sum(len(name) + len(value) for name, value in fields) <= _REQUEST_BYTES_MAX:
                if len(self._known) >= _REQUESTS_MAX:
                    self._known.clear()
                self._known[fields] = request
        return request


@final
class Blocks:
    """The blocks of one connection, in their order."""

    __slots__ = ("_hpack", "_known", "_list_bytes_max", "_requests")

    def __init__(self, list_bytes_max: int, requests: Requests) -> None:
        self._hpack = Decoder(list_bytes_max)
        self._list_bytes_max = list_bytes_max
        self._known: dict[bytes, Wanted] = {}
        self._requests = requests

    def read(self, block: bytes) -> Wanted | Refusal:
        """Read the headers of a request.

        Raises: ConnectionFault: the block cannot be decoded. Malformed: it breaks a rule of HTTP.
        """
        wanted = self._known.get(block)
        if wanted is not None:
            return wanted
        fields = self.decode(block)
        if fields is None:
            text = f"the metadata is larger than {self._list_bytes_max} bytes"
            return Refusal(Status.RESOURCE_EXHAUSTED, text)
        timeouts = [field for field in fields if is_timeout(field)]
        try:
            timeout_s = read_timeout(timeouts[-1][1]) if timeouts else None
        except BadTimeout:
            return Refusal(Status.INTERNAL, "malformed grpc-timeout")
        if timeouts:
            fields = [field for field in fields if not is_timeout(field)]
        wanted = Wanted(self._requests.of(tuple(fields)), timeout_s)
        if not self._hpack.is_changed and len(block) <= _BLOCK_BYTES_MAX:
            if len(self._known) >= _BLOCKS_MAX:
                self._known.clear()
            self._known[block] = wanted
        return wanted

    def decode(self, block: bytes) -> list[Field] | None:
        """Decode a block. Returns: None if its fields are larger than allowed. Raises: ConnectionFault."""
        try:
            return self._hpack.decode(block)
        except HeaderListTooLarge:
            return None
        finally:
            if self._hpack.is_changed:
                self._known.clear()


_DRAIN_PAYLOAD: Final = b"draining"


class Machine(Endpoint):
    """The server's side of one connection."""

    def __init__(self, limits: Limits, message_bytes_max: int, requests: Requests) -> None:
        super().__init__(limits, message_bytes_max)
        self._blocks = Blocks(limits.header_list_bytes, requests)
        self._goaway_id: int | None = None

    # ------------------------------------------------------------------------------------- hooks
    @abstractmethod
    def on_request(self, stream_id: int, request: Request, timeout_s: float | None) -> Any:
        """A client calls. Returns: its stream; None if the call was refused with `refuse`."""

    def greet(self) -> None:
        """Say what the server allows; the first thing on a connection."""
        limits = self.limits
        values = {
            Setting.MAX_CONCURRENT_STREAMS: limits.streams,
            Setting.INITIAL_WINDOW_SIZE: limits.stream_window,
            Setting.MAX_FRAME_SIZE: limits.frame_bytes,
            Setting.MAX_HEADER_LIST_SIZE: limits.header_list_bytes,
        }
        self.put_settings(values)

    def drain(self) -> None:
        """Ask the client for no more calls. Those that are on their way are served."""
        if self._goaway_id is None and not self.is_over:
            self._goaway_id = frames.WINDOW_MAX
            self.put(frames.goaway(frames.WINDOW_MAX, ErrorCode.NO_ERROR))
            self.put(frames.frame(frames.PING, 0, 0, _DRAIN_PAYLOAD))

    @property
    def is_draining(self) -> bool:
        """Whether the client was asked for no more calls."""
        return self._goaway_id is not None

    @property
    @override
    def is_drained(self) -> bool:
        """Whether the client knows that it is to open no more calls."""
        return self._goaway_id is not None and self._goaway_id != frames.WINDOW_MAX

    def end_drain(self) -> None:
        """Name the last call that is served; the client has answered, or had the time to."""
        if not self.is_drained and not self.is_over:
            self._goaway_id = self._last_id
            self.put(frames.goaway(self._last_id, ErrorCode.NO_ERROR))
            if not self.streams:
                self.on_idle()

    def refuse(self, stream_id: int, answer: bytes, *, is_ended: bool) -> None:
        """End a stream, whose last frame is `answer`; a client that still sends gets RST_STREAM."""
        self.put(answer)
        if not is_ended:
            self._reset(stream_id, ErrorCode.NO_ERROR)

    @property
    @override
    def _last_id(self) -> int:
        return max(self._ids.last, 0)

    @override
    def _preface(self, data: bytes) -> int:
        """Check how the connection begins. Returns: where its first frame does, if it has come."""
        expected = frames.PREFACE
        if data.startswith(expected):
            self.is_greeted = True
            return len(expected)
        if not expected.startswith(data):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "this port speaks HTTP/2 only")
        return 0

    @override
    def _whole_block(self, stream_id: int, flags: int, block: bytes) -> None:
        stream = self.streams.get(stream_id) or self._refused.get(stream_id)
        if stream is not None:
            self._trailers(stream, flags, block)
            return
        if stream_id <= self._ids.last:
            self._blocks.decode(block)
            self._check_late(stream_id, "HEADERS")
            return
        self._ids.open(stream_id)
        is_ended = bool(flags & frames.END_STREAM)
        try:
            wanted = self._blocks.read(block)
        except Malformed:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR) from None
        count = len(self.streams) + len(self._refused)
        if self.is_drained or count >= self.limits.streams:
            self._count_noise()
            self._reset(stream_id, ErrorCode.REFUSED_STREAM)
        elif wanted.__class__ is Refusal:
            self._count_noise()
            self._fail(stream_id, *wanted, is_ended=is_ended)
        else:
            self._open(stream_id, *wanted, is_ended=is_ended)

    def _open(
        self, stream_id: int, request: Request, timeout_s: float | None, *, is_ended: bool
    ) -> None:
        if request.http_status != 200:
            self._refuse_http(stream_id, request, is_ended=is_ended)
            return
        stream = self.on_request(stream_id, request, timeout_s)
        if stream is None:
            text = "Method not found!"
            self._fail(stream_id, responses.Status.UNIMPLEMENTED, text, is_ended=is_ended)
            return
        self.streams[stream_id] = stream
        stream.unread += request.extra_bytes
        self.unread += request.extra_bytes
        stream.body_left = request.content_length
        stream.encoding = request.encoding
        if is_ended:
            self._end(stream)

    def _refuse_http(self, stream_id: int, request: Request, *, is_ended: bool) -> None:
        """Answer what is not a call of gRPC. Clients of other kinds want their requests read to the end."""
        limits = self.limits
        stream = self._refused[stream_id] = Stream(
            stream_id,
            send_room=self.peer_window,
            recv_room=limits.stream_window,
            opened_at=self.swept_at,
        )
        stream.body_left = request.content_length
        stream.refusal = responses.http_refusal(stream_id, request.http_status)
        if is_ended:
            self._end(stream)

    def _fail(self, stream_id: int, number: int, text: str, *, is_ended: bool) -> None:
        answer = responses.failure(stream_id, number, text, is_greeted=False)
        self.refuse(stream_id, answer, is_ended=is_ended)

    def _trailers(self, stream: Stream, flags: int, block: bytes) -> None:
        fields = self._blocks.decode(block) or ()
        if stream.is_ended:
            raise StreamFault(stream.id, ErrorCode.STREAM_CLOSED)
        try:
            check_trailers(fields)
        except Malformed:
            raise StreamFault(stream.id, ErrorCode.PROTOCOL_ERROR) from None
        if not flags & frames.END_STREAM:
            raise StreamFault(stream.id, ErrorCode.PROTOCOL_ERROR)
        self._end(stream)

    @override
    def _check_late(self, stream_id: int, what: str) -> None:
        self._ids.check_dropped(stream_id, what)

    @override
    def _check_reset(self, stream_id: int) -> None:
        """Take it also of a stream that is idle.

        Envoy and older gRPC libraries take a call back so if its headers have not left yet, and all other calls
        of the connection must not end for that.
        """
        self._ids.check_odd(stream_id)

    @override
    def _pong(self, payload: bytes) -> None:
        if payload == _DRAIN_PAYLOAD and self.is_draining:
            self.end_drain()

    @override
    def _settled(self, _found: dict[int, int]) -> None:
        pass

    @override
    def _going(self, _last_id: int, _code: int, _text: str) -> None:
        """The client opens no more calls, and takes the answers to its last ones."""
