"""The ``hdfs`` store: files of an HDFS, through the REST interface that its servers bring along.

No driver of a language or a Hadoop installation is needed, and whoever may read the files can fetch
them with plain HTTP. An object appears under its name by a rename, whole, as engines read the folder
while brokers write.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
from typing import TYPE_CHECKING, Any, Final, final
from urllib.parse import quote, urlencode, urlsplit

from gazette_platform.errors import (
    AccessDenied,
    DataError,
    ObjectNotFound,
    StoreError,
    StoreUnavailable,
    ValidationError,
)
from gazette_platform.stores.interface import PIECE_BYTES, KeyRule, StoredObject, take_args

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterator
    from pathlib import Path

    import aiohttp

    from gazette_platform.protocol import StoreUrl


_ARGS: Final = frozenset({"webhdfs", "user"})
_HTTP_PORT: Final = 9870  # of a NameNode, unless configured otherwise
_CONNECT_TIMEOUT_S: Final = 10.0
# HDFS stalls for some seconds when a DataNode of a pipeline fails, and goes on without it.
_READ_TIMEOUT_S: Final = 60.0
_PARTIAL_PREFIX: Final = ".partial-"
# The longest folder of fragments: a journal's name, a slash, a path postfix, a slash.
_DIRECTORY_LENGTH_MAX = 512 + 1 + 512 + 1
# Of an answer of a NameNode. A page of a listing has 1000 files, some 300 KB, unless configured otherwise.
_ANSWER_BYTES_MAX: Final = 8 << 20
_ERROR_BYTES_MAX: Final = 1 << 16

# What a NameNode says when another one, or a later call, would do.
_PASSING: Final = frozenset({"StandbyException", "RetriableException", "SafeModeException"})
_MISSING: Final = frozenset({"FileNotFoundException", "ParentNotDirectoryException"})
_REFUSED: Final = frozenset({"AccessControlException"})

_Entries = list[tuple[str, StoredObject | None]]
"""Relative paths; files with what a listing says of them."""


@final
class WebHdfsStore:
    """Objects as files below the path of ``hdfs://<namenode>/<path>``."""

    def __init__(self, url: StoreUrl) -> None:
        """Take the arguments of `url`: ``webhdfs`` and ``user``, besides those that all stores know.

        ``HADOOP_USER_NAME`` of the environment is the user if the URL has none, and
        ``GAZETTE_HDFS_DELEGATION_TOKEN`` stands in for any user where HDFS checks who one is.

        Raises: ValidationError: an argument is unknown, or no URL of a server.
        """
        args = take_args(url, _ARGS)
        self._url = url.text
        self._rule = KeyRule.of(url.prefix.lstrip("/"), args)
        self._servers = _servers(url, args.get("webhdfs", ""))
        token = os.environ.get("GAZETTE_HDFS_DELEGATION_TOKEN", "")
        user = args.get("user", "") or os.environ.get("HADOOP_USER_NAME", "") or "gazette"
        self._identity = {"delegation": token} if token else {"user.name": user}

    @property
    def url(self) -> str:
        """The store's URL, exactly as specs have it."""
        return self._url

    async def exists(self, path: str) -> bool:
        """Whether the object exists. Cancellation: safe."""
        async with _session() as session:
            return await self._length(session, self._rule.key(path)) is not None

    async def get(
        self, path: str, *, piece_bytes: int = PIECE_BYTES
    ) -> AsyncGenerator[bytes, None]:
        """The stored bytes in pieces; see `FragmentStore.get`."""
        key = self._rule.key(path)
        async with _session() as session:
            # A connection that ends early is not the end of the file.
            length = await self._length(session, key)
            if length is None:
                raise ObjectNotFound(f"no such object: {self._named(key)}")
            location = await self._redirected(session, "GET", key, {"op": "OPEN"})
            with _store_errors(_without_query(location)):
                async with session.get(_as_is(location)) as response:
                    await _check(response)
                    received = 0
                    async for piece in response.content.iter_chunked(piece_bytes):
                        received += len(piece)
                        yield piece
            if received != length:
                raise StoreUnavailable(
                    f"{self._named(key)} has {length} bytes, and {received} of them came"
                )

    async def put(
        self,
        path: str,
        fd: int,
        length: int,
        *,
        content_encoding: str = "",  # noqa: ARG002  a file has no headers
    ) -> None:
        """Store the first `length` bytes of `fd`; see `FragmentStore.put`."""
        key = self._rule.key(path)
        folder, _, name = key.rpartition("/")
        partial = f"{folder}/{_PARTIAL_PREFIX}{name}.{secrets.token_hex(4)}".lstrip("/")
        # A descriptor of our own: a cancelled caller closes its own, and the number may be reused
        # while a thread still reads.
        own_fd = os.dup(fd)
        try:
            if (size := os.fstat(own_fd).st_size) < length:
                raise DataError(f"content ends at byte {size}, {length} were to be stored")
            async with _session() as session:
                try:
                    await self._write(session, partial, own_fd, length)
                    await self._rename(session, partial, key)
                except BaseException:
                    await self._discard(partial)
                    raise
        finally:
            os.close(own_fd)

    async def list(self, prefix: str) -> AsyncIterator[StoredObject]:
        """Objects below a directory; see `FragmentStore.list`."""
        if prefix and not prefix.endswith("/"):
            raise StoreError(f"prefix {prefix!r} of a listing must end with '/'")
        root = self._rule.key(prefix)
        async with _session() as session:
            # It does not recurse: others may have made folders that are deeper than our stack.
            walks = [iter(await self._entries(session, root, ""))]
            while walks:
                relative, item = next(walks[-1], (None, None))
                if relative is None:
                    walks.pop()
                elif item is not None:
                    yield item
                elif len(relative) <= _DIRECTORY_LENGTH_MAX:
                    walks.append(iter(await self._entries(session, root, relative)))

    async def remove(self, path: str) -> None:
        """Delete the object; see `FragmentStore.remove`."""
        key = self._rule.key(path)
        async with _session() as session:
            if await self._length(session, key) is None:  # HDFS would delete an empty folder, too
                raise ObjectNotFound(f"no such object: {self._named(key)}")
            answer = await self._call(session, "DELETE", key, {"op": "DELETE"})
            if not answer.get("boolean"):
                raise ObjectNotFound(f"no such object: {self._named(key)}")

    async def sign_get(self, path: str, ttl_s: float) -> str:  # noqa: ARG002  HDFS signs nothing
        """The WebHDFS URL that opens the file; with a delegation token it has that, and ends with it."""
        return self._address(self._servers[0], self._rule.key(path), {"op": "OPEN"})

    def local_path(self, path: str) -> Path | None:  # noqa: ARG002  it is on other machines
        """None."""
        return None

    # -------------------------------------------------------------------------------- requests
    async def _length(self, session: aiohttp.ClientSession, key: str) -> int | None:
        """Bytes of a file; None if there is none."""
        try:
            answer = await self._call(session, "GET", key, {"op": "GETFILESTATUS"})
        except ObjectNotFound:
            return None
        with _expected(self._named(key)):
            status = answer["FileStatus"]
            return int(status["length"]) if status["type"] == "FILE" else None

    async def _write(self, session: aiohttp.ClientSession, key: str, fd: int, length: int) -> None:
        location = await self._redirected(
            session, "PUT", key, {"op": "CREATE", "overwrite": "true"}
        )
        headers = {"Content-Length": str(length), "Content-Type": "application/octet-stream"}
        with _store_errors(_without_query(location)):
            async with session.put(
                _as_is(location), data=_pieces(fd, length), headers=headers
            ) as response:
                await _check(response)
        # Something between us and the server may have ended the body early, and the file with it.
        stored = await self._length(session, key)
        if stored != length:
            raise StoreUnavailable(f"{self._named(key)} has {stored} of {length} bytes")

    async def _rename(self, session: aiohttp.ClientSession, key: str, to: str) -> None:
        await self._call(
            session,
            "PUT",
            key,
            {"op": "RENAME", "destination": f"/{to}", "renameoptions": "OVERWRITE"},
        )

    async def _discard(self, key: str) -> None:
        """Remove what a failed or cancelled put left; listings hide it if that fails, too."""
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(_CONNECT_TIMEOUT_S), _session() as session:
                await self._call(session, "DELETE", key, {"op": "DELETE"})

    async def _entries(self, session: aiohttp.ClientSession, root: str, relative: str) -> _Entries:
        """What a folder holds, ordered: relative paths, those of folders with a slash."""
        found: _Entries = []
        after = ""
        while True:
            query = {"op": "LISTSTATUS_BATCH"} | ({"startAfter": after} if after else {})
            try:
                answer = await self._call(session, "GET", root + relative, query)
            except ObjectNotFound:
                return []  # never made, or removed meanwhile
            with _expected(self._named(root + relative)):
                listing = answer["DirectoryListing"]
                page = listing["partialListing"]["FileStatuses"]["FileStatus"]
                remaining, before = int(listing["remainingEntries"]), after
                for status in page:
                    after = status["pathSuffix"]
                    if after and not after.startswith("."):
                        found.append(_entry(relative + after, status))
            if remaining and (not page or after == before):
                raise StoreUnavailable(
                    f"{self._named(root + relative)}: WebHDFS answers that {remaining} entries follow, and "
                    "does not give them"
                )
            if not remaining:
                found.sort(key=lambda entry: entry[0])
                return found

    async def _call(
        self, session: aiohttp.ClientSession, method: str, key: str, query: dict[str, str]
    ) -> dict[str, Any]:
        """Ask the NameNode. Returns: its answer, {} if that has no content. Raises: StoreError."""
        async with await self._ask(session, method, key, query) as response:
            with _store_errors(self._named(key)):
                body = await _first_bytes(response, _ANSWER_BYTES_MAX)
        answer = _decoded(body)
        # Something between us and HDFS that wants us elsewhere, or has a page of its own, did not do it.
        if response.status >= 300 or (body and not answer) or "RemoteException" in answer:
            raise _unlike_webhdfs(self._named(key), response.status)
        return answer

    async def _redirected(
        self, session: aiohttp.ClientSession, method: str, key: str, query: dict[str, str]
    ) -> str:
        """Where a DataNode takes or gives the content."""
        async with await self._ask(session, method, key, query) as response:
            location = response.headers.get("Location", "")
            if not location.startswith(("http://", "https://")):
                raise StoreUnavailable(
                    f"{self._named(key)}: WebHDFS answers HTTP {response.status} and names no DataNode"
                )
            return location

    async def _ask(
        self, session: aiohttp.ClientSession, method: str, key: str, query: dict[str, str]
    ) -> aiohttp.ClientResponse:
        """The answer of the first server that is not on standby, or away; the caller closes it.

        Raises: StoreError: the last server's, if none of them serves.
        """
        for server in self._servers:
            address = _as_is(self._address(server, key, query))
            try:
                with _store_errors(self._named(key)):
                    response = await session.request(method, address, allow_redirects=False)
                    try:
                        await _check(response)
                    except BaseException:
                        response.close()
                        raise
                    return response
            except StoreUnavailable:
                if server is self._servers[-1]:
                    raise
        raise AssertionError("a store has at least one server")

    def _address(self, server: str, key: str, query: dict[str, str]) -> str:
        # Each slash of an empty part counts to HDFS, so the last one of a folder goes.
        path = quote("/" + key.rstrip("/"), safe="/")
        return f"{server}/webhdfs/v1{path}?{urlencode({**query, **self._identity})}"

    def _named(self, key: str) -> str:
        return f"/{key} of {self._servers[0]}"


def _servers(url: StoreUrl, configured: str) -> tuple[str, ...]:
    """The addresses of NameNodes, each without a slash at its end."""
    if not configured:
        name = urlsplit(f"//{url.host}").hostname or ""
        name = f"[{name}]" if ":" in name else name
        return (f"http://{name}:{_HTTP_PORT}",)
    servers = tuple(one.strip().rstrip("/") for one in configured.split(","))
    for one in servers:
        if not one.startswith(("http://", "https://")) or "?" in one or "#" in one:
            raise ValidationError(
                f"webhdfs={one!r} of {url.text} is not the address of a NameNode "
                "(such as http://namenode:9870; several have commas between them)"
            )
    return servers


def _session() -> aiohttp.ClientSession:
    """One for each operation: HDFS closes connections by itself, and nothing is left behind."""
    import aiohttp  # noqa: PLC0415  slow to import, and only stores behind HTTP need it

    timeout = aiohttp.ClientTimeout(
        total=None, sock_connect=_CONNECT_TIMEOUT_S, sock_read=_READ_TIMEOUT_S
    )
    # The bytes are what counts: a proxy or server may not have them decoded on the way.
    return aiohttp.ClientSession(timeout=timeout, auto_decompress=False)


def _as_is(address: str) -> Any:
    """A URL whose escapes stay as they are."""
    import yarl  # noqa: PLC0415  comes with aiohttp

    return yarl.URL(address, encoded=True)


async def _pieces(fd: int, length: int) -> AsyncGenerator[bytes, None]:
    offset = 0
    while offset < length:
        count = min(PIECE_BYTES, length - offset)
        piece = await asyncio.to_thread(os.pread, fd, count, offset)
        if not piece:
            raise DataError(f"content ends at byte {offset}, {length} were to be stored")
        yield piece
        offset += len(piece)


def _entry(relative: str, status: dict[str, Any]) -> tuple[str, StoredObject | None]:
    if status["type"] != "FILE":
        return f"{relative}/", None
    time_s = int(status["modificationTime"]) // 1000
    return relative, StoredObject(relative, time_s, int(status["length"]))


def _without_query(address: str) -> str:
    """An address for errors, without its query, which has the delegation token."""
    return address.partition("?")[0]


@contextlib.contextmanager
def _expected(what: str) -> Iterator[None]:
    """Errors of an answer that has another form than those of WebHDFS as errors of a store."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError) as err:
        raise _unlike_webhdfs(what, 200) from err


def _unlike_webhdfs(what: str, status: int) -> StoreUnavailable:
    return StoreUnavailable(
        f"{what}: HTTP {status}, but no answer of WebHDFS (does `webhdfs` of the store's URL name a "
        "NameNode, and nothing in front of it that redirects or asks for a login?)"
    )


@contextlib.contextmanager
def _store_errors(what: str) -> Iterator[None]:
    """Errors of the network as errors of a store."""
    import aiohttp  # noqa: PLC0415

    try:
        yield
    except (aiohttp.ClientError, OSError) as err:  # a TimeoutError is an OSError
        raise StoreUnavailable(
            f"WebHDFS: {what}: {str(err) or type(err).__name__} (is it up, and does this machine reach it?)"
        ) from err


async def _check(response: aiohttp.ClientResponse) -> None:
    """Raises: StoreError: the answer is an error; its kind says whether that may pass."""
    if response.status < 400:
        return
    told = _decoded(await _first_bytes(response, _ERROR_BYTES_MAX)).get("RemoteException", {})
    told = told if isinstance(told, dict) else {}
    kind, message = str(told.get("exception", "")), str(told.get("message", ""))
    text = f"WebHDFS answers HTTP {response.status}: {kind}: {message}".rstrip(": ")
    # HDFS looks up the way to a file before it says that the file is missing.
    if kind in _MISSING or (kind in _REFUSED and "is not a directory" in message):
        raise ObjectNotFound(text)
    if kind in _REFUSED:
        raise AccessDenied(f"{text} (give the broker's user access to the folder)")
    if kind in _PASSING or response.status >= 500 or response.status == 429:
        raise StoreUnavailable(text)
    raise StoreError(text)


async def _first_bytes(response: aiohttp.ClientResponse, length_max: int) -> bytes:
    """A body; of one that is longer, its beginning."""
    body = bytearray()
    while len(body) < length_max and (piece := await response.content.read(length_max - len(body))):
        body += piece
    return bytes(body)


def _decoded(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {}
