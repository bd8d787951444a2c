"""Rows of `gazctl sql` beside its progress bar, as a terminal shows them and as a file gets them."""

import os
import pty
import re
import subprocess
import sys

import pytest

# All that a query does once it has rows: no server has to run.
CODE = """
import sys, duckdb
from types import SimpleNamespace
from gazette_platform.cli import gazctl_sql_run
from gazette_platform.lake.local_sql import QueryResult
rows = duckdb.connect().execute("SELECT 'row' AS a FROM range(3)")
result = QueryResult(SimpleNamespace(told=lambda err: err), rows)
with gazctl_sql_run._progress(SimpleNamespace(scans=dict)) as hide:
    gazctl_sql_run._write(result, sys.argv[1], None, 10, hide=hide)
"""


@pytest.fixture
def terminal():
    """The two ends of a terminal."""
    shown, given = pty.openpty()
    yield shown, given
    os.close(shown)


@pytest.mark.parametrize("output_format", ["json", "csv", "table"])
def test_rows_reach_a_file_while_the_bar_is_on_the_terminal(terminal, tmp_path, output_format):
    shown, given = terminal
    out = tmp_path / "rows"
    with out.open("wb") as file:
        subprocess.run(
            [sys.executable, "-c", CODE, output_format], stdout=file, stderr=given, check=True
        )
    os.close(given)
    assert out.read_text().count("row") == 3
    assert b"row" not in os.read(shown, 1 << 16)


@pytest.mark.parametrize("output_format", ["json", "csv", "table"])
def test_rows_on_a_terminal_begin_a_line(terminal, output_format):
    shown, given = terminal
    subprocess.run(
        [sys.executable, "-c", CODE, output_format], stdout=given, stderr=given, check=True
    )
    os.close(given)
    text = os.read(shown, 1 << 16).decode()
    # The bar's line was ended, and erased, before.
    rows = text[text.index("\x1b[1A\x1b[2K") :]
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", rows).replace("\r\n", "\n").lstrip("\r")
    assert "reading" not in plain
    assert plain.count("row") == 3
    assert plain.splitlines()[0][:1] in {"{", "a", "\u250f"}
