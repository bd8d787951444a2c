"""N-grams of a text, and their counts as bytes. Pure."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["END", "START", "count_from_bytes", "count_to_bytes", "n_grams"]

START: Final = "START"
END: Final = "END"

_WORD: Final = re.compile(r"[^\W\d_]+")


def n_grams(text: str, n: int) -> Iterator[str]:
    """All n-grams of the words of a text, which are its letters between others, in lower case.

    A text begins with `START` and ends with `END`, both in upper case, as often as an n-gram has words: so
    there are `n` n-grams more than words.

    >>> list(n_grams("How, how?", 2))
    ['START how', 'how how', 'how END', 'END END']
    """
    words = (found.group() for found in _WORD.finditer(text.lower()))
    last = [START] * n
    for word in itertools.chain(words, [END] * n):
        last = [*last[1:], word]
        yield " ".join(last)


def count_to_bytes(count: int) -> bytes:
    """A count as a varint.

    >>> count_to_bytes(300).hex()
    'ac02'
    """
    found = bytearray()
    while count > 0x7F:
        found.append(count & 0x7F | 0x80)
        count >>= 7
    found.append(count)
    return bytes(found)


def count_from_bytes(raw: bytes) -> int:
    """The count of a varint.

    >>> count_from_bytes(bytes.fromhex("ac02"))
    300
    """
    return sum((byte & 0x7F) << 7 * at for at, byte in enumerate(raw))
