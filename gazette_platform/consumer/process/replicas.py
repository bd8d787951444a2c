"""Follows the assignments of this process, and has a replica for each."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

from gazette_platform.consumer.shard import ReplicaStep, replica_step

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_platform.consumer.cluster import ConsumerState, ShardAssignment
    from gazette_platform.consumer.protocol import ShardSpec
    from gazette_platform.consumer.runtime import ShardReplica
    from gazette_platform.keyspace import KeySpace
    from gazette_platform.ops.faults import Faults
    from gazette_platform.ops.tasks import TaskGroup
    from gazette_platform.protocol import ProcessId

__all__ = ["ShardReplicas"]

R = TypeVar("R", bound="ShardReplica[Any, Any]")

_log = logging.getLogger(__name__)


@final
class ShardReplicas(Generic[R]):
    """Replicas by shard. It observes the key space: replicas exist as soon as assignments do.

    A replica that is stopped goes on being torn down beside what takes its place; its files are its own.

    Args:
        space: of the group.
        process_id: ours.
        make: builds a replica, which is started here.
        tasks: owns the stopping of replicas.
        faults: counts shards that cannot be followed.

    Attributes:
        held: replicas by shard. Live: do not keep it over an await.
        on_stopped: called with each that is no longer held.
    """

    def __init__(
        self,
        space: KeySpace[ConsumerState],
        process_id: ProcessId,
        *,
        make: Callable[[ShardSpec, ShardAssignment], R],
        tasks: TaskGroup,
        faults: Faults,
    ) -> None:
        self.held: dict[str, R] = {}
        self.on_stopped: Callable[[R], None] | None = None
        self._state = space.state
        self._id = process_id
        self._make = make
        self._tasks = tasks
        self._faults = faults
        self._stopping: set[asyncio.Task[None]] = set()
        self._is_closed = False
        space.observe(self._on_change)

    def get(self, shard: str) -> R | None:
        """Our replica of a shard."""
        return self.held.get(shard)

    def may_pass(self, assignment: ShardAssignment) -> bool:
        """Whether our replica under that assignment has failed with what may pass if it starts again."""
        replica = self.held.get(assignment.shard)
        if replica is None or replica.held.create_revision != assignment.create_revision:
            return False
        return replica.may_pass

    async def close(self) -> None:
        """Stop all replicas, and follow assignments no more. Cancellation: they may go on."""
        self._is_closed = True
        for shard in list(self.held):
            self._stop(shard)
        while self._stopping:
            await asyncio.wait(set(self._stopping))

    def _on_change(self) -> None:
        if self._is_closed:
            return
        for shard in self._state.changes.items:
            with self._faults.contained("shard", f"{shard}: following its assignment"):
                self._follow(shard)

    def _follow(self, shard: str) -> None:
        item = self._state.items.get(shard)
        assignment = self._state.assignment_of(shard, self._id)
        replica = self.held.get(shard)
        held = None if replica is None else replica.held
        step = replica_step(held, assignment, has_spec=item is not None)
        if step is ReplicaStep.STOP or item is None or assignment is None:
            self._stop(shard)
            return
        match step:
            case ReplicaStep.KEEP if replica is not None:
                replica.update(item.spec, assignment)
            case ReplicaStep.PROMOTE if replica is not None:
                replica.promote(item.spec, assignment)
            case _:  # START, RESTART
                self._stop(shard)
                self.held[shard] = self._make(item.spec, assignment)
                self.held[shard].start()

    def _stop(self, shard: str) -> None:
        replica = self.held.pop(shard, None)
        if replica is None:
            return
        if self.on_stopped is not None:
            self.on_stopped(replica)
        task = self._tasks.spawn(replica.stop(), name=f"stop {shard}")
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)
