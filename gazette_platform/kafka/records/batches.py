"""Kafka's record batches (format 2): taken apart for journals, and built for consumers.

`aiokafka` has the C code for records. Compression is undone here, up to a limit, because a small batch may become any size.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

import cramjam
import zstandard
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from crc32c import crc32c
from kio.schema.errors import ErrorCode

from gazette_platform.kafka.failures import KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_HEAD: Final = struct.Struct(">qiibIhiqqqhii")
_CRC_END: Final = 21
_CODEC_MASK: Final = 0x07
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
_MAGIC: Final = 2
_LENGTH_END: Final = 12

_BASE: Final = struct.Struct(">q")
_CRC_AND_LAST: Final = struct.Struct(">Ihi")
_CRC_AT: Final = 17
# A sum takes less time than to get the lock back from a thread that has taken it meanwhile.
_KEEPS_GIL: Final = 0

# Of lines for which Python takes less time than `aiokafka`'s sum.
_LARGE_BYTES: Final = 4 << 10

# A record may have 7 bytes, and a header 2: they become objects of a hundred times that.
_RECORDS_MAX: Final = 250_000
_RECORD_BYTES: Final = 7
_HEADERS_MAX: Final = 500_000
_CHECKED_BYTES: Final = 1 << 20
_CHECKED_RECORD_BYTES: Final = 64 << 10
_SHIFT_MAX: Final = 63
# Of a chunk of snappy, beside its content: each costs time.
_CHUNK_BYTES: Final = 512

_LZ4_RATIO_MAX: Final = 256
_XERIAL: Final = b"\x82SNAPPY\0"
_XERIAL_HEAD_BYTES: Final = 16
_SIZE: Final = struct.Struct(">i")

Headers = list[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of a producer."""

    producer_id: int
    """-1: the producer is not idempotent."""
    epoch: int
    base_sequence: int
    count: int
    is_transactional: bool
    data: bytes | memoryview
    """All of it, without compression."""

    def records(self) -> list[Any]:
        """All records, as `aiokafka` has them. Raises: KafkaError: they are damaged, or have too many headers."""
        try:
            if len(self.data) < _CHECKED_BYTES:
                return list(DefaultRecordBatch(self.data))
            return _with_few_headers(DefaultRecordBatch(self.data))
        except (CorruptRecordException, UnicodeDecodeError, ValueError) as err:
            raise KafkaError(ErrorCode.corrupt_message, f"damaged records: {err}") from err


def read_batch(data: bytes | memoryview, *, limit: int) -> Batch:
    """The one batch that a partition's part of a Produce request holds.

    Args:
        data: the batch.
        limit: of its bytes once compression is undone.

    Raises: KafkaError: it is malformed, too large, or of an older format.
    """
    if len(data) < _HEAD.size:
        raise KafkaError(
            ErrorCode.corrupt_message, f"a batch of {len(data)} bytes has no whole header"
        )
    (_, length, _, magic, crc, attributes, last, _, _, producer_id, epoch, sequence, count) = (
        _HEAD.unpack_from(data)
    )
    if magic != _MAGIC:
        raise KafkaError(
            ErrorCode.unsupported_for_message_format,
            f"record format {magic} is too old (a producer of Kafka 0.11 or later sends format 2)",
        )
    if length + _LENGTH_END != len(data):
        raise KafkaError(ErrorCode.invalid_record, "a request may hold one batch for a partition")
    if _sum(data) != crc:
        raise KafkaError(ErrorCode.corrupt_message, "the batch does not have its checksum")
    if attributes & _CONTROL:
        raise KafkaError(ErrorCode.invalid_record, "producers may not write control records")
    if count < 1 or last != count - 1:
        raise KafkaError(
            ErrorCode.invalid_record, f"{count} records, and the last has number {last}"
        )
    if len(data) > limit:
        raise _too_large(limit)
    codec = attributes & _CODEC_MASK
    if codec:
        data = _without_codec(
            data, attributes, _decompressed(codec, bytes(data[_HEAD.size :]), limit)
        )
    _check_records(data, count)
    return Batch(
        producer_id,
        epoch,
        sequence,
        count,
        bool(attributes & _TRANSACTIONAL),
        data,
    )


def _check_records(data: bytes | memoryview, count: int) -> None:
    """Raises: KafkaError: there are too many records, or one has too many headers."""
    if count > _RECORDS_MAX:
        raise KafkaError(
            ErrorCode.message_too_large,
            f"a batch has {count} records, and {_RECORDS_MAX} at most are taken (make batch.size smaller)",
        )
    if count * _RECORD_BYTES > len(data) - _HEAD.size:
        raise KafkaError(
            ErrorCode.corrupt_message, f"{len(data)} bytes do not hold {count} records"
        )
    if len(data) < _CHECKED_BYTES:
        return
    at = _HEAD.size
    try:
        for _ in range(count):
            length, begin = _read_varint(data, at)
            at = begin + length
            if length > _CHECKED_RECORD_BYTES and _headers_at(data, begin) > _HEADERS_MAX:
                raise _too_many_headers()
            if length < 0:
                return  # whoever reads it says what is wrong
    except IndexError:
        return


def _headers_at(data: bytes | memoryview, at: int) -> int:
    """How many headers a record has. Raises: IndexError: it ends too soon."""
    at += 1
    for _ in range(2):  # timestamp and offset
        _, at = _read_varint(data, at)
    for _ in range(2):  # key and value
        length, at = _read_varint(data, at)
        at += max(0, length)
    return _read_varint(data, at)[0]


def _read_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        byte = data[at]
        at += 1
        found |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80 or shift > _SHIFT_MAX:
            return found >> 1 ^ -(found & 1), at


def _with_few_headers(batch: Any) -> list[Any]:
    found: list[Any] = []
    count = 0
    for record in batch:
        count += len(record.headers)
        if count > _HEADERS_MAX:
            raise _too_many_headers()
        found.append(record)
    return found


def _too_many_headers() -> KafkaError:
    return KafkaError(
        ErrorCode.message_too_large, f"a batch has more than {_HEADERS_MAX} headers of records"
    )


def _without_codec(data: bytes | memoryview, attributes: int, records: bytes) -> bytes:
    head = bytearray(data[: _HEAD.size])
    struct.pack_into(">h", head, _CRC_END, attributes & ~_CODEC_MASK)
    return bytes(head + records)


def _too_large(limit: int) -> KafkaError:
    return KafkaError(
        ErrorCode.message_too_large, f"a batch is larger than --kafka.record-bytes-max={limit}"
    )


def _decompressed(codec: int, data: bytes, limit: int) -> bytes:
    undo = _CODECS.get(codec)
    if undo is None:
        raise KafkaError(ErrorCode.unsupported_compression_type, f"unknown compression {codec}")
    try:
        return undo(data, limit)
    except KafkaError:
        raise
    except Exception as err:
        raise KafkaError(ErrorCode.corrupt_message, f"damaged compression: {err}") from err


def _gunzip(data: bytes, limit: int) -> bytes:
    stream = zlib.decompressobj(zlib.MAX_WBITS | 16)
    found = stream.decompress(data, limit + 1)
    if len(found) > limit:
        raise _too_large(limit)
    if not stream.eof:
        raise KafkaError(ErrorCode.corrupt_message, "compressed records end too soon")
    return found


def _unzstd(data: bytes, limit: int) -> bytes:
    with zstandard.ZstdDecompressor().stream_reader(data) as reader:
        found: bytes = reader.read(limit + 1)
    if len(found) > limit:
        raise _too_large(limit)
    return found


def _unlz4(data: bytes, limit: int) -> bytes:
    # Its pages are not touched before they are written.
    room = bytearray(min(limit + 1, len(data) * _LZ4_RATIO_MAX))
    try:
        size = cramjam.lz4.decompress_into(data, room)
    except cramjam.DecompressionError as err:
        if "whole buffer" in str(err):
            raise _too_large(limit) from err
        raise
    if size > limit:
        raise _too_large(limit)
    return bytes(memoryview(room)[:size])


def _unsnappy(data: bytes, limit: int) -> bytes:
    if not data.startswith(_XERIAL):
        return _unsnappy_block(data, limit)
    found, size, at = [], 0, _XERIAL_HEAD_BYTES
    while at < len(data):
        (length,) = _SIZE.unpack_from(data, at)
        at += _SIZE.size
        if not 0 < length <= len(data) - at:
            raise KafkaError(ErrorCode.corrupt_message, "compressed records end too soon")
        found.append(_unsnappy_block(data[at : at + length], limit - size))
        size += len(found[-1]) + _CHUNK_BYTES
        at += length
    return b"".join(found)


def _unsnappy_block(data: bytes, limit: int) -> bytes:
    if limit < 0 or cramjam.snappy.decompress_raw_len(data) > limit:
        raise _too_large(limit)
    return bytes(cramjam.snappy.decompress_raw(data))


_CODECS: Final[Mapping[int, Callable[[bytes, int], bytes]]] = {
    1: _gunzip,
    2: _unsnappy,
    3: _unlz4,
    4: _unzstd,
}


def new_builder(line_bytes: int = 0) -> Any:
    """A builder of one batch of any size. Its `append` takes offsets from the batch's base on.

    Args:
        line_bytes: length of a line, where others have about the same.
    """
    if line_bytes >= _LARGE_BYTES:
        return LargeBuilder()
    return DefaultRecordBatchBuilder(_MAGIC, 0, 0, -1, -1, -1, 1 << 31)


Pieces = list[bytes | bytearray | memoryview]


@final
class LargeBuilder:
    """A builder for large records: it copies none of them, and has them summed by the processor."""

    def __init__(self) -> None:
        self._pieces: Pieces = []
        self._size = self._count = self._first_ms = self._last_ms = 0

    def append(
        self, offset: int, ts: int, key: bytes | None, value: bytes | None, headers: Headers
    ) -> None:
        """As of `aiokafka`'s builder."""
        rest = [_varint(len(headers))]
        for name, content in headers:
            rest += (*_sized(name.encode()), *_sized(content))
        self._add(offset, ts, key, b"".join(rest), *_sized(value))

    def append_rest(self, offset: int, ts: int, key: bytes | None, rest: memoryview) -> None:
        """Add a record without headers, whose value is ``{`` and what is left of it."""
        self._add(offset, ts, key, b"\0", _varint(len(rest) + 1) + b"{", rest)

    def _add(
        self, offset: int, ts: int, key: bytes | None, end: bytes, *value: bytes | memoryview
    ) -> None:
        if not self._count:
            self._first_ms = self._last_ms = ts
        self._count += 1
        self._last_ms = max(self._last_ms, ts)
        begin = b"".join((b"\0", _varint(ts - self._first_ms), _varint(offset), *_sized(key)))
        size = len(begin) + sum(map(len, value)) + len(end)
        length = _varint(size)
        self._size += len(length) + size
        self._pieces += (length + begin, *value, end)

    def finish(self, base: int, end: int) -> Pieces:
        """The whole batch, as of `finish_batch`."""
        state = (0, end - base - 1, self._first_ms, self._last_ms, -1, -1, -1, self._count)
        head = bytearray(_HEAD.size)
        length = _HEAD.size - _LENGTH_END + self._size
        _HEAD.pack_into(head, 0, base, length, -1, _MAGIC, 0, *state)
        crc = crc32c(memoryview(head)[_CRC_END:])
        for piece in self._pieces:
            crc = crc32c(piece, crc, _KEEPS_GIL)
        struct.pack_into(">I", head, _CRC_AT, crc)
        return [head, *self._pieces]


def _sized(content: bytes | None) -> tuple[bytes, ...]:
    return (_varint(-1),) if content is None else (_varint(len(content)), content)


def _varint(value: int) -> bytes:
    left = value << 1 ^ value >> 63
    found = bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    found.append(left)
    return bytes(found)


def finish_batch(builder: Any, count: int, *, base: int, end: int) -> Pieces:
    """The batch of a builder, in pieces.

    Args:
        count: of records.
        base: offset that those of the records count from.
        end: offset at which a consumer goes on: behind records that were left out, too.
    """
    if not count:
        return [_empty_batch(base, end)]
    if isinstance(builder, LargeBuilder):
        return builder.finish(base, end)
    built: bytearray = builder.build()
    _BASE.pack_into(built, 0, base)
    _, attributes, last = _CRC_AND_LAST.unpack_from(built, _CRC_AT)
    if last != end - base - 1:
        _CRC_AND_LAST.pack_into(built, _CRC_AT, 0, attributes, end - base - 1)
        _sign(built)
    return [built]


def _empty_batch(base: int, end: int) -> bytearray:
    built = bytearray(_HEAD.size)
    length = _HEAD.size - _LENGTH_END
    _HEAD.pack_into(built, 0, base, length, -1, _MAGIC, 0, 0, end - base - 1, -1, -1, -1, -1, -1, 0)
    _sign(built)
    return built


def _sign(built: bytearray) -> None:
    struct.pack_into(">I", built, _CRC_AT, _sum(built))


def _sum(batch: bytes | bytearray | memoryview) -> int:
    return int(crc32c(memoryview(batch)[_CRC_END:], 0, _KEEPS_GIL))
