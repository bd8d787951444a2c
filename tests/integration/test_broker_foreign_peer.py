"""A cluster with a broker of another making, which speaks the contract in bytes put together by hand.

The foreign broker is the oldest member, and so it leads the allocation: the test writes assignments
as a leader would, and ours must follow. As a replica it is as strict as the contract lets it be; as
a primary it writes messages as Go does, field by field.
"""

from __future__ import annotations

import contextlib
import hashlib
import struct
from dataclasses import dataclass, field

import grpc
import pytest
from grpc import aio
from raw_protobuf import blob, decode, number, only

from gazette_platform.etcd import Compare, Delete, EtcdClient, Put
from gazette_platform.keyspace import item_key
from gazette_platform.serving.grpc_transport import CALL_ERRORS
from gazette_platform.testing.local import read_all
from gazette_platform.testing.waiting import eventually

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

NAME = "shared/journal"
FOREIGN, OURS = ("a", "foreign-broker"), ("b", "broker-0")
RECEIVE_BYTES_MAX = 4 << 20
DEADLINE_S = 10.0

NONE, GZIP = 1, 2
WRONG_ROUTE, PROPOSAL_MISMATCH = 7, 8


# ---------------------------------------------------------------------------------------- messages
def member(process_id):
    zone, suffix = process_id
    return blob(1, zone) + blob(2, suffix)


def route(primary, *endpoints):
    """Of both brokers."""
    members = blob(1, member(FOREIGN)) + blob(1, member(OURS))
    index = number(2, 1) if primary == OURS else b""  # a zero is not written
    return members + index + b"".join(blob(3, each) for each in endpoints)


def sha1_sum(content):
    if not content:
        return b""
    part1, part2, part3 = struct.unpack(">QQI", hashlib.sha1(content).digest())
    return struct.pack("<BQBQBI", 0x09, part1, 0x11, part2, 0x1D, part3)


def fragment(begin, content=b"", codec=NONE):
    end = begin + len(content)
    offsets = (number(2, begin) if begin else b"") + (number(3, end) if end else b"")
    return blob(1, NAME) + offsets + blob(4, sha1_sum(content)) + number(5, codec)


def registers(**labels):
    return b"".join(blob(1, blob(1, k) + blob(2, v)) for k, v in sorted(labels.items()))


def spec(replication=2, codec=NONE, length=1 << 20):
    settings = number(1, length) + number(2, codec) + blob(3, "file:///") + blob(4, number(1, 3600))
    return blob(1, NAME) + number(2, replication) + blob(3, b"") + blob(4, settings)


# ------------------------------------------------------------------------------------ the foreigner
@dataclass
class Spool:
    """A replica's spool, by the contract: what is committed, and what was written after it."""

    begin: int = 0
    content: bytes = b""
    codec: int = NONE
    registers: bytes = b""
    written: bytes = b""
    closed: list[bytes] = field(default_factory=list)

    @property
    def end(self):
        return self.begin + len(self.content)

    def fragment(self, *, with_written=False):
        content = self.content + self.written if with_written else self.content
        return fragment(self.begin, content, self.codec)

    def apply(self, proposal, labels):
        """Apply a proposal. Returns: whether it is now what we have."""
        fields = decode(proposal)
        begin, end = only(fields, 2, 0), only(fields, 3, 0)
        if end > self.end + len(self.written) or (end == self.end and begin == end):
            if self.content:
                self.closed.append(self.content)
            if end > self.end:
                self.registers = labels
            self.begin, self.content, self.written = end, b"", b""
            self.codec = only(fields, 5)
        if proposal == self.fragment() and labels == self.registers:
            self.written = b""
            return True
        if self.written and proposal == self.fragment(with_written=True):
            self.content, self.written = self.content + self.written, b""
            self.registers = labels
            return True
        return False


class ForeignBroker:
    """Its member key, its gRPC port, and what the leader of a cluster does to etcd."""

    def __init__(self, etcd, prefix):
        self.etcd = etcd
        self.prefix = prefix
        self.spool = Spool()
        self.streams = []
        self.refuse_route_once = False
        self.failures = []

    async def start(self):
        handlers = {"Replicate": grpc.stream_stream_rpc_method_handler(self.replicate)}
        options = [("grpc.max_receive_message_length", RECEIVE_BYTES_MAX)]
        self.server = aio.server(options=options)
        self.server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("protocol.Journal", handlers),)
        )
        port = self.server.add_insecure_port("127.0.0.1:0")
        await self.server.start()
        self.endpoint = f"http://127.0.0.1:{port}"
        self.lease = await self.etcd.grant_lease(60)
        broker_spec = blob(1, blob(1, member(FOREIGN)) + blob(2, self.endpoint)) + number(2, 1024)
        await self.etcd.put(self.member_key(FOREIGN), broker_spec, lease=self.lease.id)

    async def stop(self):
        await self.server.stop(None)

    # ------------------------------------------------------------------------------- as a leader
    def member_key(self, process_id):
        return f"{self.prefix}/members/{'#'.join(process_id)}"

    def assignment(self, process_id, slot):
        return f"{self.prefix}/assign/{NAME}#{'#'.join(process_id)}#{slot}"

    async def assign(self, primary):
        """Create the journal's two assignments: empty values, under the leases of their members."""
        other = FOREIGN if primary == OURS else OURS
        compares, puts = [], []
        for slot, process_id in enumerate((primary, other)):
            found = await self.etcd.get(self.member_key(process_id))
            compares.append(Compare.mod(found.key, found.mod_revision))
            puts.append(Put(self.assignment(process_id, slot), b"", lease=found.lease))
        assert (await self.etcd.txn(compares, puts)).succeeded

    async def publish(self, ours):
        """As a primary after its sync: the route goes into both assignments. Ours has seen it."""
        found = [await self.etcd.get(self.assignment(*each)) for each in ((FOREIGN, 0), (OURS, 1))]
        puts = [Put(each.key, route(FOREIGN), ignore_lease=True) for each in found]
        result = await self.etcd.txn([Compare.mod(e.key, e.mod_revision) for e in found], puts)
        assert result.succeeded
        await ours._context.space.wait_for_revision(result.header.revision)

    async def promote_ours(self, ours):
        """Leave, as after a drain: our assignment goes, theirs moves to slot 0. Ours has seen it."""
        theirs = await self.etcd.get(self.assignment(OURS, 1))
        own = await self.etcd.get(self.assignment(FOREIGN, 0))
        moved = Put(self.assignment(OURS, 0), theirs.value, lease=theirs.lease)
        compares = [Compare.mod(each.key, each.mod_revision) for each in (theirs, own)]
        operations = [Delete(own.key), Delete(theirs.key), moved]
        result = await self.etcd.txn(compares, operations)
        assert result.succeeded
        await ours._context.space.wait_for_revision(result.header.revision)

    async def header(self, primary, process_id):
        found = await self.etcd.range(self.prefix + "/")
        state = found.header
        revision = max(each.mod_revision for each in found.kvs)
        etcd = number(1, state.cluster_id) + number(2, state.member_id)
        etcd += number(3, revision) + number(4, state.raft_term)
        return blob(1, member(process_id)) + blob(2, route(primary)) + blob(3, etcd)

    # ------------------------------------------------------------------------------ as a replica
    async def replicate(self, messages, context):
        """Serve one stream, and note each rule of the contract that its sender breaks."""
        seen = []
        self.streams.append(seen)
        async for raw in messages:
            fields = decode(raw)
            seen.append(fields)
            try:
                answer = await self.on_message(fields, is_first=len(seen) == 1)
            except AssertionError as err:
                self.failures.append(err)
                await context.abort(grpc.StatusCode.UNKNOWN, "broken rule")
            if answer is not None:
                yield answer
        self.spool.written = b""

    async def on_message(self, fields, *, is_first):
        if 3 not in fields:
            assert not is_first
            assert set(fields) <= {4, 5}, "content comes with its delta alone"
            assert only(fields, 4), "content is not empty"
            assert only(fields, 5, 0) == len(self.spool.written)
            self.spool.written += only(fields, 4)
            return None
        assert set(fields) <= {1, 2, 3, 6, 7}
        assert only(fields, 7) is not None, "registers are present with a proposal"
        proposal = only(fields, 3)
        # Compared field by field, so that nothing may be in it but what is proposed.
        assert set(decode(proposal)) <= {1, 2, 3, 4, 5}
        assert only(decode(proposal), 1) == NAME.encode()
        if not is_first:
            assert not {1, 2} & set(fields), "a header is for the first message"
            return self.answer(fields, b"")
        header = decode(only(fields, 1))
        assert only(header, 1) == member(FOREIGN), "each peer is greeted by its name"
        assert all(decode(only(header, 3)).get(n, [0])[0] > 0 for n in (1, 2, 3, 4))
        assert only(fields, 2) == NAME.encode()
        assert only(fields, 6) == 1
        if self.refuse_route_once:
            # It has seen a revision that the primary has not.
            await self.etcd.put(item_key(self.prefix, NAME), spec(length=1 << 21))
        own_header = await self.header(OURS, FOREIGN)
        if self.refuse_route_once:
            self.refuse_route_once = False
            # What it believes is another route: that of itself alone.
            alone = blob(1, member(FOREIGN)) + blob(2, blob(1, member(FOREIGN)))
            return number(1, WRONG_ROUTE) + blob(2, alone + blob(3, only(decode(own_header), 3)))
        given = decode(only(header, 2))
        assert given[1] == [member(FOREIGN), member(OURS)]
        assert only(given, 2) == 1
        return self.answer(fields, blob(2, own_header))

    def answer(self, fields, header):
        """A response, or None. Go writes the header of the first, and nothing in later good ones."""
        spool = self.spool
        is_ok = spool.apply(only(fields, 3), only(fields, 7))
        if not only(fields, 6, 0):
            assert is_ok, "a proposal that is not acknowledged must fit"
            return None
        if is_ok:
            return header
        mismatch = blob(3, spool.fragment()) + blob(4, spool.registers)
        return number(1, PROPOSAL_MISMATCH) + header + mismatch


@pytest.fixture
async def foreign(etcd_server, etcd_prefix):
    async with EtcdClient([etcd_server.endpoint]) as etcd:
        broker = ForeignBroker(etcd, etcd_prefix)
        await broker.start()
        yield broker
        await broker.stop()
        await broker.lease.revoke()
        assert not broker.failures


@pytest.fixture
async def ours(foreign, local_brokers):
    """Our broker: a younger member, which does not lead."""
    return await local_brokers.start(zone="b", append_wait_s=0.5)


@pytest.fixture
async def stub(ours, local_brokers):
    return local_brokers.stub(ours)


@pytest.fixture
async def call(ours):
    """Raw calls of our broker."""
    async with aio.insecure_channel(f"127.0.0.1:{ours.port}") as channel:
        yield channel


async def append(call, *contents, fields=b""):
    method = call.stream_unary("/protocol.Journal/Append")
    chunks = [blob(4, content) for content in contents]
    messages = [blob(2, NAME) + fields, *chunks, b""]
    return decode(await method(iter(messages), timeout=DEADLINE_S))


async def until_assigned(ours):
    """Until ours has the journal, and has listed its store: before that, it forwards reads."""
    replicas = ours._resolver.replicas
    await eventually(lambda: NAME in replicas, timeout_s=DEADLINE_S)
    await eventually(replicas[NAME].index.first_refresh.is_set, timeout_s=DEADLINE_S)


# -------------------------------------------------------------------------- ours is the primary
@pytest.fixture
async def as_primary(foreign, ours):
    await make_ours_primary(foreign, ours)


async def make_ours_primary(foreign, ours):
    await foreign.etcd.put(item_key(foreign.prefix, NAME), spec())
    await foreign.assign(OURS)
    await until_assigned(ours)


async def test_appends_are_replicated_to_a_foreign_broker(foreign, call, stub, as_primary):
    response = await append(call, b"foo", b"bar")
    assert 1 not in response
    answered = decode(only(decode(only(response, 2)), 2))
    assert answered[1] == [member(FOREIGN), member(OURS)]
    assert answered[3][0] == foreign.endpoint.encode()
    assert foreign.spool.content == b"foobar"
    # The route that both agreed on is in both assignments: consistent, as Go counts it.
    for key in (foreign.assignment(OURS, 0), foreign.assignment(FOREIGN, 1)):
        assert (await foreign.etcd.get(key)).value == route(OURS)
    assert await read_all(stub, NAME) == b"foobar"


async def test_registers_and_roll_backs_reach_it(foreign, call, as_primary):
    await append(call, b"first", fields=blob(7, registers(owner="me")))
    assert foreign.spool.registers == registers(owner="me")
    method = call.stream_unary("/protocol.Journal/Append")
    with pytest.raises(aio.AioRpcError, match="unexpected EOF"):
        await method(iter([blob(2, NAME), blob(4, bytes(3 << 20))]), timeout=DEADLINE_S)
    await append(call, b"second")
    kept = b"".join([*foreign.spool.closed, foreign.spool.content])
    assert kept == b"firstsecond"
    assert foreign.spool.registers == registers(owner="me")


async def test_append_fails_if_a_replica_never_takes_its_registers(foreign, call, ours, stub):
    """It has begun a fragment at our end, under registers that we do not know: no roll moves it on."""
    foreign.spool.registers = registers(owner="other")
    await make_ours_primary(foreign, ours)
    with pytest.raises(
        aio.AioRpcError, match=r"replica a#foreign-broker has other registers .* at 0,"
    ) as caught:
        await append(call, b"content")
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert sum(map(len, foreign.streams)) < 30, "it does not ask without a pause"
    foreign.spool.registers = b""
    assert 1 not in await append(call, b"content")
    assert await read_all(stub, NAME) == b"content"


async def test_large_appends_fit_its_limit_and_roll_with_ours(foreign, call, stub, as_primary):
    content = bytes(range(256)) * (1 << 14)
    for _ in range(3):
        await append(
            call, *[content[at : at + (1 << 20)] for at in range(0, len(content), 1 << 20)]
        )
    assert b"".join([*foreign.spool.closed, foreign.spool.content]) == content * 3
    assert len(foreign.spool.closed) >= 2  # each is longer than a fragment is to be
    assert await read_all(stub, NAME) == content * 3


async def test_codecs_of_its_fragments_are_those_of_the_spec(foreign, call, as_primary):
    more_than_a_fragment = bytes(2 << 10)
    await append(call, more_than_a_fragment)
    await foreign.etcd.put(item_key(foreign.prefix, NAME), spec(codec=GZIP, length=1 << 10))

    async def is_told():
        await append(call, more_than_a_fragment)
        return foreign.spool.codec == GZIP

    await eventually(is_told, timeout_s=DEADLINE_S)


# ------------------------------------------------------------------------ the foreigner is primary
@pytest.fixture
async def as_replica(foreign, ours):
    await foreign.etcd.put(item_key(foreign.prefix, NAME), spec())
    await foreign.assign(FOREIGN)
    await until_assigned(ours)


def greeting(header, proposal, labels=b""):
    """The first message of a stream, in the order in which Go writes fields."""
    named = blob(2, NAME)  # deprecated, and still sent
    return blob(1, header) + named + blob(3, proposal) + number(6, 1) + blob(7, labels)


def proposed(proposal, labels=b"", *, acknowledge=True):
    return blob(3, proposal) + (number(6, 1) if acknowledge else b"") + blob(7, labels)


async def opened(foreign, call, proposal=None):
    """A stream that is in sync. Returns: it, and the first response."""
    stream = call.stream_stream("/protocol.Journal/Replicate")(timeout=DEADLINE_S)
    header = await foreign.header(FOREIGN, OURS)
    await stream.write(greeting(header, proposal or fragment(0)))
    return stream, decode(await stream.read())


async def test_a_foreign_primary_replicates_to_ours(foreign, ours, call, stub, as_replica):
    stream, first = await opened(foreign, call)
    await foreign.publish(ours)
    assert set(first) == {2}, "OK, with a header"
    header = decode(only(first, 2))
    assert only(header, 1) == member(OURS)
    assert decode(only(header, 2))[1] == [member(FOREIGN), member(OURS)]
    chunk = 1 << 15
    content = bytes(range(256)) * 1024
    for at in range(0, len(content), chunk):
        delta = number(5, at) if at else b""
        await stream.write(blob(4, content[at : at + chunk]) + delta)
    assert await read_all(stub, NAME) == b""
    await stream.write(proposed(fragment(0, content), registers(owner="go")))
    assert await stream.read() == b""
    assert await read_all(stub, NAME) == content
    # A roll, which no peer acknowledges, and the next append right after it.
    end = len(content)
    await stream.write(proposed(fragment(end), registers(owner="go"), acknowledge=False))
    await stream.write(blob(4, b"lost"))
    await stream.write(proposed(fragment(end), registers(owner="go")))
    assert await stream.read() == b""
    await stream.write(blob(4, b"kept"))
    await stream.write(proposed(fragment(end, b"kept"), registers(owner="go")))
    assert await stream.read() == b""
    assert await read_all(stub, NAME, end) == b"kept"
    await stream.done_writing()
    assert await stream.read() is aio.EOF
    assert await stream.code() is grpc.StatusCode.OK


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (blob(4, b"abc") + number(5, 2), "invalid ContentDelta (2; expected 0)"),
        (number(6, 1), "unexpected Acknowledge without Proposal"),
        (b"", "expected Content or Proposal"),
        (blob(2, "other/journal") + blob(3, fragment(0)) + number(6, 1), "mismatch"),
        (proposed(fragment(0), registers(aa="b"), acknowledge=False), "no ack requested"),
    ],
    ids=["delta", "acknowledge", "empty", "deprecated journal", "unacknowledged"],
)
async def test_errors_of_a_stream_have_gazettes_texts(foreign, call, as_replica, message, text):
    stream, _ = await opened(foreign, call)
    await stream.write(message)
    with pytest.raises(aio.AioRpcError) as failed:
        await stream.read()
    assert failed.value.code() is grpc.StatusCode.UNKNOWN
    assert text in failed.value.details()


async def test_ours_takes_over_where_a_foreign_primary_left(foreign, ours, call, stub, as_replica):
    stream, _ = await opened(foreign, call)
    await foreign.publish(ours)
    await stream.write(blob(4, b"before"))
    await stream.write(proposed(fragment(0, b"before"), registers(owner="go")))
    assert await stream.read() == b""
    await stream.write(blob(4, b"never committed"))
    # It drains: with it gone, one replica is what there can be.
    await foreign.etcd.put(item_key(foreign.prefix, NAME), spec(replication=1))
    await foreign.promote_ours(ours)
    # It is not the primary any more, whatever it believes. Its write may meet the end of the stream,
    # and then grpc.aio reports that in place of the status: so ours is asked for what it ended it with.
    with contextlib.suppress(*CALL_ERRORS):
        await stream.write(proposed(fragment(0, b"beforenever committed"), registers(owner="go")))
    await stream.code()
    labels = {"grpc_type": "bidi_stream", "grpc_service": "protocol.Journal"}
    labels |= {"grpc_method": "Replicate", "grpc_code": "Unavailable"}
    value_of = ours.metrics.registry.get_sample_value
    await eventually(lambda: value_of("grpc_server_handled_total", labels), timeout_s=DEADLINE_S)
    response = await append(call, b" and after")
    assert 1 not in response
    assert only(decode(only(response, 3)), 2) == len(b"before")
    assert only(response, 4) == registers(owner="go")
    assert await read_all(stub, NAME) == b"before and after"
    value = (await foreign.etcd.get(foreign.assignment(OURS, 0))).value
    assert value == blob(1, member(OURS))  # published: primary 0 of one


async def test_ours_leads_once_the_foreign_leader_is_gone(foreign, ours, call, stub, as_primary):
    await append(call, b"kept")
    await foreign.lease.revoke()
    # Until ours has seen that, the foreigner's port still answers for it.
    members = ours._context.space.state.members
    await eventually(lambda: list(members) == [ours._context.process_id], timeout_s=DEADLINE_S)

    async def serves_alone():
        response = await append(call, b".")
        return 1 not in response

    assert not await serves_alone()  # two replicas are asked for, and one broker exists
    await foreign.etcd.put(item_key(foreign.prefix, NAME), spec(replication=1))
    await eventually(serves_alone, timeout_s=DEADLINE_S)
    assert (await read_all(stub, NAME)).startswith(b"kept.")
