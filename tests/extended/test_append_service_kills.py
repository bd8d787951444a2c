"""The append service against brokers that are killed in the middle of an append."""

import asyncio
import random

import pytest
from append_records import checked, produced, spec

from gazette_platform.client import AsyncClient, Change, ClientConfig
from gazette_platform.testing.cluster import BrokerCluster
from gazette_platform.testing.waiting import eventually, pass_time

pytestmark = pytest.mark.etcd


async def test_a_broker_that_is_killed_in_mid_append_loses_nothing(broker):
    async with AsyncClient(ClientConfig(address=broker.address)) as client:
        journals = ["a/one", "a/two"]
        await client.apply([Change(spec(name)) for name in journals])
        service = client.append_service()

        async def written():
            return sum([await client.write_head(name) for name in journals])

        async def has_grown(head):
            return await written() > head

        async with asyncio.timeout(100), asyncio.TaskGroup() as tasks:
            is_killed_twice = asyncio.Event()
            producing = produced(
                service,
                journals,
                tasks=20,
                goes_on=lambda _: not is_killed_twice.is_set(),
                pause_s=0.05,
            )
            work = tasks.create_task(producing)
            for _ in range(2):
                head = await written() + 20_000
                await eventually(lambda head=head: has_grown(head))
                broker.kill()
                await asyncio.to_thread(broker.start)
            is_killed_twice.set()
            taken = await work
            await service.close()
            await checked(client, taken)


async def test_a_primary_that_is_killed_loses_nothing_of_a_writer(etcd_server, tmp_path):
    cluster = BrokerCluster(
        tmp_path, etcd=etcd_server.endpoint, prefix="/append-service", zones="abc"
    )
    async with cluster:
        addresses = ",".join(each.address for each in cluster.brokers.values())
        async with AsyncClient(ClientConfig(address=addresses)) as client, asyncio.timeout(100):
            await client.apply([Change(spec("a/one", replication=2))])
            service = client.append_service()
            writer = service.writer("a/one")
            rng = random.Random(7)
            records = [b"%06d %s\n" % (n, b"x" * rng.randrange(200)) for n in range(60_000)]
            for n, record in enumerate(records):
                writer.write(record)
                if n % 500 == 0:
                    await writer.drain()
                    await pass_time(0.005)
                if n == len(records) // 2:
                    route = (await client.get("a/one")).route
                    primary = route.members[route.primary].suffix
                    cluster.brokers[primary].kill()
            await writer.flush()
            found = (await client.read("a/one").read()).splitlines(keepends=True)
            await service.close()
    # A batch whose answer was lost is duplicated, whole, and before what follows it.
    firsts = list(dict.fromkeys(found))
    assert firsts == records
