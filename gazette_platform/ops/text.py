"""Texts that people read: numbers with their nouns, and durations as Go writes them, such as ``1m0s``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from gazette_platform.errors import ValidationError

if TYPE_CHECKING:
    from google.protobuf.duration_pb2 import Duration


def counted(count: int, one: str, many: str = "") -> str:
    """The number with its noun, in the singular or plural.

    Args:
        count: 0 or more.
        one: the noun of one, with what follows it.
        many: of several; default: `one` with an s.

    >>> counted(1, "fragment"), counted(0, "file"), counted(1200, "file is", "files are")
    ('1 fragment', '0 files', '1200 files are')
    """
    return f"{count} {one if count == 1 else many or one + 's'}"


SECOND_NS: Final = 1_000_000_000
MINUTE_NS: Final = 60 * SECOND_NS
HOUR_NS: Final = 60 * MINUTE_NS

_INT64_MAX = (1 << 63) - 1

_UNITS_NS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,  # micro sign
    "μs": 1_000,  # Greek mu
    "ms": 1_000_000,
    "s": SECOND_NS,
    "m": MINUTE_NS,
    "h": HOUR_NS,
}

# All units, with as many digits as 64 bits have, and room for zeros.
_TEXT_LENGTH_MAX = 256

_TERM = re.compile(r"([0-9]*)(?:\.([0-9]*))?([^0-9.]*)")


def parse_duration(text: str) -> int:
    """Parse a duration: a sign, then numbers with units, such as ``1h30m`` or ``-1.5s``.

    Returns: nanoseconds, fractions of one cut off.
    Raises: ValidationError: no such form, a unit is missing or unknown, or beyond 64 bits.

    >>> parse_duration("1m0.5s")
    60500000000
    """
    if len(text) > _TEXT_LENGTH_MAX:  # Python refuses to read thousands of digits
        raise ValidationError(f"invalid duration of {len(text)} characters")
    rest = text[1:] if text[:1] in ("-", "+") else text
    if rest == "0":
        return 0
    if not rest:
        raise ValidationError(f'invalid duration "{text}"')
    total, position = 0, 0
    while position < len(rest):
        match = _TERM.match(rest, position)
        if match is None or not (match[1] or match[2]):
            raise ValidationError(f'invalid duration "{text}"')
        if not match[3]:
            raise ValidationError(f'missing unit in duration "{text}"')
        unit = _UNITS_NS.get(match[3])
        if unit is None:
            raise ValidationError(f'unknown unit "{match[3]}" in duration "{text}"')
        fraction = match[2] or ""
        total += int(match[1] or "0") * unit
        total += int(fraction or "0") * unit // 10 ** len(fraction)
        position = match.end()
    if total > _INT64_MAX:
        raise ValidationError(f'invalid duration "{text}"')
    return -total if text.startswith("-") else total


def format_duration(nanoseconds: int) -> str:
    """Write a duration in the form that Go prints, which `parse_duration` reads.

    >>> format_duration(60_000_000_000), format_duration(1_500_000), format_duration(0)
    ('1m0s', '1.5ms', '0s')
    """
    if nanoseconds == 0:
        return "0s"
    sign = "-" if nanoseconds < 0 else ""
    rest = abs(nanoseconds)
    if rest < SECOND_NS:
        unit = "ms" if rest >= 1_000_000 else "µs" if rest >= 1_000 else "ns"
        return f"{sign}{_decimal(rest, _UNITS_NS[unit])}{unit}"
    hours, rest = divmod(rest, HOUR_NS)
    minutes, rest = divmod(rest, MINUTE_NS)
    seconds = f"{_decimal(rest, SECOND_NS)}s"
    if hours:
        return f"{sign}{hours}h{minutes}m{seconds}"
    return f"{sign}{minutes}m{seconds}" if minutes else f"{sign}{seconds}"


def _decimal(value: int, unit: int) -> str:
    """`value / unit`, exactly, without trailing zeros; `unit` is a power of ten."""
    whole, rest = divmod(value, unit)
    if not rest:
        return str(whole)
    fraction = str(rest).rjust(len(str(unit)) - 1, "0").rstrip("0")
    return f"{whole}.{fraction}"


def duration_from_pb(message: Duration) -> int:
    """Nanoseconds of a protobuf duration; of an absent one, zero."""
    return message.seconds * SECOND_NS + message.nanos


def duration_into_pb(nanoseconds: int, message: Duration) -> None:
    """Set `message` to a duration, and mark it as present even if zero."""
    # Both parts carry the sign, so divide towards zero.
    seconds, nanos = divmod(abs(nanoseconds), SECOND_NS)
    message.seconds = -seconds if nanoseconds < 0 else seconds
    message.nanos = -nanos if nanoseconds < 0 else nanos
    message.SetInParent()
