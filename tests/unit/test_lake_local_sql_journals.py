"""Journals in SQL without a table spec: what an argument means, what is described, what content is."""

import doctest

import duckdb
import pytest

from gazette_platform.errors import SchemaMismatch
from gazette_platform.lake.engines.duckdb import names as journal_names
from gazette_platform.lake.engines.duckdb.names import (
    MACRO,
    describable,
    journal_missing,
    selectors_of,
    view_of,
)
from gazette_platform.lake.inference.infer import infer_spec
from gazette_platform.lake.spec.table_spec import parse_table_spec
from gazette_platform.protocol import LabelSelector


@pytest.mark.parametrize("module", [journal_names])
def test_examples_hold(module):
    ran = doctest.testmod(module)
    assert (ran.failed, ran.attempted > 0) == (0, True)


@pytest.mark.parametrize(
    ("name", "first", "others"),
    [
        ("a/journal", "name=a/journal", []),
        ("a/", "name:prefix=a/", []),
        ("orders/region=eu", "name=orders/region=eu", ["orders/region=eu"]),
        ("orders/region=eu/", "name:prefix=orders/region=eu/", ["orders/region=eu/"]),
        ("kind=orders", "name=kind=orders", ["kind=orders"]),
        ("name:prefix=a/", "name:prefix=a/", []),
        ("env in (dev, test)", "env in (dev, test)", []),
        ("!private", "!private", []),
    ],
)
def test_argument_becomes_selectors(name, first, others):
    assert selectors_of(name) == [first, *others]
    LabelSelector.parse(first)


@pytest.mark.parametrize("name", ["a/b", "A/B", "é/'\"; $x.y/", "%_?"])
def test_missing_view_names_the_argument(name):
    database = duckdb.connect()
    database.execute(MACRO)
    with pytest.raises(duckdb.CatalogException) as caught:
        database.execute("FROM journal(?, offsets := true)", [name])
    assert journal_missing(str(caught.value)) == name
    database.execute(f'CREATE TEMP VIEW "{view_of(name)}" AS SELECT 7')
    assert database.execute("FROM journal(?)", [name]).fetchall() == [(7,)]


def test_names_that_differ_in_case_have_two_views():
    database = duckdb.connect()
    database.execute(MACRO)
    for number, name in enumerate(("a/b", "A/b")):
        database.execute(f'CREATE TEMP VIEW "{view_of(name)}" AS SELECT {number}')
    assert database.execute("FROM journal('a/b'), journal('A/b')").fetchall() == [(0, 1)]


@pytest.mark.parametrize("digits", ["ABC", "FF"])
def test_table_that_is_called_like_a_view_names_no_journal(digits):
    with pytest.raises(duckdb.CatalogException) as caught:
        duckdb.execute(f'FROM "journal:{digits}"')
    assert journal_missing(str(caught.value)) is None


def test_errors_of_other_tables_name_no_journal():
    database = duckdb.connect()
    with pytest.raises(duckdb.CatalogException) as caught:
        database.execute("SELECT 'Table with name journal:61 does not exist' FROM nothing")
    error = str(caught.value).partition("LINE 1")[0]
    assert journal_missing(error) is None


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("DESCRIBE journal('a/')", "DESCRIBE FROM journal('a/')"),
        ("desc\n Journal ('a/');", "desc\n FROM Journal ('a/');"),
        ("SUMMARIZE journal('é')", "SUMMARIZE FROM journal('é')"),
        ("/* é */ DESCRIBE --x\njournal('a')", "/* é */ DESCRIBE --x\nFROM journal('a')"),
        ("SELECT 1; DESCRIBE journal('a')", "SELECT 1; DESCRIBE FROM journal('a')"),
        ("FROM (DESCRIBE journal('a'))", "FROM (DESCRIBE FROM journal('a'))"),
        ("SELECT 'DESCRIBE journal(''a'')'", None),
        ("SELECT 1 -- DESCRIBE journal('a')", None),
        ("SELECT $$ DESCRIBE journal('a') $$", None),
        ("DESCRIBE SELECT * FROM journal('a')", None),
        ("DESCRIBE journal", None),
        ("DESCRIBE journals('a')", None),
        ("SELECT 'open", None),
        ("", None),
    ],
)
def test_describe_gets_its_from(query, expected):
    assert describable(query, duckdb.tokenize(query)) == (expected or query)


def test_inferred_spec_takes_another_name():
    found = infer_spec("a.b", "name=a", [b'{"a": 1, "name": "x"}'], called="journal('a')")
    assert parse_table_spec(found.named("shop.events")).name == "shop.events"
    assert found.named("a.b") == found.text
    with pytest.raises(SchemaMismatch, match=r"^journal\('a'\): lines are neither"):
        infer_spec("a.b", "name=a", [b"plain"], called="journal('a')")
