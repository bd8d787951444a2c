"""The decisions of a shard's life, without the store, journals and etcd that they are about.

Nouns: replica (`replicas`), transaction and barrier (`transaction`), messages that are about to be
consumed (`backlog`), progress (`progress`), resolution
(`resolving`). Their driver reports events to them, and does what they say.
"""

from __future__ import annotations

from gazette_platform.consumer.shard.assignments import (
    MISSING_ID,
    STOPPED_TEXT,
    HeldReplica,
    LocalStep,
    ReplicaStep,
    ReplicaTask,
    ShardResolution,
    changes_that_wait,
    check_proxy_header,
    failed_status,
    local_step,
    replica_step,
    resolve_shard,
    tasks_to_start,
)
from gazette_platform.consumer.shard.transaction import (
    Action,
    Backlog,
    CompletedTransaction,
    Progress,
    TransactionLimits,
    Transactions,
    TransactionTimes,
    count_as_unused,
)

__all__ = [
    "MISSING_ID",
    "STOPPED_TEXT",
    "Action",
    "Backlog",
    "CompletedTransaction",
    "HeldReplica",
    "LocalStep",
    "Progress",
    "ReplicaStep",
    "ReplicaTask",
    "ShardResolution",
    "TransactionLimits",
    "TransactionTimes",
    "Transactions",
    "changes_that_wait",
    "check_proxy_header",
    "count_as_unused",
    "failed_status",
    "local_step",
    "replica_step",
    "resolve_shard",
    "tasks_to_start",
]
