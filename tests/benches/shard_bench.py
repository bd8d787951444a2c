"""Replicas of a shard at a real broker: what their host keeps, stores, applications, and journals."""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import os
import shutil
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

from gazette_platform.client import AppendTicket, AsyncClient, Change, ClientConfig
from gazette_platform.consumer.application import Application
from gazette_platform.consumer.assignments import ShardAssignment
from gazette_platform.consumer.protocol import Checkpoint, ReplicaStatus, ShardSource, ShardSpec
from gazette_platform.consumer.recoverylog import CONTENT_TYPE
from gazette_platform.consumer.runtime.replica import ShardReplica
from gazette_platform.consumer.runtime.tasks import ReplicaSettings
from gazette_platform.consumer.store import ShardStore
from gazette_platform.errors import Fenced
from gazette_platform.message import Flags, Mapped, Publisher, read_committed
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.protocol import (
    CompressionCodec,
    FragmentSpec,
    JournalSpec,
    LabelSet,
    ProcessId,
)
from gazette_platform.testing.waiting import pass_time, patient

SHARD = "shard-000"
LOG = f"recovery/{SHARD}"
IN, IN2, OUT, OUT2 = "in/one", "in/two", "out/one", "out/two"
NDJSON = "application/x-ndjson"


def journal(name, content_type=NDJSON):
    labels = LabelSet.of({"content-type": content_type}) if content_type else LabelSet()
    fragment = FragmentSpec(
        length=1 << 20,
        codec=CompressionCodec.SNAPPY,
        stores=("file:///",),
        refresh_interval_ns=SECOND_NS,
    )
    return JournalSpec(name=name, replication=1, labels=labels, fragment=fragment)


async def make_journals(client):
    """All that the tests use."""
    specs = [journal(name) for name in (IN, IN2, OUT, OUT2)]
    await client.apply([Change(spec) for spec in [*specs, journal(LOG, CONTENT_TYPE)]])


def spec_of(*sources, log=True, hint_prefix="/hints", **fields):
    """A shard that reads IN, unless a test asks for another."""
    return ShardSpec(
        SHARD,
        tuple(ShardSource(name) for name in sources or (IN,)),
        recovery_log_prefix="recovery" if log else "",
        hint_prefix=hint_prefix if log else "",
        hint_backups=2 if log else 0,
        max_txn_duration_ns=SECOND_NS,
        **fields,
    )


def assigned(slot=0, revision=1):
    return ShardAssignment(
        SHARD,
        ProcessId("zone", "me"),
        slot,
        ReplicaStatus(),
        revision,
        revision,
        f"/assign/{SHARD}#{slot}",
        b"",
        0,
    )


class Desk:
    """What etcd would keep of a shard."""

    def __init__(self):
        self.primary = None
        self.backups = [None, None]


class Host:
    """The host of one replica."""

    def __init__(self, desk):
        self.desk = desk
        self.status = ReplicaStatus()
        self.told = []
        self.changed = asyncio.Event()
        self.put_error = None

    def promoted(self, assignment):
        pass

    async def confirm(self):
        pass

    async def fetch_hints(self):
        return [self.desk.primary, *self.desk.backups]

    async def require_log(self, log, created):
        pass

    async def set_status(self, status):
        self.told.append(status.code.name)
        self.status = self.status.fold(status)
        self.changed.set()

    async def put_hints(self, hints):
        if self.put_error is not None:
            raise self.put_error
        self.desk.primary = hints

    async def put_backup_hints(self, hints):
        self.desk.backups = [hints, *self.desk.backups][:2]

    async def reached(self, name):
        """Wait for a status. Returns: it."""
        async with asyncio.timeout(patient(30)):
            while self.status.code.name != name:
                self.changed.clear()
                await self.changed.wait()
        return self.status


async def settled(after):
    for need in after:
        if isinstance(need, AppendTicket):
            await need
        else:
            await asyncio.shield(need)


class _Store(ShardStore):
    """State is a JSON object. `delay_s` and `fails` are of the commits to come."""

    delay_s: ClassVar[float] = 0.0

    def __init__(self):
        self.state = {}
        self.is_destroyed = False
        self.tasks = TaskGroup("store")

    def start_commit(self, checkpoint, after):
        ended = asyncio.get_running_loop().create_future()
        state = copy.deepcopy(self.state)
        self.gate(after)

        async def run():
            try:
                await pass_time(self.delay_s)
                await self.commit(state, checkpoint, after)
            except asyncio.CancelledError:
                ended.cancel()
                raise
            except Exception as err:  # noqa: BLE001  the future has it
                if not ended.done():
                    ended.set_exception(err)
                    ended.exception()
            else:
                if not ended.done():
                    ended.set_result(None)

        self.tasks.spawn(run())
        return ended

    def gate(self, after):
        pass

    async def destroy(self):
        self.is_destroyed = True
        await self.tasks.close()


class Remote:
    """A database of one shard, which fences."""

    def __init__(self):
        self.fence, self.state, self.checkpoint = 0, {}, b""


class RemoteStore(_Store):
    """State in a `Remote`."""

    def __init__(self, remote):
        super().__init__()
        self.remote, self.fence = remote, 0

    async def restore_checkpoint(self):
        self.remote.fence += 1
        self.fence = self.remote.fence
        self.state = copy.deepcopy(self.remote.state)
        return Checkpoint.decode(self.remote.checkpoint)

    async def commit(self, state, checkpoint, after):
        await settled(after)
        if self.fence != self.remote.fence:
            raise Fenced(f"{SHARD}: another process has restored it")
        self.remote.state, self.remote.checkpoint = state, checkpoint.encode()


class FileStore(_Store):
    """State in a file that is recorded."""

    def __init__(self, recorder):
        super().__init__()
        self.recorder = recorder
        self.directory = Path(recorder.directory)

    async def restore_checkpoint(self):
        path = self.directory / "state"
        if not path.exists():
            self.state = {}
            return Checkpoint()
        document = json.loads(path.read_bytes())
        self.state = document["state"]
        return Checkpoint.decode(base64.b64decode(document["checkpoint"]))

    def gate(self, after):
        self.recorder.gate(after)

    async def commit(self, state, checkpoint, after):
        encoded = base64.b64encode(checkpoint.encode()).decode()
        content = json.dumps({"state": state, "checkpoint": encoded}).encode()
        next_, path = self.directory / "next", self.directory / "state"
        next_.write_bytes(content)
        self.recorder.write(self.recorder.create(str(next_)), 0, content)
        os.replace(next_, path)  # noqa: PTH105
        self.recorder.rename(str(next_), str(path))
        await settled(after)
        await self.recorder.barrier()

    async def destroy(self):
        await super().destroy()
        shutil.rmtree(self.directory)


class Numbered(Application[Any, dict]):
    """Counts messages by key, and publishes each with its number in all, and of its key, to OUT.

    `seen` are bodies in the order in which they were consumed, by any shard, committed or not.
    """

    def __init__(self, remote=None):
        self.remote = remote or Remote()
        self.seen = []
        self.events = []
        self.to = OUT

    def new_store(self, shard, recorder):
        return RemoteStore(self.remote) if recorder is None else FileStore(recorder)

    async def consume(self, txn, envelope):
        if envelope.uuid.flags == Flags.ACK_TXN:
            return
        body, state = envelope.message, txn.store.state
        self.seen.append(body["id"])
        number = state["all"] = state.get("all", 0) + 1
        of_key = state[body["key"]] = state.get(body["key"], 0) + 1
        out = {"id": body["id"], "key": body["key"], "number": number, "of_key": of_key}
        await txn.publisher.publish(self.to, out)


class NumberedInBatches(Numbered):
    """The same, in batches."""

    sizes: ClassVar[list[int]] = []

    async def consume_batch(self, txn, envelopes):
        self.sizes.append(len(envelopes))
        for envelope in envelopes:
            await Numbered.consume(self, txn, envelope)


class Bench:
    """Replicas of one shard, one after the other or at once."""

    def __init__(self, client, directory):
        self.client = client
        self.directory = directory
        self.desk = Desk()
        self.replicas = []
        self.revision = 0
        self.producers = 0

    def replica(self, application, spec=None, slot=0, **options):
        """A new one, which is started."""
        self.revision += 1
        settings = ReplicaSettings(directory=self.directory, **options.pop("settings", {}))
        replica = ShardReplica(
            application,
            self.client,
            options.pop("host", None) or Host(self.desk),
            fqn=f"/items/{SHARD}",
            spec=spec or spec_of(),
            assignment=assigned(slot, self.revision),
            settings=settings,
            **options,
        )
        replica.host = replica._host
        self.replicas.append(replica)
        replica.start()
        return replica

    def publisher(self, to=IN):
        """A new producer."""
        return Publisher(self.client.append_service(), lambda _: Mapped(to, NDJSON), SystemClock())

    async def publish(self, *ids, to=IN, key="k"):
        """Publish messages that count by themselves. Returns: the end of the last one."""
        publisher = self.publisher(to)
        ticket = None
        for each in ids:
            ticket = await publisher.publish_committed({"id": each, "key": key})
        return {to: (await ticket)[1]}

    async def output(self, journal=OUT):
        """Committed messages, without ACKs."""
        async with await read_committed(self.client, journal) as reader:
            return [
                each.message async for batch in reader for each in batch if each.uuid.flags != 2
            ]

    async def close(self):
        for replica in self.replicas:
            await replica.stop(timeout_s=5)


@asynccontextmanager
async def bench_at(broker, directory):
    """A bench at a broker that has all journals that the tests use."""
    async with AsyncClient(ClientConfig(address=broker.endpoint)) as client:
        await make_journals(client)
        bench = Bench(client, directory)
        yield bench
        await bench.close()


async def through(replica, offsets):
    """Wait until a replica has read through offsets."""
    async with asyncio.timeout(patient(30)):
        return await replica.wait_through(offsets)
