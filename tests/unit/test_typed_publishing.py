"""Typed tables: made, evolved, published to and read back. Against a real catalog: PyIceberg's of SQL, on SQLite."""

import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from msgspec import structs
from pyarrow import Table
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.update import RemoveSnapshotRefUpdate, RemoveSnapshotsUpdate
from typed_files import write_rows

from gazette_platform.errors import (
    LakeError,
    SchemaMismatch,
    TypedFenced,
    TypedProgressGone,
    TypedRolledBack,
)
from gazette_platform.lake.typed.doors import CatalogDoor
from gazette_platform.lake.typed.iceberg_types import arrow_schema
from gazette_platform.lake.typed.partitions import parse_partition
from gazette_platform.lake.typed.publishing import (
    PROGRESS,
    head_of,
    progress_of,
    publish_files,
    still_at,
    summary_of,
)
from gazette_platform.lake.typed.quarantined import (
    count_rows,
    open_quarantine,
    quarantined_rows,
    settle_quarantine,
    write_list,
)
from gazette_platform.lake.typed.side_files import unnamed_files
from gazette_platform.lake.typed.spec import TypedSpec
from gazette_platform.lake.typed.state import Counts, JournalState, TypedState
from gazette_platform.lake.typed.table import open_table, state_properties, write_state
from gazette_platform.lake.typed.typed_columns import TypedColumn
from gazette_platform.lake.typed.written import (
    WrittenFile,
    data_file_of,
    dump_written,
    parse_written,
)

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
    """A catalog, and doors of its own for each who asks."""

    def __init__(self, folder):
        self.folder = folder
        self.catalogs = []

    def door(self, name="typed.flights"):
        uri = f"sqlite:///{self.folder / 'catalog.db'}"
        catalog = SqlCatalog("sql", uri=uri, warehouse=self.folder.as_uri())
        self.catalogs.append(catalog)
        return CatalogDoor(catalog, name)

    def location(self):
        return (self.folder / uuid.uuid4().hex).as_uri()

    def open(self, wanted=None):
        door = self.door()
        return door, open_table(door, wanted or spec(), self.location())

    def quarantine(self):
        door = self.door("typed.flights_quarantine")
        open_quarantine(door, "typed.flights", self.location())
        return door


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    yield made
    for catalog in made.catalogs:
        catalog.close()


def numbers(door):
    return sorted(door.load().token.scan().to_arrow()["n"].to_pylist())


def publish(door, table, ns, *, run="", quarantine="", rows=None):
    """A run from `table`: rows, and the state behind them."""
    written = [write_rows(table.metadata, rows or [row(n) for n in ns])] if ns or rows else []
    counts = Counts(messages=len(ns), committed=len(ns), typed=len(ns))
    before = table.state.journals.get(JOURNAL, JournalState())
    after = JournalState(offset=before.offset + 10 * len(ns), counts=before.counts + counts)
    state = table.state.with_journals({JOURNAL: after})
    path = write_state(table.location, state, table.io)
    run = run or uuid.uuid4().hex
    files = [data_file_of(one, table.metadata) for one in written]
    properties = state_properties(state, path=path, run=run, quarantine=quarantine)
    return publish_files(door, table.start, files, run, properties)


# ------------------------------------------------------------------ made, and found again


def test_table_is_made_published_to_and_found_with_its_state(world):
    door, table = world.open()
    assert (table.start, table.state, table.run) == (None, TypedState(), "")
    published = publish(door, table, [1, 2], run="first")
    _, again = world.open()
    assert (again.start, again.run) == (published.snapshot_id, "first")
    assert again.state.journals[JOURNAL].offset == 20
    assert again.offsets == f"{JOURNAL} 20"
    assert numbers(door) == [1, 2]
    summary = summary_of(again.metadata, again.start)
    assert summary["gazette.offsets"] == f"{JOURNAL} 20"
    assert (summary["gazette.typed-rows"], summary["gazette.quarantined"]) == ("2", "0")
    assert again.metadata.properties["write.wap.enabled"] == "true"
    assert again.metadata.format_version == 2
    assert [f.name for f in again.arrow_schema][-4:] == ["_journal", "_begin", "_end", "_uuid"]


def test_of_two_who_make_it_at_once_one_does(world):
    doors = [world.door() for _ in range(4)]
    with ThreadPoolExecutor(len(doors)) as pool:
        tables = list(pool.map(lambda d: open_table(d, spec(), world.location()), doors))
    assert len({table.metadata.table_uuid for table in tables}) == 1


def test_values_of_all_types_come_back(world):
    wanted = spec((
        "n bigint", "k string", "price decimal(10,2)", "at timestamptz", "local timestamp", "day date", "id uuid",
        "ok boolean", "ratio double", "raw binary", "tags array<string>", "extra map<string,bigint>",
        "place struct<zip:string,lines:array<int>>",
    ))  # fmt: skip
    door, table = world.open(wanted)
    values = {
        "price": Decimal("-12.50"), "at": datetime(2026, 1, 2, 3, 4, 5, 678, UTC),
        "local": datetime(1969, 12, 31, 23, 59),  # noqa: DTZ001
        "day": date(2026, 1, 2), "id": uuid.UUID(int=7).bytes,
        "ok": True, "ratio": 0.5, "raw": b"\xff", "tags": ["a", None], "extra": [("a", 1)],
        "place": {"zip": "1", "lines": [1, 2]},
    }  # fmt: skip
    publish(door, table, [], rows=[row(1, **values), row(2)])
    found = door.load().token.scan(row_filter="n = 1").to_arrow().to_pylist()
    expected = {**values, "id": uuid.UUID(int=7), "_uuid": uuid.UUID(int=1)}
    assert {key: found[0][key] for key in expected} == expected
    for condition in ("price < 0", "day = '2026-01-02'", "at > '2026-01-01T00:00:00+00:00'"):
        assert len(door.load().token.scan(row_filter=condition).to_arrow()) == 1


def test_bounds_of_journal_and_offset_are_whole_and_prune(world):
    door, table = world.open()
    other = JOURNAL + "-and-another"
    for ns, journal in (([1], JOURNAL), ([2], other), ([3], other)):
        _, table = world.open()
        publish(door, table, [], rows=[row(n, journal) for n in ns])
    scan = door.load().token.scan(row_filter=f"_journal = '{other}' and _begin >= 30")
    assert [task.file.record_count for task in scan.plan_files()] == [1]
    bounds = [task.file for task in door.load().token.scan().plan_files()]
    column = table.schema.find_field("_journal").field_id
    assert {f.lower_bounds[column].decode() for f in bounds} == {JOURNAL, other}
    assert all(f.lower_bounds[column] == f.upper_bounds[column] for f in bounds)


@pytest.mark.parametrize(
    ("partition", "value", "condition"),
    [
        ("day(at)", date(2026, 1, 2), "at < '2026-01-03T00:00:00+00:00'"),
        ("price", Decimal("1.50"), "price = 1.50"),
        ("id", uuid.UUID(int=7), "id = '00000000-0000-0000-0000-000000000007'"),
        ("k", "a", "k = 'a'"),
    ],
)
def test_files_are_pruned_by_values_of_their_partition(world, partition, value, condition):
    columns = ("n bigint", "k string", "at timestamptz", "price decimal(10,2)", "id uuid")
    wanted = spec(columns, partitions=(parse_partition(partition),))
    door, table = world.open(wanted)
    values = {"at": datetime(2026, 1, 2, 5, tzinfo=UTC), "price": Decimal("1.50"), "k": "a"}
    values["id"] = uuid.UUID(int=7).bytes
    written = [
        write_rows(table.metadata, [row(1, **values)], [value]),
        write_rows(table.metadata, [row(2) | {"k": None}], [None]),
    ]
    # They travel as bytes.
    written = [WrittenFile.parse(one.dump()) for one in written]
    files = [data_file_of(one, table.metadata) for one in written]
    publish_files(door, None, files, "one", {})
    scan = door.load().token.scan(row_filter=condition)
    assert [task.file.file_path for task in scan.plan_files()] == [written[0].path]
    assert scan.to_arrow()["n"].to_pylist() == [1]


def test_what_workers_tell_is_refused_if_it_is_something_else(world):
    with pytest.raises(LakeError, match="workers of another release"):
        WrittenFile.parse(b"\x01")
    with pytest.raises(LakeError, match=r"x\.quarantine cannot be read"):
        parse_written(dump_written([])[:0], "x.quarantine")
    _, table = world.open()
    written = write_rows(table.metadata, [row(1)])
    with pytest.raises(LakeError, match="partition spec 5"):
        data_file_of(structs.replace(written, spec_id=5), table.metadata)


# ------------------------------------------------------------------ who comes late


def test_of_runs_from_one_start_one_is_published(world):
    runs = [world.open() for _ in range(4)]
    outcomes = []

    def run(number):
        door, table = runs[number]
        try:
            outcomes.append((number, publish(door, table, [number], run=str(number))))
        except TypedFenced as err:
            outcomes.append((number, str(err)))

    with ThreadPoolExecutor(len(runs)) as pool:
        list(pool.map(run, range(len(runs))))
    ((winner, published),) = [o for o in outcomes if not isinstance(o[1], str)]
    assert all(
        text.startswith("another run has published to typed.flights")
        for _, text in outcomes
        if isinstance(text, str)
    )
    door, _ = runs[winner]
    assert numbers(door) == [winner]
    # Who does not know whether it was, asks again; also when others have gone on.
    again = publish_files(door, None, [], str(winner), {})
    assert again.snapshot_id == published.snapshot_id
    _, later = world.open()
    publish(door, later, [9])
    assert publish_files(door, None, [], str(winner), {}).snapshot_id == published.snapshot_id
    assert numbers(door) == [winner, 9]


def expire_all_but(door, *kept):
    loaded = door.load()
    gone = [s.snapshot_id for s in loaded.metadata.snapshots if s.snapshot_id not in kept]
    door.commit(loaded, (), (RemoveSnapshotsUpdate.model_validate({"snapshot-ids": gone}),))


def test_zombie_is_fenced_whatever_has_expired(world):
    door, zombie = world.open()
    for n in (1, 2):
        _, table = world.open()
        publish(door, table, [n])
    expire_all_but(door, head_of(door.load().metadata))
    with pytest.raises(TypedFenced):
        publish(door, zombie, [1])
    assert numbers(door) == [1, 2]


def by_hand(door, ns):
    """Another who writes to the table, and knows nothing of us."""
    table = door.load().token
    table.append(Table.from_pylist([row(n) for n in ns], schema=arrow_schema(table.schema())))


def test_append_goes_on_top_of_what_others_committed(world):
    door, table = world.open()
    publish(door, table, [1])
    _, table = world.open()
    by_hand(door, [8])
    second = publish(door, table, [2])
    assert progress_of(second.metadata) == head_of(second.metadata) == second.snapshot_id
    assert numbers(door) == [1, 2, 8]
    # Also if that happens between looking and committing.
    _, table = world.open()
    held = Held(door, lambda: by_hand(door, [9]))
    publish(held, table, [3])
    assert numbers(door) == [1, 2, 3, 8, 9]
    _, last = world.open()
    assert last.state.journals[JOURNAL].offset == 30


class Held:
    """A door whose user is held up between looking and committing, until others are through."""

    def __init__(self, door, *others):
        self._door = door
        self._others = list(others)
        self.name = door.name

    def load(self):
        return self._door.load()

    def create(self, new):
        return self._door.create(new)

    def commit(self, *arguments):
        if self._others:
            self._others.pop(0)()
        self._door.commit(*arguments)


def test_run_without_rows_publishes_what_it_read(world):
    door, table = world.open()
    publish(door, table, [1])
    _, table = world.open()
    publish(door, table, [], run="only duplicates")
    _, table = world.open()
    assert table.run == "only duplicates"
    assert numbers(door) == [1]


def test_first_run_may_find_nothing(world):
    door, table = world.open()
    publish(door, table, [], run="nothing")
    _, table = world.open()
    assert (table.run, numbers(door)) == ("nothing", [])


def test_held_up_between_looking_and_committing_it_is_fenced(world):
    door, table = world.open()
    held = Held(door, lambda: publish(world.door(), table, [1], run="other"))
    with pytest.raises(TypedFenced):
        publish(held, table, [1], run="late")
    assert numbers(door) == [1]


def test_table_that_others_change_all_the_time_is_told(world):
    door, table = world.open()
    held = Held(door, *(lambda: by_hand(world.door(), [8]) for _ in range(10)))
    with pytest.raises(LakeError, match="changed by others 10 times"):
        publish(held, table, [1])


def test_publishing_by_other_partitions_than_the_table_has_is_fenced(world):
    door, table = world.open()
    files = [data_file_of(write_rows(table.metadata, [row(1)]), table.metadata)]
    world.open(spec(partitions=(parse_partition("bucket(4, k)"),)))
    with pytest.raises(TypedFenced, match="partitioned by spec 1"):
        publish_files(door, None, files, "late", {})


# ------------------------------------------------------------------ what a person did


def test_tag_that_was_dropped_is_told(world):
    door, table = world.open()
    publish(door, table, [1])
    _, table = world.open()
    door.commit(door.load(), (), (RemoveSnapshotRefUpdate.model_validate({"ref-name": PROGRESS}),))
    with pytest.raises(TypedProgressGone, match=f"no tag {PROGRESS}"):
        world.open()
    with pytest.raises(TypedProgressGone):
        publish(door, table, [2])
    assert numbers(door) == [1]


def test_table_that_was_rolled_back_takes_no_more(world):
    door, table = world.open()
    first = publish(door, table, [1]).snapshot_id
    _, table = world.open()
    publish(door, table, [2])
    _, table = world.open()
    door.load().token.manage_snapshots().rollback_to_snapshot(first).commit()
    with pytest.raises(TypedRolledBack, match=f"rolled back to snapshot {first}"):
        publish(door, table, [3])
    with pytest.raises(TypedRolledBack):
        world.open()
    assert numbers(door) == [1]


def test_table_that_is_not_ours_is_left_alone(world):
    door = world.door()
    open_quarantine(door, "typed.others", world.location())
    with pytest.raises(LakeError, match=r"typed\.flights exists and is no typed table"):
        open_table(door, spec(), world.location())
    with pytest.raises(LakeError, match=r"is not the quarantine of typed\.flights"):
        open_quarantine(door, "typed.flights", world.location())


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"uuid": ()}, "made with `uuid: _meta.uuid`, and its spec says `uuid: none`"),
        ({"source": "raw.other"}, r"has the rows of raw\.flights, and the spec is of raw\.other"),
    ],
)
def test_what_decides_on_rows_is_not_changed(world, change, match):
    world.open()
    with pytest.raises(SchemaMismatch, match=match):
        world.open(structs.replace(spec(), **change))


def state_path(door):
    metadata = door.load().metadata
    named = summary_of(metadata, progress_of(metadata))["gazette.state"]
    return Path(urlsplit(named).path)


def test_state_that_is_gone_or_damaged_is_told(world):
    door, table = world.open()
    publish(door, table, [1])
    path = state_path(door)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(LakeError, match="cannot be read"):
        world.open()
    path.unlink()
    with pytest.raises(LakeError, match=r"cannot read .*which a snapshot of typed\.flights names"):
        world.open()
    _, other = door, publish_files(door, table.start or head_of(door.load().metadata), [], "x", {})
    with pytest.raises(LakeError, match="names no state"):
        world.open()
    assert other.snapshot_id == progress_of(other.metadata)


# ------------------------------------------------------------------ evolution


def test_table_follows_its_spec_and_keeps_its_rows(world):
    door, table = world.open(spec(("n int", "k string")))
    publish(door, table, [1])
    wanted = spec(("n bigint", "more double", "k string"), partitions=(parse_partition("k"),))
    _, table = world.open(wanted)
    assert [f.name for f in table.schema.fields][:3] == ["n", "more", "k"]
    written = write_rows(table.metadata, [row(2, more=0.5)], ["k2"])
    publish_files(door, table.start, [data_file_of(written, table.metadata)], "two", {})
    rows = door.load().token.scan().to_arrow().sort_by("n").to_pylist()
    assert [(r["n"], r["more"], r["k"]) for r in rows] == [(1, None, "k1"), (2, 0.5, "k2")]


def test_file_of_before_a_widening_may_be_published_behind_it(world):
    door, table = world.open(spec(("n int", "k string")))
    files = [data_file_of(write_rows(table.metadata, [row(1)]), table.metadata)]
    world.open()
    publish_files(door, None, files, "late", {})
    assert numbers(door) == [1]
    assert len(door.load().token.scan(row_filter="n = 1").to_arrow()) == 1


def test_refused_change_is_told_as_a_diff_and_changes_nothing(world):
    door, _ = world.open()
    before = door.load().metadata
    with pytest.raises(SchemaMismatch, match=r"typed\.flights: (.|\n)*\+ n: string   refused"):
        world.open(spec(("n string", "k string", "more double")))
    assert door.load().metadata == before


def test_evolution_is_fenced(world):
    door, table = world.open()
    other = lambda: publish(world.door(), table, [1])  # noqa: E731
    wider = spec(("n bigint", "k string", "more double"))
    with pytest.raises(TypedFenced, match="change its shape"):
        open_table(Held(door, other), wider, world.location())
    assert "more" not in door.load().metadata.schema().column_names
    # Maintenance is no hindrance, nor another who does the same.
    open_table(Held(door, lambda: by_hand(world.door(), [8])), wider, world.location())
    widest = spec(("n bigint", "k string", "more double", "most double"))
    same = lambda: world.open(widest)  # noqa: E731
    table = open_table(Held(door, same), widest, world.location())
    assert table.schema.column_names == door.load().metadata.schema().column_names
    assert "most" in table.schema.column_names


# ------------------------------------------------------------------ quarantine


def bad(n, journal=JOURNAL):
    at = {"_journal": journal, "_begin": n * 10, "_end": n * 10 + 10}
    return {**at, "_uuid": None, "reason": f"bad {n}", "raw": b"{"}


def quarantining(world, door, quarantine, ns, *, run=""):
    """A run that sets records aside, and dies before it settles."""
    settle_quarantine(door, quarantine)
    _, table = world.open()
    written = [write_rows(quarantine.load().metadata, [bad(n) for n in ns])] if ns else []
    path = write_list(table.location, written, table.io)
    publish(door, table, [], run=run, quarantine=path)


def offsets(quarantine):
    return quarantined_rows(quarantine)["_begin"].to_pylist()


def test_quarantined_records_come_once(world):
    door, _ = world.open()
    quarantine = world.quarantine()
    assert not settle_quarantine(door, quarantine)
    quarantining(world, door, quarantine, [1, 2])
    assert offsets(quarantine) == []
    assert settle_quarantine(door, quarantine)
    assert not settle_quarantine(door, quarantine)
    quarantining(world, door, quarantine, [])
    assert not settle_quarantine(door, quarantine)
    quarantining(world, door, quarantine, [3])
    # Who publishes next settles it first.
    quarantining(world, door, quarantine, [4])
    assert offsets(quarantine) == [10, 20, 30]
    assert settle_quarantine(door, quarantine)
    assert offsets(quarantine) == [10, 20, 30, 40]


class Then:
    """A door, behind each look of which something happens."""

    def __init__(self, door, *then):
        self._door = door
        self._then = list(then)
        self.name = door.name

    def load(self):
        found = self._door.load()
        if self._then:
            self._then.pop(0)()
        return found

    def commit(self, *arguments):
        self._door.commit(*arguments)


@pytest.mark.parametrize("looks", [1, 2, 3])
@pytest.mark.parametrize("on", ["typed", "quarantine"])
@pytest.mark.parametrize("others", [[], [[]], [[2]], [[2], []], [[2], [3]], [[], [3]]])
def test_zombie_settles_nothing_twice(world, on, looks, others):
    """Whoever is held up, behind any look at either table, while others settle and go on."""
    door, _ = world.open()
    quarantine = world.quarantine()
    quarantining(world, door, quarantine, [1])

    def meanwhile():
        settle_quarantine(door, quarantine)
        for ns in others:
            quarantining(world, door, quarantine, ns)

    waits = [*[lambda: None] * (looks - 1), meanwhile]
    settle_quarantine(
        Then(door, *waits) if on == "typed" else door,
        Then(quarantine, *waits) if on == "quarantine" else quarantine,
    )
    settle_quarantine(door, quarantine)
    # The typed door is looked at once only: then nobody came between.
    came = [n for ns in others for n in ns] if on == "quarantine" or looks == 1 else []
    assert offsets(quarantine) == [10, *(10 * n for n in came)]


def test_several_settle_at_once(world):
    door, _ = world.open()
    quarantine = world.quarantine()
    quarantining(world, door, quarantine, [1, 2])
    doors = [(world.door(), world.quarantine()) for _ in range(4)]
    with ThreadPoolExecutor(len(doors)) as pool:
        settled = list(pool.map(lambda two: settle_quarantine(*two), doors))
    assert Counter(settled)[True] >= 1
    assert offsets(quarantine) == [10, 20]


def test_quarantined_records_are_found_by_journal_and_offset(world):
    door, _ = world.open()
    quarantine = world.quarantine()
    quarantining(world, door, quarantine, [3, 1])
    quarantining(world, door, quarantine, [])
    found = quarantined_rows(quarantine, journal=JOURNAL, begin=11)
    assert found["reason"].to_pylist() == ["bad 3"]
    assert len(quarantined_rows(quarantine, journal="other")) == 0
    assert quarantined_rows(quarantine, limit=1)["_begin"].to_pylist() == [10]
    with pytest.raises(LakeError, match=r"no table typed\.none"):
        quarantined_rows(world.door("typed.none"))


def test_rows_are_counted_by_journal_from_manifests_and_else_by_reading(world):
    door, table = world.open()
    quarantine = world.quarantine()
    publish(door, table, [], rows=[row(1), row(2), row(3, "other")])
    _, table = world.open()
    publish(door, table, [4, 5])
    quarantining(world, door, quarantine, [6])
    quarantining(world, door, quarantine, [7, 8])
    counts = count_rows(door, quarantine)
    assert counts.start == progress_of(door.load().metadata)
    assert (counts.rows, counts.quarantined) == ({JOURNAL: 4, "other": 1}, {JOURNAL: 3})
    settle_quarantine(door, quarantine)
    assert count_rows(door, quarantine) == counts
    assert count_rows(door, None).quarantined == {}


def test_rows_of_two_tables_are_counted_at_one_moment(world):
    door, _ = world.open()
    quarantine = world.quarantine()
    go_on = lambda n: lambda: quarantining(world, door, quarantine, [n])  # noqa: E731
    counts = count_rows(Then(door, go_on(1), lambda: None, go_on(2)), quarantine)
    assert counts.quarantined == {JOURNAL: 2}
    assert counts.start == progress_of(door.load().metadata)
    with pytest.raises(LakeError, match=r"published to typed\.flights 5 times"):
        count_rows(Then(door, *(go_on(n) for n in range(10))), quarantine)


# ------------------------------------------------------------------ upkeep


def test_side_files_that_no_snapshot_names_are_found_once_they_are_old(world):
    door, table = world.open()
    first = publish(door, table, [1])
    _, table = world.open()
    second = publish(door, table, [2])
    kept = state_path(door)
    stray = write_state(table.location, TypedState(), table.io)
    mtime = kept.stat().st_mtime
    named = [summary_of(second.metadata, p.snapshot_id)["gazette.state"] for p in (first, second)]
    later = mtime + 3600
    assert unnamed_files(door, now_s=later, older_than_s=600) == [stray]
    assert unnamed_files(door, now_s=mtime, older_than_s=600) == []
    expire_all_but(door, second.snapshot_id)
    assert unnamed_files(door, now_s=later, older_than_s=600) == sorted([stray, named[0]])
    assert unnamed_files(world.door("typed.none"), now_s=later, older_than_s=0) == []


def test_catalog_that_broke_off_is_told_with_the_next_step(world):
    door, _ = world.open()
    world.catalogs[-1].close()
    (world.folder / "catalog.db").unlink()
    (world.folder / "catalog.db").mkdir()
    with pytest.raises(LakeError, match=r"typed\.flights could not be loaded.*ask again"):
        door.load()


def test_commit_that_is_not_what_was_required_is_refused(world):
    door, _ = world.open()
    loaded = door.load()
    publish(door, open_table(door, spec(), ""), [1])
    with pytest.raises(CommitFailedException):
        door.commit(loaded, (still_at(loaded.metadata, None),), ())
