"""The client's side of a connection of HTTP/2, without I/O, clock or tasks."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from gazette_platform.serving.h2 import frames
from gazette_platform.serving.h2.answers import Answer, read_answer
from gazette_platform.serving.h2.endpoint import Endpoint
from gazette_platform.serving.h2.frames import ErrorCode, Setting, StreamFault
from gazette_platform.serving.h2.hpack import Decoder, HeaderListTooLarge
from gazette_platform.serving.h2.responses import Status

if TYPE_CHECKING:
    from gazette_platform.serving.h2.limits import Limits
    from gazette_platform.serving.h2.stream import Stream

__all__ = ["ClientMachine"]

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
        self.is_greeted = True  # a server's first frame is its preface
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
