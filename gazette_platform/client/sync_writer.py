"""Appends in the background for threads."""

from __future__ import annotations

import concurrent.futures
import threading
from typing import TYPE_CHECKING, Protocol, final

from gazette_platform.client.append_batches import as_content
from gazette_platform.errors import GazetteError, TransportError, ValidationError
from gazette_platform.ops.closing import Closing

if TYPE_CHECKING:
    from gazette_platform.client.append_queue import AppendTicket
    from gazette_platform.client.loop_thread import LoopThread

__all__ = ["SyncAppendTicket", "SyncAppendWriter"]


class _Writer(Protocol):
    """What appends on the event loop: an `AppendWriter`, or an append service with a journal."""

    @property
    def journal(self) -> str: ...

    def write_nowait(self, data: bytes) -> AppendTicket: ...


@final
class _Staged:
    """Writes that go to the event loop in one step."""

    __slots__ = ("begin", "done", "parts", "size")

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0
        self.begin = -1
        self.done: concurrent.futures.Future[None] = concurrent.futures.Future()


@final
class SyncAppendTicket:
    """A write that was accepted; `result` waits for its commit."""

    __slots__ = ("_delta", "_length", "_staged")

    def __init__(self, staged: _Staged, delta: int, length: int) -> None:
        self._staged = staged
        self._delta = delta
        self._length = length

    @property
    def is_done(self) -> bool:
        """Whether the write was committed or has failed."""
        return self._staged.done.done()

    def result(self, timeout_s: float | None = None) -> tuple[int, int]:
        """Begin and end that the write was committed at.

        Raises: GazetteError: what the append failed for. TransportError: not within `timeout_s`.
        """
        try:
            self._staged.done.result(timeout_s)
        except TimeoutError as err:
            raise TransportError(f"the write was not committed within {timeout_s} s") from err
        begin = self._staged.begin + self._delta
        return begin, begin + self._length


@final
class SyncAppendWriter(Closing):
    """A writer of one journal for any number of threads: ordered, coalescing, bounded.

    Writes gather here while an append is under way, and cross to the event loop in one step for
    many, because a step costs more than a small write.
    """

    def __init__(self, loop: LoopThread, writer: _Writer, *, buffer_bytes_max: int) -> None:
        self._loop = loop
        self._writer = writer
        self._buffer_bytes_max = buffer_bytes_max
        self._changed = threading.Condition()
        self._staged = _Staged()
        self._under_way: _Staged | None = None
        self._buffered_bytes = 0
        self._is_closed = False
        self._error: GazetteError | None = None

    @property
    def journal(self) -> str:
        """Name of the journal."""
        return self._writer.journal

    def write(self, data: bytes) -> SyncAppendTicket:
        """Accept `data`, in order; waits only while the buffer is full.

        Returns: a ticket to wait for the commit with; it may be dropped.
        Raises: GazetteError: an earlier append failed for good.
            ValidationError: closed, empty, or no bytes.
        """
        if type(data) is not bytes:
            data = as_content(self.journal, data)
        if not data:
            raise ValidationError(f"{self.journal}: nothing to write")
        self._check()  # before the lock, which is held for ever in a fork of a busy process
        with self._changed:
            self._check()
            while self._buffered_bytes >= self._buffer_bytes_max:
                self._changed.wait()
                self._check()
            if self._is_closed:
                raise ValidationError(f"{self.journal}: the append writer is closed")
            staged = self._staged
            ticket = SyncAppendTicket(staged, staged.size, len(data))
            staged.parts.append(data)
            staged.size += len(data)
            self._buffered_bytes += len(data)
            if self._under_way is None:
                self._hand_over()
        return ticket

    def flush(self) -> None:
        """Wait until everything written so far is committed.

        Raises: GazetteError: an append failed for good.
        """
        self._check()
        with self._changed:
            last = self._staged if self._staged.parts else self._under_way
        if last is not None:
            last.done.result()
        with self._changed:
            self._check()

    def close(self) -> None:
        """Refuse further writes and `flush`. May be called again."""
        self._is_closed = True
        self.flush()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if self._loop.is_closed:
            raise self._closed()

    def _closed(self) -> ValidationError:
        return ValidationError(
            f"{self.journal}: the client of the append writer {self._loop.closed_why}"
        )

    def _hand_over(self) -> None:
        """Send what is staged to the loop. Called with the lock held."""
        staged, self._staged = self._staged, _Staged()
        self._under_way = staged
        if not self._loop.post(self._append, staged):
            self._under_way = None
            self._buffered_bytes -= staged.size
            self._error = self._closed()
            staged.done.set_exception(self._error)
            self._changed.notify_all()

    def _append(self, staged: _Staged) -> None:
        """On the loop: append, and be called back."""
        try:
            ticket = self._writer.write_nowait(b"".join(staged.parts))
        except GazetteError as err:
            self._finish(staged, err)
        except Exception as err:  # noqa: BLE001  whatever it is, the waiting caller gets it
            self._finish(staged, GazetteError(f"{self.journal}: nothing was appended: {err!r}"))
        else:
            ticket.add_done_callback(lambda: self._appended(staged, ticket))

    def _appended(self, staged: _Staged, ticket: AppendTicket) -> None:
        try:
            staged.begin, _ = ticket.span()
        except GazetteError as err:
            self._finish(staged, err)
        else:
            self._finish(staged, None)

    def _finish(self, staged: _Staged, error: GazetteError | None) -> None:
        ended = [staged]
        with self._changed:
            self._buffered_bytes -= staged.size
            self._under_way = None
            if error is not None:
                self._error = error
                ended.append(self._staged)
                self._staged = _Staged()
            elif self._staged.parts:
                self._hand_over()
            self._changed.notify_all()
        for each in ended:
            if error is None:
                each.done.set_result(None)
            else:
                each.done.set_exception(error)
