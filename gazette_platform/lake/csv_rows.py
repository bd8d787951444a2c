"""Rows of CSV, whatever their lines hold: Python's reader raises at some, and at long fields."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["csv_rows"]

# Trino refuses longer lines by default; Python's own limit is 128 KiB.
_FIELD_CHARACTERS_MAX: Final = 100 << 20


def csv_rows(lines: Iterable[str], delimiter: str = ",") -> Iterator[list[str]]:
    r"""Fields of records of RFC 4180. What is none, as for a carriage return in it, has no fields.

    >>> list(csv_rows(['1,"a, b"', "2,a\rb", "3"]))
    [['1', 'a, b'], [], ['3']]
    """
    # Of the process: others may want longer ones.
    csv.field_size_limit(max(csv.field_size_limit(), _FIELD_CHARACTERS_MAX))
    reader = csv.reader(lines, delimiter=delimiter)
    while True:
        try:
            yield next(reader)
        except StopIteration:
            return
        except csv.Error:
            yield []
