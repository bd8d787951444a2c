"""Debezium's envelopes as rows of typed tables: shapes of PostgreSQL and MySQL, what is a row, a deletion, or neither."""

import json
import re
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from debezium import Database, mysql_source, postgres_source, spec_of, wrapped

from gazette_platform.assets.typed_events import column_lineage
from gazette_platform.errors import ValidationError
from gazette_platform.lake import parse_table_spec
from gazette_platform.lake.typed.iceberg_types import arrow_schema, new_schema
from gazette_platform.lake.typed.rows.debezium import parser_of
from gazette_platform.lake.typed.rows.placing import bad_rows, placed_rows
from gazette_platform.message.uuid import Flags, build_uuid

ROW = {"id": 1, "name": "Ann"}
ONE = postgres_source(24023128)


def parse(spec, *records):
    lines = [
        one if isinstance(one, bytes) else json.dumps(one, ensure_ascii=False).encode()
        for one in records
    ]
    content = b"".join(line + b"\n" for line in lines)
    return parser_of(spec).parse(100, content)


def rows(spec, *records):
    parsed = parse(spec, *records)
    assert not parsed.bad, parsed.bad
    return parsed.rows.to_pylist()


def reasons(spec, *records):
    parsed = parse(spec, *records)
    assert not parsed.rows.num_rows
    return [one.reason for one in parsed.bad]


def change(op, before=None, after=None, source=ONE, **more):
    return {
        "before": before,
        "after": after,
        "source": source,
        "op": op,
        "ts_ms": 1,
        "transaction": None,
    } | more


# ------------------------------------------------------------------ which record is what


@pytest.mark.parametrize("wrap", [lambda one: one, wrapped], ids=["plain", "wrapped"])
@pytest.mark.parametrize("op", ["c", "u", "r"])
def test_inserts_updates_and_snapshots_are_rows(op, wrap):
    (found,) = rows(spec_of(), wrap(change(op, None, ROW)))
    assert found == ROW | {"_op": op, "_position": "00000000000024023128"}


@pytest.mark.parametrize("wrap", [lambda one: one, wrapped], ids=["plain", "wrapped"])
def test_deletion_has_the_key_alone(wrap):
    # Columns that are not of the key may hold anything: PostgreSQL logs defaults for them.
    (found,) = rows(spec_of(), wrap(change("d", {"id": 1, "name": 17})))
    assert found == {"id": 1, "name": None, "_op": "d", "_position": "00000000000024023128"}


def test_truncation_is_a_row_without_a_key():
    columns = "id:string,day:int,at:bigint,price:string,ok:boolean"
    entries = (
        "  columns:\n  - {name: id, type: uuid}\n  - {name: at, type: timestamp, format: epoch_us}\n"
        "  - {name: day, type: date, format: epoch_days}\n"
        "  - {name: price, type: 'decimal(9,2)', format: base64}\n"
    )
    spec = spec_of(columns, entries, key="id, day, at, price, ok")
    (found,) = rows(spec, change("t"))
    assert found["_op"] == "t"


NO_ROWS = [
    b"null",
    b"",
    {"schema": None, "payload": None},
    {"_meta": {"uuid": "x", "ts": 1, "key": '{"id":1}', "tombstone": True}},
    {"ts_ms": 1764000000000},
    wrapped({"ts_ms": 1764000000000}),
    {"status": "BEGIN", "id": "571:53195829", "event_count": None, "ts_ms": 1},
    {"status": "END", "id": "571:53195829", "event_count": 2, "data_collections": [], "ts_ms": 1},
    {"source": ONE, "ts_ms": 1, "databaseName": "shop", "ddl": "DROP TABLE x", "tableChanges": []},
    {"op": "m", "ts_ms": 1, "source": ONE, "message": {"prefix": "p", "content": "aGk="}},
]


@pytest.mark.parametrize("record", NO_ROWS, ids=repr)
def test_messages_about_no_row_are_neither_rows_nor_bad(record):
    parsed = parse(spec_of(), change("c", None, ROW), record, change("u", None, ROW))
    assert parsed.bad == ()
    assert parsed.good.to_pylist() == [0, 2]
    assert parsed.rowless.to_pylist() == [1]
    assert len(parsed.begins) == 3


def test_update_that_changes_the_key_deletes_the_former_one():
    parsed = parse(spec_of(), change("u", ROW, {"id": 2, "name": "Bob"}))
    assert [(r["id"], r["_op"]) for r in parsed.rows.to_pylist()] == [(1, "d"), (2, "u")]
    assert (parsed.good.to_pylist(), parsed.doubled.to_pylist()) == ([0, 0], [0])
    # With the same key there is one row, whatever else has changed.
    assert len(rows(spec_of(), change("u", ROW | {"name": "x"}, ROW))) == 1
    # Nor if the key is written in another way: its deletion would be as late as its row.
    text = b'{"op":"u","before":{"id":"a\\/b"},"after":{"id":"a/b","name":"x"}}'
    assert [r["_op"] for r in rows(spec_of("id:string,name:string"), text)] == ["u"]
    # PostgreSQL gives no `before`, or one of nulls, unless it logs it.
    assert len(rows(spec_of(), change("u", {"id": None, "name": None}, ROW))) == 1


BAD = [
    (change("d"), "`before` does not say its id"),
    (change("d", {"name": "Ann"}), "REPLICA IDENTITY"),
    (change("u"), "`after` has no row"),
    (change("x", None, ROW), "`op` is 'x'"),
    (ROW, "has no `op`.*needs `deleted`"),
    (change("u", None, {"id": 1, "name": "__debezium_unavailable_value"}), "REPLICA IDENTITY FULL"),
    # The same of a column of bytes, in base64.
    (
        change("u", None, {"id": 1, "name": "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="}),
        "did not log it",
    ),
    (change("c", None, {"id": "one", "name": "Ann"}), "id: .one. is no bigint"),
    (change("c", None, {"name": "Ann"}), "id: is required"),
    (
        change("c", None, ROW, {"connector": "mysql", "file": "x", "pos": 4}),
        "does not end with a number",
    ),
    (
        change("c", None, ROW, {"connector": "mysql", "file": "b." + "9" * 5000, "pos": 4}),
        "b.9{58}', which does not end",
    ),
    (change("c", None, ROW, postgres_source(-1)), "-1 is not a position"),
    (change("c", None, ROW, {"lsn": "0/16E8A18"}), "lsn"),
    (b'{"op":"c","after":{"id":1', "truncated"),
    (b"[1]", "Expected `object`"),
    (b'{"op":"c","after":{"id":1,"id":2}}', "occurs twice"),
    (b'{"op":"c","after":{"id":1,"name":"\xff"}}', "UTF-8"),
]


@pytest.mark.parametrize(("record", "why"), BAD, ids=[why for _, why in BAD])
def test_bad_records_say_what_is_wrong(record, why):
    (found,) = reasons(spec_of(), record)
    assert re.search(why, found), found


def test_bad_records_are_set_aside_as_they_lie():
    good, bad = change("c", None, ROW), change("u", ROW | {"id": 9}, {"id": 2, "name": 5})
    parsed = parse(spec_of(), good, bad, b"null")
    content = b"".join(json.dumps(one).encode() + b"\n" for one in (good, bad)) + b"null\n"
    # Also the deletion, which is half of what the record says, is not a row.
    assert parsed.rows.num_rows == 1
    (kept,) = bad_rows("cdc/a", parsed, content, 100, None).to_pylist()
    assert kept["raw"] == json.dumps(bad).encode() + b"\n"
    assert kept["reason"].startswith("name: 5 is no string")


def test_line_without_its_newline_is_bad():
    content = json.dumps(change("c", None, ROW)).encode()
    parsed = parser_of(spec_of()).parse(0, content + b"\n" + content)
    assert [one.number for one in parsed.bad] == [1]
    assert parsed.ends.to_pylist() == [len(content) + 1, 2 * len(content) + 1]


def test_uuid_lies_in_the_envelope():
    spec = spec_of(more="change_data: debezium\n  uuid: _meta.uuid")
    told = str(build_uuid(b"\1abcde", 7, Flags.OUTSIDE_TXN))
    parsed = parse(spec, change("c", None, ROW, _meta={"uuid": told}), b"null")
    schema = arrow_schema(new_schema(spec))
    (found,) = placed_rows(spec, schema, "cdc/a", parsed, None).to_pylist()
    assert str(found["_uuid"]) == told
    assert (found["_journal"], found["_begin"]) == ("cdc/a", 100)
    # An acknowledgement of a transaction is not a row, and not bad.
    ack = {"_meta": {"uuid": str(build_uuid(b"\1abcde", 8, Flags.ACK_TXN))}}
    for record in (ack, change("c", None, ROW, **ack)):
        parsed = parse(spec, record)
        assert (parsed.bad, parsed.rows.num_rows, parsed.rowless.to_pylist()) == ((), 0, [])


# ------------------------------------------------------------------ positions


def position(source):
    (found,) = rows(spec_of(), change("c", None, ROW, source))
    return found["_position"]


def test_positions_sort_as_the_source_counts():
    postgres = [postgres_source(lsn) for lsn in (9, 10, 24023128, 2**63 - 1)]
    mysql = [
        mysql_source(4), mysql_source(154, row=9), mysql_source(154, row=10), mysql_source(1154),
        mysql_source(4, file="mysql-bin.000010"), mysql_source(4, file="mysql-bin.999999"),
        mysql_source(4, file="mysql-bin.1000000"),
    ]  # fmt: skip
    others = [{"connector": "sqlserver", "ts_ms": ms} for ms in (5, 1764000000000)]
    for sources in (postgres, mysql, others):
        found = [position(one) for one in sources]
        assert found == sorted(set(found))


def test_source_without_a_position_sorts_before_all_others():
    for source in (None, {}, {"connector": "postgresql", "lsn": None, "ts_ms": 5}):
        assert position(source) == ""


# ------------------------------------------------------------------ values


VALUES = [
    ("int", "date", "epoch_days", 20454, date(2026, 1, 1)),
    ("int", "date", "epoch_days", -1, date(1969, 12, 31)),
    ("bigint", "timestamp", "epoch_ms", 1767225600123, datetime(2026, 1, 1, 0, 0, 0, 123000)),  # noqa: DTZ001
    ("bigint", "timestamp", "epoch_us", 1767225600123456, datetime(2026, 1, 1, 0, 0, 0, 123456)),  # noqa: DTZ001
    ("string", "timestamptz", "iso", "2026-01-01T01:00:00.5Z", datetime(2026, 1, 1, 1, 0, 0, 500000, UTC)),
    ("string", "decimal(10,2)", "base64", "AMT=", Decimal("1.96")),
    ("string", "decimal(10,2)", "base64", "/zw=", Decimal("-1.96")),
    ("string", "decimal(38,0)", "base64", "SztMqFqGxHoJih//////", None),
    ("string", "decimal(10,2)", "number", "1.96", Decimal("1.96")),
    ("double", "decimal(10,2)", "number", 1.96, Decimal("1.96")),
    ("string", "binary", "base64", "/w==", b"\xff"),
    ("string", "uuid", "", "01020304-0506-0708-090a-0b0c0d0e0f10", None),
]  # fmt: skip


@pytest.mark.parametrize(("raw", "kind", "form", "value", "expected"), VALUES)
def test_values_are_read_as_debezium_writes_them(raw, kind, form, value, expected):
    told = f", format: {form}" if form else ""
    entries = f"  columns:\n  - {{name: v, type: '{kind}'{told}}}\n"
    (found,) = rows(
        spec_of(f"id:bigint,v:{raw}", entries), change("c", None, {"id": 1, "v": value})
    )
    if expected is not None:
        assert found["v"] == expected
    assert found["v"] is not None


MISFITS = [
    ("date", "epoch_days", 3_000_000),
    ("date", "epoch_days", "2026-01-01"),
    ("timestamp", "epoch_us", "2026-01-01T00:00:00"),
    ("timestamp", "epoch_ms", 1767225600123456),
    ("decimal(3,2)", "base64", "J0s="),
    ("decimal(10,2)", "base64", "1.96"),
]


@pytest.mark.parametrize(("kind", "form", "value"), MISFITS)
def test_values_of_other_encodings_are_set_aside(kind, form, value):
    entries = f"  columns:\n  - {{name: v, type: '{kind}', format: {form}}}\n"
    spec = spec_of("id:bigint,v:string", entries)
    (found,) = reasons(spec, change("c", None, {"id": 1, "v": value}))
    assert found.startswith("v: ")
    assert found.endswith(f"({form})")


# ------------------------------------------------------------------ specs


SPECS = [
    ("change_data: debezium", "[]", "needs `key`"),
    ("uuid: none\n  deleted: gone", "[]", "needs `key`"),
    ("change_data: debezium\n  deleted: id", "[id]", "says itself what is deleted"),
    ("change_data: oracle", "[id]", "Invalid enum value 'oracle'"),
    ("uuid: none\n  order: source", "[op]", "needs `change_data`"),
    ("uuid: none\n  deleted: nope", "[op]", "'nope' is not a column"),
    ("uuid: none\n  deleted: after", "[op]", "after is a struct; it has to be a `boolean`"),
    ("change_data: debezium\n  columns: [{name: _op, type: string}]", "[id]", "that `change_data` adds"),
]  # fmt: skip


@pytest.mark.parametrize(("section", "key", "why"), SPECS)
def test_specs_that_make_no_sense_are_refused(section, key, why):
    with pytest.raises(ValidationError) as raised:
        spec_of(more=section, key=key.strip("[]"))
    assert why in str(raised.value)


def test_columns_of_the_row_come_from_after_wherever_it_lies():
    spec = spec_of()
    assert [column.name for column in spec.columns] == ["id", "name"]
    assert (spec.uuid, spec.order) == ((), "source")
    assert [c.name for c in spec.all_columns[2:4]] == ["_op", "_position"]


def test_database_of_the_tests_reports_its_changes():
    shop = Database(wraps=True)
    shop.upsert(1, "a")
    shop.upsert(1, "b")
    shop.move(1, 2)
    shop.delete(2)
    found = rows(spec_of(), *(line.rstrip() for line in shop.lines()))
    told = [(one["id"], one["_op"]) for one in found]
    assert told == [(1, "c"), (1, "u"), (1, "d"), (2, "c"), (2, "d")]


def test_lineage_leads_to_the_envelope():
    text = (
        "name: cdc.t\nselector: 'name:prefix=cdc/'\nformat: json\ncolumns:\n"
        "- {name: payload, type: 'struct<after:struct<id:bigint,name:string>,op:string>'}\n"
        "typed: {change_data: debezium, key: [id]}\n"
    )
    raw = parse_table_spec(text)
    assert [column.name for column in raw.typed.columns] == ["id", "name"]
    lineage = column_lineage(raw, raw.typed)
    assert {name: dep.column_name for name, (dep,) in lineage.deps_by_column.items()} == {
        "id": "payload",
        "name": "payload",
    }
