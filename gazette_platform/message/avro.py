"""Avro messages: single objects in a stream, and journals whose fragments are Avro files. Needs the extra ``avro``.

*Single objects* (`AvroFraming`) are a marker, the fingerprint of a schema, and a datum. An object does
not say how long it is: its end is where decoding it ends. After damage the decoder therefore waits for
up to `FRAME_BYTES_MAX`, where another framing would find its place again.

*Container files* are what engines expect. A container begins with its schema, so it must begin where a
fragment begins, and brokers decide where that is. But they never split an append, and close a fragment
before the next append once it is longer than the spec asks for, which may be as little as
`FRAGMENT_BYTES`. So each append is one container longer than that, and each fragment is one append.
Live readers see containers in sequence, and `AvroContainers` takes them apart.
"""

from __future__ import annotations

import io
import struct
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, final

from gazette_platform.errors import DataError, Desynchronized, ValidationError
from gazette_platform.message.framing import unexpected_eof
from gazette_platform.message.uuid import NO_UUID, UuidParts, parse_uuid
from gazette_platform.ops.extras import required
from gazette_platform.protocol import CompressionCodec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from uuid import UUID

    from gazette_platform.protocol import JournalSpec

# ------------------------------------------------------------------ single objects

_MARKER = b"\xc3\x01"
_HEADER_BYTES = len(_MARKER) + 8
_Datum: TypeAlias = dict[str, Any]
# What fastavro raises for bytes that are not a datum of the schema, or not all of one.
_BAD_BYTES = (
    ArithmeticError,
    EOFError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
)


@final
class AvroFraming:
    """Messages of Avro single objects: dictionaries, of one schema of records.

    Args:
        schema: what messages are written with, and read as.
        older: schemas that messages in journals may have been written with.
        uuid_field: the field that has the UUID: text, bytes or fixed of 16.
        empty: makes the message of an ACK; default: one whose fields have their schema's defaults.
        content_type: what journals are labelled with; Gazette names none for Avro.

    Raises: SetupError: fastavro is missing. ValidationError: a schema is none, or has no such field.
    """

    def __init__(
        self,
        schema: _Datum,
        *,
        older: Iterable[_Datum] = (),
        uuid_field: str = "uuid",
        empty: Callable[[], _Datum] = dict,
        content_type: str = "application/x-avro-single-object",
    ) -> None:
        self.content_type = content_type
        fastavro = self._avro = required("fastavro", extra="avro", by="Avro messages")
        self._empty = empty
        self._field = uuid_field
        self._schemas: dict[bytes, Any] = {}
        try:
            for each in (schema, *older):
                parsed = fastavro.parse_schema(each)
                canonical = fastavro.schema.to_parsing_canonical_form(parsed)
                digest = fastavro.schema.fingerprint(canonical, "CRC-64-AVRO")
                self._schemas.setdefault(_MARKER + bytes.fromhex(digest), parsed)
        except (fastavro.schema.SchemaParseException, *_BAD_BYTES) as err:
            raise ValidationError(f"is not an Avro schema: {err}", path="schema") from err
        self._header, self._schema = next(iter(self._schemas.items()))
        self._uuid_as = _uuid_kind(self._schema, uuid_field)

    def decoder(self) -> _AvroDecoder:
        """See `Framing`."""
        read, schema = self._avro.schemaless_reader, self._schema
        return _AvroDecoder(self._schemas, lambda stream, writer: read(stream, writer, schema))

    def encode(self, message: _Datum) -> bytes:
        """See `Framing`."""
        out = io.BytesIO()
        out.write(self._header)
        try:
            self._avro.schemaless_writer(out, self._schema, message)
        except (AttributeError, *_BAD_BYTES) as err:
            raise ValidationError(f"the message does not fit its Avro schema: {err}") from err
        return out.getvalue()

    def uuid_of(self, message: _Datum) -> UuidParts:
        """See `Framing`."""
        value = message.get(self._field)
        return parse_uuid(value) if value else NO_UUID

    def stamp(self, message: _Datum, uuid: UUID) -> _Datum:
        """See `Framing`."""
        message[self._field] = self._uuid_as(uuid)
        return message

    def acknowledgement(self, message: _Datum) -> _Datum:  # noqa: ARG002  all are alike
        """See `Framing`."""
        return self._empty()


def _uuid_kind(schema: Any, field: str) -> Callable[[UUID], str | bytes]:
    """How the field of a schema writes a UUID: as text or bytes."""
    fields = schema.get("fields", ()) if isinstance(schema, dict) else ()
    kinds = [each["type"] for each in fields if each["name"] == field]
    branches = kinds[0] if kinds and isinstance(kinds[0], list) else kinds
    for branch in branches:
        name = branch["type"] if isinstance(branch, dict) else branch
        if name == "string":
            return str
        if name == "bytes" or (name == "fixed" and branch["size"] == 16):
            return _bytes_of
    raise ValidationError(
        f"must be a field of the record that holds text, bytes or fixed of 16 ({field})",
        path="uuid_field",
    )


def _bytes_of(uuid: UUID) -> bytes:
    return uuid.bytes


@final
class _AvroDecoder:
    def __init__(self, schemas: dict[bytes, Any], read: Callable[[io.BytesIO, Any], Any]) -> None:
        self._schemas = schemas
        self._read = read
        self._held: list[bytes] = []
        self._held_bytes = 0
        # What the frames that were cut hold: only decoding one shows where it ends.
        self._found: deque[_Datum | DataError] = deque()

    @property
    def held_bytes(self) -> int:
        """See `Decoder`."""
        return self._held_bytes

    def feed(self, content: bytes) -> list[bytes]:
        """See `Decoder`."""
        whole = b"".join((*self._held, content))
        stream = io.BytesIO(whole)
        frames: list[bytes] = []
        at, size = 0, len(whole)
        while size - at >= _HEADER_BYTES:
            header = whole[at : at + _HEADER_BYTES]
            found: _Datum | DataError = _unknown(header)
            if header in self._schemas:
                stream.seek(at + _HEADER_BYTES)
                try:
                    found = self._read(stream, self._schemas[header])
                except _BAD_BYTES as err:
                    if stream.tell() >= size:
                        break  # it may go on in the next content
                    found = DataError(f"the object does not fit its Avro schema: {err}")
            end = stream.tell() if isinstance(found, dict) else self._next_header(whole, at + 1)
            frames.append(whole[at:end])
            self._found.append(found)
            at = end
        self._held = [whole[at:]]
        self._held_bytes = size - at
        return frames

    def end(self) -> None:
        """See `Decoder`."""
        if self._held_bytes:
            raise unexpected_eof("an object", self._held_bytes)

    def decode(self, frame: bytes) -> _Datum:  # noqa: ARG002  it was decoded when it was cut
        """See `Decoder`."""
        found = self._found.popleft()
        if isinstance(found, DataError):
            raise found
        return found

    def _next_header(self, whole: bytes, begin: int) -> int:
        """Where the next object may begin: a header, or what may be the beginning of one."""
        found = [at for header in self._schemas if (at := whole.find(header, begin)) >= 0]
        if found:
            return min(found)
        for length in range(_HEADER_BYTES - 1, 0, -1):
            if any(whole.endswith(header[:length]) for header in self._schemas):
                return max(begin, len(whole) - length)
        return len(whole)


def _unknown(header: bytes) -> DataError:
    if header.startswith(_MARKER):
        return DataError(
            f"the object has a schema of the fingerprint {header[2:].hex()}, which AvroFraming was "
            "not given (name it among `older`)"
        )
    return Desynchronized(
        f"detected de-synchronization: found {header.hex()}, expected the marker {_MARKER.hex()} and "
        "the fingerprint of a schema; reading goes on at the next"
    )


# ------------------------------------------------------------------ container files

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
