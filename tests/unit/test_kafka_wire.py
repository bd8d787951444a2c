"""Clients that break Kafka's protocol lose their connection, and others are served."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import socket
import struct
import warnings
from functools import partial

import pytest
import uvloop
from kio.schema.errors import ErrorCode

from gazette_platform.etcd import EtcdClient
from gazette_platform.kafka.calls.produce import Produce
from gazette_platform.kafka.config import KafkaConfig
from gazette_platform.kafka.gateway import KafkaMetrics, Node, Nodes
from gazette_platform.kafka.server import Login
from gazette_platform.kafka.wire import (
    API_VERSIONS,
    Api,
    Later,
    read_call,
    versions_answer,
)
from gazette_platform.kafka.wire.bounds import Budget, Complaints
from gazette_platform.kafka.wire.connection import Connection
from gazette_platform.kafka.wire.receiving import Shared
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.faults import Faults
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.serving.auth import Authenticator
from gazette_platform.testing.waiting import eventually, turns

WAIT_S = 10.0
KEY = "c2VjcmV0IGtleSBvZiBhIGRlbW8sIGRvIG5vdCB1c2U="
LARGEST = 1 << 24
METADATA = 3


def head(key, version, number=7):
    """A header without a name of the client."""
    return struct.pack(">hhih", key, version, number, -1)


def framed(content):
    return struct.pack(">i", len(content)) + content


VERSIONS = framed(head(API_VERSIONS, 0))

HOSTILE = {
    "largest length": struct.pack(">i", (1 << 31) - 1),
    "negative length": struct.pack(">i", -1),
    "no length": struct.pack(">i", 0),
    "one byte too long": struct.pack(">i", LARGEST + 1),
    "short header": framed(b"\0\x12"),
    "unknown key": framed(head(999, 0)),
    "negative key": framed(head(-1, 0)),
    "version of the future": framed(head(METADATA, 32767)),
    "negative version": framed(head(METADATA, -1)),
    "array of two billions": framed(head(METADATA, 1) + struct.pack(">i", (1 << 31) - 1)),
    "text beyond the end": framed(head(METADATA, 1) + struct.pack(">ih", 1, 32767)),
    "text that is not UTF-8": framed(head(METADATA, 1) + struct.pack(">ih", 1, 2) + b"\xff\xfe"),
    "endless number": framed(head(METADATA, 9) + b"\xff" * 64),
    "large and no batch": framed(head(METADATA, 1) + bytes(9 << 20)),
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
    "TLS": bytes.fromhex("16030100c8010000c40303") + bytes(194),
    "cut off": struct.pack(">i", 1000) + b"abc",
    "nothing": b"",
}


class Gateway:
    """Connections as a gateway has them, with two kinds of calls."""

    def __init__(self, keys=""):
        self.budget = Budget(LARGEST * 2)
        self.handled = 0
        self.topics = 0
        self.idle_s = 600.0
        self.gates = None  # of answers that wait
        self._auth = Authenticator(keys, SystemClock())
        self._apis = {
            API_VERSIONS: Api(API_VERSIONS, "api_versions", 0, 4, self._versions),
            METADATA: Api(METADATA, "metadata", 0, 12, self._metadata),
            **{api.key: api for api in Login().apis},
        }

    async def _versions(self, call):
        return versions_answer(self._apis, call.version)

    async def _metadata(self, call):
        self.handled += 1
        if self.gates is not None:
            self.gates.append(asyncio.get_running_loop().create_future())
            made = call.new("MetadataResponse", brokers=(), controller_id=1, topics=())
            return Later(self.gates[-1:], lambda: made)
        if not self.topics:
            return None
        fields = {"error_code": ErrorCode.none, "is_internal": False, "partitions": ()}
        topic = call.new("MetadataResponseTopic", name="x" * 400, **fields)
        topics = (topic,) * self.topics
        return call.new("MetadataResponse", brokers=(), controller_id=1, topics=topics)

    def _shared(self):
        return Shared(
            apis=self._apis,
            config=KafkaConfig(
                request_bytes_max=LARGEST, buffer_bytes_max=LARGEST * 2, idle_s=self.idle_s
            ),
            budget=self.budget,
            faults=Faults(),
            metrics=KafkaMetrics(),
            auth=self._auth,
            quotas={},
            complaints=Complaints(),
            tasks=self._tasks,
            most=100,
        )

    @contextlib.asynccontextmanager
    async def serving(self):
        self._tasks = TaskGroup("gateway")
        self.shared = shared = self._shared()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Connection(shared), "127.0.0.1", 0)
        async with server:
            self.port = server.sockets[0].getsockname()[1]
            yield self
            await self._tasks.close()
        assert not shared.open

    async def sent(self, content, *, ends=False):
        """What is answered until the connection ends."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        answered = b""
        try:
            async with asyncio.timeout(WAIT_S):
                writer.write(content)
                if ends:
                    writer.write_eof()
                with contextlib.suppress(ConnectionError):
                    while some := await reader.read(1 << 16):
                        answered += some
        finally:
            writer.close()
        return answered

    async def asked(self, content):
        """The begin of an answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            async with asyncio.timeout(WAIT_S):
                writer.write(content)
                return await reader.readexactly(10)
        finally:
            writer.close()

    async def is_well(self):
        """Whether another client is answered."""
        return (await self.asked(VERSIONS))[4:8] == struct.pack(">i", 7)


@pytest.mark.parametrize("keys", ["", KEY], ids=["open", "keys"])
@pytest.mark.parametrize("name", HOSTILE)
async def test_broken_requests_end_their_connection_only(name, keys):
    async with Gateway(keys).serving() as gateway:
        answered = await gateway.sent(HOSTILE[name], ends=name in ("cut off", "nothing"))
        assert answered == b""
        assert gateway.handled == 0
        assert await gateway.is_well()
        assert gateway.budget.free == LARGEST * 2


async def test_half_requests_do_not_take_the_room_of_others():
    large = framed(head(METADATA, 1) + bytes(1 << 20))
    async with Gateway().serving() as gateway, contextlib.AsyncExitStack() as stack:
        for _ in range(2 * gateway.budget.free // LARGEST):
            _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            stack.callback(writer.close)
            writer.write(struct.pack(">i", LARGEST) + bytes(1000))
        await gateway.sent(large[:-1], ends=True)
        assert await gateway.is_well()
        assert gateway.budget.free == LARGEST * 2


LARGE = framed(head(METADATA, 1) + struct.pack(">i", -1) + bytes(700_000))


async def test_requests_wait_for_room_and_go_on():
    async with Gateway().serving() as gateway:
        all_room = gateway.budget.take_now(LARGEST * 2)
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(VERSIONS + LARGE + VERSIONS + LARGE)
        for _ in range(20):
            await turns()
        assert gateway.handled == 0
        gateway.budget.give(all_room)
        async with asyncio.timeout(WAIT_S):
            for _ in range(2):
                size = struct.unpack(">i", await reader.readexactly(4))[0]
                await reader.readexactly(size)
            await eventually(lambda: gateway.handled == 2, timeout_s=WAIT_S)
        await eventually(lambda: gateway.budget.free == LARGEST * 2, timeout_s=WAIT_S)
        writer.close()


@pytest.mark.parametrize("seed", range(5))
async def test_requests_are_cut_wherever_they_arrive_in_pieces(seed):
    rng = random.Random(seed)
    content = (VERSIONS + LARGE + VERSIONS * 9) * 3
    async with Gateway().serving() as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        at, answers = 0, 0
        async with asyncio.timeout(WAIT_S):
            while at < len(content):
                size = rng.choice((1, 3, 7, 30, 5_000, 65_536, 300_000))
                writer.write(content[at : at + size])
                at += size
                await writer.drain()
                await turns()
            while answers < 30:
                size = struct.unpack(">i", await reader.readexactly(4))[0]
                assert (await reader.readexactly(size))[:4] == struct.pack(">i", 7)
                answers += 1
        assert gateway.handled == 3
        writer.close()


async def test_client_that_takes_no_answers_has_one_made():
    async with Gateway().serving() as gateway:
        gateway.topics = 20_000  # 8 MB
        _reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=1)
        writer.write(framed(head(METADATA, 1) + struct.pack(">i", -1)) * 50)
        await eventually(lambda: gateway.handled, timeout_s=WAIT_S)
        assert await gateway.is_well()
        await turns()
        assert gateway.handled == 1
        writer.close()


async def test_answer_that_is_never_taken_is_given_up(monkeypatch):
    """Else it is kept, and the socket, for as long as the client stays."""
    monkeypatch.setattr("gazette_platform.kafka.wire.connection._LAST_S", 0.1)
    gateway = Gateway()
    gateway.idle_s = 0.2
    async with gateway.serving():
        gateway.topics = 20_000
        _reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=1)
        writer.write(framed(head(METADATA, 1) + struct.pack(">i", -1)))
        await eventually(lambda: gateway.shared.open, timeout_s=WAIT_S)
        (connection,) = gateway.shared.open
        size_of = connection.transport.get_write_buffer_size
        assert await eventually(size_of, timeout_s=WAIT_S)
        assert await eventually(lambda: not gateway.shared.open, timeout_s=WAIT_S)
        assert await eventually(lambda: not size_of(), timeout_s=WAIT_S)
        writer.close()


async def test_place_of_a_request_grows_with_what_comes():
    """Thousands of connections that announce a large request, and send none of it, take no gigabytes."""
    async with Gateway().serving() as gateway:
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        came = -4
        for content in (struct.pack(">i", LARGEST), bytes(5_000), bytes(70_000)):
            writer.write(content)
            came += len(content)
            size = await eventually(partial(place_of, gateway, came), timeout_s=WAIT_S)
            assert size <= max(4096, 4 * came)
        writer.close()


def place_of(gateway, came):
    """How large the place of the only request is, once so much of it came."""
    for connection in gateway.shared.open:
        if connection._frame is not None and connection._filled == came:
            return len(connection._frame)
    return 0


async def test_answers_that_wait_keep_their_order_and_are_not_many():
    everything = struct.pack(">i", -1)
    async with Gateway().serving() as gateway:
        gateway.gates = gates = []
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        for number in range(100):
            writer.write(framed(head(METADATA, 1, number) + everything))
        await eventually(lambda: len(gates) >= 64, timeout_s=WAIT_S)
        for _ in range(20):
            await turns()
        assert len(gates) == 64
        answered = []
        async with asyncio.timeout(WAIT_S):
            while len(answered) < 100:
                for gate in reversed(gates):
                    if not gate.done():
                        gate.set_result(None)
                size = struct.unpack(">i", await reader.readexactly(4))[0]
                answered.append(struct.unpack(">i", (await reader.readexactly(size))[:4])[0])
        assert answered == [*range(100)]
        writer.close()


@pytest.mark.parametrize("limit", ["_LOGIN_S", "_PIECE_S"])
async def test_client_that_comes_to_nothing_is_left(monkeypatch, limit):
    """It does not log in, or sends a request a few bytes at a time."""
    monkeypatch.setattr(f"gazette_platform.kafka.wire.receiving.{limit}", 0.2)
    is_login = limit == "_LOGIN_S"
    async with Gateway(KEY if is_login else "").serving() as gateway:
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(VERSIONS if is_login else struct.pack(">i", LARGEST))
        await eventually(lambda: gateway.shared.open, timeout_s=WAIT_S)

        def is_left():
            if not is_login and not writer.transport.is_closing():
                writer.write(b"x")
            return not gateway.shared.open

        assert await eventually(is_left, timeout_s=WAIT_S)
        writer.close()


async def test_batches_of_a_request_are_looked_at_once():
    """It may have many thousand, and asks after each."""

    class Counted(asyncio.Future):
        looks = 0

        def done(self):
            Counted.looks += 1
            return super().done()

    waits = [Counted() for _ in range(1000)]
    later = Later(waits, lambda: None)
    later.listen(lambda _: later.is_ready(0.0))
    for each in waits[:-1]:
        each.set_result(0)
    await turns()
    assert not later.is_ready(0.0)
    assert Counted.looks < 10_000
    waits[-1].set_result(0)
    assert later.is_ready(0.0)


async def test_unknown_version_of_api_versions_is_answered():
    async with Gateway().serving() as gateway:
        answered = await gateway.asked(framed(head(API_VERSIONS, 99)))
        assert answered[8:10] == struct.pack(
            ">h", 35
        )  # UNSUPPORTED_VERSION, in the form of version 0


async def test_calls_before_a_login_are_not_handled():
    everything = framed(head(METADATA, 1) + struct.pack(">i", -1))
    async with Gateway(KEY).serving() as gateway:
        answered = await gateway.sent(VERSIONS + everything + VERSIONS)
        assert gateway.handled == 0
        assert answered.count(struct.pack(">i", 7)) <= 1
    async with Gateway().serving() as gateway:
        await gateway.asked(everything + VERSIONS)
        assert gateway.handled == 1


@pytest.mark.parametrize(
    "login",
    [
        b"",
        b"\0",
        b"\0\0\0\0",
        b"\xff\xff",
        b"\0me\0" + b"x" * 60_000,
        b"n,,\x01auth=Bearer \x01\x01",
    ],
)
@pytest.mark.parametrize("mechanism", [b"PLAIN", b"OAUTHBEARER"])
async def test_broken_logins_end_the_connection(mechanism, login):
    chosen = framed(head(17, 0) + struct.pack(">h", len(mechanism)) + mechanism)
    async with Gateway(KEY).serving() as gateway:
        answered = await gateway.sent(chosen + framed(login or b"\0") + VERSIONS)
        size = struct.unpack(">i", answered[:4])[0] if answered else -4
        assert len(answered) == size + 4  # no more than the answer to the handshake
        assert await gateway.is_well()


async def test_answer_that_no_one_awaits_leaves_nothing_over():
    """A connection that breaks has calls whose answers no one awaits any more."""
    (api,) = Produce(None, None, None).apis
    records = struct.pack(">i", 1) + struct.pack(">ii", 0, -1)
    topics = struct.pack(">i", 1) + struct.pack(">h", 1) + b"t" + records
    wrong_acks = struct.pack(">hhi", -1, 7, 1000)  # so nothing is appended
    call = read_call(api, head(api.key, 3) + wrong_acks + topics, None)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        answer = await api.handle(call)
        del answer
        gc.collect()
    assert [str(one.message) for one in seen] == []
    answer = (await api.handle(call)).make()
    assert answer.responses[0].partition_responses[0].error_code is ErrorCode.invalid_required_acks


async def test_gateway_leaves_though_etcd_is_away(caplog):
    async with contextlib.AsyncExitStack() as stack:
        etcd = EtcdClient(["http://127.0.0.1:1"], request_timeout_s=0.2)
        stack.push_async_callback(etcd.close)
        nodes = Nodes(etcd, "/away", faults=Faults())
        nodes.own = Node(3, "127.0.0.1", 9092)
        await nodes.leave()
    assert "node 3 stays listed until its lease ends" in caplog.text


def test_reset_at_the_instant_of_an_answer_is_foreseen():
    uvloop.run(answer_a_client_that_left())


async def answer_a_client_that_left():
    """Its answer is ready at the instant at which it resets the connection."""
    loop = asyncio.get_running_loop()
    gate, handled, faults = loop.create_future(), [], Faults()

    async def later(call):
        handled.append(call)
        return Later((gate,), lambda: versions_answer({}, call.version))

    shared = Shared(
        apis={API_VERSIONS: Api(API_VERSIONS, "api_versions", 0, 4, later)},
        config=KafkaConfig(),
        budget=Budget(LARGEST),
        faults=faults,
        metrics=KafkaMetrics(),
        auth=Authenticator("", SystemClock()),
        quotas={},
        complaints=Complaints(),
        tasks=TaskGroup("gateway"),
        most=1,
    )
    server = await loop.create_server(lambda: Connection(shared), "127.0.0.1", 0)
    async with server, asyncio.timeout(WAIT_S):
        port = server.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(VERSIONS)
        await eventually(lambda: handled, timeout_s=WAIT_S)
        lingers_not = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, lingers_not)
        writer.transport.abort()
        (connection,) = shared.open
        while not connection.transport.is_closing():
            await turns()
        gate.set_result(None)
        await asyncio.wait([connection.task])
        await turns()
    assert not shared.open
    assert shared.budget.free == LARGEST
