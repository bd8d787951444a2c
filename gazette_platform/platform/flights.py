"""The demo's data: every flight that departed New York City in 2013, as JSON lines."""

from __future__ import annotations

import csv
import io
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

from gazette_platform.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FLIGHTS = 336_776
"""Flights in the data set, one a row."""

_FILE = "flights.csv"
_TEXTS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
_MISSING = frozenset({"", "NA"})
_ORIGINS = frozenset({"EWR", "JFK", "LGA"})


@dataclass(frozen=True, slots=True)
class Flight:
    """One flight: where it departs from, and its record, a JSON object with a newline."""

    origin: str
    line: bytes


def journal_of(origin: str) -> str:
    """The journal of the flights of an airport."""
    return f"flights/origin={origin}/part=000"


def load_flights(path: Path) -> list[Flight]:
    """Read all flights, in the order of their scheduled departure.

    Args:
        path: ``flights.csv.zip``.

    Raises: DataError: the file is not the data set: other columns, values or number of rows.
    """
    rows = sorted(_rows(path), key=lambda row: row[0])
    if len(rows) != FLIGHTS:
        raise DataError(
            f"{path}: expected {FLIGHTS} flights, found {len(rows)} (remove the file, so that it "
            "is installed again)"
        )
    return [flight for _, flight in rows]


def _rows(path: Path) -> Iterator[tuple[tuple[str, int], Flight]]:
    """Each flight with its place in time."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open(_FILE) as raw:
            reader = csv.reader(io.TextIOWrapper(raw, "utf-8", newline=""))
            names = next(reader)
            is_text = [name in _TEXTS for name in names]
            origin_at, hour_at = names.index("origin"), names.index("time_hour")
            scheduled_at = names.index("sched_dep_time")
            for values in reader:
                record = {
                    name: None if value in _MISSING else value if text else int(float(value))
                    for name, value, text in zip(names, values, is_text, strict=True)
                }
                if values[origin_at] not in _ORIGINS:
                    raise DataError(f"{path}: unknown origin {values[origin_at]!r}")
                line = orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
                place = (values[hour_at], int(values[scheduled_at]))
                yield place, Flight(values[origin_at], line)
    except (zipfile.BadZipFile, KeyError, StopIteration, ValueError, OSError) as err:
        raise DataError(f"{path}: not the flights data set: {err!r}") from err
