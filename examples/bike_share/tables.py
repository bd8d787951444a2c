"""Rides in a table, and loops among them: the same statements for PostgreSQL and SQLite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from sqlalchemy import inspect, text
from sqlalchemy.exc import SQLAlchemyError

from gazette_platform.consumer.store import create_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from sqlalchemy.engine import Connection, Engine

__all__ = ["SCHEMA", "Row", "Run", "add_ride", "in_database", "make_tables", "rides_of"]

Row: TypeAlias = tuple[Any, ...]
Run: TypeAlias = "Callable[[str, Mapping[str, Any]], Iterable[Row]]"

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS rides (
    bike_id INTEGER NOT NULL,
    start_time TEXT NOT NULL,
    uuid TEXT NOT NULL,
    end_time TEXT NOT NULL,
    start_station TEXT NOT NULL,
    end_station TEXT NOT NULL,
    PRIMARY KEY (bike_id, start_time)
)
"""
"""A ride that was delivered twice would break the primary key, and fail its shard."""

_INSERT: Final = """
INSERT INTO rides (bike_id, start_time, uuid, end_time, start_station, end_station)
VALUES (:bike_id, :start_time, :uuid, :end_time, :start_station, :end_station)
"""

# The last 20 rides of a bike are kept.
_FORGET: Final = """
DELETE FROM rides
WHERE bike_id = :bike_id AND start_time NOT IN (
    SELECT start_time FROM rides WHERE bike_id = :bike_id ORDER BY start_time DESC LIMIT 20
)
"""

_LOOP: Final = """
WITH RECURSIVE
-- Rides of the bike, the last one first.
latest AS (
    SELECT uuid, start_time, end_time, start_station, end_station,
        ROW_NUMBER() OVER (ORDER BY start_time DESC) AS number
    FROM rides WHERE bike_id = :bike_id
),
-- Paths that end with this ride, each a ride longer than the one before, which begins where that one ends. A
-- bike that was moved between two rides ends them.
paths (length, first_station, last_station) AS (
    SELECT number, start_station, end_station FROM latest WHERE number = 1 AND uuid = :uuid
    UNION ALL
    SELECT former.number, former.start_station, paths.last_station
    FROM paths JOIN latest AS former
        ON former.number = paths.length + 1 AND former.end_station = paths.first_station
)
-- The shortest that is long enough.
SELECT start_time, start_station, end_time, end_station FROM latest
WHERE number <= (SELECT MIN(length) FROM paths WHERE length > 10 AND first_station = last_station)
ORDER BY number DESC
"""

_RIDES: Final = """
SELECT uuid, start_time, end_time, start_station, end_station
FROM rides WHERE bike_id = :bike_id ORDER BY start_time
"""


def add_ride(run: Run, ride: Mapping[str, Any]) -> list[Row]:
    """Add a ride, forget the oldest of its bike, and find the loop that it ends.

    Args:
        run: runs a statement, and gives its rows.
        ride: values of all columns, by name.

    Returns: start and end of each ride of the loop, as time, station, time, station; none: it ends no loop.
    """
    for statement in (_INSERT, _FORGET):
        run(statement, ride)
    return list(run(_LOOP, ride))


def rides_of(run: Run, bike_id: int) -> list[Row]:
    """UUID, start and end times, and start and end stations of a bike's last rides."""
    return list(run(_RIDES, {"bike_id": bike_id}))


def in_database(connection: Connection) -> Run:
    """What runs statements by SQLAlchemy. In a thread."""

    def run(statement: str, values: Mapping[str, Any]) -> list[Row]:
        result = connection.execute(text(statement), dict(values))
        return [tuple(row) for row in result] if result.returns_rows else []

    return run


def make_tables(engine: Engine) -> None:
    """Make the tables of a database, unless they exist. Blocks. Raises: StoreError, SQLAlchemyError."""
    create_tables(engine)
    try:
        with engine.begin() as connection:
            connection.execute(text(SCHEMA))
    except SQLAlchemyError:
        if not inspect(engine).has_table("rides"):  # else another process was faster
            raise
