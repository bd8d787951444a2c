"""How tests reach object stores: through a driver, and by a signed URL as anybody would."""

from __future__ import annotations

import aiohttp
import yarl

from gazette_platform.stores import open_store

__all__ = ["fetch", "opened"]


def opened(url):
    """The store of a URL that names no folder."""
    return open_store(url, file_root=None)


async def fetch(url, **headers):
    """GET without credentials, and without decompressing. Returns: response and body."""
    async with (
        aiohttp.ClientSession(auto_decompress=False) as session,
        session.get(yarl.URL(url, encoded=True), headers=headers) as response,
    ):
        return response, await response.read()
