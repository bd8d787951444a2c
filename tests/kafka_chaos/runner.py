"""One run, from its first process to its verdict."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, final

from gazette_platform.errors import GazetteError
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.protocol import JournalChange
from gazette_platform.testing.cluster import BrokerCluster
from gazette_platform.testing.etcd import EtcdTrio
from gazette_platform.testing.waiting import pass_time, patient
from tests.benches.kafka_servers import topic_specs
from tests.chaos.idle import IdleJournals
from tests.chaos.logs import unforeseen
from tests.chaos.nemesis import Nemesis
from tests.chaos.plan import FaultKind, make_plan
from tests.chaos.scene import Scene, WorkloadConfig
from tests.chaos.stale_primary import StalePrimary
from tests.chaos.workload import Workload
from tests.checker.history import Recorder
from tests.harness import Judged, Late, Watchdog, headline, reason_of, starved_s
from tests.kafka_chaos.check import Evidence, findings
from tests.kafka_chaos.clients import (
    COPIERS,
    COPY,
    COUNTS,
    GROUP,
    SOURCE,
    TARGET,
    TRANSFORMS,
    VERIFIED,
    VERIFIERS,
    WITH_JAVA,
    Clients,
    Role,
)
from tests.kafka_chaos.readers import Onlooker, consume, read_journals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    _Read = Mapping[int, Sequence[tuple[int, int]]]
    """Offset and number of each record, by partition."""

PARTITIONS = 6
KINDS = (
    *(FaultKind.KILL, FaultKind.KILL_COORDINATOR, FaultKind.KILL_ALL, FaultKind.LAST_REPLICA),
    *(FaultKind.PAUSE, FaultKind.HICCUP, FaultKind.SLOW_BROKER),
    *(FaultKind.PARTITION, FaultKind.ONE_WAY, FaultKind.SLOW_NETWORK, FaultKind.RESET),
    *(FaultKind.DRAIN, FaultKind.RESTART_ALL),
    *(FaultKind.ETCD_LEADER, FaultKind.ETCD_RESTART, FaultKind.ETCD_AWAY, FaultKind.STORE_CUT),
)
"""The faults of brokers, etcd and the network; none of them may lose anything."""

_MEND_S = 90.0
_SAID_EVERY_S = 15.0
_ERRORS_SHOWN = 3
# Fewer acknowledged records in a second, of all producers, say nothing.
_RECORDS_PER_S_MIN = 5.0
# The verifiable producer writes no JSON objects.
_ENVELOPE = {"kafka.form": "envelope"}


@dataclass(frozen=True, kw_only=True, slots=True)
class KafkaChaosConfig:
    """What a run does."""

    etcd_binary: Path
    seed: int = 41
    duration_s: float = 600.0
    """Of faults; start and check come on top."""
    replication: int = 2
    zones: Sequence[str] = ("a", "b", "c")
    """The zone of each broker."""
    lease_s: float = 6.0
    kinds: Sequence[FaultKind] = KINDS
    has_java: bool = False
    """Whether Kafka's own programs run as well: one copies the source, others fill and read `verified`."""
    folder: Path | None = None
    """Where to keep everything; None: a temporary folder, which is removed if all is well."""

    @property
    def makers(self) -> Mapping[str, str]:
        """Topics that are made of the source, and the groups that make them."""
        return {TARGET: TRANSFORMS} | ({COPY: COPIERS} if self.has_java else {})

    @property
    def readers(self) -> Mapping[str, str]:
        """Groups, and the topics that they read."""
        of_source = dict.fromkeys((GROUP, *self.makers.values()), SOURCE)
        return of_source | ({VERIFIERS: VERIFIED} if self.has_java else {})

    @property
    def topics(self) -> tuple[str, ...]:
        """All of them."""
        return (SOURCE, *self.makers, *((VERIFIED,) if self.has_java else ()))

    @property
    def counts(self) -> Mapping[Role, int]:
        """How many programs have each role."""
        return WITH_JAVA if self.has_java else COUNTS


@dataclass(frozen=True, kw_only=True)
class KafkaChaosResult(Judged):
    """How a run went."""

    seed: int
    folder: Path | None
    counts: Mapping[tuple[Role, str], int]
    records: int = 0
    """In the source at the end."""
    faults: int = 0
    harmed: Mapping[str, int] = field(default_factory=dict)
    longest_s: float = 0.0
    """From the call to the answer, of records of idempotent producers."""
    reasons: Sequence[str] = ()
    starved_by: str = ""

    @property
    def summary(self) -> str:
        """The last line of the run."""
        count = self.counts
        line = (
            f"kafka-chaos: {self.state} seed={self.seed} records={self.records} "
            f"acked={count[Role.IDEMPOTENT, 'acked']} "
            f"committed={count[Role.TRANSACTIONAL, 'committed']} "
            f"aborted={count[Role.TRANSACTIONAL, 'aborted']} "
            f"processed={count[Role.MEMBER, 'record']} "
            f"transforms={count[Role.TRANSFORM, 'committed']} "
            f"verified={count[Role.VERIFIABLE_PRODUCER, 'acked']} "
            f"rebalances={count[Role.MEMBER, 'assigned']} faults={self.faults} "
            f"client_faults={sum(self.harmed.values())} longest_s={self.longest_s:.1f}"
        )
        return line if self.is_ok else f"{line}: {headline(self.reasons, self.starved_by)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Topics(WorkloadConfig):
    """The journals of topics, for what settles a cluster after faults."""

    writers: int = 0
    readers: int = 0
    has_upkeep: bool = False
    topics: Sequence[str]

    @property
    def journal_names(self) -> tuple[str, ...]:
        return tuple(spec.name for spec in self.specs)

    @property
    def selector(self) -> str:
        return "name:prefix=topic/"

    @property
    def specs(self):
        return [
            spec
            for topic in self.topics
            for spec in topic_specs(
                topic,
                partitions=PARTITIONS,
                replication=self.replication,
                **(_ENVELOPE if topic == VERIFIED else {}),
            )
        ]


async def run_kafka_chaos(
    config: KafkaChaosConfig, *, say: Callable[[str], None]
) -> KafkaChaosResult:
    """Run it.

    Raises: GazetteError: it could not even be started.
    Cancellation: stops every process; the folder stays.
    """
    folder = config.folder or Path(tempfile.mkdtemp(prefix="gazette-kafka-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    result = await _Run(config, folder, say).run()
    if config.folder is None and result.is_ok:
        shutil.rmtree(folder)
        return result
    (folder / "result.txt").write_text("\n\n".join((result.summary, *result.reasons)) + "\n")
    return result


@final
class _Run:
    def __init__(self, config: KafkaChaosConfig, folder: Path, say: Callable[[str], None]) -> None:
        self._config = config
        self._folder = folder
        self._clock = SystemClock()
        self._began = self._clock.monotonic()
        self._say_to = say
        self._recorder: Recorder | None = None
        self._reasons: list[str] = []
        self._records = 0
        self._watchdog = Watchdog(self._clock)
        self._topics = _Topics(replication=config.replication, topics=config.topics)

    def _say(self, text: str) -> None:
        self._say_to(f"[{self._clock.monotonic() - self._began:6.1f}] {text}")
        if self._recorder is not None:
            self._recorder.note(text)

    async def run(self) -> KafkaChaosResult:
        config, folder = self._config, self._folder
        etcd = EtcdTrio(config.etcd_binary)
        await asyncio.to_thread(etcd.start)
        cause = ""
        try:
            with Recorder(folder / "history.jsonl", self._clock, seed=config.seed) as recorder:
                cluster = BrokerCluster(
                    folder,
                    etcd=etcd.endpoint,
                    prefix="/gazette/kafka-chaos",
                    zones=config.zones,
                    lease_s=config.lease_s,
                    is_proxied=True,
                    has_kafka=True,
                    flags=("--broker.drain-timeout=10s",),
                )
                async with self._watchdog, cluster:
                    self._recorder = recorder
                    self._say(f"{len(cluster.names)} brokers run; logs are in {folder}")
                    nemesis, clients = await self._play(cluster, etcd, recorder)
                    cause = self._watchdog.machine.cause()
                    self._recorder = None
        finally:
            await asyncio.to_thread(etcd.stop)
        return self._judge(nemesis, clients, cause)

    async def _play(
        self, cluster: BrokerCluster, etcd: EtcdTrio, recorder: Recorder
    ) -> tuple[Nemesis, Clients]:
        config = self._config
        topics = self._topics
        scene = Scene(
            config=topics,
            address=cluster.address,
            http_addresses=lambda: [broker.http_address for broker in cluster.brokers.values()],
            fragments=cluster.fragments,
            lease_s=config.lease_s,
            recorder=recorder,
            clock=self._clock,
        )
        async with scene.client(retry_timeout_s=patient(_MEND_S)) as client:
            await client.apply([JournalChange(spec, "", 0) for spec in topics.specs])
            for name in topics.all_names:
                await client.append(name, b"")
        ids = [
            f"{role}-{n}"
            for role, count in config.counts.items()
            for n in range(count)
            if role in (Role.TRANSACTIONAL, Role.TRANSFORM, Role.COPIER)
        ]
        onlooker = Onlooker(cluster.kafka_ports, [*config.readers], ids)
        nemesis = self._nemesis(cluster, etcd, scene, onlooker)
        servers = ",".join(f"127.0.0.1:{port}" for port in cluster.kafka_ports.values())
        with Clients(
            self._folder, servers, partitions=PARTITIONS, say=self._say, counts=config.counts
        ) as clients:
            try:
                await self._under_faults(clients, nemesis, onlooker, cluster)
                await self._at_the_end(clients, scene, onlooker, servers)
            except GazetteError as err:
                self._reasons.append(reason_of(err))
        return nemesis, clients

    def _nemesis(
        self, cluster: BrokerCluster, etcd: EtcdTrio, scene: Scene, onlooker: Onlooker
    ) -> Nemesis:
        workload = Workload(scene)
        return Nemesis(
            cluster,
            etcd,
            lease_s=self._config.lease_s,
            clock=self._clock,
            say=self._say,
            replicas_of=workload.replicas_of,
            stale_primary=StalePrimary(scene, cluster).inflict,
            idle=IdleJournals(scene),
            settle=lambda is_stored, _: workload.settle(patient(_MEND_S), is_stored=is_stored),
            is_starved=self._is_starved,
            coordinator=onlooker.draw_coordinator,
        )

    async def _under_faults(
        self, clients: Clients, nemesis: Nemesis, onlooker: Onlooker, cluster: BrokerCluster
    ) -> None:
        """Faults of brokers and of clients, until all is mended again."""
        config = self._config
        plan = make_plan(
            config.seed,
            duration_s=config.duration_s,
            zones={name: cluster.zone_of(name) for name in cluster.names},
            lease_s=config.lease_s,
            replication=config.replication,
            journals=self._topics.journal_names,
            kinds=config.kinds,
        )
        began = self._clock.monotonic()
        tasks = TaskGroup("kafka chaos")
        try:
            tasks.spawn(clients.supervise(), name="supervisor")
            tasks.spawn(self._tell(clients), name="progress")
            tasks.spawn(onlooker.watch(), name="onlooker")
            harming = tasks.spawn(clients.harm(config.seed), name="harm")
            await nemesis.run(plan)
            await nemesis.watch_over(began + config.duration_s - self._clock.monotonic())
            harming.cancel()
            await asyncio.wait({harming})
            await nemesis.mend()
            self._say("no more faults; producers come to their end")
            await clients.finish(is_producers=True)
        finally:
            await tasks.close()
        if tasks.failure is not None:
            raise tasks.failure

    async def _at_the_end(
        self, clients: Clients, scene: Scene, onlooker: Onlooker, servers: str
    ) -> None:
        """Let groups catch up, and read all topics."""
        read = {
            topic: await asyncio.to_thread(consume, servers, topic, PARTITIONS)
            for topic in dict.fromkeys(self._config.readers.values())
        }
        self._records = _count(read[SOURCE])
        counts = ", ".join(f"{_count(found)} in {topic}" for topic, found in read.items())
        self._say(f"there are records: {counts}; groups catch up")
        tasks = TaskGroup("catch up")
        try:
            tasks.spawn(clients.supervise(), name="supervisor")
            tasks.spawn(self._tell(clients), name="progress")
            tasks.spawn(onlooker.watch(), name="onlooker")
            await onlooker.caught_up(
                {
                    group: {part: found[-1][0] + 1 for part, found in read[topic].items() if found}
                    for group, topic in self._config.readers.items()
                }
            )
        finally:
            await tasks.close()
        await clients.finish(is_producers=False)
        clients.watch()
        for topic in self._config.makers:
            read[topic] = await asyncio.to_thread(consume, servers, topic, PARTITIONS)
        names = scene.config.journal_names
        async with scene.client(retry_timeout_s=patient(_MEND_S)) as client:
            of_client = {
                topic: await read_journals(client, names[at * PARTITIONS :][:PARTITIONS])
                for at, topic in enumerate(self._topics.topics)
            }
        self._say("all is read")
        (self._folder / "read.json").write_text(
            json.dumps({"kafka": read, "client": of_client, "offsets": onlooker.looks})
        )
        for topic, evidence in self._evidence(clients, onlooker, read, of_client):
            found = await asyncio.to_thread(findings, evidence)
            self._reasons += [f"{topic}: {text}" for text in found]

    def _evidence(
        self,
        clients: Clients,
        onlooker: Onlooker,
        read: Mapping[str, _Read],
        of_client: Mapping[str, Mapping[int, Sequence[int]]],
    ) -> Iterator[tuple[str, Evidence]]:
        """For each topic that producers fill."""
        for topic, producers, transactional, members in (
            (SOURCE, Role.IDEMPOTENT, Role.TRANSACTIONAL, Role.MEMBER),
            (VERIFIED, Role.VERIFIABLE_PRODUCER, None, Role.VERIFIABLE_CONSUMER),
        ):
            if topic not in read:
                continue
            makers = self._config.makers if topic == SOURCE else {}
            yield (
                topic,
                Evidence(
                    idempotent=clients.lines(producers),
                    transactional=clients.lines(transactional) if transactional else {},
                    members=clients.lines(members),
                    offsets={
                        group: onlooker.looks[group]
                        for group, of in self._config.readers.items()
                        if of == topic
                    },
                    source=_numbers(read[topic]),
                    places=read[topic],
                    source_of_client=of_client[topic],
                    targets={made: _numbers(read[made]) for made in makers},
                    targets_of_client=of_client,
                ),
            )

    async def _tell(self, clients: Clients) -> None:
        while True:
            await pass_time(_SAID_EVERY_S)
            count = clients.counts
            text = (
                f"{count[Role.IDEMPOTENT, 'acked']} records acknowledged, "
                f"{count[Role.TRANSACTIONAL, 'committed']} transactions committed, "
                f"{count[Role.TRANSACTIONAL, 'aborted']} aborted; "
                f"{count[Role.MEMBER, 'record']} records processed, "
                f"{count[Role.TRANSFORM, 'committed']} transforms committed"
            )
            if self._config.has_java:
                text += (
                    f"; in Java {count[Role.VERIFIABLE_PRODUCER, 'acked']} acknowledged, "
                    f"{count[Role.VERIFIABLE_CONSUMER, 'record']} processed"
                )
            self._say(text)

    def _is_starved(self) -> bool:
        lease_s = self._config.lease_s
        now = self._clock.monotonic()
        return starved_s(self._watchdog.stalls, now - 2 * lease_s, now) > lease_s / 4

    def _judge(self, nemesis: Nemesis, clients: Clients, cause: str) -> KafkaChaosResult:
        config = self._config
        reasons = [*self._reasons, *nemesis.ended, *clients.troubles, *self._unforeseen()]
        if not nemesis.begins:
            reasons.append(Late("there were no faults"))
        for kind, why in nemesis.left_out.items():
            self._say(f"left out: {kind}: {why}")
        if self._records < _RECORDS_PER_S_MIN * config.duration_s:
            reasons.append(Late(f"only {self._records} records came of it"))
        for role, what in (
            *((Role.IDEMPOTENT, "acked"), (Role.TRANSACTIONAL, "committed")),
            *((Role.TRANSACTIONAL, "aborted"), (Role.MEMBER, "committed")),
            (Role.TRANSFORM, "committed"),
            (Role.VERIFIABLE_PRODUCER, "acked"),
            (Role.VERIFIABLE_CONSUMER, "committed"),
        ):
            if role in config.counts and not clients.counts[role, what]:
                reasons.append(Late(f"no {role} has {what} anything"))
        return KafkaChaosResult(
            seed=config.seed,
            folder=self._folder if config.folder is not None or reasons else None,
            counts=clients.counts,
            records=self._records,
            faults=len(nemesis.begins),
            harmed=clients.harmed,
            longest_s=_longest_s(clients.lines(Role.IDEMPOTENT)),
            reasons=reasons,
            starved_by=cause,
        )

    def _unforeseen(self) -> list[str]:
        """Return unforeseen errors in the logs of brokers."""
        return [
            f"{log.parent.name} logged an unforeseen error: {text}"
            for log in sorted(self._folder.glob("*/broker.log"))
            for text in unforeseen(log.read_text(errors="replace"))[:_ERRORS_SHOWN]
        ]


def _count(found: _Read) -> int:
    return sum(map(len, found.values()))


def _numbers(found: _Read) -> dict[int, list[int]]:
    return {part: [number for _, number in records] for part, records in found.items()}


def _longest_s(logs: Mapping[str, Sequence[Mapping[str, float]]]) -> float:
    sent = {
        line["n"]: line["at"] for log in logs.values() for line in log if line["what"] == "sent"
    }
    return max(
        (
            line["at"] - sent[line["n"]]
            for log in logs.values()
            for line in log
            if line["what"] == "acked"
        ),
        default=0.0,
    )
