"""Header rows of CSV, which may stand anywhere: each file that was appended may begin with one. Pure.

A row is a header if its fields are the columns' keys, as written. A shorter one was written when the table had fewer
columns. The first field may follow a byte order mark, as spreadsheets write it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_platform.lake.table_spec import TableSpec

__all__ = ["header_condition", "header_pattern", "header_places"]

_MARK = "\ufeff"


def header_pattern(spec: TableSpec) -> re.Pattern[bytes] | None:
    r"""Return what matches whole header lines within content; None if the table has none.

    >>> from gazette_platform.lake.table_spec import parse_table_spec
    >>> spec = "{name: a.b, selector: name=x, format: csv, header: true, columns: [%s]}"
    >>> columns = "{name: id, type: string}, {name: unit, from: Unit price, type: string}"
    >>> pattern = header_pattern(parse_table_spec(spec % columns))
    >>> pattern.sub(b"", b'id,"Unit price"\n1,2\nid,Unit price\r\nid\nid,x\n')
    b'1,2\nid,x\n'
    """
    if not spec.header:
        return None
    separator = re.escape(spec.separator).encode()
    first, *others = (_cell(column.key, spec.separator) for column in spec.columns)
    # Groups side by side: the parser of patterns recurses into groups within each other.
    rest = b"".join(rb"(?:%b%b|(?=\r?\n))" % (separator, cell) for cell in others)
    # A further field, which no column has, hides no header.
    more = rb"(?:%b[^\n]*)?" % separator
    return re.compile(rb"^(?:%b)?%b%b%b\r?\n" % (_MARK.encode(), first, rest, more), re.MULTILINE)


def _cell(key: str, separator: str) -> bytes:
    """Return what matches a field, bare or in quotes."""
    quoted = '"{}"'.format(key.replace('"', '""'))
    if '"' in key or separator in key:
        return re.escape(quoted).encode()
    return rb"(?:%b|%b)" % (re.escape(key).encode(), re.escape(quoted).encode())


def header_places(content: bytes, pattern: re.Pattern[bytes]) -> list[int]:
    """Return which lines of `content`, counted from 0, are headers."""
    found: list[int] = []
    line = at = 0
    for match in pattern.finditer(content):
        line += content.count(b"\n", at, match.start())
        at = match.start()
        found.append(line)
    return found


def header_condition(
    spec: TableSpec, quoted: Callable[[str], str], literal: Callable[[str], str]
) -> str:
    """Return a condition of SQL that is true of rows, and false or NULL of headers; empty if the table has none.

    Args:
        spec: of the table.
        quoted: quotes a name.
        literal: quotes a text.
    """
    if not spec.header:
        return ""
    first, *others = spec.columns
    name = quoted(first.name)
    # Behind a mark, quotes are a part of the field to engines.
    marked = (first.key, _MARK + first.key, f'{_MARK}"{first.key}"')
    # A column that a short line lacks is NULL, which decides nothing.
    terms = [f"{name} IS NULL", f"{name} NOT IN ({', '.join(map(literal, marked))})"]
    terms += [f"{quoted(column.name)} <> {literal(column.key)}" for column in others]
    return f"({' OR '.join(terms)})"
