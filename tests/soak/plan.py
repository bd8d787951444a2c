"""What goes wrong, and when: it follows from the seed. Pure.

Faults come in *episodes*, and each begins when all is well again: a fault of one broker, of consumers, of etcd, of
PostgreSQL or of a producer, or one of a broker and one of consumers together. Each kind comes once before any comes
again, in an order that is drawn again each time; but first of all a clock jumps, so that the others come after it, and
PostgreSQL is restarted, so that short runs have that, too.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Kind(StrEnum):
    KILL_CONSUMER = "kill-consumer"
    """SIGKILL; its lease runs out, and it is started again."""
    KILL_BROKER = "kill-broker"
    PAUSE_CONSUMER = "pause-consumer"
    """SIGSTOP past the lease, then SIGCONT: what it still does must count for nothing."""
    PAUSE_BROKER = "pause-broker"
    CUT_CONSUMER = "cut-consumer"
    """It does not reach etcd, and no other process reaches it, shorter or longer than its lease."""
    CUT_BROKER = "cut-broker"
    CUT_BROKERS = "cut-brokers"
    """No broker can be reached, neither by consumers nor by other brokers; all of them reach etcd, and keep their leases."""
    LOSE_ANSWERS = "lose-answers"
    """What a broker is asked is done without an answer: answers are held, and then connections are reset."""
    KILL_ETCD = "kill-etcd"
    """SIGKILL, and started again within all leases."""
    PAUSE_ETCD = "pause-etcd"
    """SIGSTOP, shorter than all leases."""
    RESET = "reset"
    """Connections to a broker and from a consumer to etcd are reset, several times."""
    LEAVE_CONSUMER = "leave-consumer"
    """SIGTERM: it hands its shards over, and is started again."""
    KILL_CONSUMERS = "kill-consumers"
    """SIGKILL of all consumers at the same instant."""
    RESTART_POSTGRES = "restart-postgres"
    """It ends at once, as by a crash, amid its transactions, and is started again."""
    JUMP_CLOCK = "jump-clock"
    """The clock of a producer jumps 25 hours ahead, and goes on from there."""


ALL_KINDS = tuple(Kind)
_OF_NO_MEMBER = frozenset(
    {
        *(Kind.KILL_CONSUMERS, Kind.CUT_BROKERS, Kind.KILL_ETCD, Kind.PAUSE_ETCD),
        *(Kind.RESTART_POSTGRES, Kind.JUMP_CLOCK),
    }
)
_OF_LEASES = frozenset({Kind.PAUSE_BROKER, Kind.PAUSE_CONSUMER, Kind.CUT_BROKER, Kind.CUT_CONSUMER})

_FIRST = (Kind.JUMP_CLOCK, Kind.RESTART_POSTGRES)

WARM_UP_S = 3.0
_CALM_S = (1.0, 4.0)


@dataclass(frozen=True, slots=True)
class Fault:
    kind: Kind
    target: int
    """Number of the broker or consumer, from 0."""
    calm_s: float
    """Seconds in which nothing happens before it."""
    lasts_s: float
    """Seconds until it is undone; 0 if it is nothing that lasts."""

    @property
    def may_take_lease(self) -> bool:
        """Whether its target may find that its lease is gone."""
        return self.kind in _OF_LEASES

    def takes_lease(self, lease_s: float) -> bool:
        """Whether its target must find so: it could not renew it for longer than it lasts."""
        return self.may_take_lease and self.lasts_s > lease_s

    def __str__(self) -> str:
        lasts = f" for {self.lasts_s:.1f} s" if self.lasts_s else ""
        whom = "" if self.kind in _OF_NO_MEMBER else f" {self.target + 1}"
        return f"{self.kind}{whom}{lasts}"


def make_plan(
    seed: int, *, lease_s: float, members: int, kinds: tuple[Kind, ...] = ALL_KINDS
) -> Iterator[Fault]:
    """The faults of a run, without end; the same for the same arguments, on every machine.

    Args:
        lease_s: of brokers and consumers.
        members: how many brokers there are, and how many consumers.
    """
    dice = random.Random(f"soak/{seed}")
    order = sorted(dice.sample(kinds, len(kinds)), key=_rank)
    while True:
        for kind in order:
            low, high = _lasts(kind, lease_s)
            yield Fault(
                kind,
                dice.randrange(members),
                round(dice.uniform(*_CALM_S), 1),
                round(dice.uniform(low, high), 1),
            )
        order = dice.sample(kinds, len(kinds))


def _rank(kind: Kind) -> int:
    return _FIRST.index(kind) if kind in _FIRST else len(_FIRST)


def _lasts(kind: Kind, lease_s: float) -> tuple[float, float]:
    match kind:
        case Kind.KILL_CONSUMER | Kind.KILL_BROKER:
            return 0.2, 1.5 * lease_s
        case Kind.KILL_CONSUMERS | Kind.RESTART_POSTGRES:
            return 0.2, 0.5 * lease_s
        case Kind.PAUSE_CONSUMER | Kind.PAUSE_BROKER:
            return 1.2 * lease_s, 2.0 * lease_s
        case Kind.CUT_CONSUMER | Kind.CUT_BROKER:
            return 0.3 * lease_s, 2.0 * lease_s
        case Kind.CUT_BROKERS | Kind.LOSE_ANSWERS:
            return 0.3 * lease_s, 1.5 * lease_s
        case Kind.KILL_ETCD | Kind.PAUSE_ETCD:
            # With its start, and members that renew each third of it, it stays within the lease.
            return 0.1, 0.25 * lease_s
        case Kind.RESET:
            return 1.0, 3.0
        case Kind.LEAVE_CONSUMER | Kind.JUMP_CLOCK:
            return 0.0, 0.0


def episodes(plan: Iterator[Fault], seed: int) -> Iterator[tuple[Fault, ...]]:
    """Faults that come together: one, or one of a broker and one of a consumer."""
    dice = random.Random(f"episodes/{seed}")
    one, others = next(plan), plan
    while True:
        other = next(others)
        is_pair = ("broker" in one.kind and "consumer" in other.kind) or (
            "consumer" in one.kind and "broker" in other.kind
        )
        if is_pair and dice.random() < 0.6:
            yield one, other
            one = next(others)
        else:
            yield (one,)
            one = other
