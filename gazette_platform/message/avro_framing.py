"""Avro single objects: a marker, the fingerprint of a schema, and a datum. Needs the extra ``avro``.

An object does not say how long it is: its end is where decoding it ends. So content that was damaged
may be waited for, up to `FRAME_BYTES_MAX`, where another framing would find its place again.
"""

from __future__ import annotations

import io
import struct
from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias, final

from gazette_platform.errors import DataError, Desynchronized, ValidationError
from gazette_platform.message.framing import unexpected_eof
from gazette_platform.message.uuid import NO_UUID, UuidParts, parse_uuid
from gazette_platform.ops.extras import required

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from uuid import UUID

__all__ = ["AvroFraming"]

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
