"""The client for programs without an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, final

from gazette_platform.client.append_batches import BATCH_BYTES_MAX, BUFFER_BYTES_MAX
from gazette_platform.client.appender import ContentSource, iter_is_fresh
from gazette_platform.client.async_client import (
    AsyncClient,
    FragmentListings,
    JournalListings,
    Savepoints,
)
from gazette_platform.client.loop_thread import LoopThread, next_or_none
from gazette_platform.client.sync_reader import SyncReader
from gazette_platform.client.sync_service import SyncAppendService
from gazette_platform.client.sync_writer import SyncAppendWriter
from gazette_platform.ops.closing import Closing
from gazette_platform.protocol import AppendSuspend, JournalChange, LabelSelector, LabelSet

if TYPE_CHECKING:
    from gazette_platform.client.config import ClientConfig
    from gazette_platform.client.counts import ClientCounts
    from gazette_platform.client.results import (
        AppendResult,
        FragmentPage,
        FragmentQuery,
        HeadState,
        JournalListing,
        ListSnapshot,
        Savepoint,
        StoreHealth,
    )
    from gazette_platform.ops.clock import Clock
    from gazette_platform.protocol import BrokerSpec

__all__ = ["Client"]

T = TypeVar("T")


@final
class Client(Closing):
    """What `AsyncClient` does, for threads: any number of them may share one client.

    Owns a thread that runs an event loop; close it, or use it as a context manager. Make it after
    a fork, not before. An interrupt (Ctrl-C) of a waiting call cancels the call.
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
        """What it moved, for metrics."""
        return self._client.counts

    def close(self) -> None:
        """As `AsyncClient.close`; also ends the thread."""
        if not self._loop.is_closed:
            self._loop.run(self._client.close())
            self._loop.close()

    def run(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of yours beside the client's calls, on its event loop."""
        return self._loop.run(coro)

    @property
    def asynchronous(self) -> AsyncClient:
        """The client underneath, for coroutines given to `run`."""
        return self._client

    def list_snapshot(self, selector: LabelSelector | str = "") -> ListSnapshot:
        """As `AsyncClient.list_snapshot`."""
        return self._loop.run(self._client.list_snapshot(selector))

    def list(self, selector: LabelSelector | str = "") -> JournalListings:
        """As `AsyncClient.list`."""
        return self._loop.run(self._client.list(selector))

    def watch_snapshots(self, selector: LabelSelector | str = "") -> Iterator[ListSnapshot]:
        """As `AsyncClient.watch_snapshots`."""
        return self._iterate(self._client.watch_snapshots(selector))

    def watch(self, selector: LabelSelector | str = "") -> Iterator[JournalListings]:
        """As `AsyncClient.watch`."""
        return self._iterate(self._client.watch(selector))

    def get(self, journal: str) -> JournalListing:
        """As `AsyncClient.get`."""
        return self._loop.run(self._client.get(journal))

    def apply(self, changes: Sequence[JournalChange], *, batch_size: int = 0) -> int:
        """As `AsyncClient.apply`."""
        return self._loop.run(self._client.apply(changes, batch_size=batch_size))

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
            )
        )

    def append_service(
        self, *, batch_bytes_max: int = BATCH_BYTES_MAX, buffer_bytes_max: int = BUFFER_BYTES_MAX
    ) -> SyncAppendService:
        """As `AsyncClient.append_service`; the service may be shared by threads."""

        async def make() -> SyncAppendService:
            service = self._client.append_service(
                batch_bytes_max=batch_bytes_max, buffer_bytes_max=buffer_bytes_max
            )
            return SyncAppendService(self._loop, service)

        return self._loop.run(make())

    def append_writer(
        self,
        journal: str,
        *,
        check_registers: LabelSelector | None = None,
        union_registers: LabelSet | None = None,
        subtract_registers: LabelSet | None = None,
        batch_bytes_max: int = BATCH_BYTES_MAX,
        buffer_bytes_max: int = BUFFER_BYTES_MAX,
    ) -> SyncAppendWriter:
        """As `AsyncClient.append_writer`; the writer may be shared by threads."""

        async def make() -> SyncAppendWriter:
            writer = self._client.append_writer(
                journal,
                check_registers=check_registers,
                union_registers=union_registers,
                subtract_registers=subtract_registers,
                batch_bytes_max=batch_bytes_max,
                buffer_bytes_max=buffer_bytes_max,
            )
            return SyncAppendWriter(self._loop, writer, buffer_bytes_max=buffer_bytes_max)

        return self._loop.run(make())

    def read(
        self,
        journal: str,
        offset: int = 0,
        *,
        block: bool = False,
        end_offset: int = 0,
        metadata_only: bool = False,
        begin_mod_time: int = 0,
        direct: bool = False,
        on_jump: Literal["raise", "continue"] = "raise",
        min_revision: int = 0,
        from_savepoint: str = "",
        created: int = 0,
    ) -> SyncReader:
        """As `AsyncClient.read`, as a file-like object."""
        reader = self._client.read(
            journal,
            offset,
            block=block,
            end_offset=end_offset,
            metadata_only=metadata_only,
            begin_mod_time=begin_mod_time,
            direct=direct,
            on_jump=on_jump,
            min_revision=min_revision,
            from_savepoint=from_savepoint,
            created=created,
        )
        return SyncReader(self._loop, reader)

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
        from gazette_platform.client.store_reader import read_store  # noqa: PLC0415  see there

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

    def tail(
        self,
        journal: str,
        offset: int = -1,
        *,
        direct: bool = False,
        on_jump: Literal["raise", "continue"] = "raise",
    ) -> SyncReader:
        """As `AsyncClient.tail`, as a file-like object."""
        return self.read(journal, offset, block=True, direct=direct, on_jump=on_jump)

    def write_head(self, journal: str) -> int:
        """As `AsyncClient.write_head`."""
        return self._loop.run(self._client.write_head(journal))

    def write_heads(self, journals: Sequence[JournalListing]) -> dict[str, int]:
        """As `AsyncClient.write_heads`."""
        return self._loop.run(self._client.write_heads(journals))

    def fragment_page(self, journal: str, **query: Unpack[FragmentQuery]) -> FragmentPage:
        """As `AsyncClient.fragment_page`."""
        return self._loop.run(self._client.fragment_page(journal, **query))

    def fragment_pages(
        self, journal: str, **query: Unpack[FragmentQuery]
    ) -> Iterator[FragmentPage]:
        """As `AsyncClient.fragment_pages`."""
        return self._iterate(self._client.fragment_pages(journal, **query))

    def fragments(self, journal: str, **query: Unpack[FragmentQuery]) -> FragmentListings:
        """As `AsyncClient.fragments`."""
        return self._loop.run(self._client.fragments(journal, **query))

    def reset_head(self, journal: str, *, give_up: bool = False) -> int:
        """As `AsyncClient.reset_head`."""
        return self._loop.run(self._client.reset_head(journal, give_up=give_up))

    def check_head(self, journal: str) -> HeadState:
        """As `AsyncClient.check_head`."""
        return self._loop.run(self._client.check_head(journal))

    def suspend(self, journal: str, *, force: bool = False) -> bool:
        """As `AsyncClient.suspend`."""
        return self._loop.run(self._client.suspend(journal, force=force))

    def store_health(self, store: str, *, check_delete_prefix: str | None = None) -> StoreHealth:
        """As `AsyncClient.store_health`."""
        return self._loop.run(
            self._client.store_health(store, check_delete_prefix=check_delete_prefix)
        )

    def refused_stores(self, stores: Sequence[str]) -> dict[str, str]:
        """As `AsyncClient.refused_stores`."""
        return self._loop.run(self._client.refused_stores(stores))

    def brokers(self) -> tuple[BrokerSpec, ...]:
        """As `AsyncClient.brokers`."""
        return self._loop.run(self._client.brokers())

    def flush(self, selector: LabelSelector | str, *, timeout_s: float = 60.0) -> dict[str, int]:
        """As `AsyncClient.flush`."""
        return self._loop.run(self._client.flush(selector, timeout_s=timeout_s))

    def create_savepoint(
        self,
        name: str,
        selector: LabelSelector | str = "",
        *,
        offsets: Mapping[str, int] | None = None,
        created: Mapping[str, int] | None = None,
        replace: bool = False,
    ) -> Savepoint:
        """As `AsyncClient.create_savepoint`."""
        return self._loop.run(
            self._client.create_savepoint(
                name, selector, offsets=offsets, created=created, replace=replace
            )
        )

    def get_savepoint(self, name: str) -> Savepoint:
        """As `AsyncClient.get_savepoint`."""
        return self._loop.run(self._client.get_savepoint(name))

    def list_savepoints(self, prefix: str = "") -> Savepoints:
        """As `AsyncClient.list_savepoints`."""
        return self._loop.run(self._client.list_savepoints(prefix))

    def delete_savepoint(self, name: str) -> None:
        """As `AsyncClient.delete_savepoint`."""
        self._loop.run(self._client.delete_savepoint(name))

    def _iterate(self, source: AsyncGenerator[T, None]) -> Iterator[T]:
        """Drive an async generator; leaving the iteration closes it."""
        try:
            while (item := self._loop.run(next_or_none(source))) is not None:
                yield item
        finally:
            if not self._loop.is_closed:
                self._loop.run(source.aclose())


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
