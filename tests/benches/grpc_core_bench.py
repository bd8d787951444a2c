"""The gRPC library's server, with handlers that do what those of `h2_server_bench.Echo` do."""

from __future__ import annotations

import asyncio

import grpc
from grpc import aio
from h2_server_bench import SERVICE


class GrpcBench:
    """A server of `grpc.aio`.

    Args:
        port: 0: a free one. Servers may share one.
        credentials: None: plain text.
    """

    def __init__(self, *, port=0, credentials=None):
        options = {"grpc.max_receive_message_length": 8 << 20, "grpc.so_reuseport": 1}
        self.server = aio.server(options=[*options.items()])
        self.cancelled = []
        self.waits = 0
        self.gate = asyncio.Event()
        kinds = {
            "Unary": (grpc.unary_unary_rpc_method_handler, self.unary),
            "Upload": (grpc.stream_unary_rpc_method_handler, self.upload),
            "Download": (grpc.unary_stream_rpc_method_handler, self.download),
            "Both": (grpc.stream_stream_rpc_method_handler, self.both),
            "Wait": (grpc.unary_unary_rpc_method_handler, self.wait),
            "Fail": (grpc.unary_unary_rpc_method_handler, self.fail),
            "Early": (grpc.stream_unary_rpc_method_handler, self.early),
            "Counts": (grpc.unary_unary_rpc_method_handler, self.counts),
            "Name": (grpc.unary_unary_rpc_method_handler, self.name),
        }
        handlers = {name: kind(handler) for name, (kind, handler) in kinds.items()}
        handler = grpc.method_handlers_generic_handler(SERVICE, handlers)
        self.server.add_generic_rpc_handlers((handler,))
        target = f"127.0.0.1:{port}"
        if credentials is None:
            self.port = self.server.add_insecure_port(target)
        else:
            self.port = self.server.add_secure_port(target, credentials)
        self.address = f"127.0.0.1:{self.port}"

    async def __aenter__(self):
        await self.server.start()
        return self

    async def __aexit__(self, *exc_info):
        await self.server.stop(None)

    async def unary(self, request, context):
        self.metadata = dict(context.invocation_metadata())
        return request

    async def upload(self, requests, context):
        sizes = [len(request) async for request in requests]
        return b"%d messages, %d bytes" % (len(sizes), sum(sizes))

    async def download(self, request, context):
        count, size = map(int, request.split())
        for number in range(count):
            yield bytes((number % 256,)) * size

    async def both(self, requests, context):
        sent = dict(context.invocation_metadata())
        seen = (("seen", sent["x-sent"]),) if "x-sent" in sent else ()
        await context.send_initial_metadata((("greeting", "hello"), *seen))
        async for request in requests:
            yield request[::-1]

    async def wait(self, request, context):
        self.waits += 1
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append("wait")
            raise
        return b"waited"

    async def fail(self, request, context):
        code = getattr(grpc.StatusCode, request.decode())
        await context.abort(code, "why: 100 % of ü")

    async def early(self, requests, context):
        async for _ in requests:
            break
        return b"early"

    async def counts(self, request, context):
        return b"%d %d" % (self.waits, len(self.cancelled))

    async def name(self, request, context):
        return b"%d" % id(self)
