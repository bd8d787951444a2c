"""The source columns of queries of rollups, in both dialects; and what is left out."""

import time

import pytest

from gazette_platform.errors import LakeError
from gazette_platform.lake.rollups import load_rollup_specs
from gazette_platform.lake.rollups.query_analysis import column_lineage
from gazette_platform.lake.rollups.query_process import column_lineage_apart

SOURCES = {"f": ["a", "b", "arr", "s", "m", "k"], "g": ["k", "x", "Y"]}
F = {name: [f"f.{name}"] for name in SOURCES["f"]}


def lineage(sql, dialect, sources=SOURCES):
    found = column_lineage(sql, dialect, sources)
    return {name: [".".join(origin) for origin in of] for name, of in found.items()}


BOTH = {
    # Expressions.
    "select a, a + b as c from f": {"a": ["f.a"], "c": ["f.a", "f.b"]},
    "select 1 as one, count(*) as n, sum(a) as t from f": {"one": [], "n": [], "t": ["f.a"]},
    "select sum(a) over (partition by b order by k) as w from f": {"w": ["f.a", "f.b", "f.k"]},
    "select case when a > 1 then b end as c from f": {"c": ["f.a", "f.b"]},
    "select cast(a as double) / nullif(b, 0) as q from f": {"q": ["f.a", "f.b"]},
    "select transform(arr, x -> x + b) as t from f": {"t": ["f.arr", "f.b"]},
    "select transform(arr, a -> a + 1) as t from f": {"t": ["f.arr"]},
    # Fields of structs.
    "select s.x, s.y.z as sz, f.s.z as t, f.s.u.v.w as q from f": {
        name: ["f.s"] for name in ("x", "sz", "t", "q")
    },
    # What only decides which rows there are is not an origin.
    "select a from f where b > (select max(x) from g) group by a, k having sum(b) > 0": {
        "a": ["f.a"]
    },
    # Joins.
    "select t.a, u.x from f t join g as u on t.k = u.k": {"a": ["f.a"], "x": ["g.x"]},
    "select k, x from f join g using (k)": {"k": ["f.k", "g.k"], "x": ["g.x"]},
    "select a, y from f, g": {"a": ["f.a"], "y": ["g.Y"]},
    # Stars.
    "select * from f": F,
    "select f.*, x from f cross join g": F | {"x": ["g.x"]},
    "select * from (select a, b as c from f) t": {"a": ["f.a"], "c": ["f.b"]},
    # CTEs and subqueries; a CTE may have the name of a source.
    "with c as (select a as z, b from f), d as (select z, b from c) select z, b + z as w from d": {
        "z": ["f.a"],
        "w": ["f.a", "f.b"],
    },
    "with c(p, q) as (select a, b from f) select p, q from c": {"p": ["f.a"], "q": ["f.b"]},
    "with f as (select a as b from f) select b from f": {"b": ["f.a"]},
    "select p from (select a, b from f) as t(p, q)": {"p": ["f.a"]},
    "select (select max(x) from g where g.k = f.k) as mx from f": {"mx": ["g.x"]},
    "select a in (select x from g) as i from f": {"i": ["f.a", "g.x"]},
    # Set operations go by place.
    "select a, b from f union all select x, 1 as one from g": {"a": ["f.a", "g.x"], "b": ["f.b"]},
    "(select a from f) intersect (select x from g)": {"a": ["f.a", "g.x"]},
    "select a from f except select x from g": {"a": ["f.a"]},
    "with c as (select a from f union select x from g) select a + 1 as b from c": {
        "b": ["f.a", "g.x"]
    },
    # Names in upper case are the same.
    "SELECT F.A AS Total, Y FROM F, G": {"total": ["f.a"], "y": ["g.Y"]},
    "select a from f -- a comment at the end": {"a": ["f.a"]},
}
TRINO = {
    'select "A" as "Big Name", "f"."b" from "f"': {"big name": ["f.a"], "b": ["f.b"]},
    "select e, n from f cross join unnest(arr) with ordinality as t(e, n)": {
        "e": ["f.arr"],
        "n": ["f.arr"],
    },
    "select i, j, b from f, unnest(f.m) as t(i, j)": {"i": ["f.m"], "j": ["f.m"], "b": ["f.b"]},
    "select i, j from f cross join unnest(arr, m) as t(i, j)": {"i": ["f.arr"], "j": ["f.m"]},
    "select z from f cross join lateral (select a + x as z from g) as t": {"z": ["f.a", "g.x"]},
    "select z from f cross join lateral (select a + x from g) as t(z)": {"z": ["f.a", "g.x"]},
    "select v, a from f cross join (values 1, 2) as t(v)": {"v": [], "a": ["f.a"]},
    "select sum(a) filter (where b > 1) as q from f": {"q": ["f.a", "f.b"]},
    "select array_agg(a order by b) as q, max_by(a, k) as r from f": {
        "q": ["f.a", "f.b"],
        "r": ["f.a", "f.k"],
    },
}
SPARK = {
    'select `A` as `Big Name`, "a" as text from f': {"big name": ["f.a"], "text": []},
    "select explode(arr) as e, b from f": {"e": ["f.arr"], "b": ["f.b"]},
    "select posexplode(arr) as (p, e) from f": {"p": ["f.arr"], "e": ["f.arr"]},
    "select e, b from f lateral view explode(arr) t as e": {"e": ["f.arr"], "b": ["f.b"]},
    "select i, j from f lateral view outer explode(m) t as i, j": {"i": ["f.m"], "j": ["f.m"]},
    "select a + 1 as p, p * b as q from f": {"p": ["f.a"], "q": ["f.a", "f.b"]},
    "select * except (a, arr, s, m) from f": {"b": ["f.b"], "k": ["f.k"]},
    "select a from f left semi join g on f.k = g.k": {"a": ["f.a"]},
}


@pytest.mark.parametrize(
    ("dialect", "sql"),
    [
        *((dialect, sql) for dialect in ("trino", "spark") for sql in BOTH),
        *(("trino", sql) for sql in TRINO),
        *(("spark", sql) for sql in SPARK),
    ],
)
def test_columns_of_a_query_come_from_those_that_it_names(dialect, sql):
    assert lineage(sql, dialect) == (BOTH | TRINO | SPARK)[sql]


@pytest.mark.parametrize(
    ("dialect", "sql", "known"),
    [
        # Neither an unknown column nor an unknown table is guessed.
        ("trino", "select nowhere, a from f", {"a": ["f.a"]}),
        ("trino", "select z, h.a, b from f cross join h", {"b": ["f.b"]}),
        ("spark", "select id from range(10)", {}),
        ("trino", "select * from h", {}),
        ("spark", "select a + 1 as p, p * 2 as q from h, f", {"p": ["f.a"]}),
        # Which of two is meant is not certain, nor what comes behind a star that cannot be replaced.
        ("trino", "select k, a from f, g", {"a": ["f.a"]}),
        ("trino", "select a, x as a from f, g", {}),
        ("trino", "with c as (select *, a as q from h, f) select q, x from c, g", {"x": ["g.x"]}),
        ("trino", "select *, a as q from h, f union all select x, x from g", {}),
        ("trino", "select a from f union all select a, b from f", {}),
        ("trino", "select p from f as t(p, q, r, u, v, w)", {}),
        ("spark", "select e from f lateral view explode(arr) t", {}),
        # What is taken of a row as a whole, or by the name of a window.
        ("spark", "select struct(*) as st, count(*) as n, count(f.*) as c from f", {"n": []}),
        ("spark", "select sum(a) over w as q, b from f window w as (order by k)", {"b": ["f.b"]}),
        ("trino", "select s.*, a from f", {"a": ["f.a"]}),
    ],
)
def test_what_is_not_certain_is_left_out(dialect, sql, known):
    assert lineage(sql, dialect) == known


@pytest.mark.parametrize(
    ("dialect", "sql", "why"),
    [
        ("trino", "", "not one query"),
        ("trino", "drop table f", "not one query"),
        ("spark", "select a from f; select b from f", "not one query"),
        ("trino", "select a from (((", "ParseError"),
        ("trino", "select a from hive.other.f", "through table"),
        ("spark", "select * from f pivot (sum(a) for b in (1, 2))", "through pivot"),
        (
            "trino",
            "with recursive c(n) as (select a from f union all select n from c) select n from c",
            "through with",
        ),
        ("spark", "select inline(arr) from f", "no names"),
        ("trino", "select f.*, x from f join g using (k)", "USING"),
        ("trino", f"select {'(' * 3000}a{')' * 3000} as b from f", "RecursionError"),
        ("trino", "select a from f -- " + "x" * 100_000, "more than 100000 characters"),
    ],
)
def test_odd_queries_have_no_lineage(dialect, sql, why):
    with pytest.raises(LakeError, match=why):
        column_lineage(sql, dialect, SOURCES)


def test_columns_that_differ_in_case_only_are_not_told_apart():
    sources = {"f": ["a", "A", "b"]}
    assert lineage("select a, b as c from f", "spark", sources) == {"c": ["f.b"]}
    assert lineage("select a from f", "spark", {"f": ["a"], "F": ["a"]}) == {}


def test_lineage_of_the_rollups_of_the_demo(request):
    specs, errors = load_rollup_specs(request.config.rootpath / "sql" / "demo")
    assert errors == {}
    flights = [
        "append_date",
        "append_hour",
        "year",
        "month",
        "dep_time",
        "dep_delay",
        "arr_delay",
        "origin",
        "dest",
    ]
    sums = "flights cancelled delayed dep_delay_sum departed arr_delay_sum arrived year month"
    sources = {"flights": flights, "delays_by_arrival": sums.split()}
    found = {
        spec.table: column_lineage(
            spec.sql, spec.engine, {alias: sources[alias] for alias in spec.sources}
        )
        for spec in specs.values()
    }
    raw = {
        column: [("flights", of)] if of else []
        for column, of in {
            "append_date": "append_date",
            "append_hour": "append_hour",
            "year": "year",
            "month": "month",
            "flights": None,
            "cancelled": "dep_time",
            "delayed": "dep_delay",
            "departed": "dep_delay",
            "dep_delay_sum": "dep_delay",
            "arrived": "arr_delay",
            "arr_delay_sum": "arr_delay",
        }.items()
    }
    assert found["delays_by_arrival"] == raw
    assert found["route_by_month"]["origin"] == [("flights", "origin")]
    assert found["delays_by_month"]["dep_delay_avg"] == [
        ("delays_by_arrival", "dep_delay_sum"),
        ("delays_by_arrival", "departed"),
    ]


def test_process_of_its_own_gives_the_same():
    sql = "select a as \"Ä\", 'é' as b from f"
    assert column_lineage_apart(sql, "trino", SOURCES) == {"ä": [("f", "a")], "b": []}
    with pytest.raises(LakeError, match=r"^the text is not one query$"):
        column_lineage_apart("drop table f", "trino", SOURCES)


def test_no_query_takes_longer_than_it_may():
    """The parser takes twice as long for each level, so without an end it would take years."""
    sql = f"select {'date(' * 60}a{')' * 60} as b from f"
    began = time.monotonic()
    with pytest.raises(LakeError, match=r"^the query was not followed within 3 s$"):
        column_lineage_apart(sql, "spark", SOURCES, timeout_s=3.0)
    assert time.monotonic() - began < 30.0
