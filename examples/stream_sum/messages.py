"""Chunks of streams and their sums, as JSON lines, and how a chunk is added to a sum."""

from __future__ import annotations

from typing import Final

import msgspec

from gazette_platform.errors import ApplicationFailed

__all__ = ["CHUNKS", "ID_BYTES", "SUMS", "Chunk", "Sum", "add", "crc64", "id_of"]

CHUNKS: Final = "examples/stream-sum/chunks/"
"""What names of journals of chunks begin with."""
SUMS: Final = "examples/stream-sum/sums"
"""The journal of sums."""
ID_BYTES: Final = 16

_MASK: Final = (1 << 64) - 1
_POLYNOMIAL: Final = 0xC96C5795D7870F42  # of ECMA-182, reflected


def _table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)  # noqa: PLW2901
        table.append(value)
    return table


_TABLE: Final = _table()


def crc64(data: bytes, value: int = 0) -> int:
    """CRC-64/XZ of `data`, going on from the sum of what came before it.

    >>> crc64(b" horse", crc64(b"battery")) == crc64(b"battery horse") == 0xAE763109C1192ED6
    True
    """
    value ^= _MASK
    for byte in data:
        value = _TABLE[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ _MASK


def _no_id() -> list[int]:
    return [0] * ID_BYTES


class Chunk(msgspec.Struct):
    """A piece of a stream. The first one has the number 1; the last one has no data."""

    UUID: str = ""
    ID: list[int] = msgspec.field(default_factory=_no_id)
    """Of the stream: 16 numbers."""
    SeqNo: int = 0
    Data: bytes | None = None


class Sum(msgspec.Struct):
    """Of a stream, up to the chunk with this number."""

    UUID: str = ""
    ID: list[int] = msgspec.field(default_factory=_no_id)
    SeqNo: int = 0
    Value: int = 0
    """CRC-64/XZ of all data."""


def id_of(message: Chunk | Sum) -> bytes:
    """The stream of a message: what it is mapped by, and the key of its sum."""
    return bytes(message.ID)


def add(total: Sum, chunk: Chunk) -> bool:
    """Add a chunk to the sum of its stream.

    Returns: whether it was the last one.
    Raises: ApplicationFailed: it is not the next one. Some were lost, or came twice.
    """
    if total.ID != chunk.ID:
        raise ApplicationFailed(f"stream {total.ID}: a chunk of stream {chunk.ID} was to be added")
    if chunk.SeqNo != total.SeqNo + 1:
        raise ApplicationFailed(
            f"stream {id_of(chunk).hex()}: chunk {chunk.SeqNo} came behind chunk {total.SeqNo}: messages were lost, "
            "or were delivered twice"
        )
    total.SeqNo = chunk.SeqNo
    if not chunk.Data:
        return True
    total.Value = crc64(chunk.Data, total.Value)
    return False
