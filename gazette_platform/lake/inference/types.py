"""The column type that holds all values of a profile, and what a person should know of the choice.

Nothing is lost: where values differ in kind, the type is string, which keeps any value as text. So data
that was seen fits the type that was inferred from it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from gazette_platform.lake.spec.profile import Profile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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
