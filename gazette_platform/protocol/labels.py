"""Labels describe journals and hold their registers; selectors match them.

A label set is ordered by name and value, and unique. Its algebra goes by *name*: the list of all values of a name is
one thing, which is replaced, kept or dropped as a whole.

The text of a selector is a comma-separated list of terms: ``a = b``, ``a != b``, ``a in (x, y)``, ``a not in (x)``, ``a``
(exists), ``!a`` (is absent). A name followed by ``:prefix`` is matched by prefix of its value.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple, Self, final

from typing_extensions import override

from gazette_platform.errors import ValidationError
from gazette_platform.protocol.names import check_field, validate_path_characters, validate_token
from gazette_platform.protocol.pb import protocol_pb2 as pb

# Marks, in text only, the name of a label which is matched by prefix.
PREFIX_SUFFIX = ":prefix"

_NAME_LENGTH_MIN = 2
_NAME_LENGTH_MAX = 64
_VALUE_LENGTH_MAX = 1024


class Label(NamedTuple):
    """A name and a value. `prefix` is meaningful within a selector only."""

    name: str
    value: str = ""
    prefix: bool = False

    def to_pb(self) -> pb.Label:
        """The label as a message."""
        return pb.Label(name=self.name, value=self.value, prefix=self.prefix)

    @classmethod
    def from_pb(cls, message: pb.Label) -> Self:
        """The label of a message, not validated."""
        return cls(message.name, message.value, message.prefix)

    def validate(self, *, prefix: bool = False) -> None:
        """Check alphabets and lengths.

        Args:
            prefix: whether `Label.prefix` may be set.

        Raises: ValidationError.
        """
        check_field("Name", validate_token, self.name, _NAME_LENGTH_MIN, _NAME_LENGTH_MAX)
        check_field("Value", validate_path_characters, self.value, 0, _VALUE_LENGTH_MAX)
        if self.prefix and not prefix:
            raise ValidationError(f"prefix is only allowed within a LabelSelector ({self.name})")


def _name_of(label: Label) -> str:
    return label.name


@dataclass(frozen=True, slots=True)
class LabelSet:
    """Labels, ascending by (name, value) and unique. Construct from unordered ones by `of`."""

    labels: tuple[Label, ...] = ()

    @classmethod
    def of(cls, *pairs: tuple[str, str] | Mapping[str, str], **named: str) -> Self:
        """A set of pairs of name and value, in any order, repetitions dropped.

        >>> LabelSet.of(("bb", "2"), aa="1").values_of("bb")
        ('2',)
        """
        labels = {Label(name, value) for name, value in named.items()}
        for pair in pairs:
            if isinstance(pair, Mapping):
                labels.update(Label(name, value) for name, value in pair.items())
            else:
                labels.add(Label(*pair))
        return cls(tuple(sorted(labels)))

    def __iter__(self) -> Iterator[Label]:
        return iter(self.labels)

    def __len__(self) -> int:
        return len(self.labels)

    def __bool__(self) -> bool:
        return bool(self.labels)

    def pairs(self) -> list[list[str]]:
        """Each name and value, as JSON has them.

        >>> LabelSet.of(aa="1", bb="2").pairs()
        [['aa', '1'], ['bb', '2']]
        """
        return [[label.name, label.value] for label in self.labels]

    def names(self) -> tuple[str, ...]:
        """The distinct names, in order."""
        return tuple(dict.fromkeys(label.name for label in self.labels))

    def values_of(self, name: str) -> tuple[str, ...]:
        """The values of `name`, in order; empty if the set has no such label."""
        return tuple(label.value for label in self.labels if label.name == name)

    def value_of(self, name: str) -> str:
        """The first value of `name`, or "" if there is none."""
        for label in self.labels:
            if label.name == name:
                return label.value
        return ""

    def with_value(self, name: str, value: str) -> LabelSet:
        """The set with `value` as the only value of `name`."""
        return self.without(name).with_added(name, value)

    def with_added(self, name: str, value: str, *, prefix: bool = False) -> LabelSet:
        """The set with `value` among the values of `name`.

        A value that is given both by prefix and exactly is kept by prefix, which implies the other.
        """
        merged = {(label.name, label.value): label.prefix for label in self.labels}
        merged[name, value] = merged.get((name, value), False) or prefix
        return LabelSet(tuple(sorted(Label(*key, flag) for key, flag in merged.items())))

    def without(self, name: str) -> LabelSet:
        """The set without any label of `name`."""
        return LabelSet(tuple(label for label in self.labels if label.name != name))

    def by_name(self) -> dict[str, tuple[Label, ...]]:
        """The labels of each name, names in order."""
        return {name: tuple(group) for name, group in groupby(self.labels, _name_of)}

    def union(self, other: LabelSet) -> LabelSet:
        """All names of both; of shared names, the values of `other`."""
        return _of_names(self.by_name() | other.by_name())

    def intersect(self, other: LabelSet) -> LabelSet:
        """The names whose lists of values are the same in both."""
        theirs = other.by_name()
        return _of_names({n: own for n, own in self.by_name().items() if theirs.get(n) == own})

    def subtract(self, other: LabelSet) -> LabelSet:
        """This set without the names whose lists of values are the same in `other`."""
        theirs = other.by_name()
        return _of_names({n: own for n, own in self.by_name().items() if theirs.get(n) != own})

    def to_pb(self) -> pb.LabelSet:
        """The set as a message."""
        return pb.LabelSet(labels=[label.to_pb() for label in self.labels])

    def into_pb(self, message: pb.LabelSet) -> None:
        """Fill an empty message, and mark it as present even if this set is empty."""
        for label in self.labels:
            message.labels.add(name=label.name, value=label.value, prefix=label.prefix)
        message.SetInParent()

    @classmethod
    def from_pb(cls, message: pb.LabelSet) -> LabelSet:
        """The set of a message, in its order, not validated."""
        if not message.labels:
            return EMPTY_LABELS
        return cls(tuple([Label(m.name, m.value, m.prefix) for m in message.labels]))

    def validate(self, *, prefix: bool = False) -> None:
        """Check every label and their order.

        Args:
            prefix: whether labels may match by prefix.

        Raises: ValidationError.
        """
        previous: Label | None = None
        for index, label in enumerate(self.labels):
            check_field(f"Labels[{index}]", label.validate, prefix=prefix)
            if previous is not None:
                _validate_order(index, previous, label)
            previous = label

    @override
    def __str__(self) -> str:
        return ",".join(f"{label.name}={label.value}" for label in self.labels)


EMPTY_LABELS = LabelSet()


def _of_names(groups: Mapping[str, Iterable[Label]]) -> LabelSet:
    return LabelSet(tuple(label for name in sorted(groups) for label in groups[name]))


def _validate_order(index: int, previous: Label, label: Label) -> None:
    if label.name < previous.name:
        raise ValidationError(
            "Labels not in unique, sorted order "
            f"(index {index}; label Name {label.name} <= {previous.name})"
        )
    if label.name > previous.name:
        return
    if label.value <= previous.value:
        raise ValidationError(
            "Labels not in unique, sorted order "
            f"(index {index}; label {label.name} Value {label.value} <= {previous.value})"
        )
    if not previous.value:
        raise ValidationError(
            "label has empty & non-empty values "
            f"(index {index}; label {label.name} value {label.value})"
        )


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

# Those of claims, which are matched at every call.
_CACHED_LABELS_MAX = 64

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
        sets: dict[bool, dict[tuple[str, str], bool]] = {False: {}, True: {}}
        rest = text
        while rest:
            pattern, match, excludes = _next_term(rest)
            for name, value, prefix in _labels_of_term(pattern, match, rest):
                # A value that is given by prefix implies the same one exactly.
                sets[excludes][name, value] = sets[excludes].get((name, value), False) or prefix
            rest = rest[match.end() :]
        include, exclude = (
            LabelSet(tuple(sorted(Label(*key, prefix) for key, prefix in found.items())))
            for found in sets.values()
        )
        selector = cls(include, exclude)
        selector.validate()
        return selector

    def matches(self, label_set: LabelSet) -> bool:
        """Whether `label_set` is selected. To ask of many sets, use the one of `compiled`."""
        is_small = len(self.include) + len(self.exclude) <= _CACHED_LABELS_MAX
        return (_compiled(self) if is_small else self.compiled()).matches(label_set)

    def compiled(self) -> SelectorMatcher:
        """A form that selects the same, in a time that hardly grows with the number of labels."""
        return SelectorMatcher(_by_name(self.include), _by_name(self.exclude))

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


@lru_cache(256)
def _compiled(selector: LabelSelector) -> SelectorMatcher:
    return selector.compiled()


@final
class SelectorMatcher:
    """A selector that was made ready to be matched against many label sets."""

    def __init__(self, include: Mapping[str, _Values], exclude: Mapping[str, _Values]) -> None:
        self._include = include
        self._exclude = exclude

    def matches(self, labels: Iterable[Label]) -> bool:
        """Whether a set of labels, in any order, is selected."""
        found: set[str] = set()
        for name, value, _ in labels:
            excluded = self._exclude.get(name)
            if excluded is not None and excluded.has(value):
                return False
            included = self._include.get(name)
            if included is not None and name not in found and included.has(value):
                found.add(name)
        return len(found) == len(self._include)


class _Values:
    """The values that a selector has for one name. An empty one stands for any value."""

    __slots__ = ("_exact", "_is_any", "_prefixes")

    def __init__(self, labels: Iterable[Label]) -> None:
        self._exact = {label.value for label in labels}
        self._is_any = "" in self._exact
        # In order, without those that others imply. Then nothing sorts between a prefix and what
        # it is a prefix of, so that only the last one up to a value can be its prefix.
        self._prefixes: list[str] = []
        for prefix in sorted(label.value for label in labels if label.prefix):
            if not self._prefixes or not prefix.startswith(self._prefixes[-1]):
                self._prefixes.append(prefix)

    def has(self, value: str) -> bool:
        if self._is_any or value in self._exact:
            return True
        index = bisect_right(self._prefixes, value)
        return index > 0 and value.startswith(self._prefixes[index - 1])


def _by_name(labels: LabelSet) -> dict[str, _Values]:
    return {name: _Values(group) for name, group in labels.by_name().items()}


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


def _terms_of(labels: LabelSet, *, excludes: bool) -> list[str]:
    values: dict[str, list[str]] = {}
    for label in labels:
        values.setdefault(label.name + (PREFIX_SUFFIX if label.prefix else ""), []).append(
            label.value
        )
    terms = []
    for name, group in sorted(values.items()):
        # `name==x` would be read as `name` being `x`.
        is_ambiguous = group[0].startswith("=") and not excludes
        if len(group) > 1 or is_ambiguous:
            terms.append(f"{name} {'notin' if excludes else 'in'} ({','.join(group)})")
        elif group[0]:
            terms.append(f"{name}{'!=' if excludes else '='}{group[0]}")
        else:
            terms.append(f"!{name}" if excludes else name)
    return terms
