"""Writing answers to clients that may have left, or take nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gazette_platform.serving.interface import Code, NotTaken

if TYPE_CHECKING:
    from aiohttp import web

__all__ = ["ClientGone", "caller_metadata", "written"]

# A client that takes nothing for so long has gone, or will connect again.
_STALL_S = 60.0


class ClientGone(NotTaken):
    """The client has left, or takes nothing."""

    def __init__(self, text: str) -> None:
        super().__init__(Code.CANCELLED, text)


async def written(
    request: web.Request, response: web.StreamResponse, content: bytes | memoryview
) -> None:
    """Write once there is room. Raises: NotTaken: the client has gone, or takes nothing."""
    try:
        async with asyncio.timeout(_STALL_S):
            await response.write(content)
    except TimeoutError as err:
        if request.transport is not None:
            request.transport.abort()
        raise ClientGone(f"nothing was taken for {_STALL_S:g} s") from err
    except ConnectionError as err:
        raise ClientGone(str(err)) from err


def caller_metadata(request: web.Request) -> dict[str, str]:
    """What an RPC knows of its caller: the token."""
    token = request.headers.get("Authorization", "")
    return {"authorization": token} if token else {}
