"""Consumers inside the test's own process and event loop: a group of them, and what tests ask of it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Self, final

from gazette_platform.client import ClientConfig
from gazette_platform.consumer.client import ShardClient
from gazette_platform.consumer.cluster import (
    backup_hint_keys,
    decode_shard_spec,
    log_identity_key,
    primary_hint_key,
)
from gazette_platform.consumer.process import ConsumerConfig, ConsumerProcess
from gazette_platform.consumer.protocol import ReplicaCode, ShardChange
from gazette_platform.errors import GazetteError
from gazette_platform.etcd import EtcdClient
from gazette_platform.keyspace import items_prefix, member_key
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.testing.chosen_wire import wire_settings
from gazette_platform.testing.expected_errors import ExpectedErrors
from gazette_platform.testing.waiting import patient

if TYPE_CHECKING:
    from pathlib import Path

    from gazette_platform.client import AsyncClient
    from gazette_platform.consumer.application import Application
    from gazette_platform.consumer.client import ShardListing
    from gazette_platform.consumer.protocol import ReplicaStatus, ShardSpec

__all__ = ["LocalConsumers"]

_DEADLINE_S = 30.0
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
        prefix: key prefix that nobody else uses.
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
        if kind is None:  # else that tells more
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
        """Let processes fail by these, and meet them where nobody foresaw it.

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
            "broker": ClientConfig(address=self.client.config.address, retry_timeout_s=None),
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
        async with asyncio.timeout(patient(_DEADLINE_S)):
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
        """A client of the group, through its newest process."""
        return ShardClient(ClientConfig(address=self.processes[-1].endpoint))

    async def wait_primary(self, shard: str) -> ReplicaStatus:
        """Wait until a shard has a primary that consumes.

        Raises: TimeoutError: it has none within 30 seconds. AssertionError: it has failed.
        """
        async with self.shard_client() as client, asyncio.timeout(patient(_DEADLINE_S)):
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
        async with self.shard_client() as client, asyncio.timeout(patient(_DEADLINE_S)):
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
                async with asyncio.timeout(patient(_DEADLINE_S)):
                    return await replica.wait_through()
        raise LookupError(f"no process here has the primary of {shard}")


async def _read_through(client: ShardClient, shard: str, offsets: dict[str, int]) -> None:
    """Wait for one shard. A Stat waits for another primary when one has failed, so we look for that."""
    loop = asyncio.get_running_loop()
    well_at = loop.time()
    tasks = TaskGroup(f"read through {shard}")
    reading = tasks.spawn(client.stat(shard, offsets, timeout_s=patient(_DEADLINE_S)))
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
