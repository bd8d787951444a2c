"""Produce and Fetch on the wire, by hand: they are most of what a busy gateway reads and writes. Pure.

What `kio` makes of the same bytes is the same; a test compares them. Answers to Produce with errors are left to it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple, final

from gazette_platform.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    Pieces = list[bytes | bytearray | memoryview]

PRODUCE_LEAST: Final = 3
PRODUCE_MOST: Final = 12
FETCH_LEAST: Final = 4
FETCH_MOST: Final = 12
"""Versions of the requests."""

PARTS_MAX: Final = 50_000
"""Of any request: its topics, partitions, groups and the like. Each costs some microseconds to read and to answer."""

_PRODUCE_FLEXIBLE: Final = 9
_PRODUCE_LOG_START: Final = 5
_PRODUCE_ERRORS: Final = 8
_FETCH_FLEXIBLE: Final = 12
_FETCH_LOG_START: Final = 5
_FETCH_SESSION: Final = 7
_FETCH_EPOCH: Final = 9
_FETCH_RACK: Final = 11
_BYTE: Final = struct.Struct(">b")
_SHORT: Final = struct.Struct(">h")
_INT: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")
_HEAD_BYTES: Final = 8
_UVARINT_BYTES_MAX: Final = 5
_MORE: Final = 0x80


class PartitionData(NamedTuple):
    """The batch for a partition."""

    number: int
    records: memoryview | None
    """They are a part of the frame."""


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


def read_produce(frame: bytes | bytearray, version: int) -> ProduceRequest:
    """The request of a frame. Raises: DataError: it is cut off; ValueError, struct.error."""
    cursor = _Cursor(frame, is_flexible=version >= _PRODUCE_FLEXIBLE)
    client_id = cursor.client_id()
    transactional_id = cursor.text()
    acks, timeout_ms = cursor.number(_SHORT), cursor.number(_INT)
    topics = []
    for _ in range(cursor.count()):
        name, parts = cursor.name(), []
        for _ in range(cursor.count()):
            cursor.add_part()
            parts.append(PartitionData(cursor.number(_INT), cursor.content()))
            cursor.pass_tags()
        cursor.pass_tags()
        topics.append(TopicData(name, parts))
    return ProduceRequest(client_id, transactional_id, acks, timeout_ms / 1000, topics)


class WantedPart(NamedTuple):
    """A partition that is asked for."""

    number: int
    offset: int
    bytes_max: int


class FetchRequest(NamedTuple):
    """A request. What else it may have does not matter here."""

    client_id: str
    wait_s: float
    bytes_min: int
    bytes_max: int
    isolation_level: int
    topics: list[tuple[str, list[WantedPart]]]


def read_fetch(frame: bytes | bytearray, version: int) -> FetchRequest:
    """The request of a frame. Raises: DataError: it is cut off; ValueError, struct.error."""
    cursor = _Cursor(frame, is_flexible=version >= _FETCH_FLEXIBLE)
    client_id = cursor.client_id()
    _, wait_ms, bytes_min, bytes_max = (cursor.number(_INT) for _ in range(4))
    isolation_level = cursor.number(_BYTE)
    if version >= _FETCH_SESSION:
        cursor.pass_numbers(_INT, _INT)
    topics = []
    for _ in range(cursor.count()):
        name, parts = cursor.name(), []
        for _ in range(cursor.count()):
            cursor.add_part()
            number = cursor.number(_INT)
            if version >= _FETCH_EPOCH:
                cursor.pass_numbers(_INT)
            offset = cursor.number(_LONG)
            if version >= _FETCH_FLEXIBLE:
                cursor.pass_numbers(_INT)
            if version >= _FETCH_LOG_START:
                cursor.pass_numbers(_LONG)
            parts.append(WantedPart(number, offset, cursor.number(_INT)))
            cursor.pass_tags()
        cursor.pass_tags()
        topics.append((name, parts))
    if version >= _FETCH_SESSION:  # what a session is to forget
        for _ in range(cursor.count()):
            cursor.name()
            for _ in range(cursor.count()):
                cursor.add_part()
                cursor.pass_numbers(_INT)
            cursor.pass_tags()
    if version >= _FETCH_RACK:
        cursor.text()
    return FetchRequest(client_id, wait_ms / 1000, bytes_min, bytes_max, isolation_level, topics)


@final
class _Cursor:
    """Reads the fields of a frame, one after the other."""

    def __init__(self, frame: bytes | bytearray, *, is_flexible: bool) -> None:
        self._frame = memoryview(frame)
        self._at = _HEAD_BYTES
        self._is_flexible = is_flexible
        self._parts = 0

    def add_part(self) -> None:
        """Count one. Raises: DataError: there are too many."""
        self._parts += 1
        if self._parts > PARTS_MAX:
            raise DataError(f"a request has more than {PARTS_MAX} parts")

    def number(self, kind: struct.Struct) -> int:
        (found,) = kind.unpack_from(self._frame, self._at)
        self._at += kind.size
        return int(found)

    def pass_numbers(self, *kinds: struct.Struct) -> None:
        for kind in kinds:
            self.number(kind)

    def _uvarint(self) -> int:
        found = 0
        for number in range(_UVARINT_BYTES_MAX):
            byte = self._take(1)[0]
            found |= (byte & ~_MORE) << 7 * number
            if byte < _MORE:
                return found
        raise DataError("a number has no end")

    def _take(self, size: int) -> memoryview:
        begin, self._at = self._at, self._at + size
        if size < 0 or self._at > len(self._frame):
            raise DataError(f"{size} bytes at {begin} of {len(self._frame)}")
        return self._frame[begin : self._at]

    def _sized(self, legacy_size: int | None) -> memoryview | None:
        size = self._uvarint() - 1 if legacy_size is None else legacy_size
        return None if size == -1 else self._take(size)

    def client_id(self) -> str:
        """The end of the header, whose text is the same in all versions."""
        found = self._sized(self.number(_SHORT))
        self.pass_tags()
        return "" if found is None else str(found, "utf-8")

    def text(self) -> str | None:
        found = self._sized(None if self._is_flexible else self.number(_SHORT))
        return None if found is None else str(found, "utf-8")

    def name(self) -> str:
        """Of a topic, which is a part. Raises: DataError: it has none."""
        self.add_part()
        name = self.text()
        if name is None:
            raise DataError("a topic has no name")
        return name

    def content(self) -> memoryview | None:
        return self._sized(None if self._is_flexible else self.number(_INT))

    def count(self) -> int:
        """Of the entries of an array; none, if it is null."""
        return self._uvarint() - 1 if self._is_flexible else self.number(_INT)

    def pass_tags(self) -> None:
        for _ in range(self._uvarint() if self._is_flexible else 0):
            self.add_part()
            self._uvarint()
            self._take(self._uvarint())


class Appended(NamedTuple):
    """An answer to Produce without errors.

    Attributes:
        topics: names, and by each the indexes of partitions and the offsets of their first records.
    """

    version: int
    topics: list[tuple[str, list[tuple[int, int]]]]

    @property
    def has_error(self) -> bool:
        """Whether there is an error."""
        return False

    def frame(self, correlation_id: int, throttle_s: float) -> Pieces:
        """The frame of the answer, with its size."""
        is_flexible = self.version >= _PRODUCE_FLEXIBLE
        end = _APPENDED_FLEXIBLE if is_flexible else _appended_end(self.version)
        tags = b"\0" if is_flexible else b""
        pieces = [_INT.pack(correlation_id), tags, _count(len(self.topics), is_flexible)]
        for name, parts in self.topics:
            pieces += (_text(name, is_flexible), _count(len(parts), is_flexible))
            pieces += [_APPENDED.pack(index, 0, offset) + end for index, offset in parts]
            pieces.append(tags)
        pieces += (_INT.pack(round(throttle_s * 1000)), tags)
        return [b"".join((_INT.pack(sum(map(len, pieces))), *pieces))]


_APPENDED: Final = struct.Struct(">ihq")
_NO_OFFSET: Final = b"\xff" * 8
# No time of the append, no begin of the log, no errors of records and no message; no tags.
_APPENDED_FLEXIBLE: Final = _NO_OFFSET * 2 + b"\1\0\0"


def _appended_end(version: int) -> bytes:
    """What follows the offset of a partition, in versions without tags."""
    end = _NO_OFFSET * (2 if version >= _PRODUCE_LOG_START else 1)
    return end + _INT.pack(0) + _SHORT.pack(-1) if version >= _PRODUCE_ERRORS else end


class FetchedPart(NamedTuple):
    """What was found of a partition. Offsets that are not known are -1."""

    number: int
    error_code: int = 0
    head: int = -1
    stable: int = -1
    """The offset before which all transactions are decided."""
    start: int = -1
    records: Sequence[bytes | bytearray | memoryview] = ()
    """A batch, in pieces."""

    @property
    def size(self) -> int:
        """Bytes of the records."""
        return sum(map(len, self.records))


class Fetched(NamedTuple):
    """An answer to Fetch. It names no session, and no transactions that were aborted."""

    version: int
    topics: list[tuple[str, list[FetchedPart]]]

    @property
    def size(self) -> int:
        """Bytes of all records."""
        return sum(part.size for _, parts in self.topics for part in parts)

    @property
    def has_error(self) -> bool:
        """Whether there is an error."""
        return any(part.error_code for _, parts in self.topics for part in parts)

    def frame(self, correlation_id: int, throttle_s: float) -> Pieces:
        """The frame of the answer, with its size. Records are pieces of their own, and not copied."""
        version = self.version
        is_flexible = version >= _FETCH_FLEXIBLE
        tags = b"\0" if is_flexible else b""
        session = _NO_SESSION if version >= _FETCH_SESSION else b""
        start = [_INT.pack(correlation_id), tags, _INT.pack(round(throttle_s * 1000)), session]
        pieces: Pieces = [*start, _count(len(self.topics), is_flexible)]
        # No aborted transactions, and no replica to go on with.
        middle = (b"\0" if is_flexible else _INT.pack(-1)) + (
            _INT.pack(-1) if version >= _FETCH_RACK else b""
        )
        for name, parts in self.topics:
            pieces += (_text(name, is_flexible), _count(len(parts), is_flexible))
            for part in parts:
                head = _FETCHED.pack(part.number, part.error_code, part.head, part.stable)
                if version >= _FETCH_LOG_START:
                    head += _LONG.pack(part.start)
                size = part.size
                pieces += (head, middle, _uvarint(size + 1) if is_flexible else _INT.pack(size))
                pieces += (*part.records, tags)
            pieces.append(tags)
        pieces.append(tags)
        return [_INT.pack(sum(map(len, pieces))), *pieces]


_FETCHED: Final = struct.Struct(">ihqq")
_NO_SESSION: Final = bytes(_SHORT.size + _INT.size)


def _text(text: str, is_flexible: bool) -> bytes:  # noqa: FBT001
    content = text.encode()
    size = _uvarint(len(content) + 1) if is_flexible else _SHORT.pack(len(content))
    return size + content


def _count(count: int, is_flexible: bool) -> bytes:  # noqa: FBT001
    return _uvarint(count + 1) if is_flexible else _INT.pack(count)


def _uvarint(value: int) -> bytes:
    found = bytearray()
    while value >= _MORE:
        found.append(value & 0x7F | _MORE)
        value >>= 7
    found.append(value)
    return bytes(found)
