"""The ``gs`` store: a bucket of Google Cloud Storage.

Not through obstore (0.12), which serves the other buckets: it speaks GCS' XML interface, where an object stored with
``Content-Encoding: gzip`` may come decompressed, or without the length that obstore insists on; it signs by V4 only, where
Gazette signs by V2; and the emulator that the tests run refuses its uploads.

Google's own library does the work, in threads of a bounded pool: nothing blocks the event loop. A thread is held for
one request, or one piece of an answer, never while a reader is slow. Each blocking call waits a bounded time for each
answer, and retries for a bounded time; threads of several stores and operations make them at once.
"""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, final
from urllib.parse import quote

from gazette_platform.errors import (
    AccessDenied,
    DataError,
    ObjectNotFound,
    StoreError,
    StoreUnavailable,
)
from gazette_platform.stores.answers import gcs_page, next_token, seen_below
from gazette_platform.stores.interface import PIECE_BYTES, KeyRule, check_segments, take_args
from gazette_platform.stores.objects import SMALL_BYTES_MAX, upload_slots

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
    from concurrent.futures import Executor
    from pathlib import Path

    from gazette_platform.protocol import StoreUrl
    from gazette_platform.stores.answers import Page
    from gazette_platform.stores.interface import StoredObject

_T = TypeVar("_T")

_LIST_BATCH: Final = 1000  # as many as one answer of GCS has


@final
class GcsStore:
    """Objects of a bucket, below the prefix of a URL."""

    def __init__(self, url: StoreUrl, executor: Executor) -> None:
        """Asks the store nothing, and reads no settings: the first operation does.

        Args:
            executor: bounded pool of threads for blocking calls.

        Raises: ValidationError: the URL has arguments, or the prefix is none that objects can have.
        """
        self._url = url.text
        self._rule = KeyRule.of(url.prefix.lstrip("/"), take_args(url, frozenset()))
        check_segments(self._rule, url.text)
        self._bucket = GcsBucket(url.host, url.text)
        self._executor = executor

    @property
    def url(self) -> str:
        """The store's URL, exactly as specs have it."""
        return self._url

    async def exists(self, path: str) -> bool:
        """Whether the object exists. Cancellation: safe."""
        try:
            await self._run("HEAD", path, self._bucket.look_at)
        except ObjectNotFound:
            return False
        return True

    async def get(
        self, path: str, *, piece_bytes: int = PIECE_BYTES
    ) -> AsyncGenerator[bytes, None]:
        """The stored bytes in pieces, as they are stored; see `FragmentStore.get`.

        A connection that breaks is resumed where it broke, as long as the object is the same one.
        """
        download = self._bucket.download(self._rule.key(path))
        try:
            while piece := await self._run("GET", path, lambda _: download.read(piece_bytes)):
                yield piece
        finally:
            download.close()

    async def put(self, path: str, fd: int, length: int, *, content_encoding: str = "") -> None:
        """Store the first `length` bytes of `fd`; see `FragmentStore.put`.

        More than 8 MiB go in parts, and appear when the last one is stored.
        """
        # A descriptor of our own: a cancelled caller closes its own while a thread still reads.
        content = Content(os.dup(fd), length)
        try:
            size = os.fstat(content.fd).st_size
            if size < length:
                raise DataError(f"content ends at byte {size}, {length} were to be stored")
            if length <= SMALL_BYTES_MAX:
                await self._upload(path, content, content_encoding)
                return
            async with upload_slots():
                await self._upload(path, content, content_encoding)
        finally:
            content.release()

    async def list(self, prefix: str) -> AsyncIterator[StoredObject]:
        """Objects below a directory, as the store orders them; see `FragmentStore.list`."""
        key = self._rule.folder(prefix, self._url)
        pages = self._bucket.listed(key, _LIST_BATCH)
        while (
            batch := await self._run("LIST", prefix, lambda _: next(pages, None), is_object=False)
        ) is not None:
            for item in batch:
                yield item

    async def remove(self, path: str) -> None:
        """Delete the object; see `FragmentStore.remove`."""
        await self._run("DELETE", path, self._bucket.delete)

    async def sign_get(self, path: str, ttl_s: float) -> str:
        """A URL, signed by the key of a service account (V2); see `FragmentStore.sign_get`."""
        return await self._run("SIGN", path, partial(self._bucket.sign, ttl_s=ttl_s))

    def local_path(self, path: str) -> Path | None:  # noqa: ARG002  no object is local
        """None: objects are elsewhere."""
        return None

    async def _upload(self, path: str, content: Content, encoding: str) -> None:
        call = partial(self._bucket.upload, content=content, encoding=encoding)
        await self._run("PUT", path, call, is_object=False)

    async def _run(
        self, verb: str, path: str, call: Callable[[str], _T], *, is_object: bool = True
    ) -> _T:
        """What `call` gives for the key of `path`. Raises: StoreError.

        Args:
            is_object: whether what may be missing is an object, rather than the bucket.

        Cancellation: a call that runs is left to its thread, which is not awaited.
        """
        key = self._rule.key(path)
        loop = asyncio.get_running_loop()
        ask = self._bucket.is_there if is_object else None
        return await loop.run_in_executor(
            self._executor, partial(_call, call, key, f"{verb} {key} of {self._url}", ask)
        )


def _call(
    call: Callable[[str], _T], key: str, what: str, is_there: Callable[[], bool] | None
) -> _T:
    with store_errors(what, is_there):
        return call(key)


# Seconds to be connected, and of silence.
_TIMEOUT_S: Final = (5.0, 60.0)
# It bridges a lost connection or a 503. The caller retries, too, and reports errors.
_RETRY_TIMEOUT_S: Final = 15.0
_RETRY_DELAY_S: Final = 0.2
_RETRY_DELAY_S_MAX: Final = 3.0
# Content above 8 MiB, by a rule of Google's library, goes in parts of this size; a multiple of 256 KiB.
_PART_BYTES: Final = 8 * 1024 * 1024
_SIGNATURE_TTL_S_MAX: Final = 365 * 24 * 3600.0  # Google sets no limit
_SCOPE: Final = "https://www.googleapis.com/auth/devstorage.read_write"
_NO_METADATA: Final = "DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA"
_TEXT_LENGTH_MAX: Final = 400
_LISTED: Final = "kind,items(name,size,updated),nextPageToken"
# What GCS says with a 404. Its answers have no code that distinguishes a bucket from an object.
_BUCKET_GONE: Final = "The specified bucket does not exist"
_OBJECT_GONE: Final = "No such object"


@dataclass(frozen=True, slots=True)
class _Connection:
    """What is made once of this user's settings."""

    client: Any
    """``google.cloud.storage.Client``, which threads may share."""
    session: Any
    """Requests for content, which the client can only store as a whole."""
    retry: Any
    """When and how often a call is tried again."""


@final
class GcsBucket:
    """A bucket by its name; settings are read at the first call."""

    def __init__(self, name: str, url: str) -> None:
        """Asks nothing.

        Args:
            name: of the bucket.
            url: of the store, for errors.
        """
        self._name = name
        self._url = url
        self._lock = threading.Lock()
        self._connection: _Connection | None = None
        self._credentials: Any = None

    def look_at(self, key: str) -> None:
        """Raises: an error of Google's, also if there is no such object."""
        connection = self._connected()
        blob = self._blob(connection, key)
        blob.reload(projection="noAcl", timeout=_TIMEOUT_S, retry=connection.retry)
        if blob.size is None:  # Google's library takes any JSON for an object
            raise ValueError("the answer is not about an object")

    def is_there(self) -> bool:
        """Whether the bucket exists. Raises: StoreError."""
        from google.api_core.exceptions import NotFound  # noqa: PLC0415  an extra

        with store_errors(f"LIST of {self._url}"):
            try:
                next(self.listed("", 1), None)
            except NotFound:
                return False
        return True

    def download(self, key: str) -> Download:
        """The content of an object; asks nothing yet."""
        return Download(lambda: self._content_at(key))

    def upload(self, key: str, *, content: Content, encoding: str) -> None:
        """Store an object, in one request or in parts of bounded size."""
        connection = self._connected()
        blob = self._blob(connection, key)
        blob.chunk_size = _PART_BYTES
        if encoding:
            blob.content_encoding = encoding
        blob.upload_from_file(
            content,
            size=content.length,
            content_type="application/octet-stream",
            timeout=_TIMEOUT_S,
            retry=connection.retry,
        )

    def listed(self, folder: str, count: int) -> Iterator[list[StoredObject]]:
        """Objects below a folder, page by page; asks for `count` of them when a page is wanted."""
        connection, address = self._objects_at()
        more = ""
        while True:
            query = {"prefix": folder, "maxResults": count, "pageToken": more, "fields": _LISTED}
            asked = {name: value for name, value in query.items() if value}
            page = connection.retry(partial(_page, connection, address, asked))()
            yield [*seen_below(folder, page)]
            more = next_token(page, more)
            if not more:
                return

    def delete(self, key: str) -> None:
        """Raises: an error of Google's, also if there is no such object."""
        connection = self._connected()
        self._blob(connection, key).delete(timeout=_TIMEOUT_S, retry=connection.retry)

    def sign(self, key: str, *, ttl_s: float) -> str:
        """A URL for GET, by the private key of a service account."""
        from google.auth.credentials import Signing  # noqa: PLC0415  an extra

        connection = self._connected()
        credentials = self._found()
        if not isinstance(credentials, Signing):
            raise StoreUnavailable(
                f"fragment store {self._url}: its credentials cannot sign URLs (let "
                "GOOGLE_APPLICATION_CREDENTIALS name the JSON key of a service account)"
            )
        ttl_s = max(1.0, min(ttl_s, _SIGNATURE_TTL_S_MAX))
        url: str = self._blob(connection, key).generate_signed_url(
            version="v2", expiration=timedelta(seconds=ttl_s), credentials=credentials
        )
        return url

    def _blob(self, connection: _Connection, key: str) -> Any:
        return connection.client.bucket(self._name).blob(key)

    def _objects_at(self) -> tuple[_Connection, str]:
        connection = self._connected()
        path = f"/storage/v1/b/{quote(self._name, safe='')}/o"
        return connection, connection.client.api_endpoint + path

    def _content_at(self, key: str) -> tuple[_Connection, str]:
        connection = self._connected()
        path = f"/download/storage/v1/b/{quote(self._name, safe='')}/o/{quote(key, safe='')}"
        return connection, connection.client.api_endpoint + path

    def _connected(self) -> _Connection:
        """Settings that could not be read are read again by the next call."""
        with self._lock:
            if self._connection is None:
                self._connection = self._connect()
            return self._connection

    def _connect(self) -> _Connection:
        from google.auth.credentials import AnonymousCredentials  # noqa: PLC0415  an extra
        from google.auth.transport.requests import AuthorizedSession  # noqa: PLC0415
        from google.cloud.storage import Client  # type: ignore[import-untyped]  # noqa: PLC0415
        from google.cloud.storage.retry import (  # type: ignore[import-untyped]  # noqa: PLC0415
            DEFAULT_RETRY,
        )

        # Else the library asks for the bucket's own properties besides, in threads of its own, for
        # traces that are not read, and with a permission that brokers may not have.
        os.environ.setdefault(_NO_METADATA, "true")
        # An emulator knows no accounts, and Google need not hear of it.
        is_emulated = bool(os.environ.get("STORAGE_EMULATOR_HOST"))
        credentials: Any = AnonymousCredentials() if is_emulated else self._find()  # type: ignore[no-untyped-call]
        retry = DEFAULT_RETRY.with_timeout(_RETRY_TIMEOUT_S)
        return _Connection(
            client=Client(project=None, credentials=credentials),
            session=AuthorizedSession(credentials),  # type: ignore[no-untyped-call]
            retry=retry.with_delay(initial=_RETRY_DELAY_S, maximum=_RETRY_DELAY_S_MAX),
        )

    def _found(self) -> Any:
        with self._lock:
            return self._find()

    def _find(self) -> Any:
        """The credentials that every tool of Google finds. Raises: StoreUnavailable."""
        import google.auth  # noqa: PLC0415  an extra
        from google.auth.exceptions import DefaultCredentialsError  # noqa: PLC0415

        if self._credentials is None:
            try:
                self._credentials, _ = google.auth.default(scopes=[_SCOPE])
            except (DefaultCredentialsError, ValueError) as err:
                raise StoreUnavailable(
                    f"fragment store {self._url}: no credentials of Google (let "
                    "GOOGLE_APPLICATION_CREDENTIALS name the JSON key of a service account): "
                    f"{_line(str(err))}"
                ) from err
        return self._credentials


def _page(connection: _Connection, address: str, query: dict[str, Any]) -> Page:
    """Ask for one page of a listing. Raises: an error of Google's. OddAnswer."""
    from google.api_core.exceptions import from_http_response  # noqa: PLC0415  an extra

    # Google's library takes any JSON, also an error, for a listing of nothing.
    response = connection.session.get(address, params=query, timeout=_TIMEOUT_S)
    if response.status_code != 200:
        raise from_http_response(response)  # type: ignore[no-untyped-call]
    return gcs_page(response.content)


@final
class _Use:
    """Ends a resource at once, or when the call that works on it has ended; waits for nothing."""

    def __init__(self, end: Callable[[], None]) -> None:
        self._end = end
        self._lock = threading.Lock()
        self._is_used = False
        self._is_released = False

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """One caller at a time. Raises: StoreUnavailable: it was released."""
        with self._lock:
            if self._is_released:
                raise StoreUnavailable("the call was cancelled")
            self._is_used = True
        try:
            yield
        finally:
            self._leave()

    def release(self) -> None:
        """It is no longer wanted."""
        with self._lock:
            ends = not self._is_released and not self._is_used
            self._is_released = True
        if ends:
            self._end()

    def _leave(self) -> None:
        with self._lock:
            self._is_used = False
            ends = self._is_released
        if ends:
            self._end()


@final
class Content:
    """The first bytes of a file, as Google's library reads what it sends."""

    def __init__(self, fd: int, length: int) -> None:
        """Takes `fd`, whose position is not used."""
        self.fd = fd
        self.length = length
        self._offset = 0
        self._use = _Use(lambda: os.close(fd))

    def read(self, count: int = -1) -> bytes:
        """Up to `count` bytes. Raises: DataError: the file is shorter. StoreUnavailable: cancelled."""
        left = self.length - self._offset
        wanted = left if count < 0 else min(count, left)
        with self._use():
            piece = os.pread(self.fd, wanted, self._offset)
        self._offset += len(piece)
        if len(piece) < wanted:
            raise DataError(f"content ends at byte {self._offset}, {self.length} were to be stored")
        return piece

    def tell(self) -> int:
        """The offset of the next byte."""
        return self._offset

    def seek(self, offset: int) -> int:
        """Go back to what was not received."""
        self._offset = offset
        return offset

    def release(self) -> None:
        """The put has ended; what is left of it in a thread fails with its next read."""
        self._use.release()


@final
class Download:
    """The stored bytes of one object, over one connection, resumed where it breaks.

    Google's library would write them to a file in one call, which holds its thread for as long as the
    reader is slow.
    """

    def __init__(self, locate: Callable[[], tuple[_Connection, str]]) -> None:
        self._locate = locate
        self._response: Any = None
        self._generation = ""
        self._size = 0
        self._offset = 0
        self._use = _Use(self._drop)

    def read(self, count: int) -> bytes:
        """The next `count` bytes, fewer at the end, and none after it.

        Raises: an error of Google's, or of HTTP. StoreUnavailable: the object is another one by now.
        """
        with self._use():
            connection, url = self._locate()
            piece: bytes = connection.retry(lambda: self._read(connection, url, count))()
            return piece

    def close(self) -> None:
        """Give the connection up; safe on an event loop, and while a thread reads."""
        self._use.release()

    def _read(self, connection: _Connection, url: str, count: int) -> bytes:
        if self._response is None:
            self._open(connection, url)
        wanted = min(count, self._size - self._offset)
        if wanted == 0:
            return b""
        try:
            piece: bytes = self._response.raw.read(wanted, decode_content=False)
        except BaseException:
            self._drop()
            raise
        if not piece:
            self._drop()
            raise ConnectionError(f"content ended at byte {self._offset} of {self._size}")
        self._offset += len(piece)
        return piece

    def _open(self, connection: _Connection, url: str) -> None:
        from google.api_core.exceptions import from_http_response  # noqa: PLC0415  an extra

        # Else GCS, or the client, decompresses what is stored with the header that it is compressed.
        headers = {"Accept-Encoding": "gzip"}
        query = {"alt": "media"}
        if self._generation:
            headers["Range"] = f"bytes={self._offset}-"
            query["generation"] = self._generation
        response = connection.session.get(
            url, params=query, headers=headers, stream=True, timeout=_TIMEOUT_S
        )
        try:
            if response.status_code == (206 if self._generation else 200):
                self._take(response)
                return
            if self._generation and response.status_code in (200, 404, 416):
                raise StoreUnavailable(
                    f"the object was replaced or removed after {self._offset} bytes of it were read"
                )
            raise from_http_response(response)  # type: ignore[no-untyped-call]
        finally:
            if self._response is None:
                response.close()

    def _take(self, response: Any) -> None:
        headers = response.headers
        stored = headers.get("X-Goog-Stored-Content-Encoding", "identity")
        sent = headers.get("Content-Encoding", "identity")
        if stored != sent:
            # A proxy on the way, say: as many of its bytes would be taken for what is stored.
            raise StoreUnavailable(f"the object is stored as {stored}, and comes as {sent}")
        if not self._generation:
            self._generation = headers["X-Goog-Generation"]
            size = headers.get("X-Goog-Stored-Content-Length") or headers["Content-Length"]
            self._size = int(size)
        self._response = response

    def _drop(self) -> None:
        if self._response is not None:
            self._response.close()
            self._response = None


@contextmanager
def store_errors(what: str, is_bucket_there: Callable[[], bool] | None = None) -> Iterator[None]:
    """What goes wrong as an error of a store.

    Args:
        what: the operation, on what.
        is_bucket_there: asks for it, if the operation is about an object and the answer leaves open
            which of the two is missing; None: only the bucket can be.

    Source: Gazette's IsAuthError of GCS: the bucket is missing, or a 403.
    """
    try:
        yield
    except (StoreError, DataError):
        raise
    except Exception as err:
        raise _store_error(err, what, is_bucket_there) from err


def _store_error(
    error: Exception, what: str, is_bucket_there: Callable[[], bool] | None
) -> StoreError:
    from google.auth.exceptions import (  # noqa: PLC0415  an extra
        GoogleAuthError,
        TransportError,
    )

    status, said = _answer(error)
    text = f"{what}: {said}"
    if status == 404:
        if is_bucket_there is not None and (
            said.startswith(_OBJECT_GONE)
            or (not said.startswith(_BUCKET_GONE) and is_bucket_there())
        ):
            return ObjectNotFound(text)
        return AccessDenied(f"{text} (create the bucket, or correct the URL)")
    if status == 403:
        return AccessDenied(f"{text} (allow it to the credentials of this process)")
    is_login = isinstance(error, GoogleAuthError) and not isinstance(error, TransportError)
    if status == 401 or is_login:
        return StoreUnavailable(f"{text} (check the credentials of this process, and its clock)")
    return StoreUnavailable(text)


def _answer(error: Exception) -> tuple[int, str]:
    """Status of HTTP (0: there was no answer), and in one line what GCS or whatever failed says."""
    cause = _cause(error)
    response: Any = getattr(cause, "response", None)
    said = str(cause) or type(cause).__name__
    if response is None:
        return 0, _line(said)
    try:
        # The text of the error has the whole request in front.
        said = str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        said = response.text or said  # content is refused in plain text
    return int(response.status_code), _line(said)


def _cause(error: BaseException) -> BaseException:
    """What was met last by a call that was tried until its time was over."""
    from google.api_core.exceptions import RetryError  # noqa: PLC0415  an extra

    cause = error.cause if isinstance(error, RetryError) else None
    return cause if isinstance(cause, BaseException) else error


def _line(text: str) -> str:
    return " ".join(text.split())[:_TEXT_LENGTH_MAX]
