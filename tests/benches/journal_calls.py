"""What tests of brokers in processes of their own do with a journal of one fragment, kept at the broker."""

from __future__ import annotations

import asyncio

from journal_specs import journal_spec

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.testing.waiting import patient

JOURNAL = "a/journal"


def spec(name=JOURNAL, *, replication=1, length=1 << 30, stores=("file:///",)):
    """A journal whose content stays in spools, unless its fragments reach a length."""
    return journal_spec(name, replication, length=length, stores=stores, refresh_s=3600)


def client_of(server, **options):
    """A client of a broker, whether that is a process of its own or not."""
    address = getattr(server, "address", None) or server.endpoint
    return AsyncClient(ClientConfig(address=address, **options))


async def read_all(client, journal=JOURNAL):
    """Content from the beginning to the end, as one piece."""
    content = b""
    async with asyncio.timeout(patient(60)):
        async for piece in client.read(journal):
            content += piece
    return content
