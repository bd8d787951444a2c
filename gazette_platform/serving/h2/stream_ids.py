"""Which streams a client has opened, and what became of those that are no longer open."""

from __future__ import annotations

from typing import Final, final

from gazette_platform.serving.h2.frames import ConnectionFault, ErrorCode

__all__ = ["StreamIds"]

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
