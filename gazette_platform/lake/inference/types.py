"""The column type that holds all values of a profile, and what a person should know of the choice.

Nothing is lost: where values differ in kind, the type is string, which keeps any value as text. So data
that was seen fits the type that was inferred from it.

A section `typed:` out of samples of journals: where messages have their UUID, and which texts are times or UUIDs.

It is a proposal, as all that is inferred. Who wrote the records knows better what they are; the section says in
comments what it is taken from, and the same samples are parsed as the typed table would parse them, to report what it would quarantine.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, final

from gazette_platform.lake.spec.profile import Profile
from gazette_platform.lake.spec.rules import is_key
from gazette_platform.lake.spec.schema import ColumnType
from gazette_platform.lake.spec.typed.columns import has_times, text_of, typed_from_raw
from gazette_platform.lake.spec.typed.typed_columns import SYSTEM_COLUMNS
from gazette_platform.lake.typed.rows.parsing import BlockParser
from gazette_platform.ops.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gazette_platform.lake.spec.table_spec import TableSpec

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
        return InferredType("string").remark(f"mixed: {_told(profile)}; kept as text")
    return _OF_ONE_KIND[kinds.pop()](profile)


def _told(profile: Profile) -> str:
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
        return ColumnType(
            "json"
        ), f"not only texts ({others}): `json` keeps values as they are written, and takes longer"
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
