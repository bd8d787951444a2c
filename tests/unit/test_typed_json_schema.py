"""JSON Schemas as columns: which types they define, and where one is refused, with its path."""

import pytest

from gazette_platform.errors import ValidationError
from gazette_platform.lake.spec.typed.json_schema import properties_of
from gazette_platform.lake.spec.types import text_of

NESTED = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "of": {"type": "array", "items": {"type": "string"}}},
    "required": ["x"],
    "additionalProperties": False,
}


def of(node, **document):
    """The only property of a document, as text; or what is wrong with it."""
    (found,) = properties_of({"type": "object", "properties": {"p": node}, **document})
    return text_of(found.kind) if found.kind is not None else str(found.errors[0])


@pytest.mark.parametrize(
    ("node", "text"),
    [
        ({"type": "string"}, "string"),
        ({"type": "string", "format": "email", "minLength": 3}, "string"),
        ({"type": "string", "format": "date"}, "date"),
        ({"type": "string", "format": "date-time"}, "timestamptz"),
        ({"type": "string", "format": "uuid"}, "uuid"),
        ({"type": "string", "contentEncoding": "base64"}, "binary"),
        ({"type": "integer", "minimum": 0, "maximum": 10}, "bigint"),
        ({"type": "integer", "format": "int32"}, "int"),
        ({"type": "number"}, "double"),
        ({"type": "number", "format": "float"}, "float"),
        ({"type": ["integer", "number", "null"]}, "double"),
        ({"type": "boolean"}, "boolean"),
        ({"type": ["null", "string"], "format": "date"}, "date"),
        ({"anyOf": [{"type": "null"}, {"type": "integer"}]}, "bigint"),
        ({"oneOf": [{"const": None}, NESTED]}, "struct<x:bigint,of:array<string>>"),
        ({"enum": ["a", "b", None]}, "string"),
        ({"enum": [1, 2.5]}, "double"),
        ({"const": True}, "boolean"),
        ({"type": "string", "enum": ["a"]}, "string"),
        ({"items": {"type": "string"}}, "array<string>"),
        ({"type": "array", "items": NESTED}, "array<struct<x:bigint,of:array<string>>>"),
        (
            {"type": "object", "additionalProperties": {"type": "number"}},
            "map<string,double>",
        ),
        ({"$ref": "#/$defs/at"}, "timestamptz"),
        ({"$ref": "#/$defs/a~1b"}, "array<timestamptz>"),
    ],
)
def test_type(node, text):
    defs = {
        "at": {"type": "string", "format": "date-time"},
        "a/b": {"type": "array", "items": {"$ref": "#/$defs/at"}},
    }
    assert of(node, **{"$defs": defs}) == text


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({}, "properties.p.type: has no types besides null; give it a type, or have"),
        (True, "properties.p: says nothing of types"),
        ({"type": "null"}, "properties.p.type: has no types"),
        ({"type": ["string", "integer"]}, "properties.p.type: has 2 types besides null"),
        ({"enum": ["a", 1]}, "properties.p.type: has 2 types"),
        ({"type": "text"}, "properties.p.type: 'text' is not a type of JSON Schema"),
        ({"type": "array"}, "properties.p.items: says nothing of types"),
        ({"type": "array", "items": [{"type": "string"}]}, "properties.p.items: is not taken"),
        ({"type": "array", "prefixItems": []}, "properties.p.prefixItems: is not taken"),
        ({"type": "object"}, "properties.p.additionalProperties: says nothing of types"),
        ({"allOf": [NESTED]}, "properties.p.allOf: is not taken: by it one place may have several"),
        ({"type": "object", "patternProperties": {}}, "properties.p.patternProperties: is not"),
        (
            {"anyOf": [{"type": "string"}, {"type": "integer"}]},
            "properties.p.anyOf: has 2 alternatives besides null",
        ),
        (
            {"anyOf": [{"type": "null"}, {"type": "array"}]},
            "properties.p.anyOf[1].items: says nothing",
        ),
        (
            {"properties": {"a": {"items": {"properties": {"b": {}}}}}},
            "properties.p.properties.a.items.properties.b.type: has no types",
        ),
        (
            {"properties": {"a b": {"type": "string"}}},
            "properties.p.properties.a b: 'a b' is not a name of a struct's field",
        ),
        (
            {"properties": {"a": {"type": "string"}, "A": {"type": "string"}}},
            "properties.p.properties.A: differs from another in case only",
        ),
        ({"$ref": "https://example.com/x"}, "properties.p.$ref: 'https://example.com/x' is not in"),
        ({"$ref": "#/$defs/none"}, "properties.p.$ref: '#/$defs/none' is not there"),
    ],
)
def test_refusal_names_the_path(node, message):
    assert of(node).startswith(message)


def test_what_refers_to_itself_is_refused_where_it_gets_too_deep():
    tree = {"type": "object", "properties": {"next": {"$ref": "#/$defs/tree"}}}
    assert "is nested more than 16 deep, or within itself" in of(
        {"$ref": "#/$defs/tree"}, **{"$defs": {"tree": tree}}
    )
    assert "within itself" in of({"$ref": "#/properties/p"})


def test_references_do_not_make_a_schema_endless():
    defs = {"d0": {"type": "string"}}
    for level in range(1, 12):
        fields = {f"f{n}": {"$ref": f"#/$defs/d{level - 1}"} for n in range(8)}
        defs[f"d{level}"] = {"type": "object", "properties": fields}
    assert "has more than 20000 places" in of({"$ref": "#/$defs/d11"}, **{"$defs": defs})


def test_required_and_descriptions_are_of_columns():
    document = {
        "properties": {
            "a": {"type": "string", "description": "Of\n  two letters."},
            "b": NESTED,
        },
        "required": ["a", "elsewhere"],
    }
    first, second = properties_of(document)
    assert (first.is_required, first.comment) == (True, "Of two letters.")
    assert (second.is_required, second.comment) == (False, "")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "says nothing of types"),
        ({}, "is not a schema of objects"),
        ({"type": "array", "properties": {"a": {}}}, "is not a schema of objects"),
        ({"properties": {"a": {}}, "oneOf": []}, "oneOf: is not taken"),
        ({"properties": {"a": {}}, "allOf": []}, "allOf: is not taken"),
        ({"$ref": "#"}, "within itself"),
    ],
)
def test_documents_that_describe_no_records(document, message):
    with pytest.raises(ValidationError, match=message):
        properties_of(document)


def test_document_that_is_a_reference():
    document = {"$ref": "#/$defs/order", "$defs": {"order": NESTED}}
    assert [(p.key, text_of(p.kind)) for p in properties_of(document)] == [
        ("x", "bigint"),
        ("of", "array<string>"),
    ]
