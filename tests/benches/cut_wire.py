"""A wire between a client and a server that is cut when the client says a certain word."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["CutWire", "cut_wire"]

_CHUNK = 1 << 16
# Longer than the server takes to do what it was asked.
_DONE_S = 1.5


@final
class CutWire:
    """Passes bytes on.

    Attributes:
        word: in a request that cuts its connection; empty: none does.
        passes_on: whether that request still gets to the server, whose answer is lost then.
        cuts: how many there were.
    """

    def __init__(self, port: int) -> None:
        self.word = b""
        self.passes_on = True
        self.cuts = 0
        self._upstream = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Cut everything."""
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._upstream))
                self._open += [client, server]
                cut = threading.Event()
                for pump in (self._ask, self._answer):
                    threading.Thread(target=pump, args=(client, server, cut), daemon=True).start()

    def _ask(self, client: socket.socket, server: socket.socket, cut: threading.Event) -> None:
        with suppress(OSError):
            while data := client.recv(_CHUNK):
                if self.word and self.word in data:
                    self.cuts += 1
                    cut.set()
                    if self.passes_on:
                        server.sendall(data)
                        threading.Event().wait(_DONE_S)
                    break
                server.sendall(data)
        _shut(client, server)

    def _answer(self, client: socket.socket, server: socket.socket, cut: threading.Event) -> None:
        with suppress(OSError):
            while (data := server.recv(_CHUNK)) and not cut.is_set():
                client.sendall(data)
        if not cut.is_set():
            _shut(client, server)


def _shut(*ends: socket.socket) -> None:
    for one in ends:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


@contextmanager
def cut_wire(port: int) -> Iterator[CutWire]:
    """A wire to a server on loopback."""
    wire = CutWire(port)
    try:
        yield wire
    finally:
        wire.close()
