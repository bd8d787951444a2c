"""What a wire allows: a broker's server class, with handlers that keep nothing and answer at once.

Run as a program it serves by the wire that it is given: it prints its port, and serves until its standard
input closes. It takes the load of `benchmarks.wire_load`.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, final

import uvloop

from gazette_platform.broker.context import BrokerMetrics
from gazette_platform.ops.process import settle_memory, tune_malloc
from gazette_platform.protocol.content import decode_append_content, encode_read_content
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.serving.grpc_transport import GrpcServer
from gazette_platform.serving.h2.server import H2Server
from gazette_platform.serving.interface import Kind, Rpc

if TYPE_CHECKING:
    from gazette_platform.serving.interface import ContentSource, Metadata, Send

__all__ = ["serve"]

_SERVERS = {"grpc": GrpcServer, "h2": H2Server}
_SERVICE = "protocol.Journal"
_MESSAGE_BYTES_MAX = 4 << 20
_TAKEN_BYTES_MAX = 64 << 10
# About as long as a broker's.
_ID = pb.ProcessSpec.ID(zone="local", suffix="test-broker")
_RESPONSE = pb.AppendResponse(
    header=pb.Header(
        process_id=_ID,
        route=pb.Route(members=[_ID], endpoints=["http://127.0.0.1:50000"]),
        etcd=pb.Header.Etcd(cluster_id=1 << 60, member_id=1 << 60, revision=1000, raft_term=2),
    ),
    commit=pb.Fragment(
        journal="bench/wire",
        begin=1 << 30,
        end=(1 << 30) + 100,
        sum=pb.SHA1Sum(part1=1 << 60, part2=1 << 60, part3=1 << 30),
    ),
    total_chunks=1,
).SerializeToString()


@final
class _Toy:
    """Passes each append to all reads."""

    def __init__(self) -> None:
        self._reads: set[asyncio.Queue[bytes]] = set()

    async def append(self, _: bytes, content: ContentSource, __: Metadata) -> bytes:
        messages = content.take_all(_TAKEN_BYTES_MAX)
        if messages is None:
            messages = []
            while (message := await content.next()) is not None:
                messages.append(message)
        if self._reads:
            whole = b"".join(decode_append_content(message) or b"" for message in messages)
            for read in self._reads:
                read.put_nowait(encode_read_content(0, whole))
        return _RESPONSE

    async def read(self, _: bytes, send: Send, __: Metadata) -> None:
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._reads.add(queue)
        try:
            while True:
                await send(await queue.get())
        finally:
            self._reads.discard(queue)


async def serve(wire: str) -> None:
    """Serve until standard input closes."""
    toy = _Toy()
    server = _SERVERS[wire](
        [
            Rpc(_SERVICE, "Append", Kind.CLIENT_STREAM, toy.append),
            Rpc(_SERVICE, "Read", Kind.SERVER_STREAM, toy.read),
        ],
        host="127.0.0.1",
        port=0,
        recv_bytes_max=_MESSAGE_BYTES_MAX,
        calls=BrokerMetrics().calls,
    )
    await server.start()
    print(server.port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(grace_s=0.0)


if __name__ == "__main__":
    # As a broker does: by default glibc gives the memory of each large message back, and allocates it again.
    tune_malloc()
    settle_memory()
    uvloop.run(serve(sys.argv[1]))
