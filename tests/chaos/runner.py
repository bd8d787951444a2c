"""One chaos run from its first process to its verdict."""

from __future__ import annotations

import asyncio
import contextlib
import math
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, final

from gazette_platform.errors import GazetteError
from gazette_platform.ops.clock import Clock, SystemClock
from gazette_platform.testing.cluster import BrokerCluster, broker_names
from gazette_platform.testing.etcd import EtcdServer, EtcdTrio
from gazette_platform.testing.waiting import patient
from tests.chaos.allowed import check_but_allow
from tests.chaos.availability import Gap, gaps_of, longest_by_kind, unavailable_s_max
from tests.chaos.disks import SmallDisk, slow_disk_problem
from tests.chaos.finals import check_replicas, check_store, read_finals
from tests.chaos.idle import IdleJournals
from tests.chaos.logs import unforeseen
from tests.chaos.nemesis import Nemesis
from tests.chaos.plan import Fault, FaultKind, kinds_for, make_plan
from tests.chaos.scene import Scene, WorkloadConfig
from tests.chaos.stale_primary import StalePrimary
from tests.chaos.verdict import ChaosResult, Evidence, reasons
from tests.chaos.workload import Workload
from tests.checker.history import Recorder, load_history
from tests.harness import Stall, Watchdog, joined, reason_of, starved_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = ["ChaosConfig", "run_chaos", "starved_in"]

# Until all is mended, and each journal takes appends again.
_RECOVERY_S = 90.0
# The last appends of clients that retry.
_WRITERS_S = 40.0
# Of each broker's log.
_ERRORS_SHOWN = 5
_STORE_BYTES = 512 << 20
_SPOOL_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class ChaosConfig:
    """What a run does."""

    etcd_binary: Path
    etcd_members: int = 1
    """One or three."""
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

    broker_program: Sequence[str] = ()
    """What to run as `gazette`; empty: the one of this interpreter."""

    @property
    def kinds_chosen(self) -> Sequence[FaultKind]:
        """The faults to choose from."""
        return self.kinds or kinds_for(self.workload.replication, etcd_members=self.etcd_members)


async def run_chaos(
    config: ChaosConfig, *, say: Callable[[str], None], clock: Clock | None = None
) -> ChaosResult:
    """Run a cluster, its clients and its faults, and check what the clients saw.

    Args:
        say: called with each event, a line each.

    Raises: GazetteError: the cluster could not even be started, or a program is missing.
    Cancellation: stops every process; the folder stays.
    """
    problems = {}
    if FaultKind.SLOW_DISK in config.kinds_chosen and (why := await slow_disk_problem()):
        problems[FaultKind.SLOW_DISK] = why
    folder = config.folder or Path(tempfile.mkdtemp(prefix="gazette-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    result = await _Run(config, folder, say, clock or SystemClock(), problems).run()
    if config.folder is None and result.is_ok:
        shutil.rmtree(folder)
        return result
    (folder / "explanation.txt").write_text(_explanation(result))
    return result


@final
class _Run:
    def __init__(
        self,
        config: ChaosConfig,
        folder: Path,
        say: Callable[[str], None],
        clock: Clock,
        problems: Mapping[FaultKind, str],
    ) -> None:
        self._config = config
        self._folder = folder
        self._say_to = say
        self._clock = clock
        self._history_path = folder / "history.jsonl"
        self._began = clock.monotonic()
        self._watchdog = Watchdog(clock)
        self._recorder: Recorder | None = None
        self._scene: Scene | None = None
        self._nemesis: Nemesis | None = None
        self._plan: tuple[Fault, ...] = ()
        self._problems = problems

    def _say(self, text: str) -> None:
        self._say_to(f"[{self._clock.monotonic() - self._began:6.1f}] {text}")
        if self._recorder is not None:
            self._recorder.note(text)

    async def run(self) -> ChaosResult:
        config = self._config
        kind = EtcdTrio if config.etcd_members > 1 else EtcdServer
        etcd = kind(config.etcd_binary)
        await asyncio.to_thread(etcd.start)
        trouble = cause = ""
        try:
            with (
                self._disks() as disks,
                Recorder(self._history_path, self._clock, seed=config.seed) as recorder,
            ):
                cluster = BrokerCluster(
                    self._folder,
                    etcd=etcd.endpoint,
                    prefix="/gazette/chaos",
                    zones=config.zones,
                    lease_s=config.lease_s,
                    is_proxied=True,
                    fragments=disks[""].folder / "fragments",
                    program=config.broker_program,
                    flags=(
                        # Drains of the last broker that can hold a journal must end, and break
                        # off appends that take longer than that by far.
                        "--broker.drain-timeout=10s",
                        f"--broker.min-append-rate={config.workload.min_append_rate}",
                    ),
                )
                async with self._watchdog, cluster:
                    self._say(f"{len(cluster.names)} brokers run; logs are in {self._folder}")
                    self._recorder = recorder
                    try:
                        trouble = await self._play(cluster, etcd, disks, recorder)
                    except GazetteError as err:
                        trouble = reason_of(err)
                        cause = self._watchdog.machine.cause(waited=getattr(err, "waited", 0.0))
                    self._recorder = None
                    cause = cause or self._watchdog.machine.cause()
        finally:
            await asyncio.to_thread(etcd.stop)
        return await self._judge(trouble, cause)

    @contextlib.contextmanager
    def _disks(self) -> Iterator[dict[str, SmallDisk]]:
        """Disks of the store (``""``) and of each broker's spools."""
        names = broker_names(self._config.zones)
        with contextlib.ExitStack() as stack:
            yield {
                name: stack.enter_context(SmallDisk(folder, size_bytes=size))
                for name, folder, size in [
                    ("", self._folder / "store", _STORE_BYTES),
                    *[(name, self._folder / name / "spool", _SPOOL_BYTES) for name in names],
                ]
            }

    async def _play(
        self,
        cluster: BrokerCluster,
        etcd: EtcdServer | EtcdTrio,
        disks: dict[str, SmallDisk],
        recorder: Recorder,
    ) -> str:
        """Returns: what is wrong with the cluster at the end, if anything."""
        config = self._config
        scene = self._scene = Scene(
            config=config.workload,
            address=cluster.address,
            http_addresses=lambda: [broker.http_address for broker in cluster.brokers.values()],
            fragments=cluster.fragments,
            lease_s=config.lease_s,
            recorder=recorder,
            clock=self._clock,
        )
        workload = Workload(scene)
        nemesis = self._nemesis = Nemesis(
            cluster,
            etcd,
            lease_s=config.lease_s,
            clock=self._clock,
            say=self._say,
            replicas_of=workload.replicas_of,
            stale_primary=StalePrimary(scene, cluster).inflict,
            idle=IdleJournals(scene),
            settle=lambda is_stored, lost: workload.settle(
                patient(_RECOVERY_S),
                is_stored=is_stored,
                # Of some journal no broker is left that knows where it ends: that is a loss, which
                # the history shows, and it takes an operator to go on. After all others no one is
                # needed, and journals that wait for one are a fault.
                may_reset=len(lost) >= config.workload.replication,
            ),
            is_starved=self._is_starved,
            disks=disks,
            problems=self._problems,
        )
        await workload.create_journals()
        self._say(f"{len(config.workload.all_names)} journals take appends; clients start")
        self._plan = make_plan(
            config.seed,
            duration_s=config.duration_s,
            zones={name: cluster.zone_of(name) for name in cluster.names},
            lease_s=config.lease_s,
            replication=config.workload.replication,
            journals=config.workload.journal_names,
            kinds=config.kinds_chosen,
        )
        began = self._clock.monotonic()
        workload.start(config.seed)
        try:
            await nemesis.run(self._plan)
            await nemesis.watch_over(began + config.duration_s - self._clock.monotonic())
            if config.workload.has_time_for_streams(config.duration_s):
                await workload.wait_for_stream()
            await workload.stop(timeout_s=patient(6 * config.lease_s + _WRITERS_S))
            await nemesis.mend()
            return joined(await self._read_all(cluster, scene))
        finally:
            await workload.close()

    async def _read_all(self, cluster: BrokerCluster, scene: Scene) -> list[str]:
        """Returns: what is wrong."""
        self._say("clients have stopped, and all is mended; reading what the journals hold")
        contents, wrong = await read_finals(scene, timeout_s=patient(_RECOVERY_S))
        if wrong:
            return wrong
        endpoints = {name: broker.address for name, broker in cluster.brokers.items()}
        wrong = await check_replicas(
            scene, endpoints, contents, replication=self._config.workload.replication
        )
        self._say("each replica was read by itself; draining all")
        await cluster.drain(*cluster.names)
        return wrong + await check_store(scene.fragments, contents)

    def _is_starved(self) -> bool:
        """Whether the machine did not run for a good part of the last two leases."""
        lease_s = self._config.lease_s
        now = self._clock.monotonic()
        return starved_s(self._watchdog.stalls, now - 2 * lease_s, now) > lease_s / 4

    def _unforeseen(self) -> list[str]:
        """Return unforeseen errors in the logs of brokers."""
        found = []
        for name in broker_names(self._config.zones):
            log = self._folder / name / "broker.log"
            if log.exists():
                errors = unforeseen(log.read_text(errors="replace"))
                shown = errors[:_ERRORS_SHOWN]
                found += [f"{name} logged an unforeseen error: {error}" for error in shown]
                if len(errors) > len(shown):
                    found.append(f"{name} logged {len(errors) - len(shown)} more of these")
        return found

    async def _judge(self, trouble: str, cause: str) -> ChaosResult:
        config = self._config
        nemesis, scene = self._nemesis, self._scene
        history = load_history(self._history_path)
        spans = nemesis.spans if nemesis is not None else []
        suspensions = scene.suspensions if scene is not None else []
        stalls = self._watchdog.stalls
        report, allowed = await asyncio.to_thread(
            check_but_allow,
            history,
            spans,
            suspensions,
            replication=config.workload.replication,
            lag_s_max=patient(unavailable_s_max(config.lease_s)) + starved_s(stalls, 0.0, math.inf),
        )
        if trouble:
            # That is the trouble itself, not what it did to anybody.
            report.anomalies = [a for a in report.anomalies if a.name != "unseen"]
        begins = nemesis.begins if nemesis is not None else []
        # In others appends wait for one another, or come seldom.
        history.appends = [
            op for op in history.appends if op.journal in config.workload.journal_names
        ]
        longest = longest_by_kind(gaps_of(history), begins)
        evidence = Evidence(
            duration_s=config.duration_s,
            lease_s=config.lease_s,
            workload=config.workload,
            planned=[fault.kind for fault in self._plan],
            inflicted=[FaultKind(kind) for _, kind in begins],
            left_out=nemesis.left_out if nemesis is not None else {},
            ended=nemesis.ended if nemesis is not None else (),
            findings=scene.findings if scene is not None else (),
            unforeseen=await asyncio.to_thread(self._unforeseen),
            took_part=scene.took_part if scene is not None else {},
            trouble=trouble,
        )
        why = reasons(evidence, report, longest, self._watchdog.stalls)
        return ChaosResult(
            seed=config.seed,
            faults=len(begins),
            report=report,
            longest=longest,
            stalls=self._watchdog.stalls,
            folder=self._folder if config.folder is not None or why else None,
            reasons=why,
            took_part=evidence.took_part,
            inflicted=Counter(evidence.inflicted),
            left_out=evidence.left_out,
            allowed=allowed,
            starved_by=cause,
        )


def starved_in(gap: Gap, stalls: Sequence[Stall]) -> float:
    """Seconds of a gap for which the machine, not a fault, is to blame."""
    return starved_s(stalls, gap.begin, gap.end)


def _explanation(result: ChaosResult) -> str:
    lines = [result.summary]
    lines += [f"not ok: {reason}" for reason in result.reasons]
    shortest = result.report.shortest
    if shortest is not None:
        lines += ["", "the shortest explanation:", str(shortest)]
    lines += ["", "all that was found:", str(result.report), ""]
    return "\n".join(lines)
