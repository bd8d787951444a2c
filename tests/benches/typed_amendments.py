"""A typed table over journals of a broker whose rows are made again, and what is to be in it then."""

from __future__ import annotations

from random import Random

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table.update import RemoveSnapshotsUpdate

from gazette_platform import Change
from gazette_platform.lake.iceberg.catalog import CatalogTables
from gazette_platform.lake.iceberg.publishing import progress_of
from gazette_platform.lake.spec.table_spec import TableSpec
from gazette_platform.lake.spec.typed import TypedSpec
from gazette_platform.lake.spec.typed.columns import TypedColumn
from gazette_platform.lake.typed.runs.amending import Quarantined, Reprocessor
from gazette_platform.lake.typed.runs.backfilling import BackfillRunner
from gazette_platform.lake.typed.runs.running import TypedRunner
from gazette_platform.lake.typed.runs.working import LocalWorkers
from gazette_platform.lake.typed.tables.quarantine import count_rows
from gazette_platform.lake.typed.tables.table import typed_table
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec, LabelSet
from tests.typed_crash.messages import JournalLog, Writer

__all__ = ["NAME", "QUARANTINE", "Interrupted", "Journals", "everything", "filled", "spec"]

NAME = "typed.flights"
QUARANTINE = "typed.flights_quarantine"
ACTS = ("out", "out", "continue", "ack", "rollback", "again", "odd")


def spec(*, is_strict=False, **more):
    """Of records that may lack `late`, unless it is strict."""
    columns = (
        ("n", "bigint", False),
        ("k", "string", False),
        ("late", "bigint", is_strict),
        ("at", "string", False),
    )
    return TypedSpec(
        name=NAME,
        source="raw.flights",
        uuid=("_meta", "uuid"),
        columns=tuple(
            TypedColumn(name=name, type=kind, key=name, required=required)
            for name, kind, required in columns
        ),
        **more,
    )


class Interrupted:
    """A catalog of one who is held up before each of his first commits to a table, while something happens."""

    def __init__(self, tables, then, table=NAME):
        self._tables, self._then, self._table = tables, then, table
        self.name, self.new_location = tables.name, tables.new_location

    def handle(self, name):
        handle = self._tables.handle(name)
        return _HeldHandle(handle, self._then) if name == self._table else handle


class _HeldHandle:
    def __init__(self, handle, then):
        self._handle, self._then, self.name = handle, then, handle.name
        self.load, self.create = handle.load, handle.create

    def commit(self, *arguments):
        if self._then:
            self._then.pop(0)()
        self._handle.commit(*arguments)


class Journals:
    """A typed table over two journals, with what is known of them."""

    def __init__(self, client, folder, name, seed=1, postfix=""):
        self.client = client
        self.folder = folder
        self.prefix = name
        self.raw = TableSpec(
            name="raw.flights", selector=f"name:prefix={self.prefix}/", format="json", columns=()
        )

        self.catalog = SqlCatalog(
            "sql", uri=f"sqlite:///{folder / 'catalog.db'}", warehouse=folder.as_uri()
        )
        self.tables = CatalogTables(self.catalog, folder.as_uri())
        self.random = Random(seed)
        self.logs = {f"{self.prefix}/part={n}": JournalLog() for n in range(2)}
        self.writers = {name: Writer(Random(seed + n)) for n, name in enumerate(self.logs)}
        self.lacking = set()
        self.outcomes = {}
        fragment = FragmentSpec(
            length=1 << 20,
            codec=CompressionCodec.GZIP,
            stores=("file:///",),
            refresh_interval_ns=SECOND_NS,
            path_postfix_template=postfix,
        )
        labels = LabelSet.of(("content-type", "application/x-ndjson"))
        client.apply(
            [
                Change(JournalSpec(name=name, replication=1, labels=labels, fragment=fragment))
                for name in self.logs
            ]
        )

    def append(self, name, acts=ACTS, *, has_late=True):
        batch = self.writers[name].batch(acts)
        log = self.logs[name]
        first, begin = len(log.messages), log.head
        content = log.add(batch, has_late=has_late)
        if content:
            self.client.append(name, content, offset=begin)
        if not has_late:
            self.lacking |= {(name, one.begin) for one in log.messages[first:]}

    def roll(self):
        self.client.flush(f"name:prefix={self.prefix}/")

    def fits(self, place, wanted):
        return place not in self.lacking or not wanted.columns[2].required

    def committed(self):
        """Of each committed message, by journal and offset, whether it could ever be a row."""
        found = {}
        for name, log in self.logs.items():
            expected = log.expected()
            found |= {(name, begin): True for begin in expected.rows}
            found |= {(name, begin): False for begin in expected.quarantined}
        return found

    def run(self, wanted, tables=None):
        report = TypedRunner(tables or self.tables, LocalWorkers(), self.client).run(
            wanted, self.raw
        )
        for place, good in self.committed().items():
            self.outcomes.setdefault(place, good and self.fits(place, wanted))
        return report

    def backfill(self, wanted, what, tables=None, **more):
        runner = BackfillRunner(tables or self.tables, LocalWorkers(), self.client, **more)
        report = runner.run(wanted, self.raw, what)
        for place, good in self.committed().items():
            name, begin = place
            if (
                any(low <= begin < high for low, high in report.ranges.get(name, ()))
                and place in self.outcomes
            ):
                self.outcomes[place] = good and self.fits(place, wanted)
        return report

    def reprocess(self, wanted, meant=None, tables=None, **more):
        report = Reprocessor(tables or self.tables, **more).run(wanted, meant)
        meant = meant or Quarantined()
        for place, good in self.committed().items():
            name, begin = place
            is_meant = (
                meant.journal in ("", name)
                and meant.begin <= begin
                and (meant.end is None or begin < meant.end)
            )
            if is_meant and place in self.outcomes:
                self.outcomes[place] = self.outcomes[place] or (good and self.fits(place, wanted))
        return report

    def optimize(self):
        """As engines do: the same rows in other files."""
        for name in (NAME, QUARANTINE):
            table = self.catalog.load_table(name)
            rows = table.scan().to_arrow()
            if len(rows):
                table.overwrite(rows)

    def expire(self):
        """What is older than progress. PyIceberg forgets which snapshot the next one was made from, so no more."""
        for name in (NAME, QUARANTINE):
            handle = self.tables.handle(name)
            loaded = handle.load()
            at = loaded.metadata.snapshot_by_id(progress_of(loaded.metadata) or -1)
            if at is None:
                continue
            gone = [
                s.snapshot_id
                for s in loaded.metadata.snapshots
                if s.sequence_number < at.sequence_number
            ]
            if gone:
                handle.commit(
                    loaded, (), (RemoveSnapshotsUpdate.model_validate({"snapshot-ids": gone}),)
                )

    def places(self, name):
        rows = self.catalog.load_table(name).scan().to_arrow()
        return sorted(zip(rows["_journal"].to_pylist(), rows["_begin"].to_pylist(), strict=True))

    def compare(self):
        """Rows and records say what was appended where they begin, whoever made them again."""
        rows = {
            (name, at): row
            for name, log in self.logs.items()
            for at, row in log.expected().rows.items()
        }
        for one in self.catalog.load_table(NAME).scan().to_arrow().to_pylist():
            meant = rows[one["_journal"], one["_begin"]]
            found = (one["_end"], _text(one["_uuid"]), one["n"], one["k"], one["late"], one["at"])
            at = meant.at.replace(" ", "T") + "Z"
            assert found == (meant.end, meant.uuid, meant.n, meant.k, meant.late, at)
        placed = {(name, one.begin): one for name, log in self.logs.items() for one in log.messages}
        for one in self.catalog.load_table(QUARANTINE).scan().to_arrow().to_pylist():
            meant = placed[one["_journal"], one["_begin"]]
            assert one["reason"]
            found = (one["_end"], _text(one["_uuid"]), one["raw"])
            assert found == (meant.end, meant.message.uuid, meant.line)

    def files(self):
        """Of both tables, published or not."""
        return sorted(self.folder.glob("typed.db/*/data/*.parquet"))

    def look(self):
        """Counts are those of rows, also while quarantine is to be settled, and no row exists that should not."""
        handle, quarantine = self.tables.handle(NAME), self.tables.handle(QUARANTINE)
        state = typed_table(handle.load(), NAME).state
        assert state.unaccounted == {}
        counted = count_rows(handle, quarantine)
        for name, one in state.journals.items():
            found = counted.rows.get(name, 0), counted.quarantined.get(name, 0)
            assert (one.counts.typed, one.counts.quarantined) == found
        self.compare()
        places = self.places(NAME)
        assert len(places) == len(set(places))
        assert set(places) <= {place for place, good in self.committed().items() if good}

    def check(self):
        """Each committed message that was read exists once, where it should be, and is counted."""
        rows = sorted(place for place, is_row in self.outcomes.items() if is_row)
        aside = sorted(place for place, is_row in self.outcomes.items() if not is_row)
        assert self.places(NAME) == rows
        self.compare()
        handle, quarantine = self.tables.handle(NAME), self.tables.handle(QUARANTINE)
        counted = count_rows(handle, quarantine)
        state = typed_table(handle.load(), NAME).state
        assert state.unaccounted == {}
        for name, one in state.journals.items():
            typed, quarantined = (
                sum(place[0] == name for place in places) for places in (rows, aside)
            )
            assert (one.counts.typed, one.counts.quarantined) == (typed, quarantined)
            assert (counted.rows.get(name, 0), counted.quarantined.get(name, 0)) == (
                typed,
                quarantined,
            )
        return aside


def filled(world):
    """With messages, half of them in fragments."""
    for name in world.logs:
        for _ in range(3):
            world.append(name, ("out",), has_late=False)
            world.append(name)
        world.roll()
        for _ in range(3):
            world.append(name, ("out",))
            world.append(name)
    return world


def everything(world):
    return {name: [(0, log.head)] for name, log in world.logs.items()}


def _text(value):
    return None if value is None else str(value)
