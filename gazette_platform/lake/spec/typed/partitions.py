"""How a typed table is partitioned: Iceberg's transforms of its columns, as specs write them. Pure."""

from __future__ import annotations

import re
from typing import Final, final

import msgspec

from gazette_platform.errors import ValidationError
from gazette_platform.lake.spec.ownership import shown
from gazette_platform.lake.spec.typed.columns import TRANSFORMS

_NAME: Final = r"[A-Za-z_][A-Za-z0-9_]*"
_FORM: Final = re.compile(
    rf"\s*(?:(?P<transform>{_NAME})\s*\(\s*(?:(?P<argument>\d+)\s*,\s*)?(?P<of>{_NAME})\s*\)|(?P<bare>{_NAME}))\s*\Z"
)
# Of each transform that has a number, the largest one that makes sense.
_ARGUMENT_MAX: Final = {"bucket": 100_000, "truncate": 1_000_000}
_EXAMPLES: Final = "`day(departure)`, `bucket(16, origin)`, `truncate(4, zip)`, `carrier`"


@final
class PartitionTransform(msgspec.Struct, frozen=True):
    """One of the values that the rows of a data file have in common."""

    transform: str
    """Iceberg's name, without its number."""
    column: str
    argument: int = 0
    """Number of buckets, or width; else 0."""

    @property
    def text(self) -> str:
        """As specs have it."""
        if self.transform == "identity":
            return self.column
        argument = f"{self.argument}, " if self.argument else ""
        return f"{self.transform}({argument}{self.column})"

    @property
    def iceberg(self) -> str:
        """The transform as Iceberg's metadata have it."""
        return f"{self.transform}[{self.argument}]" if self.argument else self.transform

    @property
    def name(self) -> str:
        """Of the partition field, as Iceberg's clients choose it."""
        match self.transform:
            case "identity":
                return self.column
            case "bucket":
                return f"{self.column}_bucket_{self.argument}"
            case "truncate":
                return f"{self.column}_trunc_{self.argument}"
            case _:
                return f"{self.column}_{self.transform}"

    @property
    def is_time(self) -> bool:
        """Whether a column may have at most one of these."""
        return self.transform in ("year", "month", "day", "hour")


def parse_partition(text: str) -> PartitionTransform:
    """What an entry of `partitions` says.

    >>> parse_partition("bucket( 16, origin)").text
    'bucket(16, origin)'

    Raises: ValidationError: no such form or transform, or its number is missing, too much or out of range.
    """
    found = _FORM.match(text)
    if found is None:
        raise ValidationError(f"{shown(text)} is not a transform of a column: {_EXAMPLES}")
    if found["bare"]:
        return PartitionTransform("identity", found["bare"])
    transform, digits = found["transform"].lower(), found["argument"]
    if transform not in TRANSFORMS:
        hint = f" (`{transform[:-1]}`?)" if transform[:-1] in TRANSFORMS else ""
        raise ValidationError(
            f"{found['transform']} is none of Iceberg's transforms: {', '.join(TRANSFORMS)}{hint}"
        )
    largest = _ARGUMENT_MAX.get(transform)
    if largest is None:
        if digits is not None:
            raise ValidationError(f"{transform} has no number: `{transform}({found['of']})`")
        return PartitionTransform(transform, found["of"])
    if digits is None or len(digits) > len(str(largest)) or not 1 <= int(digits) <= largest:
        raise ValidationError(
            f"{transform} needs a number from 1 to {largest}: `{transform}(16, {found['of']})`"
        )
    return PartitionTransform(transform, found["of"], int(digits))
