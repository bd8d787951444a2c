"""The driver of object stores: buckets that speak HTTP, through the package ``obstore``.

What one kind of store has for itself (credentials, addresses, names of errors) comes from its own
module; all else is here. Nothing blocks the event loop: obstore works in threads of its own, and what
reads settings or a spool does so in a bounded pool. Memory is bounded, too: large content is sent in
parts, of a few objects at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, final
from weakref import WeakKeyDictionary

from gazette_platform.errors import DataError, ObjectNotFound, StoreError, StoreUnavailable
from gazette_platform.ops.tasks import run_in
from gazette_platform.stores.answers import (
    ErrorCodes,
    OddAnswer,
    next_token,
    seen_below,
    store_error,
)
from gazette_platform.stores.interface import PIECE_BYTES, check_segments

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
    from concurrent.futures import Executor
    from pathlib import Path

    import aiohttp
    from obstore.store import AzureStore, ClientConfig, GCSStore, RetryConfig, S3Store

    from gazette_platform.stores.answers import Page
    from gazette_platform.stores.interface import KeyRule, StoredObject

    Bucket = S3Store | GCSStore | AzureStore


# Content up to this size is one request; above it, parts of this size, each one in memory
# while it is sent (and again, if the network fails).
_PART_BYTES: Final = 8 * 1024 * 1024
_PARTS_AT_ONCE: Final = 2
# Objects in parts that are stored at once by a process: with the part that is read next they hold
# at most 4 x 3 x 8 MiB = 96 MiB.
_UPLOADS_AT_ONCE: Final = 4
# A small object does not wait behind large ones, else a check of the store would.
SMALL_BYTES_MAX: Final = 256 * 1024

# Attempts of obstore itself, which bridge a lost connection or a 503. Whoever calls tries again, too,
# and reports errors: long tries in here would only hide that the store is away.
_RETRIES_MAX: Final = 3
_RETRY_TIMEOUT_S: Final = 30
_CONNECT_TIMEOUT_S: Final = 5
# Of silence, and for the answer to one part: 8 MiB in it are 140 KB/s.
_READ_TIMEOUT_S: Final = 60
# Of a whole response, which a slow reader may draw out. obstore's own is 30 s.
_RESPONSE_TIMEOUT_S: Final = 6 * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """What distinguishes one kind of object store from the others."""

    connect: Callable[[], Bucket]
    """Makes the client. It may read files, and raise a `StoreError`; called in a thread."""
    codes: ErrorCodes
    """How its errors are told apart."""
    ask_page: Callable[[str, str], tuple[str, dict[str, str]]]
    """The URL and headers of a GET that lists the keys below a folder, given that and the token of a page;
    called in a thread."""
    read_page: Callable[[bytes, str], Page]
    """Reads the answer, given the folder too. Raises: OddAnswer."""
    signature_ttl_s_max: float
    """Seconds for which a signed URL can be valid."""
    sign: Callable[[str, float], str] | None = None
    """Signs the URL of a key for some seconds, in a thread; None: obstore does."""
    credentials: Renewed[Any] | None = None
    """What `connect` gives to obstore by `Renewed.held`; renewed in a thread, before an operation."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    """Of every object, such as its storage class."""


def client_options(*, is_http: bool) -> ClientConfig:
    """Settings of obstore's HTTP client. `is_http`: whether the store is asked without TLS."""
    return {
        "allow_http": is_http,
        "connect_timeout": timedelta(seconds=_CONNECT_TIMEOUT_S),
        "read_timeout": timedelta(seconds=_READ_TIMEOUT_S),
        "timeout": timedelta(seconds=_RESPONSE_TIMEOUT_S),
    }


def retry_options() -> RetryConfig:
    """How often obstore tries again by itself."""
    return {"max_retries": _RETRIES_MAX, "retry_timeout": timedelta(seconds=_RETRY_TIMEOUT_S)}


@final
class ObjectStore:
    """Objects of a bucket, below the prefix of a URL."""

    def __init__(self, url: str, rule: KeyRule, provider: Provider, executor: Executor) -> None:
        """Asks the store nothing, and reads no settings: the first operation does.

        Args:
            executor: bounded pool of threads that read settings and content.

        Raises: ValidationError: the prefix is none that objects can have.
        """
        check_segments(rule, url)
        self._url = url
        self._rule = rule
        self._provider = provider
        self._executor = executor
        self._bucket: Bucket | None = None

    @property
    def url(self) -> str:
        """The store's URL, exactly as specs have it."""
        return self._url

    async def exists(self, path: str) -> bool:
        """Whether the object exists. Cancellation: safe.

        Something in front of the store may have a page for every name, and whoever asks gives up its own
        copy. So a listing has to name the object as well.
        """
        try:
            await self._head(path)
        except ObjectNotFound:
            return False
        key = self._rule.key(path)
        async with listing_session() as session:
            with self._errors(f"HEAD {key}"):
                page = await self._page(session, key, "")
        if not any(item.path == key for item in page.objects):
            raise StoreUnavailable(
                f"HEAD {key} of {self._url}: the answer is that it exists, and no listing has it (does "
                "something in front of the store answer?)"
            )
        return True

    async def get(
        self, path: str, *, piece_bytes: int = PIECE_BYTES
    ) -> AsyncGenerator[bytes, None]:
        """The stored bytes in pieces, of `piece_bytes` or somewhat more; see `FragmentStore.get`.

        A connection that breaks is resumed where it broke, as long as the object is the same one.
        """
        import obstore  # noqa: PLC0415  an extra

        key = self._rule.key(path)
        with self._errors(f"GET {key}"):
            result = await obstore.get_async(await self._connected(), key)
            stream = aiter(result.stream(min_chunk_size=piece_bytes))
        while True:
            with self._errors(f"GET {key}"):
                piece = await anext(stream, None)
            if piece is None:
                return
            yield bytes(piece)

    async def get_range(self, path: str, begin: int, end: int) -> AsyncGenerator[bytes, None]:
        """Stored bytes [begin, end), in pieces; see `ServerSideStore.get_range`."""
        import obstore  # noqa: PLC0415  an extra

        size = await self.size(path)  # servers refuse what begins after the end
        key, end = self._rule.key(path), min(end, size)
        while begin < end:
            upto = min(end, begin + _PART_BYTES)
            with self._errors(f"GET {key}"):
                bucket = await self._connected()
                piece = await obstore.get_range_async(bucket, key, start=begin, end=upto)
            yield bytes(piece)
            begin = upto

    async def put(self, path: str, fd: int, length: int, *, content_encoding: str = "") -> None:
        """Store the first `length` bytes of `fd`; see `FragmentStore.put`.

        What is larger than one part appears when its last part is stored. The parts of a put that
        failed stay in the bucket, invisible, until a lifecycle rule removes them.
        """
        import obstore  # noqa: PLC0415  an extra

        key = self._rule.key(path)
        attributes = dict(self._provider.attributes)
        if content_encoding:
            attributes["Content-Encoding"] = content_encoding
        content = _Content(fd, length, self._executor)
        try:
            with self._errors(f"PUT {key}", may_be_missing=False):
                bucket = await self._connected()
                if length <= SMALL_BYTES_MAX:
                    await obstore.put_async(
                        bucket, key, await content.all(), attributes=attributes, use_multipart=False
                    )
                    return
                async with upload_slots():
                    if length <= _PART_BYTES:
                        await obstore.put_async(
                            bucket, key, await content.all(), attributes=attributes, use_multipart=False
                        )  # fmt: skip
                        return
                    await obstore.put_async(
                        bucket,
                        key,
                        content,
                        attributes=attributes,
                        chunk_size=_PART_BYTES,
                        max_concurrency=_PARTS_AT_ONCE,
                    )
        finally:
            content.close()

    async def list(self, prefix: str) -> AsyncIterator[StoredObject]:
        """Objects below a directory, as the store orders them; see `FragmentStore.list`."""
        key = self._rule.folder(prefix, self._url)
        more = ""
        async with listing_session() as session:
            while True:
                with self._errors(f"LIST {key}", may_be_missing=False):
                    await self._connected()
                    page = await self._page(session, key, more)
                    seen = [*seen_below(key, page)]
                    more = next_token(page, more)
                for item in seen:
                    yield item
                if not more:
                    return

    async def _page(self, session: aiohttp.ClientSession, key: str, more: str) -> Page:
        """Ask for one page. obstore reads any XML, also an error, as a listing of nothing."""
        address, headers = await run_in(self._executor, self._provider.ask_page, key, more)
        return self._provider.read_page(await answer_to(session, address, headers), key)

    async def size(self, path: str) -> int:
        """Stored bytes of the object; see `ServerSideStore.size`."""
        return await self._head(path)

    async def copy(self, path: str, target: str) -> None:
        """Give the object a second path; see `ServerSideStore.copy`.

        S3 itself refuses objects beyond 5 GiB, which fragments have not.
        """
        import obstore  # noqa: PLC0415  an extra

        key, copy = self._rule.key(path), self._rule.key(target)
        with self._errors(f"COPY {key} to {copy}"):
            await obstore.copy_async(await self._connected(), key, copy)
        size, copied = await self.size(path), 0
        with contextlib.suppress(ObjectNotFound):
            copied = await self.size(target)
        if copied != size:  # whatever answers 200 need not be the store
            raise StoreUnavailable(
                f"COPY {key} to {copy} of {self._url}: the copy has {copied} bytes of {size}"
            )

    async def remove(self, path: str) -> None:
        """Delete the object; see `FragmentStore.remove`."""
        import obstore  # noqa: PLC0415  an extra

        await self._head(path)  # S3 deletes what is not there, and says nothing
        key = self._rule.key(path)
        with self._errors(f"DELETE {key}"):
            await obstore.delete_async(await self._connected(), key)
        with contextlib.suppress(ObjectNotFound):
            await self._head(path)  # whatever answers 200 need not be the store
            raise StoreUnavailable(
                f"DELETE {key} of {self._url}: the answer is that it is deleted, and it is not (do versions "
                "come back, or does something in front of the store answer?)"
            )

    async def sign_get(self, path: str, ttl_s: float) -> str:
        """A URL from which the object can be fetched; see `FragmentStore.sign_get`.

        It ends earlier where the kind of store, or the credentials themselves, do.
        """
        import obstore  # noqa: PLC0415  an extra

        key = self._rule.key(path)
        ttl_s = max(1.0, min(ttl_s, self._provider.signature_ttl_s_max))
        with self._errors(f"SIGN {key}"):
            bucket = await self._connected()
            if self._provider.sign is not None:
                return await run_in(self._executor, self._provider.sign, key, ttl_s)
            return await obstore.sign_async(bucket, "GET", key, timedelta(seconds=ttl_s))

    def local_path(self, path: str) -> Path | None:  # noqa: ARG002  no object is local
        """None: objects are elsewhere."""
        return None

    async def _head(self, path: str) -> int:
        import obstore  # noqa: PLC0415  an extra

        key = self._rule.key(path)
        with self._errors(f"HEAD {key}"):
            meta = await obstore.head_async(await self._connected(), key)
        return int(meta["size"])

    async def _connected(self) -> Bucket:
        """The client, with credentials that last for a while.

        A client that could not be made is tried again. Two at once may make one each.
        """
        if self._bucket is None:
            self._bucket = await run_in(self._executor, self._provider.connect)
        credentials = self._provider.credentials
        if credentials is not None and credentials.is_due():
            await run_in(self._executor, credentials.current)
        return self._bucket

    @contextlib.contextmanager
    def _errors(self, what: str, *, may_be_missing: bool = True) -> Iterator[None]:
        """What goes wrong as an error of a store, named by the operation and the store."""
        try:
            yield
        except (StoreError, DataError):
            raise
        except Exception as err:
            raise store_error(
                err, self._provider.codes, f"{what} of {self._url}", may_be_missing=may_be_missing
            ) from err


@final
class _Content:
    """The first bytes of a file, at once or in parts: an asynchronous iterator, as obstore takes it."""

    def __init__(self, fd: int, length: int, executor: Executor) -> None:
        # The caller may close its own descriptor while a thread still reads.
        self._fd = os.dup(fd)
        self._length = length
        self._executor = executor
        self._offset = 0
        self._is_closed = False

    def close(self) -> None:
        """Nothing reads any more; an upload that goes on without us fails."""
        self._is_closed = True
        os.close(self._fd)

    async def all(self) -> bytes:
        """All of it. Raises: DataError: the file is shorter."""
        content = await self._read(self._length)
        if len(content) < self._length:
            raise self._too_short()
        return content

    def __aiter__(self) -> _Content:
        return self

    async def __anext__(self) -> bytes:
        if self._offset == self._length:
            raise StopAsyncIteration
        piece = await self._read(min(_PART_BYTES, self._length - self._offset))
        self._offset += len(piece)
        if not piece:
            raise self._too_short()
        return piece

    async def _read(self, length: int) -> bytes:
        if not self._is_closed:
            piece = await run_in(self._executor, os.pread, self._fd, length, self._offset)
            # Else the number may have been of another file already.
            if not self._is_closed:
                return piece
        raise DataError("the put of this content has ended")

    def _too_short(self) -> DataError:
        return DataError(f"content ends at byte {self._offset}, {self._length} were to be stored")


def upload_slots() -> asyncio.Semaphore:
    """Of this event loop, for all stores."""
    loop = asyncio.get_running_loop()
    slots = _slots.get(loop)
    if slots is None:
        slots = _slots[loop] = asyncio.Semaphore(_UPLOADS_AT_ONCE)
    return slots


_slots: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


# A page of a thousand keys, each of 1 KiB and escaped.
_BODY_BYTES_MAX: Final = 16 << 20
_ERROR_BYTES_MAX: Final = 1 << 16
# Before each further attempt; they bridge a lost connection or a 503, as obstore does for other calls.
_PAUSES_S: Final = (0.1, 0.4, 1.6)
_PASSING: Final = frozenset({408, 429, 500, 502, 503, 504})


def listing_session() -> aiohttp.ClientSession:
    """The connections of one listing: a store has no end at which others could be closed."""
    import aiohttp  # noqa: PLC0415  slow to import

    timeout = aiohttp.ClientTimeout(
        total=None, sock_connect=_CONNECT_TIMEOUT_S, sock_read=_READ_TIMEOUT_S
    )
    return aiohttp.ClientSession(timeout=timeout, trust_env=True)  # proxies, as obstore has them


async def answer_to(
    session: aiohttp.ClientSession, address: str, headers: Mapping[str, str]
) -> bytes:
    """Return the body that is answered to a GET.

    Args:
        address: a URL whose escapes stay as they are.

    Raises: an error of the network, or one whose text has the status and body as obstore words them.
            OddAnswer: the body has no end.
    Cancellation: safe.
    """
    import aiohttp  # noqa: PLC0415  slow to import

    for pause_s in (*_PAUSES_S, None):
        try:
            status, body = await _get(session, address, headers)
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError):
            if pause_s is None:
                raise
        else:
            if status == HTTPStatus.OK:
                return body
            if pause_s is None or status not in _PASSING:
                text = body[:_ERROR_BYTES_MAX].decode("utf-8", "replace")
                raise OSError(f"the server answers with status code: {status}: {text}")
        await asyncio.sleep(pause_s)
    raise AssertionError("the last attempt returns or raises")


async def _get(
    session: aiohttp.ClientSession, address: str, headers: Mapping[str, str]
) -> tuple[int, bytes]:
    async with session.get(_as_is(address), headers=headers, allow_redirects=False) as response:
        body = bytearray()
        async for piece in response.content.iter_any():
            body += piece
            if len(body) > _BODY_BYTES_MAX:
                raise OddAnswer(f"it is longer than {_BODY_BYTES_MAX} bytes", bytes(body))
        return response.status, bytes(body)


def _as_is(address: str) -> Any:
    import yarl  # noqa: PLC0415  comes with aiohttp

    return yarl.URL(address, encoded=True)


T = TypeVar("T")

# After a renewal that failed, while the present value is still good.
_RETRY_AFTER: Final = timedelta(minutes=1)


@final
class Renewed(Generic[T]):
    """A value with an end, which is renewed when half of its life is over. Used from several threads.

    Drivers renew credentials *before* an operation. obstore asks for them in the middle of one, too, in
    threads of its own, where there is no event loop, and where all its operations wait for the answer.
    """

    def __init__(
        self, fetch: Callable[[], tuple[T, datetime]], now: Callable[[], datetime]
    ) -> None:
        """Without a value.

        Args:
            fetch: gets a value, and when it ends; blocks, and may raise a `StoreError`.
            now: aware, as the ends of values.
        """
        self._fetch = fetch
        self._now = now
        self._lock = threading.Lock()
        self._attempts = 0  # that ended
        self._error: StoreError | None = None
        self._held: tuple[T, datetime] | None = None
        self._due_at = datetime.min.replace(tzinfo=UTC)

    def is_due(self) -> bool:
        """Whether `current` would fetch a value."""
        return self._now() >= self._due_at

    def current(self) -> tuple[T, datetime]:
        """The value, and when it ends. If it is due, this fetches one, or waits until another thread did.

        A value that cannot be renewed serves on to its end.

        Raises: StoreError: there is none.
        """
        attempts = self._attempts
        with self._lock:
            if self._attempts != attempts and self._error is not None:
                raise self._error  # of the attempt that this one waited for
            if self.is_due():
                self._renew()
            assert self._held is not None
            return self._held

    def held(self) -> tuple[T, datetime]:
        """The value as it is, unless it has ended; then as `current`."""
        held = self._held
        return held if held is not None and self._now() < held[1] else self.current()

    def _renew(self) -> None:
        began = self._now()
        try:
            value, ends_at = self._fetch()
        except StoreError as err:
            self._attempts += 1
            if self._held is None or self._now() >= self._held[1]:
                self._error = err
                raise
            self._due_at = min(began + _RETRY_AFTER, self._held[1])
            return
        self._attempts += 1
        self._error = None
        self._held = value, ends_at
        self._due_at = began + (ends_at - began) / 2
