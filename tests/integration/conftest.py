"""Brokers in the test's own process on the etcd of the session, and broker processes that tests share."""

from server_fixtures import cluster, module_broker, start_servers

__all__ = ["cluster", "module_broker", "start_servers"]
