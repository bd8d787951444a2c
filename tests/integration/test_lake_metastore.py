"""The metastore client against a real Hive Metastore."""

from dataclasses import replace

import pytest

from gazette_platform.errors import LakeError
from gazette_platform.hive import CSV_STORAGE, HiveColumn, HivePartition, HiveTable

pytestmark = [pytest.mark.hive, pytest.mark.trino, pytest.mark.timeout(400)]


@pytest.fixture
def session(metastore):
    with metastore.connect() as opened:
        opened.ensure_database("client_test")
        yield opened
        for table in opened.tables("client_test"):
            opened.drop_table("client_test", table)
        opened.drop_database("client_test")


@pytest.fixture
def table(tmp_path, session):
    made = HiveTable(
        database="client_test",
        name="t",
        location=f"file://{tmp_path}/t",
        columns=(HiveColumn(name="a", type="string", comment="an a"),),
        partition_columns=(
            HiveColumn(name="p", type="string"),
            HiveColumn(name="day", type="date"),
        ),
        storage=CSV_STORAGE,
        parameters={"k": "v" * 3000},
    )
    assert session.create_table(made)
    return made


def test_table_is_kept(session, table):
    assert not session.create_table(table)
    found = session.table("client_test", "t")
    assert found.columns == table.columns
    assert found.partition_columns == table.partition_columns
    assert found.storage == table.storage
    assert found.location == table.location
    assert found.parameters["k"] == "v" * 3000
    assert session.table("client_test", "none") is None
    assert session.table("none", "none") is None
    assert session.tables("client_test") == ["t"]
    assert "client_test" in session.databases()


def test_partitions_in_batches_with_awkward_values(session, table):
    values = [("a/b=c%d:e", "2026-01-02"), ("é", "2026-01-03"), ("..", "2026-01-04")]
    values += [(f"{n:03}", "2026-01-05") for n in range(500)]
    partitions = [
        HivePartition(values=v, location=f"{table.location}/{n}") for n, v in enumerate(values)
    ]
    assert session.add_partitions(table, partitions) == 503
    assert session.add_partitions(table, partitions[:10]) == 0
    found = session.partitions_of(table, [*values[:3], ("no", "2026-01-01")])
    assert {v: p.location for v, p in found.items()} == {
        p.values: p.location for p in partitions[:3]
    }
    changed = [replace(p, parameters={"numRows": "7", "x": "y"}) for p in partitions[:2]]
    session.alter_partitions(table, changed)
    parameters = session.partitions_of(table, [values[0]])[values[0]].parameters
    assert (parameters["numRows"], parameters["x"]) == ("7", "y")
    session.drop_partition(table, values[0])
    assert len(session.partitions(table)) == 502
    assert len(session.partitions(table)) == 502


def test_widened_table_reaches_partitions(session, table):
    values = ("1", "2026-01-02")
    session.add_partitions(table, [HivePartition(values=values, location=f"{table.location}/1")])
    wider = replace(table, columns=(*table.columns, HiveColumn(name="b", type="string")))
    session.alter_table(wider)
    assert session.table("client_test", "t").columns == wider.columns
    raw = session._client.get_partition("client_test", "t", list(values))
    assert [c.name for c in raw.sd.cols] == ["a", "b"]


def test_refusal_is_one_clear_message(session, table, metastore):
    with pytest.raises(LakeError, match=f"{metastore.uri} refused drop database client_test: "):
        session.drop_database("client_test")
