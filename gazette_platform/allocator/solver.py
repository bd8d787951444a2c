"""Decides which members ought to hold which items, and which transactions lead there. Pure: no clock, no I/O.

`max_flow` only finds a maximum; this module says which capacities it may use, and turns its flow into writes of keys.

Capacities are tried from the best to the barest, each as a maximum flow from what the last left:

1. Members hold at most their fair share, no item is within one zone, and no host has more replicas of an
   item than it must: two processes of one host fail together.
2. Members hold up to their limits.
3. Hosts are given up rather than replicas.
4. Zones are given up, too.

What cannot be placed even so stays out. Units beyond a capacity that no member can take stay where
they are, up to the limit. So what is assigned moves only for a reason: a member that is new, over
its share, over its limit, or leaving; never because another solution is as good.

Departs from Gazette in the order in which arcs are tried, which decides among equal solutions, and in
looking at hosts, which Gazette does not know; keys and transactions are the same.

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

from gazette_platform.allocator.max_flow import SLICE_ARCS, FlowNetwork, Pusher, Spread, bits
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
    from collections.abc import Generator, Iterable, Mapping, Sequence

    from gazette_platform.keyspace import ClusterMember
    from gazette_platform.protocol import ProcessId


# Giving up zones may open ways that were closed before; each pass leaves fewer. A bound, in case.
_PASSES_MAX = 4

# What is asked of an item's replicas, and given up in turn.
_WITH_HOSTS = (Spread.HOSTS, Spread.ZONES, Spread.NONE)
_WITHOUT_HOSTS = (Spread.ZONES, Spread.NONE)


def effective_limits(
    members: Mapping[ProcessId, ClusterMember[Any]], *, replicas: int, replication_max: int
) -> dict[ProcessId, int]:
    """How many items each member may hold: its limit, less what it sheds because it exits.

    The oldest exiting members shed first, as long as the others can take over: never more slots
    than the cluster has in excess, and never so many members that an item lacks replicas.

    Args:
        replicas: desired by all items together.
        replication_max: by any one of them.
    """
    limits = {process_id: member.spec.item_limit for process_id, member in members.items()}
    exiting = sorted(
        (m.create_revision, process_id) for process_id, m in members.items() if m.spec.exiting
    )
    # More than the excess must not be shed: items would have no room anywhere, and lose a replica that an exiting
    # member still serves.
    excess = max(0, sum(limits.values()) - replicas)
    # As many members stay as the most replicated item has replicas. If all leave at once, the last
    # ones keep what no other could take.
    for _, process_id in exiting[: max(0, len(members) - replication_max)]:
        shed = min(limits[process_id], excess)
        limits[process_id] -= shed
        excess -= shed
    return limits


def load_ratio(items: int, limit: int) -> float:
    """How full a member is; without any room it is infinitely full."""
    return items / limit if limit > 0 else float("inf")


@final
class Solver:
    """The desired members of each item, revised as items and members change.

    It keeps its last answer and changes what has to change. The cost of a solve is in the number
    of items that lack a member or have to leave one; with none it is that of looking at members.
    """

    def __init__(self) -> None:
        self._net = FlowNetwork()
        self._members: dict[ProcessId, int] = {}
        self._ids: list[ProcessId | None] = []
        self._zones: dict[str, int] = {}
        self._hosts: dict[str, int] = {}
        self._items: dict[str, int] = {}
        self._names: list[str] = []
        self._seen: list[int] = []
        # Whether anything changed since the last solve that may change its answer.
        self._is_stale = False

    # ------------------------------------------------------------------ inputs

    @property
    def replicas(self) -> int:
        """Desired by all items together."""
        return sum(wanted * count for wanted, count in self._net.histogram.items())

    @property
    def replication_max(self) -> int:
        """The most that any item desires."""
        return max(self._net.histogram, default=0)

    def set_limits(
        self, limits: Mapping[ProcessId, int], hosts: Mapping[ProcessId, str] | None = None
    ) -> None:
        """Name all members, with the number of items that each may hold.

        Args:
            hosts: the host of each member; one without is alone on its own.
        """
        net = self._net

        def host_of(process_id: ProcessId) -> int:
            name = (hosts or {}).get(process_id) or f"{process_id.name}#"
            return self._hosts.setdefault(name, len(self._hosts))

        gone = [
            process_id
            for process_id, number in self._members.items()
            if process_id not in limits or host_of(process_id) != net.host_of[number]
        ]
        for process_id in gone:
            number = self._members.pop(process_id)
            net.remove_member(number)
            self._ids[number] = None
            # Its number may come to mean another; -1 differs from any answer.
            self._seen = [-1 if mask >> number & 1 else mask for mask in self._seen]
        for process_id in sorted(limits.keys() - self._members.keys()):
            zone = self._zones.setdefault(process_id.zone, len(self._zones))
            number = net.add_member(zone, host_of(process_id))
            self._members[process_id] = number
            if number == len(self._ids):
                self._ids.append(None)
            self._ids[number] = process_id
        changed = {
            number: limits[process_id]
            for process_id, number in self._members.items()
            if net.limits[number] != limits[process_id]
        }
        if changed or (gone and net.shared_hosts):
            net.set_limits(changed)
        self._is_stale |= bool(changed or gone)

    def set_item(
        self, name: str, replication: int, assignments: Sequence[SlotAssignment[Any]]
    ) -> None:
        """Set what an item desires, and who holds it now.

        Args:
            replication: replicas to have; fewer are chosen if there is no room for more.
        """
        net = self._net
        assigned = primary = 0
        for assignment in assignments:
            number = self._members.get(assignment.process_id)
            if number is not None:
                assigned |= 1 << number
                if assignment.slot == 0:
                    primary = 1 << number
        item = self._items.get(name)
        is_new = item is None
        if item is None:
            item = self._items[name] = net.add_item()
            if item == len(self._names):
                self._names.append(name)
                self._seen.append(0)
            self._names[item], self._seen[item] = name, 0
        # What was chosen stays chosen whoever holds it: a hand-over must not turn back half-way.
        self._is_stale |= is_new or net.wanted[item] != replication
        net.set_item(item, wanted=replication, assigned=assigned, primary=primary)
        if is_new:
            # All who hold it, to begin with; the surplus is given up once all items are known.
            for number in bits(assigned):
                net.place(item, number)

    def forget(self, name: str) -> None:
        """The item is gone."""
        item = self._items.pop(name, None)
        if item is not None:
            self._net.remove_item(item)
            self._seen[item] = 0
            self._is_stale = True

    # ------------------------------------------------------------------ answers

    def desired_of(self, name: str) -> tuple[ProcessId, ...]:
        """The members that ought to hold the item, as solved last; ascending."""
        item = self._items.get(name)
        return self._members_of(self._net.flow[item]) if item is not None else ()

    def solve(self) -> Generator[None, None, list[str]]:
        """Revise the answer. Yields every few milliseconds, so that others may run.

        The solver takes no changes until the generator ends.

        Returns: the items whose answer may differ from that of the last solve.
        """
        if not self._is_stale:
            return []
        net = self._net
        yield from self._give_up_surplus()
        for _ in range(_PASSES_MAX):
            # First by fair shares, then by limits: what fits within shares is spread evenly, and only the rest may
            # fill members up. The other way round the members that come first would be full, and others idle.
            before = list(net.flow)
            # The answer before is the start of each search, so that items stay where they are
            # unless a rule makes them move.
            yield from self._push(Pusher(net, net.shares(), spread=Spread.HOSTS))
            crowded = yield from self._take_out_crowded()
            for spread in _WITH_HOSTS if net.shared_hosts else _WITHOUT_HOSTS:
                pusher = Pusher(net, net.limits, spread=spread, preferred=crowded)
                yield from self._push(pusher)
            for member, limit in enumerate(net.limits):
                for item in list(net.items_of[member])[limit:]:
                    net.remove(item, member)
            if net.flow == before:
                break
        self._is_stale = False
        return (yield from self._changed())

    # ------------------------------------------------------------------ steps

    def _push(self, pusher: Pusher) -> Generator[None, None, None]:
        net = self._net
        for item in self._in_order(net.lacking):
            while net.flow[item].bit_count() < net.wanted[item]:
                if not (yield from pusher.place(item)):
                    break
        for member in range(len(net.limits)):
            while pusher.is_over(member):
                if not (yield from pusher.push_out(member)):
                    break

    def _give_up_surplus(self) -> Generator[None, None, None]:
        """Of items that more members hold than wanted, choose the ones that need not stay."""
        net = self._net
        shares = net.shares()
        for count, item in enumerate(self._in_order(net.surplus)):
            while net.flow[item].bit_count() > net.wanted[item]:
                net.remove(item, self._least_wanted(item, shares))
            if count % (SLICE_ARCS // 16) == 0:
                yield

    def _least_wanted(self, item: int, shares: Sequence[int]) -> int:
        net = self._net
        crowded = net.crowded_group(item)

        # The most dispensable first: members over their limit, then where too many replicas are together, then those
        # over their share. A primary goes last among equals, since its successor has to sync before it appends.
        def reluctance(member: int) -> tuple[bool, bool, bool, bool, float, int]:
            items, bit = len(net.items_of[member]), 1 << member
            return (
                net.limits[member] == 0 or items > net.limits[member],
                bool(crowded & bit),
                items > shares[member],
                not net.primary[item] & bit,
                load_ratio(items, net.limits[member]),
                member,
            )

        return max(bits(net.flow[item]), key=reluctance)

    def _take_out_crowded(self) -> Generator[None, None, dict[int, int]]:
        """Take units out of zones and hosts with too many of one item, to place them again.

        They come back where they were if there is no other way. Returns the flow of each such item
        as it was.
        """
        net = self._net
        found: dict[int, int] = {}
        for count, item in enumerate(self._in_order(net.crowded)):
            before = net.flow[item]
            while group := net.crowded_group(item):
                inside = bits(net.flow[item] & group)
                # Not the primary, whose move costs most.
                member = next(m for m in reversed(inside) if not net.primary[item] >> m & 1)
                net.remove(item, member)
                found[item] = before
            if count % (SLICE_ARCS // 16) == 0:
                yield
        net.crowded.clear()
        return found

    def _changed(self) -> Generator[None, None, list[str]]:
        flow, seen = self._net.flow, self._seen
        yield
        if flow == seen:
            return []
        changed = [n for n, (now, was) in enumerate(zip(flow, seen, strict=True)) if now != was]
        self._seen = list(flow)
        return [self._names[item] for item in changed]

    def _in_order(self, items: Iterable[int]) -> list[int]:
        # By name: every leader has to come to the same answer from the same keys, whatever it saw first, or
        # items would move whenever the leader changes.
        return sorted(items, key=self._names.__getitem__)

    def _members_of(self, mask: int) -> tuple[ProcessId, ...]:
        found = (self._ids[number] for number in bits(mask))
        return tuple(sorted(process_id for process_id in found if process_id is not None))


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
