"""Backfills and reprocessing of typed tables, on journals of a real broker and a real catalog, without a JVM."""

from __future__ import annotations

import uuid
from contextlib import suppress
from random import Random

import pyarrow as pa
import pytest
from gazette_platform.lake.typed.spec import TypedSpec
from gazette_platform.lake.typed.typed_columns import TypedColumn
from msgspec import structs
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table.update import RemoveSnapshotsUpdate

from gazette_platform import Change, Client, ClientConfig
from gazette_platform.errors import LakeError, SchemaMismatch, TypedFenced, ValidationError
from gazette_platform.lake.table_spec import TableSpec
from gazette_platform.lake.typed.backfilling import BackfillRunner
from gazette_platform.lake.typed.catalogs import OtherTables
from gazette_platform.lake.typed.hive_partitions import fragments_of
from gazette_platform.lake.typed.publishing import progress_of, summary_of
from gazette_platform.lake.typed.quarantined import count_rows, quarantined_rows
from gazette_platform.lake.typed.reprocessing import Quarantined, Reprocessor
from gazette_platform.lake.typed.running import COMPLETE_AT, TypedRunner
from gazette_platform.lake.typed.table import typed_table
from gazette_platform.lake.typed.working import LocalWorkers
from gazette_platform.ops.durations import SECOND_NS
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec, LabelSet
from gazette_platform.testing.broker import BrokerServer
from tests.typed_crash.messages import JournalLog, Writer

pytestmark = pytest.mark.etcd

NAME = "typed.flights"
ACTS = ("out", "out", "continue", "ack", "rollback", "again", "odd")


@pytest.fixture(scope="module")
def broker(etcd_server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("broker")
    prefix = "/test-typed-amending"
    with BrokerServer(folder, etcd=etcd_server.endpoint, prefix=prefix, lease_s=30.0) as server:
        yield server


@pytest.fixture(scope="module")
def client(broker):
    with Client(ClientConfig(address=broker.address, file_root=broker.fragments)) as client:
        yield client


def spec(*, is_strict=False, **more):
    """Of records that may lack `late`, unless it is strict."""
    columns = (("n", "bigint", False), ("k", "string", False), ("late", "bigint", is_strict))
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


class Interrupted(OtherTables):
    """A catalog of one who is held up before each of his first commits to a table, while something happens."""

    def __init__(self, catalog, warehouse, then, table=NAME):
        super().__init__(catalog, warehouse)
        self._then, self._table = then, table

    def door(self, name):
        door = super().door(name)
        return _HeldDoor(door, self._then) if name == self._table else door


class _HeldDoor:
    def __init__(self, door, then):
        self._door, self._then, self.name = door, then, door.name
        self.load, self.create = door.load, door.create

    def commit(self, *arguments):
        if self._then:
            self._then.pop(0)()
        self._door.commit(*arguments)


class Journals:
    """A typed table over two journals, with what is known of them."""

    def __init__(self, client, folder, name, seed=1, postfix=""):
        self.client = client
        self.prefix = f"amending/{name}"
        self.raw = TableSpec(
            name="raw.flights", selector=f"name:prefix={self.prefix}/", format="json", columns=()
        )
        self.warehouse = folder.as_uri()
        self.catalog = SqlCatalog(
            "sql", uri=f"sqlite:///{folder / 'catalog.db'}", warehouse=self.warehouse
        )
        self.tables = OtherTables(self.catalog, self.warehouse)
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
            self.lacking |= {(name, begin) for begin, _, _ in log.messages[first:]}

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

    def backfill(self, wanted, what, tables=None):
        runner = BackfillRunner(tables or self.tables, LocalWorkers(), self.client)
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
        for name in (NAME, f"{NAME}_quarantine"):
            table = self.catalog.load_table(name)
            rows = table.scan().to_arrow()
            if len(rows):
                table.overwrite(rows)

    def expire(self):
        """What is older than progress. PyIceberg forgets of which snapshot the next one was made, so no more."""
        for name in (NAME, f"{NAME}_quarantine"):
            door = self.tables.door(name)
            loaded = door.load()
            at = loaded.metadata.snapshot_by_id(progress_of(loaded.metadata) or -1)
            if at is None:
                continue
            gone = [
                s.snapshot_id
                for s in loaded.metadata.snapshots
                if s.sequence_number < at.sequence_number
            ]
            if gone:
                door.commit(
                    loaded, (), (RemoveSnapshotsUpdate.model_validate({"snapshot-ids": gone}),)
                )

    def places(self, name):
        rows = self.catalog.load_table(name).scan().to_arrow()
        return sorted(zip(rows["_journal"].to_pylist(), rows["_begin"].to_pylist(), strict=True))

    def look(self):
        """Counts are those of rows, also while quarantine is to be settled, and no row is there that should not be."""
        door, quarantine = self.tables.door(NAME), self.tables.door(f"{NAME}_quarantine")
        state = typed_table(door.load(), NAME).state
        assert state.unaccounted == {}
        counted = count_rows(door, quarantine)
        for name, one in state.journals.items():
            found = counted.rows.get(name, 0), counted.quarantined.get(name, 0)
            assert (one.counts.typed, one.counts.quarantined) == found
        places = self.places(NAME)
        assert len(places) == len(set(places))
        assert set(places) <= {place for place, good in self.committed().items() if good}

    def check(self):
        """Each committed message that was read is there once, where it should be, and is counted."""
        rows = sorted(place for place, is_row in self.outcomes.items() if is_row)
        aside = sorted(place for place, is_row in self.outcomes.items() if not is_row)
        assert self.places(NAME) == rows
        door, quarantine = self.tables.door(NAME), self.tables.door(f"{NAME}_quarantine")
        counted = count_rows(door, quarantine)
        state = typed_table(door.load(), NAME).state
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


@pytest.fixture
def journals(client, tmp_path):
    made = []

    def make(**more):
        made.append(Journals(client, tmp_path, uuid.uuid4().hex[:8], **more))
        return made[-1]

    yield make
    for one in made:
        one.catalog.close()


def filled(journals, **more):
    world = journals(**more)
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


def test_backfill_makes_rows_anew_by_the_spec_of_now_and_again_the_same(journals):
    world = filled(journals)
    world.run(spec(is_strict=True))
    strict = world.check()
    before = typed_table(world.tables.door(NAME).load(), NAME)
    report = world.backfill(spec(), everything(world))
    assert len(world.check()) < len(strict)
    assert (report.typed_before, report.quarantined_before) == (
        report.typed + report.quarantined - len(strict),
        len(strict),
    )
    assert report.healed == 0
    told = summary_of(report.metadata, report.snapshot_id)
    assert told[COMPLETE_AT] == summary_of(before.metadata, before.start)[COMPLETE_AT]
    for name, one in report.state.journals.items():
        assert (one.offset, one.producers) == (
            before.state.journals[name].offset,
            before.state.journals[name].producers,
        )
    again = world.backfill(spec(), everything(world))
    assert (again.typed, again.quarantined) == (report.typed, report.quarantined)
    assert (again.typed_before, again.quarantined_before) == (report.typed, report.quarantined)
    world.check()
    world.append(next(iter(world.logs)))
    world.run(spec())
    world.check()


def test_rows_that_were_lost_or_are_there_twice_are_healed(journals):
    world = filled(journals)
    world.run(spec())
    aside = world.check()
    table = world.catalog.load_table(NAME)
    rows = table.scan().to_arrow()
    lost, doubled = len(rows) // 3, 2
    # By somebody's hand.
    table.overwrite(pa.concat_tables([rows.slice(lost), rows.slice(lost, doubled)]))
    report = world.backfill(spec(), everything(world))
    assert (report.healed, report.quarantined) == (lost - doubled, len(aside))
    world.check()


def test_backfill_of_a_hive_partition_leaves_the_others_alone(journals):
    world = filled(journals)
    world.run(spec(is_strict=True))
    strict = world.check()
    report = world.backfill(spec(), fragments_of(world.raw, {"part": "1"}))
    (name,) = report.ranges
    # What is in no fragment yet is in no partition.
    ((begin, end),) = report.ranges[name]
    assert (name.endswith("part=1"), begin) == (True, 0)
    assert 0 < end < world.logs[name].head
    left = world.check()
    assert {place for place in strict if not (place[0] == name and place[1] < end)} <= set(left)
    assert len(left) < len(strict)
    nothing = world.backfill(spec(), fragments_of(world.raw, {"part": "2"}))
    assert (nothing.run, nothing.ranges, nothing.state) == ("", {}, report.state)


def test_any_offsets_may_be_asked_for_and_what_no_run_has_read_is_left(journals):
    world = filled(journals)
    world.run(spec(is_strict=True))
    name = next(iter(world.logs))
    read = world.logs[name].head
    world.append(name, ("out",))
    stored = world.logs[name].messages[0][1]
    report = world.backfill(spec(), {name: [(stored - 1, stored + 1), (read - 1, read + 1)]})
    assert report.behind == ((name, read, world.logs[name].head),)
    # The first fragment, and the tail as far as it was read.
    assert [end for _, end in report.ranges[name]][-1] == read
    world.check()
    with pytest.raises(ValidationError, match="there is no journal other"):
        world.backfill(spec(), {"other": [(0, 10)]})
    with pytest.raises(ValidationError, match="hold nothing"):
        world.backfill(spec(), {name: [(9, 9)]})


def test_table_that_no_run_has_written_to_has_nothing_to_make_anew(journals):
    world = filled(journals)
    with pytest.raises(ValidationError, match="never written to"):
        world.backfill(spec(), everything(world))


def test_tables_with_a_key_are_refused(journals):
    world = filled(journals)
    keyed = spec(key=("n",))
    with pytest.raises(SchemaMismatch, match="has the key n"):
        world.backfill(keyed, everything(world))
    with pytest.raises(SchemaMismatch, match="has the key n"):
        world.reprocess(keyed)


def test_runs_go_on_while_rows_are_made_anew(journals):
    world = filled(journals)
    world.run(spec(is_strict=True))

    def meanwhile():
        for name in world.logs:
            world.append(name, ("out",), has_late=False)
        world.run(spec(is_strict=True))

    then = [meanwhile, world.optimize, meanwhile]
    tables = Interrupted(world.catalog, world.warehouse, then)
    report = world.backfill(spec(), everything(world), tables)
    assert not then
    assert {name: one.offset for name, one in report.state.journals.items()} == {
        name: log.head for name, log in world.logs.items()
    }
    assert world.check()


def test_transactions_that_were_open_are_followed_to_where_runs_have_come_meanwhile(journals):
    world = filled(journals)
    name = next(iter(world.logs))
    world.append(name, ("continue",))
    world.append(name, ("continue",), has_late=False)
    world.run(spec())
    before = world.check()

    def meanwhile():
        while world.logs[name].messages[-1][2].kind != "ack":
            world.append(name, ("continue", "out", "ack"))
        for _ in range(6):
            world.append(name, ("ack",))
        world.roll()
        world.run(spec())

    # While it is published, and while that is tried again.
    tables = Interrupted(world.catalog, world.warehouse, [meanwhile, meanwhile])
    report = world.backfill(spec(), everything(world), tables)
    assert report.state.journals[name].offset == world.logs[name].head
    assert len(world.check()) >= len(before)


def test_of_two_backfills_at_once_both_leave_the_table_right(journals):
    world = filled(journals)
    world.run(spec(is_strict=True))
    other = lambda: world.backfill(spec(), everything(world))  # noqa: E731
    tables = Interrupted(world.catalog, world.warehouse, [other])
    report = world.backfill(spec(is_strict=True), everything(world), tables)
    assert report.typed_before > report.typed
    world.check()


# ------------------------------------------------------------------ reprocessing


def test_records_that_fit_by_now_become_rows_though_content_was_pruned(journals, broker):
    world = filled(journals)
    world.run(spec(is_strict=True))
    strict = world.check()
    world.roll()
    for path in broker.fragments.glob(f"{world.prefix}/**/*.gz"):
        path.unlink()
    report = world.reprocess(spec())
    left = world.check()
    assert (report.records, report.typed) == (len(strict), len(strict) - len(left))
    assert report.typed > 0
    again = world.reprocess(spec())
    assert (again.run, again.records, again.typed, again.told_anew) == ("", len(left), 0, 0)
    world.append(next(iter(world.logs)), ("out",))


def test_records_that_stay_are_told_the_reason_of_now(journals):
    world = filled(journals)
    name = next(iter(world.logs))
    world.append(name, ("odd",), has_late=False)
    world.run(spec(is_strict=True))
    wider = structs.replace(spec(is_strict=True), unknown="quarantine")
    before = quarantined_rows(world.tables.door(f"{NAME}_quarantine"))
    reprocessor = Reprocessor(world.tables)
    report = reprocessor.run(wider)
    after = quarantined_rows(world.tables.door(f"{NAME}_quarantine"))
    assert (report.typed, report.told_anew) == (0, 0)
    assert after == before
    # A column that there is now is looked at before `late`.
    columns = (*wider.columns, TypedColumn(name="must", type="bigint", key="must", required=True))
    columns = (columns[0], columns[3], *columns[1:3])
    report = reprocessor.run(structs.replace(wider, columns=columns))
    after = quarantined_rows(world.tables.door(f"{NAME}_quarantine"))
    assert report.typed == 0
    assert report.told_anew > 0
    assert after.drop_columns("reason") == before.drop_columns("reason")
    assert after["reason"] != before["reason"]
    world.check()


def test_records_are_chosen_by_journal_offset_and_reason(journals):
    world = filled(journals)
    world.run(spec(is_strict=True))
    first, second = world.logs
    held = quarantined_rows(world.tables.door(f"{NAME}_quarantine"), journal=first)
    lacking = [
        begin
        for begin, reason in zip(
            held["_begin"].to_pylist(), held["reason"].to_pylist(), strict=True
        )
        if "late" in reason
    ]
    report = world.reprocess(
        spec(), Quarantined(journal=first, begin=lacking[1], end=lacking[2] + 1)
    )
    assert report.typed == 2
    world.check()
    assert Reprocessor(world.tables).run(spec(), Quarantined(reason="no such reason")).records == 0
    parts = Reprocessor(world.tables, records_max=1).run(
        spec(), Quarantined(journal=second, reason="late")
    )
    assert (parts.is_whole, parts.typed > 0) == (False, True)
    world.reprocess(spec())
    world.check()


def test_reprocessing_goes_on_top_of_runs_and_not_of_one_who_took_the_records(journals):
    world = filled(journals)
    world.run(spec(is_strict=True))

    def meanwhile():
        for name in world.logs:
            world.append(name, ("out",), has_late=False)
        world.run(spec(is_strict=True))

    tables = Interrupted(world.catalog, world.warehouse, [meanwhile, world.optimize])
    world.reprocess(spec(), Quarantined(reason="late"), tables)
    # Those of `meanwhile` came too late.
    late = world.places(f"{NAME}_quarantine")
    for place in late:
        world.outcomes[place] = False
    world.check()
    other = lambda: world.reprocess(spec())  # noqa: E731
    with pytest.raises(TypedFenced, match="changed by others"):
        world.reprocess(spec(), None, Interrupted(world.catalog, world.warehouse, [other]))
    world.check()


def test_records_that_are_there_twice_are_not_made_rows(journals):
    world = filled(journals)
    world.run(spec(is_strict=True))
    table = world.catalog.load_table(f"{NAME}_quarantine")
    table.append(table.scan().to_arrow().slice(0, 3))
    with pytest.raises(LakeError, match="has records twice"):
        world.reprocess(spec())
    world.backfill(spec(is_strict=True), everything(world))
    world.check()
    world.reprocess(spec())
    world.check()


# ------------------------------------------------------------------ anything, in any order


class Dead(OtherTables):
    """A catalog of one who dies before he settles quarantine."""

    def door(self, name):
        door = super().door(name)
        return door if name == NAME else _HeldDoor(door, [_die] * 20)


class _Died(BaseException):
    pass


def _die():
    raise _Died


def held_up(world, draw):
    """The catalog of one who is held up while others do something, or who dies."""
    then = [lambda: meanwhile(world, draw) for _ in range(draw.choice([0, 0, 1, 2]))]
    held = draw.choice([NAME, f"{NAME}_quarantine"])
    return draw.choice(
        [
            Interrupted(world.catalog, world.warehouse, then, held),
            Dead(world.catalog, world.warehouse),
        ]
    )


def meanwhile(world, draw):
    with suppress(_Died):
        step(world, draw, draw.choice([world.tables, Dead(world.catalog, world.warehouse)]))


def step(world, draw, tables):
    """Something."""
    name = draw.choice(list(world.logs))
    wanted = spec(is_strict=draw.random() < 0.6)
    acts = (
        "append",
        "append",
        "roll",
        "run",
        "run",
        "backfill",
        "backfill",
        "reprocess",
        "optimize",
        "expire",
    )
    act = draw.choice(acts)
    log = world.logs[name]
    begin = draw.randint(0, max(0, log.head - 1))
    end = draw.randint(begin + 1, log.head + 100)
    match act:
        case "append":
            for _ in range(draw.randint(1, 4)):
                world.append(name, has_late=draw.random() < 0.6)
        case "roll":
            world.roll()
        case "run":
            world.run(wanted, tables)
        case "backfill":
            world.backfill(wanted, draw.choice([{name: [(begin, end)]}, everything(world)]), tables)
        case "reprocess":
            meant = draw.choice([None, Quarantined(journal=name, begin=begin, end=end)])
            world.reprocess(wanted, meant, tables)
        case "optimize":
            world.optimize()
        case _:
            world.expire()


@pytest.mark.parametrize("seed", range(6))
def test_each_message_is_there_once_whatever_is_done_and_whoever_dies(journals, seed):
    world = filled(journals, seed=seed)
    world.run(spec(is_strict=True))
    draw = Random(seed)
    for _ in range(12):
        try:
            step(world, draw, held_up(world, draw))
        except (TypedFenced, _Died):
            continue
        finally:
            world.look()
    world.run(spec(is_strict=True))
    world.look()
    aside = world.places(f"{NAME}_quarantine")
    assert sorted(world.places(NAME) + aside) == sorted(world.committed())
    # Those that fit any spec, and those that fit none.
    assert all(
        place in world.lacking or not good
        for place, good in world.committed().items()
        if place in aside
    )
    assert all(place in aside for place, good in world.committed().items() if not good)
