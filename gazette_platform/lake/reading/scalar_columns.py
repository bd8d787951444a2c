"""Lines of JSON as columns of texts, numbers and dates, all or none, by msgspec. Pure.

Of a few of many keys it makes columns with half the work of Arrow's reader, and of many keys with as much. Raw tables use it: it
takes the last of two values of a key, as engines do, where `json_columns` refuses the line.

Arrow's own way from Python values to arrays, `pa.array`, imports pandas where that is installed: half a second of a query.
"""

from __future__ import annotations

from array import array
from datetime import date
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Final, final

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]

from gazette_platform.lake.reading.arrow_types import RefusedError, arrow_type
from gazette_platform.lake.reading.json_columns import check_plain, record_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gazette_platform.lake.spec.types import ColumnType

_EPOCH: Final = date(1970, 1, 1)
_NOTHING: Final[dict[str, Any]] = {"string": "", "boolean": False, "date": _EPOCH}
# Types of Python's arrays, which have the layout of Arrow's buffers.
_CODES: Final = {
    "tinyint": "b",
    "smallint": "h",
    "int": "i",
    "bigint": "q",
    "float": "f",
    "double": "d",
}
_SHAPES: Final[dict[str, Any]] = {
    "string": str,
    "boolean": bool,
    "date": date,
    "float": float,
    "double": float,
    **{
        name: Annotated[int, msgspec.Meta(ge=-(1 << (bits - 1)), le=(1 << (bits - 1)) - 1)]
        for name, bits in (("tinyint", 8), ("smallint", 16), ("int", 32), ("bigint", 64))
    },
}


def is_scalar(kind: ColumnType) -> bool:
    """Whether `ScalarReader` reads columns of the type."""
    return kind.name in _SHAPES


@final
class ScalarReader:
    """Reads lines that are objects as columns: all of them, or none.

    Args:
        kinds: by key; all of them `is_scalar`.
    """

    def __init__(self, kinds: Mapping[str, ColumnType]) -> None:
        self._kinds = list(kinds.values())
        shapes = [(key, _SHAPES[kind.name] | None) for key, kind in kinds.items()]
        self._values = [attrgetter(f"f{at}") for at in range(len(shapes))]
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(record_of(shapes))

    def read(self, content: bytes) -> list[pa.Array]:
        """Columns of one line or more, each with its newline. Raises: RefusedError: one does not fit."""
        count = check_plain(content)
        try:
            records = self._decoder.decode_lines(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
            raise RefusedError(str(err)) from err
        if len(records) != count:
            raise RefusedError("it is not one JSON object")
        return [
            array_of(list(map(value_of, records)), kind)
            for value_of, kind in zip(self._values, self._kinds, strict=True)
        ]


def array_of(values: Sequence[Any], kind: ColumnType) -> pa.Array:
    """An array of a scalar type; None is null. Raises: RefusedError: a text has a lone surrogate."""
    nulls = values.count(None)
    validity = None
    if nulls:
        validity = _bits([value is not None for value in values])
        nothing = _NOTHING.get(kind.name, 0)
        values = [nothing if value is None else value for value in values]
    match kind.name:
        case "string":
            buffers = [validity, *_text_buffers(values)]
        case "boolean":
            buffers = [validity, _bits(values)]
        case "date":
            days = array("i", [(value - _EPOCH).days for value in values])
            buffers = [validity, pa.py_buffer(days)]
        case name:
            buffers = [validity, pa.py_buffer(array(_CODES[name], values))]
    return pa.Array.from_buffers(arrow_type(kind), len(values), buffers, nulls)


def _bits(flags: Sequence[bool]) -> pa.Buffer:
    buffers = [None, pa.py_buffer(bytes(flags))]
    return pa.Array.from_buffers(pa.uint8(), len(flags), buffers).cast(pa.bool_()).buffers()[1]


def _text_buffers(texts: Sequence[str]) -> tuple[pa.Buffer, pa.Buffer]:
    whole = "".join(texts)
    parts: Sequence[str] | Sequence[bytes] = texts
    try:
        if not whole.isascii():
            parts = [text.encode() for text in texts]
        content = whole.encode()
    except UnicodeEncodeError as err:
        raise RefusedError(str(err)) from err
    ends = array("i", accumulate(map(len, parts), initial=0))
    return pa.py_buffer(ends), pa.py_buffer(content)
