"""Protobuf put together and taken apart by hand, for tests that must not trust generated classes.

Writers in other languages use freedoms that ours does not: fields in any order, padded varints, zeros
that are written out, empty messages that are present. `number` and `blob` can write all of these.

>>> decode(blob(1, "a/journal") + number(2, 3, padded_to=4))
{1: [b'a/journal'], 2: [3]}
"""

from __future__ import annotations

import struct
from typing import Any, TypeAlias

__all__ = ["Fields", "blob", "decode", "number", "only", "varint"]

Fields: TypeAlias = "dict[int, list[Any]]"
"""Values by field number: ints, and bytes for what has a length."""

_WORD = (1 << 64) - 1


def varint(value: int, *, padded_to: int = 0) -> bytes:
    """A varint. A negative number takes ten bytes.

    Args:
        value: 64 bits.
        padded_to: bytes that it has at least.
    """
    value &= _WORD
    out = bytearray()
    while value > 0x7F or len(out) + 1 < padded_to:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int, *, padded_to: int = 0) -> bytes:
    """An integer, a bool or an enum.

    Args:
        field: its number.
        value: of the field.
        padded_to: as of `varint`.
    """
    return varint(field << 3) + varint(value, padded_to=padded_to)


def blob(field: int, value: bytes | str, *, padded_to: int = 0) -> bytes:
    """A string, bytes or a message.

    Args:
        field: its number.
        value: of the field.
        padded_to: bytes that its length has at least.
    """
    raw = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(raw), padded_to=padded_to) + raw


def decode(raw: bytes) -> Fields:
    """The fields of a message, in the order of the wire.

    Raises: ValueError: it is malformed.
    """
    fields: Fields = {}
    at = 0
    while at < len(raw):
        tag, at = _read_varint(raw, at)
        value: Any
        match tag & 7:
            case 0:
                value, at = _read_varint(raw, at)
            case 1:
                value, at = struct.unpack_from("<Q", raw, at)[0], at + 8
            case 5:
                value, at = struct.unpack_from("<I", raw, at)[0], at + 4
            case 2:
                length, at = _read_varint(raw, at)
                value, at = raw[at : at + length], at + length
            case kind:
                raise ValueError(f"wire type {kind} before byte {at}")
        fields.setdefault(tag >> 3, []).append(value)
    if at != len(raw):
        raise ValueError(f"ends {at - len(raw)} bytes before its last field does")
    return fields


def _read_varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(raw):
        byte = raw[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise ValueError("ends within a varint")


def only(fields: Fields, field: int, default: Any = None) -> Any:
    """The value of a field that exists once, or `default` if it is absent.

    Raises: ValueError: it occurs more than once.
    """
    values = fields.get(field, [default])
    if len(values) > 1:
        raise ValueError(f"field {field} occurs {len(values)} times")
    return values[0]
