"""What a fragment store offers, how its URL turns content paths into object keys, and whether it does what brokers need of it."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, Self, runtime_checkable

from gazette_platform.errors import (
    GazetteError,
    ObjectNotFound,
    StoreError,
    StoreUnavailable,
    ValidationError,
)
from gazette_platform.protocol.specs import is_nameable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from gazette_platform.protocol import StoreUrl


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


OWN_DIRECTORY: Final = ".test/"
"""Where brokers keep objects of their own, below the prefix. Its paths are never rewritten: otherwise a
check of the store could overwrite any object that a URL names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRule:
    """Joins the prefix of a store to content paths, after an optional rewriting of them."""

    prefix: str
    """Of all keys: empty, or ends in a slash; never begins with one."""
    find: str = ""
    """The first occurrence of this text in a content path is replaced; empty: nothing is."""
    replace: str = ""

    @classmethod
    def of(cls, prefix: str, args: dict[str, str]) -> Self:
        """The rule of a store with `prefix`, given its (lower-case) arguments."""
        return cls(prefix=prefix, find=args.get("find", ""), replace=args.get("replace", ""))

    def key(self, path: str) -> str:
        """The object key of a content path, or of the prefix of a listing.

        Raises: StoreError: the path would leave the prefix, or is none that a store can have.
        """
        rewritten = self._rewritten(path)
        key = self.prefix + rewritten
        if rewritten.startswith("/") or ".." in key.split("/"):
            raise StoreError(f"path {path!r} does not stay below the prefix of its store")
        # Other programs may write specs to etcd, too, and the system refuses such names with a ValueError.
        if not is_nameable(key):
            raise StoreError(f"path {key!r} has control characters, or is not Unicode")
        return key

    def folder(self, prefix: str, url: str) -> str:
        """The key of a folder of a bucket that is to be listed: empty, or ends in a slash.

        Raises: StoreError: `prefix` is not a directory, or is rewritten to none; names the `url`.
        """
        if prefix and not prefix.endswith("/"):
            raise StoreError(f"prefix {prefix!r} of a listing must end with '/'")
        key = self.key(prefix)
        if key and not key.endswith("/"):
            raise StoreError(
                f"fragment store {url} rewrites {prefix} to {key}, which is not a directory "
                "(let `find` and `replace` both end at a slash, or neither)"
            )
        return key

    def directory(self, journal: str, *, postfix: str | None = None) -> str:
        """The key, ending in a slash, below which all objects of a journal lie.

        Args:
            postfix: the template of what follows the journal in their paths; None: any may.

        Raises: StoreError: they would not lie below one, or above the prefix.
        """
        directory = f"{journal}/"
        key = self.key(directory)
        # A text to find that begins in the name and ends in a postfix rewrites some paths only.
        straddles = self.find not in directory and any(
            directory.endswith(self.find[:length]) and _may_follow(self.find[length:], postfix)
            for length in range(1, len(self.find))
        )
        if straddles or (key and not key.endswith("/")):
            raise StoreError(
                f"find={self.find!r} and replace={self.replace!r} do not keep {journal} in one "
                "folder (let both end at a slash, or neither)"
            )
        return key

    def _rewritten(self, path: str) -> str:
        if not self.find or path.startswith(OWN_DIRECTORY):
            return path
        directory, slash, name = path.rpartition("/")
        if name.startswith("."):
            # Brokers write and remove objects of their own there, which must never hit another object.
            return (directory + slash).replace(self.find, self.replace, 1) + name
        return path.replace(self.find, self.replace, 1)


def _may_follow(text: str, postfix: str | None) -> bool:
    """Whether what follows a journal in the path of one of its objects may begin with `text`."""
    if postfix is None or _FRAGMENT_NAME.fullmatch(text):
        return True  # what has no valid postfix is stored without
    literal = _LITERAL.match(postfix.partition("{{")[0])
    if postfix and (literal is None or ".." in postfix):
        return True
    return literal is not None and (literal[0].startswith(text) or text.startswith(literal[0]))


# The beginning of a fragment's name, and that of a postfix which is the same for all fragments.
_FRAGMENT_NAME: Final = re.compile(r"[0-9a-f]{1,16}(-.*)?")
_LITERAL: Final = re.compile(r"[\w=-]+")


def check_segments(rule: KeyRule, url: str) -> None:
    """Refuse prefixes with segments that HTTP clients drop from the paths of URLs.

    Raises: ValidationError: names the `url`.
    """
    if any(part in ("", ".") for part in rule.prefix.split("/")[:-1]):
        raise ValidationError(
            f"fragment store {url}: the path has an empty segment, or '.' (leave it out)"
        )


def take_args(url: StoreUrl, known: frozenset[str]) -> dict[str, str]:
    """The arguments of a store's URL by lower-case name.

    Args:
        known: lower-case names that the driver understands beside ``find`` and ``replace``.

    Raises: ValidationError: another argument is given, or one twice.
    """
    args: dict[str, str] = {}
    allowed = known | {"find", "replace"}
    for name, value in url.args.items():
        lower = name.lower()
        if lower not in allowed:
            raise ValidationError(
                f"unknown query argument {name!r} of fragment store {url.text} "
                f"(known: {', '.join(sorted(allowed))})"
            )
        if lower in args:
            raise ValidationError(f"query argument {name!r} of {url.text} is given twice")
        args[lower] = value
    return args


HEALTH_CHECK_PATH: Final = ".test/health-check"
HEALTH_CHECK_CONTENT: Final = b"health-check\n"
DELETE_PROBE_PATH: Final = ".gazette-delete-probe"

_DELETE_PROBE_CONTENT = b"gazette-delete-probe\n"
_CHECK_TIMEOUT_S = 60.0
# A server that a spec names may answer with anything, and without end.
_READ_BYTES_MAX = 1 << 16
_SIGNATURE_TTL_S = 300.0


async def put_bytes(store: FragmentStore, path: str, content: bytes) -> None:
    """Put a few bytes. Raises: StoreError, OSError. Cancellation: as `FragmentStore.put`."""
    # In memory, because a full folder of temporary files says nothing about the store.
    fd = os.memfd_create("gazette-probe")
    try:
        os.pwrite(fd, content, 0)
        await store.put(path, fd, len(content))
    finally:
        os.close(fd)


async def fetch_url(url: str) -> bytes:
    """The body that a signed URL answers with; of a long one, its beginning. Raises: StoreError."""
    import aiohttp  # noqa: PLC0415  slow to import, and only stores behind HTTP need it

    try:
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            if not response.ok:
                raise StoreUnavailable(f"GET of the signed URL answers HTTP {response.status}")
            return await response.read()
    except aiohttp.ClientError as err:
        raise StoreUnavailable(f"GET of the signed URL failed: {err}") from err


async def health_check(
    store: FragmentStore,
    *,
    fetch: Callable[[str], Awaitable[bytes]] = fetch_url,
    timeout_s: float = _CHECK_TIMEOUT_S,
) -> None:
    """Write, read, list and sign a small object of a fixed name, which stays there.

    Args:
        fetch: gets the body of a signed http(s) URL.
        timeout_s: seconds for all of it.

    Raises: StoreError: says which step failed, and how.
    Cancellation: safe.
    """
    step = "PUT"
    try:
        async with asyncio.timeout(timeout_s):
            await put_bytes(store, HEALTH_CHECK_PATH, HEALTH_CHECK_CONTENT)
            step = "GET"
            _compare(await _content(store))
            step = "LIST"
            directory, _, _ = HEALTH_CHECK_PATH.rpartition("/")
            async for _ in store.list(f"{directory}/"):
                pass
            step = "SIGN"
            signed_url = await store.sign_get(HEALTH_CHECK_PATH, _SIGNATURE_TTL_S)
            if signed_url.startswith(("http://", "https://")):
                step = "signed GET"
                _compare(await fetch(signed_url))
    except TimeoutError as err:
        raise StoreUnavailable(f"{step} of the health check took over {timeout_s:g} s") from err
    except (GazetteError, OSError) as err:
        raise _of_step(f"health check {step} failed", err) from err


async def delete_probe(
    store: FragmentStore, *, prefix: str = "", timeout_s: float = _CHECK_TIMEOUT_S
) -> None:
    """Write and remove a small object, to learn whether fragments could be pruned.

    Args:
        prefix: where below the store's root, "" or ending in ``/``.
        timeout_s: seconds for both steps.

    Raises: StoreError: names the step that failed.
    Cancellation: the object may stay; its name is hidden from listings.
    """
    step = "PUT"
    try:
        async with asyncio.timeout(timeout_s):
            await put_bytes(store, prefix + DELETE_PROBE_PATH, _DELETE_PROBE_CONTENT)
            step = "DELETE"
            await store.remove(prefix + DELETE_PROBE_PATH)
    except TimeoutError as err:
        raise StoreUnavailable(f"delete-probe {step} failed: over {timeout_s:g} s") from err
    except (GazetteError, OSError) as err:
        raise _of_step(f"delete-probe {step} failed", err) from err


async def clock_probe(store: FragmentStore, *, timeout_s: float = _CHECK_TIMEOUT_S) -> int:
    """Write, list and remove a small object, to learn what time it is by the clock of the store.

    Args:
        timeout_s: seconds for all steps.

    Returns: the Unix seconds at which the store says that it was written.
    Raises: StoreError: names the step that failed.
    Cancellation: the object may stay, beside that of health checks, where no journal is.
    """
    folder = HEALTH_CHECK_PATH.rpartition("/")[0]
    name = f"clock-{secrets.token_hex(8)}"
    step = "PUT"
    try:
        async with asyncio.timeout(timeout_s):
            await put_bytes(store, f"{folder}/{name}", _DELETE_PROBE_CONTENT)
            step = "LIST"
            times = [item.mod_time async for item in store.list(f"{folder}/") if item.path == name]
            step = "DELETE"
            with suppress(ObjectNotFound):
                await store.remove(f"{folder}/{name}")
    except TimeoutError as err:
        raise StoreUnavailable(f"clock probe {step} failed: over {timeout_s:g} s") from err
    except (GazetteError, OSError) as err:
        raise _of_step(f"clock probe {step} failed", err) from err
    if not times:
        raise StoreUnavailable("clock probe LIST failed: what was just written is not listed")
    return times[0]


async def _content(store: FragmentStore) -> bytes:
    """What is stored at the path of the check; of a long object, its beginning."""
    found = bytearray()
    async with aclosing(store.get(HEALTH_CHECK_PATH)) as pieces:
        async for piece in pieces:
            found += piece
            if len(found) >= _READ_BYTES_MAX:
                break
    return bytes(found)


def _compare(content: bytes) -> None:
    if content != HEALTH_CHECK_CONTENT:
        raise StoreError(
            f"content mismatch: expected {HEALTH_CHECK_CONTENT!r}, read {content[:64]!r}"
        )


def _of_step(what: str, error: GazetteError | OSError) -> StoreError:
    """The same kind of store error, with the step that met it."""
    kind: type[StoreError] = type(error) if isinstance(error, StoreError) else StoreError
    if isinstance(error, OSError):
        kind = StoreUnavailable  # this machine lacks memory or descriptors, which passes
    return kind(f"{what}: {error}")
