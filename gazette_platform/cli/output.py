"""What commands print: tables for people, JSON, YAML and prototext for programs."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import orjson

from gazette_platform.protocol import escape_html, message_jsonpb, message_text

NONE = "<none>"
"""What a table shows for a value that is missing."""


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under their columns: framed on a terminal, aligned by blanks elsewhere."""
    if sys.stdout.isatty():
        from rich.console import Console  # noqa: PLC0415  slow to import
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        # As texts: a part of a cell in brackets is not markup.
        table = Table()
        for column in columns:
            table.add_column(Text(column))
        for row in rows:
            table.add_row(*(Text(printable(cell)) for cell in row))
        Console(emoji=False).print(table)
        return
    lines = [list(columns), *[list(map(printable, row)) for row in rows]]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    for line in lines:
        print_text("  ".join(map(str.ljust, line, widths)).rstrip())


def print_json(value: object, *, indent: bool = False) -> None:
    """Print a value as one JSON document, as Gazette's tools do."""
    document = orjson.dumps(value, option=orjson.OPT_INDENT_2 if indent else None)
    print_text(escape_html(document).decode())


def print_message(message: Any, output_format: str) -> None:
    """Print a message of the protocol as Gazette's tools do: as ``json``, else as prototext."""
    if output_format == "json":
        print_json(message_jsonpb(message))
    else:
        print_text(message_text(message), end="")


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
    """Print a line for the person at the terminal, on stderr."""
    print(printable(text), file=sys.stderr, flush=True)


def confirmed(question: str) -> bool:
    """Ask the person at the terminal; False without one."""
    if not sys.stdin.isatty():
        return False
    # Not typer's question, which writes to stdout, too.
    note(f"{question} [y/N]")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def printable(text: str) -> str:
    r"""A text for people: what would move the cursor of their terminal, or worse, is spelt out.

    Names of files, notes, and answers of servers are others' texts.

    >>> printable("a\x1b[2Jb"), printable("two\nlines")
    ('a\\x1b[2Jb', 'two\nlines')
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)
