"""Commits of rollups: whole or absent, and none by who comes late. On real Iceberg files."""

import os
import re
from dataclasses import replace
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest
import sqlglot
from lake_bench import MemoryMetastore
from msgspec import structs
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io import load_file_io
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable, Table
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import RemoveSnapshotsUpdate, update_table_metadata
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, LongType, NestedField, StringType
from thrift.transport.TTransport import TTransportException

from gazette_platform.errors import LakeError, TableFenced
from gazette_platform.hive.model import ttypes
from gazette_platform.lake.iceberg.metastore import IcebergTables
from gazette_platform.lake.iceberg.publishing import COVERS, PROGRESS
from gazette_platform.lake.iceberg.snapshots import RETAINED_S, maintenance_statements
from gazette_platform.lake.rollups import Covers, RollupSpec, Seen, SliceCover
from gazette_platform.lake.rollups.spec import STAGING_SCHEMA
from gazette_platform.lake.rollups.table import (
    Commit,
    commit,
    covers_path,
    maintain,
    read_covers,
)

SPEC = RollupSpec(
    name="rollups.sums",
    engine="trino",
    sql="select * from f",
    sources={"f": "t.f"},
    slices=("origin", "day"),
)
SCHEMA = Schema(
    NestedField(1, "origin", StringType(), required=False),
    NestedField(2, "day", DateType(), required=False),
    NestedField(3, "n", LongType(), required=False),
)
PARTITIONED = PartitionSpec(
    PartitionField(1, 1000, IdentityTransform(), "origin"),
    PartitionField(2, 1001, IdentityTransform(), "day"),
)
JFK, EWR, LGA = ("JFK", "2026-01-02"), ("EWR", "2026-01-02"), ("LGA", "2026-01-03")


def covers(ends, spec=SPEC):
    """What slices cover: the first bytes of a journal each."""
    slices = {
        values: SliceCover(
            spec.code_version, {"f": {"p": Seen(f"j/{''.join(values[:1])}", ((0, end),))}}
        )
        for values, end in ends.items()
    }
    return Covers(slices, spec.slices)


class Rollup:
    """A rollup on disk, and what runs of it stage and commit."""

    def __init__(self, folder):
        self.metastore = MemoryMetastore()
        self.tables = IcebergTables(self.metastore, folder.as_uri())
        self.location = self.tables.new_location("rollups", "sums")
        self.staged = 0
        for name in ("rollups", STAGING_SCHEMA):
            self.tables.ensure_database(name)

    def load(self):
        return self.tables.load("rollups", "sums")

    def stage(self, rows, *, schema=SCHEMA, partitions=PARTITIONED):
        """Write a staging table as an engine would. Rows: (origin, day, n)."""
        self.staged += 1
        name = f"sums_{self.staged}"
        location = f"{self.location}/data/{name}"
        io = load_file_io({}, location)
        metadata = new_table_metadata(schema, partitions, UNSORTED_SORT_ORDER, location, {})
        table = Table((STAGING_SCHEMA, name), metadata, "", io, NoopCatalog("none"))
        columns = list(zip(*rows, strict=True)) if rows else [[]] * len(schema.fields)
        transaction = table.transaction()
        arrow = schema.as_arrow()
        transaction.append(
            pa.table(
                [pa.array(c, f.type) for c, f in zip(columns, arrow, strict=True)], schema=arrow
            )
        )
        metadata = transaction.table_metadata
        path = self.tables.write_metadata(metadata, 0)
        assert self.tables.create(STAGING_SCHEMA, name, metadata, path)
        return name

    def plan(self, rows, ends, *, spec=SPEC, **staged):
        """A commit of `rows` into the table as it is now."""
        base = self.load()
        made = sorted(ends)
        former = read_covers(self.tables, base)
        return Commit(
            spec=spec,
            base=base and base.metadata,
            former=covers_path(base.metadata) if base else "",
            location=self.location,
            staging=self.stage(rows, **staged),
            replaced=made,
            made=made,
            covers=Covers({**former.slices, **covers(ends, spec).slices}, spec.slices),
            replaces_all=False,
        )

    def commit(self, rows, ends, **options):
        return commit(self.tables, self.plan(rows, ends, **options))

    def rows(self):
        table = StaticTable.from_metadata(self.load().metadata_location)
        found = table.scan().to_arrow().to_pylist()
        return sorted((r["origin"], r["n"]) for r in found)

    def covered(self):
        found = read_covers(self.tables, self.load()).offsets()
        return {journal: ranges[-1][1] for journal, ranges in found.items()}

    def by_engine(self, change):
        """Change the table as an engine does; `change` gets a transaction."""
        loaded = self.load()
        io = self.tables.io(loaded.metadata_location)
        table = Table(("rollups", "sums"), loaded.metadata, "", io, NoopCatalog("none"))
        transaction = table.transaction()
        change(transaction)
        metadata = transaction.table_metadata
        assert self.tables.swap(loaded, self.tables.write_metadata(metadata, loaded.version + 1))

    def roll_back(self, snapshot_id):
        table = self.load()
        refs = dict(table.metadata.refs)
        refs["main"] = refs["main"].model_copy(update={"snapshot_id": snapshot_id})
        update = {"current_snapshot_id": snapshot_id, "refs": refs}
        path = self.tables.write_metadata(table.metadata.model_copy(update=update), 9)
        assert self.tables.swap(table, path)


@pytest.fixture
def rollup(tmp_path):
    return Rollup(tmp_path)


def day(text):
    return date.fromisoformat(text)


def rows(*found):
    return [(values[0], day(values[1]), n) for values, n in found]


def optimize(transaction):
    """Write all rows into new files, as maintenance does."""
    transaction.overwrite(transaction._scan().to_arrow())


def test_first_commit_makes_the_table(rollup):
    done = rollup.commit(rows((JFK, 1), (JFK, 2), (EWR, 3)), {JFK: 10, EWR: 20})
    assert (done.rows, done.rows_total, done.files) == (3, 3, 2)
    assert rollup.rows() == [("EWR", 3), ("JFK", 1), ("JFK", 2)]
    assert rollup.covered() == {"j/EWR": 20, "j/JFK": 10}
    table = rollup.load()
    assert table.slice_types() == {"origin": "string", "day": "date"}
    # One that makes the table, and one that fills it.
    assert table.version == 1
    summary = table.snapshot.summary.additional_properties
    assert summary["gazette.offsets"] == "j/EWR 0-20; j/JFK 0-10"
    assert (summary["gazette.slices"], summary["gazette.slices-made"]) == ("2", "2")


def test_slices_are_replaced_as_a_whole_and_others_stay(rollup):
    rollup.commit(rows((JFK, 1), (JFK, 2), (EWR, 3)), {JFK: 10, EWR: 20})
    before = {f.file_path for f in rollup.tables.data_files(rollup.load()) if "EWR" in f.file_path}
    done = rollup.commit(rows((JFK, 5), (LGA, 6)), {JFK: 11, LGA: 1})
    assert (done.rows, done.rows_total) == (2, 3)
    assert rollup.rows() == [("EWR", 3), ("JFK", 5), ("LGA", 6)]
    assert rollup.covered() == {"j/EWR": 20, "j/JFK": 11, "j/LGA": 1}
    assert before <= {f.file_path for f in rollup.tables.data_files(rollup.load())}
    # A slice whose query gives nothing is empty, and covered.
    rollup.commit(rows((LGA, 7)), {JFK: 12, LGA: 2})
    assert rollup.rows() == [("EWR", 3), ("LGA", 7)]
    assert rollup.covered()["j/JFK"] == 12
    assert len(rollup.load().metadata.snapshots) == 3


def test_slices_are_dropped(rollup):
    rollup.commit(rows((JFK, 1), (EWR, 3)), {JFK: 10, EWR: 20})
    base = rollup.load()
    left = read_covers(rollup.tables, base).with_slices({}, [EWR])
    done = commit(
        rollup.tables,
        Commit(
            spec=SPEC,
            base=base.metadata,
            former=covers_path(base.metadata),
            location=rollup.location,
            staging="",
            replaced=[EWR],
            made=[],
            covers=left,
            replaces_all=False,
        ),
    )
    assert (done.rows, done.rows_total) == (0, 1)
    assert rollup.rows() == [("JFK", 1)]
    assert rollup.covered() == {"j/JFK": 10}


# ------------------------------------------------------------------ the fence


def test_who_comes_late_changes_nothing(rollup):
    rollup.commit(rows((JFK, 1), (EWR, 1)), {JFK: 10, EWR: 10})
    zombie = rollup.plan(rows((JFK, 2)), {JFK: 20})
    other = rollup.plan(rows((EWR, 2)), {EWR: 20})
    rollup.commit(rows((JFK, 3)), {JFK: 30})
    location = rollup.load().metadata_location
    for late in (zombie, other):
        with pytest.raises(TableFenced, match=r"another run has committed to rollups\.sums"):
            commit(rollup.tables, late)
    assert rollup.load().metadata_location == location
    assert rollup.rows() == [("EWR", 1), ("JFK", 3)]
    assert rollup.covered() == {"j/EWR": 10, "j/JFK": 30}


def test_who_makes_the_table_late_changes_nothing(rollup):
    zombie = rollup.plan(rows((JFK, 1)), {JFK: 10})
    rollup.commit(rows((JFK, 2)), {JFK: 20})
    with pytest.raises(TableFenced):
        commit(rollup.tables, zombie)
    assert rollup.rows() == [("JFK", 2)]


def test_a_table_that_others_made_meanwhile_is_left_alone(rollup):
    """It covers nothing, as no table at all does."""
    planned = rollup.plan(rows((JFK, 1)), {JFK: 10})
    foreign = rollup.tables.load(STAGING_SCHEMA, rollup.stage(rows((EWR, 2))))
    location = foreign.metadata_location
    assert rollup.tables.create("rollups", "sums", foreign.metadata, location)
    with pytest.raises(TableFenced):
        commit(rollup.tables, planned)
    assert rollup.load().metadata_location == location


def test_metastore_compares_for_who_was_held_up_between_looking_and_writing(rollup, monkeypatch):
    """The lock of a table ends by itself while its holder is frozen."""
    rollup.commit(rows((JFK, 1)), {JFK: 10})
    zombie = rollup.plan(rows((JFK, 2)), {JFK: 20})
    quicker = rollup.plan(rows((JFK, 3)), {JFK: 30})
    thrift = rollup.metastore.thrift
    alter = thrift.alter_table_with_environment_context

    def frozen(*arguments):
        monkeypatch.undo()
        thrift._locks.clear()
        commit(rollup.tables, quicker)
        alter(*arguments)

    monkeypatch.setattr(thrift, "alter_table_with_environment_context", frozen)
    with pytest.raises(TableFenced):
        commit(rollup.tables, zombie)
    assert rollup.rows() == [("JFK", 3)]
    assert rollup.covered() == {"j/JFK": 30}


@pytest.mark.parametrize("takes_effect", [True, False])
def test_lost_answer_is_an_error_and_the_next_run_sees_what_became_of_it(
    rollup, monkeypatch, takes_effect
):
    rollup.commit(rows((JFK, 1)), {JFK: 10})
    planned = rollup.plan(rows((JFK, 2)), {JFK: 20})
    thrift = rollup.metastore.thrift
    alter = thrift.alter_table_with_environment_context

    def lost(*arguments):
        if takes_effect:
            alter(*arguments)
        raise TTransportException(message="the connection broke")

    with monkeypatch.context() as patch:
        patch.setattr(thrift, "alter_table_with_environment_context", lost)
        with pytest.raises(LakeError, match=r"broke off commit to rollups\.sums: the connection"):
            commit(rollup.tables, planned)
    assert rollup.rows() == [("JFK", 2 if takes_effect else 1)]
    assert rollup.covered() == {"j/JFK": 20 if takes_effect else 10}
    rollup.commit(rows((JFK, 3)), {JFK: 30})
    assert rollup.rows() == [("JFK", 3)]


# ------------------------------------------------------------------ beside maintenance


def test_maintenance_does_not_hinder(rollup):
    rollup.commit(rows((JFK, 1), (EWR, 3)), {JFK: 10, EWR: 20})
    planned = rollup.plan(rows((JFK, 2)), {JFK: 20})
    rollup.by_engine(optimize)
    assert rollup.covered() == {"j/EWR": 20, "j/JFK": 10}
    commit(rollup.tables, planned)
    assert rollup.rows() == [("EWR", 3), ("JFK", 2)]
    assert rollup.covered() == {"j/EWR": 20, "j/JFK": 20}


def expire(rollup):
    """Remove all snapshots that no branch and no tag names, as engines do."""
    table = rollup.load()
    named = {ref.snapshot_id for ref in table.metadata.refs.values()}
    expired = [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id not in named]
    update = RemoveSnapshotsUpdate(snapshot_ids=expired)
    metadata = update_table_metadata(table.metadata, (update,))
    assert rollup.tables.swap(table, rollup.tables.write_metadata(metadata, table.version + 1))


def test_covers_are_known_once_snapshots_expired(rollup):
    rollup.commit(rows((EWR, 1)), {EWR: 10})
    rollup.commit(rows((JFK, 1)), {JFK: 10})
    tagged = rollup.load().metadata.refs[PROGRESS].snapshot_id
    for _ in range(3):
        rollup.by_engine(optimize)
        expire(rollup)
    table = rollup.load()
    left = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
    assert left == {tagged, table.snapshot.snapshot_id}
    assert table.snapshot.parent_snapshot_id is None
    assert rollup.covered() == {"j/EWR": 10, "j/JFK": 10}
    rollup.commit(rows((JFK, 2)), {JFK: 20})
    assert rollup.covered() == {"j/EWR": 10, "j/JFK": 20}


def test_table_that_was_rolled_back_covers_what_it_did_then(rollup):
    rollup.commit(rows((JFK, 1)), {JFK: 10})
    first = rollup.load().metadata.current_snapshot_id
    rollup.commit(rows((JFK, 2)), {JFK: 20})
    rollup.roll_back(first)
    assert rollup.rows() == [("JFK", 1)]
    assert rollup.covered() == {"j/JFK": 10}
    rollup.commit(rows((JFK, 3)), {JFK: 30})
    assert (rollup.rows(), rollup.covered()) == ([("JFK", 3)], {"j/JFK": 30})


def test_rollback_during_a_run_ends_the_run(rollup):
    rollup.commit(rows((JFK, 1)), {JFK: 10})
    first = rollup.load().metadata.current_snapshot_id
    rollup.commit(rows((EWR, 1)), {EWR: 10})
    planned = rollup.plan(rows((JFK, 2)), {JFK: 20})
    rollup.roll_back(first)
    with pytest.raises(TableFenced):
        commit(rollup.tables, planned)
    assert (rollup.rows(), rollup.covered()) == ([("JFK", 1)], {"j/JFK": 10})


def test_other_tables_are_not_rollups(rollup):
    table = rollup.tables.load(STAGING_SCHEMA, rollup.stage(rows((JFK, 1))))
    with pytest.raises(LakeError, match=r"does not say what it covers"):
        read_covers(rollup.tables, table)
    thrift = rollup.metastore.thrift
    view = thrift.get_table(STAGING_SCHEMA, "sums_1")
    view.parameters = {}
    thrift._tables["rollups", "plain"] = view
    with pytest.raises(LakeError, match="is not an Iceberg table"):
        rollup.tables.load("rollups", "plain")


# ------------------------------------------------------------------ shapes


WIDER = Schema(
    *SCHEMA.fields[:2],
    NestedField(3, "m", StringType(), required=False),
    NestedField(4, "n", LongType(), required=False),
)


def wide(*found):
    return [(values[0], day(values[1]), "m", n) for values, n in found]


def test_other_columns_replace_the_table_if_all_is_made_again(rollup):
    rollup.commit(rows((JFK, 1), (EWR, 3)), {JFK: 10, EWR: 20})
    before = rollup.load()
    with pytest.raises(LakeError, match="gives other columns than the table has, which keeps 1 f"):
        rollup.commit(wide((JFK, 2)), {JFK: 10}, schema=WIDER)
    assert rollup.load().metadata_location == before.metadata_location
    rollup.commit(wide((JFK, 2), (EWR, 4)), {JFK: 10, EWR: 20}, schema=WIDER)
    assert rollup.rows() == [("EWR", 4), ("JFK", 2)]
    after = rollup.load()
    assert [f.name for f in after.metadata.schema().fields] == ["origin", "day", "m", "n"]
    assert after.metadata.table_uuid == before.metadata.table_uuid
    assert after.version == before.version + 1
    rollup.commit(wide((JFK, 5)), {JFK: 30}, schema=WIDER)
    assert rollup.rows() == [("EWR", 4), ("JFK", 5)]


def test_other_slices_of_the_same_columns_replace_the_table(rollup):
    rollup.commit(rows((JFK, 1), (EWR, 3)), {JFK: 10, EWR: 20})
    one = structs.replace(SPEC, slices=("origin",))
    by_origin = PartitionSpec(PARTITIONED.fields[0])
    ends = {("JFK",): 10, ("EWR",): 20}
    planned = rollup.plan(rows((JFK, 2), (EWR, 4)), ends, spec=one, partitions=by_origin)
    commit(rollup.tables, replace(planned, replaces_all=True, covers=covers(ends, one)))
    assert rollup.rows() == [("EWR", 4), ("JFK", 2)]
    assert rollup.load().slice_types() == {"origin": "string"}
    rollup.commit(rows((JFK, 5)), {("JFK",): 30}, spec=one, partitions=by_origin)
    assert rollup.rows() == [("EWR", 4), ("JFK", 5)]


def test_table_without_slices_is_replaced_as_a_whole(rollup):
    one = RollupSpec(name="rollups.sums", engine="spark", sql="f", sources={"f": "t.f"})
    for n in (1, 2):
        made = rows((JFK, n), (EWR, n))
        rollup.commit(made, {(): n}, spec=one, partitions=PartitionSpec())
    assert rollup.rows() == [("EWR", 2), ("JFK", 2)]


def test_rows_of_other_slices_are_refused(rollup):
    with pytest.raises(
        LakeError, match="gives rows of origin=EWR, day=2026-01-02, a slice that was"
    ):
        rollup.commit(rows((JFK, 1), (EWR, 1)), {JFK: 10})
    assert rollup.load() is None
    with pytest.raises(LakeError, match="has rows of several slices, since it is not partitioned"):
        rollup.commit(rows((JFK, 1)), {JFK: 10}, partitions=PartitionSpec())


def test_staging_table_that_is_gone_is_reported(rollup):
    planned = rollup.plan(rows((JFK, 1)), {JFK: 10})
    rollup.tables.forget(STAGING_SCHEMA, planned.staging)
    with pytest.raises(LakeError, match="is gone before it could be committed"):
        commit(rollup.tables, planned)


def test_files_are_deleted_and_missing_ones_are_fine(rollup, tmp_path):
    path = tmp_path / "a"
    path.touch()
    assert list(rollup.tables.delete_files([path.as_uri(), (tmp_path / "b").as_uri()])) == []
    assert not path.exists()


def test_covers_file_lies_beside_the_table(rollup):
    rollup.commit(rows((JFK, 1)), {JFK: 10})
    path = rollup.load().snapshot.summary.additional_properties[COVERS]
    assert path.startswith(f"{rollup.location}.gazette/")


def test_engine_that_commits_is_waited_for(rollup, monkeypatch):
    rollup.commit(rows((JFK, 1)), {JFK: 10})
    component = ttypes.LockComponent(
        type=ttypes.LockType.EXCLUSIVE,
        level=ttypes.LockLevel.TABLE,
        dbname="rollups",
        tablename="sums",
    )
    request = ttypes.LockRequest(component=[component], agentInfo="an engine", hostname="h")
    lock = rollup.metastore.thrift.lock(request)
    monkeypatch.setattr("gazette_platform.hive._TABLE_LOCK_WAIT_S", 0.1)
    planned = rollup.plan(rows((JFK, 2)), {JFK: 20})
    with pytest.raises(
        LakeError, match=r"the contents of rollups\.sums are being changed by an eng"
    ):
        commit(rollup.tables, planned)
    rollup.metastore.thrift.unlock(ttypes.UnlockRequest(lockid=lock.lockid))
    commit(rollup.tables, planned)
    assert rollup.rows() == [("JFK", 2)]


# ------------------------------------------------------------------ maintenance


@pytest.mark.parametrize("dialect", ["trino", "spark"])
def test_maintenance_statements_are_read_by_a_parser(dialect):
    made = maintenance_statements(dialect, SPEC.name, now_s=1_800_000_000.0)
    assert [("expire_snapshots" in sql, "remove_orphan_files" in sql) for sql in made] == [
        (False, False),
        (True, False),
        (False, True),
    ]
    for sql in made:
        assert len(sqlglot.parse(sql, read=dialect)) == 1
    times = [part for sql in made[1:] for part in re.findall(r"'([^']*)'(?=\))", sql)]
    assert times == {"trino": ["604800s"] * 2, "spark": ["2027-01-08 08:00:00 UTC"] * 2}[dialect]


def test_covers_of_expired_snapshots_are_removed_and_of_others_not(rollup):
    for n in range(3):
        rollup.commit(rows((JFK, n)), {JFK: n + 1})
    folder = Path(covers_path(rollup.load().metadata).removeprefix("file://")).parent
    (folder / "orphan.covers").touch()
    for path in folder.iterdir():
        os.utime(path, (1000, 1000))
    assert len(list(folder.iterdir())) == 4
    asked = []

    def execute(sql):
        asked.append(sql)
        if "optimize" in sql:
            rollup.by_engine(optimize)
        if "expire_snapshots" in sql:
            expire(rollup)

    def keep_up(now_s):
        asked.clear()
        done = maintain(rollup.tables, "trino", execute, SPEC, now_s=now_s)
        assert len(asked) == 3
        assert (done.files, done.undeleted) == (1, ())
        assert len(list(folder.iterdir())) == 1
        assert rollup.covered() == {"j/JFK": 3}
        return done.snapshots_before, done.snapshots

    at_s = rollup.load().snapshot.timestamp_ms / 1000
    # Of the newest commit, and of what optimizing made of it.
    assert keep_up(at_s + RETAINED_S / 2) == (3, 2)
    planned = rollup.plan(rows((JFK, 9)), {JFK: 9})
    # A commit that is old by now keeps its files no longer.
    assert keep_up(at_s + RETAINED_S * 2) == (2, 1)
    # And to a run that crosses it, this is maintenance.
    commit(rollup.tables, planned)
    assert (rollup.rows(), rollup.covered()) == ([("JFK", 9)], {"j/JFK": 9})


def test_rollup_that_is_not_made_yet_is_left_alone(rollup):
    assert maintain(rollup.tables, "spark", pytest.fail, SPEC, now_s=0.0) is None
