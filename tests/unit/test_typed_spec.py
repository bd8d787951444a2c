"""The section `typed:` of table specs: what is meant where nothing is said, and what each mistake says."""

import re

import msgspec
import pytest

from gazette_platform.lake.spec.table_spec import parse_table_spec
from gazette_platform.lake.spec.typed import read_typed_spec
from gazette_platform.lake.typed.iceberg_types import new_partition_spec, new_schema

RAW_TEXT = """
name: flights.flights
selector: name:prefix=flights/
format: json
columns:
  - {name: carrier, type: string, comment: two letters}
  - {name: flight, type: smallint}
  - {name: departure, type: string}
  - {name: dep_delay, type: double}
  - {name: tail_no, from: tail no., type: string}
  - {name: meta, from: _meta, type: 'struct<zone:string,uuid:string>'}
"""
RAW = parse_table_spec(RAW_TEXT)


def read(text, raw=RAW, schemas=None):
    beside = {name: msgspec.json.encode(document) for name, document in (schemas or {}).items()}
    return read_typed_spec(raw, msgspec.yaml.decode(text), beside)


def good(text, raw=RAW, schemas=None):
    spec, errors = read(text, raw, schemas)
    assert [str(error) for error in errors] == []
    assert spec is not None
    return spec


def told(text, raw=RAW, schemas=None):
    spec, errors = read(text, raw, schemas)
    assert spec is None
    return [str(error) for error in errors]


def test_what_is_meant_where_nothing_is_said():
    spec = good("uuid: _meta.uuid")
    assert spec.name == "typed.flights"
    assert (spec.source, spec.uuid) == ("flights.flights", ("_meta", "uuid"))
    assert [(c.name, c.key, c.type, c.comment) for c in spec.columns] == [
        ("carrier", "carrier", "string", "two letters"),
        ("flight", "flight", "int", ""),
        ("departure", "departure", "string", ""),
        ("dep_delay", "dep_delay", "double", ""),
        ("tail_no", "tail no.", "string", ""),
        ("meta", "_meta", "struct<zone:string,uuid:string>", ""),
    ]
    assert not any(c.required for c in spec.columns)
    assert (spec.key, spec.partitions, spec.retired) == ((), (), ())
    assert (spec.unknown, spec.every_s, spec.cron, spec.retention) == ("ignore", 0.0, "", "keep")
    assert [c.name for c in spec.all_columns[-4:]] == ["_journal", "_begin", "_end", "_uuid"]


def test_everything_that_there_is_to_say():
    spec = good("""
        name: shop.flights
        uuid: none
        key: [carrier, flight, departed_at]
        partitions: [day(departed_at), "bucket(16, carrier)", _journal]
        columns:
          - {name: departed_at, from: departure, type: timestamptz, format: epoch_ms, comment: when}
          - {name: flight, required: true}
          - {name: region, type: string, segment: region}
          - {name: raw, type: 'map<string,json>', required: true}
        unknown: quarantine
        every: 1m30s
        retention: follow
        retired: [old, meta.town]
    """)
    assert spec.uuid == ()
    assert (spec.every_s, spec.unknown, spec.retention) == (90.0, "quarantine", "follow")
    # An entry stays where the column of the raw table is; others come last.
    names = "carrier flight departed_at dep_delay tail_no meta region raw"
    assert [c.name for c in spec.columns] == names.split()
    columns = {c.name: c for c in spec.columns}
    departed = columns["departed_at"]
    assert (departed.key, departed.type) == ("departure", "timestamptz")
    assert (departed.format, departed.comment) == ("epoch_ms", "when")
    assert (columns["region"].segment, columns["region"].key) == ("region", "")
    assert {c.name for c in spec.columns if c.required} == {
        "carrier",
        "flight",
        "departed_at",
        "raw",
    }
    assert spec.retired == ("old", "meta.town")
    assert [p.text for p in spec.partitions] == [
        "day(departed_at)",
        "bucket(16, carrier)",
        "_journal",
    ]


def test_the_table_that_is_made_of_a_spec():
    spec = good("""
        uuid: none
        key: [carrier]
        partitions: [day(departure), _journal]
        columns: [{name: departure, type: date, required: true}]
    """)
    schema = new_schema(spec)
    required = {field.name for field in schema.fields if field.required}
    # Iceberg could not make `departure` required again once it was not, so what is read decides that.
    assert required == {"carrier", "_journal", "_begin", "_end"}
    assert schema.identifier_field_names() == {"carrier"}
    assert schema.find_field("carrier").doc == "two letters"
    ids = [field.field_id for field in schema.fields]
    assert len({*schema.field_ids}) == len([*schema.field_ids])
    assert min(ids) == 1
    partitions = new_partition_spec(spec, schema)
    assert [(f.name, f.source_id) for f in partitions.fields] == [
        ("departure_day", schema.find_field("departure").field_id),
        ("_journal", schema.find_field("_journal").field_id),
    ]


def test_truncate_is_of_texts_that_are_times():
    spec = good(
        """
        uuid: none
        columns:
          - {name: a, type: timestamptz, truncate: true}
          - {name: b, type: 'array<struct<at:timestamp>>', truncate: true}
          - {name: c, type: timestamptz}
        """
    )
    forms = {c.name: c.form for c in spec.columns}
    assert [forms[name] for name in "abc"] == ["iso truncate", "truncate", "iso"]


def test_a_format_is_of_what_arrays_and_maps_hold():
    spec = good("""
        uuid: none
        columns:
          - {name: a, type: 'array<map<string,timestamptz>>', format: epoch_s}
          - {name: b, type: timestamptz}
          - {name: c, type: 'array<binary>'}
          - {name: d, type: binary, format: hex}
    """)
    formats = {c.name: c.format for c in spec.columns}
    assert [formats[name] for name in "abcd"] == ["epoch_s", "iso", "base64", "hex"]


def test_two_columns_whose_keys_differ_in_case():
    spec = good("{uuid: none, columns: [{name: other, from: Carrier, type: int}]}")
    assert [c.key for c in spec.columns if c.key.lower() == "carrier"] == ["carrier", "Carrier"]


MISTAKES = [
    ("[]", "typed: is not a mapping: it needs `uuid`"),
    ("{}", "typed.uuid: is missing: where do records have"),
    ("uuid: null", "typed.uuid: Expected `str`, got `null`"),
    ("uuid: ''", "typed.uuid: '' is not a path of keys"),
    ("uuid: a..b", "typed.uuid: 'a..b' is not a path of keys"),
    ("uuid: a.b.c.d.e.f.g.h.i", "typed.uuid: .* is not a path of keys"),
    ("uuid: dep_delay", "typed.uuid: is a column of type double; a UUID is"),
    ("uuid: carrier.uuid", "typed.uuid: within 'carrier' there is no key 'uuid'"),
    ("uuid: _meta", "typed.uuid: is a column of type struct"),
    ("{uuid: none, name: flights}", "typed.name: 'flights' is not schema.table"),
    (f"{{uuid: none, name: a.{'b' * 101}}}", "typed.name: .* is not schema.table"),
    ("{uuid: none, name: flights.flights}", "typed.name: flights.flights is the raw table"),
    ("{uuid: none, name: flights.flights_exact}", "typed.name: .* is the raw table, or its view"),
    ("{uuid: none, title: x}", "typed.title: there is no such key .use one of uuid, name, key"),
    ("{uuid: none, 1: x}", "typed.'1': there is no such key"),
    ("{uuid: none, unknown: drop}", "typed.unknown: Invalid enum value 'drop'"),
    ("{uuid: none, retention: 1d}", "typed.retention: Invalid enum value"),
    ("{uuid: none, every: 30}", "typed.every: Expected `str`, got `int` .quote it"),
    ("{uuid: none, every: 1s}", "typed.every: 1s is less than 5s"),
    ("{uuid: none, every: soon}", "typed.every: .*not a duration such as `30s`"),
    ("{uuid: none, every: -30s}", "typed.every: -30s is less than"),
    ("{uuid: none, cron: '* *'}", "typed.cron: '. .' has 2 fields"),
    ("{uuid: none, every: 30s, cron: '* * * * *'}", "typed.cron: is either this or `every`"),
    ("{uuid: none, columns: {name: a}}", "typed.columns: is not a list"),
    ("{uuid: none, key: [a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q]}", "typed.key: has more than 16"),
    ("{uuid: none, columns: [{name: a}]}", r"typed.columns\[0\].type: needs a type"),
    ("{uuid: none, columns: [{type: int}]}", r"typed.columns\[0\]: Object missing required field"),
    (
        "{uuid: none, columns: [{name: a, type: int, typo: 1}]}",
        r"typed.columns\[0\]: Object contains unknown field `typo`",
    ),
    (
        "{uuid: none, columns: [{name: a, type: 1}]}",
        r"typed.columns\[0\].type: Expected `str`, got `int`",
    ),
    (
        "{uuid: none, columns: [{name: flight, type: tinyint}]}",
        r"typed.columns\[0\].type: tinyint is not a type of Iceberg",
    ),
    (
        "{uuid: none, columns: [{name: Carrier, type: int}]}",
        r"typed.columns\[0\].name: 'Carrier' repeats 'carrier'",
    ),
    (
        "{uuid: none, columns: [{name: tail, type: int, from: _uuid}, {name: _UUID, type: int}]}",
        r"typed.columns\[1\].name: '_UUID' is what each row of a typed table has",
    ),
    (
        "{uuid: none, columns: [{name: _Pos, from: pos, type: int}]}",
        r"typed.columns\[0\].name: '_Pos' is Iceberg's name of where a row is",
    ),
    (
        "{uuid: none, columns: [{name: no go, type: int}]}",
        r"typed.columns\[0\].name: 'no go' is not a column name",
    ),
    (
        "{uuid: none, columns: [{name: a, from: 'a\\b', type: int}]}",
        r"typed.columns\[0\].from: .* cannot be the key of a column",
    ),
    (
        "{uuid: none, columns: [{name: a, from: flight, type: int}, {name: flight}]}",
        r"typed.columns\[1\]: is about 'flight' again",
    ),
    (
        "{uuid: none, columns: [{name: a, from: x, type: int}, {name: b, from: x, type: int}]}",
        r"typed.columns\[1\].from: the key 'x' is another column's",
    ),
    (
        "{uuid: none, columns: [{name: flight, format: epoch_s}]}",
        r"typed.columns\[0\].format: 'epoch_s' is not a form of int .leave it out",
    ),
    (
        "{uuid: none, columns: [{name: a, type: timestamptz, format: '%Y'}]}",
        r"typed.columns\[0\].format: '%Y' is not a form of timestamptz .use one of iso, epoch_s",
    ),
    (
        "{uuid: none, columns: [{name: a, type: timestamptz, format: epoch_s, truncate: true}]}",
        r"typed.columns\[0\].truncate: is about times that are texts .leave it out",
    ),
    (
        "{uuid: none, columns: [{name: a, type: date, truncate: true}]}",
        r"typed.columns\[0\].truncate: is about times that are texts",
    ),
    (
        "{uuid: none, columns: [{name: a, type: uuid, format: epoch_s}]}",
        r"typed.columns\[0\].format: .* is not a form of uuid .leave it out",
    ),
    (
        "{uuid: none, columns: [{name: a, type: double, segment: a}]}",
        r"typed.columns\[0\].type: double is not a type of segments",
    ),
    (
        "{uuid: none, columns: [{name: a, type: int, segment: a/b}]}",
        r"typed.columns\[0\].segment: 'a/b' is not the key",
    ),
    (
        "{uuid: none, columns: [{name: a, type: int, segment: a, required: false}]}",
        r"typed.columns\[0\].required: is about keys of records",
    ),
    ("{uuid: none, key: [carrier, carrier]}", r"typed.key\[1\]: 'carrier' is repeated"),
    ("{uuid: none, key: [Carrier]}", r"typed.key\[0\]: 'Carrier' is not a column .`carrier`\?"),
    (
        "{uuid: none, columns: [{name: left, from: departure}], key: [departure]}",
        r"typed.key\[0\]: 'departure' is not a column .`left`\?",
    ),
    ("{uuid: none, key: [dep_delay]}", r"typed.key\[0\]: dep_delay is a double"),
    ("{uuid: none, key: [_journal]}", r"typed.key\[0\]: '_journal' is not a column"),
    ("{uuid: none, partitions: [days(a)]}", r"typed.partitions\[0\]: days is none of"),
    ("{uuid: none, partitions: [day(at)]}", r"typed.partitions\[0\]: 'at' is not a column"),
    (
        "{uuid: none, partitions: [day(departure)]}",
        r"typed.partitions\[0\]: departure is a string: there are identity, bucket, truncate",
    ),
    (
        "{uuid: none, partitions: [meta]}",
        r"typed.partitions\[0\]: meta is a struct: no table is partitioned by that",
    ),
    (
        "{uuid: none, columns: [{name: id, type: uuid}], key: [id], partitions: ['bucket(4, id)']}",
        r"typed.partitions\[0\]: id is a uuid, by whose buckets Spark cannot write",
    ),
    ("{uuid: none, partitions: [_begin]}", r"typed.partitions\[0\]: '_begin' is not a column"),
    (
        "{uuid: none, partitions: [carrier, identity(carrier)]}",
        r"typed.partitions\[1\]: carrier repeats carrier",
    ),
    (
        "{uuid: none, columns: [{name: at, type: date}], partitions: [month(at), day(at)]}",
        r"typed.partitions\[1\]: day\(at\) beside month\(at\)",
    ),
    (
        "{uuid: none, columns: [{name: at, type: date}, {name: At_Day, type: int}], partitions: [day(at)]}",
        r"typed.partitions\[0\]: Iceberg calls that at_day, and there is a column At_Day",
    ),
    ("{uuid: none, retired: [carrier]}", r"typed.retired\[0\]: carrier is a column"),
    ("{uuid: none, retired: [_End]}", r"typed.retired\[0\]: _End is a column"),
    ("{uuid: none, retired: ['a b']}", r"typed.retired\[0\]: 'a b' is not a column, or a path"),
    ("{uuid: none, json_schema: ../a.json}", "typed.json_schema: '../a.json' is not the name of"),
    ("{uuid: none, json_schema: a.json}", "typed.json_schema: there is no file a.json beside"),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES)
def test_a_mistake_is_reported_with_its_place_and_alone(text, message):
    found = told(text)
    assert len(found) == 1, found
    assert re.match(message, found[0]), found[0]


def test_all_mistakes_are_reported_at_once():
    found = told("""
        uuid: carrier.x
        every: 5
        columns:
          - {name: a, type: nope}
          - {name: 7}
          - {name: _end, type: int}
        key: [departs, flight]
        partitions: [hours(departure), hour(departure)]
        unknown: maybe
    """)
    places = [line.partition(": ")[0] for line in found]
    assert places == [
        "typed.columns[1].name",
        "typed.unknown",
        "typed.every",
        "typed.uuid",
        "typed.columns[0].type",
        "typed.columns[2].name",
        "typed.partitions[0]",
        "typed.partitions[1]",
    ]


def test_reference_to_a_column_with_a_mistake_is_not_a_mistake_too():
    found = told("""
        uuid: none
        columns: [{name: at, type: tyme}]
        key: [at]
        partitions: [day(at)]
    """)
    assert len(found) == 1


def test_raw_names_that_rows_have_already():
    text = RAW_TEXT + "  - {name: _begin, type: bigint}\n"
    raw = parse_table_spec(text)
    (found,) = told("uuid: none", raw)
    assert found.startswith("typed.columns: '_begin' is what each row of a typed table has")
    spec = good("{uuid: none, columns: [{name: began, from: _begin}]}", raw)
    assert [(c.name, c.type) for c in spec.columns if c.key == "_begin"] == [("began", "bigint")]


def test_tables_of_csv_have_no_typed_ones():
    raw = parse_table_spec(
        "{name: a.b, selector: name=a, format: csv, columns: [{name: a, type: string}]}"
    )
    (found,) = told("uuid: none", raw)
    assert found == "typed: typed tables are made of JSON records, and this table's are csv"


def test_a_hundred_errors_are_reported_at_most():
    found = told("{uuid: none, retired: [" + ", ".join(["'-'"] * 300) + "]}")
    assert len(found) == 101
    assert "more errors than these 100" in found[-1]


def test_aliases_do_not_make_a_spec_endless():
    long = "x" * 20_000
    entries = ", ".join(["*a"] * 200)
    (found,) = told(
        f"{{uuid: none, columns: [&a {{name: a, type: int, comment: {long}}}, {entries}]}}"
    )
    assert "aliases make it longer" in found


ORDERS = {
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"type": "integer", "description": "Of  the order."},
        "amount": {"type": "number"},
        "order-no": {"type": "string"},
        "_end": {"type": "integer"},
        "any": {},
    },
}


def test_columns_of_a_json_schema_and_what_differs():
    spec = good(
        """
        uuid: none
        json_schema: orders.json
        key: [id]
        columns:
          - {name: amount, type: 'decimal(12,2)'}
          - {name: order_no, from: order-no}
          - {name: ended, from: _end}
          - {name: any, type: json}
        """,
        schemas={"orders.json": ORDERS},
    )
    assert [(c.name, c.key, c.type, c.required, c.comment) for c in spec.columns] == [
        ("id", "id", "bigint", True, "Of the order."),
        ("amount", "amount", "decimal(12,2)", False, ""),
        ("order_no", "order-no", "string", False, ""),
        ("ended", "_end", "bigint", False, ""),
        ("any", "any", "json", False, ""),
    ]


def test_mistakes_of_a_json_schema_have_their_path():
    found = told("{uuid: none, json_schema: orders.json}", schemas={"orders.json": ORDERS})
    assert [line.partition(": ")[0] for line in found] == [
        "typed.json_schema.properties.any.type",
        "typed.columns",
        "typed.columns",
    ]
    assert "'order-no' is not a column name" in found[1]
    assert "from: order-no" in found[1]
