"""How much a peer may send, hold and delay, and how much unread content a process holds over all connections."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Protocol, final

from gazette_platform.serving.interface import READ_AHEAD_BYTES


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
