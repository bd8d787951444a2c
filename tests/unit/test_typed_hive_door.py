"""The handle to a metastore: what it makes, compares and refuses. On real Iceberg files; the metastore is one in memory."""

import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from lake_bench import MemoryMetastore
from typed_files import write_rows
from typed_world import JOURNAL, Held, publish, row, spec

from gazette_platform.errors import TableFenced
from gazette_platform.lake.iceberg.catalog import MetastoreHandle, NewTable
from gazette_platform.lake.iceberg.metastore import IcebergTables
from gazette_platform.lake.iceberg.publishing import head_of, progress_of
from gazette_platform.lake.typed.iceberg_types import new_partition_spec, new_schema
from gazette_platform.lake.typed.tables.quarantine import (
    count_rows,
    open_quarantine,
    settle_quarantine,
    write_list,
)
from gazette_platform.lake.typed.tables.table import open_table


@pytest.fixture
def tables(tmp_path):
    return IcebergTables(MemoryMetastore(), tmp_path.as_uri())


@pytest.fixture
def handle(tables):
    return MetastoreHandle(tables, "typed.flights")


@pytest.fixture
def opened(tables, handle):
    return lambda wanted=None: open_table(
        handle, wanted or spec(), tables.new_location("typed", "flights")
    )


def numbers(handle):
    loaded = handle.load()
    return sorted(loaded.table.scan().to_arrow()["n"].to_pylist())


def test_table_is_made_evolved_and_published_to(handle, opened):
    assert handle.load() is None
    first = publish(handle, opened(), [1, 2])
    table = opened(spec(("n bigint", "k string", "more double")))
    assert (table.start, table.state.journals[JOURNAL].offset) == (first.snapshot_id, 20)
    second = publish(handle, table, [3])
    assert progress_of(second.metadata) == head_of(second.metadata) == second.snapshot_id
    assert "more" in second.metadata.schema().column_names
    assert numbers(handle) == [1, 2, 3]


def test_of_two_who_make_it_one_does(tables, handle, opened):
    one = opened()
    # As who looked before the other one had made it.
    schema = new_schema(spec())
    new = NewTable(
        schema=schema,
        partitions=new_partition_spec(spec(), schema),
        location=tables.new_location("typed", "flights"),
        properties={},
    )
    assert handle.create(new).metadata.location == one.location


def test_of_runs_from_one_start_one_is_published(handle, opened):
    table = opened()
    outcomes = []

    def run(number):
        try:
            outcomes.append(publish(handle, table, [number]))
        except TableFenced as err:
            outcomes.append(err)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(4)))
    assert sum(isinstance(one, TableFenced) for one in outcomes) == 3
    assert len(numbers(handle)) == 1


def test_who_is_held_up_between_looking_and_committing_is_fenced(handle, opened):
    table = opened()
    held = Held(handle, lambda: publish(handle, table, [1]))
    with pytest.raises(TableFenced):
        publish(held, table, [2])
    wider = spec(("n bigint", "k string", "more double"))
    table = opened()
    with pytest.raises(TableFenced):
        open_table(Held(handle, lambda: publish(handle, table, [3])), wider, "")
    assert numbers(handle) == [1, 3]


def test_quarantine_is_settled_once(tables, handle, opened):
    table = opened()
    quarantine = MetastoreHandle(tables, "typed.flights_quarantine")
    held = open_quarantine(
        quarantine, "typed.flights", tables.new_location("typed", "flights_quarantine")
    )
    bad = row(1) | {"reason": "bad", "raw": b"{", "_uuid": uuid.UUID(int=1).bytes}
    written = write_rows(held.metadata, [{k: v for k, v in bad.items() if k not in ("n", "k")}])
    publish(handle, table, [], quarantine=write_list(table.location, [written], table.io))
    assert settle_quarantine(handle, quarantine)
    assert not settle_quarantine(handle, quarantine)
    assert count_rows(handle, quarantine).quarantined == {JOURNAL: 1}
