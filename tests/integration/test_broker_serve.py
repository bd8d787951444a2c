"""A broker as a process: readiness, metrics, ports, lost leases; and whom it answers for."""

from __future__ import annotations

import asyncio
import signal
import sys

import aiohttp
import grpc
import pytest

from gazette_platform.broker.context import Membership
from gazette_platform.broker.journal.resolver import Resolver
from gazette_platform.errors import LeaseLost, SetupError, TransportError
from gazette_platform.protocol import (
    CompressionCodec,
    FragmentSpec,
    JournalSpec,
    ProcessId,
    Status,
)
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.serving.config import Wire
from gazette_platform.testing.fault_proxy import FaultProxy
from gazette_platform.testing.local import AppendCall, append, calls_begun
from gazette_platform.testing.waiting import eventually, patient

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

JOURNAL = "a/journal"
SPEC = JournalSpec(
    JOURNAL,
    1,
    fragment=FragmentSpec(
        length=1 << 20,
        codec=CompressionCodec.GZIP,
        stores=("file:///",),
        refresh_interval_ns=10**9,
    ),
)


@pytest.fixture
async def broker(cluster):
    return await cluster.start()


@pytest.fixture
async def stub(cluster, broker):
    return cluster.stub(broker)


# -------------------------------------------------------------------------------------------- http
async def test_readiness_and_metrics(cluster, broker, stub):
    await cluster.apply(stub, SPEC)
    await append(stub, JOURNAL, b"x")
    address = f"http://127.0.0.1:{broker.http_port}/debug"
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{address}/ready") as response:
            assert (response.status, await response.text()) == (200, "ready\n")
        async with session.get(f"{address}/metrics") as response:
            assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            text = await response.text()
        assert 'gazette_write_head{journal="a/journal"} 1.0' in text
        assert "gazette_journal_server_started_totals{" in text
        broker._is_ready = False
        async with session.get(f"{address}/ready") as response:
            assert response.status == 503


@pytest.mark.parametrize("flag", ["port", "http_port"])
async def test_a_port_in_use_is_named(cluster, broker, flag):
    taken = getattr(broker, flag)
    with pytest.raises(SetupError) as caught:
        await cluster.start(**{flag: taken})
    assert str(taken) in str(caught.value)
    assert f"--broker.{flag.replace('_', '-')}" in str(caught.value)


async def test_a_broker_that_was_given_no_id_makes_one_up(cluster):
    broker = await cluster.start(id="")
    assert broker._context.process_id.suffix.count("-") == 2


# ------------------------------------------------------------------------------------------- lease
async def test_a_lost_lease_ends_the_broker_and_loses_nothing(cluster, broker, stub):
    await cluster.apply(stub, SPEC)
    await append(stub, JOURNAL, b"one ")
    await append(stub, JOURNAL, b"two")
    await broker._lease.revoke()  # as etcd does when it expires
    async with asyncio.timeout(patient(10)):
        await broker.failed.wait()
    assert isinstance(broker.failure, LeaseLost)
    async with asyncio.timeout(patient(30)):
        await broker.fail()
    assert len(list((cluster.fragments / JOURNAL).iterdir())) == 2


async def test_a_server_that_ends_by_itself_ends_the_broker_and_loses_nothing(
    cluster, broker, stub
):
    """Peers and clients would find no port at an address that etcd still names."""
    cluster.expect(TransportError)
    await cluster.apply(stub, SPEC)
    await append(stub, JOURNAL, b"content")
    if broker.config.wire is Wire.H2:
        for server in broker._server._servers:
            server.close()
    else:
        await broker._server._server.stop(None)
    async with asyncio.timeout(patient(10)):
        await broker.failed.wait()
    assert str(broker.failure) == "the gRPC server of this process has ended by itself"
    async with asyncio.timeout(patient(30)):
        assert await broker.fail() == []
    assert len(list((cluster.fragments / JOURNAL).iterdir())) == 1


async def test_draining_twice_as_many_journals_as_writes_at_a_time(cluster, broker, stub):
    """Heads of all of them are noted."""
    specs = [JournalSpec(f"many/{n:03d}", 1, fragment=SPEC.fragment) for n in range(130)]
    await cluster.apply(stub, *specs[:100])
    await cluster.apply(stub, *specs[100:])
    await asyncio.gather(*(append(stub, spec.name, b"content") for spec in specs))
    async with asyncio.timeout(patient(60)):
        assert await broker.drain() == []
    second = cluster.stub(await cluster.start())
    responses = await asyncio.gather(*(append(second, spec.name, b"x") for spec in specs))
    assert {(r.status, r.commit.begin) for r in responses} == {(pb.OK, 7)}


# --------------------------------------------------------------------------------------- resolving
def header(broker, **changes):
    context = broker._context
    made = pb.Header()
    made.process_id.zone, made.process_id.suffix = context.process_id
    made.route.primary = -1
    etcd = context.space.header
    made.etcd.cluster_id, made.etcd.member_id = etcd.cluster_id, etcd.member_id
    made.etcd.revision, made.etcd.raft_term = etcd.revision, etcd.raft_term
    for name, value in changes.items():
        setattr(made.etcd if name == "cluster_id" else made.process_id, name, value)
    return made


async def test_rs14_requests_for_others_are_refused(cluster, broker, stub):
    await cluster.apply(stub, SPEC)
    assert (await append(stub, JOURNAL, header=header(broker))).status == pb.OK
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await append(stub, JOURNAL, header=header(broker, cluster_id=8675309))
    assert caught.value.details() == (
        "request Etcd ClusterId doesn't match our own "
        f"(8675309 vs {broker._context.space.header.cluster_id})"
    )
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await append(stub, JOURNAL, header=header(broker, suffix="other"))
    assert caught.value.details() == (
        'request ProcessId doesn\'t match our own (zone:"local" suffix:"other"  '
        'vs zone:"local" suffix:"broker-0" )'
    )


async def test_rs13_a_revision_of_the_future_is_waited_for(cluster, broker, stub):
    await cluster.apply(stub, SPEC)
    future = broker._context.space.revision + 1
    call = AppendCall(stub, JOURNAL, min_etcd_revision=future)
    begun = calls_begun(broker, "Append")
    waiting = asyncio.ensure_future(call.commit())  # noqa: TID251  awaited below
    await eventually(lambda: calls_begun(broker, "Append") > begun)
    assert (await append(stub, JOURNAL)).status == pb.OK  # the next one has been answered
    assert not waiting.done()
    request = pb.ApplyRequest()
    request.changes.add().upsert.CopyFrom(
        JournalSpec("b/journal", 1, fragment=SPEC.fragment).to_pb()
    )
    await stub.Apply(request)
    assert (await waiting).status == pb.OK


async def test_rs3_rs6_a_broker_without_the_journal_names_who_has_it(cluster, broker, stub):
    await cluster.apply(stub, SPEC)
    other = cluster.stub(await cluster.start())
    response = await append(other, JOURNAL, b"x", do_not_proxy=True)
    assert response.status == pb.NOT_JOURNAL_PRIMARY_BROKER
    assert response.header.process_id.suffix == "broker-1"
    assert [member.suffix for member in response.header.route.members] == ["broker-0"]
    async for refused in other.Read(pb.ReadRequest(journal=JOURNAL, do_not_proxy=True)):
        assert refused.status == pb.NOT_JOURNAL_BROKER
        assert refused.header.route.endpoints[0] == broker.endpoint
    listed = await other.ListFragments(pb.FragmentsRequest(journal=JOURNAL, do_not_proxy=True))
    assert listed.status == pb.NOT_JOURNAL_BROKER


async def test_rs9_a_broker_that_etcd_does_not_know_says_so(cluster, broker, stub):
    await cluster.apply(stub, SPEC)
    unknown = Resolver(
        broker._context.space,
        Membership(broker._context.space.state, ProcessId("local", "unheard-of")),
        make_replica=lambda *_: None,
        tasks=broker.tasks,
        faults=broker.faults,
    )
    found = unknown.resolve_now(JOURNAL, may_proxy=False, require_primary=True)
    assert found.status is Status.NOT_JOURNAL_PRIMARY_BROKER
    assert found.header.process_id == ("local-BrokerSpec", "missing-from-Etcd")
    assert [member.suffix for member in found.header.route.members] == ["broker-0"]
    found = unknown.resolve_now(JOURNAL, may_proxy=True, require_primary=True)
    assert found.status is Status.OK
    assert found.header.process_id == ("local", "broker-0")


async def test_others_get_the_address_that_a_broker_advertises(cluster):
    """And go there: here it is a proxy, which counts."""
    async with FaultProxy("127.0.0.1", 1) as proxy:
        behind = await cluster.start(advertise=proxy.address)
        proxy.upstream = ("127.0.0.1", behind.port)
        await cluster.apply(cluster.stub(behind), SPEC)  # while it is alone: it is the primary
        assert proxy.accepted == 0
        other = cluster.stub(await cluster.start())
        response = await append(other, JOURNAL, b"forwarded")
        assert list(response.header.route.endpoints) == [proxy.address]
        assert proxy.accepted > 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_a_broker_that_waits_for_its_name(
    cluster, broker, etcd_server, etcd_prefix, tmp_path, number
):
    """Another has its zone and id, and keeps them."""
    config = broker.config
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gazette_platform.cli.gazette", "serve"),
        *(f"--broker.zone={config.zone}", f"--broker.id={config.id}", "--broker.host=127.0.0.1"),
        *("--broker.port=0", "--broker.http-port=0", f"--broker.file-root={tmp_path}"),
        *(f"--etcd.address={etcd_server.endpoint}", f"--etcd.prefix={etcd_prefix}"),
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(patient(20)):
            while b"choose another --broker.id" not in (line := await process.stderr.readline()):
                assert line
            process.send_signal(number)
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
