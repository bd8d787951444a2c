"""Typed tables: made, evolved, published to and read back. Against a real catalog: PyIceberg's of SQL, on SQLite."""

import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from msgspec import structs
from pyarrow import Table
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.update import (
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    SetPropertiesUpdate,
)
from typed_files import write_rows
from typed_world import JOURNAL, Held, World, numbers, publish, row, spec

from gazette_platform.errors import (
    LakeError,
    SchemaMismatch,
    TableFenced,
    TypedProgressGone,
    TypedRolledBack,
)
from gazette_platform.lake.iceberg.catalog import PinnedHandle
from gazette_platform.lake.iceberg.publishing import (
    PROGRESS,
    head_of,
    progress_of,
    publish_files,
    still_at,
    summary_of,
    updates_moving,
)
from gazette_platform.lake.iceberg.snapshots import unnamed_files
from gazette_platform.lake.spec.types import parse_partition
from gazette_platform.lake.typed.iceberg_types import arrow_schema
from gazette_platform.lake.typed.planning.state import TypedState
from gazette_platform.lake.typed.tables.quarantine import (
    open_quarantine,
)
from gazette_platform.lake.typed.tables.table import open_table, write_state
from gazette_platform.lake.typed.tables.writing import (
    WrittenFile,
    data_file_of,
)

pytestmark = pytest.mark.long


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    yield made
    for catalog in made.catalogs:
        catalog.close()


# ------------------------------------------------------------------ made, and found again


def test_table_is_made_published_to_and_found_with_its_state(world):
    handle, table = world.open()
    assert (table.start, table.state, table.run) == (None, TypedState(), "")
    published = publish(handle, table, [1, 2], run="first")
    _, again = world.open()
    assert (again.start, again.run) == (published.snapshot_id, "first")
    assert again.state.journals[JOURNAL].offset == 20
    assert again.offsets == f"{JOURNAL} 20"
    assert numbers(handle) == [1, 2]
    summary = summary_of(again.metadata, again.start)
    assert summary["gazette.offsets"] == f"{JOURNAL} 20"
    assert (summary["gazette.typed-rows"], summary["gazette.quarantined"]) == ("2", "0")
    assert again.metadata.properties["write.wap.enabled"] == "true"
    assert again.metadata.format_version == 2
    assert [f.name for f in again.arrow_schema][-4:] == ["_journal", "_begin", "_end", "_uuid"]


def test_of_two_who_make_it_at_once_one_does(world):
    handles = [world.handle() for _ in range(4)]
    with ThreadPoolExecutor(len(handles)) as pool:
        tables = list(pool.map(lambda d: open_table(d, spec(), world.location()), handles))
    assert len({table.metadata.table_uuid for table in tables}) == 1


def test_values_of_all_types_come_back(world):
    wanted = spec((
        "n bigint", "k string", "price decimal(10,2)", "at timestamptz", "local timestamp", "day date", "id uuid",
        "ok boolean", "ratio double", "raw binary", "tags array<string>", "extra map<string,bigint>",
        "place struct<zip:string,lines:array<int>>",
    ))  # fmt: skip
    handle, table = world.open(wanted)
    values = {
        "price": Decimal("-12.50"), "at": datetime(2026, 1, 2, 3, 4, 5, 678, UTC),
        "local": datetime(1969, 12, 31, 23, 59),  # noqa: DTZ001
        "day": date(2026, 1, 2), "id": uuid.UUID(int=7).bytes,
        "ok": True, "ratio": 0.5, "raw": b"\xff", "tags": ["a", None], "extra": [("a", 1)],
        "place": {"zip": "1", "lines": [1, 2]},
    }  # fmt: skip
    publish(handle, table, [], rows=[row(1, **values), row(2)])
    found = handle.load().token.scan(row_filter="n = 1").to_arrow().to_pylist()
    expected = {**values, "id": uuid.UUID(int=7), "_uuid": uuid.UUID(int=1)}
    assert {key: found[0][key] for key in expected} == expected
    for condition in ("price < 0", "day = '2026-01-02'", "at > '2026-01-01T00:00:00+00:00'"):
        assert len(handle.load().token.scan(row_filter=condition).to_arrow()) == 1


def test_bounds_of_journal_and_offset_are_whole_and_prune(world):
    handle, table = world.open()
    other = JOURNAL + "-and-another"
    for ns, journal in (([1], JOURNAL), ([2], other), ([3], other)):
        _, table = world.open()
        publish(handle, table, [], rows=[row(n, journal) for n in ns])
    scan = handle.load().token.scan(row_filter=f"_journal = '{other}' and _begin >= 30")
    assert [task.file.record_count for task in scan.plan_files()] == [1]
    bounds = [task.file for task in handle.load().token.scan().plan_files()]
    column = table.schema.find_field("_journal").field_id
    assert {f.lower_bounds[column].decode() for f in bounds} == {JOURNAL, other}
    assert all(f.lower_bounds[column] == f.upper_bounds[column] for f in bounds)


@pytest.mark.parametrize(
    ("partition", "value", "condition"),
    [
        ("day(at)", date(2026, 1, 2), "at < '2026-01-03T00:00:00+00:00'"),
        ("price", Decimal("1.50"), "price = 1.50"),
        ("k", "a", "k = 'a'"),
    ],
)
def test_files_are_pruned_by_values_of_their_partition(world, partition, value, condition):
    columns = ("n bigint", "k string", "at timestamptz", "price decimal(10,2)", "id uuid")
    wanted = spec(columns, partitions=(parse_partition(partition),))
    handle, table = world.open(wanted)
    values = {"at": datetime(2026, 1, 2, 5, tzinfo=UTC), "price": Decimal("1.50"), "k": "a"}
    values["id"] = uuid.UUID(int=7).bytes
    written = [
        write_rows(table.metadata, [row(1, **values)], [value]),
        write_rows(table.metadata, [row(2) | {"k": None}], [None]),
    ]
    # They travel as bytes.
    written = [WrittenFile.parse(one.dump()) for one in written]
    files = [data_file_of(one, table.metadata) for one in written]
    publish_files(handle, None, files, "one", {})
    scan = handle.load().token.scan(row_filter=condition)
    assert [task.file.file_path for task in scan.plan_files()] == [written[0].path]
    assert scan.to_arrow()["n"].to_pylist() == [1]


def test_partition_of_uuids_has_them_as_iceberg_does(world):
    """PyIceberg does not find rows by UUIDs, however they are written; engines do."""
    wanted = spec(("n bigint", "k string", "id uuid"), partitions=(parse_partition("id"),))
    handle, table = world.open(wanted)
    written = write_rows(table.metadata, [row(1)], [uuid.UUID(int=7)])
    written = WrittenFile.parse(written.dump())
    publish_files(handle, None, [data_file_of(written, table.metadata)], "one", {})
    (task,) = handle.load().token.scan().plan_files()
    assert task.file.partition[0] == uuid.UUID(int=7)


def test_unexpected_answers_of_workers_are_refused(world):
    with pytest.raises(LakeError, match="workers of another release"):
        WrittenFile.parse(b"\x01")
    _, table = world.open()
    written = write_rows(table.metadata, [row(1)])
    with pytest.raises(LakeError, match="partition spec 5"):
        data_file_of(structs.replace(written, spec_id=5), table.metadata)


# ------------------------------------------------------------------ who comes late


def test_of_runs_from_one_start_one_is_published(world):
    runs = [world.open() for _ in range(4)]
    outcomes = []

    def run(number):
        handle, table = runs[number]
        try:
            outcomes.append((number, publish(handle, table, [number], run=str(number))))
        except TableFenced as err:
            outcomes.append((number, str(err)))

    with ThreadPoolExecutor(len(runs)) as pool:
        list(pool.map(run, range(len(runs))))
    ((winner, published),) = [o for o in outcomes if not isinstance(o[1], str)]
    assert all(
        text.startswith("another run has published to typed.flights")
        for _, text in outcomes
        if isinstance(text, str)
    )
    handle, _ = runs[winner]
    assert numbers(handle) == [winner]
    # Who does not know whether it was, asks again; also when others have gone on.
    again = publish_files(handle, None, [], str(winner), {})
    assert again.snapshot_id == published.snapshot_id
    _, later = world.open()
    publish(handle, later, [9])
    assert publish_files(handle, None, [], str(winner), {}).snapshot_id == published.snapshot_id
    assert numbers(handle) == [winner, 9]


def expire_all_but(handle, *kept):
    loaded = handle.load()
    gone = [s.snapshot_id for s in loaded.metadata.snapshots if s.snapshot_id not in kept]
    handle.commit(loaded, (), (RemoveSnapshotsUpdate.model_validate({"snapshot-ids": gone}),))


def test_zombie_is_fenced_whatever_has_expired(world):
    handle, zombie = world.open()
    for n in (1, 2):
        _, table = world.open()
        publish(handle, table, [n])
    expire_all_but(handle, head_of(handle.load().metadata))
    with pytest.raises(TableFenced):
        publish(handle, zombie, [1])
    assert numbers(handle) == [1, 2]


def by_hand(handle, ns):
    """Another who writes to the table, and knows nothing of us."""
    table = handle.load().token
    table.append(Table.from_pylist([row(n) for n in ns], schema=arrow_schema(table.schema())))


def test_append_goes_on_top_of_what_others_committed(world):
    handle, table = world.open()
    publish(handle, table, [1])
    _, table = world.open()
    by_hand(handle, [8])
    second = publish(handle, table, [2])
    assert progress_of(second.metadata) == head_of(second.metadata) == second.snapshot_id
    assert numbers(handle) == [1, 2, 8]
    # Also if that happens between looking and committing.
    _, table = world.open()
    held = Held(handle, lambda: by_hand(handle, [9]))
    publish(held, table, [3])
    assert numbers(handle) == [1, 2, 3, 8, 9]
    _, last = world.open()
    assert last.state.journals[JOURNAL].offset == 30


def test_run_without_rows_publishes_what_it_read(world):
    handle, table = world.open()
    publish(handle, table, [1])
    _, table = world.open()
    publish(handle, table, [], run="only duplicates")
    _, table = world.open()
    assert table.run == "only duplicates"
    assert numbers(handle) == [1]


def test_first_run_may_find_nothing(world):
    handle, table = world.open()
    publish(handle, table, [], run="nothing")
    _, table = world.open()
    assert (table.run, numbers(handle)) == ("nothing", [])


def test_held_up_between_looking_and_committing_it_is_fenced(world):
    handle, table = world.open()
    held = Held(handle, lambda: publish(world.handle(), table, [1], run="other"))
    with pytest.raises(TableFenced):
        publish(held, table, [1], run="late")
    assert numbers(handle) == [1]


def test_each_publication_is_on_four_conditions(world):
    """Catalogs that refuse what others made impossible would hide that one is missing."""
    handle, table = world.open()
    publish(handle, table, [1])
    _, table = world.open()
    by_hand(handle, [8])
    asked = []
    held = Held(handle)
    held.commit = lambda now, requirements, updates: (
        asked.extend(requirements) or handle.commit(now, requirements, updates)
    )
    before = handle.load().metadata
    publish(held, table, [2])
    assert [one.model_dump(by_alias=True) for one in asked] == [
        {"type": "assert-table-uuid", "uuid": before.table_uuid},
        {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": head_of(before)},
        {"type": "assert-ref-snapshot-id", "ref": PROGRESS, "snapshot-id": table.start},
        {"type": "assert-default-spec-id", "default-spec-id": before.default_spec_id},
    ]


def test_progress_never_expires(world):
    """A table may say for how long references live, and then engines drop those that do not say it themselves."""
    handle, table = world.open()
    publish(handle, table, [1])
    assert handle.load().metadata.refs[PROGRESS].max_ref_age_ms == 2**63 - 1


def test_table_that_others_change_all_the_time_is_reported(world):
    handle, table = world.open()
    publish(handle, table, [1])
    _, table = world.open()
    held = Held(handle, *(lambda: by_hand(world.handle(), [8]) for _ in range(10)))
    with pytest.raises(LakeError, match="changed by others 10 times"):
        publish(held, table, [1])


def test_publishing_by_other_partitions_than_the_table_has_is_fenced(world):
    handle, table = world.open()
    files = [data_file_of(write_rows(table.metadata, [row(1)]), table.metadata)]
    world.open(spec(partitions=(parse_partition("bucket(4, k)"),)))
    with pytest.raises(TableFenced, match="partitioned by spec 1"):
        publish_files(handle, None, files, "late", {})


def test_manifests_stay_few_however_many_runs_there_are(world):
    handle, table = world.open()
    handle.commit(
        handle.load(),
        (),
        (SetPropertiesUpdate(updates={"commit.manifest.min-count-to-merge": "5"}),),
    )
    _, table = world.open()
    file = data_file_of(write_rows(table.metadata, [row(1)]), table.metadata)
    start, most = None, 0
    for number in range(23):
        published = publish_files(handle, start, [file], str(number), {})
        start = published.snapshot_id
        snapshot = published.metadata.current_snapshot()
        most = max(most, len(snapshot.manifests(handle.load().io)))
    assert most == 4
    assert len(numbers(handle)) == 23


# ------------------------------------------------------------------ what a person did


def test_tag_that_was_dropped_is_reported(world):
    handle, table = world.open()
    publish(handle, table, [1])
    _, table = world.open()
    handle.commit(
        handle.load(), (), (RemoveSnapshotRefUpdate.model_validate({"ref-name": PROGRESS}),)
    )
    with pytest.raises(TypedProgressGone, match=f"no tag {PROGRESS}"):
        world.open()
    with pytest.raises(TypedProgressGone):
        publish(handle, table, [2])
    assert numbers(handle) == [1]


def optimize(handle):
    """As engines do: the same rows in other files."""
    table = handle.load().token
    table.overwrite(table.scan().to_arrow())


@pytest.mark.parametrize("is_rolled_back", [False, True])
def test_expiry_by_pyiceberg_which_forgets_parents_is_not_a_rollback(world, is_rolled_back):
    handle, table = world.open()
    first = publish(handle, table, [1]).snapshot_id
    _, table = world.open()
    second = publish(handle, table, [2]).snapshot_id
    if is_rolled_back:
        handle.load().token.manage_snapshots().rollback_to_snapshot(first).commit()
    optimize(handle)
    optimize(handle)
    expire_all_but(handle, second, head_of(handle.load().metadata))
    assert handle.load().metadata.current_snapshot().parent_snapshot_id is None
    if is_rolled_back:
        with pytest.raises(TypedRolledBack):
            world.open()
        return
    _, table = world.open()
    publish(handle, table, [3])
    assert numbers(handle) == [1, 2, 3]


def test_tag_that_alone_was_moved_back_is_reported(world):
    """As between the two statements of a person who goes back, with runs seconds apart."""
    handle, table = world.open()
    first = publish(handle, table, [1]).snapshot_id
    _, table = world.open()
    second = publish(handle, table, [2]).snapshot_id
    optimize(handle)
    _, tag = updates_moving(first)
    handle.commit(handle.load(), (), (tag,))
    with pytest.raises(TypedRolledBack, match=f"published as {second}.*moved back to {first}"):
        world.open()
    handle.load().token.manage_snapshots().rollback_to_snapshot(first).commit()
    _, table = world.open()
    publish(handle, table, [2])
    assert numbers(handle) == [1, 2]


def test_a_table_that_is_made_again_is_another_one(world):
    """Of neither anything was published, so that progress does not tell them apart."""
    handle, table = world.open()
    same = PinnedHandle(handle, table.metadata.table_uuid)
    world.catalogs[0].drop_table("typed.flights")
    _, again = world.open()
    with pytest.raises(TableFenced, match="dropped and recreated"):
        publish(same, table, [1])
    publish(handle, again, [1])
    assert numbers(handle) == [1]


def test_table_that_was_rolled_back_takes_no_more(world):
    handle, table = world.open()
    first = publish(handle, table, [1]).snapshot_id
    _, table = world.open()
    publish(handle, table, [2])
    _, table = world.open()
    handle.load().token.manage_snapshots().rollback_to_snapshot(first).commit()
    with pytest.raises(TypedRolledBack, match=f"rolled back to snapshot {first}"):
        publish(handle, table, [3])
    with pytest.raises(TypedRolledBack):
        world.open()
    assert numbers(handle) == [1]


def test_table_that_is_not_ours_is_left_alone(world):
    handle = world.handle()
    open_quarantine(handle, "typed.others", world.location())
    with pytest.raises(LakeError, match=r"typed\.flights exists and is not a typed table"):
        open_table(handle, spec(), world.location())
    with pytest.raises(LakeError, match=r"is not the quarantine of typed\.flights"):
        open_quarantine(handle, "typed.flights", world.location())


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


def state_path(handle):
    metadata = handle.load().metadata
    named = summary_of(metadata, progress_of(metadata))["gazette.state"]
    return Path(urlsplit(named).path)


def test_state_that_is_gone_or_damaged_is_reported(world):
    handle, table = world.open()
    publish(handle, table, [1])
    path = state_path(handle)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(LakeError, match="cannot be read"):
        world.open()
    path.unlink()
    with pytest.raises(LakeError, match=r"cannot read .*which a snapshot of typed\.flights names"):
        world.open()
    _, other = (
        handle,
        publish_files(handle, table.start or head_of(handle.load().metadata), [], "x", {}),
    )
    with pytest.raises(LakeError, match="names no state"):
        world.open()
    assert other.snapshot_id == progress_of(other.metadata)


# ------------------------------------------------------------------ evolution


def test_table_follows_its_spec_and_keeps_its_rows(world):
    handle, table = world.open(spec(("n int", "k string")))
    publish(handle, table, [1])
    wanted = spec(("n bigint", "more double", "k string"), partitions=(parse_partition("k"),))
    _, table = world.open(wanted)
    assert [f.name for f in table.schema.fields][:3] == ["n", "more", "k"]
    written = write_rows(table.metadata, [row(2, more=0.5)], ["k2"])
    publish_files(handle, table.start, [data_file_of(written, table.metadata)], "two", {})
    rows = handle.load().token.scan().to_arrow().sort_by("n").to_pylist()
    assert [(r["n"], r["more"], r["k"]) for r in rows] == [(1, None, "k1"), (2, 0.5, "k2")]


def test_file_from_before_a_widening_may_be_published_after_it(world):
    handle, table = world.open(spec(("n int", "k string")))
    files = [data_file_of(write_rows(table.metadata, [row(1)]), table.metadata)]
    world.open()
    publish_files(handle, None, files, "late", {})
    assert numbers(handle) == [1]
    assert len(handle.load().token.scan(row_filter="n = 1").to_arrow()) == 1


def test_refused_change_is_reported_as_a_diff_and_changes_nothing(world):
    handle, _ = world.open()
    before = handle.load().metadata
    with pytest.raises(SchemaMismatch, match=r"typed\.flights: (.|\n)*\+ n: string   refused"):
        world.open(spec(("n string", "k string", "more double")))
    assert handle.load().metadata == before


def test_evolution_is_fenced(world):
    handle, table = world.open()
    other = lambda: publish(world.handle(), table, [1])  # noqa: E731
    wider = spec(("n bigint", "k string", "more double"))
    with pytest.raises(TableFenced, match="change its shape"):
        open_table(Held(handle, other), wider, world.location())
    assert "more" not in handle.load().metadata.schema().column_names
    # Maintenance is not a hindrance, nor another who does the same.
    open_table(Held(handle, lambda: by_hand(world.handle(), [8])), wider, world.location())
    widest = spec(("n bigint", "k string", "more double", "most double"))
    same = lambda: world.open(widest)  # noqa: E731
    table = open_table(Held(handle, same), widest, world.location())
    assert table.schema.column_names == handle.load().metadata.schema().column_names
    assert "most" in table.schema.column_names


# ------------------------------------------------------------------ upkeep


def test_side_files_that_no_snapshot_names_are_found_once_they_are_old(world):
    handle, table = world.open()
    first = publish(handle, table, [1])
    _, table = world.open()
    second = publish(handle, table, [2])
    kept = state_path(handle)
    stray = write_state(table.location, TypedState(), table.io)
    mtime = kept.stat().st_mtime
    named = [summary_of(second.metadata, p.snapshot_id)["gazette.state"] for p in (first, second)]
    later = mtime + 3600
    assert unnamed_files(handle, now_s=later, older_than_s=600) == [stray]
    assert unnamed_files(handle, now_s=mtime, older_than_s=600) == []
    expire_all_but(handle, second.snapshot_id)
    assert unnamed_files(handle, now_s=later, older_than_s=600) == sorted([stray, named[0]])
    assert unnamed_files(world.handle("typed.none"), now_s=later, older_than_s=0) == []


def test_catalog_that_broke_off_is_reported_with_the_next_step(world):
    handle, _ = world.open()
    world.catalogs[-1].close()
    (world.folder / "catalog.db").unlink()
    (world.folder / "catalog.db").mkdir()
    with pytest.raises(LakeError, match=r"typed\.flights could not be loaded.*ask again"):
        handle.load()


def test_commit_that_is_not_what_was_required_is_refused(world):
    handle, _ = world.open()
    loaded = handle.load()
    publish(handle, open_table(handle, spec(), ""), [1])
    with pytest.raises(CommitFailedException):
        handle.commit(loaded, (still_at(loaded.metadata, None),), ())
