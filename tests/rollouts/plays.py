"""What Kubernetes does to a StatefulSet of brokers: order, signals and grace."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, final

from gazette_platform.testing.waiting import pass_time, patient

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gazette_platform.ops.clock import Clock
    from gazette_platform.testing.cluster import BrokerCluster
    from gazette_platform.testing.etcd import EtcdTrio

__all__ = ["Kubernetes", "Play", "Stop"]

# A pod that starts: its image is present, its container is made, its volume is attached.
_SCHEDULING_S = 1.0
_READY_S = 90.0


class Play(StrEnum):
    """What is done to the brokers."""

    ROLLING_UPDATE = "rolling-update"
    """One after another, the last first; each comes back with its volume and is awaited."""
    SHORT_GRACE = "short-grace"
    """The same with a grace that ends before brokers have drained: each gets SIGKILL."""
    NODE_DRAIN = "node-drain"
    """All brokers of a zone, as far as a budget of one allows; each moves with its volume."""
    NODE_DRAIN_EMPTY = "node-drain-emptydir"
    """The same, but the volume stays behind: an ``emptyDir``."""
    ZONE_LOSS = "zone-loss"
    """SIGKILL to all brokers, and to the member of etcd, of a zone; later they are back."""


@dataclass(frozen=True, slots=True)
class Stop:
    """How one broker was stopped."""

    broker: str
    took_s: float
    has_drained: bool
    """Else it got SIGKILL at the end of its grace."""


@final
class Kubernetes:
    """Plays on a cluster, one at a time.

    Args:
        grace_s: seconds between SIGTERM and SIGKILL: ``terminationGracePeriodSeconds``.
        short_grace_s: the same of `Play.SHORT_GRACE`.
        outage_s: seconds that a zone is away.
        min_ready_s: seconds between ready and the next pod: ``minReadySeconds``.
        say: called with each event, a line each.

    Attributes:
        stops: of brokers, by play.
    """

    def __init__(
        self,
        cluster: BrokerCluster,
        etcd: EtcdTrio,
        *,
        grace_s: float,
        short_grace_s: float,
        outage_s: float,
        min_ready_s: float,
        clock: Clock,
        say: Callable[[str], None],
    ) -> None:
        self.stops: dict[Play, list[Stop]] = {}
        self._cluster, self._etcd = cluster, etcd
        self._grace_s, self._short_grace_s, self._outage_s = grace_s, short_grace_s, outage_s
        self._min_ready_s = min_ready_s
        self._clock, self._say = clock, say

    async def run(self, play: Play) -> None:
        """Play it, until all brokers are ready. Raises: SetupError: one is not, in time."""
        self.stops[play] = []
        zone = self._cluster.zone_of(self._cluster.names[0])
        match play:
            case Play.ROLLING_UPDATE:
                await self._update(play, grace_s=patient(self._grace_s))
            case Play.SHORT_GRACE:
                await self._update(play, grace_s=self._short_grace_s)
            case Play.NODE_DRAIN | Play.NODE_DRAIN_EMPTY:
                await self._drain_node(play, self._of_zone(zone))
            case Play.ZONE_LOSS:
                await self._lose_zone(self._of_zone(zone))

    def _of_zone(self, zone: str) -> list[str]:
        return [name for name in self._cluster.names if self._cluster.zone_of(name) == zone]

    async def _update(self, play: Play, *, grace_s: float) -> None:
        for name in reversed(self._cluster.names):
            await self._stop(play, name, grace_s)
            await self._start(name)

    async def _drain_node(self, play: Play, names: Sequence[str]) -> None:
        for name in names:  # the budget refuses to evict the next one until this one is ready
            await self._stop(play, name, patient(self._grace_s))
            self._cluster.brokers[name].move(is_empty=play is Play.NODE_DRAIN_EMPTY)
            await self._start(name)

    async def _lose_zone(self, names: Sequence[str]) -> None:
        member = self._etcd.members[0]
        self._say(f"SIGKILL to {' '.join(names)} and a member of etcd")
        self._cluster.kill(*names)
        await asyncio.to_thread(member.kill)
        await pass_time(self._outage_s)
        self._say("the zone is back")
        await asyncio.to_thread(member.start)
        await self._cluster.start_again(names, timeout_s=_READY_S)

    async def _stop(self, play: Play, name: str, grace_s: float) -> None:
        self._say(f"SIGTERM to {name}")
        began = self._clock.monotonic()
        has_drained = await self._cluster.stop(name, grace_s=grace_s)
        took_s = self._clock.monotonic() - began
        self.stops[play].append(Stop(name, took_s, has_drained))
        what = "has drained" if has_drained else "got SIGKILL"
        self._say(f"{name} {what} after {took_s:.1f} s")

    async def _start(self, name: str) -> None:
        await pass_time(_SCHEDULING_S)
        await self._cluster.start(name, timeout_s=_READY_S)
        self._say(f"{name} is ready")
        await pass_time(self._min_ready_s)
