"""Lines of JSON of which nothing is looked at but their UUIDs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]

from gazette_platform.errors import DataError
from gazette_platform.message.arrow_committed import Framed
from gazette_platform.message.framing import LineSplitter
from gazette_platform.message.uuid import NO_UUID, UuidParts, parse_uuid
from gazette_platform.message.uuid_columns import parse_uuid_column
from gazette_platform.spark.records import JSON

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["JsonFrames"]

_BAD = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


@final
class JsonFrames:
    """The `Unframing` of lines. One without a UUID that can be read has that of zeros, and counts as committed.

    Args:
        path: keys that lead to the UUID.
    """

    content_type = JSON

    def __init__(self, path: tuple[str, ...]) -> None:
        self._depth = len(path)
        kind: Any = str
        for key in reversed(path):
            kind = msgspec.defstruct("Record", [("at", kind | None, None)], rename={"at": key})
        self._json: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind)

    def decoder(self) -> _Decoder:
        """See `Unframing`."""
        return _Decoder(self._uuid)

    def uuid_of(self, message: Framed) -> UuidParts:
        """See `Unframing`."""
        return message.uuid

    def parts(self, content: bytes) -> pa.StructArray | None:
        """The parts of the UUID of each line, all at once, as `parse_uuid_column` makes them.

        Returns: None: look at them one by one, for one cannot be read.
        """
        try:
            texts = [self._text(record) for record in self._json.decode_lines(content)]
            # It passes over blank lines.
            return (
                parse_uuid_column(pa.array(texts, pa.string()))
                if len(texts) == content.count(b"\n")
                else None
            )
        except (*_BAD, DataError):
            return None

    def _uuid(self, frame: bytes) -> UuidParts:
        try:
            text = self._text(self._json.decode(frame))
            return NO_UUID if text is None else parse_uuid(text)
        except (*_BAD, DataError):
            return NO_UUID

    def _text(self, value: Any) -> str | None:
        for _ in range(self._depth):
            if value is None:
                return None
            value = value.at
        return value  # type: ignore[no-any-return]


@final
class _Decoder(LineSplitter):
    def __init__(self, uuid_of: Callable[[bytes], UuidParts]) -> None:
        super().__init__()
        self._uuid_of = uuid_of

    def decode(self, frame: bytes) -> Framed:
        """See `Decoder`."""
        return Framed(frame, self._uuid_of(frame))
