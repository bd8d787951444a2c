"""The loop by which the leader of a cluster assigns its items.

Every member runs it; the member whose key is the oldest acts. Each transaction compares that
member's own key, so that two that think they lead cannot both write.

Source: Gazette allocator/allocator.go, contract etcd §5. Departs: only items that changed are
solved anew, not all of them, unless members changed; and one item whose comparisons fail does not
hold up the others of its transaction.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from gazette_platform.allocator.converge import (
    Loads,
    Piece,
    batch_pieces,
    converge_dead_item,
    converge_item,
)
from gazette_platform.allocator.solver import Plan, effective_limits
from gazette_platform.errors import EtcdError, LeaseLost
from gazette_platform.etcd import Compare, EtcdClient, Operation, TxnResult
from gazette_platform.keyspace import BrokerState, KeySpace, member_key
from gazette_platform.ops.retry import backoff_s

if TYPE_CHECKING:
    from gazette_platform.protocol import ProcessId

__all__ = ["Allocator", "DrainStatus"]

_log = logging.getLogger(__name__)

# Items per round. Bounds how long the event loop is held: some 10 us an item.
_ROUND_ITEMS = 512
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
    """The others have the room, and are enough, to take all of them. False for a lone member:
    whoever stops it decides how long to wait."""


@final
class Allocator:
    """Assigns items to members for as long as `run` runs, whenever this process leads.

    Args: space: loaded; its watch has to run elsewhere.
          process_id: of this member.
          max_replication: upper bound on the replication of every item.
    """

    def __init__(
        self,
        client: EtcdClient,
        space: KeySpace[BrokerState],
        process_id: ProcessId,
        *,
        max_replication: int = _MAX_REPLICATION,
    ) -> None:
        self._client = client
        self._space = space
        self._state = space.state
        self._id = process_id
        self._max_replication = max_replication
        self._plan: Plan | None = None
        self._dirty: set[str] = set()
        self._starved: set[str] = set()
        self._starved_at = 0
        space.observe(self._note_changes)

    @property
    def leader(self) -> ProcessId | None:
        """The member that acts: the oldest. None without members."""
        members = self._state.members
        return min(members, key=lambda m: members[m].create_revision, default=None)

    def drain_status(self) -> DrainStatus:
        """How far we are with leaving, as of the key space's revision."""
        member = self._state.members.get(self._id)
        is_exiting = member is not None and member.spec.exiting
        return DrainStatus(
            is_exiting=is_exiting,
            assigned=len(self._state.assignments_to(self._id)),
            can_complete=is_exiting and self._limits()[self._id] == 0,
        )

    async def run(self) -> None:
        """Assign until this member is exiting and holds no item.

        Raises: LeaseLost: our member key is gone. EtcdError: etcd refuses for good.
        Cancellation: safe.
        """
        failures = 0
        while True:
            revision = self._space.revision
            member = self._state.members.get(self._id)
            if member is None:
                raise LeaseLost(
                    f"member key not found in Etcd: {member_key(self._space.prefix, self._id)}; "
                    "its lease ended or somebody removed it; this process has to start again"
                )
            if member.spec.exiting and not self._state.assignments_to(self._id):
                return
            try:
                next_revision = await self._act(member.mod_revision, revision + 1)
            except EtcdError as err:
                if not err.retriable:
                    raise
                self._plan = None  # what was written is unknown: start from what the mirror says
                _log.warning("items are not assigned: %s", err)
                await asyncio.sleep(backoff_s(failures))
                failures += 1
                continue
            failures = 0
            if next_revision:
                await self._space.wait_for_revision(next_revision)
            else:
                await asyncio.sleep(0)  # others run between two rounds

    def _note_changes(self) -> None:
        changes = self._state.changes
        if changes.members:
            self._plan = None
        if self._plan is not None:
            self._dirty |= changes.journals

    def _limits(self) -> dict[ProcessId, int]:
        bound = self._max_replication
        replications = (i.spec.desired_replication(bound) for i in self._state.items.values())
        return effective_limits(self._state.members, replications)

    async def _act(self, own_revision: int, next_revision: int) -> int:
        """One round. Returns the revision to wait for, 0 to go on at once."""
        if self.leader != self._id:
            self._plan = None  # solve everything when we come to lead
            return next_revision
        names = self._take_dirty()
        pieces = self._step(names)
        fixed = Compare.mod(member_key(self._space.prefix, self._id), own_revision)
        written_at = 0
        for batch in batch_pieces(pieces):
            written_at = max(written_at, await self._execute(fixed, batch))
        if written_at:
            # Before the next round counts what members hold.
            await self._space.wait_for_revision(written_at, timeout_s=_MIRROR_S)
        return 0 if self._dirty or written_at else next_revision

    def _take_dirty(self) -> list[str]:
        limits = self._limits() if self._has_exiting() or self._plan is None else None
        if self._plan is None or (limits is not None and limits != self._plan.limits):
            assert limits is not None
            self._plan = Plan(self._state, limits)
            self._dirty = {*self._state.journals, *self._state.assignments}
            self._starved.clear()
        elif self._starved and self._plan.has_room and self._starved_at != self._space.revision:
            # Once a revision, or rounds would never end while an item cannot be served.
            self._starved_at = self._space.revision
            self._dirty |= self._starved
        names = sorted(self._dirty)[:_ROUND_ITEMS]
        self._dirty.difference_update(names)
        return names

    def _has_exiting(self) -> bool:
        return any(member.spec.exiting for member in self._state.members.values())

    def _step(self, names: list[str]) -> list[Piece]:
        plan = self._plan
        assert plan is not None
        loads = Loads(self._state, plan.limits)
        prefix = self._space.prefix
        members_usable = sum(limit > 0 for limit in plan.limits.values())
        pieces: list[Piece | None] = []
        for name in names:
            item = self._state.items.get(name)
            self._starved.discard(name)
            if item is None:
                plan.forget(name)
                pieces.append(converge_dead_item(prefix, self._state, name))
                continue
            replication = item.spec.desired_replication(self._max_replication)
            desired = plan.solve(name, replication, self._state.assignments_of(name))
            is_short = len(desired) < min(replication, members_usable)
            if is_short or any(plan.is_overfull(member) for member in desired):
                self._starved.add(name)
            pieces.append(
                converge_item(
                    prefix,
                    self._state,
                    name,
                    desired=desired,
                    replication=replication,
                    loads=loads,
                )
            )
        return [piece for piece in pieces if piece is not None]

    async def _execute(self, fixed: Compare, batch: tuple[Piece, ...]) -> int:
        """Write one batch; item by item if a comparison fails. Returns the revision, or 0."""
        result = await self._write(fixed, batch)
        if result.succeeded:
            return result.header.revision
        # A change that the mirror has not seen yet, which will bring the item back; or a bad
        # entry that we leave out but etcd has. Neither may hold up the other items.
        revision = 0
        failed: list[str] = []
        for piece in batch if len(batch) > 1 else ():
            result = await self._write(fixed, (piece,))
            if result.succeeded:
                revision = result.header.revision
            else:
                failed.append(piece.item)
        _log.warning(
            "transaction checks did not succeed for %s; trying again when they change",
            ", ".join(failed[:5]) or batch[0].item,
        )
        return revision

    async def _write(self, fixed: Compare, batch: tuple[Piece, ...]) -> TxnResult:
        compares = [fixed, *(compare for piece in batch for compare in piece.compares)]
        operations: list[Operation] = [op for piece in batch for op in piece.operations]
        return await self._client.txn(compares, operations)
