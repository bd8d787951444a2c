"""Brokers and consumers in the test's own event loop, so that a test sees their insides and breaks them.

A server that fails for a reason that its test did not announce by `expect` fails the test.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, final

from grpc import aio  # type: ignore[import-untyped]

from gazette_platform.broker.config import BrokerConfig
from gazette_platform.broker.serve import Broker
from gazette_platform.codecs import compressor
from gazette_platform.console import add_console
from gazette_platform.consumer.assignments import (
    backup_hint_keys,
    decode_shard_spec,
    log_identity_key,
    primary_hint_key,
)
from gazette_platform.consumer.client import ShardClient
from gazette_platform.consumer.process import ConsumerConfig, ConsumerProcess
from gazette_platform.consumer.protocol import ReplicaCode, ShardChange
from gazette_platform.errors import GazetteError, LeaseLost
from gazette_platform.etcd import EtcdClient
from gazette_platform.keyspace import items_prefix, member_key
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.protocol import CompressionCodec, Fragment, JournalSpec, Status
from gazette_platform.protocol.pb import protocol_pb2 as pb, protocol_pb2_grpc
from gazette_platform.serving.grpc_transport import CALL_ERRORS
from gazette_platform.testing.servers import wire_settings
from gazette_platform.testing.waiting import patient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from pathlib import Path

    from gazette_platform.client import AsyncClient
    from gazette_platform.consumer.application import Application
    from gazette_platform.consumer.client import ShardListing
    from gazette_platform.consumer.protocol import ReplicaStatus, ShardSpec

__all__ = [
    "AppendCall",
    "ExpectedErrors",
    "LocalBrokers",
    "LocalConsumers",
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


@final
class ExpectedErrors:
    """The loss of a lease, at first: tests end leases, and a busy machine does. That is not a fault of a server."""

    def __init__(self) -> None:
        self._kinds: set[type[BaseException]] = {LeaseLost}

    def add(self, *errors: type[BaseException]) -> None:
        """A test brings these about, too."""
        self._kinds.update(errors)

    def check(self, server: Broker | ConsumerProcess) -> None:
        """Raises: AssertionError: something else went wrong with it."""
        for error in (server.failure, *server.faults.recent):
            if error is not None and not isinstance(error, tuple(self._kinds)):
                raise AssertionError(
                    f"{server.config.flags} {server.config.id}: {type(error).__name__}: {error} (the test "
                    "that brings it about says so by `expect`)"
                ) from error


_DEADLINE_S = 20.0


@final
class LocalBrokers:
    """A cluster of brokers on a key prefix of their own; a context manager that stops them all.

    Args:
        folder: for the store (``fragments``) and the spools; exists.
        etcd: endpoint of a running etcd.
        prefix: key prefix for this test alone.
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
        if kind is None:  # else that says more
            for broker in self._brokers:
                self._expected.check(broker)

    def expect(self, *errors: type[BaseException]) -> None:
        """Let brokers fail by these, and meet them as unforeseen ones.

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
        broker = Broker(BrokerConfig(**(defaults | settings)), add_console)
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
    """Write a fragment below the root of a ``file:///`` store, as an earlier broker would have.

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


_GROUP_DEADLINE_S = 30.0
_POLL_S = 0.02
# Longer than a shard that is started again by itself stays failed.
_FAILED_S = 5.0


@final
class LocalConsumers:
    """A consumer group on a key prefix of its own; a context manager that stops all its processes.

    All runs on one event loop, so that a test may look into stores: ``consumers.store(shard)``.

    Args:
        folder: for the files of shards; made if missing.
        etcd: endpoint of a running etcd.
        prefix: key prefix for this test alone.
        client: of the brokers; the processes use its address.

    Attributes:
        client: of the brokers, for tests to append and read by.
        processes: those that were started, and did not leave.
    """

    def __init__(self, folder: Path, *, etcd: str, prefix: str, client: AsyncClient) -> None:
        self.processes: list[ConsumerProcess] = []
        self._folder = folder
        self._etcd = etcd
        self._prefix = prefix
        self.client = client
        # With those that left: what they met before, or on the way out, counts as well.
        self._started: list[ConsumerProcess] = []
        self._expected = ExpectedErrors()
        self._created: list[ShardSpec] = []

    async def __aenter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc_info: object) -> None:
        processes, self.processes = self.processes, []
        for process in processes:
            await process.abandon()
        await self._forget_shards()
        if kind is None:  # else that says more
            for process in self._started:
                self._expected.check(process)

    async def _forget_shards(self) -> None:
        """Delete what etcd keeps of shards beyond their group: a later test may use the names of this one."""
        with contextlib.suppress(GazetteError):
            async with EtcdClient([self._etcd]) as etcd:
                items = (await etcd.range(items_prefix(self._prefix))).kvs
                for item in items:
                    name = item.key.removeprefix(items_prefix(self._prefix))
                    self._created.append(decode_shard_spec(item.value, shard=name))
                for spec in self._created:
                    keys = (primary_hint_key(spec), *backup_hint_keys(spec), log_identity_key(spec))
                    for key in filter(None, keys):
                        await etcd.delete(key)

    def expect(self, *errors: type[BaseException]) -> None:
        """Let processes fail by these, and meet them as unforeseen ones.

        Of any other error, but the loss of a lease, the exit of this context manager raises an
        AssertionError.
        """
        self._expected.add(*errors)

    async def start(self, application: Application[Any, Any], **settings: Any) -> ConsumerProcess:
        """Start a process; `settings` are those of its config that differ."""
        defaults: dict[str, Any] = {
            "id": f"consumer-{len(self._started) + 1}",
            "etcd_address": self._etcd,
            "etcd_prefix": self._prefix,
            # More than a busy machine keeps a process waiting for; who wants a lease to end revokes it.
            "etcd_lease_s": 6.0,
            "watch_delay_s": 0.0,
            "drain_timeout_s": 20.0,
            "directory": self._folder,
            "broker": replace(self.client.config, retry_timeout_s=None),
            **wire_settings(),
        }
        process = ConsumerProcess(application, ConsumerConfig(**(defaults | settings)))
        self.processes.append(process)
        self._started.append(process)
        await process.start()
        return process

    async def leave(self, process: ConsumerProcess) -> None:
        """Have a process hand over its shards, and leave, as by SIGTERM.

        Raises: TimeoutError: it does not within 30 seconds.
        """
        async with asyncio.timeout(patient(_GROUP_DEADLINE_S)):
            await process.drain()
        self.processes.remove(process)

    async def crash(self, process: ConsumerProcess) -> None:
        """End a process without handing over; its lease ends at once, and others take over."""
        self.processes.remove(process)
        await process.abandon()
        async with EtcdClient([self._etcd]) as etcd:
            found = await etcd.get(member_key(self._prefix, process.process_id))
            if found is not None:
                await etcd.revoke_lease(found.lease)

    async def create_shards(self, *specs: ShardSpec) -> None:
        """Create shards, and wait until each has a primary.

        Raises: TimeoutError, AssertionError: as `wait_primary`; StatusError: one exists.
        """
        async with self.shard_client() as client:
            await client.apply([ShardChange(spec) for spec in specs])
        self._created += specs
        for spec in specs:
            await self.wait_primary(spec.id)

    def shard_client(self) -> ShardClient:
        """A client of the group, through its newest process, with keys and certificates as `client` has them."""
        return ShardClient(replace(self.client.config, address=self.processes[-1].endpoint))

    async def wait_primary(self, shard: str) -> ReplicaStatus:
        """Wait until a shard has a primary that consumes.

        Raises: TimeoutError: it has none within 30 seconds. AssertionError: it has failed.
        """
        async with self.shard_client() as client, asyncio.timeout(patient(_GROUP_DEADLINE_S)):
            while True:
                for listing in await client.list(f"id={shard}"):
                    status = listing.status
                    assert status.code is not ReplicaCode.FAILED, status.errors
                    if _has_primary(listing):
                        return status
                await asyncio.sleep(_POLL_S)

    async def wait_through(self, selector: str = "") -> None:
        """Wait until shards reflect all that their sources hold now.

        Raises: TimeoutError: they do not within 30 seconds. StatusError: one has stopped.
            AssertionError: one has failed, and is not started again within 5 seconds; with its error.
        """
        heads: dict[str, int] = {}
        async with self.shard_client() as client, asyncio.timeout(patient(_GROUP_DEADLINE_S)):
            listings = list(await client.list(selector))
            for listing in listings:
                for source in listing.spec.sources:
                    if source.journal not in heads:
                        heads[source.journal] = await self.client.write_head(source.journal)
            for listing in listings:
                await _read_through(client, listing.id, heads)

    async def store(self, shard: str) -> Any:
        """The store of a shard's primary, once it is ready.

        Raises: LookupError: no process here has the primary. ShardStopped: it has failed.
        """
        for process in self.processes:
            replica = process.replicas.get(shard)
            if replica is not None and replica.assignment.slot == 0:
                async with asyncio.timeout(patient(_GROUP_DEADLINE_S)):
                    return await replica.wait_through()
        raise LookupError(f"no process here has the primary of {shard}")


async def _read_through(client: ShardClient, shard: str, offsets: dict[str, int]) -> None:
    """Wait for one shard. A Stat waits for another primary when one has failed, so we look for that."""
    loop = asyncio.get_running_loop()
    well_at = loop.time()
    tasks = TaskGroup(f"read through {shard}")
    reading = tasks.spawn(client.stat(shard, offsets, timeout_s=patient(_GROUP_DEADLINE_S)))
    try:
        while not reading.done():
            for listing in await client.list(f"id={shard}"):
                at = listing.route.primary
                if at < 0 or listing.statuses[at].code is not ReplicaCode.FAILED:
                    well_at = loop.time()
                elif loop.time() - well_at > _FAILED_S:
                    raise AssertionError(
                        f"{shard} has failed: {'; '.join(listing.statuses[at].errors)}"
                    )
            await asyncio.wait((reading,), timeout=_POLL_S)
        await reading
    finally:
        await tasks.close()


def _has_primary(listing: ShardListing) -> bool:
    at = listing.route.primary
    return at >= 0 and listing.statuses[at].code is ReplicaCode.PRIMARY
