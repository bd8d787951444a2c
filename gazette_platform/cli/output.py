"""What commands print: tables for people, JSON, YAML and prototext for programs."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gazette_platform.protocol import escape_html

__all__ = ["note", "print_json", "print_table", "print_text", "writing"]

NONE = "<none>"
"""What a table shows for a value that is missing."""


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under their columns: framed on a terminal, aligned by blanks elsewhere."""
    if sys.stdout.isatty():
        # As texts: a part of a cell in brackets is no markup.
        table = Table()
        for column in columns:
            table.add_column(Text(column))
        for row in rows:
            table.add_row(*map(Text, row))
        Console(emoji=False).print(table)
        return
    lines = [list(columns), *[list(row) for row in rows]]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    for line in lines:
        print_text("  ".join(map(str.ljust, line, widths)).rstrip())


def print_json(value: object, *, indent: bool = False) -> None:
    """Print a value as one JSON document, as Gazette's tools do."""
    document = orjson.dumps(value, option=orjson.OPT_INDENT_2 if indent else None)
    print_text(escape_html(document).decode())


def print_text(text: str, *, end: str = "\n") -> None:
    """Print text to stdout as it is, at once: a watcher may follow it."""
    with writing("stdout"):
        print(text, end=end, flush=True)


@contextmanager
def writing(name: str) -> Iterator[None]:
    """Have errors of writes say what was written to, which the system does not.

    Raises: OSError: with the name; BrokenPipeError as it is.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as err:
        raise OSError(err.errno, f"cannot write: {err.strerror}", name) from err


def note(text: str) -> None:
    """Tell something to the person at the terminal, on stderr."""
    print(text, file=sys.stderr, flush=True)
