"""The consumer group that tests share: it notices what a process met that its test did not bring about."""

from __future__ import annotations

import pytest
import pytest_asyncio

from gazette_platform.app import Application, MemoryStore
from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.testing.local import LocalConsumers

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]


class Nothing(Application):
    def new_store(self, shard, recorder):
        return MemoryStore({})

    def consume(self, txn, envelope):
        pass


@pytest.fixture
def consumers(etcd_server, etcd_prefix, tmp_path, client):
    return LocalConsumers(
        tmp_path, etcd=etcd_server.endpoint, prefix=f"{etcd_prefix}-group", client=client
    )


@pytest_asyncio.fixture
async def client(local_brokers):
    broker = await local_brokers.start()
    async with AsyncClient(ClientConfig(address=broker.endpoint)) as found:
        yield found


async def stays(consumers, process):
    pass


@pytest.mark.parametrize("end", [stays, LocalConsumers.leave, LocalConsumers.crash])
async def test_an_error_that_was_contained_fails_its_test(consumers, end):
    await consumers.__aenter__()
    process = await consumers.start(Nothing())
    process.faults.report("shard", "a-shard", ValueError("unforeseen"))
    await end(consumers, process)
    with pytest.raises(AssertionError, match="consumer consumer-1: ValueError: unforeseen"):
        await consumers.__aexit__(None)


async def test_what_a_test_brings_about_does_not(consumers):
    async with consumers:
        consumers.expect(KeyError)
        process = await consumers.start(Nothing())
        process.tasks.failure = KeyError("unforeseen")
        await consumers.crash(process)
