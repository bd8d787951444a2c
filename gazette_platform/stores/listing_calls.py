"""Ask an object store for one page of a listing, and try again what may pass."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from gazette_platform.stores.listings import OddAnswer

if TYPE_CHECKING:
    from collections.abc import Mapping

    import aiohttp

__all__ = ["answer_to", "listing_session"]

_CONNECT_TIMEOUT_S: Final = 5.0
_READ_TIMEOUT_S: Final = 60.0  # of silence
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
