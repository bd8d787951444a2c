"""Rules of requests and responses about shards, checked on messages.

As in Gazette, requests of Stat and GetHints have none: a shard of a malformed ID is just not found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gazette_platform.consumer.protocol.enums import ShardStatus
from gazette_platform.consumer.protocol.specs import (
    HINT_BACKUPS_MAX,
    ReplicaStatus,
    ShardSpec,
    validate_shard_id,
)
from gazette_platform.errors import ValidationError
from gazette_platform.protocol import LabelSelector, Route
from gazette_platform.protocol.names import check_field
from gazette_platform.protocol.routing import validate_header
from gazette_platform.protocol.rules import (
    SELECTOR_LABELS_MAX,
    SPEC_BYTES_MAX,
    SPEC_LABELS_MAX,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gazette_platform.protocol.pb import consumer_pb2 as pb

__all__ = [
    "SPEC_SOURCES_MAX",
    "validate_shard_apply_request",
    "validate_shard_apply_response",
    "validate_shard_change",
    "validate_shard_hints_response",
    "validate_shard_list_request",
    "validate_shard_list_response",
    "validate_shard_stat_response",
    "validate_shard_unassign_request",
    "validate_shard_unassign_response",
]

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
