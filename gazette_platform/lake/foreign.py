"""Recognise content that has no lines of JSON or CSV. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["foreign_content"]

_COMPRESSED: Final = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip"}
_FILES: Final = {b"PAR1": "Parquet", b"Obj\x01": "Avro"}
_FIXED: Final = b"\x66\x33\x93\x36"
_LINES_READ: Final = 1000


def foreign_content(lines: Sequence[bytes]) -> str:
    r"""Return what content is that is not text, and what to do about it; empty if it is text.

    Args:
        lines: of one journal, from its beginning.

    >>> foreign_content([b"\x1f\x8b\x08..."])
    'is compressed by gzip: append it decompressed'
    >>> foreign_content([b'{"a": 1}'])
    ''
    """
    read = [line for line in lines[:_LINES_READ] if line.strip()]
    first = read[0] if read else b""
    for magic, kind in _COMPRESSED.items():
        if first.startswith(magic):
            return f"is compressed by {kind}: append it decompressed"
    for magic, kind in _FILES.items():
        if first.startswith(magic):
            return f"is a file of {kind}: append its rows as lines of JSON or CSV"
    if first.startswith(_FIXED):
        return "has messages of fixed framing (such as protobuf): only lines of JSON or CSV can be tables"
    binary = sum(b"\0" in line or not _is_text(line) for line in read)
    if binary * 2 > len(read):
        return "is not text in UTF-8: append lines of JSON or CSV in UTF-8"
    return ""


def _is_text(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True
