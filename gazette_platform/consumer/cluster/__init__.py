"""What etcd holds of a consumer group, under keys as those of brokers (`gazette_platform.keyspace`).

Nouns: item (a shard), member (a process), assignment (a process's slot of a shard, whose value is
the status of its replica), hints (where the recovery log is read from). Guarantees and cost are those
of the mirror; the allocator of brokers assigns shards as well.
"""

from __future__ import annotations

from gazette_platform.consumer.cluster.state import (
    ConsumerState,
    ShardAssignment,
)
from gazette_platform.consumer.cluster.values import (
    decode_consumer_spec,
    decode_replica_status,
    decode_shard_spec,
    encode_consumer_spec,
    encode_replica_status,
    encode_shard_spec,
)
from gazette_platform.consumer.cluster.writes import (
    STATUS_RETRY_S,
    GuardedWrite,
    backup_hint_keys,
    log_identity_key,
    primary_hint_key,
    rotate_backup_hints,
    write_log_identity,
    write_primary_hints,
    write_status,
)

__all__ = [
    "STATUS_RETRY_S",
    "ConsumerState",
    "GuardedWrite",
    "ShardAssignment",
    "backup_hint_keys",
    "decode_consumer_spec",
    "decode_replica_status",
    "decode_shard_spec",
    "encode_consumer_spec",
    "encode_replica_status",
    "encode_shard_spec",
    "log_identity_key",
    "primary_hint_key",
    "rotate_backup_hints",
    "write_log_identity",
    "write_primary_hints",
    "write_status",
]
