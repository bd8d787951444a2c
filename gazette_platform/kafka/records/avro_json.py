"""Avro values of Confluent's wire format as JSON objects, and back. Pure.

A value is a byte 0, the id of its schema in four bytes, and a record in Avro's binary form. As JSON a record is an object, and the
values of unions stand for themselves. Bytes are base64, decimals text, and times are as RFC 3339 has them.

What JSON cannot hold exactly is refused: each value that was turned into JSON is turned back, and compared.
"""

from __future__ import annotations

import struct
from base64 import b64decode, b64encode
from datetime import date, datetime, time
from decimal import Decimal
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final, final
from uuid import UUID

import fastavro
import orjson

from gazette_platform.errors import DataError, ValidationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Restore = Callable[[Any], Any]

VALUE_BYTES_MAX: Final = 1 << 20
"""Of a value: it becomes many times as large in memory."""

_HEAD: Final = struct.Struct(">BI")
_HEIGHT_MAX: Final = 32
# Of objects that a value becomes: its bytes times the height of the schema.
_PARTS_MAX: Final = 4 << 20
# What fastavro raises for bytes that are not a value of the schema, or for objects that do not fit it.
_BAD: Final = (
    ArithmeticError,
    EOFError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
    AttributeError,
    struct.error,
)
_PRIMITIVES: Final = frozenset(
    ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
)
_LOGICAL: Final[Mapping[tuple[str, str], Restore]] = {
    ("int", "date"): date.fromisoformat,
    ("int", "time-millis"): time.fromisoformat,
    ("long", "time-micros"): time.fromisoformat,
    ("long", "timestamp-millis"): datetime.fromisoformat,
    ("long", "timestamp-micros"): datetime.fromisoformat,
    ("long", "local-timestamp-millis"): datetime.fromisoformat,
    ("long", "local-timestamp-micros"): datetime.fromisoformat,
    ("bytes", "decimal"): Decimal,
    ("fixed", "decimal"): Decimal,
    ("string", "uuid"): UUID,
}


_JSON_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "int": (int,),
    "long": (int,),
    "float": (float, int),
    "double": (float, int),
    "string": (str,),
    "bytes": (str,),
    "fixed": (str,),
    "enum": (str,),
    "array": (list,),
    "map": (dict,),
    "record": (dict,),
    "error": (dict,),
}


def schema_id_of(value: bytes) -> int | None:
    """The id of the schema of a value; None: it does not have Confluent's wire format."""
    if len(value) < _HEAD.size or value[0]:
        return None
    found: int = _HEAD.unpack_from(value)[1]
    return found


@final
class _Shape:
    """Checks a schema: values of it are decoded by C code, which has no limits of its own.

    Each part of a value takes a byte at least, and no type holds itself. So the size of a value, and the height of its
    schema, limit how many objects it becomes.
    """

    def __init__(self) -> None:
        self._heights: dict[str, int] = {}  # of named types; 0: it is not closed yet

    def height(self, schema: Any, space: str = "", *, is_branch: bool = False) -> int:
        """How deep values nest. Raises: ValidationError."""
        if isinstance(schema, list):
            return max(self.height(each, space, is_branch=True) for each in schema)
        if isinstance(schema, str):
            return self._named(schema, space, is_branch=is_branch)
        kind = schema["type"]
        match kind:
            case dict() | list():
                return self.height(kind, space)
            case "array" | "map":
                return 1 + self.height(schema["items" if kind == "array" else "values"], space)
            case "fixed" | "enum" | "record" | "error":
                return self._define(schema, kind, space)
            case _:
                return self._named(kind, space, is_branch=is_branch)

    def _define(self, schema: Mapping[str, Any], kind: str, space: str) -> int:
        name = str(schema["name"])
        if "." not in name and (own := schema.get("namespace", space)):
            name = f"{own}.{name}"
        self._heights[name] = 0
        height = 1
        if kind in {"record", "error"}:
            inner = name.rpartition(".")[0]
            heights = [self.height(field["type"], inner) for field in schema["fields"]]
            if not heights:
                raise ValidationError(f"{name} has no fields")
            height += max(heights)
        elif kind == "fixed" and not (type(schema["size"]) is int and schema["size"] > 0):
            raise ValidationError(f"{name} has no bytes")
        self._heights[name] = height
        return height

    def _named(self, name: str, space: str, *, is_branch: bool) -> int:
        if name == "null" and not is_branch:
            raise ValidationError("a field or an item is null alone, and takes no bytes")
        if name in _PRIMITIVES:
            return 1
        for full in (f"{space}.{name}", name) if space and "." not in name else (name,):
            height = self._heights.get(full)
            if height:
                return height
            if height == 0:
                raise ValidationError(f"{full} holds itself, so its values may be of any depth")
        raise ValidationError(
            f"{name} is not defined (schemas that refer to others are not served)"
        )


@final
class AvroCodec:
    """Turns values of one schema into JSON, and back.

    Args:
        schema_id: of the registry.
        text: of the schema.

    Raises: ValidationError: values of it cannot become lines.
    """

    def __init__(self, schema_id: int, text: str) -> None:
        try:
            raw = orjson.loads(text)
            height = _Shape().height(raw)
            schema: Any = fastavro.parse_schema(raw)
        except ValidationError:
            raise
        except (fastavro.schema.SchemaParseException, *_BAD) as err:
            raise ValidationError(f"it is not a schema of Avro: {err}") from err
        if not isinstance(schema, dict) or schema["type"] != "record":
            raise ValidationError("the schema is not of a record, which alone is a JSON object")
        if height > _HEIGHT_MAX:
            raise ValidationError(
                f"values of the schema nest {height} deep, more than {_HEIGHT_MAX}"
            )
        if any(field["name"] == "_meta" for field in schema["fields"]):
            raise ValidationError("the schema has a field _meta, which the topic adds itself")
        self._schema = schema
        self._bytes_max = min(VALUE_BYTES_MAX, _PARTS_MAX // height)
        self._head = _HEAD.pack(0, schema_id)
        self._restore = _restorer(schema, {})

    def to_json(self, value: bytes) -> bytes:
        """The JSON object of a value. Raises: DataError: it is malformed, or JSON cannot hold it."""
        if len(value) > self._bytes_max:
            raise DataError(
                f"the value has {len(value)} bytes, and {self._bytes_max} at most are taken"
            )
        source = BytesIO(value)
        source.seek(_HEAD.size)
        try:
            found = fastavro.schemaless_reader(source, self._schema, None)
        except _BAD as err:
            raise DataError(
                f"the value does not fit its schema: {type(err).__name__}: {err}"
            ) from None
        if source.tell() != len(value):
            raise DataError("the value does not fit its schema: there are bytes after it")
        try:
            text = orjson.dumps(found, default=_plain, option=orjson.OPT_UTC_Z)
            back = self.to_avro(text)
            is_same = back == value or self._typed(back) == self._typed(value)
        except (DataError, *_BAD) as err:
            raise DataError(f"JSON cannot hold the value: {err}") from None
        if not is_same:
            raise DataError(
                "JSON cannot hold the value: branches of a union look the same, or a number has no JSON"
            )
        return text

    def _typed(self, value: bytes) -> str:
        """A text that is the same for the same values, whatever blocks their arrays have."""
        source = BytesIO(value)
        source.seek(_HEAD.size)
        return repr(
            fastavro.schemaless_reader(
                source, self._schema, None, return_record_name=True, return_named_type=True
            )
        )

    def to_avro(self, text: bytes) -> bytes:
        """The value of a JSON object, whose ``_meta`` does not count. Raises: DataError: it does not fit the schema."""
        try:
            found = orjson.loads(text)
            found.pop("_meta", None)
            if self._restore is not None:
                found = self._restore(found)
            out = BytesIO()
            out.write(self._head)
            fastavro.schemaless_writer(out, self._schema, found, strict_allow_default=True)
        except _BAD as err:
            raise DataError(f"it does not fit the schema: {type(err).__name__}: {err}") from None
        return out.getvalue()


def _plain(value: object) -> str:
    """What JSON has no type for."""
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"a {type(value).__name__}")


def _bytes(text: str) -> bytes:
    return b64decode(text, validate=True)


def _restorer(schema: Any, named: dict[str, Restore | None]) -> Restore | None:
    """What undoes `_plain` in a value; None: it has nothing to undo."""
    if isinstance(schema, list):
        return _union(schema, named)
    if isinstance(schema, str):
        return _bytes if schema == "bytes" else named.get(schema)
    kind = schema["type"]
    if isinstance(kind, (dict, list)):
        return _restorer(kind, named)
    restore = _LOGICAL.get((kind, schema.get("logicalType", "")))
    match kind:
        case "array":
            restore = _each(_restorer(schema["items"], named))
        case "map":
            restore = _of_map(_restorer(schema["values"], named))
        case "record" | "error":
            restore = _of_record(schema, named)
        case "bytes" | "fixed":
            restore = restore or _bytes
        case _:
            restore = restore or named.get(kind)
    if "name" in schema:
        named[schema["name"]] = restore
    return restore


def _each(inner: Restore | None) -> Restore | None:
    return None if inner is None else lambda values: [inner(value) for value in values]


def _of_map(inner: Restore | None) -> Restore | None:
    return None if inner is None else lambda found: {name: inner(found[name]) for name in found}


def _of_record(schema: Mapping[str, Any], named: dict[str, Restore | None]) -> Restore | None:
    parts = [(field["name"], _restorer(field["type"], named)) for field in schema["fields"]]
    undo = [(name, restore) for name, restore in parts if restore is not None]
    if not undo:
        return None

    def restored(found: dict[str, Any]) -> dict[str, Any]:
        for name, restore in undo:
            if name in found:
                found[name] = restore(found[name])
        return found

    return restored


def _union(branches: list[Any], named: dict[str, Restore | None]) -> Restore | None:
    """Tries the branches in their order, of those that may have a JSON value of its type."""
    undo = [(_json_type(each), _field_names(each), _restorer(each, named)) for each in branches]
    if all(restore is None for _, _, restore in undo):
        return None

    def restored(value: Any) -> Any:
        for kind, names, restore in undo:
            if type(value) not in kind or (names is not None and value.keys() != names):
                continue
            if restore is None:
                return value
            try:
                return restore(value)
            except _BAD:
                continue
        return value

    return restored


def _field_names(schema: Any) -> set[str] | None:
    """Of a record; None: it is none, or was defined before."""
    if isinstance(schema, str) or schema["type"] not in {"record", "error"}:
        return None
    return {field["name"] for field in schema["fields"]}


def _json_type(schema: Any) -> tuple[type, ...]:
    """The types that JSON may give a value of a branch."""
    if isinstance(schema, str):
        return _JSON_TYPES.get(schema, (str, dict))  # one that was defined before
    kind = schema["type"]
    return (str,) if (kind, schema.get("logicalType", "")) in _LOGICAL else _JSON_TYPES[kind]
