"""Assignments of shards, as etcd holds them with all else of a consumer group, and what follows from them. Pure.

Nouns: item (a shard), member (a process), assignment (a process's slot of a shard, whose value is
the status of its replica), hints (where to read the recovery log from). The guarantees and costs are
those of the mirror; the allocator of brokers assigns shards, too.
Keys are like those of brokers (`gazette_platform.keyspace`). From assignments follows what this process does about its
replica (`replica_step`), and who serves a shard (`resolve_shard`).

Values and their rules are Gazette's, because consumers of both kinds may share a group.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, TypeVar, final

from google.protobuf.message import DecodeError, Message
from typing_extensions import override

from gazette_platform.consumer.protocol import (
    HINT_BACKUPS_MAX,
    ConsumerSpec,
    ReplicaCode,
    ReplicaStatus,
    ShardSpec,
    ShardStatus,
)
from gazette_platform.errors import ValidationError
from gazette_platform.etcd import Compare, Put
from gazette_platform.keyspace import ClusterState, SlotAssignment
from gazette_platform.protocol import EtcdHeader, Header, ProcessId, Route, strip_meta
from gazette_platform.protocol.auth import ALL_CLAIMS, Claims
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


# ------------------------------------------------------------------ our replica

# What a process does about its replica of a shard when assignments change. Pure.
#
#     replica here   assignment                              step
#     -------------  --------------------------------------  -------------------------------------
#     none           none, or the shard is gone              KEEP
#     none           some                                    START
#     some           none, or the shard is gone              STOP
#     some           of the same creation                    KEEP: spec and status are read again
#     some, at work  of another creation, in a lower slot    PROMOTE: the replica goes on
#     some           of another creation, else               RESTART: the old one stops, a new one starts
#
# A slot is part of the key: whoever gets another slot has another assignment. A replica that started as
# standby runs the standby's task to the end of its life, and the primary's beside it once it has slot 0.
#
# Source: Gazette's consumer. Departs: there a standby that has failed is promoted, and fails again.

PRIMARY_ERROR_CHARACTERS_MAX: Final = 2048
_STANDBY_ERROR_CHARACTERS_MAX: Final = 32768  # far less than etcd takes
_TRUNCATED: Final = " ...[truncated]"


class ReplicaStep(Enum):
    """What to do about a replica; the table above says when."""

    KEEP = auto()
    START = auto()
    PROMOTE = auto()
    RESTART = auto()
    STOP = auto()


class ReplicaTask(Enum):
    """What runs for a replica."""

    STANDBY = auto()
    """Recovers the state, and follows the log."""
    PRIMARY = auto()
    """Takes the log over, opens the store, and consumes."""


@dataclass(frozen=True, slots=True)
class HeldReplica:
    """A replica as it was assigned."""

    slot: int
    create_revision: int
    has_failed: bool = False


def replica_step(
    held: HeldReplica | None, assignment: ShardAssignment | None, *, has_spec: bool
) -> ReplicaStep:
    """What to do about a replica.

    Args:
        held: of this process, if there is one.
        assignment: of this process, as of now.
        has_spec: whether the shard exists.
    """
    if assignment is None or not has_spec:
        return ReplicaStep.KEEP if held is None else ReplicaStep.STOP
    if held is None:
        return ReplicaStep.START
    if assignment.create_revision == held.create_revision:
        return ReplicaStep.KEEP
    # Promoted, a failed replica would fail at once, and the shard would have no primary. Started again, it may succeed.
    may_go_on = assignment.slot < held.slot and not held.has_failed
    return ReplicaStep.PROMOTE if may_go_on else ReplicaStep.RESTART


def tasks_to_start(step: ReplicaStep, slot: int) -> tuple[ReplicaTask, ...]:
    """The tasks that a step starts, of a replica which is in this slot now."""
    match step:
        case ReplicaStep.START | ReplicaStep.RESTART:
            standby = (ReplicaTask.STANDBY,)
            return standby if slot else (*standby, ReplicaTask.PRIMARY)
        case ReplicaStep.PROMOTE:
            return () if slot else (ReplicaTask.PRIMARY,)
        case ReplicaStep.KEEP | ReplicaStep.STOP:
            return ()


def changes_that_wait(former: ShardSpec, present: ShardSpec) -> tuple[str, ...]:
    """What of a changed spec a primary that is at work does not take up: fields, in the words of specs."""
    pairs = {
        "sources": (former.sources, present.sources),
        "recovery_log_prefix": (former.recovery_log, present.recovery_log),
        "ring_buffer_size": (former.ring_size, present.ring_size),
        "read_channel_size": (former.queue_size, present.queue_size),
    }
    return tuple(name for name, (one, other) in pairs.items() if one != other)


def failed_status(error: str, task: ReplicaTask) -> ReplicaStatus:
    """What a replica reports of an error. The primary's is cut to 2048 characters.

    It can be reported whatever is in the text: half a pair of surrogates has no place in protobuf.
    """
    text = error or "failed without a reason"
    is_primary = task is ReplicaTask.PRIMARY
    most = PRIMARY_ERROR_CHARACTERS_MAX if is_primary else _STANDBY_ERROR_CHARACTERS_MAX
    if len(text) > most:
        text = text[:most] + _TRUNCATED
    text = text.encode(errors="backslashreplace").decode()
    return ReplicaStatus(ReplicaCode.FAILED, (text,))


# ------------------------------------------------------------------ resolution

# Who serves a shard, and whether it may be served now. Pure.
#
# Source: the order of checks and the process that an answer names are those of Gazette's resolver.

MISSING_ID: Final = ProcessId("local-ConsumerSpec", "missing-from-Etcd")
"""Stands in for our identity while etcd does not have our member key: it matches no member."""

STOPPED_TEXT: Final = "resolver has stopped serving local shards"
"""The error of a resolution that would be served here, after this process began to leave."""


@dataclass(frozen=True, slots=True)
class ShardResolution:
    """The answer to "who serves this shard?", as of one revision."""

    status: ShardStatus
    header: Header
    spec: ShardSpec | None
    is_local: bool
    """Whether the status is OK, and we are the process that is to answer."""

    @property
    def is_remote(self) -> bool:
        """Whether the call is to be proxied, with `header`, to the process that it names."""
        return self.status is ShardStatus.OK and not self.is_local


def check_proxy_header(header: Header, etcd: EtcdHeader, own_id: ProcessId) -> int:
    """Check the header of a process that forwards a call to us.

    Returns: the revision that our view has to reach before we resolve.
    Raises: ValidationError: it means another cluster, or another process.
    """
    if header.etcd.cluster_id != etcd.cluster_id:
        raise ValidationError(
            "proxied request Etcd ClusterId doesn't match our own "
            f"({header.etcd.cluster_id} vs {etcd.cluster_id})"
        )
    if header.process_id is not None and header.process_id != own_id:
        raise ValidationError(
            f"proxied request ProcessId doesn't match our own ({header.process_id} vs {own_id})"
        )
    return header.etcd.revision


def resolve_shard(
    state: ConsumerState,
    etcd: EtcdHeader,
    process_id: ProcessId,
    shard: str,
    *,
    may_proxy: bool,
    claims: Claims = ALL_CLAIMS,
) -> ShardResolution:
    """Resolve a shard at the present revision.

    Args:
        process_id: ours, whether we are a member or not.
        may_proxy: whether the answer may be another process.
        claims: of the caller; shards beyond them do not exist for it, and have no route.
    """
    own_id = process_id if process_id in state.members else MISSING_ID
    item = state.items.get(shard)
    spec = item.spec if item is not None else None
    if spec is not None and not claims.match(spec.label_set_with_id()):
        spec = None
    route = state.route_of(shard) if spec is not None else Route()
    primary = route.primary_id
    if spec is None:
        status = ShardStatus.SHARD_NOT_FOUND
    elif primary is None:
        status = ShardStatus.NO_SHARD_PRIMARY
    elif primary != own_id and not may_proxy:
        status = ShardStatus.NOT_SHARD_PRIMARY
    else:
        status = ShardStatus.OK
    # A refusal names the process that it comes from.
    answering = primary if status is ShardStatus.OK else own_id
    return ShardResolution(
        status,
        Header(answering, route, etcd),
        spec,
        is_local=status is ShardStatus.OK and answering == own_id,
    )
