"""pytest fixtures around a real etcd and a real broker.

Use with ``pytest_plugins = ("gazette_platform.testing.plugin",)`` in the top conftest. Override
the fixture `etcd_binary` to say where else an etcd comes from.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from gazette_platform.etcd import EtcdClient
from gazette_platform.testing.broker import BrokerServer
from gazette_platform.testing.etcd import EtcdServer, find_etcd

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

__all__ = ["broker", "etcd", "etcd_binary", "etcd_prefix", "etcd_server"]

_prefix_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def etcd_binary() -> Path:
    """The etcd to run: ``GAZETTE_ETCD``, else ``PATH``; tests that need one are skipped else."""
    found = find_etcd()
    if found is None:
        pytest.skip("no etcd: set GAZETTE_ETCD, or put etcd on PATH")
    return found


@pytest.fixture(scope="session")
def etcd_server(etcd_binary: Path) -> Iterator[EtcdServer]:
    """One etcd for the whole session. Do not kill or pause it: start your own for that."""
    with EtcdServer(etcd_binary) as server:
        yield server


@pytest.fixture
def etcd_prefix() -> str:
    """A key prefix that no other test of this session uses, without a trailing ``/``."""
    return f"/test-{next(_prefix_numbers):05d}"


@pytest_asyncio.fixture
async def etcd(etcd_server: EtcdServer, etcd_prefix: str) -> AsyncIterator[EtcdClient]:
    """A connected client. `etcd_prefix` is empty at entry, which is asserted, and at exit."""
    async with EtcdClient([etcd_server.endpoint]) as client:
        found = await client.range(etcd_prefix, keys_only=True)
        assert not found.kvs, f"keys of a former test: {[kv.key for kv in found.kvs]}"
        yield client
        await client.delete(etcd_prefix, prefix=True)


@pytest.fixture
def broker(etcd_server: EtcdServer, etcd_prefix: str, tmp_path: Path) -> Iterator[BrokerServer]:
    """A broker process of this test's own, on a key prefix of its own."""
    with BrokerServer(tmp_path, etcd=etcd_server.endpoint, prefix=etcd_prefix) as server:
        yield server
