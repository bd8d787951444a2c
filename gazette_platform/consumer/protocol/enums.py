"""The enums of the consumer protocol. Numbers are those of the wire."""

from __future__ import annotations

from gazette_platform.protocol.enums import WireEnum

__all__ = ["ReplicaCode", "ShardStatus"]


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
