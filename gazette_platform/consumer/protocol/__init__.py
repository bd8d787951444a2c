"""The messages of consumers: specs of shards and processes, statuses, checkpoints, and the rules of requests.

All are values, as those of `gazette_platform.protocol`: immutable, free of I/O, read from and written to their
protobuf messages, and checked by `validate` alone. `documents` reads and writes shards as YAML and JSON.
Promise: bytes, field names and error texts are Gazette's.
"""

from __future__ import annotations

from gazette_platform.consumer.protocol.checkpoint import Checkpoint
from gazette_platform.consumer.protocol.documents import (
    ShardChange,
    ShardEntry,
    ShardSpace,
    parse_shard_changes,
    shard_space_of,
    shard_spec_json,
    shards_yaml,
)
from gazette_platform.consumer.protocol.specs import (
    HINT_BACKUPS_MAX,
    ConsumerSpec,
    ReplicaCode,
    ReplicaStatus,
    ShardSource,
    ShardSpec,
    ShardStatus,
    validate_shard_apply_request,
    validate_shard_apply_response,
    validate_shard_change,
    validate_shard_hints_response,
    validate_shard_id,
    validate_shard_list_request,
    validate_shard_list_response,
    validate_shard_stat_response,
    validate_shard_unassign_request,
    validate_shard_unassign_response,
)

__all__ = [
    "HINT_BACKUPS_MAX",
    "Checkpoint",
    "ConsumerSpec",
    "ReplicaCode",
    "ReplicaStatus",
    "ShardChange",
    "ShardEntry",
    "ShardSource",
    "ShardSpace",
    "ShardSpec",
    "ShardStatus",
    "parse_shard_changes",
    "shard_space_of",
    "shard_spec_json",
    "shards_yaml",
    "validate_shard_apply_request",
    "validate_shard_apply_response",
    "validate_shard_change",
    "validate_shard_hints_response",
    "validate_shard_id",
    "validate_shard_list_request",
    "validate_shard_list_response",
    "validate_shard_stat_response",
    "validate_shard_unassign_request",
    "validate_shard_unassign_response",
]
