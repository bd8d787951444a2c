"""Journals whose fragments are Avro files: object containers, whole, as engines expect them.

A container begins with its schema, so that only the beginning of a fragment is a place for one, and
brokers, which know bytes only, decide where fragments begin. But they never split an append, and close
a fragment before the next append once it is longer than the spec asks for, and that may be as little
as `FRAGMENT_BYTES`. So each append is one container longer than that, and each fragment one append.
Live readers see containers one after the other, and this module's splitter takes them apart.

Needs the extra ``avro``.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from gazette_platform.errors import DataError, ValidationError
from gazette_platform.message.framing import unexpected_eof
from gazette_platform.ops.extras import required
from gazette_platform.protocol import CompressionCodec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gazette_platform.protocol import JournalSpec

__all__ = [
    "AVRO_CONTENT_TYPE",
    "FRAGMENT_BYTES",
    "AvroBlock",
    "AvroContainers",
    "avro_records",
    "check_avro_spec",
    "encode_avro_file",
]

AVRO_CONTENT_TYPE: Final = "application/avro"

FRAGMENT_BYTES: Final = 1024
"""``fragment.length`` of such journals: the least that a spec may have."""

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_PADDING = "gazette.padding"
_VARINT_BYTES_MAX = 10
_BLOCK_BYTES_MAX = 256 << 20  # of a longer one the length is more likely damaged
_HEADER_BYTES_MAX = 16 << 20
_HEADER_ENTRIES_MAX = 1000
# Of a block. Records without fields take no bytes, so that a size says nothing of them.
_RECORDS_MAX = 16 << 20


def check_avro_spec(spec: JournalSpec) -> None:
    """See that each fragment of a journal will be one append.

    Raises: ValidationError: says what of the spec has to change.
    """
    if spec.labels.values_of("content-type") != (AVRO_CONTENT_TYPE,):
        raise ValidationError(
            f"must have the one value {AVRO_CONTENT_TYPE}", path="labels.content-type"
        )
    if spec.fragment.length != FRAGMENT_BYTES:
        raise ValidationError(
            f"must be {FRAGMENT_BYTES}, so that each append is a fragment of its own "
            f"({spec.fragment.length})",
            path="fragment.length",
        )
    if spec.fragment.codec is not CompressionCodec.NONE:
        raise ValidationError(
            "must be NONE, as engines read no Avro files that are compressed again "
            f"({spec.fragment.codec.name})",
            path="fragment.compression_codec",
        )


def encode_avro_file(schema: Any, records: Iterable[Any], *, codec: str = "deflate") -> bytes:
    """Records as one container: append it by one append, which is one fragment, and one file.

    The more records it has the better, since each is a file: some MiB, or what comes in a minute.

    Args:
        schema: of the records.
        records: one at least.
        codec: of its blocks: ``null``, ``deflate``, or another that fastavro and all readers have.

    Raises: ValidationError: there are no records, or one does not fit, or the codec is not there.
            SetupError: fastavro is missing.
    """
    avro = _fastavro()
    kept = list(records)
    if not kept:
        raise ValidationError("an Avro file without records cannot be appended", path="records")
    try:
        parsed = avro.parse_schema(schema)
    except (avro.schema.SchemaParseException, LookupError, TypeError, ValueError) as err:
        raise ValidationError(f"is not an Avro schema: {err}", path="schema") from err
    try:
        content = _written(avro, parsed, kept, codec, padding=0)
        if len(content) <= FRAGMENT_BYTES:  # the next append would join its fragment
            content = _written(avro, parsed, kept, codec, padding=FRAGMENT_BYTES)
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as err:
        raise ValidationError(
            f"the records do not fit their Avro schema, or {codec} is not a codec of Avro: {err}"
        ) from err
    return content


def _written(avro: Any, schema: Any, records: list[Any], codec: str, *, padding: int) -> bytes:
    out = io.BytesIO()
    metadata = {_PADDING: " " * padding} if padding else None
    avro.writer(out, schema, records, codec=codec, metadata=metadata)
    return out.getvalue()


class AvroBlock(NamedTuple):
    """A block of records, with the header of its container."""

    header: bytes
    content: bytes
    """From the count of its records to the sync marker after them."""
    begins_file: bool
    """Whether it is the first of its container."""

    @property
    def file(self) -> bytes:
        """A container of this block alone."""
        return self.header + self.content


def avro_records(block: AvroBlock) -> list[Any]:
    """The records of a block.

    Raises: DataError: they do not fit the schema of their container. SetupError: fastavro is missing.
    """
    avro = _fastavro()
    try:
        return list(avro.reader(io.BytesIO(block.file)))
    except Exception as err:
        raise DataError(f"an Avro block cannot be read: {type(err).__name__}: {err}") from err


@final
class AvroContainers:
    """Takes content of a journal apart, in pieces of any size, into blocks of its containers.

    It begins where a container does: at the begin of any fragment or append.
    """

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._needed_bytes = 0  # before anything more can be known
        self._header = b""
        self._begins_file = False

    @property
    def held_bytes(self) -> int:
        """Of a header or block that has begun, and is not whole yet."""
        return self._held_bytes

    def feed(self, content: bytes) -> list[AvroBlock]:
        """The blocks that `content` completes.

        Raises: DataError: it is not an Avro container.
        """
        self._held.append(bytes(content))
        self._held_bytes += len(content)
        if self._held_bytes < self._needed_bytes:
            return []
        whole = b"".join(self._held)
        blocks: list[AvroBlock] = []
        at = self._needed_bytes = 0
        while at < len(whole):
            try:
                # A block begins with a count, which the magic is not: it would be a negative one.
                if whole.startswith(_MAGIC[: len(whole) - at], at):
                    end = _header_end(whole, at)
                    self._header, self._begins_file = whole[at:end], True
                else:
                    end = self._block_end(whole, at)
                    blocks.append(AvroBlock(self._header, whole[at:end], self._begins_file))
                    self._begins_file = False
            except _Incomplete as cut:
                self._needed_bytes = cut.needs - at
                break
            at = end
        self._held, self._held_bytes = [whole[at:]], len(whole) - at
        return blocks

    def end(self) -> None:
        """See that content may end here. Raises: DataError: it ends within a block."""
        if self._held_bytes:
            raise unexpected_eof("an Avro container", self._held_bytes)

    def _block_end(self, whole: bytes, at: int) -> int:
        if not self._header:
            raise DataError(
                f"content begins with {whole[at : at + 8].hex()} and not with an Avro container "
                "(read from the begin of a fragment)"
            )
        count, begin = _varint(whole, at)
        size, begin = _varint(whole, begin)
        if not 0 <= count <= _RECORDS_MAX or not 0 <= size <= _BLOCK_BYTES_MAX:
            raise DataError(f"an Avro block cannot have {count} records in {size} bytes")
        end = begin + size + _SYNC_BYTES
        if end > len(whole):
            raise _Incomplete(end)
        if whole[end - _SYNC_BYTES : end] != self._header[-_SYNC_BYTES:]:
            raise DataError("an Avro block does not end with the sync marker of its container")
        return end


class _Incomplete(Exception):
    """Content up to `needs` is needed, at least."""

    def __init__(self, needs: int) -> None:
        self.needs = needs


def _header_end(whole: bytes, at: int) -> int:
    """Where a header ends: the magic, a map of metadata in blocks, and the sync marker."""
    end = at + len(_MAGIC)
    entries = 0
    while True:
        count, end = _varint(whole, end)
        if count < 0:  # the length of the block in bytes follows
            _, end = _varint(whole, end)
        if count == 0:
            break
        entries += abs(count)
        if entries > _HEADER_ENTRIES_MAX:
            raise DataError(f"the header of an Avro container has {entries} entries")
        for _ in range(2 * abs(count)):  # keys and values
            size, begin = _varint(whole, end)
            if not 0 <= size <= _HEADER_BYTES_MAX:
                raise DataError(f"the header of an Avro container has a text of {size} bytes")
            end = begin + size
            if end - at > _HEADER_BYTES_MAX:
                raise DataError(
                    f"the header of an Avro container is over {_HEADER_BYTES_MAX} bytes"
                )
    if end + _SYNC_BYTES > len(whole):
        raise _Incomplete(end + _SYNC_BYTES)
    return end + _SYNC_BYTES


def _varint(whole: bytes, at: int) -> tuple[int, int]:
    """A number in zigzag, and where it ends."""
    value = 0
    for index in range(_VARINT_BYTES_MAX):
        if at + index >= len(whole):
            raise _Incomplete(at + index + 1)
        byte = whole[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at + index + 1
    raise DataError(f"no number of an Avro container begins with {whole[at : at + 10].hex()}")


def _fastavro() -> Any:
    return required("fastavro", extra="avro", by="Avro files")
