"""What consumers know of their group: shards, processes, and who is assigned what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from typing_extensions import override

from gazette_platform.consumer.cluster import values
from gazette_platform.consumer.protocol import ConsumerSpec, ReplicaCode, ReplicaStatus, ShardSpec
from gazette_platform.keyspace import ClusterState, SlotAssignment
from gazette_platform.protocol import ProcessId, strip_meta

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gazette_platform.etcd import KeyValue
    from gazette_platform.keyspace import AssignmentKey

__all__ = ["ConsumerState", "ShardAssignment"]


@dataclass(frozen=True, slots=True)
class ShardAssignment(SlotAssignment[ReplicaStatus]):
    """A process's slot of a shard. The process has reported the status of its replica."""

    @property
    def shard(self) -> str:
        """What is assigned."""
        return self.item

    @property
    def status(self) -> ReplicaStatus:
        """As the process has reported it last."""
        return self.told


@final
class ConsumerState(ClusterState[ShardSpec, ConsumerSpec, ShardAssignment]):
    """The typed view of a consumer group's key space; read it only between two awaits."""

    def __init__(self, prefix: str) -> None:
        super().__init__(prefix)
        # Which shards read a journal, of the shards that changed since it was last asked.
        self._by_source: dict[str, set[str]] = {}
        self._sources: dict[str, tuple[str, ...]] = {}
        self._stale: set[str] = set()

    @property
    def shards(self) -> Sequence[str]:
        """IDs of shards, ascending. Live: do not keep it over an await."""
        return self._names

    def statuses_of(self, shard: str) -> tuple[ReplicaStatus, ...]:
        """Of each replica, in the order of the route's members."""
        return tuple(a.status for a in self.assignments_of(shard))

    def shards_with_source(self, journal: str) -> list[ShardSpec]:
        """Specs of the shards that read a journal, in order of IDs.

        Args:
            journal: with or without a ``;meta`` part, which does not count.
        """
        for shard in self._stale:
            self._index(shard)
        self._stale.clear()
        found = self._by_source.get(strip_meta(journal), ())
        return [self._items[shard].spec for shard in sorted(found)]

    def _index(self, shard: str) -> None:
        for journal in self._sources.pop(shard, ()):
            readers = self._by_source[journal]
            readers.discard(shard)
            if not readers:
                del self._by_source[journal]
        item = self._items.get(shard)
        if item is not None:
            journals = tuple({strip_meta(source.journal) for source in item.spec.sources})
            self._sources[shard] = journals
            for journal in journals:
                self._by_source.setdefault(journal, set()).add(shard)

    @override
    def end(self) -> None:
        """Take note of the shards whose sources may have changed."""
        self._stale |= self._changes.items
        super().end()

    @override
    def is_consistent_replica(self, assignment: ShardAssignment) -> bool:
        """Whether the replica has the shard's state, or has failed as its primary has.

        While the primary works, a failed standby is not consistent: it counts as one that is missing,
        so that no other is removed on its account. Once the primary has failed no replica is any better,
        and it must be possible to move the shard.
        """
        if assignment.status.code is not ReplicaCode.FAILED:
            return assignment.status.is_recovered
        primary = self.primary_of(assignment.shard)
        return primary is not None and primary.status.code is ReplicaCode.FAILED

    @override
    def may_pack(self, item: str) -> bool:
        """Whether slots may be renumbered. Always: a replica goes on in a lower slot."""
        return True

    @override
    def _decode_item(self, raw: bytes, name: str) -> ShardSpec:
        return values.decode_shard_spec(raw, shard=name)

    @override
    def _decode_member(self, raw: bytes, process_id: ProcessId) -> ConsumerSpec:
        return values.decode_consumer_spec(raw, process_id=process_id)

    @override
    def _decode_assignment(
        self, key: AssignmentKey, kv: KeyValue, known: ShardAssignment | None
    ) -> tuple[ShardAssignment, Exception | None]:
        return ShardAssignment.decoded(key, kv, values.decode_replica_status, known)
