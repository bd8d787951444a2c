"""JSON lines as text: cut values of any layout into lines, and find the UUIDs of lines.

Numbers, keys and strings stay as they are written, because neither class decodes more than it needs.
`JsonValues` holds one value and one block in memory.
"""

from __future__ import annotations

import codecs
import json
import re
from typing import TYPE_CHECKING, Any, Final, Never, final

import msgspec

from gazette_platform.errors import DataError
from gazette_platform.message.uuid import parse_uuid, parse_uuid_column
from gazette_platform.ops.extras import required

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa  # type: ignore[import-untyped]

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
