"""A typed table over the journals of one test, and what its runs do with it."""

from __future__ import annotations

import pickle

import pytest
from spark_journals import json_lines
from typed_world import World, spec

from gazette_platform import Change
from gazette_platform.errors import LakeError
from gazette_platform.lake.iceberg.catalog import CatalogTables
from gazette_platform.lake.spec.table_spec import TableSpec
from gazette_platform.lake.typed.planning.ranges import Limits
from gazette_platform.lake.typed.runs.running import TypedRunner
from gazette_platform.lake.typed.runs.working import LocalWorkers
from gazette_platform.lake.typed.tables.quarantine import quarantined_rows
from gazette_platform.message import (
    Flags,
    MessageClock,
    build_uuid,
    new_producer_id,
)
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec, LabelSet

OUT = Flags.OUTSIDE_TXN


class Typed:
    """A typed table of the journals of one test, and what its runs do."""

    def __init__(self, client, fragments, prefix, folder):
        self.client = client
        self.root = fragments
        self.prefix = prefix
        self.world = World(folder)
        self.wanted = spec()
        self.raw = TableSpec(
            name="raw.flights", selector=f"name:prefix={self.prefix}/", format="json", columns=()
        )
        self.producer, self.clock = new_producer_id(), MessageClock()

    @property
    def handle(self):
        return self.world.handle()

    def journal(self, part="a", codec=CompressionCodec.GZIP):
        name = f"{self.prefix}/{part}"
        fragment = FragmentSpec(
            length=1 << 20, codec=codec, stores=("file:///",), refresh_interval_ns=SECOND_NS
        )
        labels = LabelSet.of(("content-type", "application/x-ndjson"))
        self.client.apply(
            [Change(JournalSpec(name=name, replication=1, labels=labels, fragment=fragment))]
        )
        return name

    def message(self, n, flags=OUT, **more):
        uuid = build_uuid(self.producer, self.clock.tick(), flags)
        return json_lines({"_meta": {"uuid": str(uuid)}, "n": n, "k": f"k{n}", **more})

    def messages(self, *ns, flags=OUT):
        return b"".join(self.message(n, flags) for n in ns)

    def store(self, name, content):
        """As a fragment of its own. Returns: where it begins."""
        begin = self.client.write_head(name)
        self.client.append(name, content)
        self.client.flush(f"name={name}")
        return begin

    def run(self, threads=2, **limits):
        self.tables = CatalogTables(self.handle._catalog, self.world.folder.as_uri())
        runner = TypedRunner(self.tables, LocalWorkers(threads), self.client)
        return runner.run(self.wanted, self.raw, limits=Limits(**limits))

    def rows(self, name=None):
        table = (
            self.handle.load()
            .token.scan()
            .to_arrow()
            .sort_by([("_journal", "ascending"), ("_begin", "ascending")])
        )
        return [one for one in table.to_pylist() if name in {None, one["_journal"]}]

    def numbers(self, name=None):
        return [one["n"] for one in self.rows(name)]

    def set_aside(self):
        found = quarantined_rows(self.world.handle("typed.flights_quarantine"))
        return [(one["raw"], one["reason"]) for one in found.to_pylist()]

    def job(self):
        """Of a run, and its plan: as `TypedRunner` makes them."""
        taken = []

        class Taking:
            def carry_out(self, job, orders):
                taken.append((pickle.loads(pickle.dumps(job)), list(orders)))
                raise LakeError("taken")

        tables = CatalogTables(self.handle._catalog, self.world.folder.as_uri())
        with pytest.raises(LakeError, match="taken"):
            TypedRunner(tables, Taking(), self.client).run(self.wanted, self.raw)
        return taken[0]

    def files(self):
        """Data files on disk, published or not."""
        return sorted(path.name for path in self.world.folder.rglob("*.parquet"))

    def close(self):
        for catalog in self.world.catalogs:
            catalog.close()
