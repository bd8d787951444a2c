"""Whether a fragment store does what brokers need of it."""

from __future__ import annotations

import asyncio
import os
import secrets
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Final

from gazette_platform.errors import GazetteError, ObjectNotFound, StoreError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gazette_platform.stores.interface import FragmentStore


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
