"""UUIDs of lines of JSON, without parsing the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import msgspec

from gazette_platform.errors import DataError
from gazette_platform.message.uuid import parse_uuid
from gazette_platform.message.uuid_columns import parse_uuid_column
from gazette_platform.ops.extras import required

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa  # type: ignore[import-untyped]

__all__ = ["JsonUuids"]

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
