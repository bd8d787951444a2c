"""The client against a broker that is stopped and started again."""

import asyncio

import pytest
from journal_specs import journal_spec

from gazette_platform.client import AsyncClient, Change, ClientConfig
from gazette_platform.errors import TransportError
from gazette_platform.protocol import CompressionCodec

pytestmark = pytest.mark.etcd


def spec(name, *, codec=CompressionCodec.GZIP, length=1 << 20, **fields):
    return journal_spec(name, length=length, codec=codec, labels={"env": "test"}, **fields)


@pytest.fixture
def name(names):
    """A journal of this test's own."""
    return names.prefix


async def test_calls_survive_a_restart_of_the_broker(broker):
    client = AsyncClient(ClientConfig(address=broker.address))
    await client.apply([Change(spec("a/one"))])
    await client.append("a/one", b"before\n")
    reader = client.read("a/one", block=True)
    assert bytes(await anext(reader)) == b"before\n"
    writer = client.append_writer("a/one")
    assert await asyncio.to_thread(broker.stop) == 0
    ticket = await writer.write(b"after\n")
    restart = asyncio.get_running_loop().run_in_executor(None, broker.start)
    async with asyncio.timeout(40):
        assert await ticket == (7, 13)
        assert bytes(await anext(reader)) == b"after\n"
        await restart
    await writer.close()
    await reader.aclose()
    await client.close()


async def test_stopped_broker_is_named(broker):
    broker.kill()
    config = ClientConfig(address=broker.address, connect_timeout_s=1.0)
    async with AsyncClient(config) as other:
        with pytest.raises(TransportError, match=f"{broker.address} is not reachable"):
            await other.list()
