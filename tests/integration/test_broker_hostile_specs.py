"""Specs, stores and selectors that mean harm, at a real broker: it lives, and serves everybody else."""

from __future__ import annotations

import grpc
import pytest

from gazette_platform.etcd import Put
from gazette_platform.keyspace import item_key
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec, LabelSet
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.testing.local_broker import LocalBrokers, append, eventually, read_all

pytestmark = pytest.mark.etcd

GOOD = "tenant/good"
HOSTILE_URLS = [
    "file:///x%00y/",
    "file:///x%0ay/",
    "file:///?find=a&replace=%00",
    "file:///%ed%a0%80/",
]


@pytest.fixture
async def cluster(etcd_server, etcd_prefix, tmp_path):
    async with LocalBrokers(tmp_path, etcd=etcd_server.endpoint, prefix=etcd_prefix) as brokers:
        yield brokers


@pytest.fixture
async def broker(cluster):
    return await cluster.start()


@pytest.fixture
async def stub(cluster, broker):
    return cluster.stub(broker)


def spec(name, *stores, postfix="", **labels):
    return JournalSpec(
        name,
        1,
        labels=LabelSet.of(labels),
        fragment=FragmentSpec(
            length=1024,
            codec=CompressionCodec.NONE,
            refresh_interval_ns=10**9,
            stores=stores,
            path_postfix_template=postfix,
        ),
    )


def upserts(*specs):
    request = pb.ApplyRequest()
    for each in specs:
        request.changes.add(expect_mod_revision=-1).upsert.CopyFrom(each.to_pb())
    return request


async def failure(call):
    """Code and text of a call that must fail."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details()


async def serves(cluster, stub, name=GOOD):
    """Whether the broker takes appends and gives them back."""
    await cluster.apply(stub, spec(name))
    assert (await append(stub, name, b"content")).status == pb.OK
    return (await read_all(stub, name)).endswith(b"content")


@pytest.mark.parametrize("url", HOSTILE_URLS[:3])
async def test_hostile_store_urls_are_refused(cluster, broker, stub, url):
    code, _ = await failure(stub.Apply(upserts(spec("tenant/bad", url))))
    assert code is grpc.StatusCode.UNKNOWN
    health = pb.FragmentStoreHealthRequest(fragment_store=url)
    code, _ = await failure(stub.FragmentStoreHealth(health, timeout=20))
    assert code is grpc.StatusCode.UNKNOWN
    assert await serves(cluster, stub)
    assert broker.failure is None


async def test_hostile_specs_in_etcd_do_not_end_brokers(etcd, etcd_prefix, cluster, broker, stub):
    """They may have come before brokers knew better, or by Gazette's own."""
    template = '{{if .Spool.End}}{{len (printf "%c" 55296)}}{{end}}'
    hostile = [spec(f"tenant/bad-{n}", url) for n, url in enumerate(HOSTILE_URLS)]
    hostile.append(spec("tenant/bad-long", f"file:///{'x' * 300}/"))
    hostile.append(spec("tenant/bad-template", "file:///", postfix=template))
    for each in hostile:
        await etcd.txn(
            [], [Put(item_key(etcd_prefix, each.name), each.to_pb().SerializeToString())]
        )
    assert await serves(cluster, stub)
    again = await cluster.start()  # as at the start that follows
    assert await serves(cluster, cluster.stub(again), "tenant/other")
    await eventually(lambda: broker.failure is None and again.failure is None)
