"""Do the values of JSON lines fit their columns, and would Trino fail at one?"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, final

import msgspec
from typing_extensions import override

from gazette_platform.lake.values import LineScanner, is_utf8

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gazette_platform.lake.schema import ColumnType
    from gazette_platform.lake.table_spec import Column, TableSpec

__all__ = ["JsonScanner", "breaks"]

_any_json = msgspec.json.Decoder(msgspec.Raw)
# Of a key that a record lacks; it fits any type, as null does.
_ABSENT = msgspec.Raw(b"null")
_FLOAT_MAX = 3.4028234663852886e38
_TAKE_ANY = frozenset({"string", "boolean"})
# Trino reads columns of these types of a Hive partition by way of text, which takes any value.
_READ_AS_TEXT = frozenset({"int", "bigint", "float", "double"})


def breaks(kind: ColumnType, value: Any, *, is_partitioned: bool) -> bool:
    """Whether Trino fails at a JSON value of a column of type `kind`, rather than give NULL.

    Args:
        kind: the column's type.
        value: the value, decoded.
        is_partitioned: whether the table has Hive partitions.
    """
    if kind.name not in ("array", "map", "struct"):
        is_any = kind.name in _TAKE_ANY or (is_partitioned and kind.name in _READ_AS_TEXT)
        return isinstance(value, dict | list) and not is_any
    parts = _parts(kind, value)
    return parts is None or any(breaks(t, v, is_partitioned=is_partitioned) for t, v in parts)


def _parts(kind: ColumnType, value: Any) -> list[tuple[ColumnType, Any]] | None:
    """What Trino takes for the parts of an array, map or struct; None if it fails at the value."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return []
    if kind.name == "array":
        # A value that is not a list is taken for the only element of one.
        items = value if isinstance(value, list) else [value]
        return [(kind.arguments[0], item) for item in items]
    if isinstance(value, dict):
        if kind.name == "map":
            return [(kind.arguments[1], item) for item in value.values()]
        types = {n.lower(): t for n, t in zip(kind.field_names, kind.arguments, strict=True)}
        return [(types[k.lower()], item) for k, item in value.items() if k.lower() in types]
    if isinstance(value, list) and kind.name == "struct":
        # Elements are taken for the fields, in order.
        return list(zip(kind.arguments, value, strict=False))
    return None


@final
@dataclass(frozen=True, slots=True)
class _RowTypes:
    """Decoders of records: of such as fit, and of the values as they are written."""

    rows: msgspec.json.Decoder[Any]
    raw: msgspec.json.Decoder[Any]
    columns: list[tuple[Column, ColumnType, Callable[[Any], bool]]]


@lru_cache(maxsize=256)
def _row_types(columns: tuple[Column, ...]) -> _RowTypes:
    keys = [c.key for c in columns]
    row = _struct([_python_type(c.parsed) for c in columns], keys)
    return _RowTypes(
        msgspec.json.Decoder(row),
        msgspec.json.Decoder(_raw_struct(keys)),
        [(c, c.parsed, _value_test(c.parsed)) for c in columns],
    )


@final
class JsonScanner(LineScanner):
    """Lines that are JSON objects."""

    def __init__(self, spec: TableSpec) -> None:
        super().__init__()
        self._types = _row_types(spec.columns)

    @override
    def is_fit(self, piece: bytes) -> bool:
        # A decoder knows no lines. Where every line begins with a brace and ends with one, and
        # there are as many objects as lines, each line is one object: within an object or list, none
        # of the bytes that may follow a brace is an opening one.
        lines = piece.count(b"\n")
        ends = piece.count(b"}\n")
        if b"\r" in piece:
            returns = piece.count(b"}\r\n")
            if piece.count(b"\r") != returns:
                return False
            ends += returns
        if piece[:1] != b"{" or ends != lines or piece.count(b"\n{") != lines - 1:
            return False
        try:
            # Texts that are skipped are not decoded.
            return is_utf8(piece) and len(self._types.rows.decode_lines(piece)) == lines
        except (msgspec.DecodeError, RecursionError):
            return False

    @override
    def scan_line(self, line: bytes) -> None:
        try:
            self._scan_record(line)
        except RecursionError:
            self.found_line("nested too deep to be looked at", line)

    def _scan_record(self, line: bytes) -> None:
        try:
            self._types.rows.decode(line)
        except msgspec.DecodeError:
            # What is wrong with a value is reported before what is wrong with the rest of the line.
            if not _is_json(line):
                self.found_line("not JSON", line)
            elif line.lstrip()[:1] == b"{":
                self._scan_values(line)
            else:
                self.found_line("no JSON object", line)
                self._scan_list(line)

    def _scan_values(self, line: bytes) -> None:
        values = msgspec.structs.astuple(self._types.raw.decode(line))
        for value_of, (column, kind, is_fit) in zip(values, self._types.columns, strict=True):
            # A short line lacks most columns of a wide table, and there may be many such lines.
            if value_of is _ABSENT:
                continue
            raw = bytes(value_of)
            if not is_fit(raw):
                self.found_value(column.name, raw)
                value = _decoded(raw) if kind.arguments else _outline(raw)
                self._note_breaking(column.name, kind, value)

    def _scan_list(self, line: bytes) -> None:
        """Trino takes the elements of a list for the columns, in order."""
        values = _decoded(line)
        if isinstance(values, list):
            for (column, kind, _), value in zip(self._types.columns, values, strict=False):
                self._note_breaking(column.name, kind, value)

    def _note_breaking(self, column: str, kind: ColumnType, value: Any) -> None:
        if breaks(kind, value, is_partitioned=True):
            self.breaking.add(column)
        if breaks(kind, value, is_partitioned=False):
            self.breaking_unpartitioned.add(column)


def _python_type(kind: ColumnType) -> Any:
    """A type that decodes just the values that fit; null fits any."""
    match kind.name:
        case "string":
            # Any value has a text. Each engine writes it in its own form, and all forms are the same JSON.
            return msgspec.Raw
        case "array":
            made: Any = list[_python_type(kind.arguments[0])]  # type: ignore[misc]
        case "map":
            made = dict[str, _python_type(kind.arguments[1])]  # type: ignore[misc]
        case "struct":
            made = _struct([_python_type(t) for t in kind.arguments], kind.field_names)
        case "decimal":
            # What the last digit would be rounded up to has a digit too many.
            bound = float(10 ** (kind.precision - kind.scale)) - 0.5 * 10.0**-kind.scale
            made = Annotated[float, msgspec.Meta(gt=-bound, lt=bound)]
        case name:
            made = _SCALARS[name]
    return made | None


def _integers(bits: int) -> Any:
    half = 1 << (bits - 1)
    return Annotated[int, msgspec.Meta(ge=-half, le=half - 1)]


_SCALARS: dict[str, Any] = {
    "boolean": bool,
    "tinyint": _integers(8),
    "smallint": _integers(16),
    "int": _integers(32),
    "bigint": _integers(64),
    "float": Annotated[float, msgspec.Meta(ge=-_FLOAT_MAX, le=_FLOAT_MAX)],
    "double": float,
    "date": date,
}


def _struct(types: Sequence[Any], keys: Sequence[str]) -> Any:
    names = [f"c{index}" for index in range(len(keys))]
    return msgspec.defstruct(
        "Row",
        [(name, kind, None) for name, kind in zip(names, types, strict=True)],
        rename=dict(zip(names, keys, strict=True)),
        gc=False,
    )


def _outline(raw: bytes) -> Any:
    """A value that is nested where the JSON value is: more does not matter to a scalar column."""
    return [] if raw[:1] in b"[{" else None


def _decoded(raw: bytes) -> Any:
    """A JSON value, whose numbers do not matter: an `int` has digits enough to be refused."""
    return json.loads(raw, parse_int=float)


def _is_json(line: bytes) -> bool:
    try:
        _any_json.decode(line)
    except msgspec.DecodeError:
        return False
    return True


def _value_test(kind: ColumnType) -> Callable[[Any], bool]:
    """Return a function that tests whether one JSON value, as written, fits."""
    decode = msgspec.json.Decoder(_python_type(kind)).decode

    def is_fit(raw: Any) -> bool:
        try:
            decode(raw)
        except msgspec.DecodeError:
            return False
        return True

    return is_fit


def _raw_struct(keys: Sequence[str]) -> Any:
    names = [f"c{index}" for index in range(len(keys))]
    fields = [(name, msgspec.Raw, _ABSENT) for name in names]
    return msgspec.defstruct("Raw", fields, rename=dict(zip(names, keys, strict=True)), gc=False)
