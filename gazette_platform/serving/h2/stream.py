"""One stream: its id, its flow control, and the messages in its DATA frames, which may be compressed."""

from __future__ import annotations

import zlib
from collections import deque
from typing import Final, cast, final

from gazette_platform.serving.h2.frames import ConnectionFault, ErrorCode
from gazette_platform.serving.h2.responses import PREFIX_BYTES, Status, unpack_prefix

ENCODINGS: Final = {b"gzip": zlib.MAX_WBITS | 16, b"deflate": zlib.MAX_WBITS}
"""What a ``grpc-encoding`` may say, with zlib's name for it."""


class MessageRefused(Exception):
    """A message that the server does not take: its call ends with this status."""

    def __init__(self, number: int, text: str) -> None:
        self.number = number
        self.text = text
        super().__init__(text)


class Compressed(bytes):
    """A compressed message. It is inflated when it is taken, since it may be a thousand times as large."""

    __slots__ = ()


def larger_than(length: int, bytes_max: int) -> MessageRefused:
    """Return the error of a message that is too large, in the words of the gRPC library."""
    text = f"SERVER: Received message larger than max ({length} vs. {bytes_max})"
    return MessageRefused(Status.RESOURCE_EXHAUSTED, text)


def inflate(raw: bytes, encoding: bytes, bytes_max: int) -> bytes:
    """Inflate a message.

    Args:
        encoding: one of `ENCODINGS`.
        bytes_max: largest message.

    Raises: MessageRefused: it is malformed, or larger.
    """
    inflater = zlib.decompressobj(ENCODINGS[encoding])
    try:
        plain = inflater.decompress(raw, bytes_max + 1)
    except zlib.error as err:
        raise MessageRefused(Status.INTERNAL, f"malformed compressed message: {err}") from err
    if len(plain) > bytes_max:
        raise larger_than(len(plain), bytes_max)
    if not inflater.eof or inflater.unused_data:
        raise MessageRefused(Status.INTERNAL, "malformed compressed message: it is cut, or goes on")
    return plain


# Of so many it is known that we have reset them, or that the client skipped them. A server may end all calls
# of a connection at once, while its client still sends.
_DROPPED_MAX: Final = 16_384
_GAPS_MAX: Final = 64


@final
class StreamIds:
    """Ids of a client's streams: they are odd, and ascend.

    Only what is out of the ordinary is remembered: a stream that neither was reset by us nor skipped
    by the client was closed by both sides.

    Attributes:
        last: the highest that was opened; -1: none was.
    """

    __slots__ = ("_dropped", "_gaps", "last")

    def __init__(self) -> None:
        self.last = -1
        self._dropped: dict[int, None] = {}
        self._gaps: list[range] = []

    def open(self, stream_id: int) -> None:
        """Note a new stream, above all others. Raises: ConnectionFault: its id is even."""
        self.check_odd(stream_id)
        if stream_id != self.last + 2:
            self._gaps = [*self._gaps[1 - _GAPS_MAX :], range(self.last + 2, stream_id, 2)]
        self.last = stream_id

    def check_odd(self, stream_id: int) -> None:
        """Check that an id is one of a client. Raises: ConnectionFault."""
        if not stream_id & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a client's streams have odd ids")

    def drop(self, stream_id: int) -> None:
        """Note that we have reset a stream: its client may not know yet."""
        if len(self._dropped) >= _DROPPED_MAX:
            del self._dropped[next(iter(self._dropped))]
        self._dropped[stream_id] = None

    def check_begun(self, stream_id: int, what: str) -> None:
        """Check that a stream was opened at some time.

        Args:
            what: kind of the frame.

        Raises: ConnectionFault.
        """
        if stream_id > self.last or not stream_id & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"{what} on an idle stream")

    def check_dropped(self, stream_id: int, what: str) -> None:
        """Check a frame that only an open stream may have, or one that we have reset.

        Raises: ConnectionFault.
        """
        self.check_begun(stream_id, what)
        if any(stream_id in gap for gap in self._gaps):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the ids of streams must ascend")
        if stream_id not in self._dropped:
            raise ConnectionFault(ErrorCode.STREAM_CLOSED, f"{what} on a closed stream")


MESSAGE_COST: Final = 64
"""Bytes of memory that a message takes beside its content, until it is taken."""

# If a message lacks so much, it is received where it belongs. A read for each costs less than two copies.
_PLACED_BYTES_MIN: Final = 64 << 10

# Smaller parts of a message are gathered: an object for each may take twenty times its content.
_PART_BYTES: Final = 1024


class Stream:
    """A stream that a client opened, until both sides have ended it or one has reset it.

    Attributes:
        messages: whole messages that were not taken yet; large ones are bytearrays of their own.
        missing: bytes that the message under way lacks; 0: there is none.
        rest: the part of a message's prefix that has come.
        is_ended: whether the client has ended its side.
        is_closed: whether the stream is over; nothing more is received or sent.
        is_greeted: whether the headers of the response are sent.
        send_room: bytes that the client allows us to send.
        recv_room: bytes that we allow the client to send.
        unread: bytes received and not taken, with `MESSAGE_COST` for each message; those yet to come of the
            frame under way; and unusual amounts of metadata.
        unacked: bytes taken for which the client has no new credit yet.
        lent: credit beyond the window, for a message that is larger.
        refusal: what answers a request that is not a call, once it has ended; empty: it is a call.
        encoding: how the client may compress messages; empty: in no way that we know.
        body_left: bytes that the body must still have; None: the client did not say.
        opened_at: when it was opened, to the precision of the sweep.
    """

    __slots__ = (
        "_is_compressed",
        "_parts",
        "_whole",
        "body_left",
        "encoding",
        "id",
        "is_closed",
        "is_ended",
        "is_greeted",
        "lent",
        "messages",
        "missing",
        "opened_at",
        "recv_room",
        "refusal",
        "rest",
        "send_room",
        "unacked",
        "unread",
    )

    def __init__(self, stream_id: int, *, send_room: int, recv_room: int, opened_at: float) -> None:
        self.id = stream_id
        self.messages: deque[bytes] = deque()
        self.missing = 0
        self.is_ended = self.is_closed = self.is_greeted = False
        self.send_room = send_room
        self.recv_room = recv_room
        self.unread = self.unacked = self.lent = 0
        self.body_left: int | None = None
        self.refusal = self.encoding = b""
        self._is_compressed = 0
        self.opened_at = opened_at
        self._parts: list[bytes | bytearray | memoryview] = []
        # The message under way, if the rest of it is received where it belongs.
        self._whole: bytearray | None = None
        self.rest = b""

    @property
    def is_within_message(self) -> bool:
        """Whether a message has begun and is not whole."""
        return self.missing > 0 or bool(self.rest)

    def feed(self, data: bytes, at: int, end: int, bytes_max: int) -> None:
        """Take ``data[at:end]`` of the body, and add the messages that are whole to `messages`.

        Args:
            bytes_max: largest message.

        Raises: MessageRefused: one is larger, or compressed in a way that we do not know.
        """
        if self.missing:
            if end - at < self.missing:
                self._keep(data, at, end)
                return
            stop = at + self.missing
            self._keep(data, at, stop)
            self._add(b"".join(self._parts), self._is_compressed)
            self._parts = []
            at = stop
        elif self.rest:
            data = self.rest + data[at:end]
            at, end, self.rest = 0, len(data), b""
        while end - at >= PREFIX_BYTES:
            is_compressed, length = unpack_prefix(data, at)
            if length > bytes_max:
                raise larger_than(length, bytes_max)
            at += PREFIX_BYTES
            stop = at + length
            if stop > end:
                self.missing = length
                self._is_compressed = is_compressed
                if end > at:
                    self._keep(data, at, end)
                return
            if is_compressed:
                self._add(data[at:stop], is_compressed)
            else:
                self.messages.append(data[at:stop])
            at = stop
        if at < end:
            self.rest = data[at:end]

    def place(self, left: int) -> memoryview | None:
        """Return where the rest of a large message under way belongs; None: it is to come by `feed`.

        Args:
            left: bytes of the frame under way that are yet to come. They are counted as unread already, so
                that a peer that only announces them gets no memory beyond its windows.
        """
        missing, whole = self.missing, self._whole
        if whole is None:
            if not _PLACED_BYTES_MIN <= missing <= left or self._is_compressed:
                return None
            whole = self._whole = bytearray(missing + sum(map(len, self._parts)))
            at = 0
            for part in self._parts:
                whole[at : at + len(part)] = part
                at += len(part)
            self._parts = []
        return memoryview(whole)[-missing:]

    def filled(self, size: int) -> bool:
        """Take bytes that are where `place` said. Returns: whether the message is whole."""
        whole = self._whole
        assert whole is not None
        self.missing -= size
        if not self.missing:
            self._whole = None
            self.messages.append(cast("bytes", whole))
        return not self.missing

    def _add(self, content: bytes, is_compressed: int) -> None:
        if not is_compressed:
            self.messages.append(content)
        elif self.encoding:
            self.messages.append(Compressed(content))
        else:
            raise MessageRefused(Status.UNIMPLEMENTED, "messages are compressed in an unknown way")

    def _keep(self, data: bytes, at: int, end: int) -> None:
        """Keep a part of a message."""
        self.missing -= end - at
        parts = self._parts
        if end - at < _PART_BYTES:
            last = parts[-1] if parts else None
            if isinstance(last, bytearray):
                last += memoryview(data)[at:end]
            else:
                parts.append(bytearray(memoryview(data)[at:end]))
            return
        # A view keeps all of `data` in memory: only of a part that is most of it.
        if 2 * (end - at) > len(data):
            parts.append(memoryview(data)[at:end])
        else:
            parts.append(data[at:end])
