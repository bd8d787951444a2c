"""What will go wrong, and when: all of it follows from the seed.

A plan is a sequence of *episodes*. The faults of one episode overlap, or hit a cluster that has not
recovered from the one before; between episodes everything is mended. Processes may all be taken at
once, as their spools outlive them. What else an episode may cost is bounded: it takes what is on
disk of no more than R - 1 brokers.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["ALL_KINDS", "KINDS_WITHOUT_REPLICAS", "Fault", "FaultKind", "kinds_for", "make_plan"]


class FaultKind(StrEnum):
    """What goes wrong."""

    KILL = "kill"
    """SIGKILL of as many brokers as replicas may fail, one at least, or of a zone; they are started
    again."""
    KILL_ALL = "kill-all"
    """SIGKILL of all brokers at the same instant; they are started again in any order, with pauses."""
    SPOOL_LOST = "spool-lost"
    """The same, and of as many as replicas may fail, what was in their spool directory is gone."""
    SPOOL_TORN = "spool-torn"
    """The same, and after what spools record there is garbage; of as many as replicas may fail,
    what they record is torn, too."""
    SPOOL_FILE_LOST = "spool-file-lost"
    """The same, and of spools of as many as replicas may fail single files are gone."""
    SPOOL_COPIED = "spool-copied"
    """A copy is made of the spools of each broker, beside them; appends go on; then as `kill-all`."""
    SPOOL_STRAYED = "spool-strayed"
    """The same, and each copy comes to another broker."""
    PAUSE = "pause"
    """SIGSTOP of as many past their lease, then SIGCONT; started again if they end."""
    PARTITION = "partition"
    """As many reach neither etcd nor anybody else, shorter or longer than their lease."""
    LAST_REPLICA = "last-replica"
    """A replica of a journal gets nothing for a while, and then all others of it are killed; one time
    in two their spools are gone, too."""
    STALE_PRIMARY = "stale-primary"
    """SIGSTOP past its lease of the primary of a journal of one replica, which others take over;
    appends wait for it when it wakes up."""
    HICCUP = "hiccup"
    """SIGSTOP of a broker, shorter than its lease."""
    SLOW_BROKER = "slow-broker"
    """A broker gets a third of its time only, as one does whose machine is slow."""
    SLOW_DISK = "slow-disk"
    """Each call of a broker to its files takes 20 to 200 ms more."""
    RESET = "reset"
    """Connections to brokers, of peers and clients, are reset at 10 a second."""
    ONE_WAY = "one-way"
    """What is sent to a broker arrives, and its answers do not, or the reverse; no RST."""
    SLOW_NETWORK = "slow-network"
    """What goes to and from brokers is late, and little of it arrives in a second."""
    ETCD_RESTART = "etcd-restart"
    """SIGKILL of etcd, started again within the lease."""
    ETCD_AWAY = "etcd-away"
    """SIGKILL of etcd, started again after all leases have run out."""
    ETCD_LEADER = "etcd-leader"
    """SIGKILL of the leader of an etcd of three members: another is elected within the lease."""
    STORE_CUT = "store-cut"
    """The fragment store fails every call."""
    STORE_FULL = "store-full"
    """The disk of the fragment store has no room."""
    SPOOL_FULL = "spool-full"
    """The disk of a broker's spools, and of its temporary files, has no room."""
    DRAIN = "drain"
    """SIGTERM of a broker, which is started again once it has left."""
    DRAIN_ZONE = "drain-zone"
    """The same of all brokers of a zone at once."""
    RESTART_ALL = "restart-all"
    """SIGTERM of all brokers at once; they are started when all have left."""
    RESTART_KILLED = "restart-killed"
    """The same, and then SIGKILL of all before journals that no other client uses took an append; these
    are asked for by a wrong register."""
    OLD_LISTING = "old-listing"
    """The same, but these journals take an append after the restart, and then the specs that were listed
    before it are applied."""

    AGED_HOLDERS = "aged-holders"
    """While the disk of the store is full, SIGKILL of the holders of a journal, one after another; others
    go on with it for more than ten epochs before those are started again."""

    KILL_COORDINATOR = "kill-coordinator"
    """SIGKILL of the broker that coordinates a group or a transactional id; for `tests.kafka_chaos`."""


ALL_KINDS = tuple(kind for kind in FaultKind if kind is not FaultKind.KILL_COORDINATOR)
_KILL_ALL = (
    FaultKind.KILL_ALL,
    FaultKind.SPOOL_LOST,
    FaultKind.SPOOL_TORN,
    FaultKind.SPOOL_FILE_LOST,
    FaultKind.SPOOL_COPIED,
    FaultKind.SPOOL_STRAYED,
)
_TAKE_PROCESSES = (
    *_KILL_ALL,
    FaultKind.KILL,
    FaultKind.KILL_COORDINATOR,
    FaultKind.PAUSE,
    FaultKind.PARTITION,
    FaultKind.LAST_REPLICA,
    FaultKind.STALE_PRIMARY,
)
KINDS_WITHOUT_REPLICAS = tuple(
    kind
    for kind in ALL_KINDS
    if kind not in (FaultKind.SPOOL_LOST, FaultKind.SPOOL_FILE_LOST, FaultKind.LAST_REPLICA)
)
"""What a journal with one replica survives without loss: whatever leaves its spool on disk."""

_TAKEN_BY_OTHERS = (FaultKind.DRAIN, FaultKind.SPOOL_FULL)

# Each takes the cluster to its limit, or nothing but itself, and begins when all is well.
_ALONE = (
    FaultKind.ETCD_AWAY,
    FaultKind.RESTART_ALL,
    FaultKind.RESTART_KILLED,
    FaultKind.OLD_LISTING,
    FaultKind.AGED_HOLDERS,
    FaultKind.STALE_PRIMARY,
)
_STORE = (FaultKind.STORE_CUT, FaultKind.STORE_FULL)
# Of these no two are in one episode: the first undone would undo the other.
_EXCLUSIVE = (
    _TAKE_PROCESSES,
    # Together they last longer than what is left of a lease before it is renewed.
    (
        *(FaultKind.ETCD_RESTART, FaultKind.ETCD_LEADER),
        *(FaultKind.HICCUP, FaultKind.SLOW_BROKER, FaultKind.SLOW_DISK),
    ),
    _STORE,
    (FaultKind.RESET, FaultKind.ONE_WAY, FaultKind.SLOW_NETWORK, FaultKind.LAST_REPLICA),
    # A partition is a fault of the network too.
    (FaultKind.PARTITION, FaultKind.ONE_WAY, FaultKind.SLOW_NETWORK),
    # Brokers that leave need others that take their journals.
    (*_TAKE_PROCESSES, FaultKind.DRAIN_ZONE),
    (FaultKind.DRAIN, FaultKind.DRAIN_ZONE, FaultKind.KILL_COORDINATOR),
    # These take brokers that others of the episode may have taken: one that leaves by itself, or
    # cannot be started as its disk is full.
    *((kind, other) for kind in (*_KILL_ALL, FaultKind.LAST_REPLICA) for other in _TAKEN_BY_OTHERS),
)

# Seconds that the cluster may take between the end of one episode and the begin of the next.
_CALM_S = (3.0, 7.0)
_WARM_UP_S = 3.0
_EPISODE_FAULTS = (1, 2, 2, 3)
# Of a run that is short for all kinds, which then last shorter too, by so much at most.
_EPISODE_FAULTS_MAX = 5
_SHORT_S = 1.5


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong."""

    at_s: float
    """Seconds after the begin of the run; later if the episode before takes long to mend."""
    kind: FaultKind
    targets: tuple[str, ...]
    """Brokers; the journal of a last replica; none for etcd, the store and the whole cluster. Of
    spools that are lost or torn, whole or in part: whose."""
    duration_s: float
    """Until it is undone; 0 of drains, which take as long as they take."""
    episode: int = 0
    """Faults of one episode overlap; those of the next begin when all is mended."""

    @override
    def __str__(self) -> str:
        whom = " ".join(self.targets)
        lasts = f" for {self.duration_s:.1f} s" if self.duration_s else ""
        return f"{self.at_s:7.1f} s  {self.kind}{f' {whom}' if whom else ''}{lasts}"


def kinds_for(replication: int, *, etcd_members: int = 3) -> tuple[FaultKind, ...]:
    """The faults that journals of so many replicas survive without loss, on such an etcd."""
    kinds = ALL_KINDS if replication > 1 else KINDS_WITHOUT_REPLICAS
    return tuple(kind for kind in kinds if kind is not FaultKind.ETCD_LEADER or etcd_members > 1)


def make_plan(
    seed: int,
    *,
    duration_s: float,
    zones: Mapping[str, str],
    lease_s: float,
    replication: int,
    journals: Sequence[str],
    kinds: Sequence[FaultKind] = ALL_KINDS,
) -> tuple[Fault, ...]:
    """The faults of a run: each kind once at least, and about as often as the others.

    A run that is too short for all kinds one after another has more of them at once, and takes as
    long as they take.

    Args:
        duration_s: of the run; the last fault begins early enough to be mended within it, unless
            its kind would be left out.
        zones: of each broker by name.
        replication: of the workload.
        journals: of the workload.

    Returns: by episode, and by time in each; the same for the same arguments, on every machine.
    """
    rng = random.Random(f"chaos/{seed}")
    # So short that all kinds would not fit, one or two at a time.
    is_short = duration_s < len(kinds) * 2 * lease_s
    planner = _Planner(rng, zones, lease_s, replication, journals, is_short=is_short)
    faults: list[Fault] = []
    left = set(kinds)
    waiting: list[FaultKind] = []
    at, episode = _WARM_UP_S, 0
    while kinds:
        count = _EPISODE_FAULTS_MAX if is_short else rng.choice(_EPISODE_FAULTS)
        if len(waiting) < (1 if is_short else count):
            waiting += rng.sample(kinds, len(kinds))
        chosen = _choose(waiting, count)
        found = planner.episode(chosen, at, episode)
        # What follows an end takes about a lease more: members expire, brokers start.
        mended_at = max(f.at_s + (f.duration_s or lease_s) for f in found) + lease_s
        if mended_at > duration_s and not left:
            break
        left -= set(chosen)
        faults += found
        at = mended_at + (rng.uniform(0.5, 1.0) if is_short else rng.uniform(*_CALM_S))
        episode += 1
    return tuple(faults)


def _choose(waiting: list[FaultKind], count: int) -> list[FaultKind]:
    """Up to `count` kinds that go together, first come first served; takes them out of `waiting`."""
    chosen: list[FaultKind] = []
    for kind in tuple(waiting):
        if len(chosen) < count and _goes_with(kind, chosen):
            chosen.append(kind)
            waiting.remove(kind)
    return chosen


def _goes_with(kind: FaultKind, others: Sequence[FaultKind]) -> bool:
    if not others:
        return True
    if kind in others or kind in _ALONE or others[0] in _ALONE:
        return False
    return not any(kind in group and other in group for group in _EXCLUSIVE for other in others)


class _Planner:
    """Chooses targets and times."""

    def __init__(
        self,
        rng: random.Random,
        zones: Mapping[str, str],
        lease_s: float,
        replication: int,
        journals: Sequence[str],
        *,
        is_short: bool,
    ) -> None:
        self._is_short = is_short
        self._rng = rng
        self._names = sorted(zones)
        self._zones = {
            zone: tuple(name for name in self._names if zones[name] == zone)
            for zone in sorted(set(zones.values()))
        }
        self._lease_s = lease_s
        self._replication = replication
        self._journals = journals

    def episode(self, kinds: Sequence[FaultKind], at: float, number: int) -> list[Fault]:
        """Faults that overlap, or follow before the cluster has recovered from the one before."""
        faults: list[Fault] = []
        free = list(self._names)
        # Who is killed first has no disk that could be slow.
        for kind in sorted(kinds, key=lambda kind: kind in _KILL_ALL):
            fault = self._fault(kind, free)
            free = [name for name in free if name not in fault.targets]
            if faults:
                # Within the one before, or within a lease of its end.
                reach_s = faults[-1].duration_s + self._lease_s / 3
                if self._is_short:
                    reach_s = min(reach_s, _SHORT_S)
                at += self._rng.uniform(0.2, 1.0) * reach_s
            faults.append(replace(fault, at_s=round(at, 1), episode=number))
        return faults

    def _fault(self, kind: FaultKind, free: Sequence[str]) -> Fault:
        return Fault(0.0, kind, self._targets(kind, free), round(self._duration_s(kind), 1))

    def _targets(self, kind: FaultKind, free: Sequence[str]) -> tuple[str, ...]:
        rng = self._rng
        # Some stay out of it, even if others of the episode took more than their share.
        candidates = list(free) or self._names
        match kind:
            case FaultKind.KILL | FaultKind.PAUSE | FaultKind.PARTITION:
                zone = self._zones[rng.choice(sorted(self._zones))]
                if rng.random() < 0.3 and set(zone) <= set(candidates) != set(zone):
                    return zone
                most = max(1, min(self._replication - 1, len(candidates) - 1))
                return tuple(sorted(rng.sample(candidates, rng.randint(1, most))))
            case FaultKind.SPOOL_LOST | FaultKind.SPOOL_FILE_LOST | FaultKind.SPOOL_TORN:
                # Others have what they had. Of one replica nothing is torn, and what is lost is lost.
                is_lost = kind is not FaultKind.SPOOL_TORN
                most = max(int(is_lost), self._replication - 1)
                return tuple(sorted(rng.sample(self._names, rng.randint(min(1, most), most))))
            case FaultKind.DRAIN_ZONE:
                return self._zones[rng.choice(sorted(self._zones))]
            case (
                FaultKind.HICCUP
                | FaultKind.SLOW_BROKER
                | FaultKind.SLOW_DISK
                | FaultKind.ONE_WAY
                | FaultKind.SLOW_NETWORK
                | FaultKind.SPOOL_FULL
                | FaultKind.DRAIN
                | FaultKind.LAST_REPLICA
            ):
                is_of_journal = kind is FaultKind.LAST_REPLICA
                return (rng.choice(self._journals if is_of_journal else candidates),)
            case _:
                return ()

    def _duration_s(self, kind: FaultKind) -> float:
        lease_s = self._lease_s
        low, high = {
            FaultKind.KILL: (0.5, 1.5 * lease_s),
            FaultKind.KILL_COORDINATOR: (0.5, 1.5 * lease_s),
            FaultKind.KILL_ALL: (0.5, 1.5 * lease_s),
            FaultKind.RESTART_KILLED: (0.5, 1.5 * lease_s),
            FaultKind.OLD_LISTING: (0.5, 1.5 * lease_s),
            FaultKind.SPOOL_LOST: (0.5, 1.5 * lease_s),
            FaultKind.SPOOL_TORN: (0.5, 1.5 * lease_s),
            FaultKind.SPOOL_FILE_LOST: (0.5, 1.5 * lease_s),
            FaultKind.SPOOL_COPIED: (0.5, 1.5 * lease_s),
            FaultKind.SPOOL_STRAYED: (0.5, 1.5 * lease_s),
            FaultKind.PAUSE: (1.2 * lease_s, 2.0 * lease_s),
            FaultKind.PARTITION: (0.3 * lease_s, 2.0 * lease_s),
            # Appends fail only once the silence is longer than the way of a healthy one.
            FaultKind.LAST_REPLICA: (0.8, 1.6),
            FaultKind.HICCUP: (0.1 * lease_s, 0.4 * lease_s),
            FaultKind.SLOW_BROKER: (2.0, 2.0 * lease_s),
            FaultKind.SLOW_DISK: (2.0, 2.0 * lease_s),
            FaultKind.RESET: (2.0, 6.0),
            FaultKind.ONE_WAY: (0.3 * lease_s, 1.5 * lease_s),
            FaultKind.SLOW_NETWORK: (2.0, 2.0 * lease_s),
            # With its start, and brokers that renew each third of it, it must stay within the lease.
            FaultKind.ETCD_RESTART: (0.1, 0.25 * lease_s),
            FaultKind.ETCD_LEADER: (1.0, lease_s),
            FaultKind.ETCD_AWAY: (1.1 * lease_s, 1.6 * lease_s),
            FaultKind.STORE_CUT: (2.0, 2.0 * lease_s),
            FaultKind.STORE_FULL: (2.0, 2.0 * lease_s),
            FaultKind.SPOOL_FULL: (2.0, 2.0 * lease_s),
        }.get(kind, (0.0, 0.0))
        if self._is_short:
            high = min(high, low + _SHORT_S)
        return self._rng.uniform(low, high) if high else 0.0
