"""What tests of this package, and of programs built on it, start and check against.

`EtcdServer` runs a real etcd; `gazette_platform.testing.plugin` offers it as pytest fixtures.
Servers are subprocesses on loopback ports, with a temporary folder each, stopped by process id.
"""

from __future__ import annotations

from gazette_platform.testing.etcd import EtcdServer

__all__ = ["EtcdServer"]
