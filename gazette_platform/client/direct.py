"""Fragments read straight from their store, past the brokers."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from gazette_platform.codecs import Decompressor, decompressor
from gazette_platform.errors import (
    ChecksumMismatch,
    DataError,
    ObjectNotFound,
    StoreError,
    StoreUnavailable,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from gazette_platform.protocol import Fragment

__all__ = ["fragment_file", "read_fragment"]

_PIECE_BYTES = 1 << 20
# A piece that inflates to more than this, as a decompression bomb does, is given in several.
_CONTENT_BYTES_MAX = 8 << 20
_CONNECT_TIMEOUT_S = 10.0
_STALL_TIMEOUT_S = 60.0


def fragment_file(url: str, file_root: Path | None) -> Path | None:
    """The local file of a ``file://`` fragment URL; None for other schemes.

    Raises: StoreError: it would not lie below the root, or is no URL.

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
    `offset` is; blocking work runs in threads. The check comes after the last piece.

    Args:
        url: signed URL, ``file``, ``http`` or ``https``.
        offset: of the journal, in the fragment.
        file_root: directory that ``file`` URLs are rooted at.

    Raises: ObjectNotFound, StoreError: nothing was read. StoreUnavailable: the store broke off.
        DataError: the stored bytes do not decompress, or to a wrong length.
        ChecksumMismatch: they are not the content that the fragment is named for.
    Cancellation: safe; closes the file or connection.
    """
    path = fragment_file(url, file_root)
    stored = _http_pieces(url) if path is None else _file_pieces(path)
    inflate = decompressor(fragment.codec)
    digest = hashlib.sha1(usedforsecurity=False)
    at = fragment.begin
    try:
        async for piece in stored:
            rest = piece
            while rest or not inflate.needs_input:
                content = await asyncio.to_thread(_digested, rest, inflate, digest)
                rest = b""
                begin, at = at, at + len(content)
                if at > fragment.end:
                    raise _too_long(fragment)
                if content and at > offset:
                    yield content[max(0, offset - begin) :]
        inflate.finish()
    except DataError as err:
        raise DataError(f"{url}: {err}") from err
    if at != fragment.end:
        raise DataError(f"{url}: unexpected EOF at offset {at}, expected {fragment.end}")
    if digest.digest() != fragment.sum:
        raise ChecksumMismatch(
            f"{url}: content has SHA-1 {digest.hexdigest()}, expected {fragment.sum.hex()}"
        )


def _too_long(fragment: Fragment) -> DataError:
    return DataError(
        f"did not read EOF at expected Fragment.End ({fragment.end}); "
        "the stored object is longer than its name says"
    )


def _digested(piece: bytes, inflate: Decompressor, digest: hashlib._Hash) -> bytes:
    content = inflate.decompress(piece, _CONTENT_BYTES_MAX)
    digest.update(content)
    return content


async def _file_pieces(path: Path) -> AsyncIterator[bytes]:
    try:
        file = await asyncio.to_thread(path.open, "rb", buffering=0)
    except FileNotFoundError as err:
        raise ObjectNotFound(f"{path} does not exist (is file_root the brokers' root?)") from err
    except OSError as err:
        raise StoreError(f"cannot read {path}: {err.strerror}") from err
    except ValueError as err:
        raise StoreError(f"cannot read {str(path)!r}: {err}") from err
    with file:
        while piece := await asyncio.to_thread(file.read, _PIECE_BYTES):
            yield piece


async def _http_pieces(url: str) -> AsyncIterator[bytes]:
    """Stored bytes by HTTP; the library must not decompress them."""
    import aiohttp  # noqa: PLC0415  slow to import, and only stores behind HTTP need it

    timeout = aiohttp.ClientTimeout(
        total=None, sock_connect=_CONNECT_TIMEOUT_S, sock_read=_STALL_TIMEOUT_S
    )
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as session,
            session.get(url, headers={"Accept-Encoding": "gzip"}) as response,
        ):
            if response.status == 404:
                raise ObjectNotFound(f'!OK fetching (404, "{url}")')
            if response.status != 200:
                raise StoreError(f'!OK fetching ({response.status}, "{url}")')
            async for piece in response.content.iter_chunked(_PIECE_BYTES):
                yield piece
    except (aiohttp.ClientError, TimeoutError) as err:
        raise StoreUnavailable(f"fetching {url}: {str(err) or type(err).__name__}") from err
