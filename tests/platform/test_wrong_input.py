"""Wrong input gives one clear message that names the thing and the next step: at each command, and no traceback."""

from __future__ import annotations

import pytest
from live_platform import gazette

JOURNAL = """
name: {name}
replication: {replication}
fragment: {{length: 1048576, compression_codec: {codec}, stores: ["{store}"], refresh_interval: 1s}}
"""
SPEC = "name: own.t\nselector: name:prefix={name}/\nformat: json\ncolumns: [{{name: a, type: string}}]\n"
AWAY = "http://127.0.0.1:9"


@pytest.fixture
def message(gazctl):
    """The one line of a command that is refused, on stderr."""

    def run(*args, stdin=b""):
        done = gazctl(*args, stdin=stdin)
        assert (done.code, done.out) == (1, ""), args
        (line,) = done.err.splitlines()
        assert line.startswith("gazctl: error: "), line
        return line

    return run


@pytest.mark.parametrize(
    ("change", "texts"),
    [
        ({"columns: ": "columnz: "}, ["bad.yaml", "columnz", "columns"]),
        ({"type: string": "type: timestamp"}, ["bad.yaml", "timestamp", "typed"]),
        ({"format: json": "format: avro"}, ["bad.yaml: format", "json", "csv"]),
        ({"name: own.t": "name: own"}, ["bad.yaml: name", "schema.table"]),
    ],
    ids=["key", "type", "format", "name"],
)
def test_refused_table_spec_names_file_and_key(own, gazctl, tmp_path, change, texts):
    own.journal()
    text = SPEC.format(name=own.name)
    for old, new in change.items():
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "bad.yaml").write_text(text)
    done = gazctl("lake", "apply", "bad.yaml", "--tables", own.tables)
    assert done.code == 1
    assert "Traceback" not in done.err
    assert all(text in done.err for text in texts), done.err
    assert list(own.tables.iterdir()) == []


def test_unknown_journal_is_named(message, tmp_path):
    (tmp_path / "in").write_bytes(b"x\n")
    for command in (("append", "-i", "in"), ("read",)):
        line = message("journals", *command, "-l", "name=no/such-journal")
        assert "no/such-journal" in line


@pytest.mark.parametrize(
    ("change", "texts"),
    [
        ({"replication": "0"}, ["Replication"]),
        ({"codec": "LZ4"}, ["LZ4", "GZIP"]),
        ({"store": "ftp://host/"}, ["ftp"]),
        ({"name": "has a blank"}, ["has a blank"]),
    ],
    ids=["replication", "codec", "store", "name"],
)
def test_refused_journal_spec_names_the_field(message, change, texts):
    fields = {"name": "refused/journal", "replication": "1", "codec": "GZIP", "store": "file:///"}
    text = JOURNAL.format(**fields | change)
    line = message("journals", "apply", stdin=text.encode())
    assert all(each in line for each in texts), line


@pytest.mark.parametrize(
    ("variable", "command"),
    [
        ("BROKER_ADDRESS", ("journals", "list")),
        ("GAZETTE_METASTORE_URI", ("lake", "flush", "sales.purchases")),
    ],
)
def test_server_that_is_away_is_named(message, monkeypatch, variable, command):
    away = AWAY.replace("http", "thrift") if "METASTORE" in variable else AWAY
    monkeypatch.setenv(variable, away)
    assert "127.0.0.1:9" in message(*command)


def test_doctor_names_the_server_to_correct(gazctl, monkeypatch):
    assert gazctl("lake", "doctor").code == 0
    monkeypatch.setenv("GAZETTE_TRINO_URI", AWAY)
    ill = gazctl("lake", "doctor")
    assert ill.code == 1
    assert "set GAZETTE_TRINO_URI to your coordinator's" in ill.out


@pytest.mark.parametrize(
    ("query", "texts"),
    [
        ("SELECT * FROM sales.purchase", ["no table purchase", "did you mean sales.purchases?"]),
        ("SELECT nope FROM sales.purchases", ['"nope"', "not found"]),
        ("SELECT FROM FROM", ["syntax error"]),
    ],
    ids=["table", "column", "syntax"],
)
def test_wrong_sql_says_what_it_knows(message, query, texts):
    line = message("sql", query)
    assert all(each in line for each in texts), line


def test_gazette_refuses_what_it_cannot_start(tmp_path):
    for args, text in (
        (
            ("up", "--root", tmp_path / "p", "--without", "kafka"),
            "--without: unknown component 'kafka'",
        ),
        (("down", "--root", tmp_path / "none"), "start a platform there with"),
        (("env", "--root", tmp_path), "start one with `gazette up"),
    ):
        done = gazette(*args)
        assert (done.returncode, done.stdout) == (1, ""), args
        assert text in done.stderr
        assert "Traceback" not in done.stderr
