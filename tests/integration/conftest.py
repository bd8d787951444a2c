"""One etcd and three brokers for the whole run; names of its own for each test, and a look at what it left."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from server_fixtures import cluster, start_servers
from shared_servers import Leftovers, Names, SharedBrokers, SharedEtcd, shared_servers

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.protocol.pb import protocol_pb2_grpc
from gazette_platform.testing.local import open_channel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

__all__ = ["cluster", "start_servers"]

# Fixtures that start servers of a test's own.
_OWN: Final = {"broker_cluster", "cluster", "local_brokers", "own_etcd_server", "start_servers"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse tests that start servers of their own, and do not say so."""
    for item in items:
        if item.path.parent != Path(__file__).parent:
            continue
        own = _OWN.intersection(getattr(item, "fixturenames", ()))
        if own and item.get_closest_marker("own_brokers") is None:
            raise pytest.UsageError(f"{item.nodeid}: uses {own}, and is not marked own_brokers")


@pytest.fixture(scope="session")
def shared(
    request: pytest.FixtureRequest, etcd_binary: Path, tmp_path_factory: pytest.TempPathFactory
) -> SharedBrokers:
    """Three brokers, in zones a, b and c, that all tests of the run share."""
    folder = tmp_path_factory.mktemp("shared")
    return shared_servers(request.config, etcd_binary, folder)


@pytest.fixture(scope="session")
def etcd_server(shared: SharedBrokers) -> SharedEtcd:
    """The etcd of the run: its `endpoint`. Tests use it under their own `etcd_prefix`."""
    return shared.etcd


@pytest.fixture(scope="session")
def leftovers(shared: SharedBrokers) -> Iterator[Leftovers]:
    """Looks at the end of each test for what it left."""
    with contextlib.closing(Leftovers(shared)) as leftovers:
        yield leftovers


@pytest.fixture(autouse=True)
def names(request: pytest.FixtureRequest, leftovers: Leftovers) -> Iterator[Names]:
    """Names of this test's own. At its end what has them is removed; the test fails if it left anything else."""
    yield from _names_of(request.node.name, leftovers)


@pytest.fixture(autouse=True)
def _logging() -> Iterator[None]:
    """Undo what a command that ran in this process has set: it would go on to log to stderr."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    for handler in set(root.handlers).difference(handlers):
        if type(handler) is logging.StreamHandler:
            root.removeHandler(handler)


def _names_of(test: str, leftovers: Leftovers) -> Iterator[Names]:
    names = Names(test)
    leftovers.claim(names)
    yield names
    wrong = leftovers.clear(names)
    assert not wrong, f"this test, or one beside it, does not use its own names: {wrong}"


@pytest.fixture
def etcd_prefix(names: Names) -> str:
    """A key prefix of this test's own, without a slash at its end."""
    return names.etcd


@pytest.fixture
async def client(shared: SharedBrokers) -> AsyncIterator[AsyncClient]:
    """A client of the shared brokers; direct reads find their store."""
    config = ClientConfig(address=shared.address, file_root=shared.fragments)
    async with AsyncClient(config) as client:
        yield client


@pytest.fixture
async def stub(shared: SharedBrokers) -> AsyncIterator[protocol_pb2_grpc.JournalStub]:
    """The raw RPCs of `broker-a`."""
    target = shared.address.removeprefix("http://")
    async with open_channel(target) as channel:
        yield protocol_pb2_grpc.JournalStub(channel)
