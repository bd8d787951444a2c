"""The decisions of a shard's life, without the store, journals and etcd that they are about.

Nouns: replica (`replicas`), transaction and barrier (`transaction`), messages that are about to be
consumed (`backlog`), progress (`progress`), resolution
(`resolving`). Their driver reports events to them, and does what they say.
"""

from __future__ import annotations

from gazette_platform.consumer.shard.backlog import Backlog, count_as_unused
from gazette_platform.consumer.shard.progress import Progress
from gazette_platform.consumer.shard.replicas import (
    HeldReplica,
    ReplicaStep,
    ReplicaTask,
    changes_that_wait,
    failed_status,
    replica_step,
    tasks_to_start,
)
from gazette_platform.consumer.shard.resolving import (
    MISSING_ID,
    STOPPED_TEXT,
    LocalStep,
    ShardResolution,
    check_proxy_header,
    local_step,
    resolve_shard,
)
from gazette_platform.consumer.shard.transaction import (
    Action,
    CompletedTransaction,
    TransactionLimits,
    Transactions,
    TransactionTimes,
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
