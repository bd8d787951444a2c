"""Servers of the lake, one set a session."""

from server_fixtures import *  # noqa: F403  all of them are fixtures
