"""The loop in which the leader of a cluster assigns its items.

Every member runs it; the member whose key is the oldest acts. Each transaction compares that
member's own key, so that two that think they lead cannot both write.

Source: Gazette allocator/allocator.go. Departs: only what changed is solved and
converged; one item whose comparisons fail does not hold up the others of its transaction; and a
member that leaves acts until its key is gone.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gazette_platform.allocator.solver import (
    Loads,
    Piece,
    Solver,
    batch_pieces,
    converge_dead_item,
    converge_item,
    effective_limits,
)
from gazette_platform.errors import EtcdError, LeaseLost
from gazette_platform.etcd import Compare, EtcdClient, EtcdRejected, Operation, TxnResult
from gazette_platform.keyspace import AnyClusterState, KeySpace, member_key
from gazette_platform.ops.faults import Faults, backoff_s
from gazette_platform.protocol import endpoint_host

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gazette_platform.protocol import ProcessId

C = TypeVar("C", bound=AnyClusterState)

_log = logging.getLogger(__name__)

# Items between two turns of the event loop: some 20 us an item.
_SLICE_ITEMS = 256
# For how many items steps are written before we wait until our mirror shows them.
_ROUND_ITEMS = 4096
# Transactions under way: etcd writes several to its log at once.
_TXNS_MAX = 4
_MAX_REPLICATION = 9
# Own transactions come back through the watch within milliseconds; longer means it is restarting.
_MIRROR_S = 60.0


@dataclass(frozen=True, slots=True)
class DrainStatus:
    """How far a member is with leaving."""

    is_exiting: bool
    """It has asked the others to take over."""
    assigned: int
    """Items that it still holds."""
    can_complete: bool
    """Whether the others are enough, and have room, to take all of them. False for a lone member:
    whoever stops it decides how long to wait."""
    is_awaited: bool
    """Whether another member leaves, too, and has items to hand over, maybe to this one."""


@final
class Allocator:
    """Assigns items to members for as long as `run` runs, whenever this process leads.

    Args:
        space: loaded; its watch has to run elsewhere.
        process_id: of this member.
        max_replication: upper bound on the replication of every item.
        metrics: of what it does; None: not wanted.
        faults: counts items that cannot be assigned, for unforeseen reasons.
    """

    def __init__(
        self,
        client: EtcdClient,
        space: KeySpace[C],
        process_id: ProcessId,
        *,
        max_replication: int = _MAX_REPLICATION,
        metrics: AllocatorMetrics | None = None,
        faults: Faults | None = None,
    ) -> None:
        self._client = client
        self._space: KeySpace[Any] = space
        self._state: AnyClusterState = space.state
        self._id = process_id
        self._max_replication = max_replication
        self._metrics = metrics or AllocatorMetrics()
        self._faults = faults or Faults()
        self._solver: Solver | None = None
        self._limits: dict[ProcessId, int] = {}
        # What the key space changed, and the solver does not know yet.
        self._changed: set[str] = set()
        self._is_members_changed = False
        # Items that may need another step.
        self._todo: set[str] = set()
        # Items that wait for room at a member, and those that wait for a member's key to change.
        self._refused: dict[ProcessId, set[str]] = {}
        self._failed: set[str] = set()
        # How many updates of the mirror changed members.
        self._members_seen = 0
        # What each member may hold less what it sheds, and the revision that this was computed from.
        self._known_limits: tuple[int, Mapping[ProcessId, int]] = (-1, {})
        space.observe(self._note_changes)

    @property
    def leader(self) -> ProcessId | None:
        """The member that acts: the oldest. None without members."""
        # The oldest key, as Gazette's members see it: all agree without a vote, and a newer member
        # changes nothing.
        members = self._state.members
        return min(members, key=lambda m: members[m].create_revision, default=None)

    def drain_status(self) -> DrainStatus:
        """How far we are with leaving, as of the key space's revision."""
        member = self._state.members.get(self._id)
        is_exiting = member is not None and member.spec.exiting
        return DrainStatus(
            is_exiting=is_exiting,
            assigned=len(self._state.assignments_to(self._id)),
            can_complete=is_exiting and self._limits_now()[self._id] == 0,
            is_awaited=any(self._hands_over(other) for other in self._state.members),
        )

    def _hands_over(self, other: ProcessId) -> bool:
        if other == self._id or not self._state.members[other].spec.exiting:
            return False
        return len(self._state.assignments_to(other)) > self._limits_now()[other]

    async def run(self) -> None:
        """Assign for as long as this member exists.

        Also while it is exiting and holds nothing any more: the others wait for the oldest to act, and
        it may be a member for long until all is stored. `drain_status` says whether it is relieved.

        Raises: LeaseLost: our member key is gone. EtcdError: etcd refuses for good.
        Cancellation: safe.
        """
        failures = 0
        self._solver = None  # it may have failed half-way: ask the mirror
        while True:
            revision = self._space.revision
            member = self._state.members.get(self._id)
            if member is None:
                raise LeaseLost(
                    f"member key not found in Etcd: {member_key(self._space.prefix, self._id)}; "
                    "its lease ended or it was removed; this process has to start again"
                )
            try:
                next_revision = await self._act(revision + 1)
            except EtcdError as err:
                if not err.retriable:
                    raise
                self._solver = None  # what was written is unknown: ask the mirror
                _log.warning("items are not assigned: %s", err)
                await asyncio.sleep(backoff_s(failures))
                failures += 1
                continue
            failures = 0
            # Woken by etcd, not by a clock: an idle cluster of ten thousand journals costs nothing.
            if next_revision:
                await self._space.wait_for_revision(next_revision)
            else:
                await asyncio.sleep(0)  # others run between two rounds

    def _note_changes(self) -> None:
        changes = self._state.changes
        self._members_seen += bool(changes.members)
        if self._solver is None:
            return
        self._changed |= changes.items
        # A comparison may have failed because the key of a member changed. Nothing of the item
        # itself will change then, so it has to be looked at again for the member's sake.
        if changes.members:
            self._is_members_changed = True
            self._todo |= self._failed
            self._failed.clear()

    def _limits_now(self) -> Mapping[ProcessId, int]:
        """Items that each member may hold, less what those that leave are to hand over."""
        revision, limits = self._known_limits
        if revision != self._space.revision:
            bound = self._max_replication
            wanted = [i.spec.desired_replication(bound) for i in self._state.items.values()]
            limits = effective_limits(
                self._state.members, replicas=sum(wanted), replication_max=max(wanted, default=0)
            )
            self._known_limits = (self._space.revision, limits)
        return limits

    async def _act(self, next_revision: int) -> int:
        """One round. Returns the revision to wait for, 0 to go on at once."""
        # A solver that was not fed for a while would be wrong, and to feed those of all members
        # costs each of them what only the leader needs.
        if self.leader != self._id:
            self._solver = None  # solve everything when we come to lead
            return next_revision
        with self._metrics.solving.time():
            await self._solve()
        self._metrics.converge.inc()
        names = sorted(self._todo)[:_ROUND_ITEMS]
        self._todo.difference_update(names)
        members_seen = self._members_seen
        pieces = await self._steps(names)
        written_at = await self._write_all(pieces)
        if written_at:
            # Before the next round counts what members hold.
            await self._space.wait_for_revision(written_at, timeout_s=_MIRROR_S)
        if self._members_seen != members_seen:
            # What made a comparison fail may have come to the mirror before etcd's answer came to us.
            self._todo |= self._failed
            self._failed.clear()
        self._retry_refused()
        is_idle = not (self._todo or self._changed or self._is_members_changed or written_at)
        return next_revision if is_idle else 0

    # ------------------------------------------------------------------ solving

    async def _solve(self) -> None:
        """Pass changes to the solver, and let it revise its answer, in slices."""
        if self._solver is None:
            self._solver = Solver()
            self._limits = {}
            self._changed = {*self._state.names, *self._state.assignments}
            self._is_members_changed = True
            for waiting in (self._todo, self._failed, self._refused):
                waiting.clear()
        solver = self._solver
        # Members first, so that assignments to them are understood.
        self._set_limits(solver)
        # Sorted, so that one mirror gives one answer, however its changes came.
        # What changes meanwhile is for the next round: a flood must not hold up this one.
        names, self._changed = sorted(self._changed), set()
        self._todo.update(names)
        for names_of_slice in _slices(names):
            for name in names_of_slice:
                self._tell(solver, name)
            await asyncio.sleep(0)
        self._set_limits(solver)
        solving = solver.solve()
        while True:
            try:
                next(solving)
            except StopIteration as solved:
                self._todo.update(solved.value)
                self._metrics.slots.set(solver.replicas)
                self._metrics.items.set(len(self._state.items))
                self._metrics.members.set(len(self._state.members))
                return
            await asyncio.sleep(0)

    def _tell(self, solver: Solver, name: str) -> None:
        item = self._state.items.get(name)
        if item is None:
            solver.forget(name)
        else:
            replication = item.spec.desired_replication(self._max_replication)
            solver.set_item(name, replication, self._state.assignments_of(name))

    def _set_limits(self, solver: Solver) -> None:
        members = self._state.members
        # What an exiting member sheds depends on what all items desire, too.
        if self._is_members_changed or any(m.spec.exiting for m in members.values()):
            self._is_members_changed = False
            self._limits = effective_limits(
                members, replicas=solver.replicas, replication_max=solver.replication_max
            )
            hosts = {found: endpoint_host(m.spec.endpoint) for found, m in members.items()}
            solver.set_limits(self._limits, hosts)

    # ------------------------------------------------------------------ converging

    async def _steps(self, names: list[str]) -> list[Piece]:
        loads = Loads(self._state, self._limits)
        pieces: list[Piece] = []
        for names_of_slice in _slices(names):
            for name in names_of_slice:
                # A spec that cannot be handled must not keep the leader from assigning all others.
                with self._faults.contained("item", f"{name}: it is not assigned"):
                    piece = self._step(name, loads)
                    if piece is not None:
                        pieces.append(piece)
            await asyncio.sleep(0)
        for member, refused in loads.refused.items():
            self._refused.setdefault(member, set()).update(refused)
        return pieces

    def _step(self, name: str, loads: Loads) -> Piece | None:
        state, prefix = self._state, self._space.prefix
        item = state.items.get(name)
        if item is None:
            return converge_dead_item(prefix, state, name)
        assert self._solver is not None
        return converge_item(
            prefix,
            state,
            name,
            desired=self._solver.desired_of(name),
            replication=item.spec.desired_replication(self._max_replication),
            loads=loads,
        )

    def _retry_refused(self) -> None:
        """Look again at as many items as there is room for at members that had none."""
        for member, refused in list(self._refused.items()):
            room = self._limits.get(member, 0) - len(self._state.assignments_to(member))
            names = sorted(refused)[: max(0, room)]
            self._todo.update(names)
            refused.difference_update(names)
            if not refused or member not in self._limits:
                del self._refused[member]

    async def _write_all(self, pieces: list[Piece]) -> int:
        """Write all pieces, some transactions at a time. Returns the last revision, or 0."""
        batches = iter(batch_pieces(pieces))
        revision = 0

        async def write_some() -> None:
            nonlocal revision
            for batch in batches:
                written_at = await self._execute(batch)
                revision = max(revision, written_at)

        # Batches may be written in any order: each item is within one batch, and compares its own
        # keys.
        writers = (write_some() for _ in range(_TXNS_MAX if pieces else 0))
        # All are waited for, so that none is left behind when one fails.
        for outcome in await asyncio.gather(*writers, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
        return revision

    async def _execute(self, batch: tuple[Piece, ...]) -> int:
        """Write one batch; in halves if a comparison fails, or etcd refuses it.

        Returns: the last revision, or 0.
        """
        why = "transaction checks did not succeed"
        try:
            result = await self._write(batch)
        except EtcdRejected as err:
            why = str(err)
        else:
            if result.succeeded:
                self._metrics.count(batch)
                return result.header.revision
        if len(batch) > 1:
            # Halving finds the item whose keys changed in a few transactions, and writes all the
            # others.
            half = len(batch) // 2
            written_at = await self._execute(batch[:half])
            return max(written_at, await self._execute(batch[half:]))
        # Either etcd has a change that our mirror has not seen yet: it will bring the item back. Or a bad
        # entry that we leave out but etcd has. Neither may hold up the other items.
        self._failed.add(batch[0].item)
        _log.info("%s: %s; trying again when its keys or members change", batch[0].item, why)
        return 0

    async def _write(self, batch: tuple[Piece, ...]) -> TxnResult:
        # That we are who we were when we were found to lead.
        member = self._state.members.get(self._id)
        own_revision = member.mod_revision if member is not None else -1
        fixed = Compare.mod(member_key(self._space.prefix, self._id), own_revision)
        compares = [fixed, *(compare for piece in batch for compare in piece.compares)]
        operations: list[Operation] = [op for piece in batch for op in piece.operations]
        return await self._client.txn(compares, operations)


def _slices(names: list[str]) -> Iterator[list[str]]:
    for begin in range(0, len(names), _SLICE_ITEMS):
        yield names[begin : begin + _SLICE_ITEMS]


_PREFIX: Final = "gazette_allocator"


@final
class AllocatorMetrics:
    """What this member did as leader; all stays 0 at the others.

    Args:
        registry: to show them in; None: nowhere.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = registry if registry is not None else CollectorRegistry()
        self._added = Counter(
            f"{_PREFIX}_assignment_added", "Assignments that were added.", registry=registry
        )
        self._packed = Counter(
            f"{_PREFIX}_assignment_packed",
            "Assignments that moved to another slot.",
            registry=registry,
        )
        self._removed = Counter(
            f"{_PREFIX}_assignment_removed", "Assignments that were removed.", registry=registry
        )
        self.converge = Counter(
            f"{_PREFIX}_converge", "Rounds of the allocator.", registry=registry
        )
        self.solving = Histogram(
            f"{_PREFIX}_max_flow_runtime_seconds",
            "How long solving took, in seconds, turns of others included.",
            registry=registry,
        )
        self.slots = Gauge(
            f"{_PREFIX}_desired_replication_slots",
            "Replicas that all items together desire.",
            registry=registry,
        )
        self.items = Gauge(f"{_PREFIX}_items", "Items to assign.", registry=registry)
        self.members = Gauge(f"{_PREFIX}_members", "Members to assign to.", registry=registry)

    def count(self, written: Iterable[Piece]) -> None:
        """Count what a transaction wrote."""
        for piece in written:
            self._added.inc(piece.added)
            self._packed.inc(piece.moved)
            self._removed.inc(piece.removed)
