"""Labels and label sets: how journals are described, and what the registers of a journal are.

A set is ordered by name and value, and unique. Its algebra goes by *name*: the list of all values
of a name is one thing, which is replaced, kept or dropped as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, Self

from typing_extensions import override

from gazette_platform.errors import ValidationError
from gazette_platform.protocol.field_context import check_field
from gazette_platform.protocol.names import validate_path_characters, validate_token
from gazette_platform.protocol.pb import protocol_pb2 as pb

__all__ = ["EMPTY_LABELS", "PREFIX_SUFFIX", "Label", "LabelSet"]

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
