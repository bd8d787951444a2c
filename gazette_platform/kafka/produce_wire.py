"""Produce's requests and answers on the wire, by hand: they are most of what a busy gateway reads and writes. Pure.

What `kio` makes of the same bytes is the same; a test compares them. Answers with errors are left to it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple, final

from gazette_platform.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable

LEAST: Final = 3
MOST: Final = 12
"""Versions of the request."""

PARTS_MAX: Final = 50_000
"""Of any request: its topics, partitions, groups and the like. Each costs some microseconds to read and to answer."""

_FLEXIBLE: Final = 9
_WITH_LOG_START: Final = 5
_WITH_ERRORS: Final = 8
_SHORT: Final = struct.Struct(">h")
_INT: Final = struct.Struct(">i")
_HEAD_BYTES: Final = 8
_UVARINT_BYTES_MAX: Final = 5
_MORE: Final = 0x80


class PartitionData(NamedTuple):
    """The batch for a partition."""

    number: int
    records: bytes | None


class TopicData(NamedTuple):
    """The batches for a topic."""

    name: str
    partition_data: list[PartitionData]


class ProduceRequest(NamedTuple):
    """A request, with names of fields as `kio` has them."""

    client_id: str
    transactional_id: str | None
    acks: int
    timeout_s: float
    topic_data: list[TopicData]


def read_produce(frame: bytes, version: int) -> ProduceRequest:
    """The request of a frame. Raises: DataError: it is cut off; ValueError, struct.error."""
    cursor = _Cursor(frame, is_flexible=version >= _FLEXIBLE)
    client_id = cursor.legacy_text() or ""
    cursor.pass_tags()
    transactional_id = cursor.text()
    acks, timeout_ms = cursor.int16(), cursor.int32()
    topics = []
    for _ in range(cursor.count()):
        cursor.add_part()
        name, parts = cursor.text(), []
        for _ in range(cursor.count()):
            cursor.add_part()
            parts.append(PartitionData(cursor.int32(), cursor.content()))
            cursor.pass_tags()
        cursor.pass_tags()
        if name is None:
            raise DataError("a topic has no name")
        topics.append(TopicData(name, parts))
    return ProduceRequest(client_id, transactional_id, acks, timeout_ms / 1000, topics)


@final
class _Cursor:
    """Reads the fields of a frame, one after the other."""

    def __init__(self, frame: bytes, *, is_flexible: bool) -> None:
        self._frame = frame
        self._at = _HEAD_BYTES
        self._is_flexible = is_flexible
        self._parts = 0

    def add_part(self) -> None:
        """Count one. Raises: DataError: there are too many."""
        self._parts += 1
        if self._parts > PARTS_MAX:
            raise DataError(f"a request has more than {PARTS_MAX} parts")

    def int16(self) -> int:
        (found,) = _SHORT.unpack_from(self._frame, self._at)
        self._at += _SHORT.size
        return int(found)

    def int32(self) -> int:
        (found,) = _INT.unpack_from(self._frame, self._at)
        self._at += _INT.size
        return int(found)

    def _uvarint(self) -> int:
        found = 0
        for number in range(_UVARINT_BYTES_MAX):
            byte = self._take(1)[0]
            found |= (byte & ~_MORE) << 7 * number
            if byte < _MORE:
                return found
        raise DataError("a number has no end")

    def _take(self, size: int) -> bytes:
        begin, self._at = self._at, self._at + size
        if size < 0 or self._at > len(self._frame):
            raise DataError(f"{size} bytes at {begin} of {len(self._frame)}")
        return self._frame[begin : self._at]

    def _content(self, legacy_size: int | None) -> bytes | None:
        size = self._uvarint() - 1 if legacy_size is None else legacy_size
        return None if size == -1 else self._take(size)

    def legacy_text(self) -> str | None:
        """A text as the header has it, whatever the version."""
        found = self._content(self.int16())
        return None if found is None else found.decode()

    def text(self) -> str | None:
        found = self._content(None if self._is_flexible else self.int16())
        return None if found is None else found.decode()

    def content(self) -> bytes | None:
        return self._content(None if self._is_flexible else self.int32())

    def count(self) -> int:
        """Of the entries of an array; none, if it is null."""
        return self._uvarint() - 1 if self._is_flexible else self.int32()

    def pass_tags(self) -> None:
        for _ in range(self._uvarint() if self._is_flexible else 0):
            self.add_part()
            self._uvarint()
            self._take(self._uvarint())


class Appended(NamedTuple):
    """An answer without errors.

    Attributes:
        topics: names, and by each the indexes of partitions and the offsets of their first records.
    """

    version: int
    topics: list[tuple[str, list[tuple[int, int]]]]

    def frame(self, correlation_id: int, throttle_s: float) -> bytes:
        """The frame of the answer, with its size."""
        is_flexible = self.version >= _FLEXIBLE
        part = _PART_FLEXIBLE if is_flexible else _part(self.version)
        tags = b"\0" if is_flexible else b""
        pieces = [_INT.pack(correlation_id), tags, _count(len(self.topics), is_flexible)]
        for name, parts in self.topics:
            text = name.encode()
            size = _uvarint(len(text) + 1) if is_flexible else _SHORT.pack(len(text))
            pieces += (size, text, _count(len(parts), is_flexible))
            pieces += _packed(part, parts)
            pieces.append(tags)
        pieces += (_INT.pack(round(throttle_s * 1000)), tags)
        return b"".join((_INT.pack(sum(map(len, pieces))), *pieces))


_BEGIN: Final = struct.Struct(">ihq")
_NO_OFFSET: Final = b"\xff" * 8
# No time of the append, no begin of the log, no errors of records and no message; no tags.
_PART_FLEXIBLE: Final = _NO_OFFSET * 2 + b"\1\0\0"


def _part(version: int) -> bytes:
    """What follows the offset of a partition, in versions without tags."""
    end = _NO_OFFSET * (2 if version >= _WITH_LOG_START else 1)
    return end + _INT.pack(0) + _SHORT.pack(-1) if version >= _WITH_ERRORS else end


def _packed(end: bytes, parts: Iterable[tuple[int, int]]) -> list[bytes]:
    return [_BEGIN.pack(index, 0, offset) + end for index, offset in parts]


def _count(count: int, is_flexible: bool) -> bytes:  # noqa: FBT001
    return _uvarint(count + 1) if is_flexible else _INT.pack(count)


def _uvarint(value: int) -> bytes:
    found = bytearray()
    while value >= _MORE:
        found.append(value & 0x7F | _MORE)
        value >>= 7
    found.append(value)
    return bytes(found)
