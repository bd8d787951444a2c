"""Records that do not fit their table's spec: how many of them stop rollups, and what accounts note of them.

Pure. The counts stand in the accounts of Hive partitions; `verdict` compares them with the spec's threshold, and
`gazette_platform.lake.raw.audits.unfit_finding` says what that means to all who show it.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Literal, final

import msgspec
from typing_extensions import override

from gazette_platform.errors import ValidationError

Verdict = Literal["ok", "warn", "blocked"]

NEVER: Final = "never"
"""The threshold that no number of records exceeds."""

_DEFAULT: Final = "1%"
_COUNT_MAX: Final = 10**15
_DIGITS_MAX: Final = 20
UNFIT_EXAMPLE: Final = (
    "how many unfit records stop rollups: `{block: 1%}` for a share of a Hive partition's records, "
    "`{block: 100}` for a count, or `{block: never}`"
)


class UnfitSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `unfit:` of a table spec."""

    block: str | int = _DEFAULT
    """How many unfit records of a Hive partition do not stop rollups yet."""

    @property
    def threshold(self) -> Threshold:
        """The parsed threshold. Raises: ValidationError: it has none of the forms."""
        return Threshold.parse(self.block)


@final
@dataclass(frozen=True, slots=True)
class Threshold:
    """How many unfit records a Hive partition may hold: a share, a count, or any number if neither is given."""

    percent: Decimal | None = None
    count: int | None = None

    @classmethod
    def parse(cls, block: str | int) -> Threshold:
        """The threshold that a spec writes.

        >>> Threshold.parse("0.5%"), Threshold.parse(100).count, Threshold.parse("never")
        (Threshold(percent=Decimal('0.5'), count=None), 100, Threshold(percent=None, count=None))

        Raises: ValidationError: it is none.
        """
        text = str(block).strip()
        if text == NEVER:
            return cls()
        digits = text.removesuffix("%").rstrip()
        is_share = digits != text
        # Nothing else that Python takes for a number, such as `1e9`, `1_0` or `Infinity`.
        is_number = digits.isascii() and digits.replace(".", "", is_share).isdigit()
        is_number = is_number and len(digits) <= _DIGITS_MAX
        if is_number and is_share and Decimal(digits) <= 100:
            return cls(percent=Decimal(digits))
        if is_number and not is_share and int(digits) <= _COUNT_MAX:
            return cls(count=int(digits))
        raise ValidationError(f"{text[:40]!r} is not {UNFIT_EXAMPLE}", path="unfit.block")

    def allows(self, unfit: int, rows: int) -> bool:
        """Whether so many unfit ones of `rows` records stop nothing."""
        if self.percent is not None:
            return unfit * 100 <= self.percent * rows
        return self.count is None or unfit <= self.count

    @property
    def is_never(self) -> bool:
        """Whether nothing stops rollups."""
        return self.percent is None and self.count is None

    @override
    def __str__(self) -> str:
        if self.percent is not None:
            return f"{self.percent:f} %"
        return "any number" if self.count is None else f"{self.count:,}"


def verdict(threshold: Threshold, unfit: int, rows: int) -> Verdict:
    """What unfit records of a Hive partition mean for rollups.

    >>> one_percent = Threshold.parse("1%")
    >>> verdict(one_percent, 0, 100), verdict(one_percent, 1, 100), verdict(one_percent, 2, 100)
    ('ok', 'warn', 'blocked')

    Args:
        threshold: of the table's spec.
        unfit: how many of its records do not fit.
        rows: how many records it has, as far as they are counted.
    """
    if not unfit:
        return "ok"
    if threshold.is_never or threshold.allows(unfit, max(rows, unfit)):
        return "warn"
    return "blocked"


@final
@dataclass(frozen=True, slots=True)
class UnfitFragment:
    """A fragment with records that do not fit, as the accounts of its Hive partition note it."""

    begin: int
    end: int
    records: int
    """How many do not fit."""
    since: int = 0
    """Unix seconds when the fragment was stored; 0: not known."""
    what: str = ""
    """What does not fit, with examples; empty if enough others of the Hive partition have that."""
    mark: str = ""
    """Of the spec and the file that this was found of."""
