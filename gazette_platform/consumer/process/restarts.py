"""Starts shards again that have failed here, for groups that want it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, final

from gazette_platform.consumer.protocol import ReplicaCode
from gazette_platform.errors import EtcdError
from gazette_platform.etcd import Compare, Delete

if TYPE_CHECKING:
    from gazette_platform.consumer.cluster import ConsumerState, ShardAssignment
    from gazette_platform.etcd import EtcdClient
    from gazette_platform.keyspace import KeySpace
    from gazette_platform.ops.clock import Clock
    from gazette_platform.ops.tasks import TaskGroup
    from gazette_platform.protocol import ProcessId

__all__ = ["Restarts"]

_log = logging.getLogger(__name__)

# How often the pause is doubled, of a shard that fails again and again.
_DOUBLINGS_MAX: Final = 6


@final
class Restarts:
    """Removes our assignments that have failed, after a pause, so that they are made anew.

    The pause doubles each time, up to 64 times the first one, and begins anew for a shard that did well
    for twice its last pause. An assignment whose status changes meanwhile is left alone.

    Args:
        pause_s: seconds before the first attempt.
        tasks: owns the waiting.
    """

    def __init__(
        self,
        etcd: EtcdClient,
        space: KeySpace[ConsumerState],
        process_id: ProcessId,
        *,
        pause_s: float,
        clock: Clock,
        tasks: TaskGroup,
    ) -> None:
        self._etcd = etcd
        self._state = space.state
        self._id = process_id
        self._pause_s = pause_s
        self._clock = clock
        self._tasks = tasks
        # Keys of assignments that are waited for; of each shard, how often, until when, and how long.
        self._waiting: set[tuple[str, int]] = set()
        self._former: dict[str, tuple[int, float, float]] = {}
        space.observe(self._on_change)

    def _on_change(self) -> None:
        for shard in self._state.changes.items:
            assignment = self._state.assignment_of(shard, self._id)
            if assignment is None or assignment.status.code is not ReplicaCode.FAILED:
                continue
            which = (assignment.key, assignment.create_revision)
            if which not in self._waiting and not self._tasks.is_closed:
                self._waiting.add(which)
                self._tasks.spawn(self._restart(assignment), name=f"restart {shard}")

    async def _restart(self, assignment: ShardAssignment) -> None:
        pause_s = self._next_pause_s(assignment.shard)
        _log.warning(
            "shard %s has failed, and starts again in %g s: %s",
            assignment.shard,
            pause_s,
            "; ".join(assignment.status.errors),
        )
        try:
            await asyncio.sleep(pause_s)
            await self._remove(assignment)
        finally:
            self._waiting.discard((assignment.key, assignment.create_revision))

    async def _remove(self, failed: ShardAssignment) -> None:
        current = self._state.assignment_of(failed.shard, self._id)
        if current is None or current.create_revision != failed.create_revision:
            return
        try:
            await self._etcd.txn(
                [Compare.mod(current.key, current.mod_revision)], [Delete(current.key)]
            )
        except EtcdError as err:
            _log.warning("shard %s is not started again: %s", failed.shard, err)

    def _next_pause_s(self, shard: str) -> float:
        now_s = self._clock.monotonic()
        times, until_s, last_s = self._former.get(shard, (0, now_s, 0.0))
        if now_s > until_s + 2 * last_s:
            times = 0
        pause_s = self._pause_s * float(1 << min(times, _DOUBLINGS_MAX))
        self._former[shard] = (times + 1, now_s + pause_s, pause_s)
        return pause_s
