"""The server's side of a connection of HTTP/2, without I/O, clock or tasks.

| event | stream is open | ended by the client | idle | reset by us | closed otherwise |
|---|---|---|---|---|---|
| HEADERS | trailers, which must end it | STREAM_CLOSED | opens it | ignored | STREAM_CLOSED; skipped id: PROTOCOL_ERROR |
| DATA | body | STREAM_CLOSED | PROTOCOL_ERROR | ignored | STREAM_CLOSED |
| RST_STREAM | is gone | is gone | ignored | ignored | ignored |
| WINDOW_UPDATE | credit | credit | PROTOCOL_ERROR | ignored | ignored |
| PRIORITY | ignored | ignored | ignored | ignored | ignored |

Source: RFC 9113, sections 5.1 and 6.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from gazette_platform.serving.h2 import frames, responses
from gazette_platform.serving.h2.endpoint import Endpoint
from gazette_platform.serving.h2.frames import ConnectionFault, ErrorCode, Setting, StreamFault
from gazette_platform.serving.h2.requests import Blocks, Malformed, Refusal, check_trailers
from gazette_platform.serving.h2.stream import Stream

if TYPE_CHECKING:
    from gazette_platform.serving.h2.limits import Limits
    from gazette_platform.serving.h2.requests import Request, Requests

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
