"""One run, from its first process to its verdict."""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, final

from examples.stream_sum.chunker import APPEND_S, FATAL_S, Chunker, ChunkLate, SumLate
from examples.stream_sum.messages import SUMS, Sum, id_of
from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.consumer.client import ShardClient
from gazette_platform.consumer.protocol import ShardChange
from gazette_platform.consumer.protocol.shard_yaml import parse_shard_changes
from gazette_platform.errors import GazetteError
from gazette_platform.message import Flags, JsonFraming, read_committed
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.testing.chaos.logs import unforeseen
from gazette_platform.testing.chaos.watchdog import Watchdog, starved_s
from gazette_platform.testing.cluster import BrokerCluster
from gazette_platform.testing.etcd import EtcdServer
from gazette_platform.testing.starvation import Late, reason_of
from gazette_platform.testing.waiting import patient
from gazette_platform.yaml_specs.journal_yaml import parse_journal_tree
from tests.soak.consumers import ROOT, SUMMER, ConsumerGroup
from tests.soak.nemesis import Nemesis
from tests.soak.plan import ALL_KINDS, Kind, episodes, make_plan
from tests.soak.verdict import SoakResult, Sums, compare

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_MEMBERS = 3
_ZONES = ("a", "b", "c")
# With three replicas appends would wait for each broker that is away.
_REPLICATION = 2
_SPECS = ROOT / "examples" / "stream_sum"
_START_S = 60.0
# The last streams, which began before the last fault.
_LAST_S = FATAL_S + 20.0
# A machine that is late by so much within two leases makes leases run out.
_STARVED_S = 0.5
_ERRORS_SHOWN = 5
# Once it is known that all is not well.
_GRACE_S = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class SoakConfig:
    """What a run does."""

    etcd_binary: Path
    seed: int = 7
    duration_s: float = 600.0
    """Of faults; start and check come on top."""
    lease_s: float = 6.0
    workers: int = 12
    """Streams at a time."""
    chunks: int = 20
    """Of each stream."""
    pause_s: float = 0.1
    """Between two chunks of a worker."""
    kinds: Sequence[Kind] = ALL_KINDS
    program: Sequence[str] = SUMMER
    """The consumer."""
    folder: Path | None = None
    """Where to keep everything; None: a temporary folder, which is removed if all is well."""


async def run_soak(config: SoakConfig, *, say: Callable[[str], None]) -> SoakResult:
    """Run it.

    Raises: GazetteError: it could not even be started.
    Cancellation: stops every process; the folder stays.
    """
    folder = config.folder or Path(tempfile.mkdtemp(prefix="gazette-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    result = await _Run(config, folder, say).run()
    if config.folder is None and result.is_ok:
        shutil.rmtree(folder)
        return result
    result = replace(result, folder=str(folder))
    (folder / "result.txt").write_text("\n\n".join((result.summary, *result.reasons)) + "\n")
    return result


@final
@dataclass(slots=True)
class _Streams:
    """What chunkers tell."""

    expected: dict[bytes, Sum] = field(default_factory=dict)
    late_s: list[float] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    is_cut: bool = False
    """Whether some ended before their last chunk was appended."""
    is_all_read: bool = False
    """Whether consumers have read all that was published."""

    def note(self, err: Exception, text: str = "") -> None:
        """Note what a stream failed by."""
        text = text or str(err)
        is_late = isinstance(err, (SumLate, ChunkLate))
        self.troubles.append(Late(text) if is_late else reason_of(err, text))

    def expect(self, total: Sum) -> None:
        self.expected[id_of(total)] = replace_sum(total)


def replace_sum(total: Sum) -> Sum:
    return Sum(ID=total.ID, SeqNo=total.SeqNo, Value=total.Value)


@final
class _Run:
    def __init__(self, config: SoakConfig, folder: Path, say: Callable[[str], None]) -> None:
        self._config = config
        self._folder = folder
        self._clock = SystemClock()
        self._began = self._clock.monotonic()
        self._say_to = say
        self._streams = _Streams()
        self._stopping = asyncio.Event()

    def _say(self, text: str) -> None:
        self._say_to(f"{self._clock.monotonic() - self._began:7.1f} s  {text}")

    async def run(self) -> SoakResult:
        config, folder = self._config, self._folder
        with EtcdServer(config.etcd_binary) as etcd:
            async with (
                Watchdog(self._clock) as watchdog,
                BrokerCluster(
                    folder,
                    etcd=etcd.endpoint,
                    prefix="/soak",
                    zones=_ZONES,
                    lease_s=config.lease_s,
                    is_proxied=True,
                ) as brokers,
                AsyncClient(ClientConfig(address=brokers.address, retry_timeout_s=None)) as client,
                ConsumerGroup(
                    folder,
                    etcd=etcd.endpoint,
                    prefix="/soak-consumers",
                    brokers=brokers.address,
                    count=_MEMBERS,
                    lease_s=config.lease_s,
                    program=config.program,
                ) as consumers,
            ):
                shards = await self._create(client, consumers)
                nemesis = Nemesis(
                    brokers,
                    consumers,
                    etcd,
                    shards=len(shards),
                    lease_s=config.lease_s,
                    clock=self._clock,
                    say=self._say,
                    is_starved=lambda: self._is_starved(watchdog),
                )
                await nemesis.settle()
                self._say(f"{len(shards)} shards are there")
                sums = await self._play(client, consumers, nemesis, shards)
                reasons = [*self._streams.troubles, *nemesis.troubles]
                reasons += await self._end(consumers, nemesis)
                cause = watchdog.machine.cause(waited=nemesis.waited)
        found = sums.reasons(is_all_read=self._streams.is_all_read and not self._streams.is_cut)
        reasons = [*found, *reasons, *self._unforeseen()]
        if not self._streams.late_s:
            reasons.append(Late("no stream came to its end"))
        if not nemesis.faults:
            reasons.append(Late("no fault was inflicted"))
        return SoakResult(
            seed=config.seed,
            streams=len(self._streams.expected),
            faults=nemesis.faults,
            sums=sums,
            late_s_max=max(self._streams.late_s, default=0.0),
            reasons=reasons,
            starved_by=cause,
        )

    def _is_starved(self, watchdog: Watchdog) -> bool:
        now = self._clock.monotonic()
        return starved_s(watchdog.stalls, now - 3 * self._config.lease_s, now) > _STARVED_S

    async def _create(self, client: AsyncClient, consumers: ConsumerGroup) -> dict[str, str]:
        """Journals and shards of the example. Returns: the journal of each shard."""
        journals = parse_journal_tree((_SPECS / "journals.yaml").read_text())
        await client.apply(
            [replace(c, spec=replace(c.spec, replication=_REPLICATION)) for c in journals]
        )
        specs = [c.spec for c in parse_shard_changes((_SPECS / "shards.yaml").read_text())]
        async with ShardClient(ClientConfig(address=consumers.address)) as shards:
            await shards.apply([ShardChange(spec) for spec in specs])
        return {spec.id: spec.sources[0].journal for spec in specs}

    # ------------------------------------------------------------------ streams and faults

    async def _play(
        self,
        client: AsyncClient,
        consumers: ConsumerGroup,
        nemesis: Nemesis,
        shards: dict[str, str],
    ) -> Sums:
        config = self._config
        chunker = Chunker(
            client,
            chunks=config.chunks,
            dice=random.Random(f"chunks/{config.seed}"),
            pause_s=config.pause_s,
            say=lambda text: None,
            expect=self._streams.expect,
            append_s=patient(APPEND_S),
            fatal_s=patient(FATAL_S),
        )
        sums = Sums()
        try:
            async with chunker:
                sums = await self._streamed(chunker, client, consumers, nemesis, shards)
                if nemesis.troubles or self._streams.troubles:
                    # Brokers that ended are not started again, so that some appends may never end.
                    chunker.close_s = _GRACE_S
        except ChunkLate as err:
            self._streams.note(err)
        return sums

    async def _streamed(
        self,
        chunker: Chunker,
        client: AsyncClient,
        consumers: ConsumerGroup,
        nemesis: Nemesis,
        shards: dict[str, str],
    ) -> Sums:
        """Streams and faults, until both have ended. Returns: what came of the streams."""
        config = self._config
        plan = make_plan(
            config.seed, lease_s=config.lease_s, members=_MEMBERS, kinds=tuple(config.kinds)
        )
        tasks = TaskGroup("soak")
        try:
            workers = [
                tasks.spawn(self._work(chunker), name=f"worker {n}") for n in range(config.workers)
            ]
            until = self._clock.monotonic() + config.duration_s
            inflicting = tasks.spawn(
                nemesis.run(episodes(plan, config.seed), until), name="nemesis"
            )
            failing = tasks.spawn(self._stopping.wait(), name="first trouble")
            await asyncio.wait({inflicting, failing}, return_when=asyncio.FIRST_COMPLETED)
            if not inflicting.done():  # a fault is undone first
                await asyncio.wait({inflicting}, timeout=patient(_START_S))
            try:
                if inflicting.done():
                    await inflicting
            except GazetteError as err:
                nemesis.fail(err)
            self._stopping.set()
            self._say("no more faults; the last streams end")
            is_well = not (nemesis.troubles or self._streams.troubles)
            _, late = await asyncio.wait(workers, timeout=patient(_LAST_S) if is_well else _GRACE_S)
            self._streams.is_cut = bool(late or self._streams.troubles)
            if late and is_well:
                self._streams.troubles.append(Late(f"{len(late)} streams did not end"))
        finally:
            await tasks.close()
        return await self._compare(
            client, consumers, chunker.begin, shards, patient(_START_S) if is_well else _GRACE_S
        )

    async def _work(self, chunker: Chunker) -> None:
        try:
            async for published in chunker.work(-1):
                self._streams.late_s.append(published.late_s)
                if published.late_s > FATAL_S / 4:
                    stream = id_of(published.total).hex()
                    self._say(f"the sum of stream {stream} took {published.late_s:.1f} s")
                if self._stopping.is_set():
                    return
        except GazetteError as err:
            self._say(f"trouble: {err}")
            self._streams.note(err)
            self._stopping.set()

    async def _compare(
        self,
        client: AsyncClient,
        consumers: ConsumerGroup,
        begin: int,
        shards: dict[str, str],
        timeout_s: float,
    ) -> Sums:
        """Once all is read that was published, what is there of it."""
        found: list[Sum] = []
        try:
            async with (
                asyncio.timeout(timeout_s),
                ShardClient(ClientConfig(address=consumers.address)) as stats,
            ):
                for shard, journal in shards.items():
                    head = await client.write_head(journal)
                    await stats.stat(shard, {journal: head}, timeout_s=timeout_s)
            self._streams.is_all_read = True
        except (GazetteError, TimeoutError) as err:
            self._streams.note(err, f"not all is read: {type(err).__name__}: {err}")
        framing = JsonFraming(message_type=Sum)
        try:
            async with (
                asyncio.timeout(patient(_START_S)),
                await read_committed(client, SUMS, begin, framing=framing) as reader,
            ):
                async for batch in reader:
                    found += [each.message for each in batch if each.uuid.flags != Flags.ACK_TXN]
        except (GazetteError, TimeoutError) as err:
            self._streams.note(err, f"sums cannot be read: {type(err).__name__}: {err}")
        return compare(self._streams.expected, found)

    # ------------------------------------------------------------------ the end

    async def _end(self, consumers: ConsumerGroup, nemesis: Nemesis) -> list[str]:
        """Have all consumers leave. Returns: what was wrong with it."""
        if nemesis.troubles:
            return []
        await nemesis.settle()
        codes = await asyncio.gather(*map(consumers.leave, consumers.names))
        reasons = []
        for name, code in zip(consumers.names, codes, strict=True):
            text = f"{name} ended with {code} when all were told to leave"
            if code != 0:
                reasons.append(Late(text) if code is None else text)
        return reasons

    def _unforeseen(self) -> list[str]:
        """Errors of logs that nobody foresaw."""
        reasons = []
        for log in sorted(self._folder.glob("*/*.log")):
            found = unforeseen(log.read_text(errors="replace"))
            reasons += [
                f"{log.parent.name} logged what nobody foresaw: {text}"
                for text in found[:_ERRORS_SHOWN]
            ]
        return reasons


def kinds_named(names: str) -> tuple[Kind, ...]:
    """Kinds of a comma-separated list; all if it is empty. Raises: ValueError."""
    return tuple(Kind(name) for name in names.split(",") if name) or ALL_KINDS
