"""Label selectors: their text, their canonical form, and what they match.

Text is a comma-separated list of terms: ``a = b``, ``a != b``, ``a in (x, y)``, ``a not in (x)``,
``a`` (exists), ``!a`` (is absent). A name followed by ``:prefix`` is matched by prefix of its value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from typing_extensions import override

from gazette_platform.errors import ValidationError
from gazette_platform.protocol.field_context import check_field
from gazette_platform.protocol.labels import EMPTY_LABELS, PREFIX_SUFFIX, Label, LabelSet
from gazette_platform.protocol.pb import protocol_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["LabelSelector"]

_NAME = r"([\w\-+/.]{2,}(?::prefix)?)"
_VALUE = r"([\w\-+/.=%]*)"
_END = r"\s?(?:,|\Z)"

_EQUAL = re.compile(rf"\s?{_NAME}\s?==?\s?{_VALUE}{_END}")
_NOT_EQUAL = re.compile(rf"\s?{_NAME}\s?!=\s?{_VALUE}{_END}")
_IN = re.compile(rf"\s?{_NAME}\s?in\s?\(([^)]+)\){_END}")
_NOT_IN = re.compile(rf"\s?{_NAME}\s?not\s?in\s?\(([^)]+)\){_END}")
_EXISTS = re.compile(rf"\s?{_NAME}{_END}")
_ABSENT = re.compile(rf"\s?!\s?{_NAME}{_END}")
_SET_PART = re.compile(rf"\s?{_VALUE}{_END}")

# In the order in which they are tried; the flag says whether the term excludes.
_TERMS = (
    (_EQUAL, False),
    (_NOT_EQUAL, True),
    (_IN, False),
    (_NOT_IN, True),
    (_EXISTS, False),
    (_ABSENT, True),
)


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """Selects label sets: every name of `include` must match, nothing of `exclude` may."""

    include: LabelSet = EMPTY_LABELS
    exclude: LabelSet = EMPTY_LABELS

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse and validate the text of a selector; an empty one selects everything.

        Raises: ValidationError: names the part that could not be read.

        >>> str(LabelSelector.parse("zone in (b, a), !old"))
        'zone in (a,b),!old'
        """
        sets = {False: EMPTY_LABELS, True: EMPTY_LABELS}
        rest = text
        while rest:
            pattern, match, excludes = _next_term(rest)
            for name, value, prefix in _labels_of_term(pattern, match, rest):
                sets[excludes] = sets[excludes].with_added(name, value, prefix=prefix)
            rest = rest[match.end() :]
        selector = cls(include=sets[False], exclude=sets[True])
        selector.validate()
        return selector

    def matches(self, label_set: LabelSet) -> bool:
        """Whether `label_set` is selected."""
        if any(_matches_any((label,), label_set) for label in self.exclude):
            return False
        return all(_matches_any(group, label_set) for group in self.include.by_name().values())

    def to_pb(self) -> pb.LabelSelector:
        """The selector as a message, with both sets present as Gazette writes them."""
        message = pb.LabelSelector()
        self.into_pb(message)
        return message

    def into_pb(self, message: pb.LabelSelector) -> None:
        """Fill an empty message, with both sets present."""
        self.include.into_pb(message.include)
        self.exclude.into_pb(message.exclude)

    @classmethod
    def from_pb(cls, message: pb.LabelSelector) -> Self:
        """The selector of a message, not validated."""
        return cls(LabelSet.from_pb(message.include), LabelSet.from_pb(message.exclude))

    def validate(self) -> None:
        """Check both sets; labels may match by prefix.

        Raises: ValidationError.
        """
        check_field("Include", self.include.validate, prefix=True)
        check_field("Exclude", self.exclude.validate, prefix=True)

    @override
    def __str__(self) -> str:
        """The canonical text, which parses to an equal selector."""
        terms = [*_terms_of(self.include, excludes=False), *_terms_of(self.exclude, excludes=True)]
        return ",".join(terms)


def _next_term(rest: str) -> tuple[re.Pattern[str], re.Match[str], bool]:
    for pattern, excludes in _TERMS:
        match = pattern.match(rest)
        if match is not None:
            return pattern, match, excludes
    raise ValidationError(f'could not match "{rest}" to a label selector expression')


def _labels_of_term(pattern: re.Pattern[str], match: re.Match[str], rest: str) -> Iterator[Label]:
    name = match[1]
    prefix = name.endswith(PREFIX_SUFFIX)
    name = name.removesuffix(PREFIX_SUFFIX)
    if pattern in (_EXISTS, _ABSENT):
        yield Label(name, "", prefix)
    elif pattern in (_EQUAL, _NOT_EQUAL):
        yield Label(name, match[2], prefix)
    else:
        part = match[2]
        while part:
            value = _SET_PART.match(part)
            if value is None:
                raise ValidationError(
                    f'parsing "{rest}": could not match "{part}" to a label selector set expression'
                )
            yield Label(name, value[1], prefix)
            part = part[value.end() :]


def _matches_any(wanted: Iterable[Label], label_set: LabelSet) -> bool:
    """Whether one label of the set matches one of `wanted`. An empty value wants any value."""
    for want in wanted:
        for label in label_set.labels:
            if label.name == want.name and (
                not want.value
                or label.value == want.value
                or (want.prefix and label.value.startswith(want.value))
            ):
                return True
    return False


def _terms_of(labels: LabelSet, *, excludes: bool) -> list[str]:
    values: dict[str, list[str]] = {}
    for label in labels:
        values.setdefault(label.name + (PREFIX_SUFFIX if label.prefix else ""), []).append(
            label.value
        )
    terms = []
    for name, group in sorted(values.items()):
        if len(group) > 1:
            terms.append(f"{name} {'notin' if excludes else 'in'} ({','.join(group)})")
        elif group[0]:
            terms.append(f"{name}{'!=' if excludes else '='}{group[0]}")
        else:
            terms.append(f"!{name}" if excludes else name)
    return terms
