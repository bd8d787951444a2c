"""Types of typed tables: what each system calls them, and which partitions they take."""

from io import BytesIO
from itertools import count

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.types import FixedType, NestedField, TimeType

from gazette_platform.errors import ValidationError
from gazette_platform.lake.reading.arrow_types import arrow_type
from gazette_platform.lake.spec.types import (
    FORMATS,
    KEY_TYPES,
    SCALARS,
    TRANSFORMS,
    PartitionTransform,
    leaf_of,
    parse_partition,
    parse_type,
    parse_typed,
    spark_ddl,
    text_of,
    trino_name,
    typed_from_raw,
)
from gazette_platform.lake.typed.iceberg_types import arrow_schema, iceberg_type, spec_type

# spec, Iceberg, Arrow, Spark, Trino
TYPES = [
    ("string", "string", pa.string(), "string", "varchar"),
    ("json", "string", pa.string(), "string", "varchar"),
    ("boolean", "boolean", pa.bool_(), "boolean", "boolean"),
    ("int", "int", pa.int32(), "int", "integer"),
    ("bigint", "long", pa.int64(), "bigint", "bigint"),
    ("float", "float", pa.float32(), "float", "real"),
    ("double", "double", pa.float64(), "double", "double"),
    ("decimal(9,2)", "decimal(9, 2)", pa.decimal128(9, 2), "decimal(9,2)", "decimal(9,2)"),
    ("date", "date", pa.date32(), "date", "date"),
    ("timestamp", "timestamp", pa.timestamp("us"), "timestamp_ntz", "timestamp(6)"),
    (
        "timestamptz",
        "timestamptz",
        pa.timestamp("us", "UTC"),
        "timestamp",
        "timestamp(6) with time zone",
    ),
    ("binary", "binary", pa.binary(), "binary", "varbinary"),
    ("uuid", "uuid", pa.uuid(), "string", "uuid"),
    (
        "array<timestamptz>",
        "list<timestamptz>",
        pa.list_(pa.field("element", pa.timestamp("us", "UTC"))),
        "array<timestamp>",
        "array(timestamp(6) with time zone)",
    ),
    (
        "map<string,uuid>",
        "map<string, uuid>",
        pa.map_(pa.string(), pa.uuid()),
        "map<string,string>",
        "map(varchar, uuid)",
    ),
    (
        "struct<at:timestamp,of:array<struct<n:int,m:map<string,json>>>>",
        (
            "struct<1: at: optional timestamp, 2: of: optional list<struct<4: n: optional int, "
            "5: m: optional map<string, string>>>>"
        ),
        pa.struct(
            [
                ("at", pa.timestamp("us")),
                (
                    "of",
                    pa.list_(
                        pa.field(
                            "element",
                            pa.struct(
                                [("n", pa.int32()), ("m", pa.map_(pa.string(), pa.string()))]
                            ),
                        )
                    ),
                ),
            ]
        ),
        "struct<at:timestamp_ntz,of:array<struct<n:int,m:map<string,string>>>>",
        "row(at timestamp(6), of array(row(n integer, m map(varchar, varchar))))",
    ),
]


def schema_of(text):
    ids = count(2)
    kind = iceberg_type(parse_typed(text), ids)
    return Schema(NestedField(1, "c", kind, required=False))


def test_the_table_has_every_type():
    assert set(SCALARS) <= {text for text, *_ in TYPES}
    assert set(KEY_TYPES) | set(FORMATS) <= {*SCALARS, "decimal"}


@pytest.mark.parametrize(("text", "iceberg", "arrow", "spark", "trino"), TYPES)
def test_type_is_called(text, iceberg, arrow, spark, trino):
    kind = parse_typed(text)
    assert text_of(kind) == text
    assert spark_ddl(kind) == spark
    assert trino_name(kind) == trino
    assert str(iceberg_type(kind, count(1))) == iceberg
    assert arrow_schema(schema_of(text)).field("c").type.equals(arrow)
    assert arrow_type(kind).equals(arrow), "what the parser makes"
    assert text_of(spec_type(iceberg_type(kind, count(1)))) == text.replace("json", "string")


@pytest.mark.parametrize("text", [text for text, *_ in TYPES])
def test_files_of_a_type_are_read_by_their_ids(text):
    schema = schema_of(text)
    file = BytesIO()
    # Without rows: Arrow makes no arrays of maps of UUIDs out of Python's values.
    pq.ParquetWriter(file, arrow_schema(schema)).close()
    found = pyarrow_to_schema(pq.read_schema(BytesIO(file.getvalue())))
    assert found.as_struct() == schema.as_struct()


@pytest.mark.parametrize(
    ("alias", "text"),
    [
        ("VARCHAR", "string"),
        ("integer", "int"),
        ("long", "bigint"),
        ("real", "float"),
        ("timestamp_ntz", "timestamp"),
        ("timestamp_ltz", "timestamptz"),
        ("varbinary", "binary"),
    ],
)
def test_other_names(alias, text):
    assert text_of(parse_typed(alias)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tinyint", "tinyint is not a type of Iceberg tables .use `int`"),
        ("array<smallint>", "smallint is not a type of Iceberg"),
        ("time", "not a type that Spark has"),
        ("datetime", "use `timestamptz`"),
        ("timestamp(6)", "unknown type 'timestamp.6.'"),
        ("map<int,string>", "keys of a map must be string"),
        ("text", "unknown type 'text' .use one of string, json, .*struct<a:t>"),
    ],
)
def test_invalid_types(text, message):
    with pytest.raises(ValidationError, match=message):
        parse_typed(text)


def test_raw_tables_have_no_types_of_typed_ones():
    for text in ("timestamptz", "json", "uuid", "binary"):
        with pytest.raises(ValidationError, match="unknown type"):
            parse_type(text)


def test_types_of_raw_tables_as_iceberg_has_them():
    found = typed_from_raw(parse_type("map<string,struct<a:tinyint,b:smallint,c:decimal(5,2)>>"))
    assert text_of(found) == "map<string,struct<a:int,b:int,c:decimal(5,2)>>"


def test_leaf_of_structs_is_the_struct():
    assert leaf_of(parse_typed("array<map<string,struct<a:int>>>")).name == "struct"


def test_a_type_that_specs_do_not_have():
    assert text_of(spec_type(FixedType(4))) == "fixed[4]"
    with pytest.raises(ValueError, match="time is not a type"):
        arrow_schema(Schema(NestedField(1, "c", TimeType(), required=False)))


@pytest.mark.parametrize("transform", sorted(TRANSFORMS))
def test_iceberg_has_each_transform_of_each_type(transform):
    iceberg = parse_transform(
        {"bucket": "bucket[8]", "truncate": "truncate[8]"}.get(transform, transform)
    )
    kinds = [parse_typed(text) for text, *_ in TYPES]
    able = {k.name for k in kinds if iceberg.can_transform(iceberg_type(k, count(1)))}
    assert able >= TRANSFORMS[transform]
    # What we leave out beyond that: values that engines do not agree on, or that make no good paths.
    assert able - TRANSFORMS[transform] <= {"json", "float", "double", "binary"}


@pytest.mark.parametrize(
    ("text", "parsed", "canonical", "iceberg", "name"),
    [
        ("a", PartitionTransform("identity", "a"), "a", "identity", "a"),
        (" identity( a ) ", PartitionTransform("identity", "a"), "a", "identity", "a"),
        ("Day(at)", PartitionTransform("day", "at"), "day(at)", "day", "at_day"),
        (
            "bucket(16,a)",
            PartitionTransform("bucket", "a", 16),
            "bucket(16, a)",
            "bucket[16]",
            "a_bucket_16",
        ),
        (
            "truncate(4, a)",
            PartitionTransform("truncate", "a", 4),
            "truncate(4, a)",
            "truncate[4]",
            "a_trunc_4",
        ),
    ],
)
def test_partition(text, parsed, canonical, iceberg, name):
    found = parse_partition(text)
    assert found == parsed
    assert (found.text, found.iceberg, found.name) == (canonical, iceberg, name)
    assert parse_partition(found.text) == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a transform of a column: `day"),
        ("day(a, b)", "is not a transform"),
        ("day(a) ", ""),
        ("days(a)", r"days is none of Iceberg's transforms: .*\(`day`\?\)"),
        ("void(a)", "void is none"),
        ("day(3, a)", "day has no number"),
        ("bucket(a)", "bucket needs a number from 1 to 100000"),
        ("bucket(0, a)", "needs a number"),
        ("bucket(99999999999999999999, a)", "needs a number"),
        ("truncate(1000001, a)", "needs a number from 1 to 1000000"),
        ("a.b", "is not a transform"),
    ],
)
def test_invalid_partitions(text, message):
    if not message:
        assert parse_partition(text).text == text.strip()
        return
    with pytest.raises(ValidationError, match=message):
        parse_partition(text)
