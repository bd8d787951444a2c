"""Rollup specs: headers of SQL files, and all that is refused."""

from pathlib import Path

import pytest

from gazette_platform.errors import ValidationError
from gazette_platform.lake.rollups import (
    RollupSpec,
    check_rollup,
    load_rollup_specs,
    parse_rollup,
    read_rollup_folder,
)

ROUTES = """\
-- name: rollups.route_by_month
-- sources: [flights.flights]
-- slices: [origin]
-- cron: "*/5 0-6,22 * * 1-5"
-- retention: follow
-- comment: >
--   Flights of each route
--   and month.
--
-- Grain: one row an origin, destination and month.
SELECT origin, dest, count(*) AS flights
FROM flights -- of these slices only
GROUP BY origin, dest;
"""


def test_header_and_query_are_told_apart():
    spec = parse_rollup(ROUTES, engine="trino")
    assert (spec.name, spec.schema, spec.table) == (
        "rollups.route_by_month",
        "rollups",
        "route_by_month",
    )
    assert spec.sources == {"flights": "flights.flights"}
    assert spec.slices == ("origin",)
    assert (spec.cron, spec.retention, spec.engine) == ("*/5 0-6,22 * * 1-5", "follow", "trino")
    assert spec.comment == "Flights of each route and month."
    assert spec.fresh_within_s == 25 * 3600
    assert spec.sql.startswith("--\n-- Grain: one row")
    assert spec.sql.endswith("GROUP BY origin, dest")


def test_example_of_the_reference():
    page = Path(__file__).parents[2] / "docs" / "reference" / "rollup-spec.md"
    _, _, text = page.read_text().partition("```sql\n")
    spec = parse_rollup(text.partition("```")[0], engine="trino")
    assert (spec.name, spec.slices) == ("rollups.route_by_month", ("origin",))


def test_defaults():
    text = "-- name: r.a\n-- sources: [t.orders]\nselect * from ORDERS"
    spec = parse_rollup(text, engine="spark")
    assert spec == RollupSpec(
        name="r.a", engine="spark", sql="select * from ORDERS", sources={"orders": "t.orders"}
    )
    assert (spec.slices, spec.cron, spec.retention) == ((), "* * * * *", "keep")
    assert parse_rollup(f"-- fresh_within: 2m\n{text}", engine="spark").fresh_within_s == 120


def test_sources_may_be_given_names():
    text = "-- name: r.a\n-- sources: {a: x.orders, b: y.orders}\nselect * from a, b"
    assert parse_rollup(text, engine="trino").sources == {"a": "x.orders", "b": "y.orders"}


HEADER = "-- name: r.a\n-- sources: [t.orders]\n"
QUERY = "select day from orders"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("select 1", "has no header"),
        ("--\n-- name: r.a\nselect 1", "has no header"),
        ("-- name: [\nselect 1", "not valid YAML"),
        ("-- name: r.a\nselect 1", "missing required field `sources`"),
        (HEADER + "-- slice: [day]\n" + QUERY, "unknown field `slice`"),
        (HEADER + "-- retention: forget\n" + QUERY, "'forget'"),
        (HEADER + "-- fresh_within: 2001-99-99\n" + QUERY, "not valid YAML"),
        (HEADER, "has no query"),
        (HEADER + "select 1", "the query does not read orders"),
        (HEADER + "select 1 from reorders", "the query does not read orders"),
        (HEADER.replace("r.a", "R.a") + QUERY, "'R.a' is not schema.table"),
        (HEADER.replace("r.a", "rollup") + QUERY, "'rollup' is not schema.table"),
        (HEADER.replace("r.a", "gazette_staging.a") + QUERY, "tables that are being made"),
        (HEADER.replace("r.a", "t.orders") + QUERY, "cannot be made of itself"),
        (HEADER.replace("t.orders", "orders") + QUERY, "'orders' is not schema.table"),
        (HEADER.replace("[t.orders]", "[]") + QUERY, "needs 1 to 20 tables"),
        (HEADER.replace("[t.orders]", "[x.orders, y.orders]") + QUERY, "give names to all"),
        (HEADER.replace("[t.orders]", "{Or: t.orders}") + QUERY, "'Or' is not a name"),
        (HEADER + "-- slices: [Day]\n" + QUERY, "'Day' is not a column name"),
        (HEADER + "-- slices: [day, day]\n" + QUERY, "'day' is repeated"),
        (HEADER + "-- slices: [a, b, c, d, e, f, g, h, i]\n" + QUERY, "more than 8 columns"),
        (HEADER + "-- cron: hourly\n" + QUERY, "'hourly' has 1 fields"),
        (HEADER + '-- cron: "60 * * * *"\n' + QUERY, "'60' is no minute: numbers from 0 to 59"),
        (HEADER + '-- cron: "*/0 * * * *"\n' + QUERY, "'*/0' is no minute"),
        (HEADER + '-- cron: "0 9-5 * * *"\n' + QUERY, "'9-5' is no hour"),
        (HEADER + '-- cron: "0 0 0 * *"\n' + QUERY, "'0' is no day"),
        (HEADER + '-- cron: "0 0 * * MON"\n' + QUERY, "'MON' is no weekday"),
        (HEADER + "-- fresh_within: 1m\n" + QUERY, "less than 2m"),
        (HEADER + "-- fresh_within: soon\n" + QUERY, "not a duration"),
        (HEADER + "-- owners: [flights]\n" + QUERY, "owners[0]: 'flights' is neither an email"),
        (HEADER + "-- tags: {dagster/kind/x: y}\n" + QUERY, "'y' is not a tag"),
    ],
)
def test_refused(text, told):
    with pytest.raises(ValidationError) as caught:
        parse_rollup(text, engine="trino")
    assert told in str(caught.value)


def test_all_errors_are_reported_at_once():
    text = '-- name: A\n-- sources: [t.orders]\n-- slices: [X]\n-- cron: "* * *"\nselect 1'
    with pytest.raises(ValidationError) as caught:
        parse_rollup(text, engine="trino")
    for told in ("name: 'A'", "slices[0]: 'X'", "cron: ", "sources.orders: "):
        assert told in str(caught.value)


def test_code_version_follows_what_rows_depend_on():
    spec = parse_rollup(ROUTES, engine="trino")

    def version(old, new, engine="trino"):
        assert old in ROUTES
        return parse_rollup(ROUTES.replace(old, new), engine=engine).code_version

    assert version("*/5 0-6,22 * * 1-5", "0 * * * *") == spec.code_version
    assert version("retention: follow", "retention: keep") == spec.code_version
    assert version("slices:", "owners: [team:a]\n-- tags: {b: c}\n-- slices:") == spec.code_version
    assert version("count(*)", "sum(1)") != spec.code_version
    assert version("[origin]", "[origin, year]") != spec.code_version
    assert version("[flights.flights]", "{flights: flights.other}") != spec.code_version
    assert version("count", "count", engine="spark") != spec.code_version
    # A version of your own stands for the text, so that this may be put in better words.
    pinned = version("slices:", "version: '1'\n-- slices:")
    assert (
        pinned
        == parse_rollup(
            ROUTES.replace("slices:", "version: '1'\n-- slices:").replace("count(*)", "sum(1)"),
            engine="trino",
        ).code_version
    )
    assert pinned != version("slices:", "version: '2'\n-- slices:")
    assert pinned == version("slices:", "version: '1'\n-- slices:", engine="spark")


def test_rollups_written_in_python_are_checked_alike():
    spec = RollupSpec(name="r.a", engine="python", sql="def f(): ...", sources={"o": "t.orders"})
    check_rollup(spec)
    with pytest.raises(ValidationError, match=r"is not schema\.table"):
        check_rollup(RollupSpec(name="a", engine="python", sql="x", sources={"o": "t.orders"}))


# ------------------------------------------------------------------ folders


def write(folder, engine, name, *, table, source):
    (folder / engine).mkdir(exist_ok=True)
    text = f"-- name: {table}\n-- sources: {{s: {source}}}\nselect * from s\n"
    (folder / engine / f"{name}.sql").write_text(text)


def test_folder_names_the_engine_and_bad_files_hide_no_good_ones(tmp_path):
    assert load_rollup_specs(tmp_path / "none") == ({}, {})
    write(tmp_path, "trino", "b", table="r.b", source="t.orders")
    write(tmp_path, "spark", "a", table="r.a", source="r.b")
    write(tmp_path, "spark", "again", table="r.b", source="t.orders")
    (tmp_path / "trino" / "bad.sql").write_text("select 1")
    (tmp_path / "trino" / "latin.sql").write_bytes(b"-- name: \xe9")
    (tmp_path / "trino" / "notes.txt").write_text("nothing")
    specs, errors = load_rollup_specs(tmp_path)
    assert {name: spec.engine for name, spec in specs.items()} == {"r.a": "spark", "r.b": "trino"}
    assert list(specs) == ["r.a", "r.b"]
    assert "has no header" in str(errors.pop("trino/bad.sql"))
    assert "is not UTF-8" in str(errors.pop("trino/latin.sql"))
    assert "defined in trino/b.sql already" in str(errors.pop("spark/again.sql"))
    assert errors == {}


def test_circles_are_refused_and_no_more(tmp_path):
    for name, source in [("a", "r.c"), ("b", "r.a"), ("c", "r.b"), ("d", "r.a"), ("e", "t.o")]:
        write(tmp_path, "trino", name, table=f"r.{name}", source=source)
    specs, errors = load_rollup_specs(tmp_path)
    assert list(specs) == ["r.d", "r.e"]
    assert sorted(errors) == ["trino/a.sql", "trino/b.sql", "trino/c.sql"]
    assert "is made of itself, by way of" in str(errors["trino/a.sql"])


def test_digest_changes_with_any_spec_and_with_what_is_refused(tmp_path):
    def digest(tables=()):
        return read_rollup_folder(str(tmp_path), tables).digest

    write(tmp_path, "trino", "a", table="r.a", source="t.orders")
    before = digest()
    assert digest() == before
    assert digest({"r.a"}) != before
    write(tmp_path, "trino", "a", table="r.a", source="t.other")
    assert digest() != before
    (tmp_path / "trino" / "bad.sql").write_text("select 1")
    refused = digest()
    (tmp_path / "trino" / "bad.sql").write_text("-- name: b\nselect 1")
    assert len({before, refused, digest()}) == 3


def test_a_rollup_may_read_every_table_that_there_may_be():
    """A raw table's name may be longer than that of a rollup."""
    long = "t" * 127
    spec = parse_rollup(
        f"-- name: r.a\n-- sources: [{long}.{long}]\nselect * from {long}", engine="trino"
    )
    assert spec.sources == {long: f"{long}.{long}"}
    with pytest.raises(ValidationError, match="is not schema"):
        parse_rollup(f"-- name: r.{long}\n-- sources: [t.o]\nselect * from o", engine="trino")
