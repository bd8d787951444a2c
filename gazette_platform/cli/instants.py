"""Instants as options give them: Unix seconds, relative to now, or ISO 8601."""

import re
from datetime import UTC, datetime
from typing import Final

import typer

from gazette_platform.errors import ValidationError
from gazette_platform.ops.clock import SystemClock
from gazette_platform.protocol import parse_duration

__all__ = ["UNIX_TIME_MAX", "instant_option", "parse_instant", "seconds_of"]

UNIX_TIME_MAX: Final = (1 << 63) - 1
"""Greatest second that a request can name."""

_RELATIVE = re.compile(r"@?-(.+)", re.DOTALL)
_ABSOLUTE = re.compile(r"@?([0-9]{1,19})", re.ASCII)
_DAYS = re.compile(r"([0-9]{1,6})d(.*)", re.ASCII | re.DOTALL)
_DAY_S = 86_400
_EXPECTED = "expected Unix seconds, @-1h30m for that long ago, or 2026-01-31T12:00:00Z"


def parse_instant(text: str, now_s: float) -> int:
    """The Unix second that `text` means, rounded down.

    Args:
        text: Unix seconds, with or without ``@``; ``@-1h`` or ``@-2d12h`` before now; or a date or
            time of ISO 8601, which is UTC unless it has an offset.
        now_s: the current Unix time.

    Raises: ValidationError: it is none of these, or before 1970, or beyond 64 bits.

    >>> parse_instant("@-1h", 10_000)
    6400
    >>> parse_instant("1970-01-02", 0)
    86400
    """
    if found := _ABSOLUTE.fullmatch(text):
        instant = int(found[1])
    elif found := _RELATIVE.fullmatch(text):
        instant = int(now_s - _ago_s(found[1], text))
    else:
        instant = _iso(text)
    if not 0 <= instant <= UNIX_TIME_MAX:
        raise ValidationError(f"{text} is not a time since 1970 ({_EXPECTED})")
    return instant


def _ago_s(text: str, whole: str) -> float:
    days_s, rest = 0, text
    if found := _DAYS.fullmatch(text):
        days_s, rest = int(found[1]) * _DAY_S, found[2]
    try:
        nanoseconds = parse_duration(rest) if rest or not days_s else 0
    except ValidationError as err:
        raise ValidationError(f"{whole}: {err} ({_EXPECTED})") from err
    if nanoseconds < 0:
        raise ValidationError(f"{whole} has two signs ({_EXPECTED})")
    return days_s + nanoseconds / 1e9


def _iso(text: str) -> int:
    try:
        found = datetime.fromisoformat(text)
        # A time without offset is UTC, as all that commands print; not that of this machine.
        return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError) as err:
        raise ValidationError(f"{text!a} is no time ({_EXPECTED})") from err


def seconds_of(text: str, option: str) -> float:
    """The seconds of a duration that an option gave. Raises: ValidationError: shows one that can be."""
    try:
        return parse_duration(text) / 1e9
    except ValidationError as err:
        raise ValidationError(f"{err} (write it as 500ms, 10s or 1h30m)", path=option) from err


def instant_option(text: str | int) -> int:
    """An instant, for the parser of an option, which parses defaults too. Raises: typer.BadParameter."""
    try:
        return parse_instant(str(text), SystemClock().unix_s())
    except ValidationError as err:
        raise typer.BadParameter(str(err)) from err
