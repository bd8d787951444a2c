"""Decides which members ought to hold which items. Pure: no clock, no I/O.

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
looking at hosts, which Gazette does not know; keys and transactions (see `converge`) are the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from gazette_platform.allocator.flow import SLICE_ARCS, FlowNetwork, Pusher, Spread, bits

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping, Sequence

    from gazette_platform.keyspace import ClusterMember, SlotAssignment
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
