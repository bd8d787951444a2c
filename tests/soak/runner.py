"""One run, from its first process to its verdict."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, final

from examples.stream_sum.chunker import APPEND_S, FATAL_S, Chunker, ChunkLate, SumLate
from examples.stream_sum.messages import SUMS, Sum, id_of
from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.consumer.client import ShardClient
from gazette_platform.consumer.protocol import ShardChange
from gazette_platform.errors import GazetteError
from gazette_platform.message import Flags, JsonFraming, read_committed
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.testing.cluster import BrokerCluster
from gazette_platform.testing.etcd import EtcdServer
from gazette_platform.testing.waiting import pass_time, patient
from tests.benches.postgres_server import Postgres
from tests.chaos.logs import unforeseen
from tests.harness import Late, Watchdog, reason_of, starved_s
from tests.soak.consumers import PROGRAMS, ConsumerGroup
from tests.soak.nemesis import Nemesis
from tests.soak.plan import ALL_KINDS, Kind, episodes, make_plan
from tests.soak.producers import JumpingClock, OddSums
from tests.soak.specs import journal_changes, shard_specs
from tests.soak.summer import TALLIES, Tally, make_tables
from tests.soak.verdict import SoakResult, Sums, compare, miscounted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gazette_platform.ops.clock import Clock

SumT = TypeVar("SumT", bound=Sum)

_MEMBERS = 3
_ZONES = ("a", "b", "c")
_START_S = 60.0
_POLL_S = 0.5
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
    postgres: Path | None
    """Folder of PostgreSQL's programs; None: there is none, and what needs it is left out."""
    seed: int = 7
    duration_s: float = 600.0
    """Of faults; start and check come on top."""
    lease_s: float = 6.0
    workers: int = 12
    """Streams at a time. One in four is published by the clock that jumps."""
    chunks: int = 20
    """Of each stream."""
    pause_s: float = 0.1
    """Between two chunks of a worker."""
    kinds: Sequence[Kind] = ALL_KINDS
    programs: Sequence[Sequence[str]] = PROGRAMS
    """Which consumers run, in turn."""
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
    """What chunkers report."""

    expected: dict[bytes, Sum] = field(default_factory=dict)
    late_s: list[float] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    is_cut: bool = False
    """Whether some ended before their last chunk was appended."""
    is_all_read: bool = False
    """Whether consumers have read all that was published."""
    sums: Sums = field(default_factory=Sums)
    """What came of them."""
    passed_on: Sums = field(default_factory=Sums)
    """What the shard behind the sums made of these."""
    miscounted: list[str] = field(default_factory=list)
    """What is wrong with its count of them."""

    def note(self, err: Exception, text: str = "") -> None:
        """Note what a stream failed by."""
        text = text or str(err)
        is_late = isinstance(err, (SumLate, ChunkLate))
        self.troubles.append(Late(text) if is_late else reason_of(err, text))

    def expect(self, total: Sum) -> None:
        self.expected[id_of(total)] = replace_sum(total)

    def compare(self, sums: Sequence[Sum], tallies: Sequence[Tally]) -> None:
        """Note what the journals of sums and tallies have to do with what was published."""
        self.sums = compare(self.expected, sums)
        self.passed_on = compare(self.expected, tallies)
        self.miscounted = miscounted(tallies)

    def reasons(self) -> list[str]:
        """Return why not all is well, the clearest reason first."""
        is_all_read = self.is_all_read and not self.is_cut
        return [
            *self.sums.reasons(is_all_read=is_all_read),
            *self.passed_on.reasons("sums that were passed on", is_all_read=is_all_read),
            *self.miscounted,
            *self.troubles,
        ]


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
        self._producer = JumpingClock()

    def _say(self, text: str) -> None:
        self._say_to(f"{self._clock.monotonic() - self._began:7.1f} s  {text}")

    async def run(self) -> SoakResult:
        config, folder = self._config, self._folder
        server = contextlib.nullcontext() if config.postgres is None else Postgres(config.postgres)
        with EtcdServer(config.etcd_binary) as etcd, server as database:
            url = self._database(database)
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
                    programs=config.programs,
                    database=url,
                ) as consumers,
            ):
                shards = await self._create(client, consumers, has_postgres=bool(url))
                nemesis = Nemesis(
                    brokers,
                    consumers,
                    etcd,
                    database,
                    self._producer,
                    shards=len(shards),
                    lease_s=config.lease_s,
                    clock=self._clock,
                    say=self._say,
                    is_starved=lambda: self._is_starved(watchdog),
                )
                await nemesis.settle()
                self._say(f"{len(shards)} shards exist")
                await self._play(client, consumers, nemesis, shards)
                reasons = [*self._streams.reasons(), *nemesis.troubles]
                reasons += await self._end(consumers, nemesis)
                cause = watchdog.machine.cause(waited=nemesis.waited)
        reasons += self._unforeseen()
        if not self._streams.late_s:
            reasons.append(Late("no stream came to its end"))
        if not nemesis.faults:
            reasons.append(Late("no fault was inflicted"))
        return SoakResult(
            seed=config.seed,
            streams=len(self._streams.expected),
            faults=nemesis.faults,
            sums=self._streams.sums,
            passed_on=self._streams.passed_on,
            left_out=0 if config.postgres else 1,
            late_s_max=max(self._streams.late_s, default=0.0),
            reasons=reasons,
            starved_by=cause,
        )

    def _is_starved(self, watchdog: Watchdog) -> bool:
        now = self._clock.monotonic()
        return starved_s(watchdog.stalls, now - 3 * self._config.lease_s, now) > _STARVED_S

    def _database(self, server: Postgres | None) -> str:
        """Make the database of shards without a log. Returns: its URL; empty: there is none."""
        if server is None:
            self._say(
                "left out: shards on PostgreSQL, and its restarts (apt-get install postgresql, or "
                "GAZETTE_POSTGRES)"
            )
            return ""
        server.sql("CREATE DATABASE soak")
        make_tables(server.url("soak"))
        return server.url("soak")

    async def _create(
        self, client: AsyncClient, consumers: ConsumerGroup, *, has_postgres: bool
    ) -> dict[str, str]:
        """Make journals and shards. Returns: the journal of each shard, those behind others at last."""
        await client.apply(journal_changes())
        specs = shard_specs(has_postgres=has_postgres)
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
    ) -> None:
        chunker = self._chunker(client, "chunks", self._clock)
        odd = self._chunker(client, "odd chunks", self._producer)
        try:
            async with chunker, odd:
                await self._streamed(chunker, odd, client, nemesis)
                is_well = not (nemesis.troubles or self._streams.troubles)
                await self._compare(
                    client, consumers, shards, patient(_START_S) if is_well else _GRACE_S
                )
                if nemesis.troubles or self._streams.troubles:
                    # Brokers that ended are not started again, so that some appends may never end.
                    chunker.close_s = odd.close_s = _GRACE_S
        except ChunkLate as err:
            self._streams.note(err)

    def _chunker(self, client: AsyncClient, name: str, clock: Clock) -> Chunker:
        config = self._config
        return Chunker(
            client,
            chunks=config.chunks,
            dice=random.Random(f"{name}/{config.seed}"),
            pause_s=config.pause_s,
            say=lambda text: None,
            expect=self._streams.expect,
            append_s=patient(APPEND_S),
            fatal_s=patient(FATAL_S),
            clock=clock,
        )

    async def _streamed(
        self, chunker: Chunker, odd: Chunker, client: AsyncClient, nemesis: Nemesis
    ) -> None:
        """Streams and faults, until both have ended."""
        config = self._config
        kinds = tuple(
            kind for kind in config.kinds if config.postgres or kind is not Kind.RESTART_POSTGRES
        )
        plan = make_plan(config.seed, lease_s=config.lease_s, members=_MEMBERS, kinds=kinds)
        dice = random.Random(f"odd sums/{config.seed}")
        odd_sums = OddSums(client, self._producer, dice, self._streams.expect)
        tasks = TaskGroup("soak")
        try:
            workers = [
                tasks.spawn(
                    self._work(odd, odd_sums) if number % 4 == 1 else self._work(chunker),
                    name=f"worker {number}",
                )
                for number in range(config.workers)
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

    async def _work(self, chunker: Chunker, odd_sums: OddSums | None = None) -> None:
        try:
            async for published in chunker.work(-1):
                self._streams.late_s.append(published.late_s)
                if published.late_s > FATAL_S / 4:
                    stream = id_of(published.total).hex()
                    self._say(f"the sum of stream {stream} took {published.late_s:.1f} s")
                if odd_sums is not None:
                    await odd_sums.publish()
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
        shards: dict[str, str],
        timeout_s: float,
    ) -> None:
        """Once all is read that was published, look at what exists of it."""
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
        until = self._clock.monotonic() + timeout_s
        sums = await self._messages(client, SUMS, Sum, until)
        tallies = await self._messages(client, TALLIES, Tally, until)
        self._streams.compare(sums, tallies)

    async def _messages(
        self, client: AsyncClient, journal: str, kind: type[SumT], until: float
    ) -> list[SumT]:
        """What a journal has, once that is as much as it has to be, or time is up: the last is acknowledged a bit later."""
        found: list[SumT] = []
        framing = JsonFraming(message_type=kind)
        try:
            while True:
                async with (
                    asyncio.timeout(patient(_START_S)),
                    await read_committed(client, journal, framing=framing) as reader,
                ):
                    found = [
                        each.message
                        async for batch in reader
                        for each in batch
                        if each.uuid.flags != Flags.ACK_TXN
                    ]
                if len(found) >= len(self._streams.expected) or self._clock.monotonic() > until:
                    return found
                await pass_time(_POLL_S)
        except (GazetteError, TimeoutError) as err:
            self._streams.note(err, f"{journal} cannot be read: {type(err).__name__}: {err}")
        return found

    # ------------------------------------------------------------------ the end

    async def _end(self, consumers: ConsumerGroup, nemesis: Nemesis) -> list[str]:
        """Have all consumers leave. Returns: what was wrong with it."""
        if nemesis.troubles:
            return []
        await nemesis.settle()
        codes = await asyncio.gather(*map(consumers.leave, consumers.names))
        reasons = []
        for name, code in zip(consumers.names, codes, strict=True):
            text = f"{name} ended with {code} when all were asked to leave"
            if code != 0:
                reasons.append(Late(text) if code is None else text)
        return reasons

    def _unforeseen(self) -> list[str]:
        """Return unforeseen errors in logs."""
        reasons = []
        for log in sorted(self._folder.glob("*/*.log")):
            found = unforeseen(log.read_text(errors="replace"))
            reasons += [
                f"{log.parent.name} logged an unforeseen error: {text}"
                for text in found[:_ERRORS_SHOWN]
            ]
        return reasons


def kinds_named(names: str) -> tuple[Kind, ...]:
    """Kinds of a comma-separated list; all if it is empty. Raises: ValueError."""
    return tuple(Kind(name) for name in names.split(",") if name) or ALL_KINDS
