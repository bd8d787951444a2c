"""Typed tables in DuckDB: rows that runs have published, and the tail behind them, each message once."""

import json
import threading
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from gazette_platform import Change, Client, ClientConfig
from gazette_platform.errors import DataError, LakeError, SchemaMismatch, SetupError
from gazette_platform.lake.iceberg_catalog import IcebergCatalog
from gazette_platform.lake.local_sql import connect
from gazette_platform.lake.settings import LakeSettings
from gazette_platform.lake.table_spec import parse_table_spec
from gazette_platform.lake.typed.catalogs import typed_catalog
from gazette_platform.lake.typed.running import TypedRunner
from gazette_platform.lake.typed.working import LocalWorkers
from gazette_platform.message import build_uuid
from gazette_platform.message.uuid import Flags
from gazette_platform.ops.durations import SECOND_NS
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec
from gazette_platform.testing.broker import BrokerServer

pytestmark = pytest.mark.etcd

SPEC = """name: shop.orders
selector: name:prefix={root}/
format: json
columns:
  - {{name: n, type: bigint}}
  - {{name: name, type: string}}
typed:
  uuid: _meta.uuid
"""


@pytest.fixture(scope="module")
def server(etcd_server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("broker")
    with BrokerServer(folder, etcd=etcd_server.endpoint, prefix="/test-typed-view") as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with Client(ClientConfig(address=server.address, file_root=server.fragments)) as client:
        yield client


class Shop:
    """A raw table whose spec has a typed one, journals of it, and runs."""

    def __init__(self, client, root, folder, spec=SPEC):
        self.client = client
        self.journals = [f"{root}/part={part}" for part in ("a", "b")]
        fragment = FragmentSpec(
            length=1 << 20,
            codec=CompressionCodec.GZIP,
            stores=("file:///",),
            refresh_interval_ns=SECOND_NS,
        )
        client.apply(
            [
                Change(JournalSpec(name=name, replication=1, fragment=fragment))
                for name in self.journals
            ]
        )
        self.settings = LakeSettings(
            broker=client.config.address,
            iceberg_catalog=IcebergCatalog.parse(f"sqlite:///{folder}/catalog.db"),
            warehouse=f"file://{folder}/warehouse",
        )
        self.spec = parse_table_spec(spec.format(root=root))

    def append(self, at, *records):
        content = b"".join(json.dumps(record).encode() + b"\n" for record in records)
        self.client.append(self.journals[at], content)

    def flush(self):
        for name in self.journals:
            self.client.flush(f"name={name}")

    def run(self):
        catalog = typed_catalog(self.settings)
        return TypedRunner(catalog, LocalWorkers(), self.client).run(self.spec.typed, self.spec)

    def connect(self):
        return connect([self.spec], client=self.client, settings=self.settings)


@pytest.fixture
def root(request):
    return f"view/{request.node.name}"


@pytest.fixture
def shop(client, root, tmp_path):
    return Shop(client, root, tmp_path)


def record(n, producer=1, clock=None, flags=Flags.OUTSIDE_TXN, **more):
    clock = 1000 + n if clock is None else clock
    return {"_meta": {"uuid": str(build_uuid(bytes([producer]) * 6, clock, flags))}, "n": n} | more


def ask(sql, query):
    return [row if len(row) > 1 else row[0] for row in sql.execute(query).fetchall()]


def test_history_and_tail_are_one_table(shop):
    with shop.connect() as sql:
        all_of = "SELECT n FROM typed.orders ORDER BY n"
        assert ask(sql, all_of) == []
        shop.append(0, record(1), record(2, name="two"))
        assert ask(sql, all_of) == [1, 2]  # no run has made the table
        assert sql.seams()["typed.orders"].snapshot_id is None
        shop.run()
        assert ask(sql, all_of) == [1, 2]
        shop.append(0, record(2), record(3))  # the first one comes again
        shop.append(1, {"n": "none"}, record(4, name="four"))
        shop.flush()
        shop.append(1, record(5))
        assert ask(sql, all_of) == [1, 2, 3, 4, 5]
        seam = sql.seams()["typed.orders"]
        assert (seam.quarantined, seam.holes) == (1, ())
        assert seam.snapshot_id is not None
        heads = shop.client.write_heads if False else None  # noqa: F841
        assert [one.journal for one in seam.journals] == shop.journals
        assert all(one.offset < one.head for one in seam.journals)
        assert ask(sql, 'SELECT n FROM typed."orders$history" ORDER BY n') == [1, 2]
        assert ask(sql, 'SELECT n FROM typed."orders$tail" ORDER BY n') == [3, 4, 5]
        # DuckDB asks for rows and columns; what it does not get back is not there.
        assert ask(sql, "SELECT name FROM typed.orders WHERE n >= 2 AND name IS NOT NULL ORDER BY n") == ["two", "four"]  # fmt: skip
        assert ask(sql, "SELECT count(*) FROM typed.orders") == [5]
        joined = "SELECT count(*) FROM typed.orders a JOIN typed.orders b USING (_uuid)"
        assert ask(sql, joined) == [5]
        told = ask(sql, "SELECT _uuid FROM typed.orders WHERE n = 5")
        assert told == [uuid.UUID(record(5)["_meta"]["uuid"])]
        assert ask(sql, f"SELECT n FROM typed.orders WHERE _uuid = '{told[0]}'") == [5]
