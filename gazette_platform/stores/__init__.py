"""Fragment stores: where persisted fragments live, and whether that place is well.

A *store* is named by a URL in the specs of journals and holds objects under *content paths*
(``<journal>/<postfix>/<fragment name>``). Objects are written whole or not at all and are never
changed, so readers need no lock. A *registry* keeps one store per URL, shared by all journals that name it, checks its
health, and counts what it is asked for. Each kind of URL has a driver, a module of its own.

Guarantee: when `FragmentStore.put` returns, the object survives a crash of the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.util
import logging
import math
import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from prometheus_client import Counter, Gauge, Histogram

from gazette_platform.errors import StoreError, StoreUnavailable
from gazette_platform.ops.faults import Faults, backoff_s
from gazette_platform.ops.lru import Lru
from gazette_platform.protocol import StoreUrl, parse_store_url
from gazette_platform.stores.fs import FileStore
from gazette_platform.stores.interface import (
    PIECE_BYTES,
    FragmentStore,
    ServerSideStore,
    StoredObject,
    clock_probe,
    delete_probe,
    health_check,
)
from gazette_platform.stores.webhdfs import WebHdfsStore

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from prometheus_client import CollectorRegistry

    from gazette_platform.ops.clock import Clock
    from gazette_platform.ops.tasks import TaskGroup


__all__ = [
    "ActiveStore",
    "FragmentStore",
    "ServerSideStore",
    "StoreHealth",
    "StoreRegistry",
    "StoredObject",
    "clock_probe",
    "delete_probe",
    "health_check",
    "open_store",
    "version_of",
]


_log = logging.getLogger(__name__)

_HEALTHY_INTERVAL_S: Final = 30 * 60.0
# Waits after the first, second … failure in a row. A store that just came up shall be noticed soon;
# one that is down for long shall not be hammered by every broker.
_FAILURE_INTERVALS_S: Final = (0.0, 0.1, 1.0, 1.0, 10.0, 10.0, 100.0)
_JITTER: Final = 0.2
# How often whoever needs an unhealthy store may have it checked before its wait is over.
_ASKED_INTERVAL_S: Final = 2.0
# How often listings that fail may have any store checked.
_DOUBTED_INTERVAL_S: Final = 60.0
_SWEEP_INTERVAL_S: Final = 3600.0

# Objects that were found right are believed for so many seconds, if they are not changed: the SHA-1 is half of what
# it costs to read raw content.
_PROVEN_S: Final = 600.0
_PROVEN_MAX: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoreHealth:
    """Result of the latest health check; compared by identity."""

    error: StoreError | None
    """Why the store is unhealthy; None if it is well."""
    checks: int
    """Checks that ended so far, this one included."""
    failures: int = 0
    """Checks that failed in a row, this one included."""
    since_s: float = 0.0
    """Second of the monotonic clock since which the store is well, or is not known to be."""


@final
class ActiveStore:
    """A store in use: its operations, and the result of its latest health check."""

    def __init__(self, store: FragmentStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._changed = asyncio.Event()
        self._health = StoreHealth(
            error=StoreUnavailable("first health check hasn't completed yet"),
            checks=0,
            since_s=clock.monotonic(),
        )
        self.is_marked = True
        """Whether it was asked for since the last sweep."""
        self.check_asked = asyncio.Event()
        """Set to ask for a check now."""
        self._asked_at = -math.inf
        self._proven: Lru[str, tuple[float, tuple[int, ...]]] = Lru(_PROVEN_MAX)

    @property
    def store(self) -> FragmentStore:
        """The driver."""
        return self._store

    @property
    def url(self) -> str:
        """The store's URL, exactly as specs have it."""
        return self._store.url

    @property
    def health(self) -> StoreHealth:
        """Result of the latest check; unhealthy before the first."""
        return self._health

    async def wait_health_change(self, since: StoreHealth) -> StoreHealth:
        """Wait for a result other than `since`. The caller sets the deadline.

        Cancellation: safe.
        """
        while self._health is since:
            await self._changed.wait()
        return self._health

    def ask_check(self) -> bool:
        """Have an unhealthy store checked now, not after its wait. Returns: whether it will be.

        Checks that were asked for are some seconds apart.
        """
        now = self._clock.monotonic()
        if self._health.error is None or now - self._asked_at < _ASKED_INTERVAL_S:
            return False
        self._asked_at = now
        self.check_asked.set()
        return True

    def doubt(self) -> None:
        """Check the store soon, well or not: an operation failed in a way that a check may explain.

        These checks are a minute apart.
        """
        now = self._clock.monotonic()
        if now - self._asked_at >= _DOUBTED_INTERVAL_S:
            self._asked_at = now
            self.check_asked.set()

    def update_health(self, error: StoreError | None, *, is_check: bool = True) -> None:
        """Publish a result and wake those who wait for one."""
        before = self._health
        is_same = (error is None) == (before.error is None)
        self._health = StoreHealth(
            error=error,
            checks=before.checks + is_check,
            failures=0 if error is None else before.failures + is_check,
            since_s=before.since_s if is_same else self._clock.monotonic(),
        )
        self._changed.set()
        self._changed = asyncio.Event()

    def prove(self, path: str, version: tuple[int, ...]) -> None:
        """Note that an object is what its name says, as it is now.

        Args:
            version: another once the object has changed, as `version_of` is of a file.
        """
        self._proven.put(path, (self._clock.monotonic(), version))

    def is_proven(self, path: str, version: tuple[int, ...]) -> bool:
        """Whether this version of an object was found right lately."""
        at, proven = self._proven.get(path) or (-math.inf, ())
        return proven == version and self._clock.monotonic() - at < _PROVEN_S

    async def exists(self, path: str) -> bool:
        """See `FragmentStore.exists`."""
        return await self._store.exists(path)

    def get(self, path: str, *, piece_bytes: int = PIECE_BYTES) -> AsyncGenerator[bytes, None]:
        """See `FragmentStore.get`."""
        return self._store.get(path, piece_bytes=piece_bytes)

    async def put(self, path: str, fd: int, length: int, *, content_encoding: str = "") -> None:
        """See `FragmentStore.put`."""
        await self._store.put(path, fd, length, content_encoding=content_encoding)

    async def list(self, prefix: str) -> AsyncIterator[StoredObject]:
        """See `FragmentStore.list`. If it fails, the store is checked, so that its health says why."""
        try:
            async for item in self._store.list(prefix):
                yield item
        except StoreError:
            self.doubt()
            raise

    async def remove(self, path: str) -> None:
        """See `FragmentStore.remove`."""
        await self._store.remove(path)

    async def sign_get(self, path: str, ttl_s: float) -> str:
        """See `FragmentStore.sign_get`."""
        return await self._store.sign_get(path, ttl_s)

    def local_path(self, path: str) -> Path | None:
        """See `FragmentStore.local_path`."""
        return self._store.local_path(path)


def version_of(file: Path) -> tuple[int, ...]:
    """What is another once a file has changed; for a thread.

    Not its ctime: a spool that became an object has another one once its own name is removed.

    Raises: OSError.
    """
    found = file.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


@final
class StoreRegistry:
    """Opens each store once, checks it regularly, and drops it when it was unused for a while.

    Used from one event loop.
    """

    def __init__(
        self,
        opener: Callable[[str], FragmentStore],
        clock: Clock,
        tasks: TaskGroup,
        *,
        rng: random.Random | None = None,
        check: Callable[[FragmentStore], Awaitable[None]] = health_check,
        pause: Callable[[float, asyncio.Event], Awaitable[None]] | None = None,
        faults: Faults | None = None,
    ) -> None:
        """Start without stores.

        Args:
            opener: makes the store of a URL, without I/O; may raise `GazetteError`.
            clock: paces the sweeps.
            tasks: owns the health loops, one per store, which end with it.
            rng: spreads the checks of many brokers.
            check: raises a `StoreError` if the store is not well.
            pause: waits a number of seconds, or until an event is set if that is sooner.
            faults: counts checks that fail in an unforeseen way.
        """
        self._opener = opener
        self._clock = clock
        self._tasks = tasks
        self._rng = rng or random.Random()  # noqa: S311  not for secrets
        self._check = check
        self._pause = pause or _pause
        self._faults = faults or Faults()
        self._stores: dict[str, ActiveStore] = {}
        self._loops: dict[str, asyncio.Task[None]] = {}
        self._swept_at = clock.monotonic()

    def __len__(self) -> int:
        return len(self._stores)

    def get(self, url: str) -> ActiveStore:
        """The store of `url`, opened now if it is not in use. Marks it as used.

        Whoever keeps using a store asks for it again at least hourly.

        Raises: GazetteError: it could not be opened; the next call tries again.
        """
        self._sweep_if_due()
        active = self._stores.get(url)
        if active is None:
            active = ActiveStore(self._opener(url), self._clock)
            self._stores[url] = active
            self._loops[url] = self._tasks.spawn(self._watch(active), name=f"health of {url}")
        active.is_marked = True
        return active

    def sweep(self) -> None:
        """Drop the stores that were not asked for since the last sweep."""
        self._swept_at = self._clock.monotonic()
        for url, active in list(self._stores.items()):
            if active.is_marked:
                active.is_marked = False
                continue
            del self._stores[url]
            self._loops.pop(url).cancel()
            active.update_health(StoreUnavailable("health checks have stopped"), is_check=False)

    def _sweep_if_due(self) -> None:
        # This is done when stores are used, not by a timer: if none is used there is nothing new to
        # drop, and all that goes on is one loop, which checks every half hour.
        if self._clock.monotonic() - self._swept_at >= _SWEEP_INTERVAL_S:
            self.sweep()

    async def _watch(self, active: ActiveStore) -> None:
        failures = 0
        error: StoreError | None
        while True:
            try:
                await self._check(active.store)
                error = None
            except StoreError as err:
                error = err
            except Exception as err:  # noqa: BLE001  reported
                self._faults.report("store", f"health check of {active.url}", err)
                error = StoreError(f"health check: unforeseen {type(err).__name__}: {err}")
            if error is not None:
                if failures == 0:
                    _log.warning("fragment store %s is unhealthy: %s", active.url, error)
                interval_s = backoff_s(failures, _FAILURE_INTERVALS_S)
                failures += 1
            else:
                if failures:
                    _log.info("fragment store %s is healthy again", active.url)
                failures = 0
                interval_s = _HEALTHY_INTERVAL_S
            active.check_asked.clear()
            active.update_health(error)
            await self._pause(
                interval_s * self._rng.uniform(1 - _JITTER, 1 + _JITTER), active.check_asked
            )


async def _pause(seconds: float, asked: asyncio.Event) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asked.wait()


# A disk or network file system serves a few calls at once well; more only queue in the kernel.
_FILE_THREADS_MAX = 8
# They read settings, and spools that obstore sends from threads of its own.
_OBJECT_THREADS_MAX = 4
# Each waits for one answer of GCS. Four can be busy with large uploads; the rest serve what is short.
_GCS_THREADS_MAX = 16
# They read spools, too, but may also wait for tokens of an authority that does not answer, which must
# not hold up the stores of others.
_AZURE_AD_THREADS_MAX = 4


@functools.cache
def file_executor() -> ThreadPoolExecutor:
    """The threads in which all file stores of this process do their blocking calls."""
    return ThreadPoolExecutor(_FILE_THREADS_MAX, thread_name_prefix="gazette-file-store")


@functools.cache
def object_executor() -> ThreadPoolExecutor:
    """The threads in which all object stores of this process read what lies on this machine."""
    return ThreadPoolExecutor(_OBJECT_THREADS_MAX, thread_name_prefix="gazette-object-store")


@functools.cache
def gcs_executor() -> ThreadPoolExecutor:
    """The threads in which all ``gs`` stores of this process do their blocking calls."""
    return ThreadPoolExecutor(_GCS_THREADS_MAX, thread_name_prefix="gazette-gcs-store")


@functools.cache
def azure_ad_executor() -> ThreadPoolExecutor:
    """The threads in which all ``azure-ad`` stores of this process do what `object_executor` is for."""
    return ThreadPoolExecutor(_AZURE_AD_THREADS_MAX, thread_name_prefix="gazette-azure-ad-store")


def open_store(
    url: str, *, file_root: Path | None, file_only: bool = False, makes_folder: bool = True
) -> FragmentStore:
    """The store of a URL. Does no I/O: its health checks show whether the store works.

    Args:
        file_root: directory below which ``file`` stores lie; None refuses them.
        file_only: every URL, of whatever scheme, means the file root itself.
        makes_folder: whether a ``file`` store makes its own folder, below the root, with what it
            puts there; else it must exist.

    Raises: ValidationError: the URL or its arguments are wrong.
            StoreError: this process cannot serve its scheme.
    """
    parsed = parse_store_url(url)
    if file_only:
        parsed = StoreUrl(scheme="file", host="", path="/", args={}, text=url)
    if parsed.scheme == "hdfs":
        return WebHdfsStore(parsed)
    if parsed.scheme == "s3":
        return _open_s3(parsed)
    if parsed.scheme == "azure":
        return _open_azure(parsed)
    if parsed.scheme == "azure-ad":
        return _open_azure_ad(parsed)
    if parsed.scheme == "gs":
        return _open_gcs(parsed)
    if file_root is None:
        raise StoreError(
            f"fragment store {url} needs a directory (give its root: --broker.file-root of brokers, --file-root of gazctl)"
        )
    return FileStore(
        parsed, file_root=file_root, executor=file_executor(), makes_folder=makes_folder
    )


def _open_s3(url: StoreUrl) -> FragmentStore:
    _require(url, "obstore", "botocore", extra="s3")
    from gazette_platform.stores.s3 import open_s3  # noqa: PLC0415  slow to import

    return open_s3(url, object_executor())


def _open_azure(url: StoreUrl) -> FragmentStore:
    _require(url, "obstore", "azure.storage.blob", extra="azure")
    from gazette_platform.stores.azure import open_azure  # noqa: PLC0415  slow to import

    return open_azure(url, object_executor())


def _open_azure_ad(url: StoreUrl) -> FragmentStore:
    _require(url, "obstore", "azure.storage.blob", extra="azure")
    from gazette_platform.stores.azure import open_azure_ad  # noqa: PLC0415  slow to import

    return open_azure_ad(url, azure_ad_executor())


def _open_gcs(url: StoreUrl) -> FragmentStore:
    _require(url, "google.cloud.storage", extra="gcs")
    from gazette_platform.stores.gcs import GcsStore  # noqa: PLC0415  as the others

    return GcsStore(url, gcs_executor())


def _require(url: StoreUrl, *packages: str, extra: str) -> None:
    missing = [name for name in packages if not _is_installed(name)]
    if missing:
        raise StoreError(
            f"fragment store {url.text} needs the package {' and '.join(missing)} "
            f"(install the extra: pip install 'gazette-platform[{extra}]')"
        )


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # of the package that would hold it
        return False


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
