"""Processes of a consumer group in this event loop: key spaces over a real etcd, real gRPC servers.

Nothing assigns shards here but the test; replicas are as far as it says.
"""

from __future__ import annotations

import asyncio
import contextlib

from prometheus_client import CollectorRegistry

from gazette_platform.client import ClientConfig
from gazette_platform.consumer.assignments import (
    ConsumerState,
    encode_consumer_spec,
    encode_replica_status,
    encode_shard_spec,
)
from gazette_platform.consumer.client import ShardClient
from gazette_platform.consumer.peers import ConsumerPeers
from gazette_platform.consumer.protocol import ConsumerSpec, ReplicaCode, ReplicaStatus, ShardSpec
from gazette_platform.consumer.resolver import ShardResolver
from gazette_platform.consumer.runtime.status import LocalStep, local_step
from gazette_platform.consumer.shard_api import ShardApi, ShardService
from gazette_platform.consumer.transaction import Progress
from gazette_platform.errors import ShardStopped
from gazette_platform.etcd import Delete, EtcdClient, Put
from gazette_platform.keyspace import KeySpace, assignment_key, item_key, member_key
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.faults import Faults
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.protocol import LabelSet, ProcessId
from gazette_platform.serving.auth import Authenticator
from gazette_platform.serving.calls import CallMetrics, Tallies
from gazette_platform.serving.config import Wire
from gazette_platform.serving.grpc_transport import GrpcServer
from gazette_platform.serving.h2.server import H2Server
from gazette_platform.testing.servers import wire_settings

IDLE, STANDBY, PRIMARY = (ReplicaStatus(ReplicaCode[c]) for c in ("IDLE", "STANDBY", "PRIMARY"))
FAILED = ReplicaStatus(ReplicaCode.FAILED, ("some error",))


def shard(name, **changes):
    labels = LabelSet.of(changes.pop("labels", {}))
    return ShardSpec(name, max_txn_duration_ns=SECOND_NS, labels=labels, **changes)


class Replica:
    """A primary that is as far as the test says."""

    def __init__(self, spec):
        self.spec = spec
        self.store = object()
        self.progress = Progress()
        self.is_ready = self.has_ended = False
        self.users = 0
        self.used = asyncio.Event()  # by anybody, ever
        self._changed = asyncio.Event()

    async def wait_through(self, offsets=None):
        while True:
            reached = self.progress.has_reached(offsets or {}, self.spec)
            match local_step(
                is_store_ready=self.is_ready, is_loop_ended=self.has_ended, is_reached=reached
            ):
                case LocalStep.SERVE:
                    return self.store
                case LocalStep.STOPPED:
                    raise ShardStopped(journal=self.spec.id)
            await self._changed.wait()

    def now(self, *, read_through=(), publish_at=(), **changes):
        """Change what its assignment says."""
        vars(self).update(changes)
        self.progress.read_through.update(read_through)
        self.progress.publish_at.update(publish_at)
        self._changed.set()
        self._changed = asyncio.Event()

    @contextlib.contextmanager
    def use(self):
        self.users += 1
        self.used.set()
        try:
            yield
        finally:
            self.users -= 1


class Process:
    """One process, which serves."""

    def __init__(self, group, suffix, *, auth_keys="", peer_keys=None):
        self.group = group
        self.id = ProcessId("zone", suffix)
        self.replicas = {}
        self.etcd = EtcdClient([group.endpoint])
        self.space = KeySpace(
            self.etcd, group.prefix, ConsumerState(group.prefix), watch_delay_s=0.005
        )
        self.resolver = ShardResolver(self.space, self.id, self.replicas.get)
        clock = SystemClock()
        keys = auth_keys if peer_keys is None else peer_keys
        self.peers = ConsumerPeers(ClientConfig(auth_keys=keys), clock)
        self.api = ShardApi(self.etcd, self.resolver, self.peers)
        auth = Authenticator(auth_keys, clock, flag="consumer.auth-keys")
        self.service = ShardService(self.api, auth, Faults())
        registry = CollectorRegistry()
        serve = H2Server if wire_settings().get("wire") is Wire.H2 else GrpcServer
        self.server = serve(
            self.service.rpcs,
            host="127.0.0.1",
            port=0,
            recv_bytes_max=4 << 20,
            calls=CallMetrics(registry, Tallies(registry)),
            flags="consumer",
        )
        self.address = f"http://127.0.0.1:{self.server.port}"
        self.tasks = TaskGroup(suffix)

    async def start(self):
        await self.etcd.connect()
        await self.group.put_member(self)
        await self.space.load()
        self.tasks.spawn(self.space.watch(), name="watch")
        await self.server.start()

    async def stop(self):
        await self.server.stop(grace_s=0)
        await self.tasks.close()
        await self.peers.close()
        await self.etcd.close()


class ShardGroup:
    """A group without processes."""

    def __init__(self, etcd, endpoint, prefix):
        self.etcd = etcd
        self.endpoint = endpoint
        self.prefix = prefix
        self.processes = []
        self.tasks = TaskGroup("group")
        self._clients = []

    async def start(self, suffix, **options):
        process = Process(self, suffix, **options)
        self.processes.append(process)
        await process.start()
        return process

    def client(self, process, **options):
        """A client of a process, which does not try again for long."""
        options = {"retry_timeout_s": 0.0, "call_timeout_s": 10.0} | options
        client = ShardClient(ClientConfig(address=process.address, **options))
        self._clients.append(client)
        return client

    async def stop(self):
        await self.tasks.close()
        for each in self._clients:
            await each.close()
        for each in self.processes:
            await each.stop()

    # ------------------------------------------------------------------------------- keys
    async def txn(self, *operations):
        """Write, and wait until all processes know. Returns: the revision."""
        result = await self.etcd.txn([], operations)
        for each in self.processes:
            if each.space.revision:
                await each.space.wait_for_revision(result.header.revision, timeout_s=10)
        return result.header.revision

    async def put_member(self, process):
        spec = ConsumerSpec(process.id, process.address)
        await self.txn(Put(member_key(self.prefix, process.id), encode_consumer_spec(spec)))

    async def remove_member(self, process):
        await self.txn(Delete(member_key(self.prefix, process.id)))

    async def put_shard(self, spec):
        return await self.txn(Put(item_key(self.prefix, spec.id), encode_shard_spec(spec)))

    async def assign(self, name, process, slot=0, status=IDLE):
        process_id = process.id if isinstance(process, Process) else ProcessId("zone", process)
        key = assignment_key(self.prefix, name, process_id, slot)
        await self.txn(Put(key, encode_replica_status(status)))
        return key

    async def serve(self, spec, process, status=PRIMARY):
        """A shard whose primary is ready at `process`. Returns: the replica."""
        await self.put_shard(spec)
        replica = process.replicas[spec.id] = Replica(spec)
        replica.now(is_ready=True)
        await self.assign(spec.id, process, status=status)
        return replica
