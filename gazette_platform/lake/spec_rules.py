"""Rules that specs of raw tables and of rollups share: names, and how fresh a table has to be."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from gazette_platform.errors import ValidationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "DURATION_EXAMPLE",
    "TABLE_CHARACTERS_MAX",
    "freshness_errors",
    "is_sql_name",
    "is_table_name",
]

TABLE_CHARACTERS_MAX: Final = 127
"""Of each part of a table's name."""

DURATION_EXAMPLE: Final = "a duration with its unit, such as `90m` or `24h`"

_NAME: Final = re.compile(r"[a-z_][a-z0-9_]*\Z")
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


def freshness_errors(fresh_within: str, seconds: Callable[[], float]) -> Iterator[ValidationError]:
    """What is wrong with `fresh_within` of a spec.

    Args:
        fresh_within: as it is written.
        seconds: reads it, and raises a ValidationError if it is no duration.
    """
    try:
        if seconds() < _FRESH_MIN_S:
            yield ValidationError(
                f"{fresh_within} is less than {_FRESH_MIN_S // 60}m, as often as Dagster looks",
                path="fresh_within",
            )
    except ValidationError as err:
        yield ValidationError(f"{err}: not {DURATION_EXAMPLE}", path="fresh_within")
