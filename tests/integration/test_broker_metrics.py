"""Metrics of a broker that serves: names and labels are Gazette's."""

from __future__ import annotations

import asyncio
import contextlib

import aiohttp
import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.testing.local import append
from gazette_platform.testing.waiting import eventually, patient

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

JOURNAL = "a/journal"
SPEC = JournalSpec(
    JOURNAL,
    1,
    fragment=FragmentSpec(
        length=1024, codec=CompressionCodec.NONE, stores=("file:///",), refresh_interval_ns=10**9
    ),
)


def key(name, **labels):
    return name, frozenset(labels.items())


async def scraped(broker):
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{broker.http_port}/debug/metrics") as response,
    ):
        text = await response.text()
    return {
        key(sample.name, **sample.labels): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def until(broker, name):
    """Scrape until a metric without labels is not 0."""

    async def counted():
        found = await scraped(broker)
        return found if found[key(name)] else None

    return await eventually(counted)


async def test_calls_are_counted_by_kind_method_and_code(cluster):
    broker = await cluster.start()
    stub = cluster.stub(broker)
    await cluster.apply(stub, SPEC)
    await append(stub, JOURNAL, b"x")
    with pytest.raises(grpc.aio.AioRpcError):
        await stub.ListFragments(pb.FragmentsRequest(journal="!"))

    def counted(name, kind, method, **labels):
        service = {"grpc_service": "protocol.Journal", "grpc_type": kind, "grpc_method": method}
        return key(f"grpc_server_{name}", **service, **labels)

    expected = {
        # `apply` of the kit appends nothing, to see that the journal is served.
        counted("started_total", "client_stream", "Append"): 2,
        counted("handled_total", "client_stream", "Append", grpc_code="OK"): 2,
        # The requests, the content of one, and the empty chunks that commit.
        counted("msg_received_total", "client_stream", "Append"): 5,
        counted("msg_sent_total", "client_stream", "Append"): 2,
        counted("handling_seconds_count", "client_stream", "Append"): 2,
        counted("handled_total", "unary", "ListFragments", grpc_code="Unknown"): 1,
    }
    found = {}
    # The end of a call is counted once its caller has the answer.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(patient(10)):
            while found != expected:
                scrape = await scraped(broker)
                found = {name: scrape.get(name) for name in expected}
    assert found == expected


async def test_the_leader_counts_assignments(cluster):
    broker = await cluster.start()
    await cluster.apply(cluster.stub(broker), SPEC)
    found = await until(broker, "gazette_allocator_assignment_added_total")
    for name in ("assignment_added_total", "items", "members", "desired_replication_slots"):
        assert found[key(f"gazette_allocator_{name}")] == 1
    assert found[key("gazette_allocator_converge_total")] > 0


async def test_stores_are_counted(cluster):
    broker = await cluster.start()
    stub = cluster.stub(broker)
    await cluster.apply(stub, SPEC)
    await append(stub, JOURNAL, b"x")
    await append(stub, JOURNAL, b"y")
    found = await until(broker, "gazette_spool_persisted_total")
    assert found[key("gazette_store_active")] == 1
    store = {"store": "file:///"}
    put = key("gazette_store_operation_total", **store, operation="put", status="success")
    assert found[put] >= 1
    assert found[key("gazette_store_health_check_total", **store, status="ok")] == 1


async def test_head_of_a_journal_that_is_gone_is_not_reported(cluster):
    broker = await cluster.start()
    stub = cluster.stub(broker)
    await cluster.apply(stub, SPEC)
    await append(stub, JOURNAL, b"x")
    head = key("gazette_write_head", journal=JOURNAL)
    assert (await scraped(broker))[head] == 1
    (listed,) = (await anext(aiter(stub.List(pb.ListRequest())))).journals
    request = pb.ApplyRequest()
    request.changes.add(expect_mod_revision=listed.mod_revision, delete=JOURNAL)
    assert (await stub.Apply(request)).status == pb.OK

    async def is_told_no_more():
        return head not in await scraped(broker)

    await eventually(is_told_no_more)
