"""Journals of several replicas: what is acknowledged is everywhere, whoever leaves or dies.

Long because all cases share one cluster, and the ways to look into it.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import hashlib
import time

import grpc
import pytest
from journal_specs import journal_spec

from gazette_platform.broker.api import service as replicate_api
from gazette_platform.broker.spool.journal_spool import Draft
from gazette_platform.etcd import Compare, Delete, Put
from gazette_platform.protocol import (
    CompressionCodec,
    LabelSelector,
    LabelSet,
    ProcessId,
    Route,
    Status,
)
from gazette_platform.protocol.auth import Capability, Claims, KeyRing
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.testing.local import AppendCall, LocalBrokers, append, read, read_all
from gazette_platform.testing.waiting import eventually, patient, stays

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

NAME = "replicated/journal"
ZONES = ("zone-a", "zone-b", "zone-c")


def spec(name=NAME, replication=3, *, codec=CompressionCodec.NONE, length=1 << 20, **fields):
    return journal_spec(name, replication, length=length, codec=codec, refresh_s=3600, **fields)


class Cluster:
    """Brokers in zones, by their ids, with a stub each."""

    def __init__(self, brokers):
        self.local = brokers
        self.brokers = {}
        self.stubs = {}

    async def start(self, zone, **settings):
        broker = await self.local.start(zone=zone, **settings)
        process_id = broker._context.process_id
        self.brokers[process_id] = broker
        self.stubs[process_id] = self.local.stub(broker)
        return process_id

    async def apply(self, *specs):
        stub = next(iter(self.stubs.values()))
        request = pb.ApplyRequest()
        for one in specs:
            change = request.changes.add()
            change.upsert.CopyFrom(one.to_pb())
            change.expect_mod_revision = -1
        assert (await stub.Apply(request)).status == pb.OK
        for one in specs:
            await self.until_consistent(one.name, one.replication)

    async def until_consistent(self, name, replication):
        def is_so():
            state = self.state
            return len(state.assignments_of(name)) == replication and state.is_consistent(name)

        await eventually(is_so)

    @property
    def state(self):
        return next(iter(self.brokers.values()))._context.space.state

    def route(self, name=NAME):
        return self.state.route_of(name)

    def primary(self, name=NAME):
        return self.stubs[self.route(name).primary_id]

    def replica(self, process_id, name=NAME):
        return self.brokers[process_id]._resolver.replicas[name]

    def replicas(self, name=NAME):
        return [self.replica(member, name) for member in self.route(name).members]

    async def append(self, content, name=NAME, **fields):
        """Append wherever the primary is, as often as it takes."""

        async def attempt():
            primary = self.route(name).primary_id
            if primary is None or primary not in self.stubs:
                return None
            try:
                response = await append(self.stubs[primary], name, content, **fields)
            except grpc.aio.AioRpcError as err:
                if err.code() is grpc.StatusCode.UNAVAILABLE:
                    return None
                raise
            passing = (
                pb.NOT_JOURNAL_PRIMARY_BROKER,
                pb.NO_JOURNAL_PRIMARY_BROKER,
                pb.INSUFFICIENT_JOURNAL_BROKERS,
            )
            return None if response.status in passing else response

        return await eventually(attempt)

    async def kill(self, process_id):
        """As SIGKILL would, except that its lease is revoked rather than left to end."""
        broker = self.brokers.pop(process_id)
        del self.stubs[process_id]
        await broker._server.stop(grace_s=0.0)
        await broker._lease.revoke()
        await broker.abandon()


@pytest.fixture
async def cluster(etcd_server, etcd_prefix, tmp_path):
    async with LocalBrokers(tmp_path, etcd=etcd_server.endpoint, prefix=etcd_prefix) as brokers:
        found = Cluster(brokers)
        for zone in ZONES:
            await found.start(zone)
        yield found


def span(response):
    return (Status(response.status), response.commit.begin, response.commit.end)


async def test_e1_what_is_acknowledged_is_at_all_replicas(cluster):
    await cluster.apply(spec())
    response = await append(cluster.primary(), NAME, b"foo", b"bar")
    assert span(response) == (Status.OK, 0, 6)
    for stub in cluster.stubs.values():
        assert await read_all(stub, NAME) == b"foobar"
    assert span(await append(cluster.primary(), NAME, b"x" * 300_000)) == (Status.OK, 6, 300_006)
    # The first fragment of a journal ends with its first append.
    expected = hashlib.sha1(b"x" * 300_000).digest()
    for replica in cluster.replicas():
        fragment = await replica.spool.digested(6)
        assert (fragment.end, fragment.sum) == (300_006, expected)


async def test_brokers_of_one_machine_reach_each_other_without_its_proxy(
    etcd_server, etcd_prefix, tmp_path, monkeypatch
):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    for variable in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    async with LocalBrokers(tmp_path, etcd=etcd_server.endpoint, prefix=etcd_prefix) as brokers:
        cluster = Cluster(brokers)
        for zone in ZONES:
            await cluster.start(zone)
        await cluster.apply(spec())
        assert span(await append(cluster.primary(), NAME, b"foo")) == (Status.OK, 0, 3)


async def test_readers_see_an_append_only_once_all_replicas_have_it(cluster, monkeypatch):
    await cluster.apply(spec())
    await append(cluster.primary(), NAME, b"before ")
    primary = cluster.replica(cluster.route().primary_id)
    slow = next(r for r in cluster.replicas() if r is not primary)
    # What a replica with a slow disk does: it takes the content, and is late to say so.
    gate = asyncio.Event()
    stream = read(cluster.primary(), NAME, 7, block=True)
    write = Draft.write

    async def held(draft, chunks, length):
        if draft.digester is slow.spool.digester:
            await gate.wait()
        await write(draft, chunks, length)

    monkeypatch.setattr(Draft, "write", held)
    try:
        appending = asyncio.ensure_future(append(cluster.primary(), NAME, b"after"))  # noqa: TID251
        await eventually(lambda: primary.spool.end == 12)
        assert not appending.done()
        assert primary.index.summary.end == 7
        gate.set()
        response = await appending
        assert span(response) == (Status.OK, 7, 12)
        metadata = await anext(aiter(stream))
        assert (metadata.offset, metadata.write_head) == (7, 12)
    finally:
        gate.set()
        stream.cancel()


async def test_fail_over_keeps_what_was_acknowledged(cluster):
    await cluster.apply(spec(replication=2))
    acknowledged = b""
    for n in range(5):
        response = await cluster.append(b"%d " % n)
        acknowledged += b"%d " % n
        assert response.commit.end == len(acknowledged)
    await cluster.kill(cluster.route().primary_id)
    response = await cluster.append(b"after")
    assert span(response) == (Status.OK, len(acknowledged), len(acknowledged) + 5)
    acknowledged += b"after"
    for member in cluster.route().members:

        async def has_all(stub=cluster.stubs[member]):
            return await read_all(stub, NAME) == acknowledged

        await eventually(has_all)


@pytest.mark.parametrize("keeps_primary", [True, False])
async def test_what_one_replica_is_left_with_is_all_that_was_acknowledged(cluster, keeps_primary):
    """Two of three die at once, with nothing in a store but the first append."""
    await cluster.apply(spec(replication=3))
    acknowledged = b""
    for n in range(5):
        await cluster.append(b"%d " % n)
        acknowledged += b"%d " % n
    route = cluster.route()
    left = next(m for m in route.members if (m == route.primary_id) is keeps_primary)
    await asyncio.gather(*(cluster.kill(m) for m in route.members if m != left))
    assert await read_all(cluster.stubs[left], NAME) == acknowledged
    for zone in ("zone-d", "zone-e"):
        await cluster.start(zone)
    response = await cluster.append(b"after")
    assert span(response) == (Status.OK, len(acknowledged), len(acknowledged) + 5)
    acknowledged += b"after"
    for member in cluster.route().members:

        async def has_all(stub=cluster.stubs[member]):
            return await read_all(stub, NAME) == acknowledged

        await eventually(has_all)


async def test_a_replica_that_dies_is_replaced(cluster):
    await cluster.apply(spec(replication=2))
    await cluster.append(b"one ")
    route = cluster.route()
    (replica,) = [m for m in route.members if m != route.primary_id]
    await cluster.kill(replica)
    assert span(await cluster.append(b"two")) == (Status.OK, 4, 7)
    assert replica not in cluster.route().members
    for member in cluster.route().members:

        async def has_all(stub=cluster.stubs[member]):
            return await read_all(stub, NAME) == b"one two"

        await eventually(has_all)


async def test_replication_grows_without_a_read_hole(cluster):
    """R 1 to 3: brokers that join have no content from before, and serve all of it at once."""
    await cluster.apply(spec(replication=1))
    await cluster.append(b"before ")
    await cluster.apply(spec(replication=3))
    assert span(await cluster.append(b"after")) == (Status.OK, 7, 12)
    for stub in cluster.stubs.values():
        assert await read_all(stub, NAME) == b"before after"


async def test_a_drained_broker_leaves_the_others_in_step(cluster):
    await cluster.apply(spec(replication=2))
    await cluster.append(b"before ")
    leaving = cluster.route().primary_id
    broker = cluster.brokers[leaving]
    object.__setattr__(broker.config, "drain_timeout_s", None)
    async with asyncio.timeout(patient(20)):
        assert await broker.drain() == []
    del cluster.brokers[leaving], cluster.stubs[leaving]
    await cluster.until_consistent(NAME, 2)
    assert leaving not in cluster.route().members
    assert span(await cluster.append(b"after")) == (Status.OK, 7, 12)
    for member in cluster.route().members:

        async def has_all(stub=cluster.stubs[member]):
            return await read_all(stub, NAME) == b"before after"

        await eventually(has_all)


async def test_fs9_fs14_suspended_journals_keep_one_replica_and_come_back(cluster):
    await cluster.apply(spec())
    await cluster.append(b"before ")
    now = pb.AppendRequest.SUSPEND_NOW
    response = await append(cluster.primary(), NAME, suspend=now)
    assert response.status == pb.SUSPENDED
    await cluster.until_consistent(NAME, 1)
    assert await read_all(cluster.primary(), NAME) == b"before "
    response = await append(cluster.primary(), NAME, suspend=pb.AppendRequest.SUSPEND_NO_RESUME)
    assert response.status == pb.SUSPENDED
    assert span(await cluster.append(b"after")) == (Status.OK, 7, 12)
    await cluster.until_consistent(NAME, 3)
    for stub in cluster.stubs.values():
        assert await read_all(stub, NAME) == b"before after"


# ------------------------------------------------------------------------------ assignments
async def test_r2_primary_puts_its_route_into_all_assignments(cluster):
    await cluster.apply(spec())
    state, route = cluster.state, cluster.route()
    values = {a.key: (a.value, a.mod_revision) for a in state.assignments_of(NAME)}
    expected = route.without_endpoints().to_pb().SerializeToString(deterministic=True)
    assert [value for value, _ in values.values()] == [expected] * 3
    await append(cluster.primary(), NAME, b"x")
    primary = cluster.replica(route.primary_id)
    await primary.claim(primary.replicator.holders, end=1, is_reset=False)
    again = {a.key: (a.value, a.mod_revision) for a in state.assignments_of(NAME)}
    assert again == values, "what is reported is not reported again"


@pytest.mark.parametrize("changed", ["both", "the one in step"])
async def test_r2_stale_view_reports_nothing(cluster, monkeypatch, changed):
    await cluster.apply(spec())
    route = cluster.route()
    context = cluster.brokers[route.primary_id]._context
    held = []
    with monkeypatch.context() as patched:
        patched.setattr(context.space, "apply_batches", held.extend)
        # Of two of its assignments the primary's view is behind; by it, one of them is not in step.
        first, second, _ = context.space.state.assignments_of(NAME)
        before = {a.key: a.value for a in context.space.state.assignments_of(NAME)}
        values = {second.key: before[second.key]}
        if changed == "both":
            values[first.key] = b""
        for key, value in values.items():
            await context.etcd.txn([], [Put(key, value, ignore_lease=True)])
        await eventually(lambda: len(held) >= len(values))
        there = await context.etcd.get(first.key)
        item = context.space.state.items[NAME]
        object.__setattr__(first, "told", Route((), -1))
        replica = cluster.replica(route.primary_id)
        await replica.claim(replica.replicator.holders, end=0, is_reset=False)
        assert await context.etcd.get(first.key) == there, "its comparison failed"
        assert item is context.space.state.items[NAME]
    context.space.apply_batches(held)
    await append(cluster.primary(), NAME, b"x")
    await cluster.until_consistent(NAME, 3)


async def test_r1_e6_a_replica_whose_assignment_is_removed_gives_nothing_away(cluster):
    await cluster.apply(spec())
    await append(cluster.primary(), NAME, b"content")
    route = cluster.route()
    member = next(m for m in route.members if m != route.primary_id)
    await cluster.replica(member).index.first_refresh.wait()  # before, reads go on at the primary
    blocked = aiter(read(cluster.stubs[member], NAME, block=True))
    assert (await anext(blocked)).header.process_id.suffix == member.suffix
    assert (await anext(blocked)).content == b"content"
    replica = cluster.replica(member)
    assignment = cluster.state.assignment_of(NAME, member)
    etcd = cluster.brokers[member]._context.etcd
    await etcd.delete(assignment.key)
    await eventually(lambda: replica.index.is_closed)
    assert replica.is_closed
    assert [response async for response in blocked] == [], "a clean end"
    assert replica.spool.lock.locked(), "no client writes to it any more"
    await cluster.until_consistent(NAME, 3)
    assert span(await cluster.append(b" more")) == (Status.OK, 7, 12)


async def test_e4_an_append_in_progress_outlives_its_assignment(cluster):
    await cluster.apply(spec(replication=1))
    primary = cluster.route().primary_id
    call = AppendCall(cluster.primary(), NAME)
    chunk = b"x" * (1 << 20)
    await call.send(*[chunk] * 6)
    replica = cluster.replica(primary)
    await eventually(lambda: replica.appender._in_hand)
    assignment = cluster.state.assignment_of(NAME, primary)
    etcd = cluster.brokers[primary]._context.etcd
    await etcd.txn([Compare.mod(assignment.key, assignment.mod_revision)], [Delete(assignment.key)])
    await eventually(lambda: replica.is_closed)
    response = await call.commit()
    assert span(response) == (Status.OK, 0, 6 << 20)
    assert response.header.process_id.suffix == primary.suffix


# ------------------------------------------------------------------------- Replicate on the wire
def request(cluster, stub_id, proposal, *, route=None, registers=(), acknowledge=True, head=True):
    message = pb.ReplicateRequest(acknowledge=acknowledge)
    message.proposal.CopyFrom(proposal)
    message.registers.SetInParent()
    for name, value in registers:
        message.registers.labels.add(name=name, value=value)
    if head:
        space = next(iter(cluster.brokers.values()))._context.space
        header = message.header
        header.process_id.zone, header.process_id.suffix = stub_id
        (route or cluster.route()).into_pb(header.route)
        header.etcd.CopyFrom(space.header.to_pb())
        message.deprecated_journal = proposal.journal
    return message


@pytest.fixture
async def target(cluster):
    """A replica, and its broker, with the primary's own pipeline out of the way."""
    await cluster.apply(spec())
    primary = cluster.replica(cluster.route().primary_id)
    primary.replicator.rest()
    target = next(m for m in cluster.route().members if m != cluster.route().primary_id)
    await eventually(lambda: not cluster.replica(target).spool.lock.locked())
    return target


def fragment(begin, content=b"", **fields):
    one = pb.Fragment(
        journal=NAME, begin=begin, end=begin + len(content), compression_codec=pb.NONE, **fields
    )
    one.sum.SetInParent()
    if content:
        digest = hashlib.sha1(content).digest()
        one.sum.part1 = int.from_bytes(digest[:8], "big")
        one.sum.part2 = int.from_bytes(digest[8:16], "big")
        one.sum.part3 = int.from_bytes(digest[16:], "big")
    return one


async def test_rp1_content_counts_once_it_is_proposed(cluster, target, monkeypatch):
    write, written = Draft.write, []

    async def noted(draft, chunks, length):
        await write(draft, chunks, length)
        written.extend(map(bytes, chunks))

    monkeypatch.setattr(Draft, "write", noted)
    call = cluster.stubs[target].Replicate(timeout=10)
    replica = cluster.replica(target)
    await call.write(request(cluster, target, fragment(0)))
    response = await call.read()
    assert response.status == pb.OK
    assert response.header.process_id.suffix == target.suffix
    await call.write(pb.ReplicateRequest(content=b"foo"))
    await call.write(pb.ReplicateRequest(content=b"bar", content_delta=3))
    await eventually(lambda: b"".join(written) == b"foobar")
    assert replica.index.summary.end == 0
    proposal = fragment(0, b"foobar")
    await call.write(request(cluster, target, proposal, registers=[("key", "v")], head=False))
    assert await call.read() == pb.ReplicateResponse()
    assert replica.index.summary.end == 6
    assert replica.spool.registers == LabelSet.of(key="v")
    await call.done_writing()
    assert await call.read() == grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK


async def test_rp2_unknown_journals_are_reported(cluster, target):
    call = cluster.stubs[target].Replicate(timeout=10)
    unknown = fragment(0)
    unknown.journal = "does/not/exist"
    await call.write(request(cluster, target, unknown))
    response = await call.read()
    assert response.status == pb.JOURNAL_NOT_FOUND
    assert response.HasField("header")
    assert await call.read() == grpc.aio.EOF


async def test_rp3_other_routes_are_refused(cluster, target):
    call = cluster.stubs[target].Replicate(timeout=10)
    other = Route((target, ProcessId("zone-x", "other")), 1)
    await call.write(request(cluster, target, fragment(0), route=other))
    response = await call.read()
    assert response.status == pb.WRONG_ROUTE
    assert Route.from_pb(response.header.route).equivalent(cluster.route())
    assert await call.read() == grpc.aio.EOF


async def test_a_stream_ends_with_the_role_of_its_sender(cluster, target):
    """A primary that froze holds the spool; it must not keep its successor waiting."""
    call = cluster.stubs[target].Replicate(timeout=20)
    await call.write(request(cluster, target, fragment(0)))
    assert (await call.read()).status == pb.OK
    await call.write(pb.ReplicateRequest(content=b"never committed"))
    old = cluster.route().primary_id
    broker = cluster.brokers[old]
    object.__setattr__(broker.config, "drain_timeout_s", 0.0)
    await cluster.start("zone-d")
    await cluster.kill(old)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "is not its primary any more" in caught.value.details()
    response = await cluster.append(b"content")
    assert response.status == pb.OK
    for member in cluster.route().members:

        async def has_it(stub=cluster.stubs[member]):
            return await read_all(stub, NAME) == b"content"

        await eventually(has_it)


async def test_a_stream_ends_with_the_assignment_of_its_replica(cluster, target):
    """It would hold the spool of a replica that is to close."""
    call = cluster.stubs[target].Replicate(timeout=20)
    await call.write(request(cluster, target, fragment(0)))
    assert (await call.read()).status == pb.OK
    own = cluster.state.assignment_of(NAME, target)
    etcd = cluster.brokers[target]._context.etcd
    await etcd.delete(own.key)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "is not its primary any more" in caught.value.details()


async def test_a_newer_stream_of_the_primary_ends_an_older_one(cluster, target):
    """As when it was cut off in between: no event says that the older one leads nowhere."""
    older = cluster.stubs[target].Replicate(timeout=20)
    await older.write(request(cluster, target, fragment(0)))
    assert (await older.read()).status == pb.OK
    await older.write(pb.ReplicateRequest(content=b"never committed"))
    newer = cluster.stubs[target].Replicate(timeout=10)
    await newer.write(request(cluster, target, fragment(0)))
    assert (await newer.read()).status == pb.OK
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await older.read()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert caught.value.details().endswith("has opened another stream")
    await newer.write(pb.ReplicateRequest(content=b"content"))
    await newer.write(request(cluster, target, fragment(0, b"content"), head=False))
    assert await newer.read() == pb.ReplicateResponse()
    await newer.done_writing()
    assert await newer.read() == grpc.aio.EOF
    assert await read_all(cluster.stubs[target], NAME, do_not_proxy=True) == b"content"


async def test_rp8_waiting_for_the_spool_ends_with_the_route(cluster, target, monkeypatch):
    monkeypatch.setattr(replicate_api, "_DISPLACE_AFTER_S", 60.0)
    first = cluster.stubs[target].Replicate(timeout=20)
    await first.write(request(cluster, target, fragment(0)))
    assert (await first.read()).status == pb.OK
    second = cluster.stubs[target].Replicate(timeout=20)
    await second.write(request(cluster, target, fragment(0)))
    reading = asyncio.ensure_future(second.read())  # noqa: TID251
    await stays(lambda: not reading.done(), for_s=0.05)
    await cluster.start("zone-d")
    await cluster.kill(cluster.route().primary_id)
    response = await reading
    assert response.status == pb.WRONG_ROUTE
    assert await second.read() == grpc.aio.EOF


async def test_caller_that_waited_for_the_spool_learns_of_a_changed_route(
    cluster, target, monkeypatch
):
    """Its sender is primary still, and goes on to acknowledge without a replica that has joined."""
    monkeypatch.setattr(replicate_api, "_DISPLACE_AFTER_S", 60.0)
    first = cluster.stubs[target].Replicate(timeout=20)
    await first.write(request(cluster, target, fragment(0)))
    assert (await first.read()).status == pb.OK
    second = cluster.stubs[target].Replicate(timeout=20)
    await second.write(request(cluster, target, fragment(0)))
    spool = cluster.replica(target).spool
    await eventually(lambda: spool.lock._waiters)
    primary = cluster.route().primary_id
    await cluster.start("zone-d")
    change = pb.ApplyRequest()
    upsert = change.changes.add()
    upsert.upsert.CopyFrom(spec(replication=4).to_pb())
    upsert.expect_mod_revision = -1
    assert (await cluster.stubs[target].Apply(change)).status == pb.OK
    resolver = cluster.brokers[target]._resolver
    await eventually(lambda: len(resolver.replicas[NAME].route.members) == 4)
    assert cluster.route().primary_id == primary
    await first.done_writing()
    response = await second.read()
    assert response.status == pb.WRONG_ROUTE
    assert len(response.header.route.members) == 4
    assert await second.read() == grpc.aio.EOF


async def test_a_primary_without_its_lease_acknowledges_nothing(cluster):
    await cluster.apply(spec(replication=1), spec("replicated/by-three"))
    for name in (NAME, "replicated/by-three"):
        await append(cluster.primary(name), name, b"before")
        primary = cluster.route(name).primary_id
        fence = cluster.brokers[primary]._context.membership
        lease, fence._lease = fence._lease, dataclasses.make_dataclass("L", ["remaining_s"])(0)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await append(cluster.primary(name), name, b"after")
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "the lease of this broker has run out; ask another one" in caught.value.details()
        assert cluster.replica(primary, name).index.summary.end == 6
        fence._lease = lease


async def test_rp7_replicating_needs_the_capability_and_the_journal(
    etcd_server, etcd_prefix, tmp_path
):
    key = base64.b64encode(b"secret").decode()
    async with LocalBrokers(tmp_path, etcd=etcd_server.endpoint, prefix=etcd_prefix) as brokers:
        found = Cluster(brokers)
        for zone in ZONES[:2]:
            await found.start(zone, auth_keys=key)
        member, stub = next(iter(found.stubs.items()))

        def bearer(capability, selector="name=replicated/journal"):
            claims = Claims(capability, LabelSelector.parse(selector))
            token = KeyRing(key).sign(claims, now=time.time(), lifetime_s=60)  # noqa: TID251
            return (("authorization", f"Bearer {token}"),)

        change = pb.ApplyRequest()
        change.changes.add().upsert.CopyFrom(spec(replication=2).to_pb())
        metadata = bearer(Capability.APPLY)
        assert (await stub.Apply(change, metadata=metadata)).status == pb.OK
        # Brokers sign for each other: the primary syncs its replica.
        await found.until_consistent(NAME, 2)
        metadata = bearer(Capability.APPEND)
        call = found.primary().Append(metadata=metadata, timeout=10)
        for message in (pb.AppendRequest(journal=NAME), pb.AppendRequest(content=b"x")):
            await call.write(message)
        await call.write(pb.AppendRequest())
        await call.done_writing()
        assert (await call).status == pb.OK
        first = request(found, member, fragment(0))
        for given, text in (
            ((), "missing or empty Authorization token"),
            (bearer(Capability.READ), "authorization is missing required REPLICATE capability"),
        ):
            # It is refused before it is read. A write that meets that would be reported in its place.
            call = stub.Replicate(metadata=given, timeout=10)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert text in caught.value.details()
        metadata = bearer(Capability.REPLICATE, "name=another/journal")
        call = stub.Replicate(metadata=metadata, timeout=10)
        await call.write(first)
        response = await call.read()
        assert response.status == pb.JOURNAL_NOT_FOUND
        assert not response.header.route.endpoints
