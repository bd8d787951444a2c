"""Times in UTC, as Go's ``time.Time`` formats them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from gazette_platform.gotemplate.runtime import GoObject, Method, NamedInt
from gazette_platform.ops.durations import SECOND_NS

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_platform.gotemplate.runtime import Value


ZERO_TIME: Final = datetime(1, 1, 1, tzinfo=UTC)

_MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")

# The reference time's pieces. Longer ones first where one begins another; `Jan` and `Mon` are words
# only if no small letter follows, and a fraction only if no digit does.
_LAYOUT: Final = re.compile(
    r"January|Jan(?![a-z])|Monday|Mon(?![a-z])|MST"
    r"|002|01|02|03|04|05|06"
    r"|2006|15|PM|pm"
    r"|__2|_2(?!006)"
    r"|[-Z]07:00:00|[-Z]070000|[-Z]07:00|[-Z]0700|[-Z]07"
    r"|[.,](?:0+|9+)(?![0-9])"
    r"|1|2|3|4|5"
)


def _zone(piece: str, _: datetime) -> str:
    if piece[0] == "Z":
        return "Z"
    return "+" + piece[1:].replace("7", "0")


def _fraction(piece: str, at: datetime) -> str:
    digits = f"{at.microsecond * 1000:09d}"[: len(piece) - 1].ljust(len(piece) - 1, "0")
    if piece[1] == "9":
        digits = digits.rstrip("0")
        return piece[0] + digits if digits else ""
    return piece[0] + digits


def _weekday(at: datetime) -> int:
    """Day of the week, Sunday is 0."""
    return at.isoweekday() % 7


_PIECES: Final[dict[str, Callable[[datetime], str]]] = {
    "2006": lambda at: f"{at.year:04d}",
    "06": lambda at: f"{at.year % 100:02d}",
    "January": lambda at: _MONTHS[at.month - 1],
    "Jan": lambda at: _MONTHS[at.month - 1][:3],
    "01": lambda at: f"{at.month:02d}",
    "1": lambda at: f"{at.month}",
    "Monday": lambda at: _DAYS[_weekday(at)],
    "Mon": lambda at: _DAYS[_weekday(at)][:3],
    "02": lambda at: f"{at.day:02d}",
    "_2": lambda at: f"{at.day:2d}",
    "2": lambda at: f"{at.day}",
    "002": lambda at: f"{at.timetuple().tm_yday:03d}",
    "__2": lambda at: f"{at.timetuple().tm_yday:3d}",
    "15": lambda at: f"{at.hour:02d}",
    "03": lambda at: f"{at.hour % 12 or 12:02d}",
    "3": lambda at: f"{at.hour % 12 or 12}",
    "04": lambda at: f"{at.minute:02d}",
    "4": lambda at: f"{at.minute}",
    "05": lambda at: f"{at.second:02d}",
    "5": lambda at: f"{at.second}",
    "PM": lambda at: "PM" if at.hour >= 12 else "AM",
    "pm": lambda at: "pm" if at.hour >= 12 else "am",
    "MST": lambda _: "UTC",
}


def format_time(at: datetime, layout: str) -> str:
    """Format an instant in UTC by a layout that shows Go's reference time.

    >>> format_time(datetime(2024, 1, 2, 5, 6, tzinfo=UTC), "date=2006-01-02/hour=15")
    'date=2024-01-02/hour=05'
    """
    at = at.astimezone(UTC)

    def piece(match: re.Match[str]) -> str:
        text = match[0]
        known = _PIECES.get(text)
        if known is not None:
            return known(at)
        return _fraction(text, at) if text[0] in ".," else _zone(text, at)

    return _LAYOUT.sub(piece, layout)


def _unix_ns(at: datetime) -> int:
    since = at - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * SECOND_NS + since.microseconds * 1000


def time_object(at: datetime) -> GoObject:
    """What templates see of an instant."""
    at = at.astimezone(UTC)
    unix_ns = _unix_ns(at)
    weekday = _weekday(at)
    computed: dict[str, Value | Method] = {
        "Format": Method(lambda layout: format_time(at, layout), (str,)),
        "Unix": Method(lambda: unix_ns // SECOND_NS),
        "UnixMilli": Method(lambda: unix_ns // 1_000_000),
        "UnixMicro": Method(lambda: unix_ns // 1_000),
        "UnixNano": Method(lambda: unix_ns),
        "Year": Method(lambda: at.year),
        "Month": Method(lambda: NamedInt(at.month, _MONTHS[at.month - 1], "time.Month")),
        "Day": Method(lambda: at.day),
        "YearDay": Method(lambda: at.timetuple().tm_yday),
        "Weekday": Method(lambda: NamedInt(weekday, _DAYS[weekday], "time.Weekday")),
        "Hour": Method(lambda: at.hour),
        "Minute": Method(lambda: at.minute),
        "Second": Method(lambda: at.second),
        "Nanosecond": Method(lambda: at.microsecond * 1000),
        "IsZero": Method(lambda: at == ZERO_TIME),
        "UTC": Method(lambda: made),
        "String": Method(lambda: _text(at)),
    }
    made = GoObject("time.Time", computed, text=_text(at))
    return made


def _text(at: datetime) -> str:
    return format_time(at, "2006-01-02 15:04:05.999999999 -0700 MST")
