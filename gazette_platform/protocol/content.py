"""Content messages, encoded and decoded by hand.

Content is nearly all that a broker moves, and a generated message copies it twice on each side.
These functions read and write exactly the bytes that protobuf would for an ``AppendRequest`` or
``ReadResponse`` which holds only content (and, for reads, its offset), copying once to encode and
never to decode. Content on its way to replicas is treated likewise. Anything else is left to the
generated classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


# Larger messages cost fewer Python steps a byte; the receive limit of Gazette's servers is 4 MiB.
CONTENT_CHUNK_BYTES = 512 * 1024

# An AppendRequest without any field: the intent to commit.
COMMIT_MARKER = b""

# Metadata of an Append whose caller does not need the SHA-1 of its content, which costs as much as all else of a large one.
NO_SUM = "gazette-no-sum"

_APPEND_CONTENT_TAG = 0x22  # field 4, length-delimited
_REPLICATE_DELTA_TAG = 0x28  # field 5, varint
_READ_OFFSET_TAG = 0x18  # field 3, varint
_READ_CONTENT_TAG = 0x3A  # field 7, length-delimited

_VARINT_BYTES_MAX = 10


def encode_append_content(content: bytes | memoryview) -> bytes:
    """An AppendRequest of `content` only. Content must not be empty: that would mean commit."""
    if not content:
        raise ValueError("append content is empty, which would mean commit")
    return b"".join((b"\x22", _varint(len(content)), content))


def encode_append_pieces(pieces: Sequence[bytes | memoryview], length: int) -> bytes:
    """As `encode_append_content`, of pieces with `length` bytes together: one copy for all of them."""
    if not length:
        raise ValueError("append content is empty, which would mean commit")
    return b"".join((b"\x22", _varint(length), *pieces))


def decode_append_content(raw: bytes) -> memoryview | None:
    """The content of an AppendRequest that holds nothing else.

    Returns: a view of `raw`, empty for the commit marker; None if the message has other fields,
    or is malformed, and must go through the generated class.
    """
    if not raw:
        return memoryview(raw)
    if raw[0] != _APPEND_CONTENT_TAG:
        return None
    length = len(raw) - 2
    if 0 < length < 0x80 and raw[1] == length:  # most small ones
        return memoryview(raw)[2:]
    return _rest(raw, 1)


def encode_read_content(offset: int, content: bytes | memoryview) -> bytes:
    """A ReadResponse of `offset`, the journal offset of the first byte, and `content` only."""
    if offset:
        head = b"\x18" + _varint(offset) + b"\x3a" + _varint(len(content))
    else:
        head = b"\x3a" + _varint(len(content))
    return b"".join((head, content))


def decode_read_content(raw: bytes) -> tuple[int, memoryview] | None:
    """Offset and content of a ReadResponse that holds nothing else; see `decode_append_content`."""
    if not raw:
        return None
    offset = 0
    at = 0
    if raw[0] == _READ_OFFSET_TAG:
        offset, at = _read_varint(raw, 1)
        if at < 0 or at >= len(raw):
            return None
    if raw[at] != _READ_CONTENT_TAG:
        return None
    content = _rest(raw, at + 1)
    return None if content is None or not content else (offset, content)


def encode_replicate_content(pieces: Sequence[bytes | memoryview], delta: int) -> bytes:
    """A ReplicateRequest of the concatenated pieces, which are not all empty, and `delta` only."""
    length = sum(map(len, pieces))
    if not length:
        raise ValueError("replicated content is empty, which is not allowed")
    tail = b"\x28" + _varint(delta) if delta else b""
    return b"".join((b"\x22", _varint(length), *pieces, tail))


def decode_replicate_content(raw: bytes) -> tuple[int, memoryview] | None:
    """Delta and content of a ReplicateRequest without more; see `decode_append_content`."""
    if not raw or raw[0] != _APPEND_CONTENT_TAG:
        return None
    length, at = _read_varint(raw, 1)
    end = at + length
    if at < 0 or length == 0 or end > len(raw):
        return None
    delta = 0
    if end < len(raw):
        if raw[end] != _REPLICATE_DELTA_TAG:
            return None
        delta, behind = _read_varint(raw, end + 1)
        if behind != len(raw):
            return None
    return delta, memoryview(raw)[at:end]


def _rest(raw: bytes, at: int) -> memoryview | None:
    """The length-delimited field at `at`, if it spans all that is left of `raw`."""
    length, at = _read_varint(raw, at)
    if at < 0 or at + length != len(raw):
        return None
    return memoryview(raw)[at:]


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(raw: bytes, at: int) -> tuple[int, int]:
    """Value and position after it; position -1 when there is no whole varint at `at`."""
    value = shift = 0
    for i in range(at, min(at + _VARINT_BYTES_MAX, len(raw))):
        byte = raw[i]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, i + 1
        shift += 7
    return 0, -1
