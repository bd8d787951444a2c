"""What a member and its supervisor say to each other, over the socket that is the member's standard input.

Each message is a line:

    supervisor → member                         member → supervisor
    leave      drain, as at SIGTERM             serves            it serves
    hurry      wait for nothing any more        leaves            it serves no more
    metrics    send your page                   metrics <bytes>   the page follows

The end of the socket means that the supervisor is gone, and that the member leaves.

The supervisor sends no signals for this. A service manager that stops a unit, and a terminal, signal
all processes at once, and a member would take the supervisor's signal for the second one: to leave
at once, whatever is under way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, final

from gazette_platform.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_platform.serving.process import Signals

_log = logging.getLogger(__name__)

LEAVE: Final = b"leave\n"
HURRY: Final = b"hurry\n"
METRICS: Final = b"metrics\n"
SERVES: Final = b"serves\n"
LEAVES: Final = b"leaves\n"

_LENGTH_BYTES: Final = 8


def task_of(content: bytes) -> bytes:
    """Return the bytes with a member's task: the first that its supervisor sends."""
    return len(content).to_bytes(_LENGTH_BYTES) + content


@final
class SupervisorLine:
    """The member's end.

    Args:
        sock: leads to the supervisor.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._page: Callable[[], bytes] = bytes
        self._reports: SimpleQueue[bytes] = SimpleQueue()

    @classmethod
    def on_stdin(cls) -> SupervisorLine:
        """Take standard input, and leave an empty one in its place.

        Raises: SetupError: standard input is not a socket.
        """
        try:
            sock = socket.socket(fileno=os.dup(0))
        except OSError as err:
            raise SetupError(
                "standard input does not lead to a supervisor (start members by "
                "`gazette serve --broker.processes`)"
            ) from err
        empty = os.open(os.devnull, os.O_RDONLY)
        os.dup2(empty, 0)
        os.close(empty)
        return cls(sock)

    def read_task(self) -> bytes:
        """Read the task that the supervisor sends first. Blocks.

        Raises: SetupError: the supervisor is gone.
        """
        length = int.from_bytes(self._read(_LENGTH_BYTES))
        return self._read(length)

    def _read(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            part = self._sock.recv(size - len(found))
            if not part:
                raise SetupError("the supervisor is gone")
            found += part
        return found

    def obey(self, signals: Signals) -> None:
        """Pass on what the supervisor says from now on. On the event loop.

        Threads of their own hear and speak, as with signals: the event loop may hang.
        """
        self._loop = asyncio.get_running_loop()
        for work, name in ((partial(self._hear, signals), "orders"), (self._speak, "reports")):
            threading.Thread(target=work, name=name, daemon=True).start()

    def serves(self, page: Callable[[], bytes]) -> None:
        """Report that this process serves.

        Args:
            page: returns its metrics; called on the event loop.
        """
        self._page = page
        self._reports.put(SERVES)

    def leaves(self) -> None:
        """Report that this process begins to leave."""
        self._reports.put(LEAVES)

    def _hear(self, signals: Signals) -> None:
        with contextlib.suppress(OSError), self._sock.makefile("rb") as orders:
            for line in orders:
                if line == LEAVE:
                    signals.ask()
                elif line == HURRY:
                    signals.hurry()
                elif line == METRICS:
                    with contextlib.suppress(RuntimeError):  # the loop is closed
                        self._loop.call_soon_threadsafe(self._report_page)
        signals.ask()
        _log.warning("the supervisor is gone")

    def _report_page(self) -> None:
        content = self._page()
        self._reports.put(b"metrics %d\n" % len(content) + content)

    def _speak(self) -> None:
        with contextlib.suppress(OSError):  # the supervisor is gone, as the other thread sees, too
            while True:
                self._sock.sendall(self._reports.get())
