"""What `gazctl sql` writes of values that SQL makes: every row, in every format, without an error of its own."""

import json
import sys
from types import SimpleNamespace

import duckdb
import pytest

from gazette_platform.cli.gazctl import sql
from gazette_platform.errors import ValidationError
from gazette_platform.lake.engines.duckdb import QueryResult


def result_of(query):
    return QueryResult(SimpleNamespace(told=lambda err: err), duckdb.connect().execute(query))


def written(query, output_format, capsys, to=None):
    sql._write(result_of(query), output_format, to, 10)
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "cell", "in_json"),
    [
        ("histogram(x)", '{"1":1,"5":1}', {"1": 1, "5": 1}),
        ("map {1.5::decimal(3,1): 1}", '{"1.5":1}', {"1.5": 1}),
        ("map {true: 1}", '{"true":1}', {"true": 1}),
        ("map {date '2020-01-31': [1.5]}", '{"2020-01-31":["1.5"]}', {"2020-01-31": ["1.5"]}),
        ("sum(9223372036854775807::bigint * 2::hugeint)", str((2**63 - 1) * 4), str((2**63 - 1) * 4)),
        ("[sum(18446744073709551616::hugeint), 1]", '["36893488147419103232",1]', ["36893488147419103232", 1]),
        ("sum(x)", "6", 6),
        ("null", "NULL", None),
    ],
)  # fmt: skip
def test_each_value_is_written(value, cell, in_json, capsys):
    query = f"SELECT {value} AS v FROM (VALUES (1), (5)) AS t(x)"
    if value == "null" or value.startswith("map"):
        query += " LIMIT 1"
    assert written(query, "table", capsys).splitlines()[1:] == [cell]
    assert json.loads(written(query, "json", capsys)) == {"v": in_json}
    assert written(query, "csv", capsys).startswith("v\n")


@pytest.mark.parametrize("output_format", ["json", "parquet"])
def test_no_column_is_lost_for_its_name(output_format, capsys, tmp_path):
    query = "SELECT t.a, u.a FROM (SELECT 1 AS a) t, (SELECT 2 AS a) u"
    with pytest.raises(ValidationError, match=r"two columns of the query are called 'a'.*AS"):
        written(query, output_format, capsys, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    assert written(query, "csv", capsys) == "a,a\n1,2\n"


@pytest.mark.parametrize("output_format", ["json", "csv", "parquet"])
@pytest.mark.parametrize(("rows", "says"), [(0, "0 rows"), (1, "1 row"), (3000, "3000 rows")])
def test_a_file_that_was_written_is_reported(output_format, rows, says, capsys, tmp_path):
    file = tmp_path / "out"
    query = f"FROM range({rows})"
    sql._write(result_of(query), output_format, file, 10)
    assert capsys.readouterr() == ("", f"wrote {says} to {file}\n")
    assert file.stat().st_size > 0 or not rows


def test_a_table_shows_cells_as_they_are(capsys, monkeypatch):
    """Rich takes texts in brackets for markup, and a terminal what follows an ESC for commands."""
    query = r"""SELECT 'a\[b] [red]c' AS "n[a]", chr(27) || '[31mé' || chr(10) || chr(13) AS x"""
    assert "\\x1b[31mé\n\\r" in written(query, "table", capsys)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    shown = written(query, "table", capsys)
    assert all(text in shown for text in ("n[a]", r"a\[b] [red]c", r"\x1b[31mé"))
    assert "\x1b[31m" not in shown
