"""What etcd holds of a consumer group, under keys like those of brokers (`gazette_platform.keyspace`). Pure.

Nouns: item (a shard), member (a process), assignment (a process's slot of a shard, whose value is
the status of its replica), hints (where to read the recovery log from). The guarantees and costs are
those of the mirror; the allocator of brokers assigns shards, too.

Values and their rules are Gazette's, because consumers of both kinds may share a group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar, final

from google.protobuf.message import DecodeError, Message
from typing_extensions import override

from gazette_platform.consumer.protocol import (
    HINT_BACKUPS_MAX,
    ConsumerSpec,
    ReplicaCode,
    ReplicaStatus,
    ShardSpec,
)
from gazette_platform.errors import ValidationError
from gazette_platform.etcd import Compare, Put
from gazette_platform.keyspace import ClusterState, SlotAssignment
from gazette_platform.protocol import ProcessId, strip_meta
from gazette_platform.protocol.pb import consumer_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gazette_platform.etcd import KeyValue, Operation
    from gazette_platform.keyspace import AssignmentKey

# ------------------------------------------------------------------ values of keys

P = TypeVar("P", bound=Message)


def encode_shard_spec(spec: ShardSpec) -> bytes:
    """The value of an item."""
    return spec.to_pb().SerializeToString(deterministic=True)


def decode_shard_spec(raw: bytes, *, shard: str) -> ShardSpec:
    """The shard of an item whose key says `shard`.

    Raises: ValidationError: no such message, another ID, or a broken rule.
    """
    spec = ShardSpec.from_pb(_parse(pb.ShardSpec, raw))
    spec.validate()
    if spec.id != shard:
        raise ValidationError(f"shard spec is of {spec.id!r}; the key says {shard!r}")
    return spec


def encode_consumer_spec(spec: ConsumerSpec) -> bytes:
    """The value of a member."""
    return spec.to_pb().SerializeToString(deterministic=True)


def decode_consumer_spec(raw: bytes, *, process_id: ProcessId) -> ConsumerSpec:
    """The process of a member whose key says `process_id`.

    Raises: ValidationError: no such message, another identity, or a broken rule.
    """
    spec = ConsumerSpec.from_pb(_parse(pb.ConsumerSpec, raw))
    spec.validate()
    if spec.id != process_id:
        raise ValidationError(f"consumer spec is of {{{spec.id}}}; the key says {{{process_id}}}")
    return spec


def encode_replica_status(status: ReplicaStatus) -> bytes:
    """The value of an assignment. An idle replica has none."""
    return status.to_pb().SerializeToString(deterministic=True)


def decode_replica_status(raw: bytes) -> ReplicaStatus:
    """The status of an assignment; no value at all is an idle replica.

    Raises: ValidationError: no such message, or a broken rule.
    """
    status = ReplicaStatus.from_pb(_parse(pb.ReplicaStatus, raw))
    status.validate()
    return status


def _parse(message_class: type[P], raw: bytes) -> P:
    try:
        return message_class.FromString(raw)
    except DecodeError as err:
        name = message_class.DESCRIPTOR.name
        raise ValidationError(f"{len(raw)} bytes are no {name}: {err}") from err


# ------------------------------------------------------------------ the mirror of a group


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
        return decode_shard_spec(raw, shard=name)

    @override
    def _decode_member(self, raw: bytes, process_id: ProcessId) -> ConsumerSpec:
        return decode_consumer_spec(raw, process_id=process_id)

    @override
    def _decode_assignment(
        self, key: AssignmentKey, kv: KeyValue, known: ShardAssignment | None
    ) -> tuple[ShardAssignment, Exception | None]:
        return ShardAssignment.decoded(key, kv, decode_replica_status, known)


# ------------------------------------------------------------------ statuses and hints

# Transactions with which replicas report their status, and hints are kept. Pure.
#
# Keys of hints lie outside of what the group watches. They outlive the shard, and only its
# primaries writes them:
#
#     <hint_prefix>/<shard>.primary       of the recorder that is at work: from time to time
#     <hint_prefix>/<shard>.backup.<n>    of recoveries that succeeded; 0 is the newest
#     <hint_prefix>/<shard>.log           which journal the log is: a key of our own, as hints do not say it

STATUS_RETRY_S: Final = (0.05, 0.05, 0.1, 0.1, 1.0, 1.0, 5.0)
"""Seconds between attempts to write a status, or backup hints; the last one is repeated."""


@dataclass(frozen=True, slots=True)
class GuardedWrite:
    """A transaction of etcd: operations that are done if all comparisons hold."""

    compares: tuple[Compare, ...]
    operations: tuple[Operation, ...]


def primary_hint_key(spec: ShardSpec) -> str:
    """The key of the primary's hints; "" for a shard without a log."""
    return f"{spec.hint_prefix}/{spec.id}.primary" if spec.recovery_log_prefix else ""


def backup_hint_keys(spec: ShardSpec) -> tuple[str, ...]:
    """The keys of backup hints, newest first; none for a shard without a log.

    Raises: ValidationError: the spec asks for more than etcd reads at once.
    """
    if not spec.recovery_log_prefix:
        return ()
    if spec.hint_backups > HINT_BACKUPS_MAX:
        raise ValidationError(
            f"shard {spec.id} asks for {spec.hint_backups} backups of its hints (expected <= "
            f"{HINT_BACKUPS_MAX}; apply its spec with fewer)"
        )
    return tuple(f"{spec.hint_prefix}/{spec.id}.backup.{n}" for n in range(spec.hint_backups))


def log_identity_key(spec: ShardSpec) -> str:
    """The key of the recovery log's journal; "" for a shard without a log."""
    return f"{spec.hint_prefix}/{spec.id}.log" if spec.recovery_log_prefix else ""


def write_status(assignment: ShardAssignment, status: ReplicaStatus) -> GuardedWrite:
    """Report a status, folded with the present one: a status never goes back, and FAILED sticks.

    The key stays under its lease, and must be as the mirror has it. Otherwise wait for the mirror, and
    make the write again.
    """
    value = encode_replica_status(assignment.status.fold(status))
    return GuardedWrite(
        (Compare.mod(assignment.key, assignment.mod_revision),),
        (Put(assignment.key, value, ignore_lease=True),),
    )


def write_primary_hints(spec: ShardSpec, assignment: ShardAssignment, hints: bytes) -> GuardedWrite:
    """Put the hints of the recorder that is at work, while the assignment is the same.

    A change of its status does not matter, so the guard is the revision of its creation.
    """
    return GuardedWrite((_is_assigned(assignment),), (Put(primary_hint_key(spec), hints),))


def write_log_identity(
    spec: ShardSpec, assignment: ShardAssignment, identity: bytes
) -> GuardedWrite:
    """Put which journal the recovery log is, while the assignment is the same."""
    return GuardedWrite((_is_assigned(assignment),), (Put(log_identity_key(spec), identity),))


def rotate_backup_hints(
    spec: ShardSpec,
    assignment: ShardAssignment,
    hints: bytes,
    present: Sequence[KeyValue | None],
) -> GuardedWrite:
    """Put new backup hints first, and move the older ones on by one, up to a free key or the last.

    If they are first already nothing moves: a shard that is recovered again and again, or an answer of etcd
    that was lost, would drive out older ones, which may be needed.

    Args:
        hints: of the recovery that succeeded.
        present: what each of `backup_hint_keys` holds, in their order; None: nothing.

    Returns: a write; without operations, if the shard keeps no backups, or has these.
    """
    compares = [_is_assigned(assignment)]
    if present and present[0] is not None and present[0].value == hints:
        return GuardedWrite(tuple(compares), ())
    operations: list[Operation] = []
    moved = hints
    for key, found in zip(backup_hint_keys(spec), present, strict=True):
        operations.append(Put(key, moved))
        compares.append(Compare.mod(key, found.mod_revision if found is not None else 0))
        if found is None:
            break
        moved = found.value
    return GuardedWrite(tuple(compares), tuple(operations))


def _is_assigned(assignment: ShardAssignment) -> Compare:
    return Compare.create(assignment.key, assignment.create_revision)
