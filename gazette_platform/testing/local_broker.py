"""Brokers inside the test's own process and event loop, and calls in the words of the wire."""

from __future__ import annotations

import contextlib
import hashlib
import os
from typing import TYPE_CHECKING, Any, Self, final

from grpc import aio  # type: ignore[import-untyped]

from gazette_platform.broker.config import BrokerConfig
from gazette_platform.broker.serve import Broker
from gazette_platform.codecs import compressor
from gazette_platform.protocol import CompressionCodec, Fragment, JournalSpec, Status
from gazette_platform.protocol.pb import protocol_pb2 as pb, protocol_pb2_grpc
from gazette_platform.serving.grpc_channel import CALL_ERRORS
from gazette_platform.testing.chosen_wire import wire_settings
from gazette_platform.testing.expected_errors import ExpectedErrors
from gazette_platform.testing.waiting import patient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from pathlib import Path

__all__ = [
    "AppendCall",
    "LocalBrokers",
    "append",
    "apply",
    "calls_begun",
    "messages_taken",
    "open_channel",
    "read",
    "read_all",
    "spans",
    "store_fragment",
]

_DEADLINE_S = 20.0


@final
class LocalBrokers:
    """A cluster of brokers on a key prefix of their own; a context manager that stops them all.

    Args:
        folder: for the store (``fragments``) and the spools; exists.
        etcd: endpoint of a running etcd.
        prefix: key prefix that nobody else uses.
    """

    def __init__(self, folder: Path, *, etcd: str, prefix: str) -> None:
        self.fragments = folder / "fragments"
        self._spools = folder / "spool"
        self._etcd = etcd
        self._prefix = prefix
        self._brokers: list[Broker] = []
        self._channels: list[aio.Channel] = []
        self._expected = ExpectedErrors()

    async def __aenter__(self) -> Self:
        self.fragments.mkdir(exist_ok=True)
        self._spools.mkdir(exist_ok=True)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc_info: object) -> None:
        for channel in self._channels:
            await channel.close()
        for broker in self._brokers:
            await broker.abandon()
        if kind is None:  # else that tells more
            for broker in self._brokers:
                self._expected.check(broker)

    def expect(self, *errors: type[BaseException]) -> None:
        """Let brokers fail by these, and meet them where nobody foresaw it.

        Of any other error, but the loss of a lease, the exit of this context manager raises an
        AssertionError.
        """
        self._expected.add(*errors)

    async def start(self, **settings: Any) -> Broker:
        """Start a broker; `settings` are those of its config that differ."""
        defaults: dict[str, Any] = {
            "id": f"broker-{len(self._brokers)}",
            "etcd_address": self._etcd,
            "etcd_prefix": self._prefix,
            # More than a busy machine keeps a process waiting for; who wants a lease to end revokes it.
            "etcd_lease_s": 6.0,
            "file_root": self.fragments,
            "spool_dir": self._spools,
            "drain_timeout_s": 0.0,
            "watch_delay_s": 0.0,
            **wire_settings(),
        }
        broker = Broker(BrokerConfig(**(defaults | settings)))
        self._brokers.append(broker)
        await broker.start()
        return broker

    def stub(self, broker: Broker) -> Any:
        """The raw RPCs of a broker, as protobuf's generated stub has them."""
        target = f"{broker.config.host}:{broker.port}"
        channel = open_channel(target)
        self._channels.append(channel)
        return protocol_pb2_grpc.JournalStub(channel)  # type: ignore[no-untyped-call]

    async def apply(self, stub: Any, *specs: JournalSpec) -> None:
        """As the function `apply`."""
        await apply(stub, *specs)


def open_channel(target: str) -> aio.Channel:
    """Open a channel of the gRPC library to a server of this machine, past all proxies."""
    return aio.insecure_channel(target, options=[("grpc.enable_http_proxy", 0)])


@final
class AppendCall:
    """One Append that a test drives message by message."""

    def __init__(self, stub: Any, journal: str, **fields: Any) -> None:
        self.call = stub.Append(timeout=patient(_DEADLINE_S))
        self._first = pb.AppendRequest(journal=journal, **fields)
        self._is_begun = False

    async def send(self, *chunks: bytes) -> None:
        """Send content; the first time, behind the request itself."""
        if not self._is_begun:
            self._is_begun = True
            await self._write(self._first)
        for chunk in chunks:
            await self._write(pb.AppendRequest(content=chunk))

    async def _write(self, message: pb.AppendRequest) -> None:
        # The broker may answer before it has read everything, and then a send breaks.
        with contextlib.suppress(*CALL_ERRORS):
            await self.call.write(message)

    async def commit(self) -> pb.AppendResponse:
        """Send the commit marker, and wait for the answer."""
        await self.send()
        await self._write(pb.AppendRequest())
        return await self.finish()

    async def finish(self) -> pb.AppendResponse:
        """End the stream, and wait for the answer."""
        with contextlib.suppress(*CALL_ERRORS):  # as above
            await self.call.done_writing()
        response: pb.AppendResponse = await self.call
        return response


async def apply(stub: Any, *specs: JournalSpec) -> None:
    """Create journals, and wait until each has a primary that is ready for appends."""
    request = pb.ApplyRequest()
    for spec in specs:
        request.changes.add().upsert.CopyFrom(spec.to_pb())
    response = await stub.Apply(request, timeout=patient(_DEADLINE_S))
    assert response.status == Status.OK, response
    for spec in specs:
        if spec.flags.may_write:
            await append(stub, spec.name)


async def append(stub: Any, journal: str, *chunks: bytes, **fields: Any) -> pb.AppendResponse:
    """Append and commit."""
    call = AppendCall(stub, journal, **fields)
    await call.send(*chunks)
    return await call.commit()


async def read_all(stub: Any, journal: str, offset: int = 0, **fields: Any) -> bytes:
    """What a read that does not block gives."""
    responses = read(stub, journal, offset, **fields)
    return b"".join([response.content async for response in responses])


def read(stub: Any, journal: str, offset: int = 0, **fields: Any) -> AsyncIterator[pb.ReadResponse]:
    """The responses of a read."""
    request = pb.ReadRequest(journal=journal, offset=offset, **fields)
    responses: AsyncIterator[pb.ReadResponse] = stub.Read(request, timeout=patient(_DEADLINE_S))
    return responses


def calls_begun(broker: Broker, operation: str) -> int:
    """Count the calls of an RPC, such as ``Append``, that a broker has begun to serve."""
    name = "gazette_journal_server_started_totals_total"
    return int(broker.metrics.registry.get_sample_value(name, {"operation": operation}) or 0)


def messages_taken(broker: Broker, operation: str) -> int:
    """Count the messages that a broker has taken from gRPC callers of an RPC, such as ``Append``."""
    samples = (each for family in broker.metrics.registry.collect() for each in family.samples)
    taken = (each for each in samples if each.name == "grpc_server_msg_received_total")
    return int(sum(each.value for each in taken if each.labels["grpc_method"] == operation))


def spans(fragments: Iterable[pb.Fragment]) -> list[tuple[int, int]]:
    """Begin and end of each."""
    return [(fragment.begin, fragment.end) for fragment in fragments]


def store_fragment(
    root: Path,
    journal: str,
    begin: int,
    content: bytes,
    *,
    codec: CompressionCodec = CompressionCodec.NONE,
    postfix: str = "",
    stored_at: float | None = None,
) -> Fragment:
    """Write a fragment below the root of a ``file:///`` store, as a broker of before would have.

    Args:
        postfix: folder below the journal's, as a path postfix template would have made it.
        stored_at: Unix seconds of its modification time; None is now.
    """
    total = hashlib.sha1(content, usedforsecurity=False).digest()
    fragment = Fragment(journal, begin, begin + len(content), total, codec, path_postfix=postfix)
    path = root / fragment.content_path
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = compressor(codec)
    path.write_bytes(writer.compress(content) + writer.finish())
    if stored_at is not None:
        os.utime(path, (stored_at, stored_at))
    return fragment
