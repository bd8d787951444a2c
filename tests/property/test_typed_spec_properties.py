"""Sections `typed:` of whatever parts: an accepted one makes a table, and a rejected one is reported with its key."""

import msgspec
from hypothesis import given, settings, strategies as st

from gazette_platform.lake.spec.table_spec import parse_table_spec
from gazette_platform.lake.spec.typed import read_typed_spec
from gazette_platform.lake.typed.evolution import plan_evolution
from gazette_platform.lake.typed.iceberg_types import (
    arrow_schema,
    new_partition_spec,
    new_schema,
)

RAW = parse_table_spec("""
name: shop.orders
selector: name:prefix=orders/
format: json
columns:
  - {name: a, type: int}
  - {name: b, type: string}
  - {name: c, from: c no., type: 'struct<x:int,uuid:string>'}
""")
SCHEMA = {
    "properties": {
        "a": {"type": "integer"},
        "b": {"type": "string", "format": "date"},
        "c": {"properties": {"uuid": {"type": "string"}}},
        "at": {"$ref": "#/properties/b"},
    }
}
JUNK = st.none() | st.integers() | st.text(max_size=3) | st.lists(st.none(), max_size=2)
NAMES = st.sampled_from(["a", "b", "c", "A", "at", "c no.", "at_day", "_end", "x y", ""])
TYPES = st.sampled_from(
    ["int", "timestamptz", "date", "json", "struct<uuid:uuid>", "tyme", "array<"]
)
ENTRIES = st.fixed_dictionaries(
    {"name": NAMES},
    optional={
        "type": TYPES,
        "from": NAMES,
        "format": st.sampled_from(["iso", "epoch_s", "hex"]),
        "segment": st.sampled_from(["region", "a/b"]),
        "required": st.booleans(),
        "comment": st.text(max_size=3),
    },
)
PARTITIONS = st.builds(
    str.format,
    st.sampled_from(["{}", "day({})", "month({})", "bucket(8, {})", "truncate(4, {})", "days({})"]),
    NAMES | st.just("_journal"),
)
PARTS = {
    "name": st.sampled_from(["typed.t", "shop.orders", "t"]),
    "uuid": st.sampled_from(["none", "uuid", "c no..uuid", "c.uuid", "a", "b.x", ""]),
    "key": st.lists(NAMES, max_size=3),
    "partitions": st.lists(PARTITIONS, max_size=3),
    "columns": st.lists(ENTRIES | JUNK, max_size=4),
    "json_schema": st.sampled_from(["a.json", "b.json"]),
    "unknown": st.sampled_from(["ignore", "quarantine", "drop"]),
    "every": st.sampled_from(["30s", "1s", "soon"]),
    "cron": st.sampled_from(["* * * * *", "* *"]),
    "retention": st.sampled_from(["keep", "follow"]),
    "retired": st.lists(NAMES | st.just("a.b"), max_size=2),
}
WELL = st.fixed_dictionaries(
    {
        "uuid": st.sampled_from(["none", "_meta.uuid", "c.uuid"]),
        "columns": st.lists(
            st.sampled_from(
                [
                    {"name": "at", "type": "timestamptz", "format": "epoch_ms"},
                    {"name": "b", "type": "date", "required": True},
                    {"name": "c", "type": "json"},
                    {"name": "region", "type": "string", "segment": "region"},
                    {"name": "tags", "type": "map<string,array<uuid>>"},
                ]
            ),
            unique_by=lambda entry: entry["name"],
        ),
    },
    optional={
        "key": st.sampled_from([["a"], ["b", "a"]]),
        "partitions": st.lists(
            st.sampled_from(["bucket(8, a)", "b", "_journal", "truncate(4, a)"]), unique=True
        ),
        "every": st.just("30s"),
        "retired": st.just(["gone", "gone.too"]),
    },
)


@st.composite
def sections(draw):
    """Good ones with up to two parts replaced."""
    section = draw(WELL)
    for _ in range(draw(st.integers(0, 2))):
        name = draw(st.sampled_from(sorted(PARTS)))
        section[name] = draw(PARTS[name] | JUNK)
    return section


@settings(max_examples=500)
@given(section=sections() | JUNK)
def test_what_is_taken_makes_a_table_and_what_is_not_is_reported(section):
    spec, errors = read_typed_spec(RAW, section, {"a.json": msgspec.json.encode(SCHEMA)})
    if spec is None:
        assert errors
        assert all(error.path.startswith("typed") for error in errors)
        assert all(error.path.isprintable() for error in errors)
        return
    assert errors == []
    schema = new_schema(spec)
    partitions = new_partition_spec(spec, schema)
    assert [c.name for c in spec.all_columns] == arrow_schema(schema).names
    assert plan_evolution(spec, schema, partitions).is_empty
    assert {c.name for c in spec.columns if c.required} >= set(spec.key)
