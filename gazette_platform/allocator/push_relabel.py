"""Maximum flow through a `FlowNetwork`, from the flow that it has. Pure.

Members carry distance labels, as in push/relabel: a lower bound on how many items have to move
until a place is free. A unit is pushed from a member to one whose label is lower by one; a member
without such an arc is relabelled, and a gap in the labels cuts off all above it.

Departs from Gazette, which pushes units one arc at a time and lets those that cannot arrive flow
back: here a unit moves only once a whole path to free room is found. So the flow is a maximum as
well, along shortest paths, and what finds no room has not moved other items for nothing: solving
again changes nothing.

Only members have labels. An item passes a unit on, within a zone or to a zone with room, as part of
an arc between two members. So the work grows with the members, some ten, and not with ten thousand items.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, final

from gazette_platform.allocator.flow_network import Spread, bits

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from gazette_platform.allocator.flow_network import FlowNetwork

__all__ = ["SLICE_ARCS", "Pusher"]

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
        # A gap: no path leads from above it to below it.
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
