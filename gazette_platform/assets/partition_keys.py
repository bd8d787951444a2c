"""Dagster's partition keys of a raw table: the times of its Hive partitions, and what former releases had."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_platform.lake.times import WHOLE, Time

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gazette_platform.lake import PartitionAccount

__all__ = ["former_partitions", "parse_partition", "time_partition"]


def time_partition(time: Time) -> str:
    """Dagster's partition key of a time: its values, distinct for the times of one table.

    >>> time_partition(Time(2, "date=2026-01-31/hour=5")), time_partition(Time(1, "all"))
    ('2026-01-31/5', 'all')
    """
    return _values(time.key)


def former_partitions(account: PartitionAccount, time: Time) -> list[str]:
    """What Dagster's key of a Hive partition was in former releases, the last one first.

    It was one of its own, of the values of all columns; before that the names of the columns were in it.

    Args:
        account: of the Hive partition.
        time: its own.
    """
    former = [_values(account.key), account.key] if account.key != WHOLE else []
    return [key for key in former if key != time_partition(time)]


def parse_partition(key: str, columns: Sequence[str], own: Iterable[int]) -> Time | str | None:
    """What a partition key of Dagster is the key of.

    >>> (
    ...     parse_partition("5", ["origin", "hour"], [1]),
    ...     parse_partition("JFK/5", ["origin", "hour"], [1]),
    ... )
    (Time(own=1, key='hour=5'), 'origin=JFK/hour=5')

    Args:
        key: Dagster's.
        columns: names of the table's partition columns.
        own: how many of them, the first ones, names of journals give; in more than one way if they differ in shape.

    Returns: a time; or the key of a Hive partition that Dagster has from a former release; None: it is neither.
    """
    names, parts = list(columns), key.split("/")
    if len(parts) == len(names) and all(
        part.startswith(f"{name}=") for part, name in zip(parts, names, strict=True)
    ):
        return key
    if key == WHOLE and len(names) in own:
        return Time(len(names), WHOLE)
    if len(names) - len(parts) in own:
        count = len(names) - len(parts)
        return Time(count, _named(names[count:], parts))
    return _named(names, parts) if len(parts) == len(names) else None


def _values(key: str) -> str:
    # A percent sign within a value has digits after it.
    values = [part.partition("=")[2] or "%" for part in key.split("/")]
    return key if key == WHOLE else "/".join(values)


def _named(names: Sequence[str], values: Sequence[str]) -> str:
    pairs = zip(names, values, strict=True)
    return "/".join(f"{name}={'' if value == '%' else value}" for name, value in pairs)
