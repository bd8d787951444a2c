"""Records within content: how journals of a ``content-type`` delimit them, in batches.

Batch functions take a block of content and give whole records and the rest, so that C code does
the work per byte. A `Framing` knows messages as well, and where they have their UUIDs.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Protocol, TypeVar

from gazette_platform.errors import DataError, Desynchronized

if TYPE_CHECKING:
    from uuid import UUID

    from gazette_platform.message.uuid import UuidParts

M = TypeVar("M")
M_co = TypeVar("M_co", covariant=True)

FIXED_MAGIC = b"\x66\x33\x93\x36"
"""What a fixed frame begins with; a little-endian uint32 length of its body follows."""

FRAME_BYTES_MAX = 64 << 20
"""Longest body to believe in: a longer one is more likely a lost place than a record."""

FIXED_HEADER = struct.Struct("<4sI")
"""The magic, and the length of the body."""


def frame_fixed(body: bytes) -> bytes:
    """The fixed frame of `body`.

    >>> frame_fixed(b"foo").hex()
    '6633933603000000666f6f'
    """
    return FIXED_HEADER.pack(FIXED_MAGIC, len(body)) + body


def split_fixed(content: bytes, *, has_headers: bool = False) -> tuple[list[bytes], bytes]:
    """Bodies of the whole fixed frames of `content`, and the rest after the last one.

    Args:
        has_headers: give whole frames instead of bodies.

    Raises: Desynchronized: a frame begins with something else than the magic; nothing of
        `content` is given then. Resume at the next magic, if the text names one.
    """
    records: list[bytes] = []
    at, size = 0, len(content)
    while size - at >= FIXED_HEADER.size:
        magic, length = FIXED_HEADER.unpack_from(content, at)
        if magic != FIXED_MAGIC or length > FRAME_BYTES_MAX:
            raise _desynchronized(content, at)
        begin, end = at + FIXED_HEADER.size, at + FIXED_HEADER.size + length
        if end > size:
            break
        records.append(content[at if has_headers else begin : end])
        at = end
    rest = content[at:]
    if not FIXED_MAGIC.startswith(rest[:4]) and len(rest) < FIXED_HEADER.size:
        raise _desynchronized(content, at)
    return records, rest


def _desynchronized(content: bytes, at: int) -> Desynchronized:
    found = content.find(FIXED_MAGIC, at + 1)
    resume = f"the next magic is at byte {found}" if found >= 0 else "no magic follows"
    return Desynchronized(
        f"detected de-synchronization at byte {at}: found {content[at : at + 8].hex()}, expected "
        f"the magic {FIXED_MAGIC.hex()} and a length up to {FRAME_BYTES_MAX}; {resume}"
    )


class Decoder(Protocol[M_co]):
    """Cuts content of one journal into frames, and decodes each of them once, in order."""

    @property
    def held_bytes(self) -> int:
        """Of a frame that has begun, and is not whole yet."""
        ...

    def feed(self, content: bytes) -> list[bytes]:
        """The frames that `content` completes: together all that was fed, except `held_bytes`.

        Garbage between frames comes as frames of its own, which cannot be decoded.
        """
        ...

    def end(self) -> None:
        """See that content may end here. Raises: DataError: it ends within a frame."""
        ...

    def decode(self, frame: bytes) -> M_co:
        """The message of a frame. Raises: DataError, Desynchronized: it holds none."""
        ...


class Unframing(Protocol[M]):
    """How messages of one content-type are read, and where they have their UUIDs."""

    @property
    def content_type(self) -> str:
        """What the label of its journals says."""
        ...

    def decoder(self) -> Decoder[M]:
        """A new one, for content that begins with a frame."""
        ...

    def uuid_of(self, message: M) -> UuidParts:
        """`NO_UUID` if it has none. Raises: DataError: what it has is not a UUID."""
        ...


class Framing(Unframing[M], Protocol[M]):
    """How messages of one content-type are read and written, and where they have their UUIDs."""

    def encode(self, message: M) -> bytes:
        """The frame of a message. Raises: ValidationError: it cannot be written so."""
        ...

    def stamp(self, message: M, uuid: UUID) -> M:
        """The message with that UUID: the same object, if it can be changed.

        Raises: ValidationError: it has no place for one.
        """
        ...

    def acknowledgement(self, message: M) -> M:
        """A new message for the ACK of a transaction with `message` in it; it has to be stamped."""
        ...


class LineSplitter:
    """The part of a `Decoder` that cuts lines; each frame ends with its newline."""

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._held_bytes = 0

    @property
    def held_bytes(self) -> int:
        """See `Decoder`."""
        return self._held_bytes

    def feed(self, content: bytes) -> list[bytes]:
        """See `Decoder`."""
        cut = content.rfind(b"\n") + 1
        if not cut:
            self._held.append(content)
            self._held_bytes += len(content)
            return []
        lines = b"".join((*self._held, content[:cut])).split(b"\n")
        lines.pop()
        self._held = [content[cut:]]
        self._held_bytes = len(content) - cut
        return [line + b"\n" for line in lines]

    def end(self) -> None:
        """See `Decoder`."""
        if self.held_bytes:
            raise unexpected_eof("a line", self.held_bytes)


def unexpected_eof(what: str, held_bytes: int) -> DataError:
    """The error of content that ends within `what`."""
    return DataError(
        f"unexpected EOF: the content ends within {what}, behind {held_bytes} bytes of it"
    )
