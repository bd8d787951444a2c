"""One side of a connection of HTTP/2, without I/O, clock or tasks: what both sides have in common.

An endpoint takes what its peer sent (`receive`) and collects what is to be sent (`out`). For each event
that concerns a stream it invokes a hook, which a subclass has. A fault of the peer ends the stream, or the
connection with a GOAWAY, as RFC 9113 demands in sections 5.1 and 6.

Flow control has two levels. A stream gets new credit when its messages are taken, so one that is not read
stops its peer. The connection's credit and its unread content never exceed a budget together.

Long because the states of a connection and of its streams change together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Final

from gazette_platform.serving.h2 import frames, responses
from gazette_platform.serving.h2.frames import (
    ConnectionFault,
    ErrorCode,
    Setting,
    StreamFault,
    unpack_head,
)
from gazette_platform.serving.h2.responses import PREFIX_BYTES, unpack_prefix
from gazette_platform.serving.h2.stream import (
    MESSAGE_COST,
    Compressed,
    MessageRefused,
    Stream,
    StreamIds,
    inflate,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_platform.serving.h2.frames import Limits

_HEAD_BYTES: Final = 9
_DEFAULT_WINDOW: Final = 65_535
_DEFAULT_FRAME: Final = 16_384
# Larger frames would only hold up what else the connection has to send.
_SENT_FRAME_MAX: Final = 1 << 20
# A WINDOW_UPDATE of less is of little use.
_TINY_CREDIT: Final = 1024
_PING_PAYLOAD: Final = b"keepaliv"


class Endpoint(ABC):
    """One side. `receive` takes bytes; `out` collects those to send.

    Attributes:
        streams: those that are open, by id.
        out: pieces to send, in their order; whoever sends them calls `take_out`.
        out_bytes: how many bytes they have.
        send_room: bytes of DATA that the peer allows on the connection.
        peer_window: bytes that the peer allows on a new stream.
        peer_frame: largest frame to send.
        unread: bytes received of messages that were not taken, with their `MESSAGE_COST`.
        swept_at: the time that the last `decay` was given.
        is_greeted: whether the peer has sent its preface; that of a server is its SETTINGS.
        is_over: whether a fault has ended the connection.
        has_sent: whether messages were sent since the last PING of the peer.
    """

    def __init__(self, limits: Limits, message_bytes_max: int) -> None:
        self.limits = limits
        self.streams: dict[int, Any] = {}
        self.out: list[bytes | memoryview] = []
        self.out_bytes = 0
        self.send_room = self.peer_window = _DEFAULT_WINDOW
        self.peer_frame = _DEFAULT_FRAME
        self.unread = 0
        self.recv_room = limits.connection_bytes
        self.swept_at = 0.0
        self.is_greeted = self.is_over = self.has_sent = False
        self._is_announced = False
        self._message_bytes_max = message_bytes_max
        self._recv_low = limits.connection_bytes // 2
        self._stream_low = limits.stream_window >> 2
        self._ids = StreamIds()
        # Of requests that are not calls; only a server has them.
        self._refused: dict[int, Stream] = {}
        self._tail = b""
        # The rest of a DATA frame, or of one that is skipped: content, what follows it, stream and flags.
        self._left = self._pad = self._left_flags = 0
        self._left_stream: Stream | None = None
        # A block that CONTINUATION frames go on with: stream, flags, pieces.
        self._block: tuple[int, int, list[bytes]] | None = None
        self._is_settled = False
        self._noise = self._resets = 0

    @abstractmethod
    def on_progress(self, stream: Any) -> None:
        """Messages were received, or the peer ended its side."""

    @abstractmethod
    def on_broken(self, stream: Any, number: int, text: str) -> None:
        """What was received makes the call fail with this status."""

    @abstractmethod
    def on_gone(self, stream: Any) -> None:
        """The peer, or a fault of it, has ended the stream."""

    @abstractmethod
    def on_room(self, stream: Any) -> None:
        """The peer takes more DATA, on this stream, or on the connection (None)."""

    @abstractmethod
    def on_idle(self) -> None:
        """The connection is drained, and its last call has ended."""

    @abstractmethod
    def on_output(self) -> None:
        """There is something in `out`, or soon will be, for the first time since `take_out`."""

    def on_confirmed(self) -> None:  # noqa: B027  a server does not ask for it
        """The peer has confirmed our settings, so it reads what we send."""

    # ------------------------------------------------------------- what depends on the side
    @property
    @abstractmethod
    def is_drained(self) -> bool:
        """Whether no more calls will be opened."""

    @property
    @abstractmethod
    def _last_id(self) -> int:
        """The peer's last stream, as a GOAWAY has it."""

    @abstractmethod
    def _preface(self, data: bytes) -> int:
        """Check how the connection begins. Returns: where its first frame does, if it has come."""

    @abstractmethod
    def _whole_block(self, stream_id: int, flags: int, block: bytes) -> None:
        """Take a block of headers."""

    @abstractmethod
    def _check_late(self, stream_id: int, what: str) -> None:
        """Check a frame of a stream that is not open. Raises: ConnectionFault."""

    @abstractmethod
    def _check_reset(self, stream_id: int) -> None:
        """Check a RST_STREAM of a stream that is not open. Raises: ConnectionFault."""

    def _gone(self, stream: Stream, _code: int) -> None:
        """The peer has reset a stream."""
        if not stream.refusal:
            self.on_gone(stream)

    @abstractmethod
    def _settled(self, found: dict[int, int]) -> None:
        """The peer has sent these settings."""

    @abstractmethod
    def _pong(self, payload: bytes) -> None:
        """The peer has answered a ping."""

    @abstractmethod
    def _going(self, last_id: int, code: int, text: str) -> None:
        """The peer has sent a GOAWAY."""

    # ------------------------------------------------------------------------------------ output
    def put(self, piece: bytes) -> None:
        """Send a piece."""
        if not self._is_announced:
            self.announce()
        self.out.append(piece)
        self.out_bytes += len(piece)

    def put_message(self, head: bytes, raw: bytes | memoryview) -> None:
        """Send what is, or is part of, a message, without copying it."""
        if not self._is_announced:
            self.announce()
        self.has_sent = True
        self.out += (head, raw)
        self.out_bytes += len(head) + len(raw)

    def announce(self) -> None:
        """Have `on_output` called, unless it was since `take_out`: there is something in `out`, or soon will be."""
        if not self._is_announced:
            self._is_announced = True
            self.on_output()

    def take_out(self) -> list[bytes | memoryview]:
        """Take all pieces that were collected."""
        out, self.out = self.out, []
        self.out_bytes = 0
        self._is_announced = False
        return out

    def put_settings(self, values: dict[int, int]) -> None:
        """Say what we allow."""
        more = self.limits.connection_bytes - _DEFAULT_WINDOW
        self.put(frames.settings(values) + frames.window_update(0, more))

    def ping(self) -> None:
        """Ask the peer whether it is alive; whatever it sends next says so."""
        self.put(frames.frame(frames.PING, 0, 0, _PING_PAYLOAD))

    def close(self, stream: Stream) -> None:
        """Forget a stream that is over; the peer need not have ended its side."""
        if stream.is_closed:
            return
        self._forget(stream)
        if not stream.is_ended:
            self._reset(stream.id, ErrorCode.NO_ERROR)

    def cancel(self, stream: Stream, code: int = ErrorCode.CANCEL) -> None:
        """End a stream without an answer."""
        if not stream.is_closed:
            self._forget(stream)
            self._reset(stream.id, code)

    def _reset(self, stream_id: int, code: int) -> None:
        self.put(frames.reset(stream_id, code))
        self._ids.drop(stream_id)

    def _forget(self, stream: Stream) -> None:
        stream.is_closed = True
        self.streams.pop(stream.id, None)
        if stream.refusal:
            del self._refused[stream.id]
        if stream.unread:
            self.unread -= stream.unread
            stream.unread = 0
            stream.messages.clear()
        if self.recv_room < self._recv_low:
            self._credit()
        if not self.streams and self.is_drained:
            self.on_idle()

    # ------------------------------------------------------------------------------ flow control
    def take(self, stream: Stream) -> bytes:
        """Take the first message of a stream, and give its peer credit for it.

        Raises: MessageRefused: it cannot be inflated.
        """
        message = stream.messages.popleft()
        if not stream.is_closed:
            size = len(message) + PREFIX_BYTES
            stream.unread -= size + MESSAGE_COST
            self.unread -= size + MESSAGE_COST
            stream.unacked += size
            if stream.unacked >= self._stream_low and not stream.is_ended:
                self._credit_stream(stream)
            if self.recv_room < self._recv_low:
                self._credit()
        if message.__class__ is Compressed:
            return inflate(message, stream.encoding, self._message_bytes_max)
        return message

    def take_all(self, stream: Stream) -> list[bytes] | None:
        """Take all messages of a stream that its peer has ended; None, and none, if one is compressed."""
        messages = self.all_of(stream)
        if messages is not None:
            self.drop_all(stream)
        return messages

    def all_of(self, stream: Stream) -> list[bytes] | None:
        """Look at all messages of a stream without taking them; None if one is compressed."""
        messages = list(stream.messages)
        return None if Compressed in map(type, messages) else messages

    def drop_all(self, stream: Stream) -> None:
        """Take all messages of a stream that its peer has ended, as `all_of` has shown them."""
        stream.messages.clear()
        self.unread -= stream.unread
        stream.unread = 0
        if self.recv_room < self._recv_low:
            self._credit()

    def _credit_stream(self, stream: Stream) -> None:
        if stream.lent:
            repaid = min(stream.lent, stream.unacked)
            stream.lent -= repaid
            stream.unacked -= repaid
        if stream.unacked >= self._stream_low:
            stream.recv_room += stream.unacked
            self.put(frames.window_update(stream.id, stream.unacked))
            stream.unacked = 0

    def _credit(self) -> None:
        """Let the peer send more on the connection, up to the budget."""
        budget = self.limits.connection_bytes
        credit = budget - self.recv_room - self.unread
        # Little by little if there is little left: a call that is read may need no more.
        if credit >= (budget >> 2 if self.recv_room > budget >> 4 else budget >> 6):
            self.recv_room += credit
            self.put(frames.window_update(0, credit))

    def _lend(self, stream: Stream) -> None:
        """Give credit for a message that is larger than the window: else it would never be whole."""
        lacking = stream.missing - stream.recv_room
        if stream is self._left_stream:
            lacking -= self._left
        if lacking > 0:
            stream.recv_room += lacking
            stream.lent += lacking
            self.put(frames.window_update(stream.id, lacking))

    # ------------------------------------------------------------------------------------- input
    def receive(self, data: bytes) -> None:
        """Take what the peer sent; frames may be cut anywhere."""
        if self.is_over:
            return
        try:
            self._receive(data)
        except ConnectionFault as fault:
            self.end(fault.code, str(fault))

    def place(self) -> memoryview | None:
        """Return where the bytes that come next belong, as a large message goes on; None: they are for `receive`."""
        stream, left = self._left_stream, self._left
        if not left or stream is None or stream.is_closed or self.is_over:
            return None
        return stream.place(left)

    def filled(self, size: int) -> None:
        """Take bytes that are where `place` said."""
        stream = self._left_stream
        assert stream is not None
        self._left -= size
        try:
            if stream.filled(size):
                self._count_messages(stream, 1)
            if not self._left and not self._pad:
                self._end_frame()
        except ConnectionFault as fault:
            self.end(fault.code, str(fault))

    def end(self, code: int, text: str) -> None:
        """End the connection for a fault."""
        self.is_over = True
        self.put(frames.goaway(self._last_id, code, text))

    def decay(self, now: float) -> None:
        """Forgive half of the peer's noise; called about once a second."""
        self.swept_at = now
        self._noise >>= 1
        self._resets >>= 1
        for stream in tuple(self._refused.values()):
            if now - stream.opened_at > self.limits.stall_s:
                self.cancel(stream)

    def _receive(self, data: bytes) -> None:
        at = 0
        if self._left or self._pad:
            at = self._resume(data)
        elif self._tail:
            data = self._tail + data
            self._tail = b""
        if not self.is_greeted:
            at = self._preface(data)
        end = len(data)
        while end - at >= _HEAD_BYTES and self.is_greeted:
            head, flags, stream_id = unpack_head(data, at)
            start = at + _HEAD_BYTES
            stop = start + (head >> 8)
            stream_id &= frames.WINDOW_MAX
            is_whole_data = head & 0xFF == frames.DATA and stop <= end
            if not (
                is_whole_data and self._simple(flags, stream_id, data, start, stop)
            ) and not self._frame(head, flags, stream_id, data, start):
                break
            at = stop
        if at < end:
            self._tail = data[at:] if at else data

    def _frame(self, head: int, flags: int, stream_id: int, data: bytes, start: int) -> bool:
        """Take a frame, perhaps before all of it has come. Returns: whether enough of it has."""
        length, kind = head >> 8, head & 0xFF
        stop, end = start + length, len(data)
        try:
            self._check(kind, flags, stream_id, length)
            if kind == frames.DATA:
                if flags & frames.PADDED and start == end and length:
                    return False  # how much is padding is yet to come
                self._data(flags, stream_id, data, start, stop)
            elif kind >= frames.KNOWN_KINDS:
                self._skip(max(0, stop - end))
            elif stop > end:
                return False
            else:
                self._HANDLERS[kind](self, flags, stream_id, data, start, stop)
        except StreamFault as fault:
            self._on_stream_fault(fault)
            if stop > end:
                self._skip(stop - end)
        return True

    def _check(self, kind: int, flags: int, stream_id: int, length: int) -> None:
        """Check the head of a frame. Raises: ConnectionFault, StreamFault."""
        if length > self.limits.frame_bytes:
            text = f"a frame of {length} bytes"
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, text)
        if self._block is not None and (kind != frames.CONTINUATION or stream_id != self._block[0]):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a block of headers was interrupted")
        if not self._is_settled and (kind != frames.SETTINGS or flags & frames.ACK):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "SETTINGS must come first")
        if kind <= frames.HEADERS and stream_id and length <= self.limits.header_list_bytes:
            return
        if kind < frames.KNOWN_KINDS:
            frames.check_frame(kind, flags, stream_id, length)
            if kind != frames.DATA and length > self.limits.header_list_bytes:
                # Frames of these kinds are gathered whole.
                raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, f"a frame of {length} bytes")

    def _on_stream_fault(self, fault: StreamFault) -> None:
        # Peers can have us reset streams as well as reset them; both cost the same.
        self._count_reset()
        stream = self.streams.get(fault.stream_id) or self._refused.get(fault.stream_id)
        if stream is None:
            self._reset(fault.stream_id, fault.code)
            return
        self.cancel(stream, fault.code)
        if not stream.refusal:
            self.on_gone(stream)

    def _count_noise(self, weight: int = 1) -> None:
        self._noise += weight
        if self._noise > self.limits.noise:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many frames without use")

    def _count_reset(self) -> None:
        self._resets += 1
        if self._resets > self.limits.resets:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many calls were taken back")

    # -------------------------------------------------------------------------------------- DATA
    def _simple(self, flags: int, stream_id: int, data: bytes, start: int, stop: int) -> bool:
        """Take a DATA frame that is one whole message, or just the end of the stream, as most are.

        It does what `_check`, `_data` and `Stream.feed` would, for a third of the cost.

        Returns: whether it did; if not, nothing was changed.
        """
        stream, length = self.streams.get(stream_id), stop - start
        if (
            stream is None
            or flags > frames.END_STREAM
            or length > self.recv_room
            or length > stream.recv_room
            or length > self.limits.frame_bytes
            or stream.is_ended
            or stream.missing
            or stream.rest
            or stream.body_left is not None
            or self._block is not None
        ):
            return False
        if length:
            is_compressed, size = unpack_prefix(data, start) if length >= PREFIX_BYTES else (1, 0)
            if is_compressed or size + PREFIX_BYTES != length or size > self._message_bytes_max:
                return False
            self.recv_room -= length
            self.unread += length + MESSAGE_COST
            stream.recv_room -= length
            stream.unread += length + MESSAGE_COST
            stream.messages.append(data[start + PREFIX_BYTES : stop])
            if self.recv_room < self._recv_low:
                self._credit()
            if not flags:
                self.on_progress(stream)
        elif not flags:
            return False
        if flags:
            self._end(stream)
        return True

    def _data(self, flags: int, stream_id: int, data: bytes, start: int, stop: int) -> None:
        """Take a DATA frame, which may go on beyond `data`."""
        length, end = stop - start, len(data)
        self.recv_room -= length
        if self.recv_room < 0:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "more DATA than allowed")
        stream = self.streams.get(stream_id) or self._refused.get(stream_id)
        content_stop = stop
        if flags & frames.PADDED:
            start, content_stop = _content(data, start, stop)
        if stream is None:
            self._check_late(stream_id, "DATA")
        else:
            self._account(stream, length, content_stop - start, flags)
        if self.recv_room < self._recv_low:
            self._credit()
        fed = min(end, content_stop)
        if stop > end:
            self._left_stream, self._left_flags = stream, flags
            self._left = content_stop - fed if content_stop > end else 0
            self._pad = stop - max(content_stop, end)
        if stream is not None:
            if fed > start:
                self._feed(stream, data, start, fed)
            if flags & frames.END_STREAM and stop <= end:
                self._end(stream)

    def _account(self, stream: Stream, length: int, content: int, flags: int) -> None:
        """Count a frame against the window of its stream. Raises: StreamFault, ConnectionFault."""
        if stream.is_ended:
            raise StreamFault(stream.id, ErrorCode.STREAM_CLOSED)
        stream.recv_room -= length
        if stream.recv_room < 0:
            raise StreamFault(stream.id, ErrorCode.FLOW_CONTROL_ERROR)
        if stream.refusal:  # it is not read
            stream.unacked += length
            self._credit_stream(stream)
        else:
            stream.unacked += length - content
            stream.unread += content
            self.unread += content
        if stream.body_left is not None:
            stream.body_left -= content
            if stream.body_left < 0:
                raise StreamFault(stream.id, ErrorCode.PROTOCOL_ERROR)
        if not content and not flags & frames.END_STREAM:
            self._count_noise()

    def _feed(self, stream: Stream, data: bytes, at: int, end: int) -> None:
        if stream.refusal:
            return
        count = len(stream.messages)
        try:
            stream.feed(data, at, end, self._message_bytes_max)
        except MessageRefused as refused:
            self.on_broken(stream, refused.number, refused.text)
            return
        if stream.missing:
            self._lend(stream)
        if stream.messages:
            self._count_messages(stream, len(stream.messages) - count)

    def _count_messages(self, stream: Stream, count: int) -> None:
        """So many messages have become whole."""
        stream.unread += count * MESSAGE_COST
        self.unread += count * MESSAGE_COST
        self.on_progress(stream)

    def _resume(self, data: bytes) -> int:
        """Go on with a frame that the last read ended within. Returns: where the next one begins."""
        end = len(data)
        at = min(self._left, end)
        stream = self._left_stream
        self._left -= at
        is_open = stream is not None and not stream.is_closed
        if at and stream is not None and is_open:
            self._feed(stream, data, 0, at)
        if not self._left:
            skipped = min(self._pad, end - at)
            self._pad -= skipped
            at += skipped
            if not self._pad:
                self._end_frame()
        return at

    def _end_frame(self) -> None:
        """All of the DATA frame under way has come."""
        stream, self._left_stream = self._left_stream, None
        if stream is not None and self._left_flags & frames.END_STREAM:
            try:
                self._end(stream)
            except StreamFault as fault:
                self._on_stream_fault(fault)

    def _skip(self, length: int) -> None:
        """Ignore the rest of a frame that is yet to come."""
        self._count_noise()
        self._left_stream, self._left_flags, self._pad = None, 0, length

    def _end(self, stream: Stream) -> None:
        """The peer has ended its side."""
        if stream.is_closed:
            return
        stream.is_ended = True
        if stream.body_left:
            raise StreamFault(stream.id, ErrorCode.PROTOCOL_ERROR)
        if stream.refusal:
            self.put(stream.refusal)
            self.close(stream)
        elif stream.is_within_message:
            text = "the stream ended within a message"
            self.on_broken(stream, responses.Status.INTERNAL, text)
        else:
            self.on_progress(stream)

    # ----------------------------------------------------------------------------------- HEADERS
    def _headers(self, flags: int, stream_id: int, data: bytes, start: int, stop: int) -> None:
        first, end = frames.unpadded(flags, data, start, stop)
        if flags & frames.PRIORITY_FLAG:
            self._check_priority(stream_id, data, first - 5)
        if flags & frames.END_HEADERS:
            self._whole_block(stream_id, flags, data[first:end])
        else:
            self._block = (stream_id, flags, [data[first:end]])

    def _continuation(self, flags: int, stream_id: int, data: bytes, start: int, stop: int) -> None:
        if self._block is None:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        _, first_flags, pieces = self._block
        pieces.append(data[start:stop])
        size = sum(map(len, pieces))
        if len(pieces) > self.limits.continuations + 1 or size > self.limits.header_list_bytes:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "a block of headers is too large")
        if flags & frames.END_HEADERS:
            self._block = None
            self._whole_block(stream_id, first_flags, b"".join(pieces))

    # ----------------------------------------------------------------------------- other streams
    def _check_priority(self, stream_id: int, data: bytes, start: int) -> None:
        if frames.priority_parent(data, start) == stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a stream depends on itself")

    def _priority(self, _flags: int, stream_id: int, data: bytes, start: int, _stop: int) -> None:
        self._count_noise()
        self._check_priority(stream_id, data, start)

    def _rst_stream(self, _: int, stream_id: int, data: bytes, start: int, _stop: int) -> None:
        stream = self.streams.get(stream_id) or self._refused.get(stream_id)
        if stream is None:
            self._check_reset(stream_id)
            self._count_noise()
            return
        self._forget(stream)
        self._gone(stream, frames.error_code(data, start))
        if stream.opened_at == self.swept_at:
            self._count_reset()

    def _settings(self, flags: int, _id: int, data: bytes, start: int, stop: int) -> None:
        self._count_noise()
        if flags & frames.ACK:
            self.on_confirmed()
            return
        self._is_settled = True
        found = frames.read_settings(data[start:stop])
        window = found.get(Setting.INITIAL_WINDOW_SIZE)
        if window is not None and window != self.peer_window:
            self._count_noise(len(self.streams) >> 4)
            delta, self.peer_window = window - self.peer_window, window
            for stream in self.streams.values():
                stream.send_room += delta
                if stream.send_room > frames.WINDOW_MAX:
                    raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "a window is too large")
            self.on_room(None)
        size = found.get(Setting.MAX_FRAME_SIZE)
        if size is not None:
            self.peer_frame = min(size, _SENT_FRAME_MAX)
        self.put(frames.frame(frames.SETTINGS, frames.ACK, 0))
        self._settled(found)

    def _ping(self, flags: int, _id: int, data: bytes, start: int, stop: int) -> None:
        payload = data[start:stop]
        if flags & frames.ACK:
            self._count_noise()
            self._pong(payload)
            return
        if not self.has_sent:
            self._count_noise()
        self.has_sent = False
        self.put(frames.frame(frames.PING, frames.ACK, 0, payload))

    def _goaway(self, _flags: int, _id: int, data: bytes, start: int, stop: int) -> None:
        self._count_noise()
        self._going(*frames.read_goaway(data, start, stop))

    def _window_update(self, _: int, stream_id: int, data: bytes, start: int, _stop: int) -> None:
        credit = frames.window_increment(data, start)
        if credit < _TINY_CREDIT:
            self._count_noise()
        if not stream_id:
            self.send_room += credit
            if not credit:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
            if self.send_room > frames.WINDOW_MAX:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "the window is too large")
            self.on_room(None)
            return
        stream = self.streams.get(stream_id) or self._refused.get(stream_id)
        if stream is None:
            self._ids.check_begun(stream_id, "WINDOW_UPDATE")
        if not credit:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR)
        if stream is None:
            return
        stream.send_room += credit
        if stream.send_room > frames.WINDOW_MAX:
            raise StreamFault(stream_id, ErrorCode.FLOW_CONTROL_ERROR)
        if not stream.refusal:
            self.on_room(stream)

    # Whole frames, by their kind.
    _HANDLERS: ClassVar[tuple[Callable[[Any, int, int, bytes, int, int], None], ...]] = (
        _data,
        _headers,
        _priority,
        _rst_stream,
        _settings,
        _goaway,  # PUSH_PROMISE, which `check_frame` refuses
        _ping,
        _goaway,
        _window_update,
        _continuation,
    )


def _content(data: bytes, start: int, stop: int) -> tuple[int, int]:
    """Where the content of a padded DATA frame begins and ends. Raises: ConnectionFault."""
    if start == stop:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "no length of the padding")
    content_stop = stop - data[start]
    if content_stop < start + 1:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the padding is longer than the frame")
    return start + 1, content_stop
