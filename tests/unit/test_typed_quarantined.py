"""Quarantine of typed tables: records come there once, whoever dies and whoever is late."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pyiceberg.table.update import RemoveSnapshotsUpdate
from typed_files import delete_rows, write_rows
from typed_world import JOURNAL, World, publish, row

from gazette_platform.errors import (
    LakeError,
)
from gazette_platform.lake.iceberg.publishing import progress_of, summary_of, updates_moving
from gazette_platform.lake.typed.planning.row_ranges import RowRanges
from gazette_platform.lake.typed.tables.quarantine import (
    count_rows,
    quarantined_rows,
    rows_within,
    settle_quarantine,
    write_list,
)

pytestmark = pytest.mark.long


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    yield made
    for catalog in made.catalogs:
        catalog.close()


# ------------------------------------------------------------------ quarantine


def bad(n, journal=JOURNAL):
    at = {"_journal": journal, "_begin": n * 10, "_end": n * 10 + 10}
    return {**at, "_uuid": None, "reason": f"bad {n}", "raw": b"{"}


def quarantining(world, handle, quarantine, ns, *, run="", removed=()):
    """A run that sets records aside, and has others go, and dies before it settles."""
    settle_quarantine(handle, quarantine)
    _, table = world.open()
    written = [write_rows(quarantine.load().metadata, [bad(n) for n in ns])] if ns else []
    gone = RowRanges({JOURNAL: [(10 * n, 10 * n + 10) for n in removed]})
    path = write_list(table.location, written, table.io, removed=gone)
    publish(handle, table, [], run=run, quarantine=path, records=len(ns))


def offsets(quarantine):
    return quarantined_rows(quarantine)["_begin"].to_pylist()


def test_quarantined_records_come_once(world):
    handle, _ = world.open()
    quarantine = world.quarantine()
    assert not settle_quarantine(handle, quarantine)
    quarantining(world, handle, quarantine, [1, 2])
    assert offsets(quarantine) == []
    assert settle_quarantine(handle, quarantine)
    assert not settle_quarantine(handle, quarantine)
    quarantining(world, handle, quarantine, [])
    assert not settle_quarantine(handle, quarantine)
    quarantining(world, handle, quarantine, [3])
    # Who publishes next settles it first.
    quarantining(world, handle, quarantine, [4])
    assert offsets(quarantine) == [10, 20, 30]
    assert settle_quarantine(handle, quarantine)
    assert offsets(quarantine) == [10, 20, 30, 40]


def test_source_records_go_once_their_rows_are_settled(world):
    handle, _ = world.open()
    quarantine = world.quarantine()
    quarantining(world, handle, quarantine, [1, 2, 3])
    quarantining(world, handle, quarantine, [5])
    # One comes where others go, and stays.
    quarantining(world, handle, quarantine, [2], removed=[2, 3, 4])
    counts = count_rows(handle, quarantine)
    assert (offsets(quarantine), counts.quarantined) == ([10, 20, 30, 50], {JOURNAL: 3})
    assert settle_quarantine(handle, quarantine)
    assert not settle_quarantine(handle, quarantine)
    assert offsets(quarantine) == [10, 20, 50]
    assert count_rows(handle, quarantine) == counts
    # Whole files, and none at all.
    quarantining(world, handle, quarantine, [], removed=[1, 5, 7])
    assert count_rows(handle, quarantine).quarantined == {JOURNAL: 1}
    quarantining(world, handle, quarantine, [], removed=[7])
    assert count_rows(handle, quarantine).quarantined == {JOURNAL: 1}
    settle_quarantine(handle, quarantine)
    assert offsets(quarantine) == [20]


def test_rows_are_counted_within_ranges_and_beside(world):
    handle, table = world.open()
    publish(handle, table, [], rows=[row(1), row(2), row(3, "other")])
    _, table = world.open()
    publish(handle, table, [4, 5])
    within, beside = rows_within(
        handle.load(), RowRanges({JOURNAL: [(20, 50)], "other": [(0, 99)]})
    )
    assert (within, beside) == ({JOURNAL: 2, "other": 1}, {JOURNAL: 2})
    assert rows_within(handle.load(), RowRanges({})) == ({}, {JOURNAL: 4, "other": 1})


def test_list_that_is_damaged_is_reported(world):
    handle, _ = world.open()
    quarantine = world.quarantine()
    quarantining(world, handle, quarantine, [1])
    metadata = handle.load().metadata
    named = summary_of(metadata, progress_of(metadata))["gazette.quarantine"]
    path = Path(urlsplit(named).path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(LakeError, match=r"\.quarantine cannot be read.*fetch it from a backup"):
        settle_quarantine(handle, quarantine)


class Then:
    """A handle; something happens after each of its looks."""

    def __init__(self, handle, *then):
        self._handle = handle
        self._then = list(then)
        self.name = handle.name

    def load(self):
        found = self._handle.load()
        if self._then:
            self._then.pop(0)()
        return found

    def commit(self, *arguments):
        self._handle.commit(*arguments)


def expire(handle):
    """All but what progress is at."""
    loaded = handle.load()
    at = progress_of(loaded.metadata)
    gone = [s.snapshot_id for s in loaded.metadata.snapshots if s.snapshot_id != at]
    if gone:
        handle.commit(loaded, (), (RemoveSnapshotsUpdate.model_validate({"snapshot-ids": gone}),))


@pytest.mark.parametrize("looks", [1, 2, 3])
@pytest.mark.parametrize("on", ["typed", "quarantine"])
@pytest.mark.parametrize("others", [[], [[2], [3]], [[], [3]]])
def test_zombie_settles_nothing_twice(world, on, looks, others):
    """Whoever is held up, behind any look at either table, while others settle and go on, and snapshots expire."""
    handle, _ = world.open()
    quarantine = world.quarantine()
    quarantining(world, handle, quarantine, [0, 5])
    quarantining(world, handle, quarantine, [1], removed=[0])

    def meanwhile():
        settle_quarantine(handle, quarantine)
        for ns in others:
            quarantining(world, handle, quarantine, ns)
        # Only the tag says what was settled then.
        expire(quarantine)

    waits = [*[lambda: None] * (looks - 1), meanwhile]
    settle_quarantine(
        Then(handle, *waits) if on == "typed" else handle,
        Then(quarantine, *waits) if on == "quarantine" else quarantine,
    )
    settle_quarantine(handle, quarantine)
    # The typed handle is looked at once only: then no other run came between.
    came = [n for ns in others for n in ns] if on == "quarantine" or looks == 1 else []
    assert offsets(quarantine) == [10, *(10 * n for n in came), 50]


def test_several_settle_at_once(world):
    handle, _ = world.open()
    quarantine = world.quarantine()
    quarantining(world, handle, quarantine, [1, 2])
    handles = [(world.handle(), world.quarantine()) for _ in range(4)]
    with ThreadPoolExecutor(len(handles)) as pool:
        settled = list(pool.map(lambda two: settle_quarantine(*two), handles))
    assert Counter(settled)[True] >= 1
    assert offsets(quarantine) == [10, 20]


def test_quarantined_records_are_found_by_journal_and_offset(world):
    handle, _ = world.open()
    quarantine = world.quarantine()
    quarantining(world, handle, quarantine, [3, 1])
    quarantining(world, handle, quarantine, [])
    found = quarantined_rows(quarantine, journal=JOURNAL, begin=11)
    assert found["reason"].to_pylist() == ["bad 3"]
    assert len(quarantined_rows(quarantine, journal="other")) == 0
    assert quarantined_rows(quarantine, limit=1)["_begin"].to_pylist() == [10]
    with pytest.raises(LakeError, match=r"no table typed\.none"):
        quarantined_rows(world.handle("typed.none"))


def test_rows_are_counted_by_journal_from_manifests_and_else_by_reading(world):
    handle, table = world.open()
    quarantine = world.quarantine()
    publish(handle, table, [], rows=[row(1), row(2), row(3, "other")])
    _, table = world.open()
    publish(handle, table, [4, 5])
    quarantining(world, handle, quarantine, [6])
    quarantining(world, handle, quarantine, [7, 8])
    counts = count_rows(handle, quarantine)
    assert counts.start == progress_of(handle.load().metadata)
    assert (counts.rows, counts.quarantined) == ({JOURNAL: 4, "other": 1}, {JOURNAL: 3})
    settle_quarantine(handle, quarantine)
    assert count_rows(handle, quarantine) == counts
    assert count_rows(handle, None).quarantined == {}


def test_rows_that_engines_deleted_beside_their_files_are_not_counted(world):
    handle, table = world.open()
    publish(handle, table, [1, 2, 3])
    token = handle.load().token
    (task,) = token.scan().plan_files()
    delete_rows(token, task.file, [0, 2])
    assert count_rows(handle, None).rows == {JOURNAL: 1}
    assert rows_within(handle.load(), RowRanges({JOURNAL: [(0, 20)]})) == ({}, {JOURNAL: 1})


def test_rows_of_two_tables_are_counted_at_one_moment(world):
    handle, _ = world.open()
    quarantine = world.quarantine()
    go_on = lambda n: lambda: quarantining(world, handle, quarantine, [n])  # noqa: E731
    counts = count_rows(Then(handle, go_on(1), lambda: None, go_on(2)), quarantine)
    assert counts.quarantined == {JOURNAL: 2}
    assert counts.start == progress_of(handle.load().metadata)
    with pytest.raises(LakeError, match=r"published to typed\.flights 5 times"):
        count_rows(Then(handle, *(go_on(n) for n in range(10))), quarantine)


# ------------------------------------------------------------------ what a person did


def moved_back(world, handle, to):
    """As a person does behind `rollback_to_snapshot`, so that what came behind is read again."""
    loaded = handle.load()
    handle.commit(loaded, (), updates_moving(to))
    assert world.open()[1].start == to


def test_quarantine_goes_back_with_progress(world):
    """Else what is read again would be duplicated; and what was settled long ago would be once more."""
    handle, _ = world.open()
    quarantine = world.quarantine()
    quarantining(world, handle, quarantine, [1])
    first = progress_of(handle.load().metadata)
    quarantining(world, handle, quarantine, [2])
    quarantining(world, handle, quarantine, [3, 4])
    settle_quarantine(handle, quarantine)
    moved_back(world, handle, first)
    assert count_rows(handle, quarantine).quarantined == {JOURNAL: 4}
    quarantining(world, handle, quarantine, [2])
    assert offsets(quarantine) == [10]
    assert count_rows(handle, quarantine).quarantined == {JOURNAL: 2}
    assert settle_quarantine(handle, quarantine)
    assert not settle_quarantine(handle, quarantine)
    assert offsets(quarantine) == [10, 20]


@pytest.mark.parametrize("to", [0, 1])
def test_quarantine_of_unknown_kind_takes_no_more(world, to):
    """What it was has expired, or was before anything was settled."""
    handle, table = world.open()
    quarantine = world.quarantine()
    publish(handle, table, [])
    for n in (1, 2, 3):
        quarantining(world, handle, quarantine, [n])
    settle_quarantine(handle, quarantine)
    held = quarantine.load()
    gone = [one.snapshot_id for one in held.metadata.snapshots[1:2]]
    quarantine.commit(held, (), (RemoveSnapshotsUpdate.model_validate({"snapshot-ids": gone}),))
    moved_back(world, handle, handle.load().metadata.snapshots[2 * to].snapshot_id)
    with pytest.raises(LakeError, match="what it was then has expired: drop it"):
        settle_quarantine(handle, quarantine)
    assert offsets(quarantine) == [10, 20, 30]


def test_quarantine_of_a_table_that_was_dropped_is_in_the_way(world):
    handle, _ = world.open()
    quarantine = world.quarantine()
    quarantining(world, handle, quarantine, [1])
    settle_quarantine(handle, quarantine)
    world.catalogs[0].drop_table("typed.flights")
    world.open()
    with pytest.raises(LakeError, match=r"of a table that was dropped since: drop it, too"):
        quarantining(world, handle, quarantine, [1])
    world.catalogs[0].drop_table("typed.flights_quarantine")
    quarantine = world.quarantine()
    quarantining(world, handle, quarantine, [1])
    assert settle_quarantine(handle, quarantine)
    assert offsets(quarantine) == [10]


def test_quarantine_that_was_partitioned_is_reported(world):
    """Records that cannot be settled are not passed over: the next publication would forget them."""
    handle, table = world.open()
    quarantine = world.quarantine()
    written = write_rows(quarantine.load().metadata, [bad(1)])
    with quarantine.load().token.update_spec() as update:
        update.add_identity("_journal")
    publish(handle, table, [], quarantine=write_list(table.location, [written], table.io))
    with pytest.raises(LakeError, match=r"was partitioned by hand.*partitioning = ARRAY\[\]"):
        settle_quarantine(handle, quarantine)
    with quarantine.load().token.update_spec() as update:
        update.remove_field("_journal")
    assert settle_quarantine(handle, quarantine)
    assert offsets(quarantine) == [10]
