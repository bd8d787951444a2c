"""Lines of JSON of which nothing is looked at but their UUIDs."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from gazette_platform.message.arrow import Framed
from gazette_platform.message.framing import LineSplitter
from gazette_platform.message.json_lines import JsonUuids
from gazette_platform.message.uuid import NO_UUID, UuidParts, parse_uuid
from gazette_platform.spark.records import JSON

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa  # type: ignore[import-untyped]

__all__ = ["JsonFrames"]


@final
class JsonFrames:
    """The `Unframing` of lines. One without a UUID that can be read has that of zeros, and counts as committed.

    Args:
        path: keys that lead to the UUID.
    """

    content_type = JSON

    def __init__(self, path: tuple[str, ...]) -> None:
        self._uuids = JsonUuids(path)

    def decoder(self) -> _Decoder:
        """See `Unframing`."""
        return _Decoder(self._uuid)

    def uuid_of(self, message: Framed) -> UuidParts:
        """See `Unframing`."""
        return message.uuid

    def parts(self, content: bytes) -> pa.StructArray | None:
        """See `JsonUuids`."""
        return self._uuids.parts(content)

    def _uuid(self, frame: bytes) -> UuidParts:
        text = self._uuids.text_of(frame)
        return NO_UUID if text is None else parse_uuid(text)


@final
class _Decoder(LineSplitter):
    def __init__(self, uuid_of: Callable[[bytes], UuidParts]) -> None:
        super().__init__()
        self._uuid_of = uuid_of

    def decode(self, frame: bytes) -> Framed:
        """See `Decoder`."""
        return Framed(frame, self._uuid_of(frame))
