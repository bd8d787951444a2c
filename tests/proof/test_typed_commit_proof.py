"""How a typed table is to be committed: what holds, and what does not. See docs/internals/typed-tables.md.

Against a real metastore, Spark and Trino, before there are typed tables. Tests named `…_hole` show
what a way that was not taken lets through: they fail once Iceberg closes the hole.
"""

import uuid
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest
from cut_wire import cut_wire
from pyiceberg.catalog.hive import HiveCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table.update import AssertRefSnapshotId, SetSnapshotRefUpdate
from trino import dbapi
from typed_commits import (
    PROGRESS,
    CatalogHandle,
    Fenced,
    MetastoreHandle,
    RolledBack,
    SparkRefused,
    SparkTable,
    StagedIsGone,
    TableMoved,
    head_of,
    progress_of,
    publish,
    rebased,
)

from gazette_platform.errors import LakeError
from gazette_platform.hive import MetastoreClient
from gazette_platform.hive.model import ttypes
from gazette_platform.lake.iceberg.metastore import IcebergTables
from gazette_platform.ops.clock import SystemClock

pytestmark = [
    pytest.mark.hive,
    pytest.mark.spark,
    pytest.mark.timeout(400),  # the first test pays for the start of three servers
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]


@pytest.fixture
def table(spark):
    made = SparkTable(spark, f"proof.t{uuid.uuid4().hex[:8]}")
    made.create()
    yield made
    made.sql(f"DROP TABLE {made.full_name} PURGE")


@pytest.fixture
def handle(table, metastore, lake_settings):
    return MetastoreHandle(IcebergTables(metastore, lake_settings.warehouse), table.name)


def offsets(table):
    """What the newest ancestor of main that says it says of offsets."""
    return next((s["gazette.offsets"] for s in table.summaries() if "gazette.offsets" in s), None)


# ------------------------------------------------------------------ write-audit-publish by Spark alone


def test_of_two_runs_with_one_wap_id_one_is_picked(table):
    first = table.stage([1, 2], wap_id="from-0", gazette_offsets="0-2")
    # A driver that died in between hinders no other: its id may be staged again.
    second = table.stage([1, 2], wap_id="from-0", gazette_offsets="0-2")
    assert table.numbers() == []
    table.cherry_pick(second)
    with pytest.raises(SparkRefused) as refused:
        table.cherry_pick(first)
    assert refused.value.kind == "DuplicateWAPCommitException"
    later = table.stage([3], wap_id="from-2", gazette_offsets="2-3")
    table.cherry_pick(later)
    with pytest.raises(SparkRefused, match="DuplicateWAPCommitException"):
        table.cherry_pick(first)
    assert (table.numbers(), offsets(table)) == ([1, 2, 3], "2-3")


def test_wap_id_that_has_expired_is_picked_again_hole(table):
    """A zombie that stages late is published: rows come twice, and progress goes back."""
    table.cherry_pick(table.stage([1, 2], wap_id="from-0", gazette_offsets="0-2"))
    table.cherry_pick(table.stage([3], wap_id="from-2", gazette_offsets="2-3"))
    table.expire()
    table.cherry_pick(table.stage([1, 2], wap_id="from-0", gazette_offsets="0-2"))
    assert (table.numbers(), offsets(table)) == ([1, 1, 2, 2, 3], "0-2")


def test_wap_id_that_expired_while_staged_is_picked_again_hole(table):
    """So is one that staged in time, if expiry takes the snapshot that was published and not its own."""
    table.cherry_pick(table.stage([1], wap_id="from-0", gazette_offsets="0-1"))
    table.cherry_pick(table.stage([2], wap_id="from-1", gazette_offsets="1-2"))
    before = table.now()
    zombie = table.stage([1], wap_id="from-0", gazette_offsets="0-1")
    table.expire(before)
    table.cherry_pick(zombie)
    assert (table.numbers(), offsets(table)) == ([1, 1, 2], "0-1")


def test_pick_behind_maintenance_forgets_offsets_hole(table):
    table.cherry_pick(table.stage([1, 2], gazette_offsets="0-2"))
    staged = table.stage([3], gazette_offsets="2-3")
    table.optimize()
    table.cherry_pick(staged)
    # The rows exist, and what says so does not: the next run would read them once more.
    assert (table.numbers(), offsets(table)) == ([1, 2, 3], "0-2")
    assert table.summaries()[0]["source-snapshot-id"] == str(staged)


def test_upsert_is_not_picked_behind_maintenance(table):
    table.cherry_pick(table.stage([1, 2]))
    staged = table.stage_merge([(2, "new")])
    table.optimize()
    with pytest.raises(SparkRefused, match="not append, dynamic overwrite, or fast-forward"):
        table.cherry_pick(staged)


# ------------------------------------------------------------------ a branch, and fast-forward


def test_fast_forward_refuses_whoever_is_late(table, handle):
    table.stage_on_branch("first", None, [1, 2], gazette_offsets="0-2")
    table.stage_on_branch("zombie", None, [1, 2], gazette_offsets="0-2")
    table.fast_forward("first")
    with pytest.raises(SparkRefused, match="main is not an ancestor of zombie"):
        table.fast_forward("zombie")
    start = head_of(handle.load().metadata)
    for name in ("second", "held", "behind"):
        table.stage_on_branch(name, start, [3], gazette_offsets="2-3")
    table.fast_forward("second")
    table.expire()
    with pytest.raises(SparkRefused, match="main is not an ancestor of held"):
        table.fast_forward("held")
    assert (table.numbers(), offsets(table)) == ([1, 2, 3], "2-3")
    # Nor is anything published on top of maintenance: such a run has to be made again.
    table.stage_on_branch("third", head_of(handle.load().metadata), [4])
    table.optimize()
    with pytest.raises(SparkRefused, match="main is not an ancestor of third"):
        table.fast_forward("third")


def test_branch_that_a_write_makes_begins_at_what_is_newest_hole(table):
    """`spark.wap.branch` makes a branch where main is by then, so that a zombie is no longer late."""
    table.cherry_pick(table.stage([1], gazette_offsets="0-1"))
    table.session.conf.set("spark.wap.branch", "zombie")
    try:
        table.frame([(1, "k")]).writeTo(table.full_name).append()
    finally:
        table.session.conf.unset("spark.wap.branch")
    table.fast_forward("zombie")
    assert table.numbers() == [1, 1]


# ------------------------------------------------------------------ one change of metadata, by ourselves


def test_one_of_many_runs_from_one_start_is_published(table, handle):
    staged = [table.stage([1, 2], gazette_offsets="0-2") for _ in range(4)]
    published, fenced = [], []

    def run(snapshot):
        try:
            published.append(publish(handle, None, snapshot))
        except Fenced as err:
            fenced.append(err)

    with ThreadPoolExecutor(len(staged)) as pool:
        list(pool.map(run, staged))
    assert (len(published), len(fenced)) == (1, 3)
    # Who does not know whether it was, asks again.
    assert publish(handle, None, published[0]) == published[0]
    assert (table.numbers(), offsets(table)) == ([1, 2], "0-2")


@pytest.mark.parametrize("is_staged", ["early", "late"])
def test_zombie_is_fenced_whatever_has_expired(table, handle, is_staged):
    first = publish(handle, None, table.stage([1, 2], gazette_offsets="0-2"))
    before = table.now()
    zombie = table.stage([3], gazette_offsets="2-3") if is_staged == "early" else 0
    second = publish(handle, first, table.stage([3], gazette_offsets="2-3"))
    publish(handle, second, table.stage([4], gazette_offsets="3-4"))
    table.optimize()
    if is_staged == "early":
        table.expire(before)
    else:
        table.expire()
        zombie = table.stage([3], gazette_offsets="2-3")
    with pytest.raises(Fenced):
        publish(handle, first, zombie)
    assert table.numbers() == [1, 2, 3, 4]


def test_append_is_published_on_top_of_maintenance(table, handle):
    first = publish(handle, None, table.stage([1, 2], gazette_offsets="0-2"))
    staged = table.stage([3], gazette_offsets="2-3")
    table.optimize()
    second = publish(handle, first, staged)
    assert second != staged
    assert (table.numbers(), offsets(table)) == ([1, 2, 3], "2-3")
    assert publish(handle, first, staged) == second
    assert progress_of(handle.load().metadata) == head_of(handle.load().metadata) == second


def test_upsert_is_published_whole_and_staged_again_behind_maintenance(table, handle):
    first = publish(handle, None, table.stage([1, 2], gazette_offsets="0-2"))
    second = publish(
        handle, first, table.stage_merge([(2, "new"), (3, "new")], gazette_offsets="2-4")
    )
    assert table.sql(f"SELECT * FROM {table.full_name} ORDER BY n") == [
        (1, "k"), (2, "new"), (3, "new"),
    ]  # fmt: skip
    assert offsets(table) == "2-4"
    staged = table.stage_merge([(3, "newer")], gazette_offsets="4-5")
    table.optimize()
    with pytest.raises(TableMoved):
        publish(handle, second, staged)
    again = table.stage_merge([(3, "newer")], gazette_offsets="4-5")
    third = publish(handle, second, again)
    with pytest.raises(Fenced):
        publish(handle, second, staged)
    assert third == again
    assert table.sql(f"SELECT k FROM {table.full_name} WHERE n = 3") == [("newer",)]


def test_driver_that_died_after_staging_hinders_no_other(table, handle):
    first = publish(handle, None, table.stage([1], gazette_offsets="0-1"))
    left = table.stage([2], gazette_offsets="1-2")
    second = publish(handle, first, table.stage([2], gazette_offsets="1-2"))
    files = f"SELECT file_path FROM {table.full_name}.all_files"
    assert len(set(table.sql(files))) == 3
    table.expire()
    assert len(set(table.sql(files))) == 2
    assert handle.load().metadata.snapshot_by_id(left) is None
    with pytest.raises(Fenced):
        publish(handle, first, left)
    # If it was staged from where the table is, there is nothing to publish, and nothing is.
    gone = table.stage([3], gazette_offsets="2-3")
    table.expire()
    with pytest.raises(StagedIsGone):
        publish(handle, second, gone)
    assert table.numbers() == [1, 2]


@pytest.mark.parametrize("passes_on", [True, False])
def test_lost_answer_is_found_out_by_asking_again(table, handle, lake_settings, passes_on):
    """The connection to the metastore breaks at the commit, before or after it was carried out."""
    staged = table.stage([1, 2], gazette_offsets="0-2")
    with cut_wire(urlsplit(lake_settings.metastore).port) as wire:
        client = MetastoreClient(f"thrift://127.0.0.1:{wire.port}")
        cut = MetastoreHandle(IcebergTables(client, lake_settings.warehouse), table.name)
        wire.word, wire.passes_on = b"alter_table_with_environment_context", passes_on
        with pytest.raises(LakeError):
            publish(cut, None, staged)
        assert wire.cuts == 1
        assert (progress_of(handle.load().metadata) == staged) == passes_on
        wire.word = b""
        # The lock that was left there belongs to a connection that is gone.
        assert publish(cut, None, staged) == staged
    assert table.numbers() == [1, 2]


def test_lock_alone_lets_a_zombie_overwrite_hole(table, handle, metastore, lake_settings):
    """PyIceberg's commit to a metastore trusts its lock; ours has the metastore compare as well."""
    first = publish(handle, None, table.stage([1], gazette_offsets="0-1"))
    zombie, other = (table.stage([2], gazette_offsets="1-2") for _ in range(2))
    catalog = HiveCatalog("zombie", uri=lake_settings.metastore)
    write_metadata = catalog._write_metadata

    def held_up(*arguments, **options):
        """For so long that the metastore takes the lock away, and others go on."""
        write_metadata(*arguments, **options)
        schema, _, name = table.name.partition(".")
        with metastore.connect() as session:
            request = ttypes.ShowLocksRequest(dbname=schema, tablename=name)
            for lock in session._client.show_locks(request).locks:
                session._client.unlock(ttypes.UnlockRequest(lockid=lock.lockid))
        assert publish(handle, first, other) == other
        table.sql(f"INSERT INTO {table.full_name} VALUES (7, 'by hand')")

    catalog._write_metadata = held_up
    loaded = catalog.load_table(table.name)
    catalog.commit_table(
        loaded,
        (AssertRefSnapshotId(ref="main", snapshot_id=first),),
        (SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=zombie),),
    )
    # All that came between is gone, without an error.
    assert (head_of(handle.load().metadata), table.numbers()) == (zombie, [1, 2])


def test_sql_catalog_compares_as_well(table, handle, tmp_path):
    """The same staged snapshots, in a table that a database knows instead of a metastore."""
    staged = [table.stage([number], gazette_offsets="0-1") for number in range(4)]
    uri = f"sqlite:///{tmp_path / 'catalog.db'}"
    catalog = SqlCatalog("sql", uri=uri, warehouse=tmp_path.as_uri())
    try:
        catalog.create_namespace("proof")
        catalog.register_table(table.name, handle.load().token.metadata_location)
        other = CatalogHandle(catalog, table.name)
        first = publish(other, None, staged[0])
        # Who has looked before is refused by the catalog; who looks now sees it for himself.
        early = Held(other, lambda: publish(other, first, staged[1]))
        with pytest.raises(Fenced):
            publish(early, first, staged[2])
        with pytest.raises(Fenced):
            publish(other, first, staged[3])
        assert other.load().token.scan().to_arrow()["n"].to_pylist() == [1, 0]
    finally:
        catalog.close()
    assert table.numbers() == []


class Held:
    """A handle whose user is held up between looking and committing, until others are through."""

    def __init__(self, handle, others):
        self._handle = handle
        self._others = others

    def load(self):
        return self._handle.load()

    def commit(self, *arguments):
        others, self._others = self._others, lambda: None
        others()
        self._handle.commit(*arguments)


# ------------------------------------------------------------------ progress


class TrinoUpkeep:
    """Maintenance by Trino, in a session that lets anything expire."""

    def __init__(self, table, settings):
        self._table = f"iceberg.{table.name}"
        self._address = urlsplit(settings.trino)

    def execute(self, what):
        names = ("expire_snapshots_min_retention", "remove_orphan_files_min_retention")
        connection = dbapi.connect(
            host=self._address.hostname,
            port=self._address.port,
            user="gazette",
            session_properties={f"iceberg.{name}": "0s" for name in names},
        )
        try:
            connection.cursor().execute(f"ALTER TABLE {self._table} EXECUTE {what}").fetchall()
        finally:
            connection.close()

    def optimize(self):
        self.execute("optimize")

    def expire(self):
        self.execute("expire_snapshots(retention_threshold => '0s')")

    def remove_orphans(self):
        self.execute("remove_orphan_files(retention_threshold => '0s')")


@pytest.mark.trino
@pytest.mark.parametrize("engine", ["spark", "trino"])
def test_progress_is_found_after_maintenance(table, handle, lake_settings, engine):
    upkeep = table if engine == "spark" else TrinoUpkeep(table, lake_settings)
    at = None
    for number in range(3):
        staged = table.stage([number], gazette_offsets=f"{number}-{number + 1}")
        at = publish(handle, at, staged)
    upkeep.optimize()
    upkeep.optimize()
    staged = table.stage([3], gazette_offsets="3-4")
    if engine == "trino":
        upkeep.remove_orphans()  # of a staged snapshot no file is one
    table.sql(f"INSERT INTO {table.full_name} VALUES (9, 'by hand')")
    second = publish(handle, at, staged)
    upkeep.optimize()
    upkeep.expire()
    metadata = handle.load().metadata
    assert len(metadata.snapshots) == 2
    assert progress_of(metadata) == second
    summary = metadata.snapshot_by_id(second).summary
    assert summary["gazette.offsets"] == "3-4"
    publish(handle, second, table.stage([4], gazette_offsets="4-5"))
    assert table.numbers() == [0, 1, 2, 3, 4, 9]


@pytest.mark.parametrize("then", ["nothing", "optimize"])
def test_table_that_was_rolled_back_takes_no_more(table, handle, then):
    """Rows behind the tag's offsets would else be appended where those before them are gone."""
    first = publish(handle, None, table.stage([1], gazette_offsets="0-1"))
    second = publish(handle, first, table.stage([2], gazette_offsets="1-2"))
    table.call("rollback_to_snapshot", f"snapshot_id => {first}")
    if then == "optimize":
        table.optimize()
    staged = table.stage([3], gazette_offsets="2-3")
    with pytest.raises(RolledBack):
        publish(handle, second, staged)
    assert table.numbers() == [1]


def test_tag_of_its_own_comes_too_late_hole(table):
    """Killed between publishing and tagging by SQL, then maintained: nothing says how far it has come."""
    table.cherry_pick(table.stage([1], gazette_offsets="0-1"))
    head = table.refs()[0][0]
    table.sql(f"ALTER TABLE {table.full_name} CREATE OR REPLACE TAG `{PROGRESS}`")
    table.cherry_pick(table.stage([2], gazette_offsets="1-2"))
    # ---- killed here
    table.optimize()
    table.optimize()
    table.expire()
    assert (head, PROGRESS) in table.refs()  # of the run before
    assert offsets(table) is None
    assert table.numbers() == [1, 2]


def test_references_of_a_table_may_expire_and_that_of_progress_does_not(table, handle):
    first = publish(handle, None, table.stage([1], gazette_offsets="0-1"))
    table.sql(f"ALTER TABLE {table.full_name} CREATE TAG somebodys")
    table.sql(
        f"ALTER TABLE {table.full_name} SET TBLPROPERTIES ('history.expire.max-ref-age-ms'='1')"
    )
    table.optimize()
    table.expire()
    assert sorted(name for _, name in table.refs()) == [PROGRESS, "main"]
    assert progress_of(handle.load().metadata) == first


def test_metastore_takes_no_long_table_property_and_a_summary_of_any_length(table, handle):
    at = publish(handle, None, table.stage([1], gazette_state="x" * 1_000_000))
    assert len(handle.load().metadata.snapshot_by_id(at).summary["gazette.state"]) == 1_000_000
    # Each metadata file has it again, for as long as the snapshot lives.
    table.sql(f"INSERT INTO {table.full_name} VALUES (2, 'k')")
    size = len(handle.load().io.new_input(handle.load().token.metadata_location).open().read())
    assert size > 1_000_000
    with pytest.raises(SparkRefused, match=r"CommitStateUnknownException(.|\n)*TABLE_PARAMS"):
        table.sql(
            f"ALTER TABLE {table.full_name} SET TBLPROPERTIES ('gazette.state'='{'x' * 40_000}')"
        )


# ------------------------------------------------------------------ what it costs


@pytest.mark.parametrize("files", [1, 100])
def test_publishing_looks_at_no_files(spark, metastore, lake_settings, record_property, files):
    """Seconds of each way are in the report (``--junit-xml``, or -s)."""
    table = SparkTable(spark, f"proof.t{uuid.uuid4().hex[:8]}")
    # Else a writer stays open for each partition: a thousand of them ended a Spark of 1 GB.
    table.create(partitioned_by="n", **{"write.spark.fanout.enabled": "false"})
    handle = MetastoreHandle(IcebergTables(metastore, lake_settings.warehouse), table.name)
    rows = spark.range(files).selectExpr("id AS n", "'k' AS k").repartition(2, "n")
    clock = SystemClock()
    seconds = {}

    def timed(name, call, *arguments):
        begin = clock.monotonic()
        result = call(*arguments)
        seconds[name] = clock.monotonic() - begin
        return result

    at = None
    for _ in range(2):  # the first warms up
        staged = timed("stage", table.stage, rows)
        at = timed("publish", publish, handle, at, staged)
    assert len(table.sql(f"SELECT file_path FROM {table.full_name}.files")) == 2 * files
    staged = table.stage(rows)
    table.sql(f"INSERT INTO {table.full_name} VALUES (1, 'by hand')")
    timed("rebase", rebased, handle.load(), staged)
    timed("cherrypick_behind_another", table.cherry_pick, staged)
    timed("cherrypick", table.cherry_pick, table.stage(rows))
    for name, value in seconds.items():
        record_property(name, f"{value:.3f}")
    print(files, {name: round(value, 3) for name, value in seconds.items()})
    assert seconds["publish"] < seconds["stage"]
    table.sql(f"DROP TABLE {table.full_name} PURGE")
