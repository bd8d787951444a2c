"""A section `typed:` out of samples of journals: where messages have their UUID, and which texts are times or UUIDs.

It is a proposal, as all that is inferred. Who wrote the records knows better what they are; the section says in
comments what it is taken from, and the same samples are parsed as the typed table would parse them, to report what it would quarantine.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple, final

from gazette_platform.lake.inference.profile import Profile
from gazette_platform.lake.spec.rules import is_key
from gazette_platform.lake.spec.typed.columns import SYSTEM_COLUMNS
from gazette_platform.lake.spec.types import ColumnType, has_times, text_of, typed_from_raw
from gazette_platform.lake.typed.rows.parsing import BlockParser
from gazette_platform.ops.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gazette_platform.lake.spec.table_spec import TableSpec

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
