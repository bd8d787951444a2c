"""The service `consumer.Shard`: who serves a shard, how far it is, and changes of shards.

Nouns: resolution (who serves a shard, and the replica if we do), local replica (our part in a shard),
proxying (a call that another process answers through us), claims (what the caller may ask about).
Guarantee: what is answered is true of one revision of etcd, which is in the header of the answer; a
change has reached our own view before it is answered. Any process answers any call.
"""

from __future__ import annotations

from gazette_platform.consumer.service.etcd_host import EtcdShardHost
from gazette_platform.consumer.service.hints import (
    StoredHints,
    fetch_hints,
    put_primary_hints,
    require_log,
    rotate_hints,
)
from gazette_platform.consumer.service.peers import ConsumerPeers, Page
from gazette_platform.consumer.service.resolver import (
    WAIT_S_MAX,
    LocalReplica,
    ResolvedShard,
    ShardResolver,
)
from gazette_platform.consumer.service.rpcs import ShardGateway, ShardService
from gazette_platform.consumer.service.shard_api import ShardApi

__all__ = [
    "WAIT_S_MAX",
    "ConsumerPeers",
    "EtcdShardHost",
    "LocalReplica",
    "Page",
    "ResolvedShard",
    "ShardApi",
    "ShardGateway",
    "ShardResolver",
    "ShardService",
    "StoredHints",
    "fetch_hints",
    "put_primary_hints",
    "require_log",
    "rotate_hints",
]
