"""Tables of changes against the database that the changes are of: whatever comes twice, late, or in the wrong order.

A run is what `view_of` says a table will be once it has published: DuckDB carries it out. Deletions are kept beside, as runs do.
"""

from __future__ import annotations

import json
from random import Random

import duckdb
import pyarrow as pa
import pytest
from debezium import Database, mysql_source, postgres_source, spec_of
from msgspec import structs
from typed_world import spec as typed_spec

from gazette_platform.lake.engines.duckdb.names import quoted
from gazette_platform.lake.typed.iceberg_types import arrow_schema, new_schema
from gazette_platform.lake.typed.planning.last_rows import view_of
from gazette_platform.lake.typed.recount import LastMessages
from gazette_platform.lake.typed.rows.debezium import parser_of
from gazette_platform.lake.typed.rows.placing import placed_rows
from gazette_platform.lake.typed.tables.writing import are_deletions

pytestmark = pytest.mark.long

JOURNALS = ("cdc/customers/part=0", "cdc/customers/part=1")
CONNECTION = duckdb.connect()


class Table:
    """A typed table, and its journals."""

    def __init__(self, spec):
        self.spec = spec
        self.schema = arrow_schema(new_schema(spec))
        self.rows = self.deletes = pa.Table.from_arrays(
            [pa.nulls(0, field.type) for field in self.schema], schema=self.schema
        )
        self.last = LastMessages(spec.key, spec.changes)
        self._ends = dict.fromkeys(JOURNALS, 0)
        self._parser = parser_of(spec)

    def run(self, lines):
        """Append lines with the number of their journal, and merge them."""
        new = [self.rows.slice(0, 0)]
        for number, journal in enumerate(JOURNALS):
            content = b"".join(line for line, at in lines if at == number)
            parsed = self._parser.parse(self._ends[journal], content)
            assert not parsed.bad
            self._ends[journal] += len(content)
            new.append(placed_rows(self.spec, self.schema, journal, parsed, None))
        tail = pa.concat_tables(new)
        self.last.add(tail)
        self.rows = self._merged(tail)
        kept = tail.filter(are_deletions(tail, self.spec.changes))
        self.deletes = pa.concat_tables([self.deletes, kept])

    def _merged(self, tail):
        with CONNECTION.cursor() as cursor:
            tables = {"history": self.rows, "tail": tail, "deletes": self.deletes}
            for name, table in tables.items():
                cursor.register(name, _plain(table))
            query = view_of(
                self.schema.names, self.spec.key, "history", "tail", quoted,
                changes=self.spec.changes, deletes="deletes" if self.deletes.num_rows else "",
            )  # fmt: skip
            found = cursor.execute(query).to_arrow_table()
        columns = [
            pa.nulls(found.num_rows, field.type)
            if field.name == "_uuid"
            else found.column(field.name).cast(field.type)
            for field in self.schema
        ]
        return pa.Table.from_arrays(columns, schema=self.schema)

    def seen(self, *names):
        found = [tuple(row[name] for name in names) for row in self.rows.to_pylist()]
        assert len({row[0] for row in found}) == len(found)
        # As a check counts, which reads journals again.
        expected = {key[0]: (one.journal, one.begin) for key, one in self.last.rows()}
        places = {row["id"]: (row["_journal"], row["_begin"]) for row in self.rows.to_pylist()}
        assert places == expected
        return dict(found)


def _plain(table):
    """Without UUIDs, which none of the messages here have: DuckDB takes them by other ways."""
    at = table.schema.get_field_index("_uuid")
    return table.set_column(at, "_uuid", pa.nulls(table.num_rows, pa.string()))


WEIGHTS = {
    "upsert": 8, "delete": 3, "move": 2, "rename_key": 2, "truncate": 1, "snapshot": 1, "message": 1,
}  # fmt: skip


def steps_of(draw, count):
    """Things that are done to a database, mostly to the same few rows."""
    for name in draw.choices([*WEIGHTS], [*WEIGHTS.values()], k=count):
        keys = [draw.randrange(5) for _ in range({"move": 2, "rename_key": 2}.get(name, 1))]
        if name == "upsert":
            keys.append(str(draw.random()))
        yield name, () if name in {"truncate", "snapshot", "message"} else tuple(keys)


def told_by(database, steps):
    """Do steps to a database. Return the events that Debezium sends for all steps, and the rows at each moment."""
    moments = []
    for name, arguments in steps:
        getattr(database, name)(*arguments)
        moments.append((len(database.told), dict(database.rows)))
    return database.lines(), moments


def names(rows):
    return {key: row["name"] for key, row in rows.items()}


def parts_of(draw, lines):
    """Lines in their order, cut anywhere."""
    while lines:
        count = draw.randint(1, len(lines))
        yield lines[:count]
        lines = lines[count:]


@pytest.mark.parametrize("seed", range(12))
def test_changes_in_any_order_and_again_become_the_source_rows(seed):
    draw = Random(seed)
    database = Database(draw.choice([postgres_source, mysql_source]), wraps=draw.random() < 0.5)
    lines, _ = told_by(database, steps_of(draw, 30))
    again = [line for line in lines for _ in range(draw.choice([1, 1, 1, 2, 3]))]
    draw.shuffle(again)
    table = Table(spec_of())
    for part in parts_of(draw, again):
        table.run([(line, draw.randrange(2) if seed % 3 else 0) for line in part])
    assert table.seen("id", "name") == names(database.rows)


@pytest.mark.parametrize("seed", range(4))
def test_restarts_of_the_connector_take_no_row_back(seed):
    """A connector that restarts sends again what it has sent since it last committed its offset."""
    draw, database = Random(seed), Database()
    lines, moments = told_by(database, steps_of(draw, 10))
    table, at = Table(spec_of()), 0
    for end, rows in moments:
        since = draw.randint(0, at)
        cut = draw.randint(since, end)
        for part in (lines[since:cut], lines[cut:end]):
            table.run([(line, 0) for line in part])
        assert table.seen("id", "name") == names(rows)
        at = end


@pytest.mark.parametrize("seed", range(4))
def test_by_journal_the_last_of_it_counts_whatever_positions_say(seed):
    # As after a database was restored elsewhere, whose log restarts.
    draw, database = Random(seed), Database(lambda at: postgres_source(2**40 - at))
    lines, moments = told_by(database, steps_of(draw, 10))
    table, at = Table(spec_of(more="change_data: debezium\n  order: journal")), 0
    for end, rows in moments:
        table.run([(line, 0) for line in lines[at:end]])
        assert table.seen("id", "name") == names(rows)
        at = end
    since = draw.randint(0, len(lines))
    table.run([(line, 0) for line in lines[since:]])
    assert table.seen("id", "name") == names(database.rows)


@pytest.mark.parametrize("kind", ["boolean", "string"])
@pytest.mark.parametrize("seed", range(4))
def test_column_that_says_deleted_deletes(seed, kind):
    spec = structs.replace(
        typed_spec(("id bigint", "name string", f"gone {kind}")),
        key=("id",),
        deleted="gone",
        uuid=(),
    )
    table, rows, told, draw = Table(spec), {}, [], Random(seed)
    for _ in range(16):
        key, name = draw.randrange(4), str(draw.random())
        gone = draw.choice(
            {"boolean": [True, False, None], "string": ["TRUE", "true", "no", None]}[kind]
        )
        told.append((json.dumps({"id": key, "name": name, "gone": gone}).encode() + b"\n", 0))
        if str(gone).lower() == "true":
            rows.pop(key, None)
        else:
            rows[key] = name
        if draw.random() < 0.3:
            table.run(told)
            told = []
            assert table.seen("id", "name") == rows
    table.run(told)
    assert table.seen("id", "name") == rows
