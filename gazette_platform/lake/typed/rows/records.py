"""Lines of a journal as rows of a typed table, all or none, and why a line is not one, in words. Pure.

What `RecordsReader` takes is what a typed table keeps. `Reasons` are asked for lines that were refused only; what they say decides
nothing.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from gazette_platform.errors import DataError
from gazette_platform.lake.reading.arrow_types import RefusedError, arrow_type
from gazette_platform.lake.reading.json_columns import (
    Field,
    JsonReader,
    LineReader,
    is_too_deep,
    repeated_keys,
)
from gazette_platform.lake.spec.types import FORMATS, TRUNCATED, text_of
from gazette_platform.message.uuid import Flags, parse_uuid, parse_uuid_column

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gazette_platform.lake.reading.json_columns import ValueReader
    from gazette_platform.lake.spec.typed.columns import TypedColumn
    from gazette_platform.lake.spec.typed.spec import TypedSpec

_ACK: Final = int(Flags.ACK_TXN)


class Records(NamedTuple):
    """What lines hold."""

    rows: pa.Table
    """By name of the column, in the types of the table."""
    parts: pa.StructArray
    """Of their UUIDs."""


def record_columns(spec: TypedSpec) -> tuple[TypedColumn, ...]:
    """Those that are made of keys of records."""
    return tuple(column for column in spec.written_columns if column.key)


def record_fields(spec: TypedSpec) -> dict[str, Field]:
    """What is made of the values of each key."""
    return {column.key: Field(column.parsed, column.form) for column in record_columns(spec)}


def acks_of(parts: pa.StructArray) -> pa.BooleanArray:
    """Which messages are ACKs of transactions."""
    clock, flags = parts.field("clock"), parts.field("flags")
    has_clock = pc.not_equal(clock, pa.scalar(0, pa.uint64()))
    return pc.and_(pc.equal(flags, pa.scalar(_ACK, pa.uint16())), has_clock)


@final
class RecordsReader:
    """Reads lines.

    Attributes:
        values: readers of single values, by key, with the message's UUID in them if it lies there.
        schema: of the rows.
        empty: no rows.
    """

    def __init__(self, spec: TypedSpec) -> None:
        columns = record_columns(spec)
        self._keys = [column.key for column in columns]
        self._required = [column.name for column in columns if column.required]
        self._reader = JsonReader(
            record_fields(spec), uuid=spec.uuid, forbids_unknown=spec.unknown == "quarantine"
        )
        self.values = self._reader.values
        self.schema = pa.schema([(c.name, arrow_type(c.parsed)) for c in columns])
        # Arrow's own way to make an empty table knows no UUIDs within lists.
        nothing = [pa.nulls(0, kind) for kind in self.schema.types]
        self.empty = pa.Table.from_arrays(nothing, schema=self.schema)

    def read(self, content: bytes) -> Records:
        """Records of one line or more.

        Raises: RefusedError: one of them is not a record of the table, or the last one has not ended.
        """
        found = self._reader.read(content)
        try:
            parts = parse_uuid_column(found.uuids)
        except DataError as err:
            raise RefusedError from err
        rows = pa.Table.from_arrays([found.arrays[key] for key in self._keys], schema=self.schema)
        self._check_required(rows, parts)
        return Records(rows, parts)

    def _check_required(self, rows: pa.Table, parts: pa.StructArray) -> None:
        missing = [name for name in self._required if rows.column(name).null_count]
        if not missing:
            return
        # ACKs hold only a UUID, and are not rows.
        is_record = pc.invert(acks_of(parts))
        for name in missing:
            is_missing = rows.column(name).is_null().combine_chunks()
            if pc.any(pc.and_(is_missing, is_record)).as_py():
                raise RefusedError


# ------------------------------------------------------------------ reasons

REASON_CHARACTERS_MAX: Final = 300
_VALUE_CHARACTERS_MAX: Final = 60
_TYPE_CHARACTERS_MAX: Final = 80
_PATH_CHARACTERS_MAX: Final = 120
_NULL: Final = b"null"
_LONG_FRACTION: Final = re.compile(rb"\.[0-9]{7}")
_CUT: Final = "ends within a record"
# Longer lines get no place: parsed they are up to forty times as large.
_APART_BYTES_MAX: Final = 4 << 20


class _Object(msgspec.Struct):
    """Whatever it has, nothing of it is kept."""


@final
class Reasons:
    """Says of refused lines what is wrong with them.

    Args:
        values: readers of the columns' values, by key.
    """

    def __init__(self, spec: TypedSpec, values: Mapping[str, ValueReader]) -> None:
        self._values = values
        self._uuid = spec.uuid
        self._required = [column.key for column in record_columns(spec) if column.required]
        self._forbids_unknown = spec.unknown == "quarantine"
        self._objects = msgspec.json.Decoder(dict[str, msgspec.Raw])
        self._shape = msgspec.json.Decoder(_Object)
        self._lists = msgspec.json.Decoder(list[msgspec.Raw])
        self._texts = msgspec.json.Decoder(str)
        self._anything = LineReader(pa.schema([("\0", pa.string())]), forbids_unknown=False)

    def why(self, line: bytes) -> str:
        """What is wrong with a line that was refused.

        Args:
            line: without blanks around it, and without its newline.

        Returns: at most `REASON_CHARACTERS_MAX` characters.
        """
        return _shortened(self._why(line), REASON_CHARACTERS_MAX)

    def _why(self, line: bytes) -> str:
        if not line:
            return "is blank, so not a record"
        try:
            line.decode()
        except UnicodeDecodeError as err:
            return f"is not UTF-8, {err.start} bytes after its begin"
        if is_too_deep(line):
            return "is not JSON, or has values too deep within each other"
        try:
            if len(line) > _APART_BYTES_MAX:
                self._shape.decode(line)
                return f"does not fit, and is too long to say where: {len(line)} bytes"
            found = self._objects.decode(line)
        except msgspec.DecodeError as err:
            return _why_no_object(line, err)
        return next(self._faults(line, found), "cannot be read")

    def _faults(self, line: bytes, found: dict[str, msgspec.Raw]) -> Iterator[str]:
        yield from self._uuid_faults(found)
        if self._forbids_unknown:
            known = {*self._values, *self._uuid[:1]}
            yield from (f"{_path(key)}: is not a column" for key in found if key not in known)
        repeated = repeated_keys(line, found)
        for key in {**self._values, **dict.fromkeys(self._uuid[:1])}:
            if key in repeated:
                yield f"{_path(key)}: occurs twice"
        for key, reader in self._values.items():
            if key in found:
                yield from self._value_faults(_path(key), bytes(found[key]), reader)
        for key in self._required:
            raw = found.get(key)
            is_json = self._values[key].kind.name == "json"
            if raw is None or (bytes(raw) == _NULL and not is_json):
                yield f"{_path(key)}: is required, and there is none"
        # In keys that are not columns, or values of `json`, Arrow refuses numbers such as 1e400 and lone surrogates.
        raws = list(found.values())
        if (at := _first_refused(self._read_anything, raws)) is not None:
            yield f"{_path(list(found)[at])}: {_value(bytes(raws[at]))} cannot be read"

    def _read_anything(self, raws: Sequence[bytes]) -> None:
        self._anything.read(b"".join(b'{"v":%b}\n' % raw for raw in raws), len(raws))

    def _uuid_faults(self, found: dict[str, msgspec.Raw]) -> Iterator[str]:
        if not self._uuid:
            return
        told = f"no UUID at {_path('.'.join(self._uuid))}"
        at: Any = found
        for depth, key in enumerate(self._uuid):
            if key not in at or bytes(at[key]) == _NULL:
                return
            raw = bytes(at[key])
            is_last = depth == len(self._uuid) - 1
            try:
                at = (self._texts if is_last else self._objects).decode(raw)
                if is_last:
                    parse_uuid(at)
            except (msgspec.DecodeError, DataError):
                yield f"{told}: {_value(raw)}"
                return
            if self._forbids_unknown and not depth and not is_last and key not in self._values:
                beside = (name for name in at if name != self._uuid[1])
                yield from (f"{_path(f'{key}.{name}')}: is not a column" for name in beside)

    def _value_faults(self, path: str, raw: bytes, reader: ValueReader) -> Iterator[str]:
        try:
            reader.read([raw])
        except RefusedError:
            yield from self._parts_faults(path, raw, reader)
            form = reader.form
            said = f" ({form})" if form in FORMATS.get(reader.kind.name, ())[1:] else ""
            kind = _shortened(text_of(reader.kind), _TYPE_CHARACTERS_MAX)
            yield f"{path}: {_value(raw)} is no {kind}{said}{_advice(raw, reader)}"

    def _parts_faults(self, path: str, raw: bytes, reader: ValueReader) -> Iterator[str]:
        """What is wrong within an array, map or struct, if it is one."""
        name = reader.kind.name
        if name not in ("array", "map", "struct"):
            return
        try:
            if name == "array":
                items = self._lists.decode(raw)
                if (at := _first_refused(reader.parts[0].read, items)) is not None:
                    yield from self._value_faults(
                        f"{path}[{at}]", bytes(items[at]), reader.parts[0]
                    )
                return
            found = self._objects.decode(raw)
        except msgspec.DecodeError:
            return
        fields = list(found) if name == "map" else list(reader.kind.field_names)
        repeated = repeated_keys(raw, found)
        yield from (f"{path}.{_path(key)}: occurs twice" for key in fields if key in repeated)
        if name == "map":
            items = list(found.values())
            if (at := _first_refused(reader.parts[1].read, items)) is not None:
                key = fields[at]
                yield from self._value_faults(
                    f"{path}.{_path(key)}", bytes(items[at]), reader.parts[1]
                )
            return
        if self._forbids_unknown:
            beside = (key for key in found if key not in fields)
            yield from (f"{path}.{_path(key)}: is not a column" for key in beside)
        for key, part in zip(fields, reader.parts, strict=True):
            if key in found:
                yield from self._value_faults(f"{path}.{_path(key)}", bytes(found[key]), part)


def _first_refused(
    read: Callable[[Sequence[bytes]], object], raws: Sequence[msgspec.Raw]
) -> int | None:
    """Which of many values is the first that a reader refuses; None: none.

    All are read twice at most: a record may have as many as it likes.
    """

    def is_refused(first: int, last: int) -> bool:
        try:
            read([bytes(raw) for raw in raws[first:last]])
        except RefusedError:
            return True
        return False

    first, last = 0, len(raws)
    if not is_refused(first, last):
        return None
    while last - first > 1:
        middle = (first + last) // 2
        if is_refused(first, middle):
            last = middle
        else:
            first = middle
    return first


def _advice(raw: bytes, reader: ValueReader) -> str:
    """What a spec can say so that a value fits; most often nothing."""
    if not reader.kind.name.startswith("timestamp") or _LONG_FRACTION.search(raw) is None:
        return ""
    return f", has more than six digits of a second (`{TRUNCATED}: true` cuts them)"


def _path(key: str) -> str:
    return _shortened("".join(c if c.isprintable() else "?" for c in key), _PATH_CHARACTERS_MAX)


def _value(raw: bytes) -> str:
    # Of a value of megabytes, too, only what is shown is made a text.
    head = raw[: 4 * _VALUE_CHARACTERS_MAX + 4].decode(errors="ignore")
    text = "".join(c if c.isprintable() else " " for c in head)
    return _shortened(text, _VALUE_CHARACTERS_MAX)


def _shortened(text: str, characters_max: int) -> str:
    return text if len(text) <= characters_max else f"{text[: characters_max - 1]}…"


def _why_no_object(line: bytes, error: msgspec.DecodeError) -> str:
    if isinstance(error, msgspec.ValidationError):
        return "is not an object"
    if "truncated" in str(error) and not line.endswith((b"}", b"]")):
        return _CUT
    return f"is not JSON: {str(error).removeprefix('JSON is malformed: ')}"
