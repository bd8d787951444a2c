"""What values of a place in JSON records were: counted record by record.

A profile is a tree as deep as the values. It is bounded: what goes beyond `NODES_MAX` places, or lies
deeper than `DEPTH_MAX`, is counted as nested and looked at no further.
"""

from __future__ import annotations

import codecs
import json
import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Any, final

import orjson

from gazette_platform.message.uuid import Flags, parse_uuid

if TYPE_CHECKING:
    from collections.abc import Iterable

# OpenTelemetry's attributes lie this deep. A type has 16 levels at most.
DEPTH_MAX = 12
NODES_MAX = 20_000

_EXAMPLE_CHARACTERS_MAX = 40
_EXACT_IN_DOUBLE = 1 << 53
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}\Z")
_TIME = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}")
_INSTANT = re.compile(
    r"\d{4}-\d{2}-\d{2}(?:[Tt ]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,6}0*(?P<excess>\d*))?)?(?P<zone>[Zz]|[+-]\d{2}(?::?\d{2})?)?)?\Z"
)
_UUID = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\Z")
# The version that producers of messages make, and the variant of it.
_TIMED_UUID = re.compile(r".{14}1.{4}[89abAB]")
_NUMERAL = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\Z")
# Only such a line can hold an integer beyond 64 bits, which orjson reads as a float.
_MANY_DIGITS = re.compile(rb"\d{19}")
_DIGITS_MAX = 60


@final
@dataclass(slots=True)
class Profile:
    """Values of one place: of a key, of the elements of arrays there, or of whole records."""

    nulls: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    """How often it was a boolean, integer, number (with a fraction or exponent), text, array or
    object; or deep: nested beyond what is looked at."""
    examples: dict[str, str] = field(default_factory=dict)
    """JSON of the first value of each kind, cut to fit a line."""
    low: int = 0
    high: int = 0
    """Of integers."""
    dates: int = 0
    """Texts that are dates, YYYY-MM-DD."""
    times: int = 0
    """Texts that begin with a date and a time."""
    instants: int = 0
    """Texts that are dates or times of ISO 8601, as typed tables take them."""
    zoned: int = 0
    """Of these, those with a zone."""
    excess: int = 0
    """Of these, those with digits other than zeros beyond microseconds."""
    uuids: int = 0
    """Texts that are UUIDs, as usually written."""
    message_uuids: int = 0
    """Of these, those that producers of messages may have made; see `gazette_platform.message.uuid`."""
    numerals: int = 0
    """Texts that are numbers."""
    elements: Profile | None = None
    """Of arrays."""
    fields: dict[str, Profile] = field(default_factory=dict)
    """Of objects, by key as written, in order of appearance."""

    @property
    def seen(self) -> int:
        """How many values there were, without nulls."""
        return self.kinds.total()

    @property
    def digits(self) -> int:
        """Digits of the longest integer."""
        return max(len(str(abs(self.low))), len(str(abs(self.high))))

    @property
    def is_bigint(self) -> bool:
        """Whether all integers have at most 64 bits."""
        return self.low >= -(1 << 63) and self.high < 1 << 63

    @property
    def is_exact_in_double(self) -> bool:
        """Whether a double holds every integer as it is."""
        return self.low >= -_EXACT_IN_DOUBLE and self.high <= _EXACT_IN_DOUBLE

    def absorb(self, other: Profile) -> None:
        """Count what `other` counted, too."""
        if other.kinds["integer"]:
            self._widen(other.low, other.high)
        self.nulls += other.nulls
        self.kinds += other.kinds
        self.examples = {**other.examples, **self.examples}
        self.dates += other.dates
        self.times += other.times
        self.instants += other.instants
        self.zoned += other.zoned
        self.excess += other.excess
        self.uuids += other.uuids
        self.message_uuids += other.message_uuids
        self.numerals += other.numerals
        if other.elements is not None:
            self.elements = self.elements or Profile()
            self.elements.absorb(other.elements)
        for key, below in other.fields.items():
            self.fields.setdefault(key, Profile()).absorb(below)

    def _widen(self, low: int, high: int) -> None:
        known = self.kinds["integer"] > 0
        self.low = min(self.low, low) if known else low
        self.high = max(self.high, high) if known else high

    def count_scalar(self, value: float | str) -> None:
        """Count a value that is neither nested nor null."""
        match value:
            case bool():
                self._count("boolean", value)
            case int():
                self._widen(value, value)
                self._count("integer", value)
            case float():
                self._count("number", value)
            case _:
                self._count_text(value)

    def _count_text(self, value: str) -> None:
        self._count("text", value)
        self.dates += is_date(value)
        self.times += _TIME.match(value) is not None
        self.numerals += _NUMERAL.match(value) is not None
        instant = _INSTANT.match(value)
        self.instants += instant is not None
        self.zoned += instant is not None and instant["zone"] is not None
        self.excess += instant is not None and bool(instant["excess"])
        if _UUID.match(value):
            self.uuids += 1
            self.message_uuids += _is_of_message(value)

    def count_nested(self, kind: str, value: object) -> None:
        """Count an array or object, or one too deep."""
        self._count(kind, value)

    def _count(self, kind: str, value: object) -> None:
        self.kinds[kind] += 1
        if kind not in self.examples:
            self.examples[kind] = _example(value)


def is_date(text: str) -> bool:
    """Whether all engines read the text as one date.

    >>> is_date("2026-02-28"), is_date("2026-02-30"), is_date("20260228")
    (True, False, False)
    """
    if not _DATE.match(text):
        return False
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def _is_of_message(uuid: str) -> bool:
    """Whether a producer of messages may have made it. One of a hundred others of that version looks so, too."""
    return _TIMED_UUID.match(uuid) is not None and parse_uuid(uuid).flags <= Flags.ACK_TXN


def _example(value: object) -> str:
    if isinstance(value, str):
        value = value[: 2 * _EXAMPLE_CHARACTERS_MAX]
    try:
        text = json.dumps(value, default=str)
    except RecursionError:
        text = "…"
    text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    over = len(text) > _EXAMPLE_CHARACTERS_MAX
    return text[:_EXAMPLE_CHARACTERS_MAX] + ("…" if over else "")


@final
class Profiler:
    """Counts records into a profile of all; `records.fields` are those of the keys."""

    def __init__(self) -> None:
        self.records = Profile()
        self._nodes = 0
        self.is_cut = False
        """Whether some places were left out, for there were too many."""

    def add(self, record: dict[str, Any]) -> None:
        """Count one record."""
        self._add(self.records, record, 0)

    def _add(self, place: Profile, value: Any, depth: int) -> None:
        if value is None:
            place.nulls += 1
        elif isinstance(value, list | dict) and depth > DEPTH_MAX:
            place.count_nested("deep", "…")
        elif isinstance(value, list):
            place.count_nested("array", value[:3])
            if place.elements is None:
                place.elements = self._node()
            if place.elements is not None:
                for element in value:
                    self._add(place.elements, element, depth + 1)
        elif isinstance(value, dict):
            place.count_nested("object", dict(list(value.items())[:3]))
            for key, below in value.items():
                found = place.fields.get(key)
                if found is None:
                    found = self._node()
                    if found is None:
                        continue
                    place.fields[key] = found
                self._add(found, below, depth + 1)
        else:
            place.count_scalar(value)

    def _node(self) -> Profile | None:
        if self._nodes >= NODES_MAX:
            self.is_cut = True
            return None
        self._nodes += 1
        return Profile()


def decoded(lines: Iterable[bytes]) -> tuple[list[dict[str, Any]], list[bytes]]:
    """The records of JSON lines, and the lines that are not JSON objects. Blank lines are neither.

    A byte order mark before a record is passed over, as Spark does, and Trino at the begin of a file.
    """
    records: list[dict[str, Any]] = []
    others: list[bytes] = []
    for whole in lines:
        line = whole.removeprefix(codecs.BOM_UTF8)
        if not line.strip():
            continue
        try:
            record = orjson.loads(line)
            if _MANY_DIGITS.search(line):
                record = _with_long_integers(line, record)
        except orjson.JSONDecodeError:
            record = None
        if isinstance(record, dict):
            records.append(record)
        else:
            others.append(whole)
    return records, others


def _with_long_integers(line: bytes, record: Any) -> Any:
    try:
        return json.loads(line, parse_int=_integer)
    except (RecursionError, ValueError):
        return record  # nested too deep for the slower parser, or not what it takes for JSON


def _integer(text: str) -> int:
    """The integer; one of many digits is cut to some that no type holds either."""
    return int(text) if len(text) <= _DIGITS_MAX else int(text[:_DIGITS_MAX])
