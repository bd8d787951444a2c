"""Fragments read straight from their store, past the brokers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from gazette_platform.client.read_ahead import FragmentStream, ReadAhead
from gazette_platform.errors import ObjectNotFound, StoreError, StoreUnavailable
from gazette_platform.ops.tasks import TaskGroup

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from gazette_platform.protocol import Fragment

__all__ = ["fragment_file", "read_fragment", "stream_of"]

_PIECE_BYTES = 1 << 20
_CONNECT_TIMEOUT_S = 10.0
_STALL_TIMEOUT_S = 60.0


def fragment_file(url: str, file_root: Path | None) -> Path | None:
    """The local file of a ``file://`` fragment URL; None for other schemes.

    Raises: StoreError: it would not lie below the root, or is not a URL.

    >>> fragment_file("file:///a/b%20c", Path("/data"))
    PosixPath('/data/a/b c')
    """
    try:
        parts = urlsplit(url)
    except ValueError as err:
        raise StoreError(f"fragment URL {url!r}: {err}") from err
    if parts.scheme != "file":
        return None
    path = unquote(parts.path)
    # A malicious broker must not be able to make its clients read other files of this machine.
    if ".." in path.split("/") or "\0" in path:
        raise StoreError(f"fragment URL {url!r} does not lie below the root of its store")
    return (file_root or Path("/")) / path.lstrip("/")


async def read_fragment(
    fragment: Fragment, url: str, *, offset: int, file_root: Path | None = None
) -> AsyncGenerator[bytes, None]:
    """Content of `fragment` from `offset` to its end, out of the store behind `url`.

    The whole fragment is fetched, decompressed and checked against its length and SHA-1, whatever
    `offset` is; threads do that, ahead of whoever iterates. The check comes after the last piece.

    Args:
        url: signed URL, ``file``, ``http`` or ``https``.
        offset: of the journal, in the fragment.
        file_root: directory that ``file`` URLs are rooted at.

    Raises: ObjectNotFound, StoreError: nothing was read. StoreUnavailable: the store broke off.
        DataError: the stored bytes do not decompress, or to a wrong length.
        ChecksumMismatch: they are not the content that the fragment is named for.
    Cancellation: safe; closes the file or connection.
    """
    tasks = TaskGroup("read-fragment")
    pool = ReadAhead(tasks)
    stream: FragmentStream | None = None
    try:
        stream = stream_of(pool, fragment, url, offset=offset, file_root=file_root)
        while (piece := await stream.next()) is not None:
            yield piece
    finally:
        if stream is not None:
            stream.close()
        pool.close()
        await tasks.close()


def stream_of(
    pool: ReadAhead,
    fragment: Fragment,
    url: str,
    *,
    offset: int,
    file_root: Path | None,
    is_first: bool = True,
) -> FragmentStream:
    """The content of a fragment behind a URL; see `FragmentStream`. Raises: StoreError: no such URL."""
    source = fragment_file(url, file_root) or _http_pieces(url)
    return FragmentStream(pool, fragment, _shown(url), source, offset=offset, is_first=is_first)


def _shown(url: str) -> str:
    """A URL for people, without the part after `?`, which lets anyone fetch the object for as long as it is signed."""
    return url.partition("?")[0]


async def _http_pieces(url: str) -> AsyncGenerator[bytes, None]:
    """Stored bytes by HTTP; the library must not decompress them."""
    import aiohttp  # noqa: PLC0415  slow to import, and only stores behind HTTP need it

    timeout = aiohttp.ClientTimeout(
        total=None, sock_connect=_CONNECT_TIMEOUT_S, sock_read=_STALL_TIMEOUT_S
    )
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as session,
            session.get(
                url, headers={"Accept-Encoding": "gzip"}, read_bufsize=_PIECE_BYTES
            ) as response,
        ):
            if response.status == 404:
                raise ObjectNotFound(f'!OK fetching (404, "{_shown(url)}")')
            if response.status != 200:
                raise StoreError(f'!OK fetching ({response.status}, "{_shown(url)}")')
            async for piece in response.content.iter_chunked(_PIECE_BYTES):
                yield piece
    except (aiohttp.ClientError, TimeoutError) as err:
        raise StoreUnavailable(f"fetching {_shown(url)}: {str(err) or type(err).__name__}") from err
