"""What tests of this package, and of programs built on it, start and check against.

Servers are subprocesses on loopback ports, each with a temporary folder, and are stopped by process id: `etcd`,
`servers` (one broker, one consumer), `cluster` (brokers in zones). `local` has brokers and consumers in the test's own
event loop. `plugin` offers all of them as pytest fixtures, and `fault_proxy` breaks the network between them. Every
fragment store must pass the tests of `store_conformance`, every store of a shard those of `shard_store_conformance`.
`waiting` has the waits.
"""

from __future__ import annotations

from gazette_platform.testing.etcd import EtcdServer

__all__ = ["EtcdServer"]
