"""JSON of shards as Go's ``encoding/json`` prints it: durations are nanoseconds, most zero fields are left out.

Protobuf's own dialect is in `protocol.forms`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gazette_platform.consumer.protocol.specs import ShardSpec

__all__ = ["shard_spec_json"]


def shard_spec_json(spec: ShardSpec) -> dict[str, Any]:
    """A spec as plain JSON."""
    labels = [_kept({"name": label.name, "value": label.value}) for label in spec.labels]
    fields: dict[str, Any] = {
        "id": spec.id,
        "sources": [
            {"journal": source.journal, **_kept({"min_offset": source.min_offset})}
            for source in spec.sources
        ],
        "recovery_log_prefix": spec.recovery_log_prefix,
        "hint_prefix": spec.hint_prefix,
        "hint_backups": spec.hint_backups,
        "max_txn_duration": spec.max_txn_duration_ns,
        "min_txn_duration": spec.min_txn_duration_ns,
        "disable": spec.disable,
        "hot_standbys": spec.hot_standbys,
        "labels": {"labels": labels or None},
        "disable_wait_for_ack": spec.disable_wait_for_ack,
        "ring_buffer_size": spec.ring_buffer_size,
        "read_channel_size": spec.read_channel_size,
    }
    # These have no notion of zero in Go: it writes them always.
    always = ("max_txn_duration", "min_txn_duration", "labels")
    return {key: value for key, value in fields.items() if value or key in always}


def _kept(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value}
