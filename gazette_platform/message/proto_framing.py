"""Fixed frames of protobuf: magic bytes, a length, and a message, with its UUID as bytes in a field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, final

from google.protobuf.message import DecodeError, EncodeError

from gazette_platform.errors import DataError, Desynchronized, ValidationError
from gazette_platform.message.framing import (
    FIXED_HEADER,
    FIXED_MAGIC,
    FRAME_BYTES_MAX,
    frame_fixed,
    unexpected_eof,
)
from gazette_platform.message.uuid import NO_UUID, UuidParts, parse_uuid

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

__all__ = ["FixedSplitter", "ProtoFraming"]

M = TypeVar("M")


class FixedSplitter:
    """The part of a `Decoder` that cuts fixed frames, headers included.

    Where there is no magic, all up to the next one is a frame of garbage.
    """

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._wanted_bytes = FIXED_HEADER.size

    @property
    def held_bytes(self) -> int:
        """See `Decoder`."""
        return self._held_bytes

    def feed(self, content: bytes) -> list[bytes]:
        """See `Decoder`."""
        self._held.append(content)
        self._held_bytes += len(content)
        if self._held_bytes < self._wanted_bytes:
            return []
        whole = b"".join(self._held)
        frames: list[bytes] = []
        at, size = 0, len(whole)
        self._wanted_bytes = FIXED_HEADER.size
        while size - at >= FIXED_HEADER.size:
            end = _frame_end(whole, at)
            if end < 0:
                end = _next_magic(whole, at + 1)
            elif end > size:
                self._wanted_bytes = end - at
                break
            frames.append(whole[at:end])
            at = end
        self._held = [whole[at:]]
        self._held_bytes = size - at
        return frames

    def end(self) -> None:
        """See `Decoder`. A newline may stand at the very end."""
        if self._held_bytes and b"".join(self._held) != b"\n":
            raise unexpected_eof("a frame", self._held_bytes)


def body_of(frame: bytes) -> bytes:
    """The body of a fixed frame. Raises: Desynchronized: it is garbage."""
    if len(frame) < FIXED_HEADER.size or _frame_end(frame, 0) != len(frame):
        raise Desynchronized(
            f"detected de-synchronization: {len(frame)} bytes of garbage, that begin with "
            f"{frame[:8].hex()}, and not with the magic {FIXED_MAGIC.hex()} and a length up to "
            f"{FRAME_BYTES_MAX}; reading continues after them"
        )
    return frame[FIXED_HEADER.size :]


def _frame_end(content: bytes, at: int) -> int:
    """Where the frame ends whose header is at `at`; -1 if there is none."""
    magic, length = FIXED_HEADER.unpack_from(content, at)
    if magic != FIXED_MAGIC or length > FRAME_BYTES_MAX:
        return -1
    return at + FIXED_HEADER.size + int(length)


def _next_magic(content: bytes, begin: int) -> int:
    """Where the next frame may begin: a magic, or what may be the beginning of one."""
    found = content.find(FIXED_MAGIC, begin)
    if found >= 0:
        return found
    for length in range(len(FIXED_MAGIC) - 1, 0, -1):
        if content.endswith(FIXED_MAGIC[:length]):
            return max(begin, len(content) - length)
    return len(content)


@final
class ProtoFraming(Generic[M]):
    """Messages of fixed frames.

    Args:
        message_type: a generated class; None: messages are the bytes of frames, and have no UUIDs.
        uuid_field: the field of 16 bytes that has the UUID.
    """

    content_type = "application/x-protobuf-fixed"

    def __init__(self, *, message_type: type[M] | None = None, uuid_field: str = "uuid") -> None:
        kind: Any = message_type
        if kind is not None and uuid_field not in kind.DESCRIPTOR.fields_by_name:
            raise ValidationError(
                f"{kind.DESCRIPTOR.full_name} has no such field ({uuid_field})", path="uuid_field"
            )
        self._type = kind
        self._field = uuid_field

    @property
    def has_uuids(self) -> bool:
        """Whether messages have UUIDs."""
        return self._type is not None

    def decoder(self) -> _ProtoDecoder[M]:
        """See `Framing`."""
        return _ProtoDecoder(bytes if self._type is None else self._type.FromString)

    def encode(self, message: M) -> bytes:
        """See `Framing`."""
        body = message
        if self._type is not None:
            try:
                body = cast("Any", message).SerializeToString()
            except EncodeError as err:
                raise ValidationError(f"the message cannot be written: {err}") from err
        return frame_fixed(cast("bytes", body))

    def uuid_of(self, message: M) -> UuidParts:
        """See `Framing`."""
        raw = None if self._type is None else getattr(message, self._field)
        return parse_uuid(raw) if raw else NO_UUID

    def stamp(self, message: M, uuid: UUID) -> M:
        """See `Framing`."""
        if self._type is None:
            raise ValidationError(
                "bytes have no place for a UUID (give ProtoFraming a `message_type`)"
            )
        setattr(message, self._field, uuid.bytes)
        return message

    def acknowledgement(self, message: M) -> M:  # noqa: ARG002  all are alike
        """See `Framing`."""
        return cast("M", b"" if self._type is None else self._type())


@final
class _ProtoDecoder(FixedSplitter, Generic[M]):
    def __init__(self, parse: Callable[[bytes], M]) -> None:
        super().__init__()
        self._parse = parse

    def decode(self, frame: bytes) -> M:
        """See `Decoder`."""
        body = body_of(frame)
        try:
            return self._parse(body)
        except DecodeError as err:
            raise DataError(f"the frame of {len(frame)} bytes is no such message: {err}") from err
