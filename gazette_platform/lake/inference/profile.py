"""Profiles of JSON records: which values each place held, and the types of raw and typed columns that follow.

A profile is a tree as deep as the values. It is bounded: places beyond `NODES_MAX`, or deeper than `DEPTH_MAX`, are counted
as nested and not looked into. `infer_type` loses nothing: where values differ in kind, the type is string, which keeps any
value as text, so records that were seen fit the type that was inferred from them.

`propose_typed` proposes a section `typed:`, which says in comments what it is taken from, since who wrote the records knows
better what they are. The samples are then parsed as the typed table would parse them, to report what it would quarantine.

DuckDB's sniffer of JSON is not used, because its types lose what was seen: it reads integers beyond 64 bits as doubles, takes
small negative ones for such, makes structs whose fields Trino cannot name or distinguish ("a b", "a" beside "A"), refuses a
file for one line that is not an object, and does not count how often which kind of value appeared, which the report shows.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from gazette_platform.lake.spec.formats import is_date
from gazette_platform.lake.spec.rules import is_key
from gazette_platform.lake.spec.typed.columns import SYSTEM_COLUMNS
from gazette_platform.lake.spec.types import ColumnType, has_times, text_of, typed_from_raw
from gazette_platform.message.uuid import Flags, parse_uuid
from gazette_platform.ops.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gazette_platform.lake.spec.table_spec import TableSpec

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


_USUAL: Final = ("_meta", "uuid")
_DEPTH_MAX: Final = 8
_REASONS_SHOWN: Final = 3
_SYSTEM: Final = frozenset(column.name for column in SYSTEM_COLUMNS)
_TIMES: Final = ("timestamptz", "timestamp", "date")


@final
class ProposedColumn(NamedTuple):
    """An entry of `columns`."""

    name: str
    key: str
    """The key that records have, if another name is given to it; else empty."""
    type: str
    """Empty: that of the raw column."""
    truncate: bool
    why: str


@final
class Proposal(NamedTuple):
    """What a section may say."""

    uuid: str
    """A path, or `none`."""
    why_uuid: str
    columns: tuple[ProposedColumn, ...]
    time: str
    """A column by whose days the table may be parted; empty: none."""


@final
class _Candidate(NamedTuple):
    """A place at which records have what looks like UUIDs of messages."""

    path: tuple[str, ...]
    seen: int


def propose_typed(raw: TableSpec, records: Profile) -> Proposal:
    """What the section of a raw table's spec may say.

    Args:
        raw: the table, of JSON records.
        records: what they hold.
    """
    total = records.kinds["object"]
    uuid = max(
        (c for c in _candidates(records, ()) if _is_readable(raw, c.path)),
        key=lambda c: (c.seen, c.path == _USUAL, -len(c.path)),
        default=None,
    )
    taken = {column.name.lower() for column in raw.columns} | _SYSTEM
    columns: list[ProposedColumn] = []
    times: list[str] = []
    for column in raw.columns:
        name, given = column.name, typed_from_raw(column.parsed)
        profile = records.fields.get(column.key) or Profile()
        kind, why = _typed_of(column.parsed, profile)
        truncates = has_times(kind) and _has_excess(profile)
        if truncates:
            why = f"{why}; digits beyond microseconds are cut off"
        if name.lower() in _SYSTEM:
            name = _free(name.strip("_"), taken)
            why = why or f"each row of a typed table has a {column.name} of its own"
        if kind.name in _TIMES:
            times.append(name)
        if name != column.name or text_of(kind) != text_of(given):
            text = text_of(kind) if text_of(kind) != text_of(given) else ""
            key = column.key if name != column.name else ""
            columns.append(ProposedColumn(name, key, text, truncates, why))
    return Proposal(
        uuid=".".join(uuid.path) if uuid is not None else "none",
        why_uuid=_why_uuid(uuid, total),
        columns=tuple(columns),
        time=next(iter(times), ""),
    )


def set_aside_of(raw: TableSpec, lines: Sequence[bytes]) -> str:
    """What of the lines would be no row of the spec's typed table, in words; empty: all would."""
    if raw.typed is None:
        return ""
    from gazette_platform.lake.typed.rows.parsing import BlockParser  # noqa: PLC0415  slow to import

    bad = BlockParser(raw.typed).parse(0, b"".join(line + b"\n" for line in lines)).bad
    if not bad:
        return ""
    reasons = Counter(record.reason for record in bad).most_common(_REASONS_SHOWN)
    told = "; ".join(f"{reason} ({count})" for reason, count in reasons)
    return f"{len(bad)} of {counted(len(lines), 'record')} would go to quarantine, no rows of {raw.typed.name}: {told}"


def _why_uuid(found: _Candidate | None, total: int) -> str:
    if found is None:
        return "records have no message UUID, so a record that is appended twice becomes two rows"
    return f"{found.seen} of {counted(total, 'record')} have a message's UUID there"


def _candidates(place: Profile, path: tuple[str, ...]) -> Iterator[_Candidate]:
    """Places below objects at which all values look like UUIDs of messages."""
    if place.message_uuids and place.message_uuids == place.seen:
        yield _Candidate(path, place.message_uuids)
    if len(path) < _DEPTH_MAX:
        for key, below in place.fields.items():
            if is_key(key) and "." not in key:
                yield from _candidates(below, (*path, key))


def _is_readable(raw: TableSpec, path: Sequence[str]) -> bool:
    """Whether no column of the table stands where the path leads to."""
    column = next((c for c in raw.columns if c.key == path[0]), None)
    kind = column.parsed if column is not None else None
    for key in path[1:]:
        if kind is None:
            return True
        if kind.name != "struct":
            return False
        kind = dict(zip(kind.field_names, kind.arguments, strict=True)).get(key)
    return kind is None or kind.name == "string"


def _typed_of(raw: ColumnType, profile: Profile) -> tuple[ColumnType, str]:
    """The type in the typed table of what is a `raw` in the raw one, and why, if it is another."""
    match raw.name:
        case "array":
            below = [profile.elements or Profile()]
        case "map":
            values = Profile()
            for each in profile.fields.values():
                values.absorb(each)
            below = [Profile(), values]
        case "struct":
            below = [profile.fields.get(name, Profile()) for name in raw.field_names]
        case "string":
            return _of_string(profile)
        case _:
            return typed_from_raw(raw), ""
    parts = [_typed_of(part, of) for part, of in zip(raw.arguments, below, strict=True)]
    kind = ColumnType(raw.name, tuple(kind for kind, _ in parts), raw.field_names)
    return kind, "; ".join(dict.fromkeys(why for _, why in parts if why))


def _has_excess(profile: Profile) -> bool:
    """Whether a time has digits beyond microseconds, at any depth."""
    below = [*profile.fields.values(), *([profile.elements] if profile.elements else [])]
    return profile.excess > 0 or any(map(_has_excess, below))


def _of_string(profile: Profile) -> tuple[ColumnType, str]:
    kinds = set(profile.kinds)
    count = profile.kinds["text"]
    if kinds - {"text"}:
        others = ", ".join(f"{profile.kinds[kind]} {kind}" for kind in sorted(kinds - {"text"}))
        why = (
            f"not only texts ({others}): `json` keeps values as they are written, and takes longer"
        )
        if "text" in kinds and kinds <= {"text", "integer", "number"}:
            why += "; if all texts are numbers in quotes, `decimal(p,s)` reads both"
        return ColumnType("json"), why
    if count and profile.instants == count:
        if profile.zoned == count:
            return ColumnType("timestamptz"), "times with a zone"
        if profile.zoned:
            naive = count - profile.zoned
            return ColumnType(
                "timestamptz"
            ), f"times, {naive} of {count} without a zone: taken as UTC"
        return (
            ColumnType("timestamp"),
            "times without a zone: if they are UTC, `timestamptz` says so",
        )
    if count and profile.uuids == count and profile.message_uuids < count:
        return ColumnType("uuid"), "UUIDs"
    return ColumnType("string"), ""


def _free(name: str, taken: set[str]) -> str:
    number = 2
    found = name
    while found.lower() in taken:
        found = f"{name}_{number}"
        number += 1
    taken.add(found.lower())
    return found
