"""What a fragment store offers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator
    from pathlib import Path

__all__ = ["PIECE_BYTES", "FragmentStore", "ServerSideStore", "StoredObject"]

# Size in which objects are read: large enough that the hop between threads does not count.
PIECE_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object as a listing shows it."""

    path: str
    """Relative to the prefix that was listed."""
    mod_time: int
    """Unix seconds at which it was written."""
    size: int
    """Stored (maybe compressed) bytes."""


class FragmentStore(Protocol):
    """Objects under content paths; the prefix and rewriting of the store's URL happen inside.

    Every operation raises a `StoreError`: `ObjectNotFound`, `AccessDenied` (the store refuses us for
    good, so that another may be tried), or `StoreUnavailable` (may pass). Credentials that are wrong in
    themselves, and timeouts, are no `AccessDenied`: they concern every store.
    """

    @property
    def url(self) -> str:
        """The store's URL, exactly as specs have it."""
        ...

    async def exists(self, path: str) -> bool:
        """Whether the object exists. Cancellation: safe."""
        ...

    def get(self, path: str, *, piece_bytes: int = PIECE_BYTES) -> AsyncGenerator[bytes, None]:
        """The stored bytes in pieces; use ``contextlib.aclosing`` if you may leave early.

        An object that is replaced meanwhile is read to its end as it was.

        Args:
            piece_bytes: of a piece, about; less where many readers hold one each.
        """
        ...

    async def put(self, path: str, fd: int, length: int, *, content_encoding: str = "") -> None:
        """Store the first `length` bytes of `fd` as one object, replacing an existing one.

        The position of `fd` is neither used nor moved, and the caller may close it at any time
        after the call began.

        Args:
            content_encoding: what stores that speak HTTP should say of it, e.g. ``gzip``.

        Cancellation: nothing, or the whole object, is stored.
        """
        ...

    def list(self, prefix: str) -> AsyncIterator[StoredObject]:
        """Objects below `prefix`, a directory (empty, or ending in a slash), in order of path.

        Names that begin with a dot, below the prefix, are not listed: those are of brokers' own
        files. A missing directory lists nothing.
        """
        ...

    async def remove(self, path: str) -> None:
        """Delete the object. Raises: ObjectNotFound. Cancellation: it may be deleted or not."""
        ...

    async def sign_get(self, path: str, ttl_s: float) -> str:
        """A URL from which the object can be fetched without credentials for `ttl_s` seconds.

        It waits if credentials must be renewed, and asks the store nothing. Cancellation: safe.
        """
        ...

    def local_path(self, path: str) -> Path | None:
        """Where the object lies in this machine's file system; None if it does not."""
        ...


@runtime_checkable
class ServerSideStore(FragmentStore, Protocol):
    """A store that does by itself what else takes the reading of a whole object, or of a folder."""

    async def size(self, path: str) -> int:
        """Stored bytes of the object. Raises: ObjectNotFound. Cancellation: safe."""
        ...

    def get_range(self, path: str, begin: int, end: int) -> AsyncGenerator[bytes, None]:
        """Stored bytes [begin, end), in pieces; fewer where the object ends, none after its end."""
        ...

    async def copy(self, path: str, target: str) -> None:
        """Give the object a second path, replacing an existing object; no content is moved.

        Raises: ObjectNotFound. Cancellation: there may be a copy, of the whole object, or none.
        """
        ...
