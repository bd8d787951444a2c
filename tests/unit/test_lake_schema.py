"""Types: one text, three engines."""

import pytest

from gazette_platform.errors import ValidationError
from gazette_platform.lake.spec.types import parse_type, widens


@pytest.mark.parametrize(
    ("text", "hive", "spark", "trino"),
    [
        ("string", "string", "string", "varchar"),
        ("VARCHAR", "string", "string", "varchar"),
        ("int", "int", "integer", "integer"),
        ("long", "bigint", "long", "bigint"),
        ("smallint", "smallint", "short", "smallint"),
        ("real", "float", "float", "real"),
        ("decimal( 10 , 2 )", "decimal(10,2)", "decimal(10,2)", "decimal(10,2)"),
    ],
)
def test_primitive_has_a_name_in_each_engine(text, hive, spark, trino):
    kind = parse_type(text)
    assert (kind.hive, kind.spark, kind.trino) == (hive, spark, trino)


def test_nested_types_keep_the_case_of_fields():
    kind = parse_type("array<struct<userId:bigint,tags:map<string,date>>>")
    assert kind.hive == "array<struct<userId:bigint,tags:map<string,date>>>"
    assert kind.trino == "array(row(userId bigint, tags map(varchar, date)))"
    assert kind.spark == {
        "type": "array",
        "containsNull": True,
        "elementType": {
            "type": "struct",
            "fields": [
                {"name": "userId", "type": "long", "nullable": True, "metadata": {}},
                {
                    "name": "tags",
                    "type": {
                        "type": "map",
                        "keyType": "string",
                        "valueType": "date",
                        "valueContainsNull": True,
                    },
                    "nullable": True,
                    "metadata": {},
                },
            ],
        },
    }


@pytest.mark.parametrize(
    "text",
    [
        "", "text", "int int", "array", "array<", "array<int", "array<int>>", "map<string>", "a;b",
        "struct<>", "struct<a>", "struct<a:int,>", "struct<a:int,A:int>", "struct<1a:int>",
        "decimal", "decimal(x,1)", "decimal(39,1)", "decimal(3,4)", "decimal(0,0)", "array<" * 40,
    ],
)  # fmt: skip
def test_malformed_type_is_refused(text):
    with pytest.raises(ValidationError):
        parse_type(text)


def test_unknown_type_lists_the_known_ones():
    with pytest.raises(ValidationError, match=r"unknown type 'text' \(use one of string, boolean"):
        parse_type("text")


def test_timestamp_says_what_to_do_instead():
    with pytest.raises(ValidationError, match="keep the text as `string`"):
        parse_type("timestamp")


def test_map_keys_are_strings():
    with pytest.raises(ValidationError, match="keys of a map must be string"):
        parse_type("map<int,int>")


@pytest.mark.parametrize(
    ("old", "new", "is_wider"),
    [
        ("int", "int", True),
        ("int", "bigint", True),
        ("bigint", "int", False),
        ("int", "string", True),
        ("string", "int", False),
        ("float", "double", True),
        ("double", "float", False),
        ("int", "double", False),
        ("decimal(5,2)", "decimal(7,2)", True),
        ("decimal(5,2)", "decimal(6,4)", False),
        ("decimal(5,2)", "decimal(5,1)", False),
        ("array<int>", "array<bigint>", True),
        ("array<int>", "string", False),
        ("map<string,int>", "map<string,bigint>", True),
        ("struct<a:int>", "struct<a:bigint,b:int>", True),
        ("struct<a:int,b:int>", "struct<a:int>", False),
        ("struct<a:int>", "struct<b:int,a:int>", False),
    ],
)
def test_widening(old, new, is_wider):
    assert widens(parse_type(old), parse_type(new)) is is_wider
