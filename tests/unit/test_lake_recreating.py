"""A raw table is made again by a spec that it cannot become, if no row would be missed."""

import pytest
from lake_bench import MemoryMetastore

from gazette_platform.errors import SchemaMismatch
from gazette_platform.hive import HivePartition
from gazette_platform.lake import ensure_views, parse_table_spec
from gazette_platform.lake.raw.account_book import AccountBook
from gazette_platform.lake.raw.applying_specs import (
    HeldNow,
    drop_entries,
    entries_of,
    stored_entry,
    why_missed,
)
from gazette_platform.lake.raw.partition_state import PartitionState
from gazette_platform.lake.raw.tables import evolved_table, table_definition
from gazette_platform.lake.spec.layout import Layout

PLAIN = parse_table_spec(
    "{name: s.t, selector: name=j, format: csv, columns: [{name: a, type: string}]}"
)
WITH_HEADER = parse_table_spec(
    "{name: s.t, selector: name=j, format: csv, header: true, columns: [{name: a, type: string}]}"
)


@pytest.fixture
def session():
    with MemoryMetastore().connect() as session:
        session.ensure_database("s")
        yield session


def made(session, spec):
    table = table_definition(spec, Layout.parse("j/{day}"), "file:///x/j")
    session.create_table(table)
    ensure_views(session, spec, table, {})
    return table


@pytest.mark.parametrize("before", [PLAIN, WITH_HEADER])
@pytest.mark.parametrize("after", [PLAIN, WITH_HEADER])
def test_all_entries_of_a_table_are_found_and_dropped_in_either_form(session, before, after):
    table = made(session, before)
    entries = entries_of(session, after.name)
    assert stored_entry(entries).name == table.name
    assert {entry.name for entry in entries} == set(session.tables("s"))
    drop_entries(session, entries)
    drop_entries(session, entries)
    assert session.tables("s") == []
    made(session, after)


def test_tables_of_others_are_not_entries(session):
    other = parse_table_spec(
        "{name: s.t_lines, selector: name=j, format: csv, columns: [{name: a, type: string}]}"
    )
    made(session, other)
    assert entries_of(session, WITH_HEADER.name) == []


def test_change_of_header_names_the_way_out(session):
    existing = made(session, PLAIN)
    wanted = table_definition(WITH_HEADER, Layout.parse("j/{day}"), "file:///x/j")
    with pytest.raises(SchemaMismatch, match=r"`header` has changed.*--recreate"):
        evolved_table(existing, wanted)


def test_rows_that_no_journal_has_would_be_missed(session):
    table = made(session, PLAIN)
    state = PartitionState(journal="j").adding(
        "j", 100, 200, rows=1, stored_bytes=1, stamp="", created=0
    )
    session.add_partitions(
        table,
        [
            HivePartition(values=("1",), location="file:///x/j/1", parameters=state.within({})),
            HivePartition(values=("2",), location="file:///x/j/2"),
        ],
    )
    states = [entry.state for entry in AccountBook(session, table).every()]
    assert sorted(each.journal for each in states) == ["", "j"]
    assert why_missed(states, {"j": HeldNow(100, 200), "k": HeldNow(7, 7)}) == ""
    assert why_missed(states, {"j": HeldNow(0, 300)}) == ""
    assert "before offset 150 would be gone" in why_missed(states, {"j": HeldNow(150, 200)})
    assert "because that journal is" in why_missed(states, {"k": HeldNow(0, 200)})


@pytest.mark.parametrize(
    ("now", "is_same"),
    [
        (HeldNow(0, 200, 7), True),
        (HeldNow(0, 200), True),
        (HeldNow(0, 200, 9), False),
        (HeldNow(0, 199), False),
    ],
)
def test_rows_of_a_journal_that_was_made_again_would_be_missed(now, is_same):
    state = PartitionState().adding("j", 0, 200, rows=1, stored_bytes=1, created=7)
    why = why_missed([state], {"j": now})
    assert ("deleted and made again" not in why) == is_same
