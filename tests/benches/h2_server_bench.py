"""A server of our HTTP/2 with handlers that give back what they get."""

from __future__ import annotations

import asyncio

from gazette_platform.broker.context import BrokerMetrics
from gazette_platform.serving.h2.server import H2Server
from gazette_platform.serving.interface import Code, Kind, NotTaken, Rpc, RpcFailed

SERVICE = "test.Echo"


class Echo:
    """Handlers that give back what they get, and remember what became of them."""

    def __init__(self):
        self.cancelled = []
        self.failed = []
        self.metadata = {}
        self.waits = 0
        self.gate = asyncio.Event()
        self.begun = 0

    async def unary(self, request, metadata):
        self.metadata = metadata
        return request

    async def upload(self, first, content, metadata):
        parts = [first]
        while (part := await content.next()) is not None:
            parts.append(part)
        return b"%d messages, %d bytes" % (len(parts), sum(map(len, parts)))

    async def download(self, request, send, metadata):
        count, size = map(int, request.split())
        self.begun += 1
        try:
            for number in range(count):
                await send(bytes((number % 256,)) * size)
        except NotTaken as err:
            self.failed.append(err)
            raise

    async def both(self, stream, metadata):
        seen = {"seen": metadata["x-sent"]} if "x-sent" in metadata else {}
        await stream.greet({"greeting": "hello"} | seen)
        while (part := await stream.next()) is not None:
            await stream.send(part[::-1])

    async def wait(self, request, metadata):
        self.begun += 1
        self.waits += 1
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append("wait")
            raise
        return b"waited"

    async def fail(self, request, metadata):
        raise RpcFailed(Code[request.decode()], "why: 100 % of ü")

    async def crash(self, request, metadata):
        raise ValueError("unexpected")

    async def early(self, first, content, metadata):
        return b"early"

    async def counts(self, request, metadata):
        return b"%d %d" % (self.waits, len(self.cancelled))

    async def name(self, request, metadata):
        return b"%d" % id(self)

    def rpcs(self):
        kinds = {
            "Unary": (Kind.UNARY, self.unary),
            "Upload": (Kind.CLIENT_STREAM, self.upload),
            "Download": (Kind.SERVER_STREAM, self.download),
            "Both": (Kind.BIDI_STREAM, self.both),
            "Wait": (Kind.UNARY, self.wait),
            "Fail": (Kind.UNARY, self.fail),
            "Crash": (Kind.UNARY, self.crash),
            "Early": (Kind.CLIENT_STREAM, self.early),
            "Counts": (Kind.UNARY, self.counts),
            "Name": (Kind.UNARY, self.name),
        }
        greeting = {"greeting": "of all streams"}
        rpcs = [Rpc(SERVICE, name, kind, handler) for name, (kind, handler) in kinds.items()]
        return [*rpcs, Rpc(SERVICE, "Greeted", Kind.SERVER_STREAM, self.download, greeting)]


class Bench:
    """A server with the handlers of `Echo`, or of a kind of it."""

    def __init__(self, *, echo=None, **options):
        self.echo = echo or Echo()
        self.metrics = BrokerMetrics()
        settings = {"host": "127.0.0.1", "port": 0, "recv_bytes_max": 8 << 20} | options
        self.server = H2Server(self.echo.rpcs(), calls=self.metrics.calls, **settings)
        self.address = f"127.0.0.1:{self.server.port}"
        self.shared = self.server._shared

    async def __aenter__(self):
        await self.server.start()
        return self

    async def __aexit__(self, *exc_info):
        await self.server.stop(grace_s=0.0)
        assert not self.shared.tasks
        assert not self.shared.connections
        assert not self.shared.deadlines._steps
        assert self.shared.budget.total == 0

    def handled(self, method, code, kind="unary"):
        labels = {
            "grpc_type": kind,
            "grpc_service": SERVICE,
            "grpc_method": method,
            "grpc_code": code,
        }
        return self.metrics.registry.get_sample_value("grpc_server_handled_total", labels) or 0
