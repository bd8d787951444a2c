"""Phrases of messages that people read."""

from __future__ import annotations


def counted(count: int, one: str, many: str = "") -> str:
    """The number with its noun, in the singular or plural.

    Args:
        count: 0 or more.
        one: the noun of one, with what follows it.
        many: of several; default: `one` with an s.

    >>> counted(1, "fragment"), counted(0, "file"), counted(1200, "file is", "files are")
    ('1 fragment', '0 files', '1200 files are')
    """
    return f"{count} {one if count == 1 else many or one + 's'}"
