"""The servers of a run: etcd, a broker, a metastore that can be restarted, and Spark, which merges, maintains and judges."""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gazette_platform.client import Client, ClientConfig
from gazette_platform.lake.engines.spark import spark_configuration
from gazette_platform.platform import tools
from gazette_platform.platform.component import HOST, choose_ports
from gazette_platform.testing.etcd import EtcdServer, find_etcd
from gazette_platform.testing.servers import BrokerServer
from tests.benches.lake_servers import RestartableMetastore, configured_spark_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from gazette_platform.lake import LakeSettings

__all__ = ["World", "open_world"]

# Who is killed may hold the lock of a table: others wait for so long then. Engines say all the time that they are alive.
_LOCK_S = 10
_HEARTBEAT_MS = 1000


@dataclass(frozen=True)
class World:
    """Servers that run, and where they are."""

    folder: Path
    settings: LakeSettings
    client: Client
    file_root: Path
    """Of the broker's store."""
    spark: Any
    connect: str
    """Where the same Spark serves others, by Spark Connect: ``sc://host:port``."""
    java: str
    """Home of a Java that Spark runs on."""
    metastore: RestartableMetastore

    def settings_of(self, *, has_engine: bool) -> LakeSettings:
        """Of a life: its Spark is that of the world, or one of its own."""
        master = "local[2]" if has_engine else self.connect
        return replace(self.settings, spark_master=master)


@contextmanager
def open_world(folder: Path, say: Callable[[str], None]) -> Iterator[World]:
    """Start all servers; they are stopped with the scope.

    Args:
        folder: for what they keep.
        say: called with what is under way.

    Raises: SetupError: one of them cannot be started.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        say("starting a metastore")
        metastore = stack.enter_context(
            RestartableMetastore(folder / "lake", {"hive.txn.timeout": f"{_LOCK_S}s"})
        )
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
        java = str(tools.java(21))
        os.environ["JAVA_HOME"] = java
        port = choose_ports(["connect"])["connect"]
        settings = metastore.settings
        properties = {
            "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
            "spark.connect.grpc.binding.address": HOST,
            "spark.connect.grpc.binding.port": str(port),
            "spark.hadoop.iceberg.hive.lock-heartbeat-interval-ms": str(_HEARTBEAT_MS),
        }
        configuration = spark_configuration(settings) | properties
        spark = stack.enter_context(configured_spark_session(configuration))
        # Its server of Spark Connect writes a trace for each life that is killed.
        spark.sparkContext.setLogLevel("OFF")
        connect = f"sc://{HOST}:{port}"
        yield World(folder, settings, client, broker.fragments, spark, connect, java, metastore)
