"""A rollup's query to check, and what was found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gazette_platform.lake.rollups.engines import Dialect


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A query to check."""

    name: str
    """Of the table that it makes."""
    sql: str
    dialect: Dialect
    sources: Mapping[str, str]
    """Tables by alias."""
    slices: Sequence[str] = ()
    """Columns that it has to give."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class QueryFaults:
    """What is wrong with a query, and the columns that it gives."""

    syntax: str = ""
    """Why it cannot be parsed. The engine may still take it."""
    names: tuple[str, ...] = ()
    """Tables and columns that it names, or has to give, and that do not exist."""
    columns: tuple[str, ...] | None = None
    """Names of all columns that it gives, in lower case; None: not known."""
