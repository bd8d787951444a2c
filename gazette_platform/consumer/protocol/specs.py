"""Specs of shards and consumer processes, statuses of replicas, and the rules of requests and responses.

All are immutable values without I/O. `validate` checks a value alone; the functions `validate_shard_*`
check messages of the service `consumer.Shard`. Rules and their texts are Gazette's.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from gazette_platform.errors import ValidationError
from gazette_platform.ops.text import duration_from_pb, duration_into_pb, format_duration
from gazette_platform.protocol import (
    LabelSelector,
    LabelSet,
    ProcessId,
    Route,
    validate_endpoint,
    validate_journal_name,
    validate_token,
)
from gazette_platform.protocol.enums import WireEnum
from gazette_platform.protocol.labels import EMPTY_LABELS
from gazette_platform.protocol.names import check_field
from gazette_platform.protocol.pb import consumer_pb2 as pb
from gazette_platform.protocol.routing import validate_header
from gazette_platform.protocol.rules import (
    SELECTOR_LABELS_MAX,
    SPEC_BYTES_MAX,
    SPEC_LABELS_MAX,
)
from gazette_platform.protocol.specs import validate_single_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class ShardStatus(WireEnum):
    """Outcome of an RPC about shards."""

    OK = 0
    SHARD_NOT_FOUND = 1
    """There is none of that name, or the caller's claims hide it."""
    NO_SHARD_PRIMARY = 2
    """No process holds slot 0 now; this passes."""
    NOT_SHARD_PRIMARY = 3
    """Another process is primary, and the caller did not want it to be asked."""
    ETCD_TRANSACTION_FAILED = 4
    SHARD_STOPPED = 5
    """The primary has failed, or was assigned to another process."""


class ReplicaCode(WireEnum):
    """How far a replica is. A greater one outweighs the others of a shard."""

    IDLE = 0
    BACKFILL = 100
    """It plays the recovery log."""
    STANDBY = 200
    """It follows the live log, and can take over at once."""
    PRIMARY = 300
    FAILED = 400


ID_LABEL: Final = "id"
"""The implicit label of a shard, with which selectors and claims name it."""

DEFAULT_CHANNEL_SIZE: Final = 8192
"""Messages in the sequencer's ring, and in the queue of what was read, if the spec says none."""

CHANNEL_SIZE_MAX: Final = 1 << 20
"""Most messages of either, whatever the spec says: one shard must not take the memory of all others."""

HINT_BACKUPS_MAX: Final = 127
"""Most backups of hints: etcd reads them and the primary's in one transaction, of 128 operations."""

_ID_LENGTH_MIN = 4
_ID_LENGTH_MAX = 512
_INT64_MAX = (1 << 63) - 1
_UINT32_MAX = (1 << 32) - 1


def validate_shard_id(shard: str) -> None:
    """Check the ID of a shard: a token of 4 to 512 bytes.

    Raises: ValidationError.
    """
    validate_token(shard, _ID_LENGTH_MIN, _ID_LENGTH_MAX)


@dataclass(frozen=True, slots=True)
class ShardSource:
    """A journal that a shard reads."""

    journal: str
    """With or without a ``;meta`` part; each is a source of its own."""
    min_offset: int = 0
    """Least offset to read at."""

    def validate(self) -> None:
        """Check name and offset.

        Raises: ValidationError.
        """
        check_field("Journal", validate_journal_name, self.journal, meta=True)
        if self.min_offset < 0:
            raise ValidationError(f"invalid MinOffset ({self.min_offset}; expected >= 0)")


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """A shard: what it reads, and how it keeps its state."""

    id: str
    sources: tuple[ShardSource, ...] = ()
    """Ascending by journal."""
    recovery_log_prefix: str = ""
    """Of the recovery log's name; empty: the state of the shard lives elsewhere, without a log."""
    hint_prefix: str = ""
    """Of the etcd keys that hold hints."""
    hint_backups: int = 0
    """How many keys of backup hints there are."""
    max_txn_duration_ns: int = 0
    min_txn_duration_ns: int = 0
    disable: bool = False
    """Whether it must not run."""
    hot_standbys: int = 0
    """Replicas beside the primary."""
    labels: LabelSet = EMPTY_LABELS
    disable_wait_for_ack: bool = False
    """Whether a transaction ends without waiting for ACKs of messages that it has read."""
    ring_buffer_size: int = 0
    """Messages that the sequencer holds; 0: 8192. More than `CHANNEL_SIZE_MAX` is as much as that."""
    read_channel_size: int = 0
    """Messages that are read ahead; 0: 8192. Likewise."""

    @property
    def recovery_log(self) -> str:
        """Name of the recovery log, or "" if there is none."""
        return f"{self.recovery_log_prefix}/{self.id}" if self.recovery_log_prefix else ""

    @property
    def ring_size(self) -> int:
        """Messages that the sequencer holds."""
        return min(self.ring_buffer_size or DEFAULT_CHANNEL_SIZE, CHANNEL_SIZE_MAX)

    @property
    def queue_size(self) -> int:
        """Messages that are read ahead."""
        return min(self.read_channel_size or DEFAULT_CHANNEL_SIZE, CHANNEL_SIZE_MAX)

    def label_set_with_id(self) -> LabelSet:
        """The labels plus the implicit label ``id``, as selectors match them."""
        return self.labels.with_value(ID_LABEL, self.id)

    def desired_replication(self, max_replication: int) -> int:
        """Replicas to have, given the most that a process allows, its primary included."""
        return 0 if self.disable else min(1 + self.hot_standbys, max_replication)

    def source_of(self, journal: str) -> ShardSource | None:
        """The source of that name, if it is one."""
        return next((source for source in self.sources if source.journal == journal), None)

    def to_pb(self) -> pb.ShardSpec:
        """The spec as a message, with the bytes that Gazette gives it."""
        message = pb.ShardSpec(
            id=self.id,
            recovery_log_prefix=self.recovery_log_prefix,
            hint_prefix=self.hint_prefix,
            hint_backups=self.hint_backups,
            disable=self.disable,
            hot_standbys=self.hot_standbys,
            disable_wait_for_ack=self.disable_wait_for_ack,
            ring_buffer_size=self.ring_buffer_size,
            read_channel_size=self.read_channel_size,
        )
        for source in self.sources:
            message.sources.add(journal=source.journal, min_offset=source.min_offset)
        duration_into_pb(self.max_txn_duration_ns, message.max_txn_duration)
        duration_into_pb(self.min_txn_duration_ns, message.min_txn_duration)
        self.labels.into_pb(message.labels)
        return message

    @classmethod
    def from_pb(cls, message: pb.ShardSpec) -> Self:
        """The spec of a message, not validated."""
        return cls(
            message.id,
            tuple(ShardSource(source.journal, source.min_offset) for source in message.sources),
            message.recovery_log_prefix,
            message.hint_prefix,
            message.hint_backups,
            duration_from_pb(message.max_txn_duration),
            duration_from_pb(message.min_txn_duration),
            message.disable,
            message.hot_standbys,
            LabelSet.from_pb(message.labels),
            message.disable_wait_for_ack,
            message.ring_buffer_size,
            message.read_channel_size,
        )

    def validate(self) -> None:
        """Check everything, in the order of fields.

        Raises: ValidationError.
        """
        check_field("Id", validate_shard_id, self.id)
        _validate_sources(self.sources)
        self._validate_log()
        if not 0 < self.max_txn_duration_ns <= _INT64_MAX:
            raise ValidationError(
                f"invalid MaxTxnDuration ({format_duration(self.max_txn_duration_ns)}; expected > 0)"
            )
        if not 0 <= self.min_txn_duration_ns <= _INT64_MAX:
            raise ValidationError(
                f"invalid MinTxnDuration ({format_duration(self.min_txn_duration_ns)}; expected >= 0)"
            )
        for field, number in (
            ("HotStandbys", self.hot_standbys),
            ("RingBufferSize", self.ring_buffer_size),
            ("ReadChannelSize", self.read_channel_size),
        ):
            if not 0 <= number <= _UINT32_MAX:
                raise ValidationError(f"invalid {field} ({number}; expected 32 bits)")
        check_field("LabelSet", _validate_labels, self.labels)

    def _validate_log(self) -> None:
        if self.recovery_log_prefix:
            check_field("RecoveryLogPrefix", validate_journal_name, self.recovery_log)
            check_field("HintPrefix", _validate_hint_prefix, self.hint_prefix)
        elif self.hint_prefix:
            raise ValidationError(
                f"invalid HintPrefix ({self.hint_prefix}; expected empty HintPrefix with empty "
                "RecoveryLogPrefix)"
            )
        if not 0 <= self.hint_backups <= _UINT32_MAX >> 1:
            raise ValidationError(f"invalid HintBackups ({self.hint_backups}; expected >= 0)")


def _validate_sources(sources: tuple[ShardSource, ...]) -> None:
    previous: str | None = None
    for index, source in enumerate(sources):
        check_field(f"Sources[{index}]", source.validate)
        if previous is not None and source.journal <= previous:
            raise ValidationError(
                "Sources.Journal not in unique, sorted order "
                f"(index {index}; {source.journal} <= {previous})"
            )
        previous = source.journal


def _validate_hint_prefix(prefix: str) -> None:
    if not prefix.startswith("/") or prefix == "/" or prefix.startswith("//"):
        raise ValidationError(f"must be an absolute path ({prefix})")
    if posixpath.normpath(prefix) != prefix:
        raise ValidationError(f"must be a clean path, without a trailing / ({prefix})")


def _validate_labels(labels: LabelSet) -> None:
    labels.validate()
    if labels.values_of(ID_LABEL):
        raise ValidationError(f'cannot include label "{ID_LABEL}"')
    validate_single_values(labels)


@dataclass(frozen=True, slots=True)
class ConsumerSpec:
    """A process that runs shards, as it announces itself in etcd."""

    id: ProcessId
    endpoint: str
    shard_limit: int = 32
    """Most shards that it may be assigned."""
    exiting: bool = False
    """Whether it hands its shards over in order to exit."""

    @property
    def item_limit(self) -> int:
        """Most items that the allocator may assign."""
        return self.shard_limit

    def to_pb(self) -> pb.ConsumerSpec:
        """The spec as a message, with the bytes that Gazette gives it."""
        message = pb.ConsumerSpec(shard_limit=self.shard_limit, exiting=self.exiting)
        message.process_spec.id.zone, message.process_spec.id.suffix = self.id
        message.process_spec.endpoint = self.endpoint
        return message

    @classmethod
    def from_pb(cls, message: pb.ConsumerSpec) -> Self:
        """The spec of a message, not validated."""
        process = message.process_spec
        return cls(
            ProcessId.from_pb(process.id), process.endpoint, message.shard_limit, message.exiting
        )

    def validate(self) -> None:
        """Check identity, endpoint and limit.

        Raises: ValidationError.
        """
        check_field("ProcessSpec.Id", self.id.validate)
        check_field("ProcessSpec.Endpoint", validate_endpoint, self.endpoint)
        if not 0 <= self.shard_limit <= _UINT32_MAX:
            raise ValidationError(f"invalid ShardLimit ({self.shard_limit}; expected 32 bits)")


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """How far a replica is, and why it failed."""

    code: ReplicaCode = ReplicaCode.IDLE
    errors: tuple[str, ...] = ()

    @property
    def is_recovered(self) -> bool:
        """Whether the replica has all of the shard's state."""
        return self.code in (ReplicaCode.STANDBY, ReplicaCode.PRIMARY)

    def fold(self, other: ReplicaStatus) -> ReplicaStatus:
        """Both as one: the greater code, and all errors. So a status never goes back.

        >>> ReplicaStatus(ReplicaCode.STANDBY).fold(ReplicaStatus(ReplicaCode.BACKFILL)).code.name
        'STANDBY'
        """
        return ReplicaStatus(max(self.code, other.code), (*self.errors, *other.errors))

    @staticmethod
    def folded(statuses: Iterable[ReplicaStatus]) -> ReplicaStatus:
        """The status of a whole shard; IDLE if it has no replica."""
        total = ReplicaStatus()
        for status in statuses:
            total = total.fold(status)
        return total

    def to_pb(self) -> pb.ReplicaStatus:
        """The status as a message; that of an idle one has no bytes."""
        message = pb.ReplicaStatus(errors=self.errors)
        message.code = self.code.value  # type: ignore[assignment]
        return message

    @classmethod
    def from_pb(cls, message: pb.ReplicaStatus) -> Self:
        """The status of a message, not validated."""
        return cls(ReplicaCode.from_wire(message.code), tuple(message.errors))

    def validate(self) -> None:
        """Check that the code is known, and that errors and FAILED come together.

        Raises: ValidationError.
        """
        check_field("Code", self.code.require_known)
        if self.errors and self.code is not ReplicaCode.FAILED:
            raise ValidationError(f"expected no Errors with Code {self.code.name}")
        if not self.errors and self.code is ReplicaCode.FAILED:
            raise ValidationError("expected Errors with Code FAILED")


# ------------------------------------------------------------------ rules of requests and responses

# Rules of requests and responses about shards, checked on messages.
#
# As in Gazette, requests of Stat and GetHints have none: a shard of a malformed ID is just not found.

SPEC_SOURCES_MAX: Final = 4096
"""Sources of a shard that is applied: each is read by a task of its own."""


def validate_shard_list_request(request: pb.ListRequest) -> None:
    """Check a request to list shards.

    Raises: ValidationError.
    """
    count = len(request.selector.include.labels) + len(request.selector.exclude.labels)
    if count > SELECTOR_LABELS_MAX:
        raise ValidationError(
            f"invalid number of labels ({count}; expected <= {SELECTOR_LABELS_MAX}; list in parts)",
            path="Selector",
        )
    check_field("Selector", LabelSelector.from_pb(request.selector).validate)


def validate_shard_list_response(response: pb.ListResponse) -> None:
    """Check a listing. Its specs are not held against their rules: one must not hide the others.

    Raises: ValidationError.
    """
    _check_status(response.status)
    check_field("Header", validate_header, response.header)
    for index, shard in enumerate(response.shards):
        check_field(f"Shards[{index}]", _validate_listed_shard, shard)


def _validate_listed_shard(shard: pb.ListResponse.Shard) -> None:
    if shard.mod_revision <= 0:
        raise ValidationError(f"invalid ModRevision ({shard.mod_revision}; expected > 0)")
    check_field("Route", Route.from_pb(shard.route).validate)
    if len(shard.status) != len(shard.route.members):
        raise ValidationError(
            "length of Route.Members and Status are not equal "
            f"({len(shard.route.members)} vs {len(shard.status)})"
        )
    for index, status in enumerate(shard.status):
        check_field(f"Status[{index}]", ReplicaStatus.from_pb(status).validate)


def validate_shard_apply_request(request: pb.ApplyRequest) -> None:
    """Check a request to change shards.

    Raises: ValidationError.
    """
    for index, change in enumerate(request.changes):
        check_field(f"Changes[{index}]", validate_shard_change, change)


def validate_shard_change(change: pb.ApplyRequest.Change) -> None:
    """Check one change of a request.

    Raises: ValidationError.
    """
    revision = change.expect_mod_revision
    if change.HasField("upsert"):
        if change.delete:
            raise ValidationError("both Upsert and Delete are set (expected exactly one)")
        check_field("Upsert", _validate_bounds, change.upsert)
        check_field("Upsert", ShardSpec.from_pb(change.upsert).validate)
        if revision < -1:
            raise ValidationError(f"invalid ExpectModRevision ({revision}; expected >= 0 or -1)")
    elif change.delete:
        check_field("Delete", validate_shard_id, change.delete)
        if revision <= 0 and revision != -1:
            raise ValidationError(f"invalid ExpectModRevision ({revision}; expected > 0 or -1)")
        if change.HasField("primary_hints"):
            raise ValidationError("unexpected PrimaryHints with Delete")
    else:
        raise ValidationError("neither Upsert nor Delete are set (expected exactly one)")


def _validate_bounds(spec: pb.ShardSpec) -> None:
    """Refuse a spec that is so large that it cannot be meant: each process holds all of them."""
    size, labels, sources = spec.ByteSize(), len(spec.labels.labels), len(spec.sources)
    if size > SPEC_BYTES_MAX:
        raise ValidationError(f"invalid size ({size} bytes; expected <= {SPEC_BYTES_MAX})")
    if labels > SPEC_LABELS_MAX:
        raise ValidationError(f"invalid number of Labels ({labels}; expected <= {SPEC_LABELS_MAX})")
    if sources > SPEC_SOURCES_MAX:
        raise ValidationError(
            f"invalid number of Sources ({sources}; expected <= {SPEC_SOURCES_MAX})"
        )
    if spec.hint_backups > HINT_BACKUPS_MAX:
        raise ValidationError(
            f"invalid HintBackups ({spec.hint_backups}; expected <= {HINT_BACKUPS_MAX})"
        )


def validate_shard_apply_response(response: pb.ApplyResponse) -> None:
    """Check the outcome of a change of shards.

    Raises: ValidationError.
    """
    _check_status(response.status)
    check_field("Header", validate_header, response.header)


def validate_shard_stat_response(response: pb.StatResponse) -> None:
    """Check what a shard says of its progress.

    Raises: ValidationError.
    """
    _check_status(response.status)
    check_field("Header", validate_header, response.header)
    _check_offsets("ReadThrough", response.read_through)
    _check_offsets("PublishAt", response.publish_at)


def _check_offsets(field: str, offsets: Mapping[str, int]) -> None:
    for journal, offset in sorted(offsets.items()):
        if offset < 0:
            raise ValidationError(
                f"invalid offset ({offset}; expected >= 0)", path=f"{field}[{journal}]"
            )


def validate_shard_hints_response(response: pb.GetHintsResponse) -> None:
    """Check the status of an answer; what its hints say is checked by who plays them.

    Raises: ValidationError.
    """
    _check_status(response.status)


def validate_shard_unassign_request(request: pb.UnassignRequest) -> None:
    """Check a request to remove assignments.

    Raises: ValidationError.
    """
    for index, shard in enumerate(request.shards):
        check_field(f"Shards[{index}]", validate_shard_id, shard)


def validate_shard_unassign_response(response: pb.UnassignResponse) -> None:
    """Check the outcome of a removal of assignments, which has to be OK.

    Raises: ValidationError.
    """
    status = _check_status(response.status)
    if status is not ShardStatus.OK:
        raise ValidationError(f"invalid Status ({status.name}; expected OK)")
    for index, shard in enumerate(response.shards):
        check_field(f"Shards[{index}]", validate_shard_id, shard)


def _check_status(number: int) -> ShardStatus:
    status = ShardStatus.from_wire(number)
    check_field("Status", status.require_known)
    return status
