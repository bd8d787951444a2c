"""What queries may call tables, and what DuckDB makes of that. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gazette_platform.lake.table_spec import TableSpec

__all__ = [
    "DELETES_SUFFIX",
    "HISTORY_SUFFIX",
    "OFFSETS_SUFFIX",
    "RESERVED",
    "TAIL_SUFFIX",
    "key_of",
    "names_of",
    "quoted",
    "typed_of",
]

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
