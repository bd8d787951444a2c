"""Content of stored fragments, fetched by threads ahead of whoever reads it, within a bound of memory.

A fragment's bytes pass three hands: one fetches and decompresses, one digests, one reads. The first two
are jobs in threads, of C code that releases the GIL, so that fragments that come later are made ready
meanwhile. What is stored as it is passes two: it is digested as soon as it was fetched, by the same
thread, while it is still in the cache. No job waits for room: it ends, and the next content that is read
begins it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import threading
import weakref
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

from gazette_platform.errors import (
    ChecksumMismatch,
    DataError,
    ObjectNotFound,
    StoreError,
    StoreUnavailable,
    TransportError,
)
from gazette_platform.protocol import CompressionCodec

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from io import FileIO

    from gazette_platform.ops.tasks import TaskGroup
    from gazette_platform.protocol import Fragment

READ_AHEAD_BYTES_MAX: Final = 64 << 20
"""Of content that was fetched and not read yet: a process with a reader stays far below 256 MiB."""

# Of stored content a step: much more would leave the cache before it is digested.
_RAW_BYTES = 1 << 20
_COMPRESSED_BYTES = 512 << 10
# Of content a step of decompression. Its output grows in steps, and each of a large one is memory that
# the kernel has to clear first.
_INFLATED_BYTES = 256 << 10
# After so many steps a job lets others of its client have the thread.
_STEPS_A_TURN = 8
_THREADS_MIN, _THREADS_MAX = 4, 16
# What those that are not being read may not have: so there is always room for the one that is.
_FIRST_SHARE = 4


class _Piece:
    """Content, and how many hands it has yet to pass."""

    __slots__ = ("content", "hands")

    def __init__(self, content: bytes, hands: int) -> None:
        self.content = content
        self.hands = hands


@final
class ReadAhead:
    """The memory and the threads that all fragments of one client are fetched with.

    Args:
        tasks: owns the fetches that are not of files.
        bytes_max: of content that is held. A fragment that is being read gets a piece more, if
            there is no room, so that a reader that pauses holds up no other one.
    """

    def __init__(self, tasks: TaskGroup, bytes_max: int = READ_AHEAD_BYTES_MAX) -> None:
        self.tasks = tasks
        self.bytes_max = bytes_max
        self.lock = threading.Lock()
        self.held_bytes = 0
        self._parked: dict[FragmentStream, None] = {}
        self._executor: ThreadPoolExecutor | None = None
        self._streams: weakref.WeakSet[FragmentStream] = weakref.WeakSet()
        self._is_closed = False
        self.threads = min(max(os.cpu_count() or 1, _THREADS_MIN), _THREADS_MAX)

    @property
    def streams_max(self) -> int:
        """Fragments that one reader has fetched at a time: each takes up to two threads."""
        return self.threads // 2

    @property
    def executor(self) -> ThreadPoolExecutor:
        """The threads; there are none before the first use. Raises: TransportError: closed."""
        if self._executor is None:
            if self._is_closed:
                raise _closed()
            self._executor = ThreadPoolExecutor(self.threads, "gazette-read-ahead")
        return self._executor

    def submit(self, job: Callable[[], None]) -> bool:
        """Run `job` in a thread. Returns: False: closed, so it does not run."""
        try:
            self.executor.submit(job)
        except (RuntimeError, TransportError):  # the former if it is closed at this moment
            return False
        return True

    def add(self, stream: FragmentStream) -> None:
        """See a stream that is to end when we do. On the event loop. Raises: TransportError: closed."""
        if self._is_closed:
            raise _closed()
        self._streams.add(stream)

    def may_hold(self, stream: FragmentStream) -> bool:
        """Whether there is room for another piece. Under the lock."""
        count = self.held_bytes
        if stream.is_first:
            return count < self.bytes_max or stream.held_bytes == 0
        return count < self.bytes_max - self.bytes_max // _FIRST_SHARE

    def park(self, stream: FragmentStream) -> None:
        """Keep a stream that there is no room for. Under the lock."""
        self._parked[stream] = None

    def freed(self, count: int) -> list[FragmentStream]:
        """See `count` bytes less. Returns: streams to resume, without the lock. Under the lock."""
        self.held_bytes -= count
        resumed = [stream for stream in self._parked if stream.is_first and self.may_hold(stream)]
        if not resumed:
            resumed = [stream for stream in self._parked if self.may_hold(stream)][:1]
        for stream in resumed:
            del self._parked[stream]
        return resumed

    def forget(self, stream: FragmentStream) -> list[FragmentStream]:
        """Let go of a stream. Returns: as `freed`. Under the lock."""
        self._parked.pop(stream, None)
        return self.freed(stream.held_bytes)

    def close(self) -> None:
        """End all streams, and take no more; jobs that run end with their step."""
        self._is_closed = True
        for stream in list(self._streams):
            stream.close(_closed())
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False)  # jobs that wait are done soon: they close their files


@final
class FragmentStream:
    """The content of one fragment from an offset on, in pieces; fetching begins at once.

    The whole fragment is fetched, decompressed and checked against its length and SHA-1. `next` and
    `close` are called on the event loop that makes it.

    Args:
        name: of the object, for errors.
        source: a file, or the stored bytes as they come.
        offset: of the journal, in the fragment.
        is_first: whether it is being read; else it is fetched ahead.
    """

    def __init__(
        self,
        pool: ReadAhead,
        fragment: Fragment,
        name: str,
        source: Path | AsyncGenerator[bytes, None],
        *,
        offset: int,
        is_first: bool,
    ) -> None:
        self.fragment = fragment
        self.name = name
        self.is_first = is_first
        self.held_bytes = 0
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._offset = offset
        self._at = fragment.begin
        from gazette_platform.codecs import decompressor  # noqa: PLC0415  others go without

        self._inflate = decompressor(fragment.codec)
        self._is_raw = fragment.codec is CompressionCodec.NONE
        self._digest = hashlib.sha1(usedforsecurity=False)
        # All below are guarded by the lock of the pool.
        self._ready: deque[_Piece] = deque()
        self._undigested: deque[_Piece] = deque()
        self._is_fetching = False
        self._is_digesting = False
        self._is_fetched = False
        self._is_whole = False
        self._is_closed = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        # Of the one that fetches, alone.
        self._file: FileIO | None = None
        self._path = source if isinstance(source, Path) else None
        self._room = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        pool.add(self)
        if isinstance(source, Path):
            self.resume()
        else:
            self._task = pool.tasks.spawn(self._fetch(source), name="read-ahead")

    async def next(self) -> bytes | None:
        """The next piece; None at the end, when all was found to be right.

        Raises: ObjectNotFound, StoreError, DataError, ChecksumMismatch; after what could be read.
        Cancellation: safe; no content is lost.
        """
        while True:
            waiter = self._loop.create_future()
            with self._pool.lock:
                piece = self._ready.popleft() if self._ready else None
                if piece is not None:
                    resumed = self._passed(piece)
                elif self._error is not None:
                    raise self._error
                elif self._is_whole or self._is_closed:
                    return None
                else:
                    self._waiter, resumed = waiter, []
            for stream in resumed:
                stream.resume()
            if piece is not None:
                return piece.content
            await waiter

    def promote(self) -> None:
        """See that it is being read from now on."""
        with self._pool.lock:
            self.is_first = True
            resumed = self._pool.freed(0)
        for stream in resumed:
            stream.resume()

    def resume(self) -> None:
        """Go on fetching: there is room. In any thread."""
        if self._path is None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and we with it
                self._loop.call_soon_threadsafe(self._room.set)
            return
        with self._pool.lock:
            if self._is_fetching or self._is_closed or self._is_fetched:
                return
            self._is_fetching = True
        self._pool.submit(self._fetch_file)  # if it is closed, all have the error

    def close(self, why: Exception | None = None) -> None:
        """End all that is done for it; whoever waits sees the end, or gets the error `why`."""
        with self._pool.lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._error = why
            resumed = self._pool.forget(self)
            self.held_bytes = 0
            self._ready.clear()
            self._undigested.clear()
            self._wake()
            is_idle = not self._is_fetching
        if self._task is not None:
            self._task.cancel()
        elif is_idle:  # else the job closes its file
            self._close_file()
        for stream in resumed:
            stream.resume()

    # ------------------------------------------------------------------ fetching

    def _fetch_file(self) -> None:
        """A job: fetch and decompress while there is room."""
        steps = _STEPS_A_TURN
        try:
            while self._may_go_on():
                if steps == 0:
                    if not self._pool.submit(
                        self._fetch_file
                    ):  # it is closed, and all have the error
                        self._close_file()
                    return
                steps -= 1
                content = self._step_of_file()
                if content is None:
                    self._inflate.finish()
                    self._end_fetch()
                    return
                self._push(content)
        except Exception as err:  # noqa: BLE001  whoever reads gets it
            self._failed(err)

    def _may_go_on(self) -> bool:
        """Whether there is room; else the job ends here, and a resumed one goes on."""
        with self._pool.lock:
            if not self._is_closed:
                if self._pool.may_hold(self):
                    return True
                self._pool.park(self)
            self._is_fetching = False
            if not self._is_closed:
                return False
        self._close_file()
        return False

    def _step_of_file(self) -> bytes | None:
        """The next content, not empty; None at the end of the file."""
        if self._file is None:
            assert self._path is not None  # only files are fetched so
            self._file = _opened(self._path)
        while True:
            stored = b""
            if self._inflate.needs_input:
                stored = self._file.read(_RAW_BYTES if self._is_raw else _COMPRESSED_BYTES) or b""
                if not stored:
                    return None
            content = self._step(stored)
            if content:
                return content

    def _step(self, stored: bytes) -> bytes:
        """The content of stored bytes, or some of it; maybe none yet. In a thread."""
        content = self._inflate.decompress(stored, _INFLATED_BYTES)
        if self._is_raw:
            self._digest.update(content)
        return content

    async def _fetch(self, source: AsyncGenerator[bytes, None]) -> None:
        """The same, of bytes that the event loop gets."""
        run, inflate = self._loop.run_in_executor, self._inflate
        try:
            async with aclosing(source):
                async for stored in source:
                    rest = stored
                    while rest or not inflate.needs_input:
                        while not self._has_room():
                            await self._room.wait()
                        content = await run(self._pool.executor, self._step, rest)
                        rest = b""
                        if content:
                            self._push(content)
            inflate.finish()
            self._end_fetch()
        except Exception as err:  # noqa: BLE001  whoever reads gets it
            self._failed(err)
        except asyncio.CancelledError:
            self.close(_closed())
            raise

    def _has_room(self) -> bool:
        self._room.clear()
        with self._pool.lock:
            if self._pool.may_hold(self):
                return True
            self._pool.park(self)
            return False

    def _push(self, content: bytes) -> None:
        """Take in content: to be digested, unless it was, and read."""
        begin, self._at = self._at, self._at + len(content)
        if self._at > self.fragment.end:
            raise DataError(
                f"did not read EOF at expected Fragment.End ({self.fragment.end}); "
                "the stored object is longer than its name says"
            )
        wanted = content[max(self._offset - begin, 0) :]  # itself, but in the fragment's beginning
        is_new_job = False
        with self._pool.lock:
            if self._is_closed:
                return
            if self._is_raw:
                if wanted:
                    self._ready.append(self._count(_Piece(wanted, 1)))
            else:
                piece = self._count(_Piece(content, 2 if wanted is content else 1))
                self._undigested.append(piece)
                if wanted is content:
                    self._ready.append(piece)
                elif wanted:
                    self._ready.append(self._count(_Piece(wanted, 1)))
                is_new_job, self._is_digesting = not self._is_digesting, True
            self._wake()
        if is_new_job:
            self._pool.submit(self._digest_pieces)

    def _count(self, piece: _Piece) -> _Piece:
        """Count a piece that is held from now on. Under the lock."""
        self.held_bytes += len(piece.content)
        self._pool.held_bytes += len(piece.content)
        return piece

    def _end_fetch(self) -> None:
        self._close_file()
        if self._at != self.fragment.end:
            raise DataError(f"unexpected EOF at offset {self._at}, expected {self.fragment.end}")
        with self._pool.lock:
            self._is_fetching = False
            self._is_fetched = True
            self._judge()

    def _failed(self, err: Exception) -> None:
        self._close_file()
        if isinstance(err, DataError):
            named: Exception = type(err)(f"{self.name}: {err}")
            named.__cause__ = err
            err = named
        elif isinstance(err, OSError):
            named = StoreUnavailable(f"reading {self.name}: {err.strerror or err}")
            named.__cause__ = err
            err = named
        with self._pool.lock:
            self._is_fetching = False
            self._is_fetched = True
            self._error = self._error or err
            self._wake()

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    # ------------------------------------------------------------------ digesting

    def _digest_pieces(self) -> None:
        """A job: digest what was fetched."""
        while True:
            with self._pool.lock:
                if not self._undigested:
                    self._is_digesting = False
                    self._judge()
                    return
                piece = self._undigested.popleft()
            self._digest.update(piece.content)
            with self._pool.lock:
                resumed = self._passed(piece)
            for stream in resumed:
                stream.resume()

    def _passed(self, piece: _Piece) -> list[FragmentStream]:
        """See a piece leave a hand. Returns: streams to resume. Under the lock."""
        piece.hands -= 1
        if piece.hands or self._is_closed:
            return []
        self.held_bytes -= len(piece.content)
        return self._pool.freed(len(piece.content))

    def _judge(self) -> None:
        """Once all was fetched and digested, see whether it is right. Under the lock."""
        if not self._is_fetched or self._is_digesting or self._undigested or self._is_closed:
            return
        if self._error is None:
            if self._digest.digest() == self.fragment.sum:
                self._is_whole = True
            else:
                self._error = ChecksumMismatch(
                    f"{self.name}: content has SHA-1 {self._digest.hexdigest()}, "
                    f"expected {self.fragment.sum.hex()}"
                )
        self._wake()

    def _wake(self) -> None:
        """Under the lock."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            with contextlib.suppress(RuntimeError):  # its loop has ended, so no caller waits
                self._loop.call_soon_threadsafe(_set, waiter)


def _closed() -> TransportError:
    return TransportError("the client was closed during the read")


def _set(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _opened(path: Path) -> FileIO:
    try:
        return path.open("rb", buffering=0)
    except FileNotFoundError as err:
        raise ObjectNotFound(f"{path} does not exist (is file_root the brokers' root?)") from err
    except OSError as err:
        raise StoreError(f"cannot read {path}: {err.strerror}") from err
    except ValueError as err:
        raise StoreError(f"cannot read {str(path)!r}: {err}") from err
