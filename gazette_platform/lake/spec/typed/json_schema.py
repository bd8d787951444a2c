"""Columns out of a JSON Schema of the records: the part of it that defines types. Pure.

| schema | column |
|---|---|
| `string`; with `format` `date`, `date-time`, `uuid`; with `contentEncoding` `base64` | string; date, timestamptz, uuid; binary |
| `integer`; with `format` `int32` | bigint; int |
| `number`; with `format` `float` | double; float |
| `boolean` | boolean |
| `array` with one schema of `items` | array |
| `object` with `properties`; with `additionalProperties` alone | struct; map |
| several types, one of them `null`, also by `anyOf` or `oneOf` | the other one |
| `enum` and `const`, without a type | that of their values |
| `$ref` to a place in the same document | its content |

`required` of the document makes columns required; that of objects below is not looked at, and neither is
what limits values (`minimum`, `pattern`, `enum`): a typed table holds types, it judges no values. What could give a
place more than one type (`allOf`, `patternProperties`, …) is refused, with its path.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import msgspec

from gazette_platform.errors import ValidationError
from gazette_platform.lake.spec.rules import SPEC_BYTES_MAX, shown
from gazette_platform.lake.spec.types import ColumnType

if TYPE_CHECKING:
    from collections.abc import Mapping

_FIELD_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_DEPTH_MAX: Final = 16
# With references a short document can have places that take a day to check.
_PLACES_MAX: Final = 20_000
_NOT_TAKEN: Final = (
    *("allOf", "not", "if", "then", "else", "patternProperties", "propertyNames"),
    *("dependentSchemas", "dependencies", "unevaluatedProperties", "unevaluatedItems"),
    *("prefixItems", "additionalItems", "$dynamicRef", "$recursiveRef"),
)
_OF_STRINGS: Final = {"date": "date", "date-time": "timestamptz", "uuid": "uuid"}
_OF_VALUES: Final = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
}
_AS_JSON: Final = "give it a type, or have the whole property as `json` by `columns`"


class Property(NamedTuple):
    """One property of the records."""

    key: str
    kind: ColumnType | None
    """None: see `errors`."""
    is_required: bool
    comment: str
    errors: tuple[ValidationError, ...]
    """Why it is not a column; each has a path within the document."""


def parse_document(text: bytes) -> object:
    """The document that a file holds.

    Raises: ValidationError: the file is too long, or not JSON.
    """
    if len(text) > SPEC_BYTES_MAX:
        raise ValidationError(f"is {len(text)} bytes; a JSON Schema has at most {SPEC_BYTES_MAX}")
    try:
        return msgspec.json.decode(text)
    # Of what is nested without end; all else that is wrong is a MsgspecError.
    except (msgspec.MsgspecError, RecursionError) as err:
        raise ValidationError(f"is not valid JSON: {err}") from err


def properties_of(document: object) -> list[Property]:
    """The properties of records that a JSON Schema describes.

    Args:
        document: as a reader of JSON gives it.

    Raises: ValidationError: it is not a schema of objects.
    """
    reader = _Reader(document)
    root, path = reader.resolved(document, "", 0)
    properties = root.get("properties")
    if not isinstance(properties, dict) or not properties or root.get("type", "object") != "object":
        raise ValidationError(
            "is not a schema of objects: it needs `type: object` and `properties`", path=path
        )
    for keyword in (*_NOT_TAKEN, "anyOf", "oneOf"):
        if keyword in root:
            raise _not_taken(keyword, path)
    required = root.get("required")
    names = required if isinstance(required, list) else []
    return [
        reader.of_property(str(key), node, _at(path, f"properties.{key}"), is_required=key in names)
        for key, node in properties.items()
    ]


def _at(path: str, part: str) -> str:
    return f"{path}.{part}" if path else part


def _not_taken(keyword: str, path: str) -> ValidationError:
    return ValidationError(
        "is not taken: by it one place may have several types", path=_at(path, keyword)
    )


@final
class _Reader:
    """Follows one document."""

    def __init__(self, document: object) -> None:
        self._document = document
        self._places = 0

    def of_property(self, key: str, node: object, path: str, *, is_required: bool) -> Property:
        told = node.get("description") if isinstance(node, dict) else None
        comment = " ".join(told.split()) if isinstance(told, str) else ""
        try:
            return Property(key, self.type_of(node, path, 0), is_required, comment, ())
        except ValidationError as err:
            return Property(key, None, is_required, comment, (err,))

    def resolved(self, node: object, path: str, depth: int) -> tuple[Mapping[str, Any], str]:
        """The schema at a place, or where it refers to, and the path of that."""
        self._places += 1
        if self._places > _PLACES_MAX:
            raise ValidationError(f"has more than {_PLACES_MAX} places", path=path)
        if depth > _DEPTH_MAX:
            raise ValidationError(
                f"is nested more than {_DEPTH_MAX} deep, or within itself; {_AS_JSON}", path=path
            )
        if not isinstance(node, dict):
            raise ValidationError(f"says nothing of types; {_AS_JSON}", path=path)
        if "$ref" not in node:
            return node, path
        pointer = node["$ref"]
        if not isinstance(pointer, str) or not pointer.startswith("#"):
            raise ValidationError(
                f"{shown(str(pointer))} is not in the same document", path=_at(path, "$ref")
            )
        target: object = self._document
        for part in filter(None, pointer[1:].split("/")):
            name = part.replace("~1", "/").replace("~0", "~")
            target = target.get(name) if isinstance(target, dict) else None
        if target is None:
            raise ValidationError(f"{shown(pointer)} is not there", path=_at(path, "$ref"))
        return self.resolved(target, path, depth + 1)

    def type_of(self, node: object, path: str, depth: int) -> ColumnType:
        schema, path = self.resolved(node, path, depth)
        for keyword in _NOT_TAKEN:
            if keyword in schema:
                raise _not_taken(keyword, path)
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                return self._of_alternatives(schema[keyword], _at(path, keyword), depth)
        match _type_name(schema, path):
            case "array":
                return self._of_array(schema, path, depth)
            case "object":
                return self._of_object(schema, path, depth)
            case name:
                return ColumnType(_scalar_name(name, schema, path))

    def _of_alternatives(self, found: object, path: str, depth: int) -> ColumnType:
        nodes = found if isinstance(found, list) else []
        real = [(i, n) for i, n in enumerate(nodes) if n not in ({"type": "null"}, {"const": None})]
        if len(real) != 1:
            raise ValidationError(
                f"has {len(real)} alternatives besides null, and a column one type", path=path
            )
        index, node = real[0]
        return self.type_of(node, f"{path}[{index}]", depth + 1)

    def _of_array(self, schema: Mapping[str, Any], path: str, depth: int) -> ColumnType:
        items = schema.get("items")
        if isinstance(items, list):
            raise _not_taken("items", path)
        return ColumnType("array", (self.type_of(items, _at(path, "items"), depth + 1),))

    def _of_object(self, schema: Mapping[str, Any], path: str, depth: int) -> ColumnType:
        properties = schema.get("properties")
        if not isinstance(properties, dict) or not properties:
            at = _at(path, "additionalProperties")
            values = self.type_of(schema.get("additionalProperties"), at, depth + 1)
            return ColumnType("map", (ColumnType("string"), values))
        names: list[str] = []
        kinds: list[ColumnType] = []
        for key, node in properties.items():
            name, at = str(key), _at(path, f"properties.{key}")
            if not _FIELD_NAME.match(name):
                raise ValidationError(
                    f"{shown(name)} is not a name of a struct's field (letters, digits, `_`); "
                    "have the whole property as `json` by `columns`",
                    path=at,
                )
            if name.lower() in {other.lower() for other in names}:
                raise ValidationError("differs from another in case only", path=at)
            names.append(name)
            kinds.append(self.type_of(node, at, depth + 1))
        return ColumnType("struct", tuple(kinds), tuple(names))


def _type_name(schema: Mapping[str, Any], path: str) -> str:
    """The one type besides null that a schema names."""
    told = schema.get("type")
    names = told if isinstance(told, list) else [told] if told is not None else _implied(schema)
    kinds = {str(name) for name in names} - {"null"}
    if kinds == {"integer", "number"}:
        return "number"
    if len(kinds) != 1:
        raise ValidationError(
            f"has {len(kinds) or 'no'} types besides null; {_AS_JSON}", path=_at(path, "type")
        )
    return kinds.pop()


def _implied(schema: Mapping[str, Any]) -> list[str]:
    """Types, as far as other keywords define them."""
    if "properties" in schema:
        return ["object"]
    if "items" in schema:
        return ["array"]
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return [_OF_VALUES.get(type(value), "object") for value in values]


def _scalar_name(name: str, schema: Mapping[str, Any], path: str) -> str:
    told = str(schema.get("format"))
    match name:
        case "string" if schema.get("contentEncoding") == "base64":
            return "binary"
        case "string":
            return _OF_STRINGS.get(told, "string")
        case "integer":
            return "int" if told == "int32" else "bigint"
        case "number":
            return "float" if told == "float" else "double"
        case "boolean":
            return "boolean"
        case _:
            told = f"{shown(name)} is not a type of JSON Schema"
            raise ValidationError(told, path=_at(path, "type"))
