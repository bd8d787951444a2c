"""The tables of clients in docs/concepts/kafka.md. Tests compare them with what they find, and write them with `--rewrite`."""

from __future__ import annotations

from pathlib import Path

_PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "kafka.md"
_HEAD = "| program | does |\n| --- | --- |\n"


def shown(name):
    """One of the tables: `clients` or `programs`."""
    return _parts(name)[1]


def rewrite(name, text):
    """Put another text in the place of a table."""
    before, _, after = _parts(name)
    _PAGE.write_text(before + text + after)


def _parts(name):
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    before, rest = _PAGE.read_text().split(begin)
    found, after = rest.split(end)
    return before + begin, found, end + after


def rows_of_programs():
    """(program and version, what it does), as the page has them."""
    rows = shown("programs").removeprefix(_HEAD).splitlines()
    return [tuple(cell.strip() for cell in row.strip("|").split(" | ")) for row in rows]


def program_does(config, program, does):
    """Fail unless the page says that a program does what a test has just seen."""
    rows = rows_of_programs()
    if config.getoption("--rewrite"):
        rows = sorted({(program, does), *(row for row in rows if row[1] != does)})
        rewrite("programs", _HEAD + "".join(f"| {' | '.join(row)} |\n" for row in rows))
    else:
        assert (program, does) in rows
