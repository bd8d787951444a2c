"""``python -m benchmarks.wire_load ADDRESS JOURNAL``: load on one broker, from a process of its own.

It calls the broker over our own channel, without the client library: a call costs so little here that the
broker is the bottleneck. It prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from itertools import cycle
from typing import TYPE_CHECKING, final

import uvloop

from benchmarks.content import Payloads
from benchmarks.figures import percentile
from benchmarks.load import Load, closed_loop
from benchmarks.tail import Record
from gazette_platform.errors import DataError, GazetteError, TransportError
from gazette_platform.ops.clock import SystemClock
from gazette_platform.protocol import endpoint_grpc_address
from gazette_platform.protocol.content import (
    COMMIT_MARKER,
    CONTENT_CHUNK_BYTES,
    decode_read_content,
    encode_append_content,
)
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.serving.h2.channel import Channel, Dialing
from gazette_platform.serving.h2.frames import PEER_LIMITS
from gazette_platform.serving.interface import Kind

if TYPE_CHECKING:
    from gazette_platform.ops.clock import Clock

__all__ = ["RECORD_BYTES", "Report", "WireLoad", "append_messages", "check_append", "read_content"]

RECORD_BYTES = 100
"""Size of the records of a tail."""

_APPEND, _READ = "/protocol.Journal/Append", "/protocol.Journal/Read"
_MESSAGE_BYTES_MAX = 1 << 30
# More than the caches of a core hold, so that copies are not free.
_CONTENT_BYTES = 16 << 20
_RATE_PER_S = 200
_WARM_UP_RECORDS = 100
_GRACE_S = 20.0


@dataclass(frozen=True, slots=True)
class Report:
    """What the load came to."""

    calls: int
    elapsed_s: float
    p50_ms: float
    p99_ms: float
    cpu_s: float
    """Of this process, while the load ran."""


def append_messages(first: bytes, content: bytes) -> tuple[bytes, ...]:
    """Return all messages of an append, the commit marker included."""
    chunks = range(0, len(content), CONTENT_CHUNK_BYTES)
    return (
        first,
        *(encode_append_content(content[at : at + CONTENT_CHUNK_BYTES]) for at in chunks),
        COMMIT_MARKER,
    )


def check_append(raw: bytes) -> None:
    """Check an AppendResponse. Raises: DataError: its status is not OK."""
    status = pb.AppendResponse.FromString(raw).status
    if status:
        raise DataError(f"the broker answered an append with {pb.Status.Name(status)}")


def read_content(raw: bytes) -> bytes:
    """Return the content of a ReadResponse, which may be empty. Raises: DataError: its status is not OK."""
    if (found := decode_read_content(raw)) is not None:
        return bytes(found[1])
    response = pb.ReadResponse.FromString(raw)
    if response.status:
        raise DataError(f"the broker answered a read with {pb.Status.Name(response.status)}")
    content: bytes = response.content
    return content


@final
class WireLoad:
    """Calls to one journal over one connection.

    Args:
        address: endpoint of the broker that is the journal's primary.
    """

    def __init__(self, address: str, journal: str, clock: Clock) -> None:
        dialing = Dialing(limits=PEER_LIMITS, message_bytes_max=_MESSAGE_BYTES_MAX)
        target, _ = endpoint_grpc_address(address)
        self._channel = Channel(target, dialing)
        self._journal = journal
        self._first = pb.AppendRequest(journal=journal).SerializeToString()
        self._clock = clock

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()

    async def append(self, messages: tuple[bytes, ...]) -> None:
        """Make one Append. All of its messages leave in one write, if there is room for them."""
        call = self._channel.call(_APPEND, Kind.CLIENT_STREAM)
        for message in messages:
            await call.send(message)
        await call.done_sending()
        check_append(await call.answer())

    async def appends(self, *, size: int, concurrency: int, window_s: float) -> Report:
        """Append in a closed loop."""
        contents = Payloads(os.urandom(max(size, _CONTENT_BYTES)), seed=0)
        pieces = contents.of(size)
        # Of small contents a part is enough: encoding all of them would take longer than the load.
        count = min(_CONTENT_BYTES // size, 4096) or 1
        ready = cycle([append_messages(self._first, next(pieces)) for _ in range(count)])
        await self.append(next(ready))  # connects
        cpu = time.process_time()
        load = await closed_loop(
            lambda: self.append(next(ready)),
            self._clock,
            concurrency=concurrency,
            window_s=window_s,
        )
        return _report(load, time.process_time() - cpu)

    async def tail(self, *, window_s: float) -> Report:
        """Append records at a fixed rate, and measure how soon a blocking read returns each of them."""
        count = _WARM_UP_RECORDS + round(_RATE_PER_S * window_s)
        begun, received = dict[int, float](), dict[int, float]()
        content = os.urandom(RECORD_BYTES)

        async def append(number: int) -> None:
            record = Record.make(number, content)
            begun[number] = self._clock.monotonic()
            await self.append(append_messages(self._first, record))

        cpu, start = time.process_time(), self._clock.monotonic()
        try:
            async with (
                asyncio.timeout(count / _RATE_PER_S + _GRACE_S),
                asyncio.TaskGroup() as tasks,
            ):
                tasks.create_task(self._receive(count - 1, received))
                for number in range(count):
                    at = start + number / _RATE_PER_S
                    await asyncio.sleep(max(0.0, at - self._clock.monotonic()))
                    tasks.create_task(append(number))
        except TimeoutError as err:
            raise TransportError("the read did not return all records in time") from err
        except ExceptionGroup as group:
            raise group.exceptions[0] from group
        elapsed_s, cpu_s = self._clock.monotonic() - start, time.process_time() - cpu
        took = [at - begun[n] for n, at in received.items() if n >= _WARM_UP_RECORDS]
        return _report(Load(elapsed_s, took), cpu_s)

    async def _receive(self, last: int, received: dict[int, float]) -> None:
        request = pb.ReadRequest(journal=self._journal, offset=-1, block=True)
        call = self._channel.call(_READ, Kind.SERVER_STREAM, request=request.SerializeToString())
        rest = b""
        try:
            while (raw := await call.next()) is not None:
                now = self._clock.monotonic()
                rest += read_content(raw)
                whole = len(rest) - len(rest) % RECORD_BYTES
                for at in range(0, whole, RECORD_BYTES):
                    received[Record.number(rest[at : at + RECORD_BYTES])] = now
                rest = rest[whole:]
                if last in received:
                    return
        finally:
            call.cancel()
        raise TransportError("the read ended before the last record")


def _report(load: Load, cpu_s: float) -> Report:
    return Report(
        calls=len(load.latencies_s),
        elapsed_s=load.elapsed_s,
        p50_ms=percentile(load.latencies_s, 0.5) * 1e3,
        p99_ms=percentile(load.latencies_s, 0.99) * 1e3,
        cpu_s=cpu_s,
    )


async def _run(arguments: argparse.Namespace) -> Report:
    load = WireLoad(arguments.address, arguments.journal, SystemClock())
    try:
        if arguments.tail:
            return await load.tail(window_s=arguments.seconds)
        return await load.appends(
            size=arguments.size, concurrency=arguments.concurrency, window_s=arguments.seconds
        )
    finally:
        await load.close()


def main() -> int:
    """Run the load, and print the report. Returns: the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wire_load", description=__doc__)
    parser.add_argument("address", help="endpoint of the journal's primary, as http://host:port")
    parser.add_argument("journal")
    parser.add_argument("--size", type=int, default=100, help="bytes of each append")
    parser.add_argument("--concurrency", type=int, default=16, help="appends under way at a time")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long to append")
    parser.add_argument(
        "--tail",
        action="store_true",
        help=f"append {_RATE_PER_S} records of {RECORD_BYTES} B a second, and time a blocking read of them",
    )
    try:
        print(json.dumps(asdict(uvloop.run(_run(parser.parse_args())))), flush=True)
    except GazetteError as err:
        print(f"wire_load: {err}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
