"""Does to a cluster what a plan says, and undoes it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, final

from gazette_platform.testing.chaos.plan import Fault, FaultKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gazette_platform.ops.clock import Clock
    from gazette_platform.testing.cluster import BrokerCluster
    from gazette_platform.testing.etcd import EtcdServer

__all__ = ["Nemesis"]

_REVIVE_TIMEOUT_S = 60.0
_POLL_S = 0.1


@final
class Nemesis:
    """Executes faults one after another.

    Args: lease_s: of the brokers. say: is told what happens, a line each.

    Attributes: begins: monotonic second and kind of each fault so far.
    """

    def __init__(
        self,
        cluster: BrokerCluster,
        etcd: EtcdServer,
        *,
        lease_s: float,
        clock: Clock,
        say: Callable[[str], None],
    ) -> None:
        self.begins: list[tuple[float, str]] = []
        self._cluster = cluster
        self._etcd = etcd
        self._lease_s = lease_s
        self._clock = clock
        self._say = say

    async def run(self, plan: Sequence[Fault]) -> None:
        """Do what the plan says. Raises: SetupError: a broker or etcd does not come back.

        Cancellation: may leave a fault as it is; `mend` undoes it.
        """
        began = self._clock.monotonic()
        late_s = 0.0
        for fault in plan:
            wait_s = began + fault.at_s + late_s - self._clock.monotonic()
            # The calm between two faults is kept when the first one took longer than planned.
            if wait_s < 0:
                late_s -= wait_s
            await self.watch_over(max(0.0, wait_s))
            self._say(f"fault: {fault}")
            self.begins.append((self._clock.monotonic(), fault.kind.value))
            await self._inflict(fault)
            revived = await self._cluster.revive(timeout_s=_REVIVE_TIMEOUT_S)
            self._say(f"mended: {fault.kind}" + "".join(f", {name} started" for name in revived))

    async def watch_over(self, seconds: float) -> None:
        """Wait, and start brokers that end meanwhile, as they do some time after a lost lease."""
        until = self._clock.monotonic() + seconds
        while (left_s := until - self._clock.monotonic()) > 0:
            if any(broker.has_ended for broker in self._cluster.brokers.values()):
                revived = await self._cluster.revive(timeout_s=_REVIVE_TIMEOUT_S)
                self._say(f"ended by itself, and started again: {' '.join(revived)}")
            await asyncio.sleep(min(left_s, _POLL_S))

    async def mend(self) -> None:
        """Make everything work, whatever was under way."""
        if not self._etcd.pid:
            await asyncio.to_thread(self._etcd.start)
        self._restore_store()
        for name, broker in self._cluster.brokers.items():
            if not broker.has_ended:
                self._cluster.resume(name)
        await self._cluster.heal()
        await self._cluster.revive(timeout_s=_REVIVE_TIMEOUT_S)

    async def _inflict(self, fault: Fault) -> None:
        cluster = self._cluster
        match fault.kind:
            case FaultKind.KILL:
                for name in fault.targets:
                    cluster.kill(name)
                await asyncio.sleep(fault.duration_s)
            case FaultKind.PAUSE:
                for name in fault.targets:
                    cluster.pause(name)
                await asyncio.sleep(fault.duration_s)
                for name in fault.targets:
                    cluster.resume(name)
                await self._settle(fault)
            case FaultKind.PARTITION:
                cluster.isolate(*fault.targets)
                await asyncio.sleep(fault.duration_s)
                await cluster.heal()
                await self._settle(fault)
            case FaultKind.ETCD_RESTART:
                self._etcd.kill()
                await asyncio.sleep(fault.duration_s)
                await asyncio.to_thread(self._etcd.start)
            case FaultKind.STORE_CUT:
                self._cut_store()
                await asyncio.sleep(fault.duration_s)
                self._restore_store()
            case FaultKind.DRAIN | FaultKind.DRAIN_ZONE:
                await cluster.drain(*fault.targets)

    async def _settle(self, fault: Fault) -> None:
        """Wait for as long as a broker may take to find that its lease is gone, and to end."""
        until = self._clock.monotonic() + self._lease_s
        while self._clock.monotonic() < until:
            if all(self._cluster.brokers[name].has_ended for name in fault.targets):
                return
            await asyncio.sleep(_POLL_S)

    def _cut_store(self) -> None:
        """Put a file in the place of the store's folder: then every call fails, also of root."""
        root = self._cluster.fragments
        root.rename(root.with_name("fragments.cut"))
        root.touch()

    def _restore_store(self) -> None:
        root = self._cluster.fragments
        kept = root.with_name("fragments.cut")
        if kept.exists():
            root.unlink(missing_ok=True)
            kept.rename(root)
