r"""Batches of JSON records as lines: all of a batch at once if they are small, and without copies if they are large. Pure.

What `lines.encode_batch` writes of a batch, but no object for each record: a pattern takes the batch apart, and bytes are joined.
It works for most batches there are: values that begin with ``{"``, no headers, and either no keys, or keys of plain letters.
For any other the answer is None, and `encode_batch` has the last word on it.

JSON has no zero byte, and a record without headers ends with one. So the pattern finds where values end; their lengths must agree.
"""

from __future__ import annotations

import re
import struct
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gazette_platform.kafka.records.lines import Lines, Probe, is_utf8, stamp_texts
from gazette_platform.kafka.topics import Form

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gazette_platform.kafka.records.lines import Stamp

_HEAD_BYTES: Final = 61
_ATTRIBUTES: Final = struct.Struct(">h")
_ATTRIBUTES_AT: Final = 21
_FIRST_TS: Final = struct.Struct(">q")
_FIRST_TS_AT: Final = 27
# Compression, and timestamps of the broker.
_OTHER_MASK: Final = 0x0F
_TS_END: Final = 1 << 62
_RECORD_BYTES_MAX: Final = 200
"""On average. For larger ones the search for zero bytes takes longer than an object for each."""
_LARGE_BYTES: Final = 16 << 10
"""On average. Their bytes cost more than all else, so they are not copied."""

_NUMBER: Final = rb"[\x80-\xff]{0,4}+[\0-\x7f]"
# Its letters need no escapes, and no part of a value's length or begin may be taken for one of them.
_KEY: Final = rb'[^\0-\x1f"\\{}\x7f-\xff]*'
# Size, attributes, time, offset; key; length, value; headers.
_UNKEYED: Final = re.compile(
    rb'%(n)b\0(%(n)b)%(n)b\x01(%(n)b)\{"([^\0]*+)\0' % {b"n": _NUMBER}, re.DOTALL
)
_KEYED: Final = re.compile(
    rb'%(n)b\0(%(n)b)%(n)b(%(n)b)(%(k)b)(%(n)b)\{"([^\0]*+)\0' % {b"n": _NUMBER, b"k": _KEY},
    re.DOTALL,
)
_NO_KEY: Final = b"\x01"


def _varint(value: int) -> bytes:
    left = value << 1
    found = bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    found.append(left)
    return bytes(found)


_LENGTHS: Final = [_varint(length) for length in range(4098)]
_VALUE_LENGTHS: Final = _LENGTHS[2:]
"""By the length of what follows ``{"``."""

_probes: Final = msgspec.json.Decoder(Probe).decode_lines
_UNSET: Final = msgspec.UNSET


class _Other(Exception):
    """It is a batch for `encode_batch`."""


def bulk_lines(data: bytes | memoryview, count: int, stamp: Stamp, now_ms: int) -> Lines | None:
    """The lines of a batch of a topic of the form `json`; None: it is for `encode_batch`.

    Args:
        data: of the batch, as `read_batch` gives it.
        count: of its records.
        now_ms: of records without a timestamp.
    """
    (attributes,) = _ATTRIBUTES.unpack_from(data, _ATTRIBUTES_AT)
    if attributes & _OTHER_MASK or len(data) > _HEAD_BYTES + count * _RECORD_BYTES_MAX:
        return None
    try:
        content = _content(data, count, stamp, now_ms)
    except (_Other, msgspec.MsgspecError, RecursionError):
        return None
    if content.count(b"\n") != count or not is_utf8(content):
        return None
    return Lines([content], len(content), content.index(b"\n") + 1)


def large_lines(
    form: Form, records: Sequence[Any], size: int, stamp: Stamp, now_ms: int
) -> Lines | None:
    """The lines of a batch of large records; None: it is for `encode_batch`.

    Args:
        records: as `encode_batch` has them.
        size: of the batch.
        now_ms: of records without a timestamp.
    """
    if form is not Form.JSON or size < len(records) * _LARGE_BYTES:
        return None
    pieces: list[bytes | memoryview] = []
    for record, begin in zip(records, stamp_texts(stamp, len(records)), strict=False):
        value, ts = record.value, record.timestamp
        if record.key is not None or record.headers or not _is_plain_object(value):
            return None
        pieces += (
            begin,
            b'","ts":%d},' % (ts if ts >= 0 else now_ms),
            memoryview(value)[1:],
            b"\n",
        )
    return Lines(pieces, sum(map(len, pieces)), sum(map(len, pieces[:4])))


def _is_plain_object(value: bytes | None) -> bool:
    """Whether a value is a JSON object with members, in one line, without ``_meta``."""
    if value is None or value[:2] != b'{"' or b"\n" in value or not is_utf8(value):
        return False
    try:
        probes = _probes(value)
    except (msgspec.MsgspecError, RecursionError):
        return False
    return len(probes) == 1 and probes[0].meta is _UNSET


def _content(data: bytes | memoryview, count: int, stamp: Stamp, now_ms: int) -> bytes:
    """Raises: _Other; MsgspecError, RecursionError: a value is not JSON."""
    body = memoryview(data)[_HEAD_BYTES:]
    first = _KEYED.match(body)
    is_keyed = first is not None and first[2] != _NO_KEY
    groups = 5 if is_keyed else 3
    found = (_KEYED if is_keyed else _UNKEYED).split(body)
    # Between records there is nothing.
    if len(found) != count * (groups + 1) + 1 or b"".join(found[:: groups + 1]):
        raise _Other
    times, *keys, lengths, rests = (found[at :: groups + 1] for at in range(1, groups + 1))
    _check_lengths(lengths, rests, _VALUE_LENGTHS)
    if is_keyed:
        _check_lengths(keys[0], keys[1], _LENGTHS)
    _check_objects(rests)
    (first_ts,) = _FIRST_TS.unpack_from(data, _FIRST_TS_AT)
    texts = _texts(set(times), first_ts, now_ms, b',"key":"' if is_keyed else b'},"')
    columns = [stamp_texts(stamp, count), map(texts.__getitem__, times)]
    if is_keyed:
        columns += [keys[1], repeat(b'"},"')]
    columns += [rests, repeat(b"\n")]
    return b"".join(chain.from_iterable(zip(*columns, strict=False)))


def _check_lengths(
    lengths: Sequence[bytes], texts: Sequence[bytes], table: Sequence[bytes]
) -> None:
    """Check that texts have the lengths that a batch says. No number begins with another, so all are compared at once."""
    try:
        expected = b"".join(map(table.__getitem__, map(len, texts)))
    except IndexError:
        raise _Other from None
    if b"".join(lengths) != expected:
        raise _Other


def _check_objects(rests: Sequence[bytes]) -> None:
    """Check that each value is a JSON object without ``_meta``."""
    lines = b'\n{"'.join([b"", *rests])
    probes = _probes(lines)
    if not len(probes) == len(rests) == lines.count(b"\n"):
        raise _Other
    if [probe.meta for probe in probes].count(_UNSET) != len(rests):
        raise _Other


def _texts(times: set[bytes], first_ts: int, now_ms: int, end: bytes) -> dict[bytes, bytes]:
    """What lines have for each time of a batch."""
    texts = {}
    for time in times:
        left = 0
        for number, byte in enumerate(time):
            left |= (byte & 0x7F) << 7 * number
        ts = first_ts + (left >> 1 ^ -(left & 1))
        if ts >= _TS_END:
            raise _Other
        texts[time] = b'","ts":%d%b' % (ts if ts >= 0 else now_ms, end)
    return texts
