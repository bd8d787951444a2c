"""Calls that other brokers are to answer: AA9, AA16 to AA18, RD6 to RD9, FR1, FS15, RS1 to RS14.

A broker whose mirror of etcd is written by hand, and a peer on a real port that says what a test
has it say. Long because all cases share the two.
"""

from __future__ import annotations

import asyncio
import dataclasses
from types import SimpleNamespace

import grpc
import pytest

from gazette_platform.broker.api.admin import AdminApi
from gazette_platform.broker.api.append import AppendApi
from gazette_platform.broker.api.listing import FragmentsApi
from gazette_platform.broker.api.read import ReadApi
from gazette_platform.broker.api.routing import Proxy
from gazette_platform.broker.config import BrokerConfig
from gazette_platform.broker.context import Membership
from gazette_platform.broker.journal.resolver import Resolver
from gazette_platform.broker.peers import Peers
from gazette_platform.etcd import Delete, Put
from gazette_platform.keyspace import (
    assignment_key,
    encode_broker_spec,
    encode_journal_spec,
    item_key,
    member_key,
)
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.faults import Faults
from gazette_platform.protocol import (
    BrokerSpec,
    CompressionCodec,
    FragmentSpec,
    Header,
    JournalFlag,
    JournalSpec,
    LabelSelector,
    ProcessId,
    Status,
)
from gazette_platform.protocol.auth import Capability, Claims
from gazette_platform.protocol.content import encode_append_content, encode_read_content
from gazette_platform.protocol.pb import admin_pb2 as admin_pb, protocol_pb2 as pb
from gazette_platform.serving.interface import Code, ContentSource, NotTaken, RpcFailed
from gazette_platform.testing.waiting import eventually, patient, turns

PREFIX = "/p"
JOURNAL = "a/journal"
OURS = ProcessId("zone-a", "local")
PEER = ProcessId("zone-b", "peer")
NOBODY = ("local-BrokerSpec", "missing-from-Etcd")


class Peer:
    """A broker that records what it is sent, in bytes, and sends the answers of the test."""

    def __init__(self):
        self.endpoint = ""
        self.messages = asyncio.Queue()
        self.answers = asyncio.Queue()
        self.metadata = {}
        self.ended = asyncio.Event()

    async def __aenter__(self):
        self.server = grpc.aio.server()
        handlers = {
            "Append": grpc.stream_unary_rpc_method_handler(self._append),
            "Read": grpc.unary_stream_rpc_method_handler(self._read),
            "ListFragments": grpc.unary_unary_rpc_method_handler(self._list_fragments),
        }
        self.server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("protocol.Journal", handlers),)
        )
        self.endpoint = f"http://127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        await self.server.start()
        return self

    async def __aexit__(self, *_):
        await self.server.stop(None)

    async def _append(self, messages, context):
        self.metadata = dict(context.invocation_metadata())
        receiving = asyncio.ensure_future(self._receive(messages))  # noqa: TID251  awaited below
        try:
            return await self._answer(context)
        finally:
            self.ended.set()
            receiving.cancel()

    async def _receive(self, messages):
        async for message in messages:
            self.messages.put_nowait(message)
        self.messages.put_nowait(None)

    async def _read(self, request, context):
        self.metadata = dict(context.invocation_metadata())
        self.messages.put_nowait(request)
        try:
            while (answer := await self._answer(context)) is not None:
                yield answer
        finally:
            self.ended.set()

    async def _list_fragments(self, request, context):
        self.messages.put_nowait(request)
        return await self._answer(context)

    async def _answer(self, context):
        answer = await self.answers.get()
        if isinstance(answer, tuple):
            await context.abort(*answer)
        return answer

    async def next(self):
        async with asyncio.timeout(5):
            return await self.messages.get()


class Replica:
    """A local replica, as far as a resolver knows it."""

    def __init__(self, journal, create_revision, is_primary):
        self.create_revision = create_revision
        self.is_primary = is_primary
        self.is_closed = False

    def on_change(self, *, is_primary):
        self.is_primary = is_primary

    async def close(self):
        self.is_closed = True


class Stage:
    """One broker whose keys a test writes."""

    def __init__(self, etcd, peer, tasks, **config):
        self.etcd = etcd
        self.peer = peer
        self.space = etcd.mirror()
        config = BrokerConfig(**({"append_wait_s": 0.0} | config))
        clock = SystemClock()
        self.context = SimpleNamespace(
            config=config,
            clock=clock,
            space=self.space,
            peers=Peers(config, clock),
            tasks=tasks,
            process_id=OURS,
        )
        own = Membership(self.space.state, OURS)
        self.resolver = Resolver(
            self.space, own, make_replica=Replica, tasks=tasks, faults=Faults()
        )
        self.proxy = Proxy(self.context, self.resolver)
        self.append_api = AppendApi(self.context, self.resolver, self.proxy)
        self.read_api = ReadApi(self.context, self.resolver, self.proxy)
        self.fragments_api = FragmentsApi(self.context, self.resolver, self.proxy)
        self.responses = []  # of the last read
        self.member(OURS, "http://ours:80")
        self.member(PEER, peer.endpoint)

    def member(self, process_id, endpoint):
        value = encode_broker_spec(BrokerSpec(process_id, endpoint))
        self.etcd.write(Put(member_key(PREFIX, process_id), value))

    def spec(self, replication=1, **fields):
        fragment = FragmentSpec(1024, CompressionCodec.NONE, refresh_interval_ns=10**9)
        spec = JournalSpec(JOURNAL, replication, fragment=fragment, **fields)
        self.etcd.write(Put(item_key(PREFIX, JOURNAL), encode_journal_spec(spec)))

    def assign(self, process_id, slot):
        self.etcd.write(Put(assignment_key(PREFIX, JOURNAL, process_id, slot), b""))

    def unassign(self, process_id, slot):
        self.etcd.write(Delete(assignment_key(PREFIX, JOURNAL, process_id, slot)))

    def resolve(self, *, may_proxy=False, require_primary=False, journal=JOURNAL, **fields):
        return self.resolver.resolve(
            journal, may_proxy=may_proxy, require_primary=require_primary, **fields
        )

    async def append(self, *messages, **fields):
        request = pb.AppendRequest(journal=f"{JOURNAL};with/meta", **fields)
        status, raw = await self.append_api.append(request.SerializeToString(), Client(*messages))
        return status, pb.AppendResponse.FromString(raw)

    async def read(self, **fields):
        request = pb.ReadRequest(journal=JOURNAL, **fields)
        responses = self.responses = []

        async def send(raw):
            responses.append(raw)

        await self.read_api.read(request.SerializeToString(), send)
        return responses

    async def list_fragments(self, **fields):
        request = pb.FragmentsRequest(journal=JOURNAL, **fields)
        status, raw = await self.fragments_api.list_fragments(request.SerializeToString())
        return status, pb.FragmentsResponse.FromString(raw)


class Client(ContentSource):
    """The messages of an append; waits for more after the last one, unless that is the end."""

    def __init__(self, *messages):
        self.messages = list(messages)
        self.taken = 0

    async def next(self):
        if not self.messages:
            await asyncio.Event().wait()
        self.taken += 1
        message = self.messages.pop(0)
        if isinstance(message, Exception):
            raise message
        return message


COMMIT = (b"", None)


def chunk(content):
    return encode_append_content(content)


@pytest.fixture
async def peer():
    async with Peer() as peer:
        yield peer


@pytest.fixture
async def make(cluster, peer, tasks):
    """Makes the stage."""
    made = []

    def build(**config):
        made.append(Stage(cluster.etcd, peer, tasks, **config))
        return made[-1]

    yield build
    for stage in made:
        await stage.context.peers.close()


@pytest.fixture
def stage(make):
    return make()


@pytest.fixture
def remote(stage):
    """A journal of the peer's."""
    stage.spec()
    stage.assign(PEER, 0)
    return stage


def spawn(tasks, coroutine):
    """Run a call, which may fail, beside the test."""

    async def outcome():
        try:
            return await coroutine
        except RpcFailed as err:
            return err

    return tasks.spawn(outcome())


def response_of(stage, **fields):
    """A response of the peer's."""
    header = Header(PEER, stage.space.state.route_of(JOURNAL), stage.space.header).to_pb()
    return {"header": header, **fields}


# --------------------------------------------------------------------------------------- append
async def test_aa9_without_a_primary_there_is_none_to_forward_to(stage):
    stage.spec()
    stage.assign(PEER, 1)
    status, response = await stage.append(chunk(b"x"), *COMMIT)
    assert status == response.status == Status.NO_JOURNAL_PRIMARY_BROKER
    assert (response.header.process_id.zone, response.header.process_id.suffix) == OURS
    assert response.header.route.primary == -1


async def test_aa16_an_append_is_forwarded_as_it_comes(remote, peer, tasks):
    stage = remote
    appending = spawn(tasks, stage.append(chunk(b"foo"), chunk(b"bar"), *COMMIT, offset=5))
    first = pb.AppendRequest.FromString(await peer.next())
    assert (first.journal, first.offset) == (f"{JOURNAL};with/meta", 5)
    expected = Header(PEER, stage.space.state.route_of(JOURNAL), stage.space.header)
    assert Header.from_pb(first.header) == expected
    assert expected.route.endpoints == (peer.endpoint,)
    assert [await peer.next() for _ in range(4)] == [chunk(b"foo"), chunk(b"bar"), b"", None]
    answer = pb.AppendResponse(**response_of(stage, total_chunks=3))
    answer.commit.journal = "reported by the peer"
    peer.answers.put_nowait(answer.SerializeToString())
    assert await appending == (Status.OK, answer)


async def test_aa16_a_refusal_is_relayed_before_all_content_came(remote, peer, tasks):
    appending = spawn(tasks, remote.append(chunk(b"foo")))
    answer = pb.AppendResponse(**response_of(remote, status=pb.WRONG_APPEND_OFFSET))
    peer.answers.put_nowait(answer.SerializeToString())
    assert await appending == (Status.WRONG_APPEND_OFFSET, answer)


async def test_aa16_a_client_that_ends_without_commit(remote, peer, tasks):
    appending = spawn(tasks, remote.append(chunk(b"foo"), None))
    assert await peer.next()
    assert [await peer.next(), await peer.next()] == [chunk(b"foo"), None]
    text = "append stream: unexpected EOF"
    peer.answers.put_nowait((grpc.StatusCode.UNKNOWN, text))
    failure = await appending
    assert (failure.code, failure.text) == (Code.UNKNOWN, text)


async def test_aa16_content_that_fails_is_reported_in_its_own_words(remote, peer, tasks):
    appending = spawn(tasks, remote.append(RpcFailed(Code.UNKNOWN, "too slow")))
    assert await peer.next()
    assert await peer.next() is None, "an end without commit"
    peer.answers.put_nowait((grpc.StatusCode.UNKNOWN, "append stream: unexpected EOF"))
    assert (await appending).text == "too slow"


async def test_aa17_the_peers_error_is_relayed(remote, peer, tasks):
    appending = spawn(tasks, remote.append(chunk(b"foo"), *COMMIT))
    # Of a call that ends while it is being sent gRPC may report only that: `WRITE_FAILED`.
    assert await peer.next()
    assert [await peer.next() for _ in range(3)] == [chunk(b"foo"), *COMMIT]
    peer.answers.put_nowait((grpc.StatusCode.UNKNOWN, "some kind of error"))
    failure = await appending
    assert (failure.code, failure.text) == (Code.UNKNOWN, "some kind of error")


async def test_aa18_a_client_that_cancels_reaches_the_peer(remote, peer, tasks):
    appending = spawn(tasks, remote.append(chunk(b"foo")))
    await peer.next()
    appending.cancel()
    async with asyncio.timeout(5):
        await peer.ended.wait()


async def test_do_not_proxy_is_obeyed(remote):
    status, response = await remote.append(*COMMIT, do_not_proxy=True)
    assert status == Status.NOT_JOURNAL_PRIMARY_BROKER
    assert response.header.process_id.suffix == OURS.suffix
    assert list(response.header.route.endpoints) == [remote.peer.endpoint]
    status, listed = await remote.list_fragments(do_not_proxy=True)
    assert status == listed.status == Status.NOT_JOURNAL_BROKER


async def test_an_append_is_forwarded_with_a_token_of_ours(cluster, make, peer, tasks):
    stage = make(auth_keys="c2VjcmV0")
    stage.spec()
    stage.assign(PEER, 0)
    appending = spawn(tasks, stage.append(*COMMIT))
    await peer.next()
    assert peer.metadata["authorization"].startswith("Bearer ")
    peer.answers.put_nowait(pb.AppendResponse(**response_of(stage)).SerializeToString())
    await appending


async def test_content_that_fails_is_not_a_failure_of_the_peer(remote, peer, tasks):
    suspected = []
    remote.context.peers.observe_failures(suspected.append)
    gone = RpcFailed(Code.CANCELLED, "the client has gone")
    appending = spawn(tasks, remote.append(chunk(b"foo"), gone))
    await peer.next()
    assert [await peer.next() for _ in range(2)] == [chunk(b"foo"), None]
    peer.answers.put_nowait((grpc.StatusCode.UNKNOWN, "unexpected EOF"))
    assert await appending is gone
    assert not suspected
    peer.answers.put_nowait((grpc.StatusCode.UNAVAILABLE, "leaving"))
    with pytest.raises(RpcFailed, match=f"^cannot reach broker {peer.endpoint}: leaving$"):
        await remote.append(*COMMIT)
    assert suspected == [peer.endpoint]


# ------------------------------------------------------------------------------- append: waiting
async def test_fs15_too_few_replicas_are_refused_before_they_are_forwarded_to(stage):
    stage.spec(replication=2)
    stage.assign(PEER, 0)
    status, response = await stage.append(*COMMIT)
    assert status == response.status == Status.INSUFFICIENT_JOURNAL_BROKERS
    assert response.header.process_id.suffix == OURS.suffix


async def test_fs15_too_many_replicas_are_waited_for(make, peer, tasks):
    stage = make(append_wait_s=20.0)
    stage.spec()
    stage.assign(PEER, 0)
    stage.assign(ProcessId("zone-c", "another"), 1)
    appending = spawn(tasks, stage.append(*COMMIT))
    await turns(20)
    assert peer.messages.empty()
    stage.unassign(ProcessId("zone-c", "another"), 1)
    first = pb.AppendRequest.FromString(await peer.next())
    assert first.header.etcd.revision == stage.space.revision
    peer.answers.put_nowait(pb.AppendResponse(**response_of(stage)).SerializeToString())
    assert (await appending)[0] is Status.OK


async def test_an_append_waits_for_a_primary(make, peer, tasks):
    stage = make(append_wait_s=20.0)
    stage.spec()
    client = spawn(tasks, stage.append(chunk(b"foo"), *COMMIT))
    await turns(20)
    stage.assign(PEER, 0)
    assert await peer.next()
    assert await peer.next() == chunk(b"foo")
    peer.answers.put_nowait(pb.AppendResponse(**response_of(stage)).SerializeToString())
    assert (await client)[0] is Status.OK


async def test_an_append_waits_out_a_primary_that_died(make, peer, tasks, monkeypatch):
    """As long as nothing was sent of it, which a connection that fails guarantees."""
    waits, wait = [], AppendApi._wait_change
    monkeypatch.setattr(AppendApi, "_wait_change", lambda *args: waits.append(1) or wait(*args))
    stage = make(append_wait_s=20.0)
    dead = ProcessId("zone-a", "dead")
    stage.member(dead, "http://127.0.0.1:1")
    stage.spec()
    stage.assign(dead, 0)
    appending = spawn(tasks, stage.append(chunk(b"foo"), *COMMIT))
    await eventually(lambda: waits)
    assert not appending.done()
    stage.unassign(dead, 0)
    stage.assign(PEER, 0)
    assert await peer.next()
    assert [await peer.next() for _ in range(3)] == [chunk(b"foo"), *COMMIT]
    peer.answers.put_nowait(pb.AppendResponse(**response_of(stage)).SerializeToString())
    assert (await appending)[0] is Status.OK


async def test_a_primary_that_stays_dead_is_named(stage):
    dead = ProcessId("zone-a", "dead")
    stage.member(dead, "http://127.0.0.1:1")
    stage.spec()
    stage.assign(dead, 0)
    with pytest.raises(RpcFailed, match=r"^cannot reach broker http://127.0.0.1:1: ") as caught:
        await stage.append(chunk(b"foo"), *COMMIT)
    assert caught.value.code is Code.UNAVAILABLE


async def test_a_member_that_left_has_no_endpoint(stage):
    stage.spec()
    stage.assign(ProcessId("zone-c", "gone"), 0)
    with pytest.raises(
        RpcFailed, match='broker zone:"zone-c" suffix:"gone" has no endpoint in etcd'
    ) as caught:
        await stage.append(*COMMIT)
    assert caught.value.code is Code.UNAVAILABLE


# ----------------------------------------------------------------------------------------- read
async def test_rd6_a_read_is_forwarded_and_its_responses_relayed(remote, peer, tasks):
    told = pb.ReadResponse(**response_of(remote, offset=100, write_head=103)).SerializeToString()
    for answer in (told, encode_read_content(100, b"abc"), None):
        peer.answers.put_nowait(answer)
    responses = await remote.read(offset=100, block=True, min_etcd_revision=remote.space.revision)
    assert responses == [told, encode_read_content(100, b"abc")]
    request = pb.ReadRequest.FromString(await peer.next())
    assert (request.journal, request.offset, request.block) == (JOURNAL, 100, True)
    assert request.header.etcd.revision == remote.space.revision
    assert request.header.HasField("process_id")
    assert request.header.process_id.suffix == "", "any member will do"


async def test_rd7_do_not_proxy_names_who_has_it(remote):
    [raw] = await remote.read(do_not_proxy=True)
    response = pb.ReadResponse.FromString(raw)
    assert response.status == pb.NOT_JOURNAL_BROKER
    assert response.header.process_id.suffix == OURS.suffix
    assert list(response.header.route.endpoints) == [remote.peer.endpoint]


async def test_rd8_the_peers_error_is_relayed(remote, peer):
    peer.answers.put_nowait((grpc.StatusCode.UNKNOWN, "some kind of error"))
    with pytest.raises(RpcFailed, match=r"^some kind of error$") as caught:
        await remote.read()
    assert caught.value.code is Code.UNKNOWN


async def test_rd9_a_forwarded_read_ends_cleanly_when_we_stop(remote, peer, tasks):
    reading = spawn(tasks, remote.read(block=True))
    told = pb.ReadResponse(**response_of(remote)).SerializeToString()
    peer.answers.put_nowait(told)
    await peer.next()
    await eventually(lambda: remote.responses == [told])
    await turns(20)
    assert not reading.done()
    remote.proxy.stop_reads()
    async with asyncio.timeout(5):
        assert await reading == [told]
        await peer.ended.wait()
        assert await remote.read() == [], "nor do later ones begin"


async def test_a_cancelled_read_reaches_the_peer(remote, peer, tasks):
    reading = spawn(tasks, remote.read(block=True))
    await peer.next()
    reading.cancel()
    async with asyncio.timeout(5):
        await peer.ended.wait()
    assert reading.cancelled()


async def test_a_replica_that_died_is_passed_over(stage, peer):
    """Even one of our own zone, that we would prefer."""
    dead = ProcessId("zone-a", "dead")
    stage.member(dead, "http://127.0.0.1:1")
    stage.spec(replication=2)
    stage.assign(dead, 0)
    stage.assign(PEER, 1)
    for _ in range(2):
        peer.answers.put_nowait(pb.ReadResponse(**response_of(stage)).SerializeToString())
        peer.answers.put_nowait(None)
        assert len(await stage.read()) == 1
        await peer.next()


async def test_a_read_fails_when_no_replica_can_be_reached(stage):
    for number in range(2):
        dead = ProcessId("zone-a", f"dead-{number}")
        stage.member(dead, f"http://127.0.0.1:{number + 1}")
        stage.assign(dead, number)
    stage.spec(replication=2)
    for _ in range(3):  # also once both connections are known to have failed
        with pytest.raises(RpcFailed, match=r"^cannot reach broker ") as caught:
            async with asyncio.timeout(patient(10)):
                await stage.read()
        assert caught.value.code is Code.UNAVAILABLE


async def test_client_that_takes_nothing_is_not_a_failure_of_the_peer(stage, peer):
    """Else another replica would be asked, and the client would learn that this one cannot be reached."""
    suspected = []
    stage.context.peers.observe_failures(suspected.append)
    stage.member(ProcessId("zone-c", "another"), peer.endpoint)
    stage.spec(replication=2)
    stage.assign(PEER, 0)
    stage.assign(ProcessId("zone-c", "another"), 1)
    not_taken = NotTaken(Code.UNAVAILABLE, "nothing was taken")

    async def send(raw):
        raise not_taken

    peer.answers.put_nowait(pb.ReadResponse(**response_of(stage)).SerializeToString())
    with pytest.raises(NotTaken) as caught:
        await stage.read_api.read(pb.ReadRequest(journal=JOURNAL).SerializeToString(), send)
    assert caught.value is not_taken
    await peer.next()
    async with asyncio.timeout(5):
        await peer.ended.wait()
    assert peer.messages.empty()
    assert not suspected


async def test_connections_to_brokers_that_left_are_closed(remote, peer, monkeypatch):
    monkeypatch.setattr("gazette_platform.broker.api.routing._KEEP_S", 0.0)
    peer.answers.put_nowait(None)
    assert await remote.read() == []
    assert remote.context.peers._channels
    remote.etcd.write(Delete(member_key(PREFIX, PEER)))
    remote.spec(max_append_rate=1)  # any later change
    await eventually(lambda: not remote.context.peers._channels)


# ------------------------------------------------------------------------------------ fragments
async def test_fr1_a_list_of_fragments_is_forwarded(remote, peer):
    answer = pb.FragmentsResponse(**response_of(remote, next_page_token=7))
    peer.answers.put_nowait(answer.SerializeToString())
    assert await remote.list_fragments(begin_mod_time=3) == (Status.OK, answer)
    request = pb.FragmentsRequest.FromString(await peer.next())
    assert (request.page_limit, request.begin_mod_time) == (1000, 3)
    assert request.header.etcd.revision == remote.space.revision


async def test_fr1_the_peers_refusal_and_error_are_relayed(remote, peer):
    answer = pb.FragmentsResponse(**response_of(remote, status=pb.SUSPENDED))
    peer.answers.put_nowait(answer.SerializeToString())
    assert await remote.list_fragments() == (Status.SUSPENDED, answer)
    peer.answers.put_nowait((grpc.StatusCode.UNKNOWN, "some kind of error"))
    with pytest.raises(RpcFailed, match=r"^some kind of error$"):
        await remote.list_fragments()


async def test_fr1_rd13_what_may_not_be_read_is_not_forwarded(stage):
    stage.spec(flags=JournalFlag.O_WRONLY)
    stage.assign(PEER, 0)
    assert (await stage.list_fragments())[0] is Status.NOT_ALLOWED
    [raw] = await stage.read()
    assert pb.ReadResponse.FromString(raw).status == pb.NOT_ALLOWED


async def test_empty_journal_is_not_reported_before_its_replica_exists(stage):
    """It is assigned to us, and could not be begun: what it holds is not known."""
    stage.spec()
    stage.assign(OURS, 0)
    del stage.resolver.replicas[JOURNAL]
    assert (await stage.list_fragments())[0] is Status.NOT_JOURNAL_BROKER
    [raw] = await stage.read()
    assert pb.ReadResponse.FromString(raw).status == pb.NOT_JOURNAL_BROKER
    assert (await stage.append(*COMMIT))[0] is Status.NOT_JOURNAL_PRIMARY_BROKER
    request = admin_pb.FlushRequest(journal=JOURNAL)
    flushed = await AdminApi(stage.context, stage.resolver).flush(request.SerializeToString())
    assert flushed[0] is Status.NOT_JOURNAL_PRIMARY_BROKER


# ------------------------------------------------------------------------------------- resolver
async def test_rs1_a_local_replica(stage):
    stage.spec(replication=2)
    stage.assign(PEER, 0)
    stage.assign(OURS, 1)
    found = await stage.resolve(journal=f"{JOURNAL};with/meta")
    assert (found.status, found.is_local, found.journal) == (Status.OK, True, JOURNAL)
    assert found.header.process_id == OURS
    assert found.header.route.members == (OURS, PEER)
    assert found.header.route.endpoints == ("http://ours:80", stage.peer.endpoint)


async def test_names_that_callers_think_up_are_not_kept(stage):
    for number in range(20):
        found = await stage.resolve(journal=f"no/journal-{number}")
        assert found.status is Status.JOURNAL_NOT_FOUND
    assert len(stage.resolver.found) == 0
    stage.spec(replication=1)
    stage.assign(OURS, 0)
    await stage.resolve(journal=JOURNAL)
    assert len(stage.resolver.found) == 1


async def test_rs2_the_primary(stage):
    stage.spec(replication=2)
    stage.assign(OURS, 0)
    stage.assign(PEER, 1)
    found = await stage.resolve(require_primary=True)
    assert (found.status, found.is_local) == (Status.OK, True)
    assert found.header.route.primary_id == OURS


async def test_rs3_rs4_a_replica_that_is_not_the_primary(stage):
    stage.spec(replication=2)
    stage.assign(PEER, 0)
    stage.assign(OURS, 1)
    found = await stage.resolve(require_primary=True)
    assert found.status is Status.NOT_JOURNAL_PRIMARY_BROKER
    assert (found.header.process_id, found.header.route.primary_id) == (OURS, PEER)
    found = await stage.resolve(require_primary=True, may_proxy=True)
    assert (found.status, found.is_remote) == (Status.OK, True)
    assert found.header.process_id == PEER


async def test_rs5_without_slot_0_there_is_no_primary(stage):
    stage.spec(replication=2)
    stage.assign(PEER, 1)
    stage.assign(OURS, 2)
    for may_proxy in (False, True):
        found = await stage.resolve(require_primary=True, may_proxy=may_proxy)
        assert found.status is Status.NO_JOURNAL_PRIMARY_BROKER
        assert (found.header.process_id, found.header.route.primary) == (OURS, -1)
    assert (await stage.resolve()).is_local


async def test_rs6_a_journal_of_a_peer(remote):
    found = await remote.resolve()
    assert (found.status, found.header.process_id) == (Status.NOT_JOURNAL_BROKER, OURS)
    found = await remote.resolve(may_proxy=True)
    assert (found.status, found.header.process_id) == (Status.OK, None)


async def test_rs9_without_our_member_key_we_still_find_peers(remote):
    remote.etcd.write(Delete(member_key(PREFIX, OURS)))
    assert (await remote.resolve(may_proxy=True)).is_remote
    assert (await remote.resolve()).header.process_id == NOBODY
    assert (await remote.resolve(journal="un/known")).header.process_id == NOBODY


async def test_rs10_a_demoted_primary_gets_a_new_replica(stage, tasks):
    stage.spec(replication=2)
    stage.assign(OURS, 0)
    first = stage.resolver.replicas[JOURNAL]
    stage.assign(PEER, 1)
    assert stage.resolver.replicas[JOURNAL] is first
    stage.etcd.write(
        Delete(assignment_key(PREFIX, JOURNAL, OURS, 0)),
        Delete(assignment_key(PREFIX, JOURNAL, PEER, 1)),
        Put(assignment_key(PREFIX, JOURNAL, OURS, 1), b""),
        Put(assignment_key(PREFIX, JOURNAL, PEER, 0), b""),
    )
    second = stage.resolver.replicas[JOURNAL]
    assert second is not first
    await turns()
    assert (first.is_closed, second.is_closed) == (True, False)


async def test_rs11_after_a_stop_peers_still_resolve(stage):
    stage.spec(replication=1)
    stage.assign(OURS, 0)
    replica, stopped = stage.resolver.replicas[JOURNAL], "^resolve: .* local replicas; ask again$"
    waiting = asyncio.ensure_future(  # noqa: TID251  awaited below
        stage.resolve(min_revision=stage.space.revision + 1)
    )
    await turns()
    await stage.resolver.close()
    assert replica.is_closed
    stage.etcd.write(Put("/p/items/another", b""))
    with pytest.raises(RpcFailed, match=stopped):
        await asyncio.wait_for(waiting, 5)
    with pytest.raises(RpcFailed, match=stopped):
        await stage.resolve()
    stage.etcd.write(
        Delete(assignment_key(PREFIX, JOURNAL, OURS, 0)),
        Put(assignment_key(PREFIX, JOURNAL, PEER, 0), b""),
    )
    assert (await stage.resolve(may_proxy=True, require_primary=True)).is_remote
    # What is assigned from now on is not served either.
    stage.etcd.write(
        Delete(assignment_key(PREFIX, JOURNAL, PEER, 0)),
        Put(assignment_key(PREFIX, JOURNAL, OURS, 0), b""),
    )
    assert stage.resolver.replicas == {JOURNAL: replica}
    with pytest.raises(RpcFailed, match=stopped):
        await stage.resolve()


async def test_rs12_deleted_and_created_again_within_one_update(stage, monkeypatch):
    """The mirror never shows that the journal was gone; its CreateRevision does."""
    stage.spec()
    stage.assign(OURS, 0)
    before = stage.resolver.replicas[JOURNAL]
    held = []
    with monkeypatch.context() as patched:
        patched.setattr(stage.space, "apply_batches", held.extend)
        stage.etcd.write(Delete(item_key(PREFIX, JOURNAL)))
        stage.spec()
    assert len(held) == 2
    stage.space.apply_batches(held)
    after = stage.resolver.replicas[JOURNAL]
    assert after is not before
    assert after.create_revision > before.create_revision
    await turns()
    assert (before.is_closed, after.is_closed) == (True, False)


def _later(etcd):
    return dataclasses.replace(etcd, revision=etcd.revision + 1)


async def test_rs13_rs14_answers_of_a_forwarding_broker(remote, tasks):
    ours = Header(OURS, remote.space.state.route_of(JOURNAL), remote.space.header)
    future = dataclasses.replace(ours.etcd, revision=ours.etcd.revision + 1)
    header = dataclasses.replace(ours, etcd=future)
    waiting = spawn(tasks, remote.resolve(may_proxy=True, proxy_header=header))
    await turns()
    assert not waiting.done()
    remote.spec(max_append_rate=1)
    assert (await waiting).is_remote
    for fields in (
        {"min_revision": future.revision + 1},
        {"proxy_header": dataclasses.replace(header, etcd=_later(future))},
    ):
        waiting = spawn(tasks, remote.resolve(may_proxy=True, **fields))
        await turns()
        assert not waiting.done()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    for wrong, text in (
        (dataclasses.replace(ours, process_id=PEER), "request ProcessId doesn't match our own"),
        (
            dataclasses.replace(ours, etcd=dataclasses.replace(ours.etcd, cluster_id=8)),
            "request Etcd ClusterId doesn't match our own",
        ),
    ):
        with pytest.raises(RpcFailed, match=text):
            await remote.resolve(proxy_header=wrong)


async def test_responses_hold_the_header_that_was_encoded_once(stage):
    stage.spec(replication=2)
    stage.assign(PEER, 0)
    for found in (
        await stage.resolve(may_proxy=True, require_primary=True),
        await stage.resolve(may_proxy=True),
        await stage.resolve(journal="un/known"),
        await stage.resolve(claims=Claims(Capability.READ, LabelSelector.parse("name=b/other"))),
        stage.resolver.refused(await stage.resolve(may_proxy=True), Status.SUSPENDED),
    ):
        response = pb.AppendResponse.FromString(found.header_field)
        assert response.header == found.header.to_pb()
