"""Records within content: how journals of a ``content-type`` delimit them, in batches.

Batch functions take a block of content and give whole records and the rest, so that C code does
the work per byte.
"""

from __future__ import annotations

import struct

from gazette_platform.errors import Desynchronized

__all__ = ["FIXED_MAGIC", "FRAME_BYTES_MAX", "frame_fixed", "split_fixed"]

FIXED_MAGIC = b"\x66\x33\x93\x36"
"""What a fixed frame begins with; a little-endian uint32 length of its body follows."""

FRAME_BYTES_MAX = 64 << 20
"""Longest body to believe in: a longer one is more likely a lost place than a record."""

_HEADER = struct.Struct("<4sI")


def frame_fixed(body: bytes) -> bytes:
    """The fixed frame of `body`.

    >>> frame_fixed(b"foo").hex()
    '6633933603000000666f6f'
    """
    return _HEADER.pack(FIXED_MAGIC, len(body)) + body


def split_fixed(content: bytes, *, has_headers: bool = False) -> tuple[list[bytes], bytes]:
    """Bodies of the whole fixed frames of `content`, and what is left behind the last one.

    Args:
        has_headers: give whole frames instead of bodies.

    Raises: Desynchronized: a frame begins with something else than the magic; nothing of
        `content` is given then. Resume at the next magic, if the text names one.
    """
    records: list[bytes] = []
    at, size = 0, len(content)
    while size - at >= _HEADER.size:
        magic, length = _HEADER.unpack_from(content, at)
        if magic != FIXED_MAGIC or length > FRAME_BYTES_MAX:
            raise _desynchronized(content, at)
        begin, end = at + _HEADER.size, at + _HEADER.size + length
        if end > size:
            break
        records.append(content[at if has_headers else begin : end])
        at = end
    rest = content[at:]
    if not FIXED_MAGIC.startswith(rest[:4]) and len(rest) < _HEADER.size:
        raise _desynchronized(content, at)
    return records, rest


def _desynchronized(content: bytes, at: int) -> Desynchronized:
    found = content.find(FIXED_MAGIC, at + 1)
    resume = f"the next magic is at byte {found}" if found >= 0 else "no magic follows"
    return Desynchronized(
        f"detected de-synchronization at byte {at}: found {content[at : at + 8].hex()}, expected "
        f"the magic {FIXED_MAGIC.hex()} and a length up to {FRAME_BYTES_MAX}; {resume}"
    )
