"""Lines of JSON, parsed for their UUIDs only.

Rows of Spark as records of JSON or CSV: each a line. With a place for a UUID, if they are to have one.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, final

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyarrow import csv as arrow_csv

from gazette_platform.errors import DataError, ValidationError
from gazette_platform.message.arrow import Framed
from gazette_platform.message.framing import JsonUuids, LineSplitter
from gazette_platform.message.uuid import (
    NO_UUID,
    Flags,
    MessageClock,
    UuidParts,
    parse_uuid,
    uuid_text,
)
from gazette_platform.spark.records import CSV, JSON

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.types import StructType


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


_NO_UUID: Final = "00000000-0000-0000-0000-000000000000"
_READ_ONLY: Final = ("_begin", "_end", "_uuid", "_corrupt")
_YEAR_1_US: Final = -62_135_596_800_000_000
_YEAR_10000_US: Final = 253_402_300_800_000_000


@final
@dataclass(frozen=True, slots=True)
class Layout:
    """What the columns of a write are. Can be pickled."""

    schema: pa.Schema
    """Those that are written, in Spark's order."""
    is_raw: bool
    """Whether there is one, `value`, whose values are the records."""
    journal: str
    """Column that says where a row goes; empty: there is none."""
    key: str
    """Column by whose values rows are mapped; empty: there is none."""


def layout_of(schema: StructType, *, key: str, uuid: tuple[str, ...]) -> Layout:
    """What the columns of a write are.

    Args:
        key, uuid: as of `SinkOptions`.

    Raises: ValidationError: all that is wrong with them.
    """
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415  slow to import

    found = to_arrow_schema(schema)
    errors = [
        f"column {name} describes a message that was read: drop it, or give it another name"
        for name in _READ_ONLY
        if name in found.names
    ]
    journal = "_journal" if "_journal" in found.names else ""
    if journal and found.field(journal).type != pa.string():
        errors.append(f"column _journal is string, and not {found.field(journal).type}")
    if key and key not in found.names:
        errors.append(f"key: there is no column {key} (there are {', '.join(found.names)})")
    elif key and not _is_key(found.field(key).type):
        errors.append(f"key: column {key} is {found.field(key).type}: make a string of it")
    written = [field for field in found if field.name != journal]
    others = [field for field in written if field.name != key or field.name == "value"]
    is_raw = [field.name for field in others] == ["value"] and others[0].type in (
        pa.binary(),
        pa.string(),
    )
    if is_raw:
        written = others
        if uuid:
            errors.append(
                "uuid: records that are given whole, as `value`, get none (give their fields as columns)"
            )
    elif not written:
        errors.append("there is no column to write")
    elif uuid and uuid[0] in found.names:
        errors.append(f"uuid: column {uuid[0]} has the key that is to hold UUIDs: name another one")
    if errors:
        raise ValidationError("; ".join(errors))
    return Layout(pa.schema(written), is_raw, journal, key)


class Encoder(Protocol):
    """Makes records of rows."""

    @property
    def uuid_at(self) -> int:
        """Where in each line its UUID is to be; -1: there is no place for one."""
        ...

    def encode(self, rows: pa.RecordBatch) -> bytes:
        """The records of rows, each with its newline. Raises: DataError: a row cannot be written so."""
        ...


def encoder(content_type: str, layout: Layout, uuid: tuple[str, ...]) -> Encoder:
    """What makes records of a content type.

    Raises: ValidationError: there are none of this type, or a column cannot be written so.
    """
    if content_type not in (JSON, CSV):
        raise ValidationError(
            f"records of {content_type} are not written: journals of {JSON} and {CSV} are"
        )
    if layout.is_raw:
        return _Raw()
    why_not = _why_no_json if content_type == JSON else _why_no_csv
    errors = [
        f"column {field.name}: {why}" for field in layout.schema if (why := why_not(field.type))
    ]
    if errors:
        raise ValidationError(f"{'; '.join(errors)} (journals of {content_type})")
    return _Json(layout.schema, uuid) if content_type == JSON else _Csv(layout.schema, bool(uuid))


def stamped(content: bytes, uuid_at: int, producer: bytes, clock: MessageClock) -> bytes:
    """Lines with UUIDs of committed messages in their places, in the order of the clock.

    Args:
        uuid_at: as of `Encoder`.
        clock: of the producer; it ticks for each line.
    """
    end = uuid_at + len(_NO_UUID)
    lines = content.split(b"\n")
    lines.pop()
    flags, tick = int(Flags.OUTSIDE_TXN), clock.tick
    return b"".join(
        b"%b%b%b\n" % (line[:uuid_at], uuid_text(producer, tick(), flags).encode(), line[end:])
        for line in lines
    )


@final
class _Raw:
    """Records that are given as they are."""

    uuid_at = -1

    def encode(self, rows: pa.RecordBatch) -> bytes:
        """See `Encoder`."""
        values = rows.column("value").cast(pa.binary()).to_pylist()
        for value in values:
            if value is None or b"\n" in value or not value.strip():
                raise DataError(
                    f"a `value` is not a record: {value if value is None else value[:80]!r} (it is one line, without "
                    "its newline, and not blank)"
                )
        return b"".join(value + b"\n" for value in values)


@final
class _Json:
    """Objects, without what is NULL."""

    def __init__(self, schema: pa.Schema, uuid: tuple[str, ...]) -> None:
        self._names = schema.names
        self._types = [_in_utc(field.type) for field in schema]
        self._shapers = [_shaper(kind) for kind in self._types]
        self._json = msgspec.json.Encoder(decimal_format="number")
        self._head, self.uuid_at = b"", -1
        if uuid:
            keys = b":{".join(msgspec.json.encode(key) for key in uuid)
            before = b"{" + keys + b':"'
            self._head = before + _NO_UUID.encode() + b'"' + b"}" * (len(uuid) - 1)
            self.uuid_at = len(before)

    def encode(self, rows: pa.RecordBatch) -> bytes:
        """See `Encoder`."""
        columns: list[list[Any]] = []
        try:
            for name, kind, shape in zip(self._names, self._types, self._shapers, strict=True):
                values = _json_values(rows.column(name), kind)
                if shape is not None:
                    values = [None if value is None else shape(value) for value in values]
                columns.append(values)
            names = self._names
            records = [
                {name: value for name, value in zip(names, row, strict=True) if value is not None}
                for row in zip(*columns, strict=True)
            ]
            content = self._json.encode_lines(records)
        except (pa.ArrowException, ValueError, OverflowError) as err:
            raise DataError(f"a row cannot be written as JSON: {err}") from err
        if not self._head:
            return content
        return b"".join(
            self._head + (b"}\n" if line == b"{}" else b"," + line[1:] + b"\n")
            for line in content.split(b"\n")[:-1]
        )


@final
class _Csv:
    """Records of RFC 4180. NULL is nothing, and a text of no characters a pair of quotes."""

    def __init__(self, schema: pa.Schema, has_uuid: bool) -> None:  # noqa: FBT001
        self._schema = schema
        self.uuid_at = 0 if has_uuid else -1

    def encode(self, rows: pa.RecordBatch) -> bytes:
        """See `Encoder`."""
        columns = [_csv_column(rows.column(field.name), field) for field in self._schema]
        out = io.BytesIO()
        table = pa.Table.from_arrays(columns, names=self._schema.names)
        arrow_csv.write_csv(table, out, arrow_csv.WriteOptions(include_header=False))
        content = out.getvalue()
        if self.uuid_at == 0:
            head = _NO_UUID.encode() + b","
            return b"".join(head + line + b"\n" for line in content.split(b"\n")[:-1])
        if content.startswith(b"\n") or b"\n\n" in content:
            raise DataError(
                "a row of NULL alone has no record in CSV: readers pass over blank lines"
            )
        return content


def _json_values(column: pa.Array, kind: pa.DataType) -> list[Any]:
    """Values that msgspec writes as they are to be."""
    # Spark may send texts by longer offsets. Python's own objects of instants and decimals take twenty times as long.
    if pa.types.is_timestamp(kind):
        column = _instants(column)
    elif pa.types.is_decimal(kind):
        texts = column.cast(pa.string()).cast(pa.binary()).to_pylist()
        return [None if text is None else msgspec.Raw(text) for text in texts]
    elif pa.types.is_floating(kind):
        column = _finite(column)
    else:
        column = column.cast(kind)
    values: list[Any] = column.to_pylist()
    return values


def _csv_column(column: pa.Array, field: pa.Field) -> pa.Array:
    kind = field.type
    if pa.types.is_string(kind):
        column = column.cast(kind)  # Spark may send texts by longer offsets
        has_break = pc.or_(pc.match_substring(column, "\n"), pc.match_substring(column, "\r"))
        if pc.any(has_break).as_py():
            raise DataError(
                f"column {field.name}: a text has a line break in it, and a record of CSV is a line"
            )
    elif pa.types.is_floating(kind):
        return _finite(column)
    elif pa.types.is_timestamp(kind):
        return _instants(column)
    return column


def _finite(column: pa.Array) -> pa.Array:
    """Numbers, and NULL for what is none: neither JSON nor readers of CSV have a word for it."""
    return pc.if_else(pc.is_finite(column), column, pa.scalar(None, column.type))


def _instants(column: pa.Array) -> pa.Array:
    """Texts of instants, in UTC, or of local times, by ISO 8601. Raises: DataError: a year has not four digits."""
    kind = column.type
    local = column.cast(_in_utc(kind)).cast(pa.timestamp("us"))
    bounds = pc.min_max(local.cast(pa.int64())).as_py()
    if (
        bounds["min"] is not None
        and not _YEAR_1_US <= bounds["min"] <= bounds["max"] < _YEAR_10000_US
    ):
        raise DataError("an instant is before the year 1, or after the year 9999")
    texts = pc.binary_replace_slice(local.cast(pa.string()), 10, 11, "T")
    return pc.binary_join_element_wise(texts, "Z", "") if kind.tz else texts


def _in_utc(kind: pa.DataType) -> pa.DataType:
    """A type whose instants are in UTC; nothing has to be computed for that."""
    types = pa.types
    if types.is_timestamp(kind):
        return pa.timestamp(kind.unit, "UTC") if kind.tz else kind
    if types.is_struct(kind):
        return pa.struct([field.with_type(_in_utc(field.type)) for field in kind])
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_utc(kind.value_type)))
    if types.is_map(kind):
        return pa.map_(kind.key_type, kind.item_field.with_type(_in_utc(kind.item_type)))
    return kind


def _shaper(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """What makes of a value what JSON has: structs without NULLs, and maps. None: nothing is to be done."""
    types = pa.types
    if types.is_struct(kind):
        inner = {field.name: _shaper(field.type) for field in kind}
        return lambda value: _object(value.items(), inner)
    if types.is_map(kind):
        item = _shaper(kind.item_type)
        # Of a map, NULL is a value like others.
        return lambda value: {k: _shaped(v, item) for k, v in value}
    if types.is_list(kind):
        of = _shaper(kind.value_type)
        return None if of is None else lambda value: [_shaped(one, of) for one in value]
    return None


def _object(items: Any, shapers: dict[str, Callable[[Any], Any] | None]) -> dict[str, Any]:
    return {name: _shaped(v, shapers[name]) for name, v in items if v is not None}


def _shaped(value: Any, shape: Callable[[Any], Any] | None) -> Any:
    return value if value is None or shape is None else shape(value)


def _why_no_json(kind: pa.DataType) -> str:
    types = pa.types
    if types.is_struct(kind):
        return _first(_why_no_json(field.type) for field in kind)
    if types.is_list(kind):
        return _why_no_json(kind.value_type)
    if types.is_map(kind):
        if not types.is_string(kind.key_type):
            return "keys of maps are string"
        return _why_no_json(kind.item_type)
    is_plain = _is_plain(kind) or types.is_binary(kind) or types.is_null(kind)
    return "" if is_plain else f"{kind} is not written (make a string of it)"


def _why_no_csv(kind: pa.DataType) -> str:
    return "" if _is_plain(kind) else f"{kind} is not written (make a string of it)"


def _is_key(kind: pa.DataType) -> bool:
    """Whether values of a type have one text, wherever they are."""
    types = pa.types
    return bool(
        types.is_string(kind)
        or types.is_binary(kind)
        or types.is_integer(kind)
        or types.is_boolean(kind)
        or types.is_date(kind)
        or types.is_decimal(kind)
    )


def _first(reasons: Any) -> str:
    return next(filter(None, reasons), "")


def _is_plain(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_boolean(kind)
        or types.is_string(kind)
        or types.is_decimal(kind)
        or types.is_date(kind)
        or types.is_timestamp(kind)
    )
