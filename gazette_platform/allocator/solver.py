"""Decides which members ought to hold which items. Pure: no clock, no I/O.

A greedy solver, one item at a time. What holds an item goes on holding it as long as its member
has room and stays; what is missing is added at the least loaded members, in another zone first.
It never moves an item for the sake of balance alone.

Source: contract etcd §5.1 and §6 say what any solver has to respect: limits, shed capacity of
exiting members, two zones where there are two. Departs from Gazette's max flow in how it chooses
among allowed assignments; keys and transactions (see `converge`) are the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gazette_platform.keyspace import Assignment, BrokerState, Member
    from gazette_platform.protocol import ProcessId

__all__ = ["Plan", "effective_limits", "load_ratio"]

_ZONES_WANTED = 2


def effective_limits(
    members: Mapping[ProcessId, Member], replications: Iterable[int]
) -> dict[ProcessId, int]:
    """How many items each member may hold: its limit, less what it sheds because it exits.

    The oldest exiting members shed first, as long as the others can take over: never more slots
    than the cluster has in excess, and never so many members that an item lacks replicas.

    Args: replications: desired replicas of every item; read only if a member exits.
    """
    limits = {process_id: member.spec.journal_limit for process_id, member in members.items()}
    exiting = sorted(
        (m.create_revision, process_id) for process_id, m in members.items() if m.spec.exiting
    )
    if not exiting:
        return limits
    total, greatest = 0, 0
    for replication in replications:
        total += replication
        greatest = max(greatest, replication)
    excess = max(0, sum(limits.values()) - total)
    for _, process_id in exiting[: max(0, len(members) - greatest)]:
        shed = min(limits[process_id], excess)
        limits[process_id] -= shed
        excess -= shed
    return limits


def load_ratio(held: int, limit: int) -> float:
    """How full a member is; without any room it is infinitely full."""
    return held / limit if limit > 0 else float("inf")


@final
class Plan:
    """The desired members of each item, and how many items that gives each member.

    It starts as what is assigned now, and is revised item by item with `solve`. So the answer
    for one item respects what all others hold, at the cost of one item.
    """

    def __init__(self, state: BrokerState, limits: Mapping[ProcessId, int]) -> None:
        self.limits = dict(limits)
        self._desired: dict[str, tuple[ProcessId, ...]] = {}
        self._held: dict[ProcessId, int] = dict.fromkeys(limits, 0)
        for journal, assignments in state.assignments.items():
            if journal in state.items:
                alive = (a.process_id for a in assignments if a.process_id in self.limits)
                self._set(journal, tuple(dict.fromkeys(alive)))

    @property
    def has_room(self) -> bool:
        """Whether any member could hold one more item."""
        return any(self._held[member] < limit for member, limit in self.limits.items())

    def is_overfull(self, member: ProcessId) -> bool:
        """Whether the member holds more than it may, for want of room elsewhere."""
        return self._held[member] > self.limits[member]

    def desired_of(self, item: str) -> tuple[ProcessId, ...]:
        """The members that ought to hold the item, as solved last."""
        return self._desired.get(item, ())

    def forget(self, item: str) -> None:
        """The item is gone."""
        self._set(item, ())

    def solve(
        self, item: str, replication: int, assignments: Iterable[Assignment]
    ) -> tuple[ProcessId, ...]:
        """Choose the members of one item anew, and remember them.

        Args: replication: replicas to have; fewer are chosen if there is no room for more.
              assignments: who is assigned now.
        Returns: ascending by zone, suffix.
        """
        before = self.desired_of(item)
        self._set(item, ())
        slots = {a.process_id: a.slot for a in assignments if a.process_id in self.limits}
        # Who was chosen before goes first: a hand-over under way must not turn back half-way.
        # Then the primary, whose move costs most.
        known = sorted(
            {*slots, *(m for m in before if m in self.limits)},
            key=lambda m: (m not in before, slots.get(m, 1) != 0, self._ratio(m), m),
        )
        chosen = [m for m in known if self._has_room(m)][:replication]
        while len(chosen) < replication:
            best = self._best_addition(chosen)
            if best is None:
                break
            chosen.append(best)
        # No room elsewhere: better an overfull member than a lost replica.
        reluctant = [m for m in known if m in slots and m not in chosen]
        chosen.extend(reluctant[: max(0, replication - len(chosen))])
        self._spread(chosen)
        self._set(item, tuple(sorted(chosen)))
        return self.desired_of(item)

    def _spread(self, chosen: list[ProcessId]) -> None:
        # Replicas in one zone fall together: give one up for a member of another zone.
        if len(chosen) < _ZONES_WANTED or len({m.zone for m in chosen}) >= _ZONES_WANTED:
            return
        best = self._best_addition(chosen)
        if best is not None and best.zone != chosen[0].zone:
            chosen[-1] = best

    def _best_addition(self, chosen: list[ProcessId]) -> ProcessId | None:
        in_zone: dict[str, int] = {}
        for member in chosen:
            in_zone[member.zone] = in_zone.get(member.zone, 0) + 1
        candidates = (m for m in self.limits if m not in chosen and self._has_room(m))
        return min(
            candidates, key=lambda m: (in_zone.get(m.zone, 0), self._ratio(m), m), default=None
        )

    def _has_room(self, member: ProcessId) -> bool:
        return self._held[member] < self.limits[member]

    def _ratio(self, member: ProcessId) -> float:
        return load_ratio(self._held[member], self.limits[member])

    def _set(self, item: str, members: tuple[ProcessId, ...]) -> None:
        for member in self._desired.pop(item, ()):
            self._held[member] -= 1
        for member in members:
            self._held[member] += 1
        if members:
            self._desired[item] = members
