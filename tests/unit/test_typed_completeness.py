"""Completeness of typed tables: what is lost, or doubled, is reported with its journal, and nothing else is."""

from dataclasses import replace

import pyarrow as pa
import pytest
from typed_files import write_rows
from typed_world import JOURNAL, World, row

from gazette_platform.lake.iceberg.publishing import publish_files
from gazette_platform.lake.typed.planning.state import Counts, JournalState, TypedState
from gazette_platform.lake.typed.status import account, check_counts
from gazette_platform.lake.typed.tables.quarantine import (
    begins_at,
    moment_of,
    settle_quarantine,
    write_list,
)
from gazette_platform.lake.typed.tables.table import state_properties, write_state
from gazette_platform.lake.typed.tables.writing import data_file_of


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    yield made
    for catalog in made.catalogs:
        catalog.close()


def run(world, *, rows=(), bad=(), counts, run="one"):
    """A run that writes rows and quarantined records, and says that there were `counts`."""
    handle, table = world.open()
    quarantine = world.quarantine()
    settle_quarantine(handle, quarantine)
    aside = [
        {"_journal": JOURNAL, "_begin": n * 10, "_end": n * 10 + 10, "reason": "?", "raw": b"{"}
        for n in bad
    ]
    held = quarantine.load()
    listed = write_list(
        table.location, [write_rows(held.metadata, aside)] if aside else [], table.io
    )
    state = table.state.with_journals({JOURNAL: JournalState(offset=100, counts=counts)})
    path = write_state(table.location, state, table.io)
    files = [data_file_of(write_rows(table.metadata, list(rows)), table.metadata)] if rows else []
    properties = state_properties(state, path=path, run=run, quarantine=listed)
    publish_files(handle, table.start, files, run, properties)
    return handle, quarantine


COUNTS = Counts(messages=5, committed=5, typed=3, quarantined=2)


def test_a_table_that_holds_what_its_state_says_is_complete(world):
    rows = [row(n) for n in (1, 2, 3)]
    handle, quarantine = run(world, rows=rows, bad=(4, 5), counts=COUNTS)
    found = check_counts(handle, quarantine)
    assert found.is_complete
    assert (found.rows, found.quarantined, found.notes) == (3, 2, ())  # none of them is settled yet
    assert found.counts.committed == 5


@pytest.mark.parametrize(
    ("rows", "bad", "lost", "doubled", "told"),
    [
        ((1, 2), (4, 5), 1, 0, "has 2 of 3, 1 row lost"),
        ((1, 2, 3, 3), (4, 5), 0, 1, "has 4 of 3, 1 row too many"),
        ((1, 2, 3), (4,), 1, 0, "the quarantine of typed.flights has 1 of 2, 1 record lost"),
        ((1, 2, 3), (4, 5, 6, 7), 0, 2, "2 records too many"),
    ],
)
def test_what_is_lost_or_too_much_is_reported_with_its_journal(
    world, rows, bad, lost, doubled, told
):
    handle, quarantine = run(world, rows=[row(n) for n in rows], bad=bad, counts=COUNTS)
    found = check_counts(handle, quarantine)
    assert not found.is_complete
    assert (found.lost, found.doubled) == (lost, doubled)
    (finding,) = found.findings
    assert finding.journal == JOURNAL
    assert told in finding.text
    assert "backfill" in finding.text


def test_rows_of_a_journal_that_was_never_read_are_too_many(world):
    rows = [row(1), row(2), row(3), row(1, journal="raw/other")]
    handle, quarantine = run(world, rows=rows, bad=(4, 5), counts=COUNTS)
    (finding,) = check_counts(handle, quarantine).findings
    assert (finding.journal, finding.doubled) == ("raw/other", 1)


def test_a_key_has_fewer_rows_than_messages_and_never_more(world):
    handle, quarantine = run(world, rows=[row(3)], bad=(4, 5), counts=COUNTS)
    found = check_counts(handle, quarantine, is_upserted=True)
    assert found.is_complete
    assert "1 row of 3 messages" in found.notes[0]
    more = replace(COUNTS, typed=0, quarantined=5)
    handle, quarantine = run(world, bad=(6, 7, 8), counts=more, run="two")
    (finding,) = check_counts(handle, quarantine, is_upserted=True).findings
    assert finding.doubled == 1


def test_counts_that_contradict_each_other_are_reported():
    counts = Counts(messages=5, committed=5, typed=3, quarantined=1)
    (finding,) = account("typed.flights", TypedState({JOURNAL: JournalState(counts=counts)}))
    assert (finding.journal, finding.lost, finding.doubled) == (JOURNAL, 1, 0)
    assert account("typed.flights", TypedState()) == ()


def test_offsets_of_a_span_are_those_of_rows_and_of_records_that_are_not_settled(world):
    rows = [row(n) for n in (1, 2, 3)]
    handle, quarantine = run(world, rows=rows, bad=(4, 5), counts=COUNTS)
    found = begins_at(moment_of(handle, quarantine), JOURNAL, 20, 50)
    assert sorted(found.to_pylist()) == [20, 30, 40]
    assert found.type == pa.int64()
    assert len(begins_at(moment_of(handle, quarantine), "raw/other", 0, 100)) == 0
