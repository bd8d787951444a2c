"""The servers of a run: etcd, a broker, a metastore that can be restarted, and Spark, which maintains and judges."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gazette_platform.client import Client, ClientConfig
from gazette_platform.embedded import tools
from gazette_platform.testing.broker import BrokerServer
from gazette_platform.testing.etcd import EtcdServer, find_etcd
from tests.benches.lake_servers import RestartableMetastore, spark_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from gazette_platform.lake import LakeSettings

__all__ = ["World", "open_world"]


@dataclass(frozen=True)
class World:
    """Servers that run, and where they are."""

    folder: Path
    settings: LakeSettings
    client: Client
    file_root: Path
    """Of the broker's store."""
    spark: Any
    metastore: RestartableMetastore


@contextmanager
def open_world(folder: Path, say: Callable[[str], None]) -> Iterator[World]:
    """Start all servers; they are stopped with the scope.

    Args:
        folder: for what they keep.
        say: is told what is under way.

    Raises: SetupError: one of them cannot be started.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        say("starting a metastore")
        metastore = stack.enter_context(RestartableMetastore(folder / "lake"))
        say("starting etcd and a broker")
        etcd = stack.enter_context(EtcdServer(find_etcd() or tools.etcd()))
        broker = stack.enter_context(
            BrokerServer(
                folder / "broker",
                etcd=etcd.endpoint,
                prefix="/typed-crash",
                lease_s=20.0,  # no broker is to fail here, however busy the machine is
            )
        )
        config = ClientConfig(address=broker.address, file_root=broker.fragments)
        client = stack.enter_context(Client(config))
        say("starting Spark")
        spark = stack.enter_context(spark_session(metastore.settings))
        yield World(folder, metastore.settings, client, broker.fragments, spark, metastore)
