"""Evolutions of typed tables as people read them, and what is refused."""

import msgspec
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    IdentityTransform,
    VoidTransform,
)
from pyiceberg.types import IntegerType, MapType, NestedField, StringType

from gazette_platform.lake.spec.table_spec import parse_table_spec
from gazette_platform.lake.spec.typed import read_typed_spec
from gazette_platform.lake.typed.evolution import (
    AddColumn,
    AddPartition,
    Comment,
    Move,
    Relax,
    RemovePartition,
    Widen,
    plan_evolution,
)
from gazette_platform.lake.typed.iceberg_types import new_partition_spec, new_schema

RAW = parse_table_spec("""
name: shop.orders
selector: name:prefix=orders/
format: json
columns:
  - {name: id, type: int}
  - {name: amount, type: 'decimal(9,2)'}
  - {name: address, type: 'struct<zip:int,town:string>'}
  - {name: lines, type: 'array<struct<n:int>>'}
  - {name: at, type: string}
""")
BEFORE = "columns: [{name: at, type: timestamptz}]"


def spec_of(section, raw=RAW):
    spec, errors = read_typed_spec(raw, {"uuid": "none", **msgspec.yaml.decode(section)})
    assert not errors, errors
    return spec


def plan(section, before=BEFORE, raw=RAW, former=()):
    """From the table of one section to another section."""
    table = spec_of(before)
    schema = new_schema(table)
    return plan_evolution(spec_of(section, raw), schema, new_partition_spec(table, schema), former)


def test_nothing_differs():
    found = plan(BEFORE)
    assert (found.is_empty, found.is_refused, found.text) == (True, False, "")


def test_what_is_taken_with_its_steps_and_text():
    raw = parse_table_spec("""
        name: shop.orders
        selector: name:prefix=orders/
        format: json
        columns:
          - {name: address, type: 'struct<country:string,zip:bigint,town:string>'}
          - {name: id, type: bigint, comment: of the shop}
          - {name: amount, type: 'decimal(12,2)'}
          - {name: at, type: string}
    """)
    section = """
        columns:
          - {name: at, type: timestamptz}
          - {name: lines, type: 'array<struct<n:int,m:date>>'}
          - {name: note, type: string}
        partitions: [day(at), note]
    """
    found = plan(section, raw=raw)
    assert found.text.splitlines() == [
        "+ address.country: string   added; null in existing rows",
        "- address.zip: int",
        "+ address.zip: bigint   widened",
        "+ id: “of the shop”   comment",
        "- id: int",
        "+ id: bigint   widened",
        "- amount: decimal(9,2)",
        "+ amount: decimal(12,2)   widened",
        "+ lines.element.m: date   added; null in existing rows",
        "+ note: string   added; null in existing rows",
        "+ order: address, id, amount, at, lines, note, _journal, _begin, _end, _uuid   reordered",
        "+ partition: day(at)   of new files",
        "+ partition: note   of new files",
    ]
    kinds = [type(step) for step in found.schema_steps if not isinstance(step, Move)]
    assert kinds == [AddColumn, Widen, Comment, Widen, Widen, AddColumn, AddColumn]
    assert Move(("address", "country"), "") in found.schema_steps
    assert [type(step) for step in found.partition_steps] == [AddPartition, AddPartition]
    assert not found.is_empty


@pytest.mark.parametrize(
    ("section", "text"),
    [
        (
            "columns: [{name: at, type: string}]",
            (
                "- at: timestamptz\n+ at: string   refused: existing rows cannot be read as that; give "
                "the new one another name, with the key by `from`, and list this one under `retired`; "
                "or rebuild the table"
            ),
        ),
        (
            "columns: [{name: at, type: timestamp}]",
            "- at: timestamptz\n+ at: timestamp   refused: existing rows cannot be read",
        ),
        (
            "columns: [{name: at, type: timestamptz}, {name: amount, type: 'decimal(8,2)'}]",
            "- amount: decimal(9,2)\n+ amount: decimal(8,2)   refused: narrows what existing rows",
        ),
        (
            "columns: [{name: at, type: timestamptz}, {name: amount, type: 'decimal(12,3)'}]",
            "- amount: decimal(9,2)\n+ amount: decimal(12,3)   refused: existing rows cannot",
        ),
        (
            "columns: [{name: at, type: timestamptz}, {name: id, type: double}]",
            "- id: int\n+ id: double   refused: existing rows cannot",
        ),
        (
            "columns: [{name: at, type: timestamptz}, {name: lines, type: 'array<int>'}]",
            "- lines.element: struct<n:int>\n+ lines.element: int   refused: existing rows cannot",
        ),
        (
            "columns: [{name: at, type: timestamptz}, {name: address, type: 'struct<town:string>'}]",
            "- address.zip: int   refused: new rows would lack it: say so by listing it under `retired`",
        ),
        (
            "{columns: [{name: at, type: timestamptz}, {name: num, from: id}]}",
            (
                "- id: int   refused: new rows would lack it: say so by listing it under `retired`, where "
                "it stays, or keep it (if num is the same, keep its name, and give its key by `from`)"
            ),
        ),
        (
            "columns: [{name: at, type: timestamptz}, {name: ID, from: id}]",
            "+ ID: int   refused: engines take it for id, as they ignore case; keep that spelling",
        ),
        (
            "{key: [id], columns: [{name: at, type: timestamptz}]}",
            "- no key\n+ key: id   refused: which messages are one row was decided as rows were written",
        ),
    ],
)
def test_what_is_refused_and_why(section, text):
    found = plan(section)
    assert found.is_refused
    assert not found.is_empty
    assert (found.schema_steps, found.partition_steps) == ((), ())
    assert text in found.text


def test_a_key_that_is_taken_back_is_refused():
    assert "- key: id\n+ no key   refused" in plan(BEFORE, before=f"{BEFORE}\nkey: [id]").text


def test_one_refusal_holds_back_what_would_be_taken():
    section = """
        columns:
          - {name: at, type: string}
          - {name: note, type: string}
    """
    found = plan(section)
    assert "+ note: string   added" in found.text
    assert found.schema_steps == ()


def test_retired_columns_stay_before_those_of_the_system_and_may_come_back():
    section = """
        columns:
          - {name: at, type: timestamptz}
          - {name: number, from: id, type: string}
          - {name: address, type: 'struct<zip:int>'}
        retired: [id, address.town]
    """
    found = plan(section)
    assert not found.is_refused
    assert [type(step) for step in found.schema_steps if not isinstance(step, Move)] == [AddColumn]
    assert found.text.splitlines()[-1] == (
        "+ order: number, amount, address, lines, at, id, _journal, _begin, _end, _uuid   reordered"
    )
    # The struct keeps both fields, in their order.
    assert not [s for s in found.schema_steps if s.path[0] == "address" and len(s.path) > 1]


def test_partitions_are_others_for_new_files():
    before = f"{BEFORE}\npartitions: [day(at), 'bucket(16, id)']"
    found = plan(f"{BEFORE}\npartitions: ['bucket(16, id)', hour(at)]", before=before)
    assert found.text.splitlines() == [
        "- partition: day of at   existing files keep it",
        "+ partition: hour(at)   of new files",
    ]
    (removed, added) = found.partition_steps
    assert removed == RemovePartition("at_day")
    assert isinstance(added, AddPartition)
    assert plan(f"{BEFORE}\npartitions: ['bucket(16, id)', day(at)]", before=before).is_empty


def wide(name):
    return f"columns: [{{name: at, type: timestamptz}}, {{name: {name}, type: bigint}}]"


@pytest.mark.parametrize("partition", ["id", "'truncate(8, id)'"])
def test_values_of_partitions_are_not_widened(partition):
    found = plan(wide("id"), before=f"{BEFORE}\npartitions: [{partition}]")
    assert found.is_refused
    assert "the table is, or was, partitioned by its values (id" in found.text


def test_values_of_former_partitions_are_not_widened_either():
    source = new_schema(spec_of(BEFORE)).find_field("id").field_id
    former = PartitionSpec(PartitionField(source, 1000, IdentityTransform(), "id"), spec_id=1)
    assert plan(wide("id")).text == "- id: int\n+ id: bigint   widened"
    assert plan(wide("id"), former=[former]).is_refused


def test_decimals_of_partitions_are_the_same_with_more_digits():
    section = "columns: [{name: at, type: timestamptz}, {name: amount, type: 'decimal(12,2)'}]"
    found = plan(f"{section}\npartitions: [amount]", before=f"{BEFORE}\npartitions: [amount]")
    assert found.text == "- amount: decimal(9,2)\n+ amount: decimal(12,2)   widened"


def test_maps_by_other_keys_are_others():
    spec = spec_of("columns: [{name: at, type: timestamptz}, {name: m, type: 'map<string,int>'}]")
    by_number = MapType(90, IntegerType(), 91, IntegerType(), value_required=False)
    fields = [
        field.model_copy(update={"field_type": by_number}) if field.name == "m" else field
        for field in new_schema(spec).fields
    ]
    found = plan_evolution(spec, Schema(*fields), PartitionSpec())
    assert "- m: map<int,int>\n+ m: map<string,int>   refused: existing rows cannot" in found.text


def test_a_bucket_of_a_wider_number_is_the_same():
    partitions = "\npartitions: ['bucket(8, id)']"
    found = plan(wide("id") + partitions, before=BEFORE + partitions)
    assert found.text == "- id: int\n+ id: bigint   widened"


def test_a_column_of_the_name_that_a_partition_had_is_refused():
    source = new_schema(spec_of(BEFORE)).find_field("at").field_id
    former = PartitionSpec(PartitionField(source, 1000, DayTransform(), "at_day"), spec_id=1)
    section = "columns: [{name: at, type: timestamptz}, {name: at_day, type: date}]"
    assert not plan(section).is_refused
    assert "is, or was, partitioned under that name" in plan(section, former=[former]).text


def test_a_partition_of_the_name_that_a_retired_column_has_is_refused():
    before = "columns: [{name: at, type: timestamptz}, {name: at_day, type: date}]"
    found = plan(f"{BEFORE}\nretired: [at_day]\npartitions: [day(at)]", before=before)
    assert "+ partition: day(at)   refused: at_day, as it is called" in found.text


def test_a_partition_that_others_named_otherwise_is_known_by_what_it_does():
    schema = new_schema(spec_of(BEFORE))
    source = schema.find_field("id").field_id
    partitions = PartitionSpec(
        PartitionField(source, 1000, BucketTransform(8), "id_bucket"),
        # What remains of one that was removed, in tables of the first version.
        PartitionField(source, 1001, VoidTransform(), "id_gone"),
    )
    spec = spec_of(f"{BEFORE}\npartitions: ['bucket(8, id)']")
    assert plan_evolution(spec, schema, partitions).is_empty


def test_columns_that_others_added_or_tightened():
    spec = spec_of(BEFORE)
    schema = new_schema(spec)
    fields = [
        field.model_copy(update={"required": True}) if field.name == "id" else field
        for field in schema.fields
    ]
    extra = NestedField(99, "note", StringType(), required=True)
    table = Schema(*fields, extra)
    found = plan_evolution(spec, table, PartitionSpec())
    assert "- note: string   refused: new rows would lack it" in found.text
    kept = spec_of(f"{BEFORE}\nretired: [note]")
    found = plan_evolution(kept, table, PartitionSpec())
    assert found.text.splitlines()[:4] == [
        "- note: string not null",
        "+ note: string   may be null from now on",
        "- id: int not null",
        "+ id: int   may be null from now on",
    ]
    assert found.schema_steps[:2] == (Relax(("note",)), Relax(("id",)))


def test_table_that_is_not_typed_is_refused():
    table = Schema(NestedField(1, "id", IntegerType(), required=False))
    found = plan_evolution(spec_of(BEFORE), table, PartitionSpec())
    assert "+ _journal: string   refused: existing rows have no value of it" in found.text
    loose = [
        field.model_copy(update={"required": False}) for field in new_schema(spec_of(BEFORE)).fields
    ]
    found = plan_evolution(spec_of(BEFORE), Schema(*loose), PartitionSpec())
    assert "+ _begin: bigint not null   refused: existing rows may have no value" in found.text


def test_two_fields_of_one_path_are_refused_and_not_mixed_up():
    """PyIceberg leaves the element of a list out of paths, so that both are `lines.element.x`."""

    def section(inner):
        kind = f"array<struct<element:struct<x:int>{inner}>>"
        return f"columns: [{{name: at, type: timestamptz}}, {{name: lines, type: '{kind}'}}]"

    found = plan(section(",x:int"), before=section(""))
    assert "+ lines.element.x: int   refused: its path is that of another field" in found.text
