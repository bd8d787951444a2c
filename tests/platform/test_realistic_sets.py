"""Data of the shapes that people bring, from the first append to an answer of each engine.

The truth is what DuckDB finds in the same records as a file.
"""

from __future__ import annotations

import json

import duckdb as duck
import pytest
from realistic_sets import SETS
from sales import json_lines
from value_cases import canonical

from gazette_platform.errors import LakeError
from gazette_platform.hive import MetastoreClient
from gazette_platform.lake import ensure_views, parse_table_spec


def texts_of(rows):
    """Rows as `gazctl sql` prints them."""
    return [tuple("" if value is None else str(value) for value in row) for row in rows]


def truth(data, path, question):
    """What DuckDB answers of the file."""
    source = f"read_ndjson_objects('{path}')"
    if data.format == "csv":
        names = [f"c{n + 1}" for n in range(len(data.lines[0].split(b",")) - 1)]
        source = f"read_csv('{path}', header=false, all_varchar=true, names={names})"
    with duck.connect() as connection:
        return texts_of(connection.execute(question.of_file.format(source)).fetchall())


@pytest.mark.parametrize("name", SETS)
def test_inferred_table_is_green_and_right_in_all_engines(
    name, own, gazctl, tmp_path, trino, spark
):
    data = SETS[name]
    path = tmp_path / f"{name}.{data.format}"
    path.write_bytes(data.content)
    journal = own.journal(label="text/csv" if data.format == "csv" else "")
    done = gazctl("journals", "append", journal, path)
    assert done.code == 0, done.err
    table = f"{own.schema}.rows"
    spec = gazctl("lake", "infer", "-l", f"name={journal}", "--name", table)
    assert spec.code == 0, spec.err
    (tmp_path / "rows.yaml").write_text(spec.out)
    for command in (
        ("apply", "rows.yaml", "--tables", own.tables),
        ("flush", table, "--tables", own.tables),
        ("check", table, "--tables", own.tables),
    ):
        done = gazctl("lake", *command)
        assert done.code == 0, (command, done.out, done.err)
    assert "fit" not in gazctl("lake", "check", table, "-o", "json", "--tables", own.tables).out

    for question in data.questions:
        expected = truth(data, path, question)
        here = gazctl("sql", question.duckdb.format(table), "-o", "json", "--tables", own.tables)
        assert here.code == 0, here.err
        rows = [tuple(json.loads(line).values()) for line in here.out.splitlines()]
        assert texts_of(rows) == expected
        assert texts_of(trino(question.trino.format(f"hive.{table}"))) == expected
        assert texts_of(spark(question.spark.format(table))) == expected

    if data.texts:
        records = [json.loads(line) for line in data.lines]
        for column, key in data.texts.items():
            wanted = [_text(record[key]) for record in records]
            query = "SELECT {1} FROM {0} ORDER BY n"
            assert _canonical(trino(query.format(f"hive.{table}", column))) == wanted
            assert _canonical(spark(query.format(table, f"`{key}`"))) == wanted


def _text(value):
    """A value of JSON as the canonical form of its text."""
    return canonical(json.dumps(value if isinstance(value, str) else json.dumps(value)))


def _canonical(rows):
    return [canonical(json.dumps("null" if text is None else text)) for (text,) in rows]


def test_one_value_of_another_shape_hides_no_other(own, gazctl, client, platform, trino, spark):
    """280 records with a map, and one of a producer that writes an empty map as a list."""
    journal = own.journal()
    table = own.spec("events", "[{name: id, type: bigint}, {name: m, type: 'map<string,int>'}]")

    def flush():
        done = gazctl("lake", "flush", table, "--tables", own.tables)
        assert done.code == 0, done.err

    client.append(journal, json_lines(*({"id": n, "m": {"a": n, "b": 1}} for n in range(280))))
    flush()
    client.append(journal, json_lines({"id": 280, "m": []}))
    client.flush(f"name={journal}")
    # Until it is registered, Trino's own reader meets it, and names the file.
    with pytest.raises(LakeError, match=r"Failed to read file at .*/part=0/"):
        trino(f"SELECT sum(element_at(m, 'a')) FROM hive.{table}")
    flush()
    with MetastoreClient(platform.endpoints.metastore).connect() as session:
        spec = parse_table_spec((own.tables / "events.yaml").read_text())
        ensure_views(session, spec, session.table(own.schema, "events"), {})

    total = sum(range(280))
    query = "SELECT count(*), count(m), sum({}) FROM {}"
    here = gazctl("sql", query.format("m['a']", table), "-o", "csv", "--tables", own.tables)
    assert here.out.split()[1:] == [f"281,280,{total}"], here.err
    assert spark(query.format("m['a']", table)) == [(281, 280, total)]
    in_view = query.format("element_at(m, 'a')", f"hive.{table}_exact")
    assert trino(in_view) == [(281, 280, total)]
    # The table itself shows every value, as text: what takes them for maps fails, and nothing is silently NULL.
    as_text = "SELECT count(*), count(m), count_if(m = '[]') FROM hive.{}"
    assert trino(as_text.format(table)) == [(281, 281, 1)]

    checked = gazctl("lake", "check", table, "-o", "json", "--tables", own.tables)
    assert checked.code == 0, "one of 281 is less than 1 %"
    texts = [each["text"] for each in json.loads(checked.out) if each["check"] == "fit"]
    assert any("m (map<string,int>): 1, such as '[]'" in text for text in texts)
    assert any(f"Trino shows m of {table} as JSON text" in text for text in texts)
    quick = gazctl("lake", "check", table, "--quick", "--tables", own.tables)
    assert f"Trino shows m of {table} as JSON text; {table}_exact has the declared" in quick.out
