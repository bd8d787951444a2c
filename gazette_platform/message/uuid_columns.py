"""UUIDs of a whole column, in Arrow: no step of Python for each. Needs `pyarrow`, of the extra ``arrow``."""

from __future__ import annotations

import sys
from array import array
from typing import TYPE_CHECKING, Any

from gazette_platform.errors import DataError
from gazette_platform.message.uuid import FLAGS_MAX, PRODUCER_BYTES, UUID_BYTES, uuid_bytes
from gazette_platform.ops.extras import required

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]


def parse_uuid_column(column: pa.Array | pa.ChunkedArray) -> pa.StructArray:
    """The parts of each UUID of `column`: text, 16 bytes, or Arrow's type of UUIDs.

    Where there is none, the parts are those of `NO_UUID`.

    Returns: as many rows of `producer` (6 bytes), `clock` (uint64) and `flags` (uint16).
    Raises: DataError: something is not a UUID. SetupError: there is no pyarrow.
    """
    pa = required("pyarrow", extra="arrow", by="columns of UUIDs")
    pc = required("pyarrow.compute", extra="arrow", by="columns of UUIDs")
    raw = _raw_of(column, pa, pc)
    count = len(raw) // UUID_BYTES
    words = array("Q", raw)
    if sys.byteorder == "little":
        words.byteswap()
    high, low = (_numbers(words[at::2], pa) for at in (0, 1))

    def bits(number: Any, right: int, mask: int, left: int) -> Any:
        shifted = pc.bit_wise_and(pc.shift_right(number, _word(right, pa)), _word(mask, pa))
        return pc.shift_left(shifted, _word(left, pa))

    clock = bits(high, 32, 0xFFFFFFFF, 4)
    for part in (bits(high, 16, 0xFFFF, 36), bits(high, 0, 0xFFF, 52), bits(low, 58, 0xF, 0)):
        clock = pc.bit_wise_or(clock, part)
    producers = bytearray(count * PRODUCER_BYTES)
    for at in range(PRODUCER_BYTES):
        producers[at::PRODUCER_BYTES] = raw[UUID_BYTES - PRODUCER_BYTES + at :: UUID_BYTES]
    producer = pa.Array.from_buffers(
        pa.binary(PRODUCER_BYTES), count, [None, pa.py_buffer(producers)]
    )
    flags = bits(low, 48, FLAGS_MAX, 0).cast(pa.uint16())
    return pa.StructArray.from_arrays([producer, clock, flags], ["producer", "clock", "flags"])


def uuid_column(parts: pa.StructArray) -> pa.Array:
    """The UUIDs that have these parts, of Arrow's type; null where they are those of `NO_UUID`.

    Version and variant, which no part tells, are those that message UUIDs have.

    Args:
        parts: as `parse_uuid_column` makes them.

    Raises: SetupError: there is no pyarrow.
    """
    pa = required("pyarrow", extra="arrow", by="columns of UUIDs")
    pc = required("pyarrow.compute", extra="arrow", by="columns of UUIDs")
    count = len(parts)
    producer, clock, flags = (parts.field(name) for name in ("producer", "clock", "flags"))

    def bits(right: int, mask: int, left: int) -> Any:
        shifted = pc.bit_wise_and(pc.shift_right(clock, _word(right, pa)), _word(mask, pa))
        return pc.shift_left(shifted, _word(left, pa))

    high = _word(0x1000, pa)
    for part in (bits(4, 0xFFFFFFFF, 32), bits(36, 0xFFFF, 16), bits(52, 0xFFF, 0)):
        high = pc.bit_wise_or(high, part)
    last = pc.bit_wise_or(
        bits(0, 0xF, 10), pc.bit_wise_or(flags.cast(pa.uint64()), _word(1 << 15, pa))
    )
    raw = bytearray(count * UUID_BYTES)
    heads = _big_endian(high), _big_endian(last)
    producers = bytes(producer.buffers()[1])[producer.offset * PRODUCER_BYTES :]
    producers = producers[: count * PRODUCER_BYTES]
    for at in range(8):
        raw[at::UUID_BYTES] = heads[0][at::8]
    for at in range(2):
        raw[8 + at :: UUID_BYTES] = heads[1][6 + at :: 8]
    for at in range(PRODUCER_BYTES):
        raw[UUID_BYTES - PRODUCER_BYTES + at :: UUID_BYTES] = producers[at::PRODUCER_BYTES]
    found = pa.Array.from_buffers(pa.binary(UUID_BYTES), count, [None, pa.py_buffer(raw)])
    is_none = pc.and_(pc.equal(clock, _word(0, pa)), pc.equal(flags, pa.scalar(0, pa.uint16())))
    if pc.any(is_none).as_py():
        nobody = pa.scalar(bytes(PRODUCER_BYTES), pa.binary(PRODUCER_BYTES))
        is_none = pc.and_(is_none, pc.equal(producer, nobody))
        found = pc.if_else(is_none, pa.scalar(None, pa.binary(UUID_BYTES)), found)
    return pa.ExtensionArray.from_storage(pa.uuid(), found)


def _big_endian(numbers: Any) -> bytes:
    begin = numbers.offset * 8
    words = array("Q", bytes(numbers.buffers()[1][begin : begin + len(numbers) * 8]))
    if sys.byteorder == "little":
        words.byteswap()
    return words.tobytes()


def _raw_of(column: Any, pa: Any, pc: Any) -> bytes:
    """The 16 bytes of each UUID, one behind the other, zeros where there is none."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        zero = "00000000-0000-0000-0000-000000000000"
        return uuid_bytes(pc.fill_null(column, zero).to_pylist())
    try:
        filled = pc.fill_null(column.cast(pa.binary()), bytes(UUID_BYTES))
        filled = filled.cast(pa.binary(UUID_BYTES))
    except pa.ArrowInvalid as err:
        raise DataError(f"a column of {kind} holds no UUIDs of {UUID_BYTES} bytes: {err}") from err
    except pa.ArrowNotImplementedError as err:
        raise DataError(
            f"a column of {kind} holds no UUIDs (text or {UUID_BYTES} bytes do)"
        ) from err
    begin = filled.offset * UUID_BYTES
    return bytes(filled.buffers()[1][begin : begin + len(filled) * UUID_BYTES])


def _numbers(words: array[int], pa: Any) -> Any:
    return pa.Array.from_buffers(pa.uint64(), len(words), [None, pa.py_buffer(words)])


def _word(number: int, pa: Any) -> Any:
    return pa.scalar(number, pa.uint64())
