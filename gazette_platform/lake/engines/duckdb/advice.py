"""Describe an error of DuckDB: in one line, with its own hints, and the next step where it has none."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_MISSING: Final = (
    re.compile(r'Table with name "?(?P<name>[^\s"]+)"? does not exist'),
    # It looks for variables of the calling function, too.
    re.compile(r'Python Object "(?P<name>[^"]+)" of type .* not suitable for replacement scans'),
)
_NEAR: Final = re.compile(r'syntax error at or near "(?P<word>[^"]*)"')
_NO_TABLE: Final = re.compile(
    r"is not an table|is of type View|Can only (?:update|delete from) base table|Can only modify view"
)
_NO_CATALOG: Final = re.compile(r'Catalog "[^"]*" does not exist')
_JOURNAL_AS_TABLE: Final = re.compile(r"(?i)\b(?:from|join)\s+([\w.=%+-]+(?:/[\w.=%+-]*)+)")
_JOURNAL_UNQUOTED: Final = re.compile(r"(?i)\bjournal\(\s*([^'\"\s)][^)]*?)\s*\)")
_OF_TEXT: Final = re.compile(
    r"^(?P<what>.*argument types '(?P<function>\w+)\(VARCHAR\)'\.) You might need"
)
_READ_ONLY: Final = (
    " (tables over journals are only read here: `gazctl journals append` adds records, and CREATE TABLE "
    "mine AS SELECT … makes a table of your own, for this query)"
)


def table_missing(error: str) -> str:
    """The table that DuckDB did not find, as the query calls it; empty if the error is another one.

    >>> table_missing('Catalog Error: Table with name "x.y" does not exist because schema "x" …')
    'x.y'
    """
    found = next(filter(None, (each.search(error) for each in _MISSING)), None)
    return found["name"] if found is not None else ""


def advised(error: str, query: str, names: Iterable[str]) -> str:
    """The error in one line.

    Args:
        error: of DuckDB: a line, lines with hints, an empty one, and the place in the query.
        query: that it is of.
        names: of tables, and of columns, which a query may have to quote.

    >>> advised('Parser Error: syntax error at or near "order"', "FROM order", ["order", "shop"])
    'Parser Error: syntax error at or near "order" (a name that is a word of SQL goes in double quotes: "order")'
    """
    text = " ".join(error.partition("\n\n")[0].split())
    if _NO_TABLE.search(text):
        return text.replace("is not an table", "is not a table of its own") + _READ_ONLY
    if _NO_CATALOG.search(text):
        return f"{text} (tables are called schema.table here, or just table, without a catalog)"
    if unquoted := _JOURNAL_UNQUOTED.search(query):
        return f"{text} (the name of a journal goes in quotes: journal('{unquoted[1]}'))"
    if found := _OF_TEXT.search(text):
        column = re.search(rf'(?i)\b{found["function"]}\(\s*([\w."]+)\s*\)', query)
        cast = f"TRY_CAST({column[1] if column else 'column'} AS DOUBLE)"
        return (
            f"{found['what']} The column is text: use {cast}. DESCRIBE shows the types of columns"
        )
    return text + _of_syntax(text, query, names)


def _of_syntax(text: str, query: str, names: Iterable[str]) -> str:
    """The next step after an error of syntax, in parentheses; empty if it is another error, or none is known."""
    near = _NEAR.search(text)
    if near is None:
        return ""
    if table := _JOURNAL_AS_TABLE.search(query):
        return f" (to read a journal without a table spec, write FROM journal('{table[1]}'))"
    if word := _unquoted(near["word"], query, names):
        return f' (a name that is a word of SQL goes in double quotes: "{word}")'
    return ""


def _unquoted(near: str, query: str, names: Iterable[str]) -> str:
    """The name that stands in a query without quotes where DuckDB stumbled; empty if none is."""
    known = {name.lower() for name in names}
    if near.lower() in known:
        return near.lower()
    # It stumbles behind a word, such as at the dot of `order.id`.
    behind = re.findall(rf'(?<![\w"])(\w+)\s*{re.escape(near)}', query) if near else []
    return next((word.lower() for word in behind if word.lower() in known), "")
