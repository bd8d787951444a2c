"""A gRPC server that does nothing with content, and the load that says what gRPC alone allows.

Run as a program it is the server: it prints its port and serves until its standard input closes.
Shapes of calls, sizes of messages and options are those of the broker and its client.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import uvloop
from grpc import aio

from benchmarks.load import Load, closed_loop
from gazette_platform.errors import SetupError
from gazette_platform.protocol.content import CONTENT_CHUNK_BYTES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from benchmarks.figures import Figures
    from gazette_platform.ops.clock import Clock

__all__ = ["measure", "running", "serve"]

_OPTIONS = (
    ("grpc.max_receive_message_length", 4 << 20),
    ("grpc.max_send_message_length", -1),
    ("grpc.http2.lookahead_bytes", 4 << 20),
    ("grpc.http2.max_frame_size", 1 << 20),
    ("grpc.http2.write_buffer_size", 1 << 20),
)
_START_TIMEOUT_S = 20.0
_STOP_TIMEOUT_S = 5.0
_MIB = 1 << 20

# As long as an AppendRequest that names a journal, and its response.
_REQUEST = bytes(48)
_RESPONSE = bytes(160)


async def _take(_: object, context: Any) -> bytes:
    while await context.read() is not aio.EOF:
        pass
    return _RESPONSE


async def _give(request: bytes, context: Any) -> None:
    content = bytes(CONTENT_CHUNK_BYTES)
    for _ in range(int(request)):
        # A copy each, as a broker makes one to put the message together.
        await context.write(b"".join((b"head", content)))


async def _echo(request: bytes, _: object) -> bytes:
    return request


async def _serve() -> None:
    server = aio.server(options=_OPTIONS)
    handlers = {
        "Take": grpc.stream_unary_rpc_method_handler(_take),
        "Give": grpc.unary_stream_rpc_method_handler(_give),
        "Echo": grpc.unary_unary_rpc_method_handler(_echo),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Bound", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)


def serve() -> None:
    """Serve until standard input closes."""
    uvloop.run(_serve())


@contextmanager
def running(module: str = "benchmarks.grpc_bound", *arguments: str) -> Iterator[tuple[int, int]]:
    """Run a server in a process of its own.

    Args:
        module: prints its port, and serves until its standard input closes.

    Yields: its process id and its port. Raises: SetupError: it did not start.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[1],
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SetupError(f"{module} ended before it served; its error is above")
        yield process.pid, int(line)
    finally:
        process.communicate(timeout=_STOP_TIMEOUT_S)


async def measure(clock: Clock, *, window_s: float) -> Figures:
    """What gRPC does on this machine with messages that are not read.

    Args:
        window_s: seconds of load for each figure.

    Returns: ``machine_grpc_*``.
    """
    with running() as (_, port):
        async with aio.insecure_channel(f"127.0.0.1:{port}", options=_OPTIONS) as channel:
            await asyncio.wait_for(channel.channel_ready(), _START_TIMEOUT_S)
            return await _measure(channel, clock, window_s)


async def _measure(channel: Any, clock: Clock, window_s: float) -> Figures:
    take = channel.stream_unary("/Bound/Take")
    give = channel.unary_stream("/Bound/Give")
    echo = channel.unary_unary("/Bound/Echo")
    mib, half = bytes(_MIB), bytes(CONTENT_CHUNK_BYTES)

    async def send(*messages: bytes) -> None:
        call = take()
        for message in (_REQUEST, *messages, b""):
            # Copied, as a client does to put the message together.
            await call.write(b"".join((message[:1], message[1:])))
        await call.done_writing()
        await call

    async def receive() -> None:
        async for _ in give(b"64"):
            pass

    async def load(work: Callable[[], Awaitable[object]], concurrency: int) -> Load:
        await work()
        return await closed_loop(work, clock, concurrency=concurrency, window_s=window_s)

    small1 = await load(lambda: send(bytes(100)), 1)
    small16 = await load(lambda: send(bytes(100)), 16)
    medium = await load(lambda: send(bytes(16 << 10)), 8)
    send1 = await load(lambda: send(half, half), 1)
    send8 = await load(lambda: send(half, half), 8)
    echo4 = await load(lambda: echo(mib), 4)
    received = await load(receive, 1)
    return {
        "machine_grpc_small_c1_per_s": small1.per_s,
        "machine_grpc_small_p50_ms": small1.latency_ms(0.5),
        "machine_grpc_small_c16_per_s": small16.per_s,
        "machine_grpc_16kib_c8_mb_per_s": medium.per_s * (16 << 10) / 1e6,
        "machine_grpc_send_c1_mb_per_s": send1.per_s * _MIB / 1e6,
        "machine_grpc_send_c8_mb_per_s": send8.per_s * _MIB / 1e6,
        "machine_grpc_echo_c4_mb_per_s": echo4.per_s * _MIB / 1e6,
        "machine_grpc_receive_mb_per_s": received.per_s * 64 * CONTENT_CHUNK_BYTES / 1e6,
    }


if __name__ == "__main__":
    serve()
