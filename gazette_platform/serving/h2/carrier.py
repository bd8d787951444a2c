"""What a call needs of its connection."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from gazette_platform.serving.h2.client_machine import ClientMachine
from gazette_platform.serving.h2.endpoint import Endpoint
from gazette_platform.serving.h2.machine import Machine

if TYPE_CHECKING:
    import asyncio

    from gazette_platform.serving.h2.deadlines import Deadlines

__all__ = ["WRITE_BYTES", "Carrier", "ClientCarrier", "Sending"]

# Larger pieces are written as they are: to copy them costs more than another piece.
_WHOLE_BYTES: Final = 32 << 10

WRITE_BYTES: Final = 256 << 10
"""Bytes that a transport may hold before those that send wait. Peers allow 64 KiB of most streams."""


class Sending(Endpoint):
    """An endpoint with a transport.

    Attributes:
        is_paused: whether the transport has enough to write.
        blocked: calls that wait for room; whoever has waited longest goes first.
    """

    loop: asyncio.AbstractEventLoop
    is_paused: bool
    blocked: dict[Any, None]
    _transport: asyncio.Transport | None

    def flush(self) -> None:
        """Write all that was collected."""
        size, pieces = self.out_bytes, self.take_out()
        transport = self._transport
        if transport is None or not pieces or transport.is_closing():
            return
        # `writelines` does not copy, but before 3.12.9 and 3.13.2 it never says that the transport has enough
        # (CPython issue 127655), and it may hang on an empty last piece (issue 155888).
        if size < _WHOLE_BYTES:
            transport.write(b"".join(pieces))
            return
        small: list[bytes | memoryview] = []
        for piece in pieces:
            if len(piece) < _WHOLE_BYTES:
                small.append(piece)
                continue
            if small:
                transport.write(b"".join(small))
                small = []
            transport.write(piece)
        if small:
            transport.write(b"".join(small))

    @abstractmethod
    def _close(self) -> None:
        """Close the connection, which has nothing more to do."""

    @override
    def on_room(self, stream: Any | None) -> None:
        for call in tuple(self.blocked) if stream is None else (stream,):
            call.make_room()

    @override
    def on_idle(self) -> None:
        self.loop.call_soon(self._close)

    @override
    def on_output(self) -> None:
        self.loop.call_soon(self.flush)


class Carrier(Sending, Machine):
    """A machine that runs calls.

    Attributes:
        tasks: of all handlers of the server that run.
        unstarted: tasks of calls that have not taken their first step.
        peer: address of the client, as gRPC writes it.
        report_below: the unread bytes are reported once they are fewer.
    """

    deadlines: Deadlines
    tasks: set[asyncio.Task[None]]
    unstarted: int
    peer: str
    report_below: int

    @abstractmethod
    def report(self) -> None:
        """Count the unread bytes against the budget of the process."""


class ClientCarrier(Sending, ClientMachine):
    """A machine that makes calls.

    Attributes:
        message_bytes_max: largest message to send.
        sending: tasks that send requests which have to wait for room.
    """

    deadlines: Deadlines
    message_bytes_max: int
    sending: set[asyncio.Task[None]]
