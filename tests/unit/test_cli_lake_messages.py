"""What commands of tables say to a user who mistypes: which right name is near."""

import doctest
from datetime import UTC, datetime

import duckdb
import pytest

from gazette_platform.cli.gazctl import main
from gazette_platform.cli.gazctl.lake.run import nothing_more
from gazette_platform.lake.engines.duckdb import results as advice
from gazette_platform.lake.raw.audits.registration_status import (
    PartitionStanding,
    TableStanding,
    table_standing,
)
from gazette_platform.lake.raw.partition_state import PartitionState
from gazette_platform.lake.spec import folder as meant_module
from gazette_platform.lake.spec.folder import meant
from gazette_platform.lake.spec.table_spec import parse_table_spec
from gazette_platform.ops import text

TABLE = "name: my.packages\nselector: name=x\nformat: json\ncolumns: [{name: a, type: int}]\n"
JOURNALS = "name: orders/\nreplication: 1\nfragment: {length: 1024}\nchildren: [{name: orders/a}]\n"


@pytest.fixture
def tables(tmp_path, monkeypatch):
    monkeypatch.delenv("GAZETTE_ENDPOINTS", raising=False)
    folder = tmp_path / "tables"
    folder.mkdir()
    (folder / "packages.yaml").write_text(TABLE)
    (folder / "bad.yaml").write_text(TABLE.replace("packages", "broken").replace("int", "itn"))
    return folder


def told(capsys, *args):
    """What a command that fails says on stderr, in one line."""
    assert main(list(args)) == 1
    out, err = capsys.readouterr()
    assert out == ""
    return err


@pytest.mark.parametrize(
    "command",
    [
        ["describe"],
        ["check"],
        ["flush"],
        ["register"],
        ["list"],
        ["repair"],
        ["ddl", "--dialect", "trino"],
        ["set-aside", "--unfit"],
    ],
    ids=lambda words: words[0],
)
@pytest.mark.parametrize("name", ["packages", "my.packagez", "your.packages", "My.Packages"])
def test_a_table_without_a_spec_is_asked_for_by_its_name(tables, capsys, command, name):
    err = told(capsys, "lake", *command, name, "--tables", str(tables))
    assert f"is of table {name}" in err
    assert "did you mean my.packages?\n" in err


@pytest.mark.parametrize(
    "command",
    [
        ["describe"],
        ["check"],
        ["flush"],
        ["ddl", "--dialect", "trino"],
        ["quarantine"],
        ["run"],
        ["reprocess"],
        ["backfill", "--journal", "a"],
    ],
    ids=lambda words: words[0],
)
def test_a_typed_table_is_meant_too(tables, capsys, command):
    (tables / "packages.yaml").write_text(f"{TABLE}typed: {{uuid: none}}\n")
    err = told(capsys, "lake", *command, "typed.packagse", "--tables", str(tables))
    assert "`gazctl lake list` shows all" in err
    assert "did you mean typed.packages" in err
    # As when its section is gone.
    (tables / "packages.yaml").write_text(TABLE)
    err = told(capsys, "lake", *command, "typed.packages", "--tables", str(tables))
    assert "table typed.packages" in err
    assert "`gazctl lake list` shows all" in err


@pytest.mark.parametrize(
    "command", [["repair"], ["set-aside", "--unfit"]], ids=lambda words: words[0]
)
def test_what_is_done_to_raw_tables_names_the_one_of_a_typed_table(tables, capsys, command):
    (tables / "packages.yaml").write_text(f"{TABLE}typed: {{uuid: none}}\n")
    err = told(capsys, "lake", *command, "typed.packages", "--tables", str(tables))
    assert "typed.packages is a typed table" in err
    assert "my.packages" in err


def test_parts_of_a_table_with_a_key_are_refused_before_any_server_is_asked(tables, capsys):
    (tables / "packages.yaml").write_text(f"{TABLE}typed: {{uuid: none, key: [a]}}\n")
    err = told(
        capsys, "lake", "backfill", "typed.packages", "--journal", "a", "--tables", str(tables)
    )
    assert "typed.packages has the key a" in err


def test_name_without_a_similar_one_gets_no_suggestion(tables, capsys):
    err = told(capsys, "lake", "describe", "invoices", "--tables", str(tables))
    assert "is of table invoices" in err
    assert "did you mean" not in err


def test_a_table_whose_spec_is_refused_is_meant_too(tables, capsys):
    err = told(capsys, "lake", "check", "broken", "--tables", str(tables))
    assert "did you mean my.broken?" in err


def test_a_folder_without_specs_is_reported(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("GAZETTE_ENDPOINTS", raising=False)
    monkeypatch.delenv("GAZETTE_TABLES", raising=False)
    for folder, says in (
        (tmp_path, "holds no table spec"),
        (tmp_path / "no", "there is no folder"),
    ):
        assert main(["lake", "list", "--tables", str(folder)]) == 0
        err = capsys.readouterr().err
        assert says in err
        assert "metastore" not in err
        # Of a table that was named it is the error, and nothing is said before that.
        err = told(capsys, "lake", "ddl", "a.b", "--dialect", "trino", "--tables", str(folder))
        assert err.startswith("gazctl: error: ")
        assert says in err
    assert "no platform runs: start one with `gazette up --light`, give --tables" in told(
        capsys, "lake", "list"
    )


@pytest.mark.parametrize("module", [advice, text, meant_module])
def test_examples_are_so(module):
    ran = doctest.testmod(module)
    assert (ran.failed, ran.attempted > 0) == (0, True)


@pytest.mark.parametrize(
    ("query", "step"),
    [
        ("SELECT 1 FROM shop/orders", "write FROM journal('shop/orders')"),
        ("SELECT * FROM journal(shop/orders)", "goes in quotes: journal('shop/orders')"),
        ("SELECT sum(total) FROM texts", "use TRY_CAST(total AS DOUBLE)"),
        ("SELECT avg( t.total ) FROM texts t", "use TRY_CAST(t.total AS DOUBLE)"),
    ],
)
def test_failed_query_over_a_journal_has_a_next_step(query, step):
    with duckdb.connect() as db:
        db.execute("CREATE TABLE texts AS SELECT '1.5' AS total")
        with pytest.raises(duckdb.Error) as failed:
            db.execute(query)
    text = advice.advised(str(failed.value), query, ["texts", "total"])
    assert step in text
    assert "Candidate functions" not in text or "journal(" in query


def test_what_is_meant_is_bounded():
    many = [f"s{n}.orders" for n in range(5000)]
    assert meant("orders", many) == ["s0.orders", "s1.orders", "s10.orders"]
    assert meant("o" * 1_000_000, many) == []


def test_journal_specs_are_not_tables_and_tables_are_not_journal_specs(tables, tmp_path, capsys):
    (tmp_path / "journals.yaml").write_text(JOURNALS)
    (tmp_path / "packages.yaml").write_text(TABLE)
    err = told(capsys, "lake", "apply", str(tmp_path / "journals.yaml"), "--tables", str(tables))
    assert "journals.yaml: looks like specs of journals" in err
    assert "`gazctl journals apply`" in err
    assert "1 error(s) in 1 spec(s)" in err
    assert "unknown field" not in err
    err = told(capsys, "journals", "apply", "--specs", str(tmp_path / "packages.yaml"))
    assert "looks like a spec of a table" in err
    assert "`gazctl lake apply`" in err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        # A table spec with a key of journals, and neither.
        (TABLE + "replication: 1\n", "unknown field `replication`"),
        ("name: a.b\n", "missing required field `selector`"),
        ("- replication: 1\n", "Expected `object`, got `array`"),
    ],
)
def test_a_table_spec_with_mistakes_is_one_still(tables, tmp_path, capsys, text, says):
    (tmp_path / "mine.yaml").write_text(text)
    assert says in told(capsys, "lake", "apply", str(tmp_path / "mine.yaml"), "--tables", str(tables))  # fmt: skip


def state(rows):
    return PartitionState(journal="x", ranges=((0, 9),), fragments=1, content_bytes=9, rows=rows)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([1], "all is registered already, 1 row in 1 Hive partition"),
        ([2, 5], "all is registered already, 7 rows in 2 Hive partitions"),
        ([2, None], "all is registered already, rows not all counted yet in 2 Hive partitions"),
    ],
)
def test_a_flush_that_finds_all_registered_says_so(rows, says):
    partitions = [PartitionStanding(f"hour={n}", "", state(each)) for n, each in enumerate(rows)]
    standing = TableStanding(spec=parse_table_spec(TABLE), partitions=partitions, location="file:/")
    assert nothing_more(standing) == f"my.packages: {says}"


def test_a_flush_of_a_table_that_is_not_made_says_why():
    at = datetime(2026, 1, 2, tzinfo=UTC)
    standing = table_standing(parse_table_spec(TABLE), [], {}, None, at)
    assert "my.packages: nothing to register (selector: 'name=x' matches no journal" in (
        nothing_more(standing)
    )
