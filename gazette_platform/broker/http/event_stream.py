"""Content of a journal as server-sent events: one event a line, with the offset to resume at."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from gazette_platform.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["EventStream"]

# For each reader a line is held in memory until its end has come. Records of text are far shorter than
# this. Longer ones are not text, and a few hundred readers of them would take gigabytes.
_LINE_BYTES_MAX = 1 << 20

# How many lines are made into events in one go. If all of them are empty, that takes some 10 ms and
# gives a dozen times as many bytes.
_STEP_BYTES = 32 << 10

# Milliseconds after which a browser connects again.
_RETRY_MS = 1000


@final
class EventStream:
    r"""Turns pieces of content into events.

    The id of an event is the offset after its line, which browsers send back as ``Last-Event-ID``
    when they connect again: no line is lost, and none comes twice.

    Args:
        offset: of the first byte that `feed` will get.

    >>> stream = EventStream(100)
    >>> [*stream.feed(b"one\ntw"), *stream.feed(b"o\n")]
    [b'id: 104\ndata: one\n\n', b'id: 108\ndata: two\n\n']
    """

    OPENING = b"retry: %d\n\n" % _RETRY_MS
    """First bytes of every stream."""

    KEEPALIVE = b":\n\n"
    """A comment, which keeps proxies from closing a quiet connection."""

    def __init__(self, offset: int) -> None:
        self._offset = offset
        self._rest: list[bytes] = []
        self._rest_bytes = 0

    def feed(self, content: bytes | memoryview) -> Iterator[bytes]:
        """The events of all lines that end within `content`, some at a time.

        Raises: DataError: a line is too long to be one.
        """
        for at in range(0, len(content), _STEP_BYTES):
            events = self._step(bytes(content[at : at + _STEP_BYTES]))
            if events:
                yield events

    def _step(self, piece: bytes) -> bytes:
        cut = piece.rfind(b"\n") + 1
        if not cut:
            self._hold(piece)
            return b""
        block = b"".join((*self._rest, piece[:cut]))
        self._rest, self._rest_bytes = [], 0
        if cut < len(piece):
            self._hold(piece[cut:])
        events = []
        for line in block[:-1].split(b"\n"):
            self._offset += len(line) + 1
            events.append(b"id: %d\ndata: %s\n\n" % (self._offset, _data(line)))
        return b"".join(events)

    def close(self, reason: str, *, is_at_end: bool) -> bytes:
        """The last events: a line without its end, if no more will come, and why it is over."""
        rest = b"".join(self._rest)
        event = b"event: close\ndata: %s\n\n" % _data(reason.encode())
        if not is_at_end or not rest:
            return event
        return b"id: %d\ndata: %s\n\n" % (self._offset + len(rest), _data(rest)) + event

    def _hold(self, piece: bytes) -> None:
        self._rest.append(piece)
        self._rest_bytes += len(piece)
        if self._rest_bytes > _LINE_BYTES_MAX:
            raise DataError(
                f"a line at offset {self._offset} is over {_LINE_BYTES_MAX} bytes: this journal "
                "is not a text of lines (read it without Accept: text/event-stream)"
            )


def _data(line: bytes) -> bytes:
    """A line as the value of ``data``. Events are UTF-8, and in them a CR ends a line, too."""
    line = line.removesuffix(b"\r")
    if not line.isascii():
        line = line.decode("utf-8", "replace").encode()
    line = line.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return line.replace(b"\n", b"\ndata: ")
