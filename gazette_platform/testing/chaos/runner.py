"""One chaos run from its first process to its verdict."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, final

from gazette_platform.errors import GazetteError
from gazette_platform.ops.clock import Clock, SystemClock
from gazette_platform.testing.chaos.availability import Gap, gaps_of, longest_by_kind
from gazette_platform.testing.chaos.nemesis import Nemesis
from gazette_platform.testing.chaos.plan import (
    ALL_KINDS,
    KINDS_WITHOUT_REPLICAS,
    FaultKind,
    make_plan,
)
from gazette_platform.testing.chaos.watchdog import Stall, Watchdog, starved_s
from gazette_platform.testing.chaos.workload import Workload, WorkloadConfig
from gazette_platform.testing.checker import Report, check_history
from gazette_platform.testing.cluster import BrokerCluster
from gazette_platform.testing.etcd import EtcdServer
from gazette_platform.testing.history import Recorder, load_history

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["ChaosConfig", "ChaosResult", "run_chaos"]

# Until all is mended, and each journal takes appends again.
_RECOVERY_S = 90.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ChaosConfig:
    """What a run does."""

    etcd_binary: Path
    seed: int = 7
    duration_s: float = 600.0
    """Seconds of faults; start, mending and the check come on top."""
    zones: Sequence[str] = ("a", "a", "b", "b", "c")
    """The zone of each broker."""
    lease_s: float = 6.0
    kinds: Sequence[FaultKind] = ()
    """Faults to choose from; none: all that the journals' replication survives."""
    workload: WorkloadConfig = field(default_factory=WorkloadConfig)
    folder: Path | None = None
    """Where to keep everything; None: a temporary folder, removed if all is well."""

    @property
    def kinds_chosen(self) -> Sequence[FaultKind]:
        """The faults to choose from."""
        if self.kinds:
            return self.kinds
        return ALL_KINDS if self.workload.replication > 1 else KINDS_WITHOUT_REPLICAS


@dataclass(frozen=True, kw_only=True, slots=True)
class ChaosResult:
    """How a run went."""

    seed: int
    faults: int
    report: Report
    longest: dict[str, Gap]
    """The longest unavailability by kind of fault."""
    stalls: Sequence[Stall]
    folder: Path | None
    """Where history, explanation and logs are; None if they were removed."""
    trouble: str = ""
    """Why the run did not come to its end, or the cluster not back to life; empty if all is well."""

    @property
    def is_ok(self) -> bool:
        """Whether it came to its end, did something, and showed no anomaly."""
        return not self.trouble and self.report.is_valid and self.report.appends_ok > 0

    @property
    def longest_unavailable_s(self) -> float:
        """Seconds, over all kinds of faults."""
        return max((gap.length_s for gap in self.longest.values()), default=0.0)

    @property
    def summary(self) -> str:
        """The last line of the run."""
        return (
            f"chaos: {'ok' if self.is_ok else 'FAILED'} seed={self.seed} "
            f"ops={self.report.operations} faults={self.faults} "
            f"anomalies={self.report.anomaly_count} "
            f"longest_unavailable_s={self.longest_unavailable_s:.1f}"
        )


async def run_chaos(
    config: ChaosConfig, *, say: Callable[[str], None], clock: Clock | None = None
) -> ChaosResult:
    """Run a cluster, its clients and its faults, and check what the clients saw.

    Args: say: is told what happens, a line each.
    Raises: GazetteError: the cluster could not even be started.
    Cancellation: stops every process; the folder stays.
    """
    folder = config.folder or Path(tempfile.mkdtemp(prefix="gazette-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    result = await _Run(config, folder, say, clock or SystemClock()).run()
    if config.folder is None and result.is_ok:
        shutil.rmtree(folder)
        return result
    (folder / "explanation.txt").write_text(_explanation(result))
    return result


@final
class _Run:
    def __init__(
        self, config: ChaosConfig, folder: Path, say: Callable[[str], None], clock: Clock
    ) -> None:
        self._config = config
        self._folder = folder
        self._say_to = say
        self._clock = clock
        self._history_path = folder / "history.jsonl"
        self._began = clock.monotonic()
        self._recorder: Recorder | None = None

    def _say(self, text: str) -> None:
        self._say_to(f"[{self._clock.monotonic() - self._began:6.1f}] {text}")
        if self._recorder is not None:
            self._recorder.note(text)

    async def run(self) -> ChaosResult:
        config = self._config
        etcd = EtcdServer(config.etcd_binary)
        await asyncio.to_thread(etcd.start)
        trouble = ""
        nemesis: Nemesis | None = None
        watchdog = Watchdog(self._clock)
        try:
            cluster = BrokerCluster(
                self._folder,
                etcd=etcd.endpoint,
                prefix="/gazette/chaos",
                zones=config.zones,
                lease_s=config.lease_s,
                is_proxied=True,
                # Drains of the last broker that can hold a journal must end.
                flags=("--broker.drain-timeout=30s",),
            )
            async with watchdog, cluster:
                self._say(f"{len(cluster.names)} brokers run; logs are in {self._folder}")
                nemesis = Nemesis(
                    cluster, etcd, lease_s=config.lease_s, clock=self._clock, say=self._say
                )
                with Recorder(self._history_path, self._clock, seed=config.seed) as recorder:
                    self._recorder = recorder
                    try:
                        trouble = await self._play(cluster, nemesis, recorder)
                    except GazetteError as err:
                        trouble = str(err)
                    self._recorder = None
        finally:
            await asyncio.to_thread(etcd.stop)
        return await self._judge(nemesis, watchdog, trouble)

    async def _play(self, cluster: BrokerCluster, nemesis: Nemesis, recorder: Recorder) -> str:
        """Returns: what is wrong with the cluster at the end, if anything."""
        config = self._config
        workload = Workload(
            config.workload,
            address=cluster.address,
            lease_s=config.lease_s,
            recorder=recorder,
            clock=self._clock,
        )
        await workload.create_journals()
        self._say(f"{config.workload.journals} journals take appends; clients start")
        plan = make_plan(
            config.seed,
            duration_s=config.duration_s,
            zones={name: cluster.zone_of(name) for name in cluster.names},
            lease_s=config.lease_s,
            kinds=config.kinds_chosen,
        )
        began = self._clock.monotonic()
        workload.start(config.seed)
        try:
            await nemesis.run(plan)
            await nemesis.watch_over(began + config.duration_s - self._clock.monotonic())
            await workload.stop(timeout_s=6 * config.lease_s)
            await nemesis.mend()
            self._say("clients have stopped, and all is mended; reading what the journals hold")
            return "; ".join(await workload.read_finals(timeout_s=_RECOVERY_S))
        finally:
            await workload.close()

    async def _judge(
        self, nemesis: Nemesis | None, watchdog: Watchdog, trouble: str
    ) -> ChaosResult:
        config = self._config
        history = load_history(self._history_path)
        report = await asyncio.to_thread(check_history, history)
        if trouble:
            # That is the trouble itself, not what it did to anybody.
            report.anomalies = [a for a in report.anomalies if a.name != "unseen"]
        begins = nemesis.begins if nemesis is not None else []
        is_kept = config.folder is not None or trouble or not report.is_valid
        return ChaosResult(
            seed=config.seed,
            faults=len(begins),
            report=report,
            longest=longest_by_kind(gaps_of(history), begins),
            stalls=watchdog.stalls,
            folder=self._folder if is_kept or not report.appends_ok else None,
            trouble=trouble,
        )


def starved_in(gap: Gap, stalls: Sequence[Stall]) -> float:
    """Seconds of a gap for which the machine, not a fault, is to blame."""
    return starved_s(stalls, gap.begin, gap.end)


def _explanation(result: ChaosResult) -> str:
    lines = [result.summary]
    if result.trouble:
        lines.append(f"trouble: {result.trouble}")
    shortest = result.report.shortest
    if shortest is not None:
        lines += ["", "the shortest explanation:", str(shortest)]
    lines += ["", "all that was found:", str(result.report), ""]
    return "\n".join(lines)
