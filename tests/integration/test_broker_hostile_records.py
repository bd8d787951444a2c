"""Epoch records in etcd that no broker has written: they cost their own journal, and no other."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from grpc import StatusCode, aio
from journal_specs import journal_spec

from gazette_platform.broker import etcd_records
from gazette_platform.broker.epochs import EpochRecord, Holder
from gazette_platform.broker.etcd_records import epoch_key, journal_holders
from gazette_platform.etcd import EtcdClient, Put
from gazette_platform.protocol import ProcessId
from gazette_platform.testing.local import append
from gazette_platform.testing.waiting import eventually

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

BAD = "a/bad"
RECORDS = {
    "newer": b'{"version": 2}',
    "deep": b"[" * 100_000,
    "holder": b'{"version": 1, "create_revision": %d, "epoch": 1, "holders": [[[], "z", "s"]], '
    b'"past": [], "released": null, "wanted": false}',
    "head": b'{"version": 1, "create_revision": %d, "epoch": 1, "holders": [], "past": [], '
    b'"released": {"head": "9", "registers": []}, "wanted": false}',
    "far": b'{"version": 1, "create_revision": %d, "epoch": 1, "holders": [], "past": [], '
    b'"released": {"head": 9223372036854775808, "registers": []}, "wanted": false}',
}


@pytest.fixture
async def etcd(etcd_server):
    client = EtcdClient([etcd_server.endpoint])
    await client.connect()
    yield client
    await client.close()


def spec(name):
    return journal_spec(name)


async def spoil(etcd, broker, value):
    """Replace the record of the journal BAD."""
    created = broker._context.space.state.items[BAD].create_revision
    raw = value.replace(b"%d", b"%d" % created)
    await etcd.txn([], [Put(epoch_key(broker.config.etcd_prefix, BAD), raw)])


@pytest.mark.parametrize("value", RECORDS.values(), ids=RECORDS.keys())
async def test_a_record_that_is_none_keeps_no_other_head_from_being_noted(
    cluster, etcd, caplog, value
):
    broker, observer = await cluster.start(), await cluster.start(journal_limit=0)
    stub = cluster.stub(broker)
    names = [f"a/good-{number:02d}" for number in range(70)]
    await cluster.apply(stub, *map(spec, [BAD, *names]))
    await asyncio.gather(*(append(stub, name, b"content") for name in names))
    await spoil(etcd, broker, value)
    await broker.drain()
    items = observer._context.space.state.items

    def unnoted():
        suspends = {name: items[name].spec.suspend for name in names}
        return [name for name, one in suspends.items() if one is None or one.offset != 7]

    await eventually(lambda: not unnoted())
    assert f"{BAD}: its write head 0 is not noted in etcd" in caplog.text


@pytest.mark.parametrize("value", RECORDS.values(), ids=RECORDS.keys())
async def test_invalid_record_is_reported_to_whoever_appends(cluster, etcd, value):
    """And is not a fault of the broker."""
    first = await cluster.start(zone="za")
    await cluster.apply(cluster.stub(first), spec(BAD))
    await spoil(etcd, first, value)
    # Another broker takes the journal over, and asks etcd who holds it.
    second = await cluster.start(zone="zb", append_wait_s=0.5)
    await first.abandon()
    await first._lease.revoke()
    await eventually(lambda: BAD in second._resolver.replicas)
    with pytest.raises(aio.AioRpcError, match="is not understood") as caught:
        await append(cluster.stub(second), BAD, b"content")
    assert caught.value.code() is StatusCode.UNKNOWN


async def test_holders_are_read_of_the_journals_that_are_asked_for(etcd, etcd_prefix):
    """Whatever other records exist, which may be tens of thousands."""
    held = EpochRecord(7, 1, (Holder("t0", ProcessId("zone", "broker")),))
    values = {f"a/{number:04d}": held.encode() for number in range(2 * etcd_records._PAGE_KEYS)}
    wanted = replace(held, is_wanted=True).encode()
    values |= {"b/wanted": wanted, "b/\N{SNOWMAN}\n": b"\0", "b/": b"", "c/last": held.encode()}
    values |= {f"b/{kind}": value for kind, value in RECORDS.items()}
    puts = [Put(epoch_key(etcd_prefix, name), value) for name, value in values.items()]
    for at in range(0, len(puts), 100):
        await etcd.txn([], puts[at : at + 100])
    found = await journal_holders(etcd, etcd_prefix, {*values, "d/none"} - {"a/0001"})
    good = [name for name, value in values.items() if value == held.encode()]
    assert found == {name: {"t0"} for name in good if name != "a/0001"}
    assert await journal_holders(etcd, etcd_prefix + "x", values) == {}
