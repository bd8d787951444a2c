"""What a typed table says of itself: how far it has come, how it came about, and when its rows are other ones."""

from datetime import timedelta

import pytest
from typed_files import write_rows
from typed_world import JOURNAL, World, row

from gazette_platform.errors import LakeError
from gazette_platform.lake.iceberg.publishing import publish_files
from gazette_platform.lake.typed.planning.state import Counts, JournalState
from gazette_platform.lake.typed.tables.progress import (
    COMPLETE_AT,
    OLDEST_AT,
    READ_BYTES,
    SECONDS,
    measures,
    read_progress,
)
from gazette_platform.lake.typed.tables.table import state_properties, write_state
from gazette_platform.lake.typed.tables.writing import data_file_of
from gazette_platform.ops.clock import SystemClock


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    yield made
    for catalog in made.catalogs:
        catalog.close()


def run(world, ns, **told):
    """A run that measured itself."""
    handle, table = world.open()
    counts = Counts(messages=len(ns), committed=len(ns), typed=len(ns))
    before = table.state.journals.get(JOURNAL, JournalState())
    after = JournalState(offset=before.offset + 10 * len(ns), counts=before.counts + counts)
    state = table.state.with_journals({JOURNAL: after})
    properties = state_properties(
        state, path=write_state(table.location, state, table.io), run=f"run {ns}"
    )
    files = [data_file_of(write_rows(table.metadata, [row(n) for n in ns]), table.metadata)]
    publish_files(handle, table.start, files, f"run {ns}", {**properties, **measures(**told)})
    return handle


def test_table_shows_what_it_holds_and_how_its_newest_run_went(world):
    now = SystemClock().now()
    told = {"complete_at": now, "oldest_at": now - timedelta(seconds=30)}
    handle = run(world, [1, 2], read_bytes=700, seconds=1.5, **told)
    found = read_progress(handle.load(), handle.name)
    assert (found.rows, found.files, found.run) == (2, 1, "run [1, 2]")
    assert (found.read_bytes, found.seconds, found.complete_at) == (700, 1.5, now)
    assert found.freshness_s == pytest.approx(30, abs=20)
    assert found.state.journals[JOURNAL].offset == 20
    assert found.version == found.state.digest


@pytest.mark.parametrize(
    ("name", "value"),
    [(COMPLETE_AT, "soon"), (OLDEST_AT, "2026-01-02"), (READ_BYTES, "1" * 5000), (SECONDS, "x")],
)
def test_properties_that_no_run_has_set_are_reported(world, monkeypatch, name, value):
    measured = {"read_bytes": 1, "seconds": 0.0, "complete_at": None, "oldest_at": None}
    told = {**measures(**measured), name: value}
    monkeypatch.setitem(globals(), "measures", lambda **_: told)
    handle = run(world, [1], **measured)
    with pytest.raises(LakeError, match="property that no run has set"):
        read_progress(handle.load(), handle.name)


def test_nothing_is_shown_of_a_table_before_its_first_run(world):
    handle, _ = world.open()
    assert read_progress(handle.load(), handle.name) is None


def test_clocks_that_are_ahead_give_no_freshness_below_zero(world):
    ahead = SystemClock().now() + timedelta(hours=1)
    handle = run(world, [1], read_bytes=1, seconds=0.0, complete_at=None, oldest_at=ahead)
    found = read_progress(handle.load(), handle.name)
    assert (found.freshness_s, found.complete_at) == (0.0, None)


def test_writes_of_others_count_as_rows_and_not_as_progress(world):
    handle = run(world, [1, 2], read_bytes=1, seconds=0.0, complete_at=None, oldest_at=None)
    before = read_progress(handle.load(), handle.name)
    table = handle.load().token
    table.append(table.scan().to_arrow())
    after = read_progress(handle.load(), handle.name)
    assert (before.rows, after.rows) == (2, 4)
    assert (after.version, after.snapshot_id) == (before.version, before.snapshot_id)
    assert after.freshness_s is None


def test_rows_are_not_shown_once_some_were_deleted_beside_their_files(world):
    handle = run(world, [1, 2], read_bytes=1, seconds=0.0, complete_at=None, oldest_at=None)
    table = handle.load().token
    # As engines count them: of the files PyIceberg would not know it.
    told = {"added-position-deletes": "1"}
    table.append(table.scan().to_arrow().slice(0, 0), snapshot_properties=told)
    assert read_progress(handle.load(), handle.name).rows is None
