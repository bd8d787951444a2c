"""Upkeep of typed tables: progress is never lost, and whoever was held up for long publishes no files that are gone."""

from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from typed_files import write_rows
from typed_world import JOURNAL, Held, World, numbers, publish

from gazette_platform.errors import TableFenced, TypedRolledBack
from gazette_platform.lake.catalog_settings import TrinoCatalogs
from gazette_platform.lake.iceberg.publishing import QUARANTINE, RUN, progress_of, summary_of
from gazette_platform.lake.iceberg.snapshots import RETAINED_S
from gazette_platform.lake.typed.runs.amending import LATE_S
from gazette_platform.lake.typed.runs.maintenance import (
    ORPHANS_S,
    fence_before,
    keeping_s,
    maintain_typed,
)
from gazette_platform.lake.typed.tables.progress import measures, read_progress
from gazette_platform.lake.typed.tables.quarantine import (
    quarantined_rows,
    settle_quarantine,
    write_list,
)
from gazette_platform.ops.clock import SystemClock

DAY_S = 86400.0
HOUR_S = 3600.0


class Engine:
    """Notes what it is asked to do."""

    catalogs = TrinoCatalogs()

    def __init__(self, dialect="spark"):
        self.dialect = dialect
        self.asked = []

    def execute(self, sql):
        self.asked.append(sql)
        return [("one",), ("two",)] if "orphan" in sql else []


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    yield made
    for catalog in made.catalogs:
        catalog.close()


def now_s():
    return SystemClock().unix_s()


def side_files(table):
    return sorted(p.suffix for p in Path(urlsplit(f"{table.location}.gazette").path).iterdir())


def test_what_is_quarantined_is_settled_before_orphans_are_removed(world):
    handle, table = world.open()
    quarantine = world.quarantine()
    bad = {"_journal": JOURNAL, "_begin": 10, "_end": 20, "reason": "?", "raw": b"{"}
    listed = write_list(table.location, [write_rows(quarantine.load().metadata, [bad])], table.io)
    publish(handle, table, [], quarantine=listed)
    settled = []

    class Looking(Engine):
        def execute(self, sql):
            settled.append(quarantined_rows(quarantine).num_rows)
            return super().execute(sql)

    engine = Looking()
    done = maintain_typed(handle, quarantine, engine, now_s=now_s())
    assert settled == [1] * 6
    assert [done.table.name, done.quarantine.name] == ["typed.flights", "typed.flights_quarantine"]
    assert (done.table.orphans, done.quarantine.files, done.is_fenced) == (2, 1, False)
    assert [sql.split("(")[0].rsplit(".", 1)[1] for sql in engine.asked[:3]] == [
        "rewrite_data_files", "expire_snapshots", "remove_orphan_files",
    ]  # fmt: skip


def test_who_was_held_up_for_longer_than_orphans_are_kept_is_refused(world):
    handle, table = world.open()
    publish(handle, table, [1])
    _, late = world.open()
    done = maintain_typed(handle, world.quarantine(), Engine(), now_s=now_s() + 2 * DAY_S)
    assert done.is_fenced
    # Its files are gone by now.
    with pytest.raises(TableFenced):
        publish(handle, late, [2])
    _, after = world.open()
    assert after.state.digest == late.state.digest
    publish(handle, after, [2])
    assert numbers(handle) == [1, 2]


def test_empty_run_is_not_reported_as_the_one_before(world):
    """How fresh its rows were would follow from when it was published, and its bytes would have been read twice."""
    handle, table = world.open()
    oldest_at = datetime.fromtimestamp(now_s() - 2, UTC)
    told = measures(read_bytes=9, seconds=1.5, complete_at=oldest_at, oldest_at=oldest_at)
    publish(handle, table, [1], **told)
    before = read_progress(handle.load(), handle.name)
    assert (before.read_bytes, before.seconds, before.freshness_s > 1) == (9, 1.5, True)
    assert maintain_typed(handle, world.quarantine(), Engine(), now_s=now_s() + DAY_S).is_fenced
    after = read_progress(handle.load(), handle.name)
    assert (after.read_bytes, after.seconds, after.freshness_s) == (None, None, None)
    assert (after.complete_at, after.version) == (oldest_at, before.version)


def test_a_table_that_was_rolled_back_is_left_as_it_is(world):
    """Optimized, and what was before expired, it would look as if it had never been."""
    handle, table = world.open()
    first = publish(handle, table, [1]).snapshot_id
    _, table = world.open()
    publish(handle, table, [2])
    handle.load().token.manage_snapshots().rollback_to_snapshot(first).commit()
    engine = Engine()
    with pytest.raises(TypedRolledBack):
        maintain_typed(handle, world.quarantine(), engine, now_s=now_s())
    assert engine.asked == []


def test_a_fence_says_what_the_run_before_it_said_and_settles_nothing_again(world):
    handle, table = world.open()
    quarantine = world.quarantine()
    bad = {"_journal": JOURNAL, "_begin": 10, "_end": 20, "reason": "?", "raw": b"{"}
    listed = write_list(table.location, [write_rows(quarantine.load().metadata, [bad])], table.io)
    publish(handle, table, [1], run="first", quarantine=listed)
    before = handle.load().metadata
    assert maintain_typed(handle, quarantine, Engine(), now_s=now_s() + 2 * DAY_S).is_fenced
    after = handle.load().metadata
    told = dict(summary_of(before, progress_of(before)))
    said = dict(summary_of(after, progress_of(after)))
    assert said[RUN] != told.pop(RUN) == "first"
    assert told.pop(QUARANTINE) == listed
    ours = {key: value for key, value in told.items() if key.startswith("gazette.")}
    assert ours.items() <= said.items()
    assert QUARANTINE not in said
    assert not settle_quarantine(handle, quarantine)
    assert quarantined_rows(quarantine)["_begin"].to_pylist() == [10]


def test_fence_is_not_needed_after_the_next_publication(world):
    handle, table = world.open()
    publish(handle, table, [1])
    loaded, (_, late) = handle.load(), world.open()
    held = Held(handle, lambda: publish(world.handle(), late, [2], run="other"))
    assert not fence_before(held, loaded, now_s() + DAY_S)
    assert progress_of(handle.load().metadata) != progress_of(loaded.metadata)
    assert numbers(handle) == [1, 2]


def test_a_table_that_was_published_to_since_needs_no_fence(world):
    handle, table = world.open()
    publish(handle, table, [1])
    before = progress_of(handle.load().metadata)
    done = maintain_typed(handle, world.quarantine(), Engine(), now_s=now_s() + ORPHANS_S / 3)
    assert not done.is_fenced
    assert progress_of(handle.load().metadata) == before


def test_amendments_are_fenced_while_their_files_exist(world):
    """They may have written them before the publication of the run that they build on."""
    handle, table = world.open()
    publish(handle, table, [1])
    young = maintain_typed(
        handle, world.quarantine(), Engine(), now_s=now_s() + ORPHANS_S - LATE_S - 2 * HOUR_S
    )
    old = maintain_typed(handle, world.quarantine(), Engine(), now_s=now_s() + ORPHANS_S - LATE_S)
    assert (young.is_fenced, old.is_fenced) == (False, True)


def test_files_beside_a_table_are_removed_once_no_snapshot_names_them(world):
    handle, table = world.open()
    publish(handle, table, [1])
    # A run that died before it published, and one after it.
    write_list(table.location, [write_rows(table.metadata, [])], table.io)
    _, table = world.open()
    publish(handle, table, [2])
    assert side_files(table) == [".quarantine", ".state", ".state"]
    assert maintain_typed(handle, world.quarantine(), Engine(), now_s=now_s()).side_files == 0
    done = maintain_typed(handle, world.quarantine(), Engine(), now_s=now_s() + 2 * DAY_S)
    assert (done.side_files, done.undeleted) == (1, ())
    assert side_files(table) == [".state", ".state"]
    _, table = world.open()
    assert table.state.journals[JOURNAL].offset == 20


def test_nothing_is_done_to_a_table_before_its_first_run(world):
    handle, _ = world.open()
    assert maintain_typed(handle, world.quarantine(), Engine(), now_s=now_s()) is None
    assert maintain_typed(world.handle("typed.no"), world.quarantine(), Engine(), now_s=0.0) is None


def test_trino_is_asked_for_no_less_than_it_allows(world):
    handle, table = world.open()
    publish(handle, table, [1])
    engine = Engine("trino")
    done = maintain_typed(handle, world.handle("typed.flights_quarantine"), engine, now_s=now_s())
    assert (done.quarantine, done.table.orphans) == (None, None)
    kept = [sql.partition("=> ")[2] for sql in engine.asked[1:]]
    assert kept == [f"'{int(RETAINED_S)}s')"] * 2


def test_snapshots_expire_by_number_as_well_as_by_age(world):
    handle, table = world.open()
    for n in range(4):
        publish(handle, table, [n])
        _, table = world.open()
    metadata = table.metadata
    now = metadata.snapshots[-1].timestamp_ms / 1000 + 2 * DAY_S
    assert keeping_s(metadata, now, snapshots_max=4) == RETAINED_S
    third = (metadata.snapshots[-3].timestamp_ms - metadata.snapshots[-1].timestamp_ms) / 1000
    assert keeping_s(metadata, now, snapshots_max=3) == pytest.approx(2 * DAY_S - third)
    # None that is young, however many there are.
    assert keeping_s(metadata, now - 2 * DAY_S, snapshots_max=1) == 6 * 3600
