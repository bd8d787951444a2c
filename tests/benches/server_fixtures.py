"""Fixtures of servers: brokers, a cluster for each test; servers of the lake and databases, one set a session.

The conftest of a folder imports what its tests may start.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid

import pytest
from catalog_servers import rest_server
from lake_servers import lake_servers, spark_session
from mariadb_server import mariadb as mariadb_server
from object_servers import s3_server
from postgres_server import Postgres, find_postgres
from token_gate import token_gate
from typed_places import places_of

from gazette_platform.hive import MetastoreClient
from gazette_platform.lake.engines.trino import TrinoSession
from gazette_platform.testing.local import LocalBrokers
from gazette_platform.testing.servers import BrokerServer

__all__ = [
    "cluster",
    "gate",
    "lake_bucket",
    "lake_settings",
    "mariadb",
    "metastore",
    "module_broker",
    "places",
    "postgres",
    "rest_catalog_server",
    "spark",
    "start_servers",
    "trino",
]


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


@pytest.fixture(scope="module")
def module_broker(etcd_server, tmp_path_factory):
    """A broker process that the tests of a module share."""
    folder, prefix = tmp_path_factory.mktemp("broker"), f"/module-{uuid.uuid4().hex[:8]}"
    with BrokerServer(folder, etcd=etcd_server.endpoint, prefix=prefix) as server:
        yield server


@pytest.fixture(scope="session")
def lake_bucket(tmp_path_factory):
    """URL of a store on a live S3 server, and its keys; both empty where there is no Go."""
    if not (os.environ.get("GAZETTE_VERSITYGW") or shutil.which("go")):
        yield "", {}
        return
    with s3_server(tmp_path_factory.mktemp("lake-s3")) as server:
        server.make_bucket("lake")
        keys = {
            "AWS_ACCESS_KEY_ID": server.access_key,
            "AWS_SECRET_ACCESS_KEY": server.secret_key,
        }
        yield f"s3://lake/raw/?endpoint={server.endpoint}&region=us-east-1", keys


@pytest.fixture(scope="session")
def lake_settings(tmp_path_factory, lake_bucket):
    """Settings of a live metastore and Trino, over folders and a bucket."""
    store, keys = lake_bucket
    with lake_servers(tmp_path_factory.mktemp("lake"), store=store, keys=keys) as settings:
        yield settings


@pytest.fixture(scope="session")
def metastore(lake_settings):
    """The live metastore."""
    return MetastoreClient(lake_settings.metastore)


@pytest.fixture(scope="session")
def trino(lake_settings):
    """The live Trino."""
    return TrinoSession(lake_settings.trino)


@pytest.fixture(scope="session")
def postgres():
    """A live PostgreSQL."""
    binaries = find_postgres()
    if binaries is None:
        pytest.skip("needs PostgreSQL (apt-get install postgresql, or GAZETTE_POSTGRES)")
    with Postgres(binaries) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb():
    """A live MariaDB."""
    with mariadb_server() as server:
        yield server


@pytest.fixture(scope="session")
def rest_catalog_server(postgres, tmp_path_factory):
    """A live Iceberg REST catalog, over a database of that."""
    with rest_server(postgres, tmp_path_factory.mktemp("rest-catalog")) as server:
        yield server


@pytest.fixture(scope="session")
def gate(rest_catalog_server):
    """A gate before that, which asks for tokens."""
    with token_gate(rest_catalog_server.uri) as gate:
        yield gate


@pytest.fixture(scope="module")
def places(postgres, gate, tmp_path_factory):
    """By ``sql`` and ``rest``: catalogs for typed tables, empty except what the module puts there."""
    database = f"places_{uuid.uuid4().hex[:8]}"
    return places_of(postgres, gate, database, tmp_path_factory.mktemp("warehouse"))


@pytest.fixture(scope="module")
def spark(lake_settings):
    """A Spark session on the live metastore; its JVM ends with the module."""
    with spark_session(lake_settings) as session:
        yield session
