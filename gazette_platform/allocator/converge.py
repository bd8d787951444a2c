"""The next transactions that bring assignments closer to what is desired. Pure.

Convergence goes in steps that never leave an item with fewer consistent replicas than it desires:
first more members than needed are assigned, then these become consistent, and only then the surplus
is removed. A journal is consistent once its primary has synced all replicas and written the route in
every value; of a shard each replica is by itself, once it has the shard's state. Other processes of
the cluster, Gazette's too, rely on these steps.

After any step a broker may crash, or another may become leader, who goes on from what it finds in
etcd. If a replica were removed before its substitute is in step, acknowledged content would be with
fewer brokers than the journal asks for, and the next crash could lose it.

Source: Gazette allocator/item_state.go.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

from gazette_platform.allocator.solver import load_ratio
from gazette_platform.etcd import TXN_OPS_MAX, Compare, Delete, Operation, Put
from gazette_platform.keyspace import (
    AnyClusterState,
    ClusterItem,
    SlotAssignment,
    assignment_key,
    item_key,
    member_key,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gazette_platform.protocol import ProcessId


@dataclass(frozen=True, slots=True)
class Piece:
    """Comparisons and operations of one item: they stay in one transaction."""

    item: str
    compares: tuple[Compare, ...]
    operations: tuple[Operation, ...]
    added: int = 0
    """Assignments that the operations add, move to another slot, and remove."""
    moved: int = 0
    removed: int = 0


@final
class Loads:
    """How many items, and of how many the primary slot, each member holds in etcd.

    They are counted up while operations are built, so that one round does not overfill a member.
    """

    def __init__(self, state: AnyClusterState, limits: Mapping[ProcessId, int]) -> None:
        self._state = state
        self._limits = limits
        self._items: dict[ProcessId, int] = {}
        self._primaries: dict[ProcessId, int] = {}
        self.refused: dict[ProcessId, set[str]] = {}
        """Items that a member ought to hold and had no room for."""

    def items_of(self, member: ProcessId) -> int:
        """Items of the member."""
        if member not in self._items:
            self._items[member] = len(self._state.assignments_to(member))
        return self._items[member]

    def has_room(self, member: ProcessId) -> bool:
        """Whether the member may be assigned one more item."""
        return self.items_of(member) < self._limits.get(member, 0)

    def ratio(self, member: ProcessId) -> float:
        """Items per limit; infinite for a member that is gone."""
        return load_ratio(self.items_of(member), self._limits.get(member, 0))

    def primary_ratio(self, member: ProcessId) -> float:
        """Primary slots per limit; infinite for a member that is gone."""
        return load_ratio(self._primary(member), self._limits.get(member, 0))

    def count(self, member: ProcessId, *, items: int = 0, primaries: int = 0) -> None:
        """Add to the counts of a member."""
        self._items[member] = self.items_of(member) + items
        self._primaries[member] = self._primary(member) + primaries

    def _primary(self, member: ProcessId) -> int:
        if member not in self._primaries:
            self._primaries[member] = self._state.primaries_of(member)
        return self._primaries[member]


@dataclass(slots=True)
class _Builder:
    prefix: str
    item: str
    compares: dict[tuple[str, str], Compare] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    added: int = 0
    moved: int = 0
    removed: int = 0

    def check(self, compare: Compare) -> None:
        # Several operations of an item rest on the same keys: each is compared once.
        self.compares[(compare.key, compare.target.value)] = compare

    def move(self, assignment: SlotAssignment[Any], slot: int) -> None:
        """Another slot is another key; value and lease go along."""
        # The value goes along as we know it. If the member has published another route meanwhile, the
        # comparison fails, and this round's work on the item is lost, not the member's word.
        self.check(Compare.mod(assignment.key, assignment.mod_revision))
        key = assignment_key(self.prefix, self.item, assignment.process_id, slot)
        self.operations.append(Delete(assignment.key))
        self.operations.append(Put(key, assignment.value, lease=assignment.lease))
        self.moved += 1

    def piece(self) -> Piece | None:
        if not self.operations:
            return None
        return Piece(
            self.item,
            tuple(self.compares.values()),
            tuple(self.operations),
            added=self.added,
            moved=self.moved,
            removed=self.removed,
        )


def converge_item(
    prefix: str,
    state: AnyClusterState,
    name: str,
    *,
    desired: Sequence[ProcessId],
    replication: int,
    loads: Loads,
) -> Piece | None:
    """The next step of one item, or None if there is nothing to do, or nothing may be done yet.

    Args:
        desired: the members that ought to hold it, ascending.
        replication: replicas that it desires, whether or not there is room for them.
        loads: counted on by what is returned.
    """
    # From etcd's state alone, and not from what was decided before: another leader may have taken
    # other steps since.
    item = state.items[name]
    current = state.assignments_of(name)
    builder = _Builder(prefix, name)
    # The order of the steps keeps an item available: remove only what is superfluous, then make sure that another one
    # is primary, then add. Slots are packed only in a round that does nothing else.
    surplus = [a for a in current if a.process_id not in desired]
    removed: list[SlotAssignment[Any]] = []
    if surplus:
        consistent = {a.key for a in current if state.is_consistent_replica(a)}
        removed = _removable(surplus, replication, loads, consistent=consistent)
    for assignment in removed:
        _remove(builder, item, assignment, loads)
    remaining = sorted((a for a in current if a not in removed), key=lambda a: a.slot)
    if remaining and remaining[0].slot != 0:
        # Of journals no replica is more consistent than another, because that is a property of the route.
        promoted = min(
            remaining,
            key=lambda a: (
                not state.is_consistent_replica(a),
                loads.primary_ratio(a.process_id),
                a.slot,
            ),
        )
        builder.move(promoted, 0)
        loads.count(promoted.process_id, primaries=1)
    added = _add(builder, state, current, desired, loads)
    if not builder.operations and not added and state.may_pack(name):
        _pack(builder, remaining)
    return builder.piece()


def converge_dead_item(prefix: str, state: AnyClusterState, name: str) -> Piece | None:
    """Removes the assignments of an item that is gone."""
    builder = _Builder(prefix, name)
    # A journal that is created again in this instant keeps its assignments.
    builder.check(Compare.create(item_key(prefix, name), 0))
    for assignment in state.assignments_of(name):
        builder.check(Compare.mod(assignment.key, assignment.mod_revision))
        builder.operations.append(Delete(assignment.key))
        builder.removed += 1
    return builder.piece()


def batch_pieces(pieces: Iterable[Piece], *, fixed_compares: int = 1) -> list[tuple[Piece, ...]]:
    """Group pieces, in order, so that each group fits one transaction of etcd.

    Args:
        fixed_compares: comparisons that every transaction has besides.
    """
    batches: list[tuple[Piece, ...]] = []
    batch: list[Piece] = []
    compares, operations = fixed_compares, 0
    for piece in pieces:
        compares += len(piece.compares)
        operations += len(piece.operations)
        if batch and max(compares, operations) > TXN_OPS_MAX:
            batches.append(tuple(batch))
            batch = []
            compares = fixed_compares + len(piece.compares)
            operations = len(piece.operations)
        batch.append(piece)
    if batch:
        batches.append(tuple(batch))
    return batches


def _removable(
    surplus: Sequence[SlotAssignment[Any]],
    replication: int,
    loads: Loads,
    *,
    consistent: set[str],
) -> list[SlotAssignment[Any]]:
    """The surplus that may go now: the most loaded first, never below `replication` that are consistent.

    Args:
        consistent: keys of the item's assignments, surplus or not, whose replica is.
    """
    # What counts is consistent replicas, not replicas: one that is still catching up holds nothing that could
    # replace an acknowledged byte. So an item is over-replicated for a while, and never under-replicated.
    count = len(consistent)
    removed: list[SlotAssignment[Any]] = []
    for assignment in sorted(surplus, key=lambda a: -loads.ratio(a.process_id)):
        is_consistent = assignment.key in consistent
        if count < replication or (is_consistent and count == replication):
            continue
        count -= is_consistent
        removed.append(assignment)
    return removed


def _remove(
    builder: _Builder, item: ClusterItem[Any], assignment: SlotAssignment[Any], loads: Loads
) -> None:
    # The item's own key is compared, too: a spec that asks for more replicas since would make this
    # removal wrong, although the assignment itself has not changed.
    builder.check(Compare.mod(item_key(builder.prefix, builder.item), item.mod_revision))
    builder.check(Compare.mod(assignment.key, assignment.mod_revision))
    builder.operations.append(Delete(assignment.key))
    builder.removed += 1
    loads.count(assignment.process_id, items=-1, primaries=-(assignment.slot == 0))


def _add(
    builder: _Builder,
    state: AnyClusterState,
    current: Sequence[SlotAssignment[Any]],
    desired: Sequence[ProcessId],
    loads: Loads,
) -> bool:
    """Assign who is missing, under the member's own lease. Returns whether any was."""
    holders = {a.process_id for a in current}
    missing = [m for m in desired if m not in holders]
    if not current:
        # The first of a fresh item is its primary: spread those, too.
        missing.sort(key=lambda m: (not loads.has_room(m), loads.primary_ratio(m), m))
    slot = max((a.slot for a in current), default=-1)
    is_added = False
    for member_id in missing:
        slot += 1
        member = state.members.get(member_id)
        if member is None:
            continue  # it has left since the items were solved, and they will be solved again
        if not loads.has_room(member_id):
            loads.refused.setdefault(member_id, set()).add(builder.item)
            continue
        # A member that lowers its limit, or leaves, writes its key. Then this assignment must not appear: no one
        # would serve it, and under a lease that has ended etcd would refuse the whole transaction.
        builder.check(Compare.mod(member_key(builder.prefix, member_id), member.mod_revision))
        key = assignment_key(builder.prefix, builder.item, member_id, slot)
        builder.operations.append(Put(key, b"", lease=member.lease))
        builder.added += 1
        loads.count(member_id, items=1, primaries=int(slot == 0))
        is_added = True
    return is_added


def _pack(builder: _Builder, remaining: Sequence[SlotAssignment[Any]]) -> None:
    """Close the first gap in the slots; later rounds close the others."""
    for index, assignment in enumerate(remaining):
        if assignment.slot != index:
            builder.move(assignment, index)
            return
