"""Typed tables in a real catalog on disk, PyIceberg's of SQL on SQLite, and runs that publish to them."""

import uuid

from pyiceberg.catalog.sql import SqlCatalog
from typed_files import write_rows

from gazette_platform.lake.iceberg.catalog import CatalogHandle
from gazette_platform.lake.iceberg.publishing import (
    publish_files,
)
from gazette_platform.lake.spec.typed import TypedSpec
from gazette_platform.lake.spec.typed.columns import TypedColumn
from gazette_platform.lake.typed.planning.state import Counts, JournalState
from gazette_platform.lake.typed.tables.quarantine import (
    open_quarantine,
)
from gazette_platform.lake.typed.tables.table import open_table, state_properties, write_state
from gazette_platform.lake.typed.tables.writing import (
    data_file_of,
)

__all__ = ["JOURNAL", "Held", "World", "numbers", "publish", "row", "spec"]

JOURNAL = "raw/flights/part=000/a-name-that-is-longer-than-sixteen-characters"


def spec(columns=("n bigint", "k string"), **more):
    pairs = [text.split(" ", 1) for text in columns]
    return TypedSpec(
        name="typed.flights",
        source="raw.flights",
        uuid=("_meta", "uuid"),
        columns=tuple(TypedColumn(name=name, type=kind, key=name) for name, kind in pairs),
        **more,
    )


def row(n, journal=JOURNAL, **more):
    at = {"_journal": journal, "_begin": n * 10, "_end": n * 10 + 10}
    return {"n": n, "k": f"k{n}", **at, "_uuid": uuid.UUID(int=n).bytes, **more}


class World:
    """A catalog, and handles of its own for each who asks."""

    def __init__(self, folder):
        self.folder = folder
        self.catalogs = []

    def handle(self, name="typed.flights"):
        uri = f"sqlite:///{self.folder / 'catalog.db'}"
        catalog = SqlCatalog("sql", uri=uri, warehouse=self.folder.as_uri())
        self.catalogs.append(catalog)
        return CatalogHandle(catalog, name)

    def location(self):
        return (self.folder / uuid.uuid4().hex).as_uri()

    def open(self, wanted=None):
        handle = self.handle()
        return handle, open_table(handle, wanted or spec(), self.location())

    def quarantine(self):
        handle = self.handle("typed.flights_quarantine")
        open_quarantine(handle, "typed.flights", self.location())
        return handle


def numbers(handle):
    return sorted(handle.load().token.scan().to_arrow()["n"].to_pylist())


def publish(handle, table, ns, *, run="", quarantine="", rows=None, records=0, **told):
    """A run from `table`: rows, records in quarantine, and the state after them."""
    written = [write_rows(table.metadata, rows or [row(n) for n in ns])] if ns or rows else []
    committed = len(ns) + records
    counts = Counts(messages=committed, committed=committed, typed=len(ns), quarantined=records)
    before = table.state.journals.get(JOURNAL, JournalState())
    after = JournalState(offset=before.offset + 10 * len(ns), counts=before.counts + counts)
    state = table.state.with_journals({JOURNAL: after})
    path = write_state(table.location, state, table.io)
    run = run or uuid.uuid4().hex
    files = [data_file_of(one, table.metadata) for one in written]
    properties = state_properties(state, path=path, run=run, quarantine=quarantine)
    return publish_files(handle, table.start, files, run, properties | told)


class Held:
    """A handle whose user is held up between looking and committing, until others are through."""

    def __init__(self, handle, *others):
        self._handle = handle
        self._others = list(others)
        self.name = handle.name

    def load(self):
        return self._handle.load()

    def create(self, new):
        return self._handle.create(new)

    def commit(self, *arguments):
        if self._others:
            self._others.pop(0)()
        self._handle.commit(*arguments)
