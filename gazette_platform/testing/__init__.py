"""What tests of this package, and of programs built on it, start and check against.

Servers are subprocesses on loopback ports, with a temporary folder each, stopped by process id:
`etcd`, `broker`, `cluster` (brokers in zones), and `local_broker` for brokers in the test's own
event loop; `plugin` offers all of them as pytest fixtures. `fault_proxy` breaks the network between
them. `recording` notes what clients do as a `history`, which `checker` judges; `chaos` puts all of
that together. `stores` has the tests that every fragment store must pass,
`shard_store_conformance` those of every store of a shard, and `fake_broker` is a broker that fails on
demand.
"""

from __future__ import annotations

from gazette_platform.testing.etcd import EtcdServer

__all__ = ["EtcdServer"]
