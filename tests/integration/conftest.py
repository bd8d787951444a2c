"""Brokers in this process or of their own, a cluster a test; servers of the lake, one set a session."""

from __future__ import annotations

import contextlib

import pytest
from lake_servers import lake_servers, spark_session

from gazette_platform.hive import MetastoreClient
from gazette_platform.lake.trino import TrinoSession
from gazette_platform.testing.broker import BrokerServer
from gazette_platform.testing.local_broker import LocalBrokers


@pytest.fixture
async def cluster(etcd_server, etcd_prefix, tmp_path):
    """Starts brokers of one cluster; all are stopped, and must not have failed."""
    async with LocalBrokers(tmp_path, etcd=etcd_server.endpoint, prefix=etcd_prefix) as brokers:
        yield brokers


@pytest.fixture
def start_servers(etcd_server, etcd_prefix, tmp_path):
    """Starts broker processes of one cluster, one a zone, which share a store."""
    with contextlib.ExitStack() as stack:

        def start(*zones, **options):
            return [
                stack.enter_context(
                    BrokerServer(
                        tmp_path / zone,
                        etcd=etcd_server.endpoint,
                        prefix=etcd_prefix,
                        broker_id=f"broker-{zone}",
                        zone=zone,
                        fragments=tmp_path / "fragments",
                        **options,
                    )
                )
                for zone in zones
            ]

        yield start


@pytest.fixture(scope="session")
def lake_settings(tmp_path_factory):
    """Settings of a live metastore and Trino."""
    with lake_servers(tmp_path_factory.mktemp("lake")) as settings:
        yield settings


@pytest.fixture(scope="session")
def metastore(lake_settings):
    """The live metastore."""
    return MetastoreClient(lake_settings.metastore)


@pytest.fixture(scope="session")
def trino(lake_settings):
    """The live Trino."""
    return TrinoSession(lake_settings.trino)


@pytest.fixture(scope="module")
def spark(lake_settings):
    """A Spark session on the live metastore; its JVM ends with the module."""
    with spark_session(lake_settings) as session:
        yield session
