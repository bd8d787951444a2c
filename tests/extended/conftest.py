"""Servers that tests of this folder start, kill and starve: their own, besides one etcd a session."""

from server_fixtures import *  # noqa: F403  all of them are fixtures
