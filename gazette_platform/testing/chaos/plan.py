"""What will go wrong, and when: a pure function of the seed."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["ALL_KINDS", "KINDS_WITHOUT_REPLICAS", "Fault", "FaultKind", "make_plan"]


class FaultKind(StrEnum):
    """What goes wrong."""

    KILL = "kill"
    """SIGKILL of a broker, which is started again."""
    PAUSE = "pause"
    """SIGSTOP of a broker past its lease, then SIGCONT; started again if it ends."""
    PARTITION = "partition"
    """A broker reaches neither etcd nor anybody else, shorter or longer than its lease."""
    ETCD_RESTART = "etcd-restart"
    """SIGKILL of etcd, started again within the lease."""
    STORE_CUT = "store-cut"
    """The fragment store fails every call."""
    DRAIN = "drain"
    """SIGTERM of a broker, which is started again once it has left."""
    DRAIN_ZONE = "drain-zone"
    """The same of all brokers of a zone at once."""


ALL_KINDS = tuple(FaultKind)
KINDS_WITHOUT_REPLICAS = (
    FaultKind.ETCD_RESTART,
    FaultKind.STORE_CUT,
    FaultKind.DRAIN,
    FaultKind.DRAIN_ZONE,
)
"""What a journal with one replica survives without loss."""

# Seconds that the cluster may take between the end of one fault and the begin of the next.
_CALM_S = (3.0, 7.0)
_WARM_UP_S = 3.0


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong."""

    at_s: float
    """Seconds after the begin of the run; later if the fault before it takes long to mend."""
    kind: FaultKind
    targets: tuple[str, ...]
    """Brokers; none for etcd and the store."""
    duration_s: float
    """Until it is undone; 0 of drains, which take as long as they take."""

    @override
    def __str__(self) -> str:
        whom = " ".join(self.targets)
        lasts = f" for {self.duration_s:.1f} s" if self.duration_s else ""
        return f"{self.at_s:7.1f} s  {self.kind}{f' {whom}' if whom else ''}{lasts}"


def make_plan(
    seed: int,
    *,
    duration_s: float,
    zones: Mapping[str, str],
    lease_s: float,
    kinds: Sequence[FaultKind] = ALL_KINDS,
) -> tuple[Fault, ...]:
    """The faults of a run, one after another, each kind about as often as the others.

    Args: duration_s: of the run; the last fault begins early enough to be mended within it.
          zones: of each broker by name.
    Returns: by time; the same for the same arguments, on every machine.
    """
    rng = random.Random(f"chaos/{seed}")  # noqa: S311  it must be repeatable
    faults: list[Fault] = []
    at = _WARM_UP_S
    for kind in _kinds(rng, kinds):
        fault = _fault(rng, round(at, 1), kind, zones, lease_s)
        # What follows an end takes about a lease more: members expire, brokers start.
        mended_at = at + (fault.duration_s or lease_s) + lease_s
        if mended_at > duration_s:
            break
        faults.append(fault)
        at = mended_at + rng.uniform(*_CALM_S)
    return tuple(faults)


def _kinds(rng: random.Random, kinds: Sequence[FaultKind]) -> Iterator[FaultKind]:
    """For ever: all kinds in random order, and again."""
    while kinds:
        yield from rng.sample(kinds, len(kinds))


def _fault(
    rng: random.Random, at: float, kind: FaultKind, zones: Mapping[str, str], lease_s: float
) -> Fault:
    names = sorted(zones)
    by_zone: defaultdict[str, list[str]] = defaultdict(list)
    for name in names:
        by_zone[zones[name]].append(name)
    targets: tuple[str, ...] = (rng.choice(names),)
    duration_s = 0.0
    match kind:
        case FaultKind.KILL:
            duration_s = rng.uniform(0.5, 1.5 * lease_s)
        case FaultKind.PAUSE:
            duration_s = rng.uniform(1.2 * lease_s, 2.5 * lease_s)
        case FaultKind.PARTITION:
            duration_s = rng.uniform(0.3 * lease_s, 2.0 * lease_s)
        case FaultKind.ETCD_RESTART:
            # With its start, and brokers that renew each third of it, it must stay within the lease.
            targets, duration_s = (), rng.uniform(0.1, 0.25 * lease_s)
        case FaultKind.STORE_CUT:
            targets, duration_s = (), rng.uniform(2.0, 15.0)
        case FaultKind.DRAIN:
            pass
        case FaultKind.DRAIN_ZONE:
            targets = tuple(by_zone[rng.choice(sorted(by_zone))])
    return Fault(at, kind, targets, round(duration_s, 1))
