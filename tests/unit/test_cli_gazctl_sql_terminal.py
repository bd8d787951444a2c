"""Rows of `gazctl sql` beside its progress bar, as a terminal shows them and as a file gets them."""

import os
import pty
import subprocess
import sys

import pytest

# All that a query does once it has rows: no server has to run.
CODE = """
import sys, duckdb
from types import SimpleNamespace
from gazette_platform.cli import bars
from gazette_platform.cli.gazctl import sql
from gazette_platform.lake.engines.duckdb import QueryResult
from gazette_platform.testing.waiting import wait_until
bars.SHOWN_AFTER_S *= 1 if sys.argv[2] == "slow" else 1000
rows = duckdb.connect().execute("SELECT 'row' AS a FROM range(3)")
result = QueryResult(SimpleNamespace(told=lambda err: err), rows)
with sql._progress(SimpleNamespace(scans=dict)) as hide:
    if sys.argv[2] == "slow":
        wait_until(lambda: hide.__self__.live.is_started)
    sql._write(result, sys.argv[1], None, 10, hide=hide)
"""


@pytest.fixture
def terminal():
    """The two ends of a terminal."""
    shown, given = pty.openpty()
    yield shown, given
    os.close(shown)


def run(output_format, pace, out, err):
    command = [sys.executable, "-c", CODE, output_format, pace]
    subprocess.run(command, stdout=out, stderr=err, check=True)


@pytest.mark.parametrize("output_format", ["json", "csv", "table"])
def test_rows_reach_a_file_while_the_bar_is_on_the_terminal(terminal, tmp_path, output_format):
    shown, given = terminal
    out = tmp_path / "rows"
    with out.open("wb") as file:
        run(output_format, "slow", file, given)
    os.close(given)
    assert out.read_text().count("row") == 3
    text = os.read(shown, 1 << 16)
    assert b"reading" in text
    assert b"row" not in text


@pytest.mark.parametrize("output_format", ["json", "csv", "table"])
def test_rows_on_a_terminal_follow_the_erased_bar(terminal, output_format):
    shown, given = terminal
    run(output_format, "slow", given, given)
    os.close(given)
    bar, erased, rows = os.read(shown, 1 << 16).decode().rpartition("\x1b[1A\x1b[2K")
    assert erased
    assert "row" not in bar
    assert rows.count("row") == 3


def test_quick_query_shows_no_bar(terminal):
    shown, given = terminal
    run("csv", "quick", given, given)
    os.close(given)
    assert os.read(shown, 1 << 16) == b"a\r\nrow\r\nrow\r\nrow\r\n"
