"""A maximum flow from items to members: the network and the algorithm, on integers alone. Pure.

`solver` builds the network from the cluster and reads the assignments from its flow.

Source → item (as many units as it wants replicas) → its node of each zone (at most all but one of
the units, so that two zones are used) → member (one unit) → sink (as many as the member may hold).
Members of one host fail together, so the units of an item also spread evenly over hosts.
A unit that arrives at the sink is a replica. Only the units that flow are stored, as one integer an
item whose bits are members; every other arc is computed when it is looked at. So 10,000 items take
10,000 integers, and "who may take this item" is a few operations on them.

`Pusher` finds the maximum, by push/relabel. Members carry distance labels: a lower bound on how many items have
to move until a place is free. A unit is pushed from a member to one whose label is lower by one; a
member without such an arc is relabelled, and a gap in the labels cuts off all above it.

Departs from Gazette in two ways. Its arcs are kept in pages and it solves everything each time; here
the flow is kept, and a change touches the items that it is about. It pushes units one arc at a time
and lets those that cannot arrive flow back; here a unit moves only once a whole path to free room is
found. The flow is a maximum as well, along shortest paths, and what finds no room has not moved other
items for nothing: solving again changes nothing.
"""

from __future__ import annotations

import itertools
from enum import IntEnum
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping, Sequence


class Spread(IntEnum):
    """How far apart the units of an item have to be. Each value includes those below it."""

    NONE = 0
    """They may be anywhere."""
    ZONES = 1
    """No zone has all of them, if there are two zones."""
    HOSTS = 2
    """No host has more of them than it must."""


def bits(mask: int) -> list[int]:
    """The numbers of the bits that are set, ascending.

    >>> bits(0b10110)
    [1, 2, 4]
    """
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found


@final
class FlowNetwork:
    """Items and members by number, and which member each unit of an item flows to.

    Attributes (read-only to others, except that `flow` may be changed by a search that pushes units):
        flow: by item, the members that ought to hold it, as bits.
        assigned: by item, the members that hold it now. They are chosen before others.
        primary: by item, the one bit of its primary; 0 if there is none.
        wanted: by item, the replicas that it desires.
        items_of: by member, the items that flow to it, in the order in which they came. Those that
            came last are given up first.
        zone_of: by member, the number of its zone. zone_masks: by zone, its members as bits.
        host_of: by member, the number of its host. host_masks: by host, its members as bits.
        limits: by member, the items it may hold.
        lacking: items with fewer units than wanted. surplus: with more.
        crowded: items that may have more units in one zone, or on one host, than they should.
        is_strict: whether items have to spread over zones; not if there is one only.
        shared_hosts: the masks of hosts with several members, over which items have to spread;
            empty if there is only one host. hosts_usable: hosts whose members may hold anything.
        histogram: how many items want how many replicas.
    """

    def __init__(self) -> None:
        self.flow: list[int] = []
        self.assigned: list[int] = []
        self.primary: list[int] = []
        self.wanted: list[int] = []
        self.items_of: list[dict[int, None]] = []
        self.zone_of: list[int] = []
        self.zone_masks: list[int] = []
        self.host_of: list[int] = []
        self.host_masks: list[int] = []
        self.shared_hosts: list[int] = []
        self.hosts_usable = 0
        self.limits: list[int] = []
        self.lacking: dict[int, None] = {}
        self.surplus: dict[int, None] = {}
        self.crowded: dict[int, None] = {}
        self.is_strict = False
        self.histogram: dict[int, int] = {}
        self._free_items: list[int] = []
        self._free_members: list[int] = []

    # ------------------------------------------------------------------ members

    @property
    def usable(self) -> int:
        """Members that may hold anything."""
        return sum(limit > 0 for limit in self.limits)

    def add_member(self, zone: int, host: int) -> int:
        """A member without room; `set_limits` gives it some. Returns its number."""
        for masks, number in ((self.zone_masks, zone), (self.host_masks, host)):
            masks.extend([0] * (number + 1 - len(masks)))
        # Numbers are reused, because each is a bit of every item's integer: with numbers that only
        # grew, a cluster whose brokers are replaced daily would get ever longer integers.
        if self._free_members:
            member = self._free_members.pop()
            self.zone_of[member], self.host_of[member] = zone, host
        else:
            member = len(self.limits)
            self.limits.append(0)
            self.zone_of.append(zone)
            self.host_of.append(host)
            self.items_of.append({})
        self.zone_masks[zone] |= 1 << member
        self.host_masks[host] |= 1 << member
        return member

    def remove_member(self, member: int) -> None:
        """The member is gone; its items lack a unit now. Its number may be given to another."""
        bit = 1 << member
        for item in self.items_of[member]:
            self.flow[item] ^= bit
            self._count(item)
        self.items_of[member] = {}
        self.assigned = [mask & ~bit for mask in self.assigned]
        self.primary = [mask & ~bit for mask in self.primary]
        self.zone_masks[self.zone_of[member]] &= ~bit
        self.host_masks[self.host_of[member]] &= ~bit
        self.limits[member] = 0
        self._free_members.append(member)

    def set_limits(self, limits: dict[int, int]) -> None:
        """Change the limits of members.

        What flows beyond a limit stays until it is pushed elsewhere.
        """
        for member, limit in limits.items():
            self.limits[member] = limit
        before = (self.is_strict, self.shared_hosts, self.hosts_usable)
        zones = {zone for zone, limit in zip(self.zone_of, self.limits, strict=True) if limit > 0}
        hosts = {host for host, limit in zip(self.host_of, self.limits, strict=True) if limit > 0}
        self.is_strict, self.hosts_usable = len(zones) > 1, len(hosts)
        shared = [mask for mask in self.host_masks if mask & (mask - 1)]
        self.shared_hosts = shared if len(hosts) > 1 else []
        # What was spread well enough by the old rule may be crowded by a stricter one. A looser
        # rule crowds nothing, and the items stay where they are.
        is_stricter = self.is_strict and not before[0]
        if is_stricter or (
            self.shared_hosts and before[1:] != (self.shared_hosts, self.hosts_usable)
        ):
            self.crowded = dict.fromkeys(range(len(self.flow)))

    def shares(self) -> list[int]:
        """By member, its fair share: its part of all units, by limit, rounded up.

        Rounding up is also what keeps small differences from moving items.
        """
        room = sum(self.limits)
        usable = self.usable
        units = sum(min(wanted, usable) * count for wanted, count in self.histogram.items())
        if room <= units:
            return list(self.limits)
        return [-(-limit * units // room) for limit in self.limits]

    # ------------------------------------------------------------------ items

    def add_item(self) -> int:
        """An item that wants nothing yet. Returns its number."""
        if self._free_items:
            return self._free_items.pop()
        self.flow.append(0)
        self.assigned.append(0)
        self.primary.append(0)
        self.wanted.append(0)
        return len(self.flow) - 1

    def remove_item(self, item: int) -> None:
        """The item is gone. Its number may be given to another."""
        for member in bits(self.flow[item]):
            del self.items_of[member][item]
        self._want(item, 0)
        self.flow[item] = self.assigned[item] = self.primary[item] = 0
        for group in (self.lacking, self.surplus, self.crowded):
            group.pop(item, None)
        self._free_items.append(item)

    def set_item(self, item: int, *, wanted: int, assigned: int, primary: int) -> None:
        """What an item desires, and who holds it now."""
        self._want(item, wanted)
        self.assigned[item] = assigned
        self.primary[item] = primary
        self._count(item)

    def place(self, item: int, member: int) -> None:
        """A unit of the item flows to the member."""
        self.flow[item] |= 1 << member
        self.items_of[member][item] = None
        self._count(item)

    def remove(self, item: int, member: int) -> None:
        """A unit of the item flows to the member no longer."""
        self.flow[item] &= ~(1 << member)
        del self.items_of[member][item]
        self._count(item)

    def move(self, item: int, source: int, target: int) -> None:
        """Note that a unit moved, in `flow` already, from one member to another."""
        del self.items_of[source][item]
        self.items_of[target][item] = None
        if not self.is_spread(item):
            self.crowded[item] = None

    def _want(self, item: int, wanted: int) -> None:
        before = self.wanted[item]
        if before == wanted:
            return
        for value, change in ((before, -1), (wanted, 1)):
            if value:
                self.histogram[value] = self.histogram.get(value, 0) + change
                if not self.histogram[value]:
                    del self.histogram[value]
        self.wanted[item] = wanted

    def _count(self, item: int) -> None:
        units, wanted = self.flow[item].bit_count(), self.wanted[item]
        if units < wanted:
            self.lacking[item] = None
        else:
            self.lacking.pop(item, None)
        if units > wanted:
            self.surplus[item] = None
        else:
            self.surplus.pop(item, None)
        if not self.is_spread(item):
            self.crowded[item] = None

    # ------------------------------------------------------------------ arcs

    def zone_units_max(self, item: int) -> int:
        """How many units of the item one zone may have: not all, if there are other zones."""
        wanted = self.wanted[item]
        return max(wanted - 1, 1) if self.is_strict else max(wanted, 1)

    def host_units_max(self, item: int) -> int:
        """How many units of the item one host may have: no more than if all hosts had their part."""
        return max(-(-self.wanted[item] // self.hosts_usable), 1) if self.hosts_usable else 1

    def is_spread(self, item: int) -> bool:
        """Whether no zone, and no host, has more units of the item than it may."""
        return not self.crowded_group(item)

    def crowded_group(self, item: int) -> int:
        """The members of a zone or a host that has more units of the item than it may, as bits; or 0."""
        flow, most = self.flow[item], self.zone_units_max(item)
        units = flow.bit_count()
        if units > most:
            for zone in self.zone_masks:
                if (flow & zone).bit_count() > most:
                    return zone
        if units > 1 and self.shared_hosts:
            most = self.host_units_max(item)
            for host in self.shared_hosts:
                if (flow & host).bit_count() > most:
                    return host
        return 0

    def takers(self, item: int, *, spread: Spread) -> int:
        """The members, as bits, to which one more unit of the item may flow."""
        flow = self.flow[item]
        found = ~flow
        if spread >= Spread.ZONES:
            found &= ~_full(flow, self.zone_masks, self.zone_units_max(item))
        if spread >= Spread.HOSTS and self.shared_hosts:
            found &= ~_full(flow, self.shared_hosts, self.host_units_max(item))
        return found

    def heirs(self, item: int, member: int, *, spread: Spread) -> int:
        """The members, as bits, to which the unit of the item at `member` may go instead.

        Within the zone and the host to any, because these have no more units than before.
        """
        flow = self.flow[item]
        found = ~flow
        if spread >= Spread.ZONES:
            full = _full(flow, self.zone_masks, self.zone_units_max(item))
            found &= ~full | self.zone_masks[self.zone_of[member]]
        if spread >= Spread.HOSTS and self.shared_hosts:
            full = _full(flow, self.shared_hosts, self.host_units_max(item))
            found &= ~full | self.host_masks[self.host_of[member]]
        return found


def _full(flow: int, groups: Iterable[int], most: int) -> int:
    """The members of all groups that have so many of the units in `flow`, as bits."""
    full = 0
    for group in groups:
        if (flow & group).bit_count() >= most:
            full |= group
    return full


# With more candidates than these, the least loaded is not looked for one by one.
_COMPARED_MAX = 12

SLICE_ARCS = 2000
"""Arcs that are looked at between two yields: some 3 ms."""


@final
class Pusher:
    """Pushes units into members, as long as one has less than its capacity.

    One serves as long as capacities are the same, because labels only grow. Generators yield now
    and then, so that a caller may let others run; the network must not be changed meanwhile.

    Args:
        capacities: by member. Less than a member has is fine: what is over can be pushed out.
        spread: how far apart the units of an item have to be.
        preferred: members, as bits, that items are to come back to if that is as good.
    """

    def __init__(
        self,
        network: FlowNetwork,
        capacities: Sequence[int],
        *,
        spread: Spread,
        preferred: Mapping[int, int] | None = None,
    ) -> None:
        self._net = network
        self._capacities = capacities
        self._spread = spread
        self._preferred = preferred or {}
        self._work = 0
        members = range(len(capacities))
        self._unreachable = len(capacities) + 1
        # A member that may hold nothing gives units away but never takes one.
        self._takers = sum(1 << m for m in members if network.limits[m] > 0)
        self._rooms = sum(1 << m for m in members if self.has_room(m))
        self._labels = [0 if self._rooms >> m & 1 else 1 for m in members]
        # Those that take, by label, as bits.
        self._levels = [0] * (self._unreachable + 1)
        for m in bits(self._takers):
            self._levels[self._labels[m]] |= 1 << m
        # Of each member, its items as of its last relabelling, and the next to look at.
        self._arcs: list[list[int] | None] = [None for _ in members]
        self._next = [0 for _ in members]
        # Members by load, as of when they were sorted; who is next; and how long that serves.
        self._order: list[int] = []
        self._turn = -1
        self._order_age = 0

    def has_room(self, member: int) -> bool:
        """Whether the member has less than its capacity."""
        net = self._net
        return net.limits[member] > 0 and len(net.items_of[member]) < self._capacities[member]

    def is_over(self, member: int) -> bool:
        """Whether the member has more than its capacity."""
        return len(self._net.items_of[member]) > self._capacities[member]

    def place(self, item: int) -> Generator[None, None, bool]:
        """Give the item one more unit. Returns whether there was a way."""
        net = self._net
        while True:
            takers = net.takers(item, spread=self._spread) & self._takers
            free = takers & self._rooms
            if free:
                member = self._best(item, free)
                net.place(item, member)
                self._filled(member)
                break
            level = self._lowest(takers)
            if level >= self._unreachable:
                return False
            member = self._best(item, takers & self._levels[level])
            # Others have to make room. The unit is placed first, so that they take it into account.
            net.place(item, member)
            if (yield from self._push(member)):
                break
            net.remove(item, member)
        if self._work >= SLICE_ARCS:
            self._work = 0
            yield
        return True

    def push_out(self, member: int) -> Generator[None, None, bool]:
        """Let another member take an item over. Returns whether there was a way."""
        return (yield from self._push(member))

    # ------------------------------------------------------------------ paths

    def _push(self, start: int) -> Generator[None, None, bool]:
        """Move items along a path of admissible arcs, from `start` to a member with room.

        Items on the way are moved in `flow` at once, so that later arcs of the path respect
        earlier ones; lists follow when the path is whole.
        """
        flow = self._net.flow
        # A depth-first walk with its trail: a dead end is taken back item by item, so that a unit which finds no room
        # leaves the flow as it was. Replicas that move for nothing would be copied for nothing.
        path: list[tuple[int, int, int]] = []
        at = start
        while self._labels[start] < self._unreachable:
            if self._labels[at] < self._unreachable:
                arc = yield from self._admissible(at)
                if arc is not None:
                    item, target = arc
                    flow[item] ^= 1 << at | 1 << target
                    path.append((item, at, target))
                    at = target
                    if self._rooms >> at & 1:
                        for moved in path:
                            self._net.move(*moved)
                        self._filled(at)
                        return True
                    continue
                yield from self._relabel(at)
            if path:
                item, at, target = path.pop()
                flow[item] ^= 1 << at | 1 << target
        for item, source, target in reversed(path):
            flow[item] ^= 1 << source | 1 << target
        return False

    def _admissible(self, at: int) -> Generator[None, None, tuple[int, int] | None]:
        """An item of the member, and who may take it at a label lower by one."""
        lower = self._levels[self._labels[at] - 1] if self._labels[at] else 0
        if not lower:
            return None
        net, arcs, bit = self._net, self._arcs[at] or self._renew_arcs(at), 1 << at
        while self._next[at] < len(arcs):
            item = arcs[self._next[at]]
            self._work += 1
            if self._work >= SLICE_ARCS:
                self._work = 0
                yield
            flow = net.flow[item]
            if flow & bit and lower & ~flow:
                found = lower & net.heirs(item, at, spread=self._spread)
                if found:
                    return item, self._best(item, found)
            self._next[at] += 1
        return None

    def _relabel(self, at: int) -> Generator[None, None, None]:
        """Raise the label to one above the lowest that an arc leads to."""
        net, bit = self._net, 1 << at
        others = self._takers & ~bit
        reached = 0
        for item in self._renew_arcs(at):
            self._work += 1
            if self._work >= SLICE_ARCS:
                self._work = 0
                yield
            if net.flow[item] & bit:
                reached |= net.heirs(item, at, spread=self._spread) & others
                if reached == others:
                    break
        self._set_label(at, min(self._lowest(reached) + 1, self._unreachable))

    def _renew_arcs(self, member: int) -> list[int]:
        # What came last is given up first.
        arcs = self._arcs[member] = list(reversed(self._net.items_of[member]))
        self._next[member] = 0
        return arcs

    def _set_label(self, member: int, label: int) -> None:
        before, bit = self._labels[member], 1 << member
        self._labels[member] = label
        if not self._takers & bit:
            return
        self._levels[before] &= ~bit
        self._levels[label] |= bit
        if self._levels[before] or before == self._unreachable:
            return
        # A gap: every arc leads down by one label at most, so no path leads from above it to below it. Without this
        # a cluster that is full would raise labels one by one, for each item again.
        for level in range(before + 1, self._unreachable):
            for above in bits(self._levels[level]):
                self._labels[above] = self._unreachable
            self._levels[self._unreachable] |= self._levels[level]
            self._levels[level] = 0

    def _lowest(self, members: int) -> int:
        for level in range(self._unreachable):
            if self._levels[level] & members:
                return level
        return self._unreachable

    def _filled(self, member: int) -> None:
        if not self.has_room(member):
            self._rooms &= ~(1 << member)

    def _best(self, item: int, members: int) -> int:
        """Prefers who holds the item now, then a zone with few units of it, then the least loaded member."""
        self._work += 4
        if not members & (members - 1):
            return members.bit_length() - 1
        net = self._net
        # Whoever holds the item already has its content: any other member would have to copy it.
        members = members & (net.assigned[item] | self._preferred.get(item, 0)) or members
        flow = net.flow[item]
        if flow and net.is_strict:
            fewest, sparse = 1 << 30, 0
            for zone in net.zone_masks:
                if members & zone:
                    units = (flow & zone).bit_count()
                    if units < fewest:
                        fewest, sparse = units, members & zone
                    elif units == fewest:
                        sparse |= members & zone
            members = sparse
        if members.bit_count() > _COMPARED_MAX:
            return self._roughly_least_loaded(members)
        found = bits(members)
        self._work += 4 * len(found)
        return min(found, key=self._load)

    def _load(self, member: int) -> float:
        return len(self._net.items_of[member]) / self._net.limits[member]

    def _roughly_least_loaded(self, members: int) -> int:
        # They are sorted again once each may have got one more; the limits by share keep it fair in between.
        if self._order_age <= 0:
            self._order = sorted(bits(self._takers), key=self._load)
            self._order_age = len(self._order)
            self._turn = -1
            self._work += 4 * len(self._order)
        self._order_age -= 1
        self._turn = (self._turn + 1) % len(self._order)
        for member in itertools.chain(self._order[self._turn :], self._order):
            self._work += 1
            if members >> member & 1:
                return member
        raise AssertionError("members that may take an item are among those that may hold any")
