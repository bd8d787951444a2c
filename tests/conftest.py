"""Shared fixtures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gazette_platform.testing.etcd import find_etcd

if TYPE_CHECKING:
    from pathlib import Path

pytest_plugins = ("gazette_platform.testing.plugin",)


@pytest.fixture(scope="session")
def etcd_binary() -> Path:
    """The etcd of the environment or of PATH, else the one that the platform installs itself."""
    found = find_etcd()
    if found is not None:
        return found
    from gazette_platform.embedded import tools

    return tools.etcd()
