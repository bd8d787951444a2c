"""Which message of a key is the last, by SQL and as it is said in Python."""

import uuid
from pathlib import Path
from random import Random

import duckdb
import pyarrow as pa
import pytest
from typed_merges import merged

from gazette_platform.errors import LakeError
from gazette_platform.lake.engines.duckdb.names import quoted
from gazette_platform.lake.typed.planning.last_rows import view_of
from gazette_platform.lake.typed.tables.writing import CountedRows, RowSpool, SpooledRows
from gazette_platform.message.uuid import build_uuid

SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("#odd", pa.string()),
        ("_journal", pa.string()),
        ("_begin", pa.int64()),
        ("_uuid", pa.uuid()),
    ]
)
# Each bit of a clock decides somewhere.
CLOCKS = [0, 1, 2, 15, 16, 17, *(1 << bit for bit in (35, 36, 51, 52, 63)), (1 << 64) - 1]
JOURNALS = ["raw/t/part=a", "raw/t/part=é", "raw/t/part=𐀀"]


def messages(draw, count):
    for begin in draw.sample(range(1 << 40), count):
        told = build_uuid(draw.randbytes(6), draw.choice(CLOCKS), draw.randrange(1024))
        yield {
            "n": draw.randrange(40), "#odd": str(begin), "_journal": draw.choice(JOURNALS), "_begin": begin,
            "_uuid": None if draw.random() < 0.1 else told.bytes,
        }  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
def test_the_view_of_a_table_with_a_key_has_the_last_message_of_each(seed):
    draw = Random(seed)
    history = merged([], list(messages(draw, 60)), ("n",))
    tail = list(messages(draw, draw.choice([0, 1, 30, 200])))
    with duckdb.connect() as connection:
        for name, rows in (("history", history), ("tail", tail)):
            connection.register(name, pa.Table.from_pylist(rows, schema=SCHEMA))
        query = view_of(SCHEMA.names, ["n"], "history", "tail", quoted)
        found = connection.execute(query).to_arrow_table().sort_by("n").to_pylist()
    expected = merged(history, tail, ("n",))
    # As Arrow, DuckDB gives texts.
    for row in found:
        row["_uuid"] = row["_uuid"] and uuid.UUID(row["_uuid"]).bytes
    assert found == expected


def test_a_spool_gives_rows_back_any_number_of_times_and_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    spool = RowSpool(SCHEMA)
    rows = pa.Table.from_pylist(list(messages(Random(1), 500)), schema=SCHEMA)
    sinks = [SpooledRows(spool) for _ in range(3)]
    for begin in range(0, 500, 100):
        for sink in sinks:
            sink.add(rows.slice(begin, 100))
    sinks[1].abort()
    assert [sink.rows for sink in sinks] == [500, 0, 500]
    assert sinks[1].close() == ()
    places = sinks[2].close()
    for _ in range(2):
        assert pa.Table.from_batches(spool.read(places)) == rows
    assert not list(tmp_path.iterdir())
    spool.close()


def test_a_disk_that_is_full_is_reported():
    spool = RowSpool(SCHEMA)
    with Path("/dev/full").open("r+b", buffering=0) as full:
        spool._file.close()
        spool._file = full
        with pytest.raises(LakeError, match=r"No space left.*TMPDIR"):
            spool.add(pa.Table.from_pylist(list(messages(Random(1), 5)), schema=SCHEMA))


def test_rows_that_are_only_counted_are_forgotten():
    sink = CountedRows(SCHEMA)
    sink.add(pa.Table.from_pylist(list(messages(Random(1), 5)), schema=SCHEMA))
    assert (sink.rows, sink.close()) == (5, ())
    sink.abort()
    assert sink.rows == 0
