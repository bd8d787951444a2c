"""``python -m benchmarks.bench_consumers``: latency and throughput of consumers, and how soon others take over.

One broker and consumers, each a process; this process appends, and reads what is committed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import uvloop

from benchmarks import figures as results, machine, procfs
from benchmarks.bench import CODECS, serving
from benchmarks.by_wire import add_wire_option, use_wire
from benchmarks.consumer_apps import OUT
from benchmarks.figures import percentile
from benchmarks.targets import CONSUMER_TARGETS, judge
from gazette_platform.client import AsyncClient, Change, ClientConfig
from gazette_platform.consumer.client import ShardClient
from gazette_platform.consumer.protocol import ReplicaCode, ShardChange, ShardSource, ShardSpec
from gazette_platform.consumer.recoverylog import CONTENT_TYPE
from gazette_platform.errors import GazetteError, SetupError
from gazette_platform.message import Flags, Mapped, Publisher, read_committed
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.platform import tools
from gazette_platform.protocol import FragmentSpec, JournalSpec, LabelSet
from gazette_platform.testing.etcd import EtcdServer
from gazette_platform.testing.servers import ConsumerServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from benchmarks.figures import Figures
    from gazette_platform.ops.clock import Clock

__all__ = ["main"]

_LATEST = Path(__file__).with_name("results") / "latest.json"
_IN, _SHARD = "bench/consumer-in", "bench-shard"
_LOG = f"bench/recovery/{_SHARD}"
_NDJSON = "application/x-ndjson"
_LEASE_S = 5.0
_PACE_S = 1 / 200
_LATENCY_S = 20.0
_BLOB_BYTES = 64 << 10
_BLOBS_AT_ONCE = 64
_TIMEOUT_S = 600.0


def _journal(name: str, content_type: str) -> JournalSpec:
    fragment = FragmentSpec(
        length=256 << 20, codec=CODECS["raw"], stores=("file:///",), refresh_interval_ns=SECOND_NS
    )
    labels = LabelSet.of({"content-type": content_type})
    return JournalSpec(name=name, replication=1, labels=labels, fragment=fragment)


def _shard(*, hot_standbys: int) -> ShardSpec:
    return ShardSpec(
        _SHARD,
        (ShardSource(_IN),),
        recovery_log_prefix="bench/recovery",
        hint_prefix="/bench-hints",
        hint_backups=1,
        min_txn_duration_ns=0,
        max_txn_duration_ns=SECOND_NS // 10,
        hot_standbys=hot_standbys,
    )


def _to_source(_: object) -> Mapped:
    return Mapped(_IN, _NDJSON)


@final
class World:
    """A broker, the journals of one shard, and processes that run it."""

    def __init__(self, folder: Path, etcd: str, client: AsyncClient, clock: Clock) -> None:
        self.client, self.clock = client, clock
        self._folder, self._etcd = folder, etcd
        self.consumers: list[ConsumerServer] = []
        self._service = client.append_service()
        self.publisher: Publisher[Any] = Publisher(self._service, _to_source, clock)

    async def start(self, application: str) -> ConsumerServer:
        """One process more."""
        name = f"consumer-{len(self.consumers)}"
        consumer = ConsumerServer(
            self._folder / name,
            program=(sys.executable, "-m", "benchmarks.consumer_apps", application),
            etcd=self._etcd,
            prefix="/bench/consumers",
            broker=self.client.config.address,
            consumer_id=name,
            lease_s=_LEASE_S,
            flags=("--log.level=warn", "--consumer.hints-interval=5s"),
        )
        self.consumers.append(consumer)
        await asyncio.to_thread(consumer.start)
        return consumer

    async def create(self, *, hot_standbys: int = 0) -> None:
        """The journals and the shard; waits for its primary."""
        await self.client.apply(
            [
                Change(_journal(_IN, _NDJSON)),
                Change(_journal(OUT, _NDJSON)),
                Change(_journal(_LOG, CONTENT_TYPE)),
            ]
        )
        async with self.shards() as shards:
            await shards.apply([ShardChange(_shard(hot_standbys=hot_standbys))])
        await self.ready(standbys=hot_standbys)

    def shards(self) -> ShardClient:
        """A client of the newest process."""
        return ShardClient(ClientConfig(address=self.consumers[-1].address))

    async def ready(self, *, standbys: int = 0, timeout_s: float = _TIMEOUT_S) -> str:
        """Wait for a primary that consumes, and standbys that follow. Returns: the primary's name."""
        wanted = [ReplicaCode.STANDBY] * standbys + [ReplicaCode.PRIMARY]
        async with self.shards() as shards, asyncio.timeout(timeout_s):
            while True:
                for each in await shards.list():
                    if sorted(status.code for status in each.statuses) == wanted:
                        return each.route.members[each.route.primary].suffix
                await asyncio.sleep(0.02)

    async def through(self) -> None:
        """Wait until all that was appended is consumed."""
        await self._service.flush()
        head = await self.client.write_head(_IN)
        async with self.shards() as shards:
            await shards.stat(_SHARD, {_IN: head}, timeout_s=_TIMEOUT_S)

    async def close(self) -> None:
        """End all processes."""
        await self._service.close()
        for consumer in self.consumers:
            await asyncio.to_thread(consumer.kill)


@final
class Pulse:
    """A message at a steady pace, and when what it led to was read, committed.

    Args:
        world: whose source it appends to.
        of: journal that is read.
    """

    def __init__(self, world: World, of: str = OUT) -> None:
        self._world = world
        self._of = of
        self._tasks = TaskGroup("pulse")
        self.done: list[tuple[float, float]] = []
        """When each was appended, and when its result was read."""

    async def __aenter__(self) -> Pulse:
        self._tasks.spawn(self._publish(), name="publish")
        self._tasks.spawn(self._read(), name="read")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.close()

    async def _publish(self) -> None:
        clock = self._world.clock
        next_at = clock.monotonic()
        while True:
            # It is accepted at once, however long others before it take.
            await self._world.publisher.publish_committed({"at": clock.monotonic()})
            next_at += _PACE_S
            await asyncio.sleep(max(0.0, next_at - clock.monotonic()))

    async def _read(self) -> None:
        client, clock = self._world.client, self._world.clock
        start = await client.write_head(self._of)
        async with await read_committed(client, self._of, start, block=True) as reader:
            async for batch in reader:
                now = clock.monotonic()
                self.done += [
                    (each.message["at"], now) for each in batch if each.uuid.flags != Flags.ACK_TXN
                ]

    async def first_since(self, since: float) -> float:
        """Seconds from `since` until something that was appended later was read.

        Raises: SetupError: nothing was.
        """
        clock = self._world.clock
        while clock.monotonic() - since < 60.0:
            for begun, ended in reversed(self.done):
                if begun >= since:
                    first = min(e for b, e in self.done if b >= since)
                    return first - since
                if ended < since:
                    break
            await asyncio.sleep(_PACE_S)
        raise SetupError("nothing was processed for a minute")

    def longest_s(self, since: float) -> float:
        """The longest that one took, of those that were appended after `since` and were read."""
        return max(ended - begun for begun, ended in self.done if begun >= since)


async def _latency(world: World) -> Figures:
    """Of a hop, and beside it that of a reader of the source: a machine is not as quick each minute."""
    consumer = await world.start("hop")
    await world.create()
    hop_ms = await _latencies_ms(world, OUT)
    await asyncio.to_thread(consumer.stop, timeout_s=60.0)
    tail_ms = await _latencies_ms(world, _IN)
    hop, tail = percentile(hop_ms, 0.5), percentile(tail_ms, 0.5)
    return {
        "consumer_hop_p50_ms": hop,
        "consumer_hop_p99_ms": percentile(hop_ms, 0.99),
        "consumer_tail_p50_ms": tail,
        "consumer_tail_p99_ms": percentile(tail_ms, 0.99),
        "consumer_hop_p50_ratio": hop / tail,
    }


async def _latencies_ms(world: World, of: str) -> list[float]:
    async with Pulse(world, of) as pulse:
        await asyncio.sleep(3.0)
        pulse.done.clear()
        await asyncio.sleep(_LATENCY_S)
        took_ms = [1000 * (ended - begun) for begun, ended in pulse.done]
    if len(took_ms) < 0.8 * _LATENCY_S / _PACE_S:
        raise SetupError(f"only {len(took_ms)} messages came through in {_LATENCY_S:g} s")
    return took_ms


async def _throughput(world: World, messages: int) -> Figures:
    consumer = await world.start("counting")
    await world.create()
    async with world.shards() as shards:
        await shards.apply([ShardChange(None, delete=_SHARD, revision=-1)])
    for number in range(messages):
        await world.publisher.publish_committed({"key": number % 1000, "text": "x" * 40})
    await world._service.flush()  # noqa: SLF001
    begun_cpu, begun = procfs.cpu_s(consumer.pid), world.clock.monotonic()
    async with world.shards() as shards:
        await shards.apply([ShardChange(_shard(hot_standbys=0))])
    await world.ready()
    await world.through()
    used_s = procfs.cpu_s(consumer.pid) - begun_cpu
    took_s = world.clock.monotonic() - begun
    return {
        "consumer_msgs_per_s_per_core": messages / used_s,
        "consumer_msgs_per_s": messages / took_s,
    }


async def _failover(world: World, state_bytes: int) -> Figures:
    first = await world.start("large")
    await world.create()
    blobs = state_bytes // _BLOB_BYTES
    for _ in range(0, blobs, _BLOBS_AT_ONCE):
        await world.publisher.publish_committed({"blobs": _BLOBS_AT_ONCE})
    await world.through()
    async with world.shards() as shards:
        (listing,) = await shards.list()
        change = ShardChange(_shard(hot_standbys=1), revision=listing.mod_revision)
        await shards.apply([change])
    second = await world.start("large")
    await world.ready(standbys=1)
    found: Figures = {}
    async with Pulse(world) as pulse:
        await asyncio.sleep(3.0)
        primary, standby = (
            (first, second) if await world.ready(standbys=1) == first.id else (second, first)
        )
        # A planned one first.
        since = world.clock.monotonic()
        await asyncio.to_thread(primary.stop, timeout_s=60.0)
        await asyncio.sleep(2.0)
        # Results come in order: all that was held up by it was read once a later one is.
        await pulse.first_since(world.clock.monotonic())
        found["consumer_handoff_stall_s"] = pulse.longest_s(since)
        await asyncio.to_thread(primary.start)
        world.consumers.append(primary)
        await world.ready(standbys=1)
        await asyncio.sleep(3.0)
        since = world.clock.monotonic()
        await asyncio.to_thread(standby.kill)  # which is the primary now
        # It might do something yet before it is dead, and only what was due later is for others to do.
        dead = world.clock.monotonic()
        found["consumer_failover_s"] = await pulse.first_since(dead) + dead - since
    # Only one is left that has nothing yet.
    await asyncio.to_thread(primary.kill)
    await asyncio.sleep(_LEASE_S + 2.0)
    cold = await world.start("large")
    begun = world.clock.monotonic()
    await world.ready()
    took_s = world.clock.monotonic() - begun
    size = sum(each.stat().st_size for each in cold.files.rglob("*") if each.is_file())
    found["consumer_recovery_mb_per_s"] = size / 1e6 / took_s
    found["consumer_recovered_mb"] = size / 1e6
    return found


@contextlib.asynccontextmanager
async def _world(etcd: str, clock: Clock) -> AsyncIterator[World]:
    with tempfile.TemporaryDirectory(prefix="gazette-bench-") as folder:
        base = Path(folder)
        async with serving(base / "broker", etcd=etcd, prefix="/bench/brokers") as (_, client):
            world = World(base, etcd, client, clock)
            try:
                yield world
            finally:
                await world.close()


async def _measure(binary: Path, clock: Clock, arguments: argparse.Namespace) -> Figures:
    cases = {
        "latency": _latency,
        "throughput": lambda world: _throughput(world, arguments.messages),
        "failover": lambda world: _failover(world, arguments.state_mb << 20),
    }
    found: Figures = {}
    for name, run in cases.items():
        if arguments.only and name not in arguments.only:
            continue
        with EtcdServer(binary) as etcd:
            async with _world(etcd.endpoint, clock) as world:
                more = await run(world)
        text = "  ".join(f"{key} {results.rounded(value)}" for key, value in more.items())
        print(text, flush=True)
        found |= more
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_consumers")
    parser.add_argument("--only", nargs="*", choices=("latency", "throughput", "failover"))
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--state-mb", type=int, default=1024)
    parser.add_argument("--output", type=Path, default=_LATEST)
    parser.add_argument("--dry-run", action="store_true", help="write no result")
    add_wire_option(parser)
    return parser.parse_args()


def main() -> int:
    """Run, and give the exit status."""
    arguments = _arguments()
    use_wire(arguments.wire)
    clock = SystemClock()
    try:
        binary = tools.etcd()
        found = uvloop.run(_measure(binary, clock, arguments))
        for verdict in judge(found, CONSUMER_TARGETS):
            if verdict.value is not None or not arguments.only:
                print(verdict.line())
        if arguments.dry_run:
            return 0
        rounded = {name: results.rounded(value) for name, value in found.items()}
        result = {
            "date": clock.now().isoformat(timespec="seconds"),
            "machine": machine.describe(),
            "versions": machine.versions() | {"etcd": machine.program_version(binary)},
            "figures": results.of_wire(rounded, arguments.wire),
        }
        results.write(arguments.output, results.merged(results.load(arguments.output), result))
        print(f"written: {arguments.output}")
    except GazetteError as err:
        print(f"benchmarks: {err}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
