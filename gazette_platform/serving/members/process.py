"""One run of a member, as its supervisor sees it: its process, its end of the line, its output."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Final, final

from gazette_platform.errors import SetupError
from gazette_platform.serving.members.line import HURRY, LEAVE, LEAVES, METRICS, SERVES, task_of
from gazette_platform.serving.members.output import LINE_BYTES_MAX, named_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_log = logging.getLogger(__name__)

# Seconds for a page of metrics. A member that is busy for longer is left out of this page.
_PAGE_S: Final = 5.0


@final
class MemberProcess:
    """A member's process, from `start` until `run` ends.

    Args:
        name: of the member.
        command: program and arguments.
        task: sent to it first.
        is_json: whether each line of its log is a JSON object.
        changed: called when `serves` changes.

    Attributes:
        serves: whether it does.
        exit_code: once it has ended; negative: the signal that killed it.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        task: bytes,
        *,
        is_json: bool,
        changed: Callable[[], None],
    ) -> None:
        self.name = name
        self.serves = False
        self.exit_code: int | None = None
        self._command = command
        self._is_json = is_json
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        self._has_page = False
        self._page: asyncio.Future[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._orders = task_of(task)  # until there is a writer
        self._popen: subprocess.Popen[bytes] | None = None

    @property
    def how_it_ended(self) -> str:
        """In words."""
        code = self.exit_code
        if code is None:
            return "still runs"
        return (
            f"was killed by {signal.Signals(-code).name}"
            if code < 0
            else f"exited with code {code}"
        )

    async def run(self) -> None:
        """Start the process, and listen to it until it has ended and all its output is passed on.

        Raises: SetupError: it cannot be started.
        Cancellation: kills it.
        """
        ours, theirs = socket.socketpair()
        with contextlib.closing(theirs):
            try:
                self._popen = self._started(theirs)
            except OSError as err:
                ours.close()
                raise SetupError(
                    f"cannot start {self.name}: {self._command[0]}: {err.strerror}"
                ) from err
        # The log does not wait for the event loop, and has all lines before the end is known.
        threading.Thread(
            target=self._pass_output, args=(self._popen,), name=f"log {self.name}", daemon=True
        ).start()
        try:
            reader, self._writer = await asyncio.open_unix_connection(sock=ours)
            self._writer.write(self._orders)
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._listen(reader)
            self.exit_code = await self._ended
        finally:
            self.kill()
            self._set_serves(False)
            if self._page is not None:
                self._page.cancel()
            if self._writer is not None:
                self._writer.close()

    def leave(self) -> None:
        """Ask it to drain."""
        self._say(LEAVE)

    def hurry(self) -> None:
        """Ask it to leave without waiting for anything."""
        self._say(HURRY)

    def kill(self) -> None:
        """Send SIGKILL, if it still runs."""
        if self._popen is not None and not self._ended.done():
            self._popen.kill()

    async def page(self) -> bytes | None:
        """Return its page of metrics; None: it does not serve yet, or does not answer in time."""
        if not self._has_page:
            return None
        if self._page is None or self._page.done():
            self._page = self._loop.create_future()
            self._say(METRICS)
        try:
            return await asyncio.wait_for(asyncio.shield(self._page), _PAGE_S)
        except TimeoutError:
            _log.warning("%s does not answer with its metrics", self.name)
        except asyncio.CancelledError:
            if not self._page.cancelled():
                raise
        return None

    def _started(self, stdin: socket.socket) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603  its own program
            [*self._command, self.name],
            stdin=stdin.fileno(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        async for line in reader:
            if line in (SERVES, LEAVES):
                self._has_page = True
                self._set_serves(line == SERVES)
            elif line.startswith(b"metrics "):
                content = await reader.readexactly(int(line.split()[1]))
                if self._page is not None and not self._page.done():
                    self._page.set_result(content)

    def _set_serves(self, serves: bool) -> None:  # noqa: FBT001
        if self.serves is not serves:
            self.serves = serves
            self._changed()

    def _say(self, line: bytes) -> None:
        if self._writer is None:
            self._orders += line
        elif not self._writer.is_closing():
            self._writer.write(line)

    def _pass_output(self, popen: subprocess.Popen[bytes]) -> None:
        """Copy its lines to our standard error, each in one write, and wait for its end. For a thread."""
        assert popen.stdout is not None
        with popen.stdout as output:
            while line := output.readline(LINE_BYTES_MAX):
                with contextlib.suppress(OSError, ValueError):  # our log has no reader any more
                    sys.stderr.write(named_line(line, self.name, is_json=self._is_json))
                    sys.stderr.flush()
        code = popen.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._set_ended, code)

    def _set_ended(self, code: int) -> None:
        if not self._ended.done():
            self._ended.set_result(code)
