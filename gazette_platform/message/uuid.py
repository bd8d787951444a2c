"""Message UUIDs: who published a message, in which order, and whether it belongs to a transaction.

A UUID of version 1 (RFC 4122) with other uses for its parts, in big-endian fields:

    bytes   bits        content
    ------  ----------  ----------------------------------------------------------------------
    0-3     32          clock, bits 4 to 35
    4-5     16          clock, bits 36 to 51
    6-7     4 + 12      version 1; clock, bits 52 to 63
    8-9     2 + 4 + 10  variant `10`; clock, bits 0 to 3; flags
    10-15   48          producer

A clock is a number of 64 bits: 100 ns since 1582-10-15 in its upper 60, a sequence in its lower 4.
UUIDs of one producer are in the order of their clocks. The UUID of zeros says that a message takes
no part in any of this.

Functions of columns parse and build UUIDs of whole Arrow columns, without a step of Python for each.
They need `pyarrow`, of the extra ``arrow``.
"""

from __future__ import annotations

import secrets
import struct
import sys
import threading
from array import array
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final
from uuid import UUID

from gazette_platform.errors import DataError, ValidationError
from gazette_platform.ops.extras import required

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa  # type: ignore[import-untyped]

UUID_BYTES = 16
PRODUCER_BYTES = 6
FLAGS_MAX = 0x3FF
CLOCK_TICK = 10 << 4
"""What one tick adds to a clock: 1 µs."""

_CLOCK_MAX = (1 << 64) - 1
_UNIX_EPOCH = 122_192_928_000_000_000
"""100 ns between 1582-10-15 and 1970-01-01."""
_FIELDS = struct.Struct(">IHHH6s")
_TEXT_CHARS = 36
_HYPHENS = (8, 13, 18, 23)


class Flags(IntEnum):
    """What a message means to those who read committed messages only."""

    OUTSIDE_TXN = 0
    """Committed by itself."""
    CONTINUE_TXN = 1
    """Begins or continues a transaction: waits for an ACK of its producer with a larger clock."""
    ACK_TXN = 2
    """Commits what its producer published with smaller clocks, and takes back what has larger ones."""


class UuidParts(NamedTuple):
    """What a message UUID says."""

    producer: bytes
    """Six bytes, one producer's for as long as its process lives."""
    clock: int
    flags: int
    """One of `Flags`, or a value without a meaning."""


NO_UUID: Final = UuidParts(bytes(PRODUCER_BYTES), 0, 0)
"""Of a message without UUID, or with one of zeros: delivered always, at least once."""


def new_producer_id() -> bytes:
    """A random producer ID, which no other producer has.

    Take one for as long as the process lives: readers remember each for a day. Its multicast bit is
    set, so that it is not a network card's address.
    """
    drawn = secrets.token_bytes(PRODUCER_BYTES)
    return bytes((drawn[0] | 1, *drawn[1:]))


def clock_of(unix_ns: int) -> int:
    """The clock of an instant in unix nanoseconds, cut to 100 ns.

    >>> clock_of(0)
    1955086848000000000

    Raises: ValidationError: no clock reaches there.
    """
    clock = (unix_ns // 100 + _UNIX_EPOCH) << 4
    if not 0 <= clock <= _CLOCK_MAX:
        raise ValidationError(
            f"unix nanoseconds {unix_ns} are before 1582 or after 5236: no clock shows that"
        )
    return clock


def unix_ns_of(clock: int) -> int:
    """The instant of a clock in unix nanoseconds, without its sequence bits."""
    return ((clock >> 4) - _UNIX_EPOCH) * 100


@final
class MessageClock:
    """The clock of a producer, which never goes back. Threads may share it."""

    def __init__(self, value: int = 0) -> None:
        self._value = value
        self._lock = threading.Lock()

    @property
    def value(self) -> int:
        """As of the last update or tick."""
        return self._value

    def update(self, unix_ns: int) -> None:
        """Raise it to an instant in unix nanoseconds, if that is later."""
        clock = clock_of(unix_ns)
        with self._lock:
            self._value = max(self._value, clock)

    def tick(self) -> int:
        """Advance it by a microsecond. Returns: the new value, which no other caller gets.

        Raises: ValidationError: it is at the end of time.
        """
        with self._lock:
            ticked = self._value + CLOCK_TICK
            if ticked > _CLOCK_MAX:
                raise ValidationError(f"clock {self._value} cannot tick: it would not fit 64 bits")
            self._value = ticked
            return ticked


def build_uuid(producer: bytes, clock: int, flags: int) -> UUID:
    """The UUID of these parts.

    >>> str(build_uuid(bytes.fromhex("070203040506"), 160, Flags.OUTSIDE_TXN))
    '0000000a-0000-1000-8000-070203040506'

    Raises: ValidationError: a part does not fit.
    """
    return UUID(bytes=_packed(producer, clock, flags))


def uuid_text(producer: bytes, clock: int, flags: int) -> str:
    """The text of `build_uuid`, for a fifth of the time. Raises: ValidationError: a part does not fit.

    >>> uuid_text(bytes.fromhex("070203040506"), 160, Flags.OUTSIDE_TXN)
    '0000000a-0000-1000-8000-070203040506'
    """
    digits = _packed(producer, clock, flags).hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _packed(producer: bytes, clock: int, flags: int) -> bytes:
    if len(producer) != PRODUCER_BYTES:
        raise ValidationError(
            f"must have {PRODUCER_BYTES} bytes (got {len(producer)})", path="producer"
        )
    if not 0 <= clock <= _CLOCK_MAX:
        raise ValidationError(f"must fit 64 bits ({clock})", path="clock")
    if not 0 <= flags <= FLAGS_MAX:
        raise ValidationError(f"must be within 0 and {FLAGS_MAX} ({flags})", path="flags")
    return _FIELDS.pack(
        (clock >> 4) & 0xFFFFFFFF,
        (clock >> 36) & 0xFFFF,
        clock >> 52 | 0x1000,
        (clock & 0xF) << 10 | flags | 0x8000,
        producer,
    )


def parse_uuid(value: UUID | bytes | str) -> UuidParts:
    """The parts of a UUID: an object, 16 bytes, or its text.

    Version and variant are not looked at, as Gazette does not either.

    Raises: DataError: it is not a UUID.
    """
    if isinstance(value, str):
        raw = _raw_of(value)
    elif isinstance(value, UUID):
        raw = value.bytes
    else:
        raw = value
    if len(raw) != UUID_BYTES:
        raise DataError(f"a message UUID has {UUID_BYTES} bytes, and not {len(raw)}")
    low, mid, high, last, producer = _FIELDS.unpack(raw)
    # The version falls off the top.
    clock = low << 4 | mid << 36 | (high & 0xFFF) << 52 | (last >> 10) & 0xF
    return UuidParts(producer, clock, last & FLAGS_MAX)


def parse_uuids(content: bytes) -> list[UuidParts]:
    """The parts of UUIDs of 16 bytes each that follow one another.

    See `gazette_platform.message.uuid` for the same in Arrow.

    Raises: DataError: the last one is not whole.
    """
    if len(content) % UUID_BYTES:
        raise DataError(f"{len(content)} bytes are not a whole number of UUIDs of {UUID_BYTES}")
    return [
        UuidParts(
            producer, low << 4 | mid << 36 | (high & 0xFFF) << 52 | (last >> 10) & 0xF, last & 0x3FF
        )
        for low, mid, high, last, producer in _FIELDS.iter_unpack(content)
    ]


def uuid_bytes(texts: Iterable[str]) -> bytes:
    """UUIDs of 16 bytes, one after the other, of their texts; all at once, in C.

    Raises: DataError: one of them is not a UUID.
    """
    listed = texts if isinstance(texts, list) else list(texts)
    joined = "".join(listed)
    count = len(listed)
    is_plain = len(joined) == _TEXT_CHARS * count and all(
        joined[at::_TEXT_CHARS] == "-" * count for at in _HYPHENS
    )
    if is_plain and set(map(len, listed)) <= {_TEXT_CHARS}:
        try:
            raw = bytes.fromhex(joined.replace("-", ""))
        except ValueError:
            raw = b""
        if len(raw) == UUID_BYTES * count:
            return raw
    # One is written in another way, or is wrong: then the error says which.
    return b"".join(map(_raw_of, listed))


def _raw_of(text: str) -> bytes:
    """The 16 bytes of a text: as usual, in braces, as a URN, or without hyphens."""
    digits = text.removeprefix("urn:uuid:").strip("{}").replace("-", "")
    try:
        raw = bytes.fromhex(digits)
    except ValueError as err:
        raise DataError(f"{text[:80]!r} is not a UUID ({err})") from err
    # White space, which that passes over, makes it shorter.
    if len(digits) != 2 * UUID_BYTES or len(raw) != UUID_BYTES:
        raise DataError(f"{text[:80]!r} is not a UUID (it has {UUID_BYTES} bytes)")
    return raw


# ------------------------------------------------------------------ columns of UUIDs


def parse_uuid_column(column: pa.Array | pa.ChunkedArray) -> pa.StructArray:
    """The parts of each UUID of `column`: text, 16 bytes, or Arrow's type of UUIDs.

    Where there is none, the parts are those of `NO_UUID`.

    Returns: as many rows of `producer` (6 bytes), `clock` (uint64) and `flags` (uint16).
    Raises: DataError: something is not a UUID. SetupError: there is no pyarrow.
    """
    pa = required("pyarrow", extra="arrow", by="columns of UUIDs")
    pc = required("pyarrow.compute", extra="arrow", by="columns of UUIDs")
    raw = _raw_of_column(column, pa, pc)
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

    Version and variant, which no part holds, are those that message UUIDs have.

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


def _raw_of_column(column: Any, pa: Any, pc: Any) -> bytes:
    """The 16 bytes of each UUID, one after the other, zeros where there is none."""
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
