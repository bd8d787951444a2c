"""A process of a consumer group: a member that runs the shards which are assigned to it.

`ConsumerProcess` starts and ends it, `ShardReplicas` follows assignments, `Restarts` has shards tried again
that have failed, `Scratch` has their files. `run` serves until the process has to leave.
"""

from __future__ import annotations

from gazette_platform.consumer.process.config import ConsumerConfig
from gazette_platform.consumer.process.replicas import ShardReplicas
from gazette_platform.consumer.process.serve import ConsumerProcess, run

__all__ = ["ConsumerConfig", "ConsumerProcess", "ShardReplicas", "run"]
