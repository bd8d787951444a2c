"""A process of a consumer group: a member that runs the shards which the allocator assigns to it.

`ConsumerProcess` starts and ends the process, and `run` serves until it has to leave. `ShardReplicas` follows
assignments, `Restarts` retries shards that failed, and `Scratch` holds their files.
Promise: when the process leaves, other members take its shards over first; when it is killed, after the lease.
Cost: one lease and one watch of etcd, however many shards it runs.
"""

from __future__ import annotations

from gazette_platform.consumer.process.replicas import ShardReplicas
from gazette_platform.consumer.process.serve import ConsumerConfig, ConsumerProcess, run

__all__ = ["ConsumerConfig", "ConsumerProcess", "ShardReplicas", "run"]
