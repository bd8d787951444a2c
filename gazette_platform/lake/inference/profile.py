"""Profiles of JSON records: which values each place held, and the column type that holds them all.

A profile is a tree as deep as the values. It is bounded: places beyond `NODES_MAX`, or deeper than `DEPTH_MAX`, are counted
as nested and not looked into. `infer_type` loses nothing: where values differ in kind, the type is string, which keeps any
value as text, so records that were seen fit the type that was inferred from them.

DuckDB's sniffer of JSON is not used, because its types lose what was seen: it reads integers beyond 64 bits as doubles, takes
small negative ones for such, makes structs whose fields Trino cannot name or distinguish ("a b", "a" beside "A"), refuses a
file for one line that is not an object, and does not count how often which kind of value appeared, which the report shows.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

from gazette_platform.lake.spec.formats import is_date
from gazette_platform.message.uuid import Flags, parse_uuid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# OpenTelemetry's attributes lie this deep. A type has 16 levels at most.
DEPTH_MAX = 12
NODES_MAX = 20_000

_EXAMPLE_CHARACTERS_MAX = 40
_EXACT_IN_DOUBLE = 1 << 53
_TIME = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}")
_INSTANT = re.compile(
    r"\d{4}-\d{2}-\d{2}(?:[Tt ]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,6}0*(?P<excess>\d*))?)?(?P<zone>[Zz]|[+-]\d{2}(?::?\d{2})?)?)?\Z"
)
_UUID = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\Z")
# The version that producers of messages make, and the variant of it.
_TIMED_UUID = re.compile(r".{14}1.{4}[89abAB]")
_NUMERAL = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\Z")


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


_FIELD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_DECIMAL_DIGITS_MAX = 38
# Objects with more keys than this are more likely maps by an identifier, if their values are alike.
_LIKELY_FIELDS_MAX = 64
_FIELDS_MAX = 400
_KEY_SHOWN = 40
# A type's text has at most 32 KiB.
_TEXT_MAX = 16 << 10


@final
@dataclass(slots=True)
class InferredType:
    """A type as table specs write it, and remarks, each with the place below the column."""

    text: str
    remarks: list[tuple[str, str]] = field(default_factory=list)

    def remark(self, text: str) -> InferredType:
        """Add a remark on the place itself."""
        self.remarks.append(("", text))
        return self

    def take(self, place: str, other: InferredType) -> str:
        """Take over remarks on a place below. Returns: the type there."""
        self.remarks += [(place + at, text) for at, text in other.remarks]
        return other.text


def infer_type(profile: Profile) -> InferredType:
    """The narrowest type that every value of `profile` is of."""
    kinds = set(profile.kinds)
    if not kinds:
        return InferredType("string").remark("only null was seen, so it is a string")
    if kinds <= {"integer", "number"}:
        return _number(profile)
    if len(kinds) > 1:
        return InferredType("string").remark(f"mixed: {_counts(profile)}; kept as text")
    return _OF_ONE_KIND[kinds.pop()](profile)


def _counts(profile: Profile) -> str:
    return ", ".join(
        f"{count} {kind} (e.g. {profile.examples.get(kind, '…')})"
        for kind, count in profile.kinds.most_common()
    )


def _number(profile: Profile) -> InferredType:
    if "number" in profile.kinds:
        found = InferredType("double")
        if "integer" in profile.kinds and not profile.is_exact_in_double:
            found.remark("integers beyond 2^53 are rounded in a double")
        return found
    if profile.is_bigint:
        return InferredType("bigint")
    if profile.digits <= _DECIMAL_DIGITS_MAX:
        found = InferredType(f"decimal({_DECIMAL_DIGITS_MAX},0)")
    else:
        found = InferredType("string")
    low, high = profile.low, profile.high
    largest = str(max(low, high, key=abs))[:24]
    return found.remark(f"integers beyond 64 bits (as {largest}…), which no bigint holds")


def _text(profile: Profile) -> InferredType:
    count = profile.kinds["text"]
    if profile.dates == count:
        return InferredType("date")
    found = InferredType("string")
    if profile.times == count:
        found.remark("times, kept as text: cast them in SQL or in a typed table")
    elif profile.numerals == count:
        found.remark("numbers written as text, kept as text: cast them in SQL")
    elif profile.dates:
        other = f"{count - profile.dates} of {count} texts are not dates"
        found.remark(f"{other}, so it is a string")
    return found


def _array(profile: Profile) -> InferredType:
    found = InferredType("")
    element = infer_type(profile.elements or Profile())
    if profile.elements is None or not (profile.elements.seen or profile.elements.nulls):
        element = InferredType("string").remark("only empty arrays were seen")
    found.text = f"array<{found.take('[]', element)}>"
    return _short(found)


def _object(profile: Profile) -> InferredType:
    names = list(profile.fields)
    if not names:
        return InferredType("map<string,string>").remark("only empty objects were seen")
    why_no_struct = _why_no_struct(names)
    if why_no_struct or len(names) > _LIKELY_FIELDS_MAX:
        why = why_no_struct or f"it has {len(names)} keys"
        as_map = _map(profile)
        if as_map is not None:
            return as_map.remark(f"an object, kept as a map: {why}")
        if why_no_struct:
            return InferredType("string").remark(f"an object, kept as JSON text: {why}")
    if len(names) > _FIELDS_MAX:
        return InferredType("string").remark(
            f"an object, kept as JSON text: it has {len(names)} keys, and a struct at most {_FIELDS_MAX}"
        )
    found = InferredType("")
    fields = [
        f"{name}:{found.take(f'.{name}', infer_type(below))}"
        for name, below in profile.fields.items()
    ]
    found.text = f"struct<{','.join(fields)}>"
    return _short(found)


def _why_no_struct(names: Iterable[str]) -> str:
    """Return why keys cannot be fields of a struct, by the example of one; empty: they can be."""
    lower: dict[str, str] = {}
    for name in names:
        if not _FIELD_NAME.match(name):
            return f"the key {_quoted(name)} is not an SQL name (letters, digits and _)"
        former = lower.setdefault(name.lower(), name)
        if former != name:
            return f"the keys {_quoted(former)} and {_quoted(name)} differ in case only, which Trino ignores"
    return ""


def _quoted(key: str) -> str:
    return repr(key if len(key) <= _KEY_SHOWN else f"{key[:_KEY_SHOWN]}…")


def _map(profile: Profile) -> InferredType | None:
    """Return a map if values are of one simple kind; else None."""
    values = Profile()
    for below in profile.fields.values():
        values.absorb(below)
    kinds = set(values.kinds)
    is_alike = len(kinds) <= 1 or kinds == {"integer", "number"}
    if not is_alike or kinds & {"array", "object", "deep"}:
        return None
    found = InferredType("")
    found.text = f"map<string,{found.take('{}', infer_type(values))}>"
    return found


def _short(found: InferredType) -> InferredType:
    if len(found.text) <= _TEXT_MAX:
        return found
    return InferredType("string").remark("too many fields for a type: kept as JSON text")


def _deep(_: Profile) -> InferredType:
    return InferredType("string").remark("nested deeper than is looked at: kept as JSON text")


_OF_ONE_KIND: dict[str, Callable[[Profile], InferredType]] = {
    "boolean": lambda _: InferredType("boolean"),
    "text": _text,
    "array": _array,
    "object": _object,
    "deep": _deep,
}
