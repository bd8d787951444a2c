"""A small data set of rides, always the same, with known loops: ``python -m examples.bike_share.data > rides.csv``."""

from __future__ import annotations

import csv
import itertools
import random
import sys
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, final

__all__ = ["HEADER", "Data", "make"]

HEADER: Final = (
    "tripduration,starttime,stoptime,start station id,start station name,start station latitude,"
    "start station longitude,end station id,end station name,end station latitude,"
    "end station longitude,bikeid,usertype,birth year,gender"
)

_BIKES: Final = 32
_STATIONS: Final = 60
_FORMAT: Final = "%Y-%m-%d %H:%M:%S"

# Rides that lead back to where the first one began, and whether the bike is moved by hand amid them.
_KINDS: Final = ((11, False), (10, False), (12, True), (14, False))


@final
@dataclass(frozen=True, slots=True)
class Data:
    """Rides, and what is to be found among them."""

    rows: list[list[str]]
    """In the order of their starts; columns as `HEADER` has them."""
    loops: dict[int, list[str]]
    """Stations of the one loop of a bike, where there is one; the last is the first again."""


def make(seed: int = 1) -> Data:
    """Rides of 32 bikes in a day; every other bike makes a loop that is long enough."""
    dice = random.Random(seed)  # noqa: S311  the same each time
    rows: list[list[str]] = []
    loops: dict[int, list[str]] = {}
    for number in range(_BIKES):
        bike = 14500 + 7 * number
        length, is_moved = _KINDS[number % len(_KINDS)]
        before = dice.randrange(6)
        stations = dice.sample(range(_STATIONS), 40)
        loop = [*stations[before : before + length], stations[before]]
        path = [*stations[:before], *loop, *stations[before + length : 34]]
        rides = [*itertools.pairwise(path)]
        if is_moved:
            at = before + length // 2
            rides[at] = (stations[39], rides[at][1])
        elif length > 10:
            loops[bike] = [_name(station) for station in loop]
        start = datetime(2020, 2, 1) + timedelta(seconds=dice.randrange(3600))  # noqa: DTZ001  local
        for begin, end in rides:
            seconds = dice.randrange(120, 1500)
            rows.append(_row(bike, start, seconds, (begin, end), dice))
            start += timedelta(seconds=seconds + dice.randrange(60, 900))
    rows.sort(key=lambda row: row[1])
    return Data(rows, loops)


def _name(station: int) -> str:
    return f"{station // 6 + 1} Ave & W {station % 6 + 30} St"


def _row(
    bike: int, start: datetime, seconds: int, stations: tuple[int, int], dice: random.Random
) -> list[str]:
    stop = start + timedelta(seconds=seconds)
    rider = ["Subscriber", str(dice.randrange(1940, 2004)), str(dice.randrange(3))]
    places = [text for station in stations for text in _station(station)]
    times = [start.strftime(_FORMAT), stop.strftime(_FORMAT)]
    return [str(seconds), *times, *places, str(bike), *rider]


def _station(station: int) -> list[str]:
    latitude, longitude = 40.7 + station / 1000, -74 + station / 1000
    return [str(100 + station), _name(station), f"{latitude:.3f}", f"{longitude:.3f}"]


if __name__ == "__main__":
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(HEADER.split(","))
    out.writerows(make().rows)
