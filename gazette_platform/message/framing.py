"""Records within content: how journals of a ``content-type`` delimit them, in batches; JSON lines as text.

Batch functions take a block of content and give whole records and the rest, so that C code does
the work per byte. A `Framing` knows messages as well, and where they have their UUIDs.

`JsonValues` and the finder of UUIDs decode no more of a JSON line than they need: numbers, keys and strings stay as
they are written. `JsonValues` holds one value and one block in memory.
"""

from __future__ import annotations

import codecs
import json
import re
import struct
from typing import TYPE_CHECKING, Any, Final, Never, Protocol, TypeVar, final

import msgspec

from gazette_platform.errors import DataError, Desynchronized
from gazette_platform.message.uuid import parse_uuid, parse_uuid_column
from gazette_platform.ops.extras import required

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    import pyarrow as pa  # type: ignore[import-untyped]

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


# ------------------------------------------------------------------ values into lines

VALUE_CHARACTERS_MAX: Final = 64 << 20
"""Of one value."""

_NUMBER_PARTS: Final = re.compile(r"[0-9.eE+-]*")
_BLANKS: Final = re.compile(r"[ \t\r\n]*")
# A line break is in no text of JSON, so neither are the blanks around it.
_BREAKS: Final = re.compile(r"[ \t]*[\r\n][ \t\r\n]*")
# An error that is nearer to the end of the content may be for want of more.
_TOKEN_CHARACTERS: Final = 16
_SHOWN: Final = 40
_UNTERMINATED: Final = "Unterminated string"


def _refuse_constant(name: str) -> Never:
    raise DataError(f"it has {name}")


@final
class JsonValues:
    r"""Cuts elements of arrays, and other values, out of content.

    Attributes:
        count: of the values that were found.

    >>> values = JsonValues()
    >>> values.feed(b'[{"a":\n  1.50}, 2'), values.feed(b'3] {"b": []}'), values.finish()
    ([b'{"a":1.50}\n'], [b'23\n', b'{"b": []}\n'], [])
    """

    def __init__(self) -> None:
        self.count = 0
        self._decoder = json.JSONDecoder(
            parse_int=str, parse_float=str, parse_constant=_refuse_constant
        )
        self._utf8 = codecs.getincrementaldecoder("utf-8-sig")()
        self._text = ""
        self._enough = 0
        self._in_array = False
        self._is_after_value = False
        self._is_after_comma = False

    def feed(self, block: bytes) -> list[bytes]:
        """Return the values that `block` completes, each as a line.

        Raises: DataError: content is not JSON in UTF-8, or a value is too long or nested too deep.
        """
        return self._lines(block, is_end=False)

    def finish(self) -> list[bytes]:
        """Return the last values, if there are any.

        Raises: DataError: content ends within a value or an array.
        """
        return self._lines(b"", is_end=True)

    def _lines(self, block: bytes, *, is_end: bool) -> list[bytes]:
        try:
            self._text += self._utf8.decode(block, is_end)
        except UnicodeDecodeError as err:
            raise DataError(f"value {self.count + 1} is not JSON in UTF-8: {err.reason}") from err
        # A long value is looked at again when there is twice as much of it.
        if len(self._text) < self._enough and not is_end:
            return []
        found: list[bytes] = []
        at = 0
        while (end := self._step(at, found, is_end=is_end)) is not None:
            at = end
        self._text = self._text[at:]
        self._enough = 2 * len(self._text) if self._text and not found else 0
        if len(self._text) > VALUE_CHARACTERS_MAX:
            raise DataError(
                f"value {self.count + 1} is longer than {VALUE_CHARACTERS_MAX >> 20} MiB"
            )
        if is_end and self._in_array:
            raise DataError(f"unexpected EOF: the array has no ] after value {self.count}")
        return found

    def _step(self, at: int, found: list[bytes], *, is_end: bool) -> int | None:
        """Take one token or value; return where it ends, or None if more content is needed."""
        match = _BLANKS.match(self._text, at)
        begin = match.end() if match is not None else at
        sign = self._text[begin : begin + 1]
        if not sign:
            return begin if begin > at else None
        if self._in_array and self._is_after_value:
            if sign not in {",", "]"}:
                raise self._wrong(begin, "Expecting ',' or ']'")
            self._in_array, self._is_after_comma = sign == ",", sign == ","
            self._is_after_value = False
            return begin + 1
        if self._in_array and sign == "]" and not self._is_after_comma:
            self._in_array = False
            return begin + 1
        if not self._in_array and sign == "[":
            self._in_array, self._is_after_value, self._is_after_comma = True, False, False
            return begin + 1
        end = self._value_end(begin, is_end=is_end)
        if end is None:
            return None
        text = self._text[begin:end]
        if "\n" in text or "\r" in text:
            text = _BREAKS.sub("", text)
        found.append(f"{text}\n".encode())
        self.count += 1
        self._is_after_value, self._is_after_comma = self._in_array, False
        return end

    def _value_end(self, begin: int, *, is_end: bool) -> int | None:
        """Return where the value ends; None if it may go on in what follows."""
        try:
            _, end = self._decoder.raw_decode(self._text, begin)
        except json.JSONDecodeError as err:
            is_open = err.msg.startswith(_UNTERMINATED) or err.pos >= len(self._text)
            if is_end and is_open:
                raise DataError(f"unexpected EOF: content ends in value {self.count + 1}") from err
            if not is_end and (is_open or err.pos >= len(self._text) - _TOKEN_CHARACTERS):
                return None
            raise self._wrong(err.pos, err.msg) from err
        except RecursionError as err:
            raise DataError(f"value {self.count + 1} is nested too deep") from err
        except DataError as err:
            raise DataError(f"value {self.count + 1} is not JSON: {err}") from err
        # A number or word may go on in the next block, also behind a point or an exponent: `-0.`, `1e`.
        may_go_on = self._text[begin] not in {"{", "[", '"'}
        is_cut = may_go_on and _NUMBER_PARTS.fullmatch(self._text, end) is not None
        return None if is_cut and not is_end else end

    def _wrong(self, at: int, what: str) -> DataError:
        shown = self._text[at : at + _SHOWN]
        return DataError(f"value {self.count + 1} is not JSON: {what}, at {shown!r}")


# ------------------------------------------------------------------ UUIDs of lines

_BAD: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, DataError)


@final
class JsonUuids:
    """Finds the UUID of a line, whatever the rest of it is, as far as that is JSON.

    Args:
        path: keys that lead to it; empty: lines have none.
    """

    def __init__(self, path: Sequence[str]) -> None:
        self._depth = len(path)
        kind: Any = str
        for key in reversed(path):
            level = [("at", kind | None, None)]
            kind = msgspec.defstruct("Level", level, rename={"at": key}, gc=False)
        self._json: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind)

    def text_of(self, line: bytes) -> str | None:
        """The UUID of a line, which is one; None: it has none, or it cannot be read."""
        if not self._depth:
            return None
        try:
            found = self._text(self._json.decode(line))
            if found is not None:
                parse_uuid(found)
        except _BAD:
            return None
        return found

    def parts(self, content: bytes) -> pa.StructArray | None:
        """The parts of the UUID of each line, all at once, as `parse_uuid_column` makes them.

        Args:
            content: whole lines, each with its newline.

        Returns: what `text_of` says of each line; None: look at them one by one, for one cannot be read, or is blank.
        """
        pa = required("pyarrow", extra="arrow", by="columns of UUIDs")
        count = content.count(b"\n")
        if not self._depth:
            return parse_uuid_column(pa.nulls(count, pa.string()))
        try:
            texts = [self._text(record) for record in self._json.decode_lines(content)]
            # It passes over blank lines.
            is_whole = len(texts) == count
            return parse_uuid_column(pa.array(texts, pa.string())) if is_whole else None
        except _BAD:
            return None

    def _text(self, value: Any) -> str | None:
        for _ in range(self._depth):
            if value is None:
                return None
            value = value.at
        return value  # type: ignore[no-any-return]
