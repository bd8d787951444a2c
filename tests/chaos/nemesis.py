"""Does to a cluster what a plan says, and undoes it."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, final

from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.testing.waiting import pass_time, patient
from tests.chaos.inflict import Inflictor
from tests.chaos.logs import lost_its_lease
from tests.chaos.plan import Fault, FaultKind
from tests.harness import Late

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence

    from gazette_platform.ops.clock import Clock
    from gazette_platform.testing.cluster import BrokerCluster
    from gazette_platform.testing.etcd import EtcdServer, EtcdTrio
    from tests.chaos.disks import SmallDisk
    from tests.chaos.idle import IdleJournals

__all__ = ["Nemesis"]

_REVIVE_TIMEOUT_S = 60.0
_POLL_S = 0.1
# Of these the targets may find that their lease is gone, and end; of etcd's, all brokers.
_TAKES_LEASES = (
    FaultKind.PAUSE,
    FaultKind.PARTITION,
    FaultKind.ETCD_AWAY,
    FaultKind.STALE_PRIMARY,
)
# These take what is on disk of R - 1 brokers. A replica that was made since holds only what came
# after it, so that what came before has to be stored first. Of all others the disks are left.
_TAKES_SPOOLS = frozenset(
    {
        FaultKind.LAST_REPLICA,
        FaultKind.SPOOL_LOST,
        FaultKind.SPOOL_FILE_LOST,
        FaultKind.SPOOL_TORN,
    }
)
# How long after its fault a broker may take to find that its lease is gone, persist, and end.
_EXCUSED_LEASES = 3.0
# And how long it may take until we look again, while others are started.
_EXCUSED_S = 30.0


@final
class Nemesis:
    """Executes faults: those of an episode at once, one episode after another.

    Args:
        disks: of the spools, by broker, and of the store, by ``""``.
        lease_s: of the brokers.
        replicas_of: returns the brokers that serve a journal, the primary first.
        stale_primary: inflicts that kind, until the broker that it is about has ended.
        idle: journals that only faults use.
        coordinator: draws a group or transactional id of Kafka's clients, and returns the broker that
            coordinates it; None: there are none.
        settle: waits until the cluster is whole; its argument says whether also until all is stored, and whose
            spools were lost since it was whole.
        problems: why kinds cannot be inflicted here, as far as that is known before.
        is_starved: whether the machine itself was so late lately that leases run out by it.
        say: called with each event, a line each.

    Attributes:
        begins: monotonic second and kind of each fault so far.
        spans: the same with the second at which each was undone; and parts of faults that are
            faults of their own.
        ended: what is known of each broker that ended by itself, and not as a fault took its lease,
            as it says itself.
        left_out: faults that could not be inflicted here, with the reason.
    """

    def __init__(
        self,
        cluster: BrokerCluster,
        etcd: EtcdServer | EtcdTrio,
        *,
        lease_s: float,
        clock: Clock,
        say: Callable[[str], None],
        replicas_of: Callable[[str], Awaitable[Sequence[str]]],
        stale_primary: Callable[[], Awaitable[None]],
        idle: IdleJournals,
        settle: Callable[[bool, Sequence[str]], Coroutine[None, None, None]],
        is_starved: Callable[[], bool] = lambda: False,
        coordinator: Callable[[random.Random], Awaitable[str]] | None = None,
        disks: dict[str, SmallDisk] | None = None,
        problems: Mapping[FaultKind, str] | None = None,
    ) -> None:
        self.begins: list[tuple[float, str]] = []
        self.ended: list[str] = []
        self.left_out: dict[FaultKind, str] = {}
        self._cluster = cluster
        self._etcd = etcd
        self._lease_s = lease_s
        self._clock = clock
        self._say = say
        self._settle = settle
        self._is_starved = is_starved
        # Of a process, not of who is started in its place.
        self._excused: dict[tuple[str, int], float] = {}
        self._noted: set[tuple[str, int]] = set()
        self._inflictor = Inflictor(
            cluster,
            etcd,
            lease_s=lease_s,
            clock=clock,
            disks={} if disks is None else disks,
            problems=problems or {},
            replicas_of=replicas_of,
            stale_primary=stale_primary,
            idle=idle,
            coordinator=coordinator,
            say=say,
        )
        self.spans = self._inflictor.spans

    async def run(self, plan: Sequence[Fault]) -> None:
        """Do what the plan says.

        Raises: SetupError: a broker or etcd does not come back, or the cluster not to itself.
        Cancellation: may leave a fault as it is; `mend` undoes it.
        """
        began = self._clock.monotonic()
        late_s = 0.0
        for _, group in itertools.groupby(plan, key=lambda fault: fault.episode):
            faults = tuple(group)
            wait_s = began + faults[0].at_s + late_s - self._clock.monotonic()
            # The calm between two episodes is kept when the first one took longer than planned.
            if wait_s < 0:
                late_s -= wait_s
            await self.watch_over(max(0.0, wait_s))
            await self._episode(faults)

    async def watch_over(self, seconds: float) -> None:
        """Wait, and start brokers that end meanwhile, as they do some time after a lost lease."""
        until = self._clock.monotonic() + seconds
        while (left_s := until - self._clock.monotonic()) > 0:
            await self._revive()
            await pass_time(min(left_s, _POLL_S))

    async def mend(self) -> None:
        """Make everything work, whatever was under way."""
        await self._inflictor.mend()
        self._note_ended()
        await self._cluster.revive(timeout_s=_REVIVE_TIMEOUT_S)

    async def _episode(self, faults: Sequence[Fault]) -> None:
        if any(fault.kind in _TAKES_SPOOLS and fault.targets for fault in faults):
            await self._settled(is_stored=True)
        try:
            async with asyncio.TaskGroup() as tasks:
                for fault in faults:
                    tasks.create_task(self._one(fault, fault.at_s - faults[0].at_s))
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from group
        if any(fault.kind in _TAKES_LEASES for fault in faults):
            await self._let_end(faults)
        await self._revive()
        await self._settled(is_stored=False)
        self._inflictor.spools_lost.clear()
        await self._revive()
        self._say("the cluster is whole again")

    async def _settled(self, *, is_stored: bool) -> None:
        """Wait until the cluster has settled; again with each broker that ends meanwhile."""
        tasks = TaskGroup("settle")
        try:
            while True:
                lost = sorted(self._inflictor.spools_lost)
                settling = tasks.spawn(self._settle(is_stored, lost), name="settle")
                while not settling.done() and not self._has_ended():
                    await asyncio.wait({settling}, timeout=_POLL_S)
                if settling.done():
                    await settling
                    return
                settling.cancel()
                await asyncio.wait({settling})
                await self._revive()
        finally:
            await tasks.close()

    def _has_ended(self) -> bool:
        return any(broker.has_ended for broker in self._cluster.brokers.values())

    async def _one(self, fault: Fault, after_s: float) -> None:
        await pass_time(after_s)
        left_out = self._inflictor.problem(fault)
        if left_out:
            self.left_out[fault.kind] = left_out
            self._say(f"left out: {fault}: {left_out}")
            return
        self._say(f"fault: {fault}")
        self.begins.append((self._clock.monotonic(), fault.kind.value))
        takes_lease = fault.kind in _TAKES_LEASES
        # Who has ended already is not ended by this fault, though it starts it again.
        self._note_ended()
        if takes_lease:
            self._excuse(fault)
        began = self._clock.monotonic()
        await self._inflictor.inflict(fault)
        ended = self._clock.monotonic()
        away_s = ended - began
        self.spans.append((began, ended, fault.kind.value))
        if takes_lease or (fault.kind is FaultKind.ETCD_RESTART and away_s > self._lease_s / 2):
            self._excuse(fault)
        self._say(f"undone: {fault.kind}")

    # ------------------------------------------------------------------ brokers that end

    def _excuse(self, fault: Fault) -> None:
        until = (
            self._clock.monotonic()
            + fault.duration_s
            + patient(_EXCUSED_S)
            + _EXCUSED_LEASES * self._lease_s
        )
        for name in fault.targets or self._cluster.names:
            self._excused[name, self._cluster.brokers[name].pid] = until

    async def _let_end(self, faults: Sequence[Fault]) -> None:
        """Wait for as long as a broker may take to find that its lease is gone, and to end."""
        until = self._clock.monotonic() + _EXCUSED_LEASES / 2 * self._lease_s
        names = {
            name
            for fault in faults
            if fault.kind in _TAKES_LEASES and fault.kind is not FaultKind.STALE_PRIMARY
            for name in fault.targets or self._cluster.names
        }
        while self._clock.monotonic() < until:
            if all(self._cluster.brokers[name].has_ended for name in names):
                return
            await pass_time(_POLL_S)

    async def _revive(self) -> None:
        self._note_ended()
        if self._has_ended():
            revived = await self._cluster.revive(timeout_s=_REVIVE_TIMEOUT_S)
            self._say(f"started: {' '.join(revived)}")

    def _note_ended(self) -> None:
        """Separate brokers that ended because they must from those that had no reason."""
        now = self._clock.monotonic()
        for name, broker in self._cluster.brokers.items():
            process = (name, broker.pid)
            if not broker.pid or not broker.has_ended or process in self._noted:
                continue
            self._noted.add(process)
            lost_lease = lost_its_lease(broker.log_of_run())
            if lost_lease and self._excused.get(process, 0.0) > now:
                self._say(f"{name} ended, as its lease was taken")
            elif lost_lease and self._is_starved():
                self._say(f"{name} ended while the machine was starved")
            else:
                text = f"{name} ended by itself; its log ends:\n{broker.log_tail()[-2000:]}"
                self._say(text)
                # A lease is a limit of time, too.
                self.ended.append(Late(text) if lost_lease else text)
