"""A raw table with a typed one, in journals of a real broker, and runs of it."""

import json

from typed_merges import PythonMerger

from gazette_platform import Change
from gazette_platform.lake.catalog_settings import IcebergCatalog
from gazette_platform.lake.engines.duckdb import connect
from gazette_platform.lake.iceberg.catalog import typed_catalog
from gazette_platform.lake.settings import LakeSettings
from gazette_platform.lake.spec.table_spec import parse_table_spec
from gazette_platform.lake.typed.runs.running import TypedRunner
from gazette_platform.lake.typed.runs.working import LocalWorkers
from gazette_platform.message import build_uuid
from gazette_platform.message.uuid import Flags
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec

__all__ = ["SPEC", "Shop", "record", "typed_spec"]

SPEC = """name: shop.orders
selector: name:prefix={root}/
format: json
columns:
  - {{name: n, type: bigint}}
  - {{name: name, type: string}}
typed:
  uuid: _meta.uuid
"""


class Merging:
    """Workers of this process, and an engine for tables with a key."""

    def __init__(self, merger):
        self.merger = merger
        self.carry_out = LocalWorkers(2).carry_out


class Shop:
    """A raw table whose spec has a typed one, journals of it, and runs."""

    def __init__(self, client, root, folder, spec=SPEC, settings=None):
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
        self.settings = settings or LakeSettings(
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

    def handle(self):
        return typed_catalog(self.settings).handle(self.spec.typed.name)

    def run(self, workers=None, **options):
        workers = workers or Merging(PythonMerger(self.handle()))
        runner = TypedRunner(typed_catalog(self.settings), workers, self.client)
        return runner.run(self.spec.typed, self.spec, **options)

    def connect(self):
        return connect([self.spec], client=self.client, settings=self.settings)


def record(n, producer=1, clock=None, flags=Flags.OUTSIDE_TXN, **more):
    clock = 1000 + n if clock is None else clock
    return {"_meta": {"uuid": str(build_uuid(bytes([producer]) * 6, clock, flags))}, "n": n} | more


def typed_spec(columns, more=""):
    fields = [
        f"    - {{{{name: {n}, type: '{t}'}}}}" for n, t in (c.split(" ", 1) for c in columns)
    ]
    raw = SPEC[: SPEC.index("columns:")] + "columns: [{{name: n, type: bigint}}]\ntyped:\n"
    return "\n".join([raw + "  uuid: _meta.uuid\n  columns:", *fields]) + f"\n{more}"
