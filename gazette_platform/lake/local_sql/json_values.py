"""One JSON value as a value of a column: the rules for what does not fit as it is. Pure.

Content that fits is parsed by Arrow, and gives the same. Here is what Arrow refuses: it would refuse all
of a block for one value.

| column | takes | else NULL |
|---|---|---|
| string | a text; a number or truth value as written; an array or object as JSON text | |
| boolean | `true`, `false`, and the same as texts | numbers |
| integers | `5`, `"5"` | out of range, `5.0`, `1e3` |
| float, double | numbers, also as texts, `NaN`, `Infinity` and `-Infinity` | |
| decimal | numbers, also as texts, rounded half up to the scale | too many digits |
| date | `"2020-01-31"`, `"2020-1-31"`, also with a time behind | all other texts, numbers |
| array, map, struct | arrays, objects, objects; their values by these rules | |

A line that does not begin with a JSON object is a row of NULLs; what follows it is ignored.
Where Trino and Spark agree, so does this, except for texts in single quotes.
"""

from __future__ import annotations

import json
import re
from datetime import date
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final, final

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_platform.lake.schema import ColumnType

__all__ = ["Numeral", "fitted", "parse_line"]

_BITS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_NUMERAL: Final = re.compile(
    r"[+-]?(\d{1,400}(\.\d{0,400})?|\.\d{1,400})([eE][+-]?\d{1,4})?\Z", re.ASCII
)
_INTEGER: Final = re.compile(r"-?\d{1,400}\Z", re.ASCII)
_DATE: Final = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})(?:[T ]|\Z)", re.ASCII)
_NOT_FINITE: Final = ("NaN", "Infinity", "-Infinity")
_EPOCH: Final = date(1970, 1, 1)
_DAYS_OF_400_YEARS: Final = 146_097
# More digits than any column has: sums and products are never rounded on the way.
_EXACT: Final = Context(prec=1000)


@final
class Numeral(str):
    """A number of JSON, as written: a float would lose digits of decimals."""

    __slots__ = ()


# `NaN` and infinities are not JSON, yet engines take them: the other keys of such a line are read.
_DECODER: Final = json.JSONDecoder(
    parse_float=Numeral, parse_int=Numeral, parse_constant=Numeral, strict=True
)


def parse_line(line: str) -> dict[str, Any] | None:
    """The object that a line begins with, whose numbers are `Numeral`; None: with none."""
    try:
        value, _ = _DECODER.raw_decode(line.removeprefix("\ufeff").lstrip(" \t\r"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def fitted(value: Any, kind: ColumnType) -> Any:
    """A value of `parse_line` as Python value for a column of type `kind`; None if it does not fit.

    Maps are lists of pairs, as Arrow takes them.
    """
    if value is None:
        return None
    return _FITS[kind.name](value, kind)


def _string(value: Any, _: ColumnType) -> str:
    if isinstance(value, str):
        # A lone surrogate, which JSON can name and UTF-8 cannot hold.
        return str(value) if value.isascii() else value.encode("utf-8", "replace").decode()
    return _text(value)


def _text(value: Any) -> str:
    """JSON of a value, with its numbers as they were written. Values lie deeper than calls may."""
    found: list[str] = []
    # What is to come, the next one last; texts of ours are in tuples.
    pending: list[Any] = [value]
    while pending:
        match pending.pop():
            case tuple() as ours:
                found += ours
            case Numeral() as number:
                found.append(number)
            case list() as items:
                pending += _nested("[", [[item] for item in items], "]")
            case dict() as items:
                pending += _nested("{", [[key, (":",), item] for key, item in items.items()], "}")
            case str() as text:
                found.append(json.dumps(_string(text, _STRING), ensure_ascii=False))
            case other:
                found.append(json.dumps(other))
    return "".join(found)


def _nested(begin: str, parts: list[list[Any]], end: str) -> list[Any]:
    """The parts between `begin` and `end`, with commas, the last one first."""
    found: list[Any] = [(begin,)]
    for index, part in enumerate(parts):
        found += [(",",), *part] if index else part
    return [*found, (end,)][::-1]


_STRING: Any = None  # the type is of no account to texts


def _boolean(value: Any, _: ColumnType) -> bool | None:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and not isinstance(value, Numeral):
        return {"true": True, "false": False}.get(value.lower())
    return None


def _number(value: Any) -> Decimal | None:
    if isinstance(value, str) and _NUMERAL.match(value):
        return Decimal(value)
    return None


def _integer(value: Any, kind: ColumnType) -> int | None:
    if not (isinstance(value, str) and _INTEGER.match(value)):
        return None
    number, half = int(value), 1 << (_BITS[kind.name] - 1)
    return number if -half <= number < half else None


def _floating(value: Any, _: ColumnType) -> float | None:
    if isinstance(value, str) and (value in _NOT_FINITE or _NUMERAL.match(value)):
        return float(value)
    return None


def _decimal(value: Any, kind: ColumnType) -> Decimal | None:
    number = _number(value)
    if number is None:
        return None
    try:
        rounded = number.quantize(
            Decimal(1).scaleb(-kind.scale), rounding=ROUND_HALF_UP, context=_EXACT
        )
    except InvalidOperation:  # more digits than fit anywhere
        return None
    return rounded if abs(rounded) < Decimal(10) ** (kind.precision - kind.scale) else None


def _date(value: Any, _: ColumnType) -> date | int | None:
    """A date; of the year 0, which Python has not, its days since 1970."""
    found = _DATE.match(value) if isinstance(value, str) else None
    if found is None:
        return None
    year, month, day = map(int, found.groups())
    try:
        # The calendar repeats itself every 400 years.
        found_date = date(year or 400, month, day)
    except ValueError:
        return None
    return found_date if year else (found_date - _EPOCH).days - _DAYS_OF_400_YEARS


def _array(value: Any, kind: ColumnType) -> list[Any] | None:
    return [fitted(v, kind.arguments[0]) for v in value] if isinstance(value, list) else None


def _map(value: Any, kind: ColumnType) -> list[tuple[str, Any]] | None:
    if not isinstance(value, dict):
        return None
    # DuckDB fails at a repeated key, as two with lone surrogates may be.
    return list({_string(k, kind): fitted(v, kind.arguments[1]) for k, v in value.items()}.items())


def _struct(value: Any, kind: ColumnType) -> dict[str, Any] | None:
    if not isinstance(value, dict):
        return None
    fields = zip(kind.field_names, kind.arguments, strict=True)
    return {name: fitted(value.get(name), of) for name, of in fields}


_FITS: Final[dict[str, Callable[[Any, ColumnType], Any]]] = {
    "string": _string,
    "boolean": _boolean,
    **dict.fromkeys(_BITS, _integer),
    "float": _floating,
    "double": _floating,
    "decimal": _decimal,
    "date": _date,
    "array": _array,
    "map": _map,
    "struct": _struct,
}
