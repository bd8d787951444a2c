"""One run from its first process to its verdict."""

from __future__ import annotations

import asyncio
import math
import shutil
import tempfile
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, final

from gazette_platform.errors import GazetteError
from gazette_platform.ops.clock import Clock, SystemClock
from gazette_platform.testing.cluster import BrokerCluster
from gazette_platform.testing.etcd import EtcdTrio
from gazette_platform.testing.waiting import pass_time, patient
from tests.chaos.allowed import check_but_allow
from tests.chaos.finals import check_replicas, check_store, read_finals
from tests.chaos.logs import unforeseen
from tests.chaos.plan import FaultKind
from tests.chaos.scene import Scene, WorkloadConfig
from tests.checker.history import History, Outcome, Recorder, load_history
from tests.harness import Late, State, Watchdog, headline, judge, reason_of, starved_s
from tests.rollouts.load import Load, replication_of
from tests.rollouts.plays import Kubernetes, Play

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tests.checker.history import Append
    from tests.harness import Stall
    from tests.rollouts.plays import Stop

__all__ = ["Figures", "RolloutConfig", "RolloutResult", "figures_of", "run_rollouts"]

_RECOVERY_S = 90.0
# Load alone, before each play.
_BEFORE_S = 3.0
# Brokers get SIGKILL in these.
_KILLS = (Play.SHORT_GRACE, Play.ZONE_LOSS)


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutConfig:
    """What a run does."""

    etcd_binary: Path
    plays: Sequence[Play] = tuple(Play)
    zones: Sequence[str] = tuple("aabbcc")
    """The zone of each broker."""
    drain_timeout_s: float = 20.0
    """Of the brokers."""
    grace_s: float = 120.0
    short_grace_s: float = 0.02
    outage_s: float = 15.0
    min_ready_s: float = 5.0
    lease_s: float = 20.0
    stall_s_max: float = 50.0
    """More is a failure; a client gives up after 60 s."""
    seed: int = 7
    workload: WorkloadConfig = field(
        default_factory=lambda: WorkloadConfig(
            journals=6, writers=8, appends_per_s=8.0, has_upkeep=False, fragment_length=1 << 20
        )
    )
    folder: Path | None = None
    """Where to keep everything; None: a temporary folder, removed if all is well."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What clients saw of one play, and until journals had all replicas again."""

    play: str
    seconds: float
    appends: int
    failed: int
    """Appends that a client gave up."""
    longest_stall_s: float
    """From the call of an append until it was acknowledged."""
    stalled: str
    """The journal of that append."""
    appended_bytes: int
    lost_bytes: int
    """Acknowledged, and missing at the end."""

    def __str__(self) -> str:
        return (
            f"{self.play}: {self.seconds:.0f} s, longest stall {self.longest_stall_s:.2f} s, failed "
            f"appends {self.failed} of {self.appends}, lost bytes {self.lost_bytes} of "
            f"{self.appended_bytes}"
        )


def figures_of(history: History, begins: Sequence[tuple[float, str]]) -> list[Figures]:
    """The figures of each play. Pure.

    Args:
        begins: monotonic second and name of each play, by time; the last one ends the one before it.
    """
    instants = [at for at, _ in begins]
    by_play: list[list[Append]] = [[] for _ in begins]
    for op in history.appends:
        number = bisect_right(instants, op.invoked_at) - 1
        if op.process.startswith("writer") and number >= 0:
            by_play[number].append(op)
    found = []
    for (at, play), (until, _), ops in zip(begins, begins[1:], by_play, strict=False):
        well = [op for op in ops if op.outcome is Outcome.OK]
        slowest = max(well, key=lambda op: op.completed_at - op.invoked_at, default=None)
        found.append(
            Figures(
                play,
                until - at,
                len(ops),
                len(ops) - len(well),
                slowest.completed_at - slowest.invoked_at if slowest else 0.0,
                slowest.journal if slowest else "",
                sum(len(op.content) for op in well),
                sum(len(op.content) for op in well if not _is_there(history, op)),
            )
        )
    return found


def _is_there(history: History, op: Append) -> bool:
    final = history.finals.get(op.journal)
    if final is None:
        return False
    return final.content[op.begin - final.begin : op.end - final.begin] == op.content


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutResult:
    """How a run went."""

    figures: Sequence[Figures]
    stops: Mapping[Play, Sequence[Stop]]
    stalls: Sequence[Stall]
    reasons: Sequence[str]
    """Why it is not ok."""
    starved_by: str
    folder: Path | None
    """Where history and logs are; None if they were removed."""

    @property
    def state(self) -> State:
        """Whether it was ok, failed or was starved."""
        return judge(self.reasons, self.starved_by)

    @property
    def lines(self) -> list[str]:
        """Everything but the verdict."""
        found = []
        for one in self.figures:
            stops = self.stops.get(Play(one.play), [])
            drains = [stop.took_s for stop in stops if stop.has_drained]
            killed = len(stops) - len(drains)
            took = f", longest drain {max(drains):.1f} s of {len(drains)}" if drains else ""
            found.append(f"{one}{took}" + (f", {killed} got SIGKILL after grace" if killed else ""))
        return found + [f"not ok: {reason}" for reason in self.reasons]

    @property
    def summary(self) -> str:
        """The last line of the run."""
        line = (
            f"rollouts: {self.state} "
            f"longest_stall_s={max((f.longest_stall_s for f in self.figures), default=0):.2f} "
            f"failed_appends={sum(f.failed for f in self.figures)} "
            f"lost_bytes={sum(f.lost_bytes for f in self.figures)}"
        )
        return f"{line}: {headline(self.reasons, self.starved_by)}" if self.reasons else line


async def run_rollouts(
    config: RolloutConfig, *, say: Callable[[str], None], clock: Clock | None = None
) -> RolloutResult:
    """Run a cluster, its clients and the plays, and check what the clients saw.

    Args:
        say: called with each event, a line each.

    Raises: GazetteError: the cluster could not even be started.
    Cancellation: stops every process; the folder stays.
    """
    folder = config.folder or Path(tempfile.mkdtemp(prefix="gazette-rollouts-"))
    folder.mkdir(parents=True, exist_ok=True)
    result = await _Run(config, folder, say, clock or SystemClock()).run()
    if config.folder is None and not result.reasons:
        await asyncio.to_thread(shutil.rmtree, folder)
    return result


@final
class _Run:
    def __init__(
        self, config: RolloutConfig, folder: Path, say: Callable[[str], None], clock: Clock
    ) -> None:
        self._config, self._folder, self._clock = config, folder, clock
        self._say_to, self._began = say, clock.monotonic()
        self._history_path = folder / "history.jsonl"
        self._watchdog = Watchdog(clock)
        self._begins: list[tuple[float, str]] = []
        self._stops: dict[Play, list[Stop]] = {}
        self._findings: list[str] = []

    def _say(self, text: str) -> None:
        self._say_to(f"[{self._clock.monotonic() - self._began:6.1f}] {text}")

    async def run(self) -> RolloutResult:
        config = self._config
        etcd = EtcdTrio(config.etcd_binary)
        await asyncio.to_thread(etcd.start)
        reasons, cause = [], ""
        try:
            cluster = BrokerCluster(
                self._folder,
                etcd=etcd.endpoint,
                prefix="/gazette/rollouts",
                zones=config.zones,
                lease_s=config.lease_s,
                flags=(f"--broker.drain-timeout={config.drain_timeout_s:g}s",),
            )
            with Recorder(self._history_path, self._clock, seed=config.seed) as recorder:
                async with self._watchdog, cluster:
                    self._say(f"{len(cluster.names)} brokers run; logs are in {self._folder}")
                    try:
                        reasons += await self._play(cluster, etcd, recorder)
                    except GazetteError as err:
                        reasons.append(reason_of(err))
                        cause = self._watchdog.machine.cause(waited=getattr(err, "waited", 0.0))
                    cause = cause or self._watchdog.machine.cause()
        finally:
            await asyncio.to_thread(etcd.stop)
        return await asyncio.to_thread(self._judge, reasons, cause)

    async def _play(
        self, cluster: BrokerCluster, etcd: EtcdTrio, recorder: Recorder
    ) -> Sequence[str]:
        """Returns: what is wrong with the cluster at the end."""
        config = self._config
        scene = Scene(
            config=config.workload,
            address=cluster.address,
            http_addresses=lambda: [broker.http_address for broker in cluster.brokers.values()],
            fragments=cluster.fragments,
            lease_s=config.lease_s,
            recorder=recorder,
            clock=self._clock,
        )
        kubernetes = Kubernetes(
            cluster,
            etcd,
            grace_s=config.grace_s,
            short_grace_s=config.short_grace_s,
            outage_s=config.outage_s,
            min_ready_s=config.min_ready_s,
            clock=self._clock,
            say=self._say,
        )
        self._stops, self._findings = kubernetes.stops, scene.findings
        load = Load(scene)
        await load.create_journals()
        load.start(config.seed)
        try:
            for play in config.plays:
                await pass_time(_BEFORE_S)
                self._begin(play)
                await kubernetes.run(play)
                await load.until_whole()
            await pass_time(_BEFORE_S)
            self._begin("end")
            await load.stop()
            return await self._read_all(cluster, scene)
        finally:
            await load.close()

    def _begin(self, what: str) -> None:
        self._say(f"--- {what}")
        self._begins.append((self._clock.monotonic(), what))

    async def _read_all(self, cluster: BrokerCluster, scene: Scene) -> list[str]:
        """Returns: what is wrong."""
        contents, wrong = await read_finals(scene, timeout_s=patient(_RECOVERY_S))
        if wrong:
            return wrong
        endpoints = {name: broker.address for name, broker in cluster.brokers.items()}
        for replicas in {replication_of(scene, name) for name in contents}:
            alike = {n: c for n, c in contents.items() if replication_of(scene, n) == replicas}
            wrong += await check_replicas(scene, endpoints, alike, replication=replicas)
        self._say("each replica was read by itself; draining all")
        await cluster.drain(*cluster.names, timeout_s=_RECOVERY_S)
        return wrong + await check_store(scene.fragments, contents)

    def _judge(self, reasons: list[str], cause: str) -> RolloutResult:
        config, stalls = self._config, self._watchdog.stalls
        history = load_history(self._history_path)
        ends = [at for at, _ in self._begins[1:]]
        report, _ = check_but_allow(
            history,
            [
                (at, until, FaultKind.KILL if play in _KILLS else FaultKind.DRAIN)
                for (at, play), until in zip(self._begins, ends, strict=False)
            ],
            replication=config.workload.replication,
            lag_s_max=patient(config.stall_s_max) + starved_s(stalls, 0.0, math.inf),
        )
        if not history.finals:
            # The trouble says why; what became of appends is not known.
            history = History(seed=history.seed)
            report.anomalies = [a for a in report.anomalies if a.name != "unseen"]
        reasons = reasons + self._findings + self._unforeseen()
        if report.anomaly_count:
            reasons.append(f"the history shows {report.anomaly_count} anomalies: {report.shortest}")
        figures = figures_of(history, self._begins)
        for one in figures:
            if one.failed or one.lost_bytes:
                reasons.append(f"a play failed appends or lost bytes: {one}")
            if one.longest_stall_s > patient(config.stall_s_max):
                reasons.append(Late(f"{one.stalled} stalled for too long: {one}"))
            if not one.appends:
                reasons.append(Late(f"no client appended: {one}"))
        return RolloutResult(
            figures=figures,
            stops=self._stops,
            stalls=stalls,
            reasons=reasons,
            starved_by=cause,
            folder=self._folder if config.folder is not None or reasons else None,
        )

    def _unforeseen(self) -> list[str]:
        """Return unforeseen errors in the logs of brokers."""
        return [
            f"{log.parent.name} logged an unforeseen error: {error}"
            for log in sorted(self._folder.glob("*/broker.log"))
            for error in unforeseen(log.read_text(errors="replace"))
        ]
