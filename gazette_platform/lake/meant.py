"""Which tables a name may mean that is of none: for errors that say what to write instead."""

from __future__ import annotations

from collections import defaultdict
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

__all__ = ["meant", "or_meant"]

_SHOWN_MAX: Final = 3
# As `difflib` measures: one letter in four may be another, or be missing.
_NEAR: Final = 0.75
# Comparing takes a millisecond for a few dozen names.
_COMPARED_MAX: Final = 2000


def meant(name: str, tables: Collection[str]) -> list[str]:
    """Those of `tables` that `name` is likely to mean, the likeliest first; at most three.

    A name without its schema, or with another one, means the tables that are called so in theirs.

    Args:
        name: as the user wrote it.
        tables: by full name, as ``schema.table``.

    >>> meant("orders", ["shop.orders", "web.orders", "web.items"])
    ['shop.orders', 'web.orders']
    >>> meant("shop.orderz", ["shop.orders", "web.items"]), meant("other", ["shop.orders"])
    (['shop.orders'], [])
    >>> meant("ordres", ["shop.orders", "typed.orders"])
    ['shop.orders', 'typed.orders']
    """
    wanted = name.replace('"', "").lower()[:255]
    last = wanted.rpartition(".")[2]
    same = [table for table in sorted(tables) if table.rpartition(".")[2] == last]
    if same:
        return same[:_SHOWN_MAX]
    compared = sorted(tables)[:_COMPARED_MAX]
    near = get_close_matches(wanted, compared, _SHOWN_MAX, _NEAR)
    if near:
        return near
    by_last: defaultdict[str, list[str]] = defaultdict(list)
    for table in compared:
        by_last[table.rpartition(".")[2]].append(table)
    found = get_close_matches(last, by_last, _SHOWN_MAX, _NEAR)
    return [table for each in found for table in by_last[each]][:_SHOWN_MAX]


def or_meant(names: Iterable[str], tables: Collection[str]) -> str:
    """A question for the end of an error, with a semicolon before it; empty if nothing is near.

    >>> or_meant(["orders"], ["shop.orders", "web.orders"]), or_meant(["orders"], [])
    ('; did you mean shop.orders or web.orders?', '')
    """
    found = dict.fromkeys(table for name in names for table in meant(name, tables))
    return f"; did you mean {' or '.join([*found][:_SHOWN_MAX])}?" if found else ""
