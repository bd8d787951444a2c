"""Content of appends that says whose it is: made from a seed and a tag, recognized anywhere."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from gazette_platform.errors import ValidationError

__all__ = ["Payload", "payload_bytes", "tags_of"]

_HEAD = re.compile(rb"<([A-Za-z0-9_.-]{1,64}) ([0-9]{6})>")
_LENGTH_MAX = 999_999


@dataclass(frozen=True, slots=True)
class Payload:
    """Names the content of one append; the bytes follow from it and the seed of the history.

    Raises: ValidationError: the tag cannot be recognized, or does not fit the length.
    """

    tag: str
    """Unique in its history; letters, digits, ``_``, ``.`` and ``-``."""
    length: int
    """Bytes in all, head and line feed included."""

    def __post_init__(self) -> None:
        """Check what `payload_bytes` relies on."""
        head = f"<{self.tag} {self.length:06d}>".encode()
        if _HEAD.fullmatch(head) is None:
            raise ValidationError(
                f"{self.tag!r} of {self.length} bytes: expected 1 to 64 of A-Za-z0-9_.- "
                f"and at most {_LENGTH_MAX} bytes",
                path="payload",
            )
        if self.length < len(head) + 1:
            raise ValidationError(
                f"{self.length} bytes cannot hold the tag {self.tag!r}; "
                f"at least {len(head) + 1} can",
                path="payload.length",
            )


def payload_bytes(seed: int, payload: Payload) -> bytes:
    r"""The content: ``<tag length>``, hexadecimal digits that follow from the seed, a line feed.

    The digits never hold ``<``, so that a head is the beginning of an append wherever it is found.

    >>> payload_bytes(7, Payload("w1-3", 30))
    b'<w1-3 000030>9a8191157626d0a3\n'
    """
    head = f"<{payload.tag} {payload.length:06d}>".encode()
    rest = payload.length - len(head) - 1
    shake = hashlib.shake_128(f"{seed}/{payload.tag}".encode())
    return head + shake.hexdigest((rest + 1) // 2)[:rest].encode() + b"\n"


def tags_of(content: bytes) -> list[tuple[int, Payload]]:
    r"""Heads within `content`: the position of each, and what it claims to begin.

    >>> tags_of(b"41cc\n<w1-3 000030>3e6c")
    [(5, Payload(tag='w1-3', length=30))]
    """
    found = []
    for match in _HEAD.finditer(content):
        tag, length = match[1].decode(), int(match[2])
        if length > match.end() - match.start():
            found.append((match.start(), Payload(tag, length)))
    return found
