"""The client for programs without an event loop."""

from __future__ import annotations

import asyncio
import io
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Coroutine,
    Iterator,
)
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, final

from typing_extensions import override

from gazette_platform.client.async_client import (
    AsyncClient,
)
from gazette_platform.client.read.reader import Reader
from gazette_platform.client.read.records import LINE_BYTES_MAX, JsonReader, LineReader
from gazette_platform.client.write.append import ContentSource, iter_is_fresh
from gazette_platform.client.write.sync_writers import SyncAppendService, SyncAppendWriter
from gazette_platform.errors import ValidationError
from gazette_platform.ops.tasks import Closing, LoopThread, next_or_none
from gazette_platform.protocol import AppendSuspend, LabelSelector, LabelSet

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

    from gazette_platform.client.config import ClientConfig
    from gazette_platform.client.read.store_reader import StoreReader
    from gazette_platform.client.results import (
        AppendResult,
    )
    from gazette_platform.client.transport import ClientCounts
    from gazette_platform.client.write.writers import AppendWriter
    from gazette_platform.ops.clock import Clock


@final
class SyncReader(io.RawIOBase):
    """Content of a journal, as a raw binary file, as pieces, or as batches of records.

    As a file it ends where `Reader` does; wrap it in `io.BufferedReader` for `readline`.
    Use one of the ways at a time, from one thread; `close` may come from another one, and ends
    the read that waits.
    """

    def __init__(self, loop: LoopThread, reader: Reader | StoreReader) -> None:
        super().__init__()
        self._loop = loop
        self._reader = reader
        self._rest: memoryview | bytes = b""

    @property
    def reader(self) -> Reader | StoreReader:
        """The reader that is driven: see it for offset, write head and fragment."""
        return self._reader

    @property
    def offset(self) -> int:
        """Offset in the journal of the next byte that `read` returns."""
        return self._reader.offset - len(self._rest)

    @property
    def write_head(self) -> int:
        """End of the journal, by a broker's latest answer."""
        return self._reader.write_head

    @override
    def readable(self) -> bool:
        return True

    @override
    def readinto(self, buffer: WriteableBuffer, /) -> int:
        target = memoryview(buffer).cast("B")
        if not self._rest:
            self._rest = self._next() or b""
        count = min(len(target), len(self._rest))
        target[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def pieces(self) -> Iterator[memoryview | bytes]:
        """Content in pieces of any size, as it arrives."""
        if self._rest:
            rest, self._rest = self._rest, b""
            yield rest
        while (piece := self._next()) is not None:
            yield piece

    def lines(self, *, line_bytes_max: int = LINE_BYTES_MAX) -> Iterator[list[bytes]]:
        """Batches of whole lines, without newlines; raises as `LineReader` does."""
        yield from self._batches(LineReader(self._reader, line_bytes_max=line_bytes_max))

    def json_lines(self, *, line_bytes_max: int = LINE_BYTES_MAX) -> Iterator[list[Any]]:
        """Batches of JSON values, one a line; raises as `JsonReader` does."""
        yield from self._batches(JsonReader(self._reader, line_bytes_max=line_bytes_max))

    def _batches(self, source: LineReader | JsonReader) -> Iterator[list[Any]]:
        while True:
            batch = self._loop.run(next_or_none(source))
            if batch is None:
                return
            yield batch

    def _next(self) -> memoryview | bytes | None:
        if self.closed:
            raise ValueError("I/O operation on closed file.")
        piece: memoryview | bytes | None = self._loop.run(next_or_none(self._reader))
        return piece

    def go_to(self, offset: int) -> None:
        """Go on at another offset of the journal; see `Reader.seek`.

        No `seek`, because wrappers such as `io.BufferedReader` would then go back and forth by it.

        Raises: ValidationError: as `Reader.seek`; or it is a read of a store: begin another one.
        """
        reader, rest = self._reader, self._rest
        if not isinstance(reader, Reader):
            raise ValidationError("a read of a store goes to no other offset: begin another one")
        skipped = offset - (reader.offset - len(rest))
        if rest and 0 <= skipped <= len(rest):
            self._rest = rest[skipped:]
            return
        self._rest = b""
        self._loop.run(_seek(reader, offset))

    @override
    def close(self) -> None:
        """End the read. Does not wait, because collection of garbage closes files too."""
        if not self.closed:
            self._loop.post(self._reader.end)
        super().close()


async def _seek(reader: Reader, offset: int) -> None:
    reader.seek(offset)


T = TypeVar("T")
S = TypeVar("S")
P = ParamSpec("P")


def _blocking(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Client, P], T]:
    """Make a method of `Client` that runs a coroutine method of `AsyncClient`, and waits."""

    @wraps(method)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.run(method(self.asynchronous, *args, **kwargs))

    return _named(call)


def _iterating(
    method: Callable[Concatenate[AsyncClient, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[Client, P], Iterator[T]]:
    """Make a method of `Client` that drives an async generator; leaving the iteration closes it."""

    @wraps(method)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        source = method(self.asynchronous, *args, **kwargs)
        try:
            while (item := self.run(next_or_none(source))) is not None:
                yield item
        finally:
            if not self.is_closed:
                self.run(source.aclose())

    return _named(call)


def _making(
    method: Callable[Concatenate[AsyncClient, P], T], of_threads: Callable[[LoopThread, T], S]
) -> Callable[Concatenate[Client, P], S]:
    """Make a method of `Client` that returns a reader or writer of `AsyncClient`, wrapped for threads."""

    @wraps(method)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> S:
        async def make() -> T:  # readers and writers belong to the loop that makes them
            return method(self.asynchronous, *args, **kwargs)

        return of_threads(self._loop, self.run(make()))

    return _named(call)


def _named(call: Callable[P, T]) -> Callable[P, T]:
    call.__qualname__ = f"Client.{call.__name__}"
    return call


def _writer_of_threads(loop: LoopThread, writer: AppendWriter) -> SyncAppendWriter:
    return SyncAppendWriter(loop, writer, buffer_bytes_max=writer.buffer_bytes_max)


@final
class Client(Closing):
    """What `AsyncClient` does, for threads: any number of them may share one client.

    Its methods are those of `AsyncClient` and have their arguments, results and errors; each waits for
    its result, so it cannot be cancelled except by an interrupt (Ctrl-C). Readers and writers are for
    threads too.

    A client owns a thread that runs an event loop; close it, or use it as a context manager. Make it
    after a fork, not before.
    """

    def __init__(self, config: ClientConfig | None = None, *, clock: Clock | None = None) -> None:
        self._client = AsyncClient(config, clock=clock)
        self._loop = LoopThread("gazette-client")

    @property
    def config(self) -> ClientConfig:
        """The configuration in use."""
        return self._client.config

    @property
    def counts(self) -> ClientCounts:
        """Bytes and fragments that the client moved, for metrics."""
        return self._client.counts

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._loop.is_closed

    def close(self) -> None:
        """As `AsyncClient.close`; also ends the thread."""
        if not self._loop.is_closed:
            self._loop.run(self._client.close())
            self._loop.close()

    def run(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run your own coroutine on the client's event loop, beside the client's calls."""
        return self._loop.run(coro)

    @property
    def asynchronous(self) -> AsyncClient:
        """The client underneath, for coroutines given to `run`."""
        return self._client

    list_snapshot = _blocking(AsyncClient.list_snapshot)
    list = _blocking(AsyncClient.list)
    watch_snapshots = _iterating(AsyncClient.watch_snapshots)
    watch = _iterating(AsyncClient.watch)
    get = _blocking(AsyncClient.get)
    apply = _blocking(AsyncClient.apply)

    def append(
        self,
        journal: str,
        data: ContentSource,
        *,
        offset: int = 0,
        check_registers: LabelSelector | None = None,
        union_registers: LabelSet | None = None,
        subtract_registers: LabelSet | None = None,
        suspend: AppendSuspend = AppendSuspend.SUSPEND_RESUME,
        min_revision: int = 0,
        with_sum: bool = True,
    ) -> AppendResult:
        """As `AsyncClient.append`. Iterables are pulled by a thread, so they may block."""
        if not isinstance(data, bytes | bytearray | memoryview | AsyncIterable):
            data = _Threaded(data) if iter_is_fresh(data) else _threaded(iter(data))
        return self._loop.run(
            self._client.append(
                journal,
                data,
                offset=offset,
                check_registers=check_registers,
                union_registers=union_registers,
                subtract_registers=subtract_registers,
                suspend=suspend,
                min_revision=min_revision,
                with_sum=with_sum,
            )
        )

    append_service = _making(AsyncClient.append_service, SyncAppendService)
    append_writer = _making(AsyncClient.append_writer, _writer_of_threads)

    read = _making(AsyncClient.read, SyncReader)
    tail = _making(AsyncClient.tail, SyncReader)

    def read_store(
        self,
        url: str,
        journal: str,
        offset: int = 0,
        *,
        block: bool = False,
        end_offset: int = 0,
        on_jump: Literal["raise", "continue"] = "raise",
        after: str = "",
    ) -> SyncReader:
        """As the function `read_store`, as a file-like object; asks no broker."""
        from gazette_platform.client.read.store_reader import read_store  # noqa: PLC0415  see there

        async def make() -> SyncReader:
            reader = read_store(
                url,
                journal,
                offset,
                block=block,
                end_offset=end_offset,
                on_jump=on_jump,
                after=after,
                file_root=self.config.file_root,
            )
            return SyncReader(self._loop, reader)

        return self._loop.run(make())

    write_head = _blocking(AsyncClient.write_head)
    write_heads = _blocking(AsyncClient.write_heads)

    fragment_page = _blocking(AsyncClient.fragment_page)
    fragment_pages = _iterating(AsyncClient.fragment_pages)
    fragments = _blocking(AsyncClient.fragments)

    reset_head = _blocking(AsyncClient.reset_head)
    check_head = _blocking(AsyncClient.check_head)
    suspend = _blocking(AsyncClient.suspend)
    store_health = _blocking(AsyncClient.store_health)
    refused_stores = _blocking(AsyncClient.refused_stores)
    brokers = _blocking(AsyncClient.brokers)

    flush = _blocking(AsyncClient.flush)
    create_savepoint = _blocking(AsyncClient.create_savepoint)
    get_savepoint = _blocking(AsyncClient.get_savepoint)
    list_savepoints = _blocking(AsyncClient.list_savepoints)
    delete_savepoint = _blocking(AsyncClient.delete_savepoint)


class _Threaded:
    """An iterable as an async one that may be iterated again."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def __aiter__(self) -> AsyncIterator[bytes]:
        return _threaded(iter(self._source))


async def _threaded(source: Iterator[Any]) -> AsyncIterator[Any]:
    """Pull `source` in a thread, item by item, so that it may block."""
    end = object()
    while (item := await asyncio.to_thread(next, source, end)) is not end:
        yield item
