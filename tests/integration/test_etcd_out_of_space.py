"""Brokers on an etcd that has reached its quota, or refuses what it is given."""

from __future__ import annotations

import pytest
from grpc import aio
from journal_specs import journal_spec

from gazette_platform.client import AsyncClient, Change, ClientConfig
from gazette_platform.errors import EtcdError, GazetteError
from gazette_platform.etcd import EtcdClient, wire
from gazette_platform.testing.etcd import EtcdServer
from gazette_platform.testing.local import LocalBrokers

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

QUOTA = 4 << 20


def spec(name, **labels):
    return journal_spec(name, labels=labels)


@pytest.fixture
def small_etcd(etcd_binary):
    with EtcdServer(etcd_binary, arguments=[f"--quota-backend-bytes={QUOTA}"]) as server:
        yield server


@pytest.fixture
async def client(small_etcd, tmp_path):
    async with LocalBrokers(tmp_path, etcd=small_etcd.endpoint, prefix="/full") as brokers:
        broker = await brokers.start()
        async with AsyncClient(ClientConfig(address=broker.endpoint)) as client:
            yield client


async def fill(etcd):
    for n in range(100):
        try:
            await etcd.put(f"/elsewhere/{n}", bytes(1 << 18))
        except EtcdError as err:
            return err
    raise AssertionError("etcd takes more than its quota")


async def mend(etcd, endpoint):
    async with aio.insecure_channel(endpoint.rpartition("/")[2]) as channel:
        # Not in a transaction: etcd 3.5.1 does that, says that it is full, and raises the alarm again.
        keys = wire.rpc_pb2.DeleteRangeRequest(key=b"/elsewhere/", range_end=b"/elsewhere0")
        await wire.stubs.KVStub(channel).DeleteRange(keys)
        found = await etcd.range("/elsewhere/")
        await etcd.compact(found.header.revision)
        maintenance = wire.stubs.MaintenanceStub(channel)
        await maintenance.Defragment(wire.rpc_pb2.DefragmentRequest())
        alarms = await maintenance.Alarm(wire.rpc_pb2.AlarmRequest(action="GET"))
        for alarm in alarms.alarms:
            off = {"action": "DEACTIVATE", "memberID": alarm.memberID, "alarm": alarm.alarm}
            await maintenance.Alarm(wire.rpc_pb2.AlarmRequest(**off))


async def test_apply_says_that_etcd_is_out_of_space(client, small_etcd):
    await client.apply([Change(spec("a/before"))])
    async with EtcdClient([small_etcd.endpoint]) as etcd:
        full = await fill(etcd)
        assert full.retriable
        assert "outcome unknown" not in str(full)
        with pytest.raises(GazetteError, match="etcd is out of space") as caught:
            await client.apply([Change(spec("a/journal"))])
        assert "reachable" not in str(caught.value)
        assert "address" not in str(caught.value)
        assert small_etcd.endpoint.rpartition("/")[2] not in str(caught.value)
        # What needs no etcd goes on.
        assert (await client.append("a/before", b"content")).end == 7
        await mend(etcd, small_etcd.endpoint)
    await client.apply([Change(spec("a/journal"))])
    assert (await client.append("a/journal", b"content")).end == 7


@pytest.mark.parametrize("labels", [60, 100])
async def test_an_apply_that_etcd_finds_too_large_fails_at_once(client, small_etcd, labels):
    # Of 100 specs: some 1.6 MB, which etcd refuses, and 2.7 MB, which its gRPC server refuses.
    texts = {f"label-{n:03}": "x" * 250 for n in range(labels)}
    changes = [Change(spec(f"a/{n:03}", **texts)) for n in range(100)]
    with pytest.raises(GazetteError, match="too large for one transaction of etcd") as caught:
        await client.apply(changes)
    assert not caught.value.retriable
    assert small_etcd.endpoint.rpartition("/")[2] not in str(caught.value)
