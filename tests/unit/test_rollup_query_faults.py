"""What is wrong with a rollup's query before it first runs."""

import pytest

from gazette_platform.lake.rollups.query_analysis import query_faults
from gazette_platform.lake.rollups.query_process import query_faults_apart
from gazette_platform.lake.rollups.spec import Query, QueryFaults
from gazette_platform.testing.waiting import patient

FLIGHTS = ("origin", "dest", "dep_delay", "year", "info", "stops")
NAMES = ("code", "name")
SOURCES = {"flights": FLIGHTS, "names": NAMES}

GOOD = [
    ("trino", "SELECT origin, count(*) n FROM flights GROUP BY origin HAVING count(*) > 3 ORDER BY n"),
    ("trino", 'SELECT "Origin", F.DEST FROM flights AS f'),
    ("trino", "WITH a AS (SELECT origin o FROM flights) SELECT o FROM a JOIN names ON code = o"),
    ("trino", "SELECT transform(stops, x -> x + 1), reduce(stops, 0, (s, y) -> s + y, s -> s) FROM flights"),
    ("trino", "SELECT t.s, o FROM flights CROSS JOIN UNNEST(stops) WITH ORDINALITY AS t(s, o)"),
    ("trino", "SELECT (SELECT max(name) FROM names WHERE code = flights.origin) FROM flights"),
    ("trino", "SELECT info.wind.speed, flights.info.rain FROM flights"),
    ("trino", "SELECT localtimestamp, current_user, current_schema, date_diff('day', year, year) FROM flights"),
    ("trino", "SELECT row_number() OVER w FROM flights WINDOW w AS (PARTITION BY dest ORDER BY year)"),
    ("trino", "SELECT * FROM flights JOIN names ON code = origin"),
    ("trino", "SELECT n.* FROM flights f, names n WHERE n.code = f.dest"),
    ("trino", "SELECT jt.a FROM flights, JSON_TABLE(dest, 'lax $' COLUMNS(a integer PATH 'lax $.a')) AS jt"),
    ("trino", "WITH FUNCTION f(x integer) RETURNS integer RETURN x + 1 SELECT f(1) FROM flights"),
    ("trino", "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT n FROM r, flights"),
    ("trino", "SELECT * FROM flights MATCH_RECOGNIZE (MEASURES A.year AS y PATTERN (A) DEFINE A AS A.year > 1)"),
    ("trino", "SELECT x.nothing FROM other.table1 AS x, flights"),
    ("trino", "SELECT year, x FROM flights, TABLE(sequence(1, 3)) AS t(x)"),
    ("spark", "SELECT dep_delay * 2 AS twice, twice + 1 AS more FROM flights"),
    ("spark", "SELECT dateadd(DAY, 1, year), timestampdiff(MONTH, year, year), extract(DAY FROM year) FROM flights"),
    ("spark", "SELECT e, p FROM flights LATERAL VIEW posexplode(stops) t AS p, e"),
    ("spark", "SELECT explode(stops) AS stop, origin FROM flights"),
    ("spark", "SELECT stack(2, 1, 2), user, now() FROM flights"),
    ("spark", "SELECT * FROM flights PIVOT (sum(dep_delay) FOR dest IN ('a', 'b'))"),
    ("spark", "SELECT origin FROM flights QUALIFY row_number() OVER (PARTITION BY dest ORDER BY year) = 1"),
    ("spark", "SELECT * EXCEPT (dest) FROM flights CLUSTER BY origin"),
    ("spark", "FROM flights |> WHERE year = 1 |> SELECT origin"),
    ("spark", "SELECT origin FROM flights LEFT SEMI JOIN names ON names.code = flights.dest AND names.name > 'a'"),
    ("spark", "SELECT origin FROM flights f ANTI JOIN names n ON n.code = f.dest AND name > 'a'"),
    ("spark", "SELECT origin FROM flights LEFT ANTI JOIN (SELECT code AS c FROM names) z ON z.c = dest"),
    ("spark", "SELECT col1, col2 FROM VALUES (1, 2)"),
    ("spark", "SELECT window.start FROM (SELECT window(year, '1 hour') FROM flights)"),
    ("spark", "SELECT session_window.end, count(*) FROM flights GROUP BY session_window(year, '5 minutes')"),
    ("spark", "SELECT origin, spark_grouping_id FROM flights GROUP BY CUBE (origin)"),
    ("spark", "SELECT _metadata.file_path, _file FROM flights"),
    ("trino", 'SELECT "$path", f."$partition" FROM flights f'),
    ("spark", "SELECT named_struct('a', dest).a, stops[0] FROM flights GROUP BY ALL"),
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "sql"), GOOD)
def test_good_query_has_no_fault(dialect, sql):
    found = query_faults(sql, dialect, SOURCES)
    assert (found.syntax, found.names) == ("", ())


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT origi FROM flights", "no source has a column `origi` (did you mean `origin`?)"),
        ("SELECT f.origi FROM flights f", "`f` has no column `origi` (did you mean `origin`?)"),
        ("SELECT g.origin FROM flights f", "the query reads `g.origin`, and no table of that name"),
        ("SELECT origin FROM flightz", "the query reads `flightz`, which is not one of its sources (did you mean `flights`?)"),
        ("SELECT origin FROM flights WHERE dst = 'a'", "no source has a column `dst`"),
        ("SELECT count(*) FILTER (WHERE dst = 'x') FROM flights", "no source has a column `dst`"),
        ("SELECT sum(year) OVER (PARTITION BY yr) FROM flights", "no source has a column `yr`"),
        ("SELECT (SELECT max(name) FROM names WHERE kode = flights.origin) FROM flights", "no source has a column `kode`"),
        ("WITH a AS (SELECT origin AS o FROM flights) SELECT a.origin FROM a", "`a` has no column `origin`"),
        ("SELECT origin FROM flights UNION ALL SELECT nme FROM names", "no source has a column `nme`"),
        ("SELECT f.origin FROM flights f LEFT SEMI JOIN names n ON n.cod = f.origin", "`n` has no column `cod`"),
        ("SELECT f.origin FROM flights f JOIN names n ON n.cod = f.origin", "`n` has no column `cod` (did you mean `code`?)"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dialect", ["trino", "spark"])
def test_unknown_name_is_a_fault(sql, expected, dialect):
    (found,) = query_faults(sql, dialect, SOURCES).names
    assert found.startswith(expected)


def test_fault_lists_the_columns_that_exist():
    (found,) = query_faults("SELECT x FROM names", "trino", SOURCES).names
    assert found.endswith("there are `code`, `name`")


def test_unknown_columns_of_a_source_raise_no_fault():
    sources = {"flights": None, "names": NAMES}
    sql = "SELECT f.origi, dst, n.code FROM flights f JOIN names n ON n.code = f.x"
    assert query_faults(sql, "trino", sources) == QueryFaults(columns=("origi", "dst", "code"))
    (found,) = query_faults("SELECT n.kode, f.x FROM flights f, names n", "trino", sources).names
    assert found.startswith("`n` has no column `kode`")


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT origi FORM flights", "cannot be parsed at `flights` in line 1"),
        ("SELECT origin\nFROM flights\nWHERE (year = 3", "cannot be parsed at "),
        ("SELECT 'x", "cannot be parsed"),
        ("DROP TABLE flights", "is not one SELECT"),
        ("SELECT 1; SELECT 2", "is not one SELECT"),
    ],
)
def test_query_that_cannot_be_parsed_is_a_fault_of_its_syntax(sql, expected):
    assert query_faults(sql, "trino", SOURCES).syntax.startswith(expected)


def test_query_has_to_give_the_columns_of_its_slices():
    sql = "SELECT origin AS airport, dest FROM flights"
    (found,) = query_faults(sql, "trino", SOURCES, ["dest", "origin"]).names
    assert found == "the query does not give `origin`, a column of `slices`"
    assert not query_faults("SELECT * FROM flights", "trino", SOURCES, ["origin"]).names
    # What a star of unknown columns gives is not known.
    assert not query_faults("SELECT * FROM flights", "trino", {"flights": None}, ["x"]).names


def test_queries_know_the_columns_that_others_give():
    first = Query(
        name="r.first",
        sql="SELECT origin, count(*) AS n FROM flights GROUP BY 1",
        dialect="trino",
        sources={"flights": "f.flights"},
    )
    second = Query(
        name="r.second", sql="SELECT m FROM first", dialect="spark", sources={"first": "r.first"}
    )
    found = query_faults_apart([first, second], {"f.flights": FLIGHTS})
    assert found["r.first"] == QueryFaults(columns=("origin", "n"))
    assert found["r.second"].names == ("no source has a column `m`; there are `origin`, `n`",)


def test_query_that_takes_too_long_hides_no_other():
    """The parser takes twice as long for each level of some functions."""
    sources = {"flights": "f.flights"}
    slow = f"SELECT {'date(' * 60}a{')' * 60} AS b FROM flights"
    queries = [
        Query(name="r.slow", sql=slow, dialect="spark", sources=sources),
        Query(name="r.good", sql="SELECT x FROM flights", dialect="spark", sources=sources),
    ]
    found = query_faults_apart(queries, {"f.flights": FLIGHTS}, timeout_s=patient(5))
    assert list(found) == ["r.good"]
    assert found["r.good"].names
