"""What queries may call tables, and what DuckDB makes of that. Pure.

How queries name journals that have no table spec, and what DuckDB makes of these names. Pure.

A query says ``journal('events/')``. That is a macro: it selects from a view whose name holds the argument in
hexadecimal digits, because DuckDB ignores the case of names. If the view is missing, DuckDB's error has its name,
so the argument is known without a parser of our own, whatever the statement: a CTE, a COPY, a view, a parameter.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gazette_platform.lake.spec.table_spec import TableSpec

OFFSETS_SUFFIX: Final = "$offsets"
"""Behind a table's name: the same table with the columns `_journal`, `_offset` and `_fragment`."""
HISTORY_SUFFIX: Final = "$history"
"""Behind a typed table's name: the rows that runs have published."""
TAIL_SUFFIX: Final = "$tail"
"""Behind a typed table's name: what no run has published yet."""
DELETES_SUFFIX: Final = "$deletes"
"""Behind a typed table's name: deletions that runs have kept; none, but of a table of changes."""
RESERVED: Final = frozenset({"information_schema", "pg_catalog"})
"""Schemas of DuckDB's own."""


def typed_of(specs: Mapping[str, TableSpec]) -> dict[str, TableSpec]:
    """Specs by the names of their typed tables, except for names that others have, or DuckDB."""
    return {
        spec.typed.name: spec
        for spec in specs.values()
        if spec.typed is not None
        and spec.typed.name not in specs
        and spec.typed.name.partition(".")[0] not in RESERVED
    }


def names_of(specs: Mapping[str, TableSpec], typed: Iterable[str]) -> dict[str, str]:
    """Full names by what queries may call tables.

    A short name that two have is none. But that of a raw table does not mean the typed one of the same name.
    """
    names: dict[str, str] = {}
    taken: set[str] = set()
    for tables in ([*specs], [*typed]):
        shorts = [name.partition(".")[2] for name in tables]
        for name, short in zip(tables, shorts, strict=True):
            names[name] = name
            if shorts.count(short) == 1 and short not in taken:
                names[short] = name
        taken.update(shorts)
    return names


def key_of(name: str) -> str:
    """What a query calls a table, as in `names_of`; DuckDB adds what else it is called there.

    >>> key_of('"orders$offsets"'), key_of("Shop.orders AS o"), key_of("memory.shop.orders")
    ('orders', 'shop.orders', 'shop.orders')
    """
    name = name.partition(" AS ")[0].replace('"', "").lower()
    for suffix in (OFFSETS_SUFFIX, HISTORY_SUFFIX, TAIL_SUFFIX, DELETES_SUFFIX):
        name = name.removesuffix(suffix)
    return ".".join(name.split(".")[-2:])


def quoted(name: str) -> str:
    """A name in DuckDB's SQL."""
    return '"' + name.replace('"', '""') + '"'


MACRO: Final = (
    "CREATE OR REPLACE TEMP MACRO journal(name, offsets := false) AS TABLE SELECT * FROM query_table("
    "'\"journal:' || hex(name::VARCHAR) || CASE WHEN offsets THEN '$offsets' ELSE '' END || '\"')"
)
"""Makes `journal` a table function."""
MACRO_WITHOUT_VIEWS: Final = (
    "CREATE OR REPLACE TEMP MACRO journal(name, offsets := false) AS TABLE SELECT 1"
)
"""The same for a database that is only asked which tables a query names."""

_MISSING: Final = re.compile(r'Table with name "?journal:(?P<digits>[0-9A-F]*)')
_DESCRIBES: Final = frozenset({b"describe", b"desc", b"summarize"})
# No name of a journal has one of these, and each selector of more than one label does.
_OF_SELECTORS: Final = frozenset(":,()! ")


def called(name: str) -> str:
    """Return how a query calls a table of journals.

    >>> called("events/"), called("it's")
    ("journal('events/')", "journal('it''s')")
    """
    return "journal('" + name.replace("'", "''") + "')"


def view_of(name: str) -> str:
    """Return the name of the view that the macro selects from.

    >>> view_of("a/B")
    'journal:612F42'
    """
    return f"journal:{name.encode().hex().upper()}"


def data_of(name: str) -> str:
    """Return the name of the data set below the view."""
    return f"data of {view_of(name)}"


def journal_missing(error: str) -> str | None:
    """Return the argument of `journal` whose view DuckDB did not find; None if the error is another one.

    >>> journal_missing("Catalog Error: Table with name journal:612F42 does not exist!")
    'a/B'
    """
    found = _MISSING.search(error)
    if found is None:
        return None
    try:
        return bytes.fromhex(found["digits"]).decode()
    except ValueError:  # the query names such a table itself
        return None


def selectors_of(name: str) -> list[str]:
    """Return the selectors that an argument of `journal` may mean, the likeliest first.

    >>> selectors_of("events/"), selectors_of("events/a")
    (['name:prefix=events/'], ['name=events/a'])
    >>> selectors_of("name:prefix=events/,region=eu")
    ['name:prefix=events/,region=eu']

    A name may look like a selector of one label:

    >>> selectors_of("region=eu")
    ['name=region=eu', 'region=eu']
    """
    if not name.strip():
        return []
    if _OF_SELECTORS & set(name):
        return [name]
    named = f"name:prefix={name}" if name.endswith("/") else f"name={name}"
    return [named, name] if "=" in name else [named]


def describable(query: str, tokens: Sequence[tuple[int, object]]) -> str:
    """Return a query with FROM after each DESCRIBE of `journal(…)`, where DuckDB's grammar takes a plain name only.

    Args:
        query: of DuckDB's SQL.
        tokens: of `duckdb.tokenize`: where each begins, in bytes. Comments are not tokens.
    """
    text = query.encode()
    begins = [begin for begin, _ in tokens]
    words = [text[begin:end].lower() for begin, end in pairwise([*begins, len(text)])]
    places = [
        begins[i + 1]
        for i in range(len(words) - 2)
        if _word(words[i]) in _DESCRIBES
        and _word(words[i + 1]) == b"journal"
        and words[i + 2].startswith(b"(")
    ]
    for place in reversed(places):
        text = text[:place] + b"FROM " + text[place:]
    return text.decode()


def _word(token: bytes) -> bytes:
    found = re.match(rb"\w+", token)
    return found[0] if found is not None else b""
