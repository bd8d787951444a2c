"""What the tables of the enriched flights say, in Trino and in Spark."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

__all__ = [
    "RAW_IN_SPARK",
    "RAW_IN_TRINO",
    "Ask",
    "Row",
    "Told",
    "ask",
    "in_spark",
    "load",
    "rollup_flights",
]

Row: TypeAlias = tuple[Any, ...]
Ask: TypeAlias = "Callable[[str], list[Row]]"

RAW_IN_TRINO: Final = "SELECT count(*), count(departs_at) FROM hive.flights_live.enriched"
RAW_IN_SPARK: Final = "SELECT count(*), count(departs_at) FROM flights_live.enriched"
"""All lines of the raw table, and those of them that are flights. The catalogs have other names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What an engine says; two engines say the same."""

    raw_lines: int
    raw_flights: int
    """With those of transactions that were taken back."""
    typed: int
    """Flights, each once."""
    planes_wrong: int
    """Whose flights are not numbered without gaps or doubles."""
    rollups: dict[str, int]
    """By its name, the flights that a rollup is made of."""


def load(name: str) -> str:
    """A query of the folder ``sql``, for both engines."""
    return (Path(__file__).with_name("sql") / f"{name}.sql").read_text("utf-8")


def ask(query: Ask, raw: str) -> Told:
    """Ask one engine.

    Args:
        query: runs a statement there.
        raw: the count of the raw table, as it is called there.

    Raises: LakeError: a table is not there.
    """
    ((lines, flights),) = query(raw)
    ((typed, wrong),) = query(load("typed"))
    return Told(
        raw_lines=lines,
        raw_flights=flights,
        typed=typed,
        planes_wrong=wrong,
        rollups=rollup_flights(query),
    )


def rollup_flights(query: Ask) -> dict[str, int]:
    """The flights that each rollup is made of. Raises: LakeError: one is not there yet."""
    return {name: int(flights or 0) for name, _, flights in query(load("rollups"))}


def in_spark(spark: SparkSession) -> Ask:
    """Statements of a session."""
    return lambda sql: [tuple(row) for row in spark.sql(sql).collect()]
