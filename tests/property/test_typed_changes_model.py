"""Tables of changes against the database that the changes are of: whatever comes twice, late, or in the wrong order.

A run is what `view_of` says a table will be once it has published: DuckDB carries it out. Deletions are kept beside, as runs do.
"""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest
from debezium import Database, mysql_source, postgres_source, spec_of
from hypothesis import given, settings, strategies as st
from msgspec import structs
from typed_world import spec as typed_spec

from gazette_platform.lake.local_sql.names import quoted
from gazette_platform.lake.typed.checks.last_messages import LastMessages
from gazette_platform.lake.typed.files.change_files import are_deletions
from gazette_platform.lake.typed.planning.last_rows import view_of
from gazette_platform.lake.typed.rows.change_parsing import parser_of
from gazette_platform.lake.typed.rows.placing import placed_rows
from gazette_platform.lake.typed.schema.iceberg_types import arrow_schema, new_schema

pytestmark = pytest.mark.long

JOURNALS = ("cdc/customers/part=0", "cdc/customers/part=1")
CONNECTION = duckdb.connect()
EXAMPLES = settings(max_examples=30, deadline=None)


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
        """Append lines, each of which has the number of its journal, and merge them."""
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


KEYS = st.integers(1, 4)
STEPS = st.one_of(
    st.tuples(st.just("upsert"), KEYS, st.sampled_from("abc")),
    st.tuples(st.just("delete"), KEYS),
    st.tuples(st.sampled_from(["move", "rename_key"]), KEYS, KEYS),
    st.tuples(st.sampled_from(["truncate", "snapshot", "message"])),
)


def told_by(database, steps):
    """Do steps to a database. Return what Debezium tells of each, and of each moment the rows."""
    moments = []
    for name, *arguments in steps:
        getattr(database, name)(*arguments)
        moments.append((len(database.told), dict(database.rows)))
    return database.lines(), moments


def names(rows):
    return {key: row["name"] for key, row in rows.items()}


@EXAMPLES
@given(
    st.lists(STEPS, max_size=20),
    st.randoms(use_true_random=False),
    st.sampled_from([postgres_source, mysql_source]),
    st.booleans(),
    st.booleans(),
)
def test_changes_in_any_order_and_again_become_the_source_rows(
    steps, draw, source, is_spread, wraps
):
    database = Database(source, wraps=wraps)
    lines, _ = told_by(database, steps)
    again = [line for line in lines for _ in range(draw.choice([1, 1, 1, 2, 3]))]
    draw.shuffle(again)
    table = Table(spec_of())
    while again:
        count = draw.randint(1, len(again))
        part, again = again[:count], again[count:]
        table.run([(line, draw.randrange(2) if is_spread else 0) for line in part])
    assert table.seen("id", "name") == names(database.rows)


@EXAMPLES
@given(st.lists(STEPS, max_size=20), st.randoms(use_true_random=False))
def test_restarts_of_the_connector_take_no_row_back(steps, draw):
    """A connector that restarts tells again what it has told since it last committed its offset."""
    database = Database()
    lines, moments = told_by(database, steps)
    table, at = Table(spec_of()), 0
    for end, rows in moments:
        since = draw.randint(0, at)
        told = [*lines[since:at], *lines[at:end]]
        # All of it at once, or one record a run: the rows are those of the newest record that was told.
        parts = [told] if draw.random() < 0.5 else [[line] for line in told]
        for part in parts:
            table.run([(line, 0) for line in part])
        assert table.seen("id", "name") == names(rows)
        at = end


@EXAMPLES
@given(st.lists(STEPS, max_size=20), st.randoms(use_true_random=False))
def test_by_journal_the_last_of_it_counts_whatever_positions_say(steps, draw):
    # As after a database was restored elsewhere, whose log begins anew.
    database = Database(lambda at: postgres_source(2**40 - at))
    lines, moments = told_by(database, steps)
    table, at = Table(spec_of(more="change_data: debezium\n  order: journal")), 0
    for end, rows in moments:
        table.run([(line, 0) for line in lines[at:end]])
        assert table.seen("id", "name") == names(rows)
        at = end
    since = draw.randint(0, len(lines))
    table.run([(line, 0) for line in lines[since:]])
    assert table.seen("id", "name") == names(database.rows)


@EXAMPLES
@given(
    st.lists(
        st.tuples(
            KEYS, st.sampled_from("abc"), st.sampled_from(["true", '"TRUE"', "false", "null"])
        ),
        max_size=20,
    ),
    st.randoms(use_true_random=False),
    st.booleans(),
)
def test_column_that_says_deleted_deletes(changes, draw, is_text):
    kind = "string" if is_text else "boolean"
    spec = structs.replace(
        typed_spec(("id bigint", "name string", f"gone {kind}")),
        key=("id",),
        deleted="gone",
        uuid=(),
    )
    table, rows = Table(spec), {}
    told = []
    for key, name, gone in changes:
        is_gone = "true" in gone.lower()
        value = f'"{gone.strip(chr(34))}"' if is_text else gone.strip('"').lower()
        told.append(
            (b'{"id":%d,"name":"%b","gone":%b}\n' % (key, name.encode(), value.encode()), 0)
        )
        rows.pop(key, None) if is_gone else rows.update({key: name})
        if draw.random() < 0.5:
            table.run(told)
            told = []
    table.run(told)
    assert table.seen("id", "name") == rows
