"""The ``gs`` store: a bucket of Google Cloud Storage.

Google's own library does the work, in threads of a bounded pool: nothing blocks the event loop. A
thread is held for one request, or one piece of an answer, never while a reader is slow.
"""

from __future__ import annotations

import asyncio
import os
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar, final

from gazette_platform.errors import DataError, ObjectNotFound
from gazette_platform.stores.gcs_bucket import Content, GcsBucket, store_errors
from gazette_platform.stores.interface import PIECE_BYTES
from gazette_platform.stores.objects import SMALL_BYTES_MAX, upload_slots
from gazette_platform.stores.prefix import KeyRule, check_segments, take_args

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable
    from concurrent.futures import Executor
    from pathlib import Path

    from gazette_platform.protocol import StoreUrl
    from gazette_platform.stores.interface import StoredObject

__all__ = ["GcsStore"]

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
