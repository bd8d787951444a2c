"""SQL of Trino that gives JSON text a type; the engines' own answers are compared in tests/extended."""

import pytest
import sqlglot

from gazette_platform.lake.raw.views import type_sql, typed_sql
from gazette_platform.lake.spec.types import parse_type


def test_scalar_is_cast_from_its_text():
    assert typed_sql('"n"', parse_type("decimal(10,2)")) == 'TRY_CAST("n" AS decimal(10,2))'


def test_map_is_decoded_value_by_value():
    assert typed_sql('"m"', parse_type("map<string,int>")) == (
        'transform_values(TRY_CAST(TRY(json_parse("m")) AS map(varchar,json)), '
        "(k0, v0) -> TRY_CAST(json_extract_scalar(v0, '$') AS integer))"
    )


def test_fields_are_found_by_their_keys_as_written():
    sql = typed_sql('"s"', parse_type("struct<aB:int,c:struct<aB:string>>"))
    assert sql.count("element_at(v0, 'aB')") == 1
    # Text needs its value twice, and no other part.
    assert sql.count("element_at(v1, 'aB')") == 2
    assert 'AS row("ab" integer,"c" row("ab" varchar))' in sql


@pytest.mark.parametrize(
    "kind",
    [
        "int",
        "array<array<date>>",
        "map<string,map<string,boolean>>",
        "array<struct<a:int,b:array<struct<a:string,c:map<string,double>>>>>",
    ],
)
def test_expression_is_sql(kind):
    parsed = parse_type(kind)
    sqlglot.parse_one(f"SELECT {typed_sql('x', parsed)}", read="trino")
    sqlglot.parse_one(f"SELECT CAST(x AS {type_sql(parsed)})", read="trino")


def test_length_grows_with_the_type_only():
    deep = "string"
    for _ in range(10):
        deep = f"struct<a:{deep},b:int>"
    assert len(typed_sql("x", parse_type(deep))) < 10_000
