"""What tests of this package, and of programs built on it, start and check against.

Servers are subprocesses on loopback ports, each with a temporary folder, and are stopped by process id: `etcd`,
`servers` (one broker, one consumer), `cluster` (brokers in zones). `local` runs brokers and consumers in the event loop of
the test. `plugin` offers all of them as pytest fixtures, `fault_proxy` breaks the network between them, and
`waiting` waits for conditions. Every fragment store must pass the tests of `store_conformance`, every store of a
shard those of `shard_store_conformance`.
Promise: no server is a stub, and nothing outlives the test session.
Cost: an etcd starts in 0.1 to 0.3 s; one serves the whole session.
"""

from __future__ import annotations

from gazette_platform.testing.etcd import EtcdServer

__all__ = ["EtcdServer"]
