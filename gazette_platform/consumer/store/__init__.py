"""Where shards keep their state: stores, which commit it together with a checkpoint.

`base` says what every store has to do.
"""

from __future__ import annotations

from gazette_platform.consumer.store.base import ShardStore

__all__ = ["ShardStore"]
