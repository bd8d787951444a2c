"""pytest fixtures around a real etcd, real brokers, and consumers.

Use with ``pytest_plugins = ("gazette_platform.testing.plugin",)`` in the top conftest. Override
the fixture `etcd_binary` to say where else an etcd comes from.
"""

from __future__ import annotations

import itertools
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.etcd import EtcdClient
from gazette_platform.testing.cluster import BrokerCluster
from gazette_platform.testing.etcd import EtcdServer, find_etcd
from gazette_platform.testing.fault_proxy import FaultProxies
from gazette_platform.testing.local import LocalBrokers, LocalConsumers
from gazette_platform.testing.servers import BrokerServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

__all__ = [
    "broker",
    "broker_cluster",
    "etcd",
    "etcd_binary",
    "etcd_prefix",
    "etcd_server",
    "fault_proxies",
    "local_brokers",
    "local_consumers",
    "own_etcd_server",
]

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
def own_etcd_server(etcd_binary: Path) -> Iterator[EtcdServer]:
    """An etcd of this test's own, to kill, pause and start again."""
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


@pytest_asyncio.fixture
async def local_brokers(
    etcd_server: EtcdServer, etcd_prefix: str, tmp_path: Path
) -> AsyncIterator[LocalBrokers]:
    """Brokers in the test's own event loop: ``await local_brokers.start(zone="a")``."""
    async with LocalBrokers(tmp_path, etcd=etcd_server.endpoint, prefix=etcd_prefix) as brokers:
        yield brokers


@pytest_asyncio.fixture
async def local_consumers(
    local_brokers: LocalBrokers, etcd_server: EtcdServer, etcd_prefix: str, tmp_path: Path
) -> AsyncIterator[LocalConsumers]:
    """A consumer group in the test's own event loop: ``await local_consumers.start(MyApplication())``.

    Its brokers are `local_brokers`, and one is started; ``local_consumers.client`` is a client of them.
    """
    broker = await local_brokers.start()
    async with (
        AsyncClient(ClientConfig(address=broker.endpoint)) as client,
        LocalConsumers(
            tmp_path / "consumers",
            etcd=etcd_server.endpoint,
            prefix=f"{etcd_prefix}-consumers",
            client=client,
        ) as consumers,
    ):
        yield consumers


@pytest_asyncio.fixture
async def broker_cluster(
    etcd_server: EtcdServer, etcd_prefix: str, tmp_path: Path
) -> AsyncIterator[Callable[..., Awaitable[BrokerCluster]]]:
    """Clusters of broker processes on demand: `zones` of ``abc`` starts one in each of three.

    It takes the options of `BrokerCluster`; ``etcd`` may be another server than the session's.
    """
    async with AsyncExitStack() as stack:

        async def start(**options: Any) -> BrokerCluster:
            defaults = {"etcd": etcd_server.endpoint, "prefix": etcd_prefix}
            cluster = BrokerCluster(tmp_path, **(defaults | options))
            return await stack.enter_async_context(cluster)

        yield start


@pytest_asyncio.fixture
async def fault_proxies() -> AsyncIterator[FaultProxies]:
    """A network to break: ``await fault_proxies.add("store", host, port)``."""
    async with FaultProxies() as proxies:
        yield proxies
