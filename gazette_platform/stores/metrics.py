"""What stores are asked for, counted by Gazette's names.

Every driver is wrapped when it is opened, so that none has to count by itself.
"""

from __future__ import annotations

import time
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Final, final

from prometheus_client import Counter, Gauge, Histogram

from gazette_platform.errors import StoreError
from gazette_platform.stores.interface import PIECE_BYTES

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from prometheus_client import CollectorRegistry

    from gazette_platform.stores.interface import FragmentStore, StoredObject


_DURATION_BUCKETS_S: Final = tuple(0.01 * 4**n for n in range(6))
_ITEM_BUCKETS: Final = tuple(10 * 4**n for n in range(6))


@final
class StoreMetrics:
    """The metrics of all stores of a process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.active = Gauge("gazette_store_active", "Stores in use.", registry=registry)
        """Its value is a function that the owner of the stores sets."""
        self.operations = Counter(
            "gazette_store_operation",
            "Operations of stores that ended.",
            ("store", "operation", "status"),
            registry=registry,
        )
        self.durations = Histogram(
            "gazette_store_operation_duration_seconds",
            "How long operations of stores took, in seconds.",
            ("store", "operation", "status"),
            buckets=_DURATION_BUCKETS_S,
            registry=registry,
        )
        self.put_bytes = Counter(
            "gazette_store_put_bytes",
            "Bytes stored, as they lie there.",
            ("store", "encoding"),
            registry=registry,
        )
        self.list_items = Histogram(
            "gazette_store_list_items_count",
            "Objects that a listing found.",
            ("store",),
            buckets=_ITEM_BUCKETS,
            registry=registry,
        )
        self.health_checks = Counter(
            "gazette_store_health_check",
            "Health checks of stores that ended.",
            ("store", "status"),
            registry=registry,
        )

    def checked(
        self, check: Callable[[FragmentStore], Awaitable[None]]
    ) -> Callable[[FragmentStore], Awaitable[None]]:
        """A health check that is counted."""

        async def counted(store: FragmentStore) -> None:
            try:
                await check(store)
            except StoreError:
                self.health_checks.labels(store.url, "error").inc()
                raise
            self.health_checks.labels(store.url, "ok").inc()

        return counted


@final
class MeasuredStore:
    """Counts and times each operation of the store that it wraps, and changes nothing else."""

    def __init__(self, store: FragmentStore, metrics: StoreMetrics) -> None:
        self._store = store
        self._metrics = metrics

    @property
    def url(self) -> str:
        """See `FragmentStore.url`."""
        return self._store.url

    async def exists(self, path: str) -> bool:
        """See `FragmentStore.exists`."""
        with self._measured("exists"):
            return await self._store.exists(path)

    async def get(
        self, path: str, *, piece_bytes: int = PIECE_BYTES
    ) -> AsyncGenerator[bytes, None]:
        """See `FragmentStore.get`; a reader that leaves early counts as a success."""
        with self._measured("get"):
            async with aclosing(self._store.get(path, piece_bytes=piece_bytes)) as pieces:
                async for piece in pieces:
                    yield piece

    async def put(self, path: str, fd: int, length: int, *, content_encoding: str = "") -> None:
        """See `FragmentStore.put`."""
        with self._measured("put"):
            await self._store.put(path, fd, length, content_encoding=content_encoding)
        self._metrics.put_bytes.labels(self.url, content_encoding or "none").inc(length)

    async def list(self, prefix: str) -> AsyncIterator[StoredObject]:
        """See `FragmentStore.list`."""
        count = 0
        with self._measured("list"):
            async for item in self._store.list(prefix):
                count += 1
                yield item
        self._metrics.list_items.labels(self.url).observe(count)

    async def remove(self, path: str) -> None:
        """See `FragmentStore.remove`."""
        with self._measured("remove"):
            await self._store.remove(path)

    async def sign_get(self, path: str, ttl_s: float) -> str:
        """See `FragmentStore.sign_get`."""
        with self._measured("signget"):
            return await self._store.sign_get(path, ttl_s)

    def local_path(self, path: str) -> Path | None:
        """See `FragmentStore.local_path`."""
        return self._store.local_path(path)

    @contextmanager
    def _measured(self, operation: str) -> Iterator[None]:
        began = time.perf_counter()
        status = "success"
        try:
            yield
        except StoreError:
            status = "error"
            raise
        finally:
            labels = (self.url, operation, status)
            self._metrics.operations.labels(*labels).inc()
            self._metrics.durations.labels(*labels).observe(time.perf_counter() - began)
