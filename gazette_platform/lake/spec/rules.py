"""Rules that specs of raw tables, of rollups and of typed tables share: names, times, sizes, owners and tags.

Also how many errors are reported of one spec. A rule yields errors with the path of their key; it never raises the first.

And the rule of records that do not fit: how many of them stop rollups. Their counts stand in the accounts of Hive
partitions; `verdict` compares them with the spec's threshold, and `gazette_platform.lake.raw.audits.fit` says what
that means to all who show it. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from typing import TYPE_CHECKING, Final, Literal, final

import msgspec
from typing_extensions import override

from gazette_platform.errors import ValidationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence


TABLE_CHARACTERS_MAX: Final = 127
"""Of each part of a table's name."""

COLUMNS_MAX: Final = 2000
"""Of a table."""

SPEC_BYTES_MAX: Final = 1 << 20
"""Of a table's spec, and of a file that it names."""

EXACT_SUFFIX: Final = "_exact"
"""Behind a raw table's name: the view of it in which no row is twice."""

LINES_SUFFIX: Final = "_lines"
"""Behind the name of a raw table of CSV with headers: the table of all lines, which its views leave headers out of."""

QUARANTINE_SUFFIX: Final = "_quarantine"
"""Behind a typed table's name: the table of records that are not rows of it."""

KEY_CHARACTERS_MAX: Final = 256
"""Of a key of records."""

DURATION_EXAMPLE: Final = "a duration with its unit, such as `90m` or `24h`"

ERRORS_MAX: Final = 100
"""Most errors that are reported of one spec."""

# Of a file in the same folder: no path, and none that is hidden.
_JSON_FILE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}\.json\Z")
_COLUMN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,126}\Z")
_NAME: Final = re.compile(r"[a-z_][a-z0-9_]*\Z")
# Of each field of a cron line: the least and the greatest number.
_CRON_FIELDS = (
    ("minute", 0, 59),
    ("hour", 0, 23),
    ("day", 1, 31),
    ("month", 1, 12),
    ("weekday", 0, 7),
)
_CRON_CHARACTERS_MAX = 200
# Of the months, in a leap year.
_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_CRON_ITEM = re.compile(r"(?:\*|(\d{1,2})(?:-(\d{1,2}))?)(?:/(\d{1,2}))?\Z")
# Dagster looks once a minute or so.
_FRESH_MIN_S: Final = 120


def is_sql_name(text: str, characters_max: int = TABLE_CHARACTERS_MAX) -> bool:
    """Whether the text can be a name in lower case, such as that of a schema.

    >>> is_sql_name("by_day"), is_sql_name("By day"), is_sql_name("by_day", 3)
    (True, False, False)
    """
    return len(text) <= characters_max and _NAME.match(text) is not None


def is_table_name(text: str, characters_max: int = TABLE_CHARACTERS_MAX) -> bool:
    """Whether the text can be the name of a table, its schema before it.

    >>> is_table_name("shop.orders"), is_table_name("orders"), is_table_name("a.b.c")
    (True, False, False)
    """
    parts = text.split(".")
    return len(parts) == 2 and all(is_sql_name(part, characters_max) for part in parts)


def is_column_name(text: str) -> bool:
    """Whether the text can be the name of a column."""
    return _COLUMN_NAME.match(text) is not None


def is_json_file_name(text: str) -> bool:
    """Whether the text can be the name of a file of JSON beside a spec.

    >>> (
    ...     is_json_file_name("orders.json"),
    ...     is_json_file_name("../orders.json"),
    ...     is_json_file_name(".json"),
    ... )
    (True, False, False)
    """
    return _JSON_FILE.match(text) is not None


def is_key(text: str) -> bool:
    """Whether metastore, engines and checks can take the key of a record."""
    is_plain = text.isprintable() and not set('"\\') & set(text)
    return is_plain and 0 < len(text) <= KEY_CHARACTERS_MAX


def freshness_errors(fresh_within: str, seconds: Callable[[], float]) -> Iterator[ValidationError]:
    """What is wrong with `fresh_within` of a spec.

    Args:
        fresh_within: as it is written.
        seconds: reads it, and raises a ValidationError if it is not a duration.
    """
    try:
        if seconds() < _FRESH_MIN_S:
            yield ValidationError(
                f"{fresh_within} is less than {_FRESH_MIN_S // 60}m, as often as Dagster looks",
                path="fresh_within",
            )
    except ValidationError as err:
        yield ValidationError(f"{err}: not {DURATION_EXAMPLE}", path="fresh_within")


def first_errors(errors: Iterable[ValidationError]) -> list[ValidationError]:
    """As many errors as a person reads, and a word on the others."""
    found = list(islice(errors, ERRORS_MAX + 1))
    if len(found) > ERRORS_MAX:
        found[-1] = ValidationError(f"there are more errors than these {ERRORS_MAX}")
    return found


def cron_errors(cron: str) -> Iterator[ValidationError]:
    """What is wrong with `cron` of a spec, a schedule of Dagster."""
    if len(cron) > _CRON_CHARACTERS_MAX:
        yield ValidationError(f"has more than {_CRON_CHARACTERS_MAX} characters", path="cron")
        return
    fields = cron.split()
    if len(fields) != len(_CRON_FIELDS):
        yield ValidationError(
            f"{cron!r} has {len(fields)} fields; it needs minute, hour, day, month and weekday, e.g. "
            '`"*/5 * * * *"`',
            path="cron",
        )
        return
    is_well = True
    for text, (name, least, most) in zip(fields, _CRON_FIELDS, strict=True):
        for item in text.split(","):
            found = _CRON_ITEM.match(item)
            first, last, step = found.groups() if found else (None, None, "0")
            numbers = [int(n) for n in (first, last) if n is not None]
            is_good = (
                found is not None
                and all(least <= n <= most for n in numbers)
                and numbers == sorted(numbers)
                and step not in {"0", "00"}
            )
            is_well = is_well and is_good
            if not is_good:
                yield ValidationError(
                    f"{item!r} is no {name}: numbers from {least} to {most}, `*`, ranges `a-b` and "
                    "steps `*/n`",
                    path="cron",
                )
    # Dagster fails at a day that never comes, of all rollups.
    if is_well and min(_cron_numbers(fields[2], 1, 31)) > max(
        _DAYS[month - 1] for month in _cron_numbers(fields[3], 1, 12)
    ):
        yield ValidationError(f"{cron!r} never comes: its months have no such day", path="cron")


def _cron_numbers(text: str, least: int, most: int) -> Iterator[int]:
    """The numbers that a good field stands for."""
    for item in text.split(","):
        found = _CRON_ITEM.match(item)
        assert found is not None  # it was looked at before
        first, last, step = found.groups()
        begin = least if first is None else int(first)
        # A number alone is itself; with a step, all from there on.
        end = int(last) if last else begin if first and not step else most
        yield from range(begin, end + 1, int(step or 1))


_SHOWN_MAX = 80
_OWNERS_MAX = 50
_OWNER = re.compile(
    r"(?:team:\S[^\n]{0,200}|[A-Za-z0-9_][A-Za-z0-9._%+-]{0,99}@[A-Za-z0-9.-]{1,200}\.[A-Za-z]{2,7})\Z"
)
_TAG = re.compile(r"(?:[A-Za-z0-9_.-]{1,63}/)?[A-Za-z0-9_.-]{1,63}\Z")
_TAG_VALUE = re.compile(r"[A-Za-z0-9_.-]{0,63}\Z")


def shown(text: str) -> str:
    """A text of a spec, in an error."""
    return repr(text) if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]!r}…"


def ownership_errors(owners: Sequence[str], tags: Mapping[str, str]) -> Iterator[ValidationError]:
    """What Dagster's catalog would not take: there it would keep all definitions from loading."""
    if len(owners) > _OWNERS_MAX or len(tags) > _OWNERS_MAX:
        yield ValidationError(f"has more than {_OWNERS_MAX} owners or tags", path="owners")
        return
    for index, owner in enumerate(owners):
        if not _OWNER.match(owner):
            yield ValidationError(
                f"{shown(owner)} is neither an email address nor `team:` and a name",
                path=f"owners[{index}]",
            )
    for key, value in tags.items():
        if not _TAG.match(key) or key.startswith("dagster/") or not _TAG_VALUE.match(value):
            yield ValidationError(
                f"{shown(key)}: {shown(value)} is not a tag: letters, digits, `_`, `-` and `.`, 63 at "
                "most; keys may have a prefix of these and `/`, other than `dagster/`",
                path="tags",
            )


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
