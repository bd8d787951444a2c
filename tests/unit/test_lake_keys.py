"""Columns whose records have other keys: what each engine gets."""

import json

import pytest
from lake_bench import FragmentFiles, MemoryMetastore

from gazette_platform.errors import SchemaMismatch
from gazette_platform.lake import Registrar, StoreRoots, ensure_views, parse_table_spec
from gazette_platform.lake.raw.tables import evolved_table, key_mappings, table_definition
from gazette_platform.lake.reading.sample_check import check_sample
from gazette_platform.lake.spec.layout import Layout

SPEC = """
name: shop.orders
selector: name:prefix=orders/
format: json
columns:
  - {name: orderId, from: order id, type: bigint}
  - {name: tick, from: "a`b", type: string}
  - {name: customer, type: string}
"""
LINES = b'{"order id": 1, "a`b": "x", "customer": "Ada"}\n'


@pytest.fixture
def spec():
    return parse_table_spec(SPEC)


def spark_names(table):
    schema = json.loads(table.parameters["spark.sql.sources.schema"])
    return [field["name"] for field in schema["fields"]]


def test_trino_has_names_and_a_mapping_and_spark_has_keys(spec):
    table = table_definition(spec, Layout.parse("orders/{date}"), "file:///f/orders")
    assert [c.name for c in table.columns] == ["orderid", "tick", "customer"]
    mapping = {"mapping.orderid": "order id", "mapping.tick": "a`b"}
    # Parameters of the table would hold for all Hive partitions, also where a column is hidden.
    assert not any(key.startswith("mapping") for key in table.parameters)
    parameters = table.storage.serde_parameters
    assert {k: v for k, v in parameters.items() if k.startswith("mapping")} == mapping
    assert spark_names(table) == ["order id", "a`b", "customer", "date"]


def test_a_mapping_that_is_given_up_is_gone_from_the_table(spec):
    layout = Layout.parse("orders/{date}")
    old = table_definition(spec, layout, "file:///f/orders")
    without = parse_table_spec(SPEC.replace("from: order id, ", ""))
    new = evolved_table(old, table_definition(without, layout, old.location))
    assert new is not None
    assert new.storage.serde_parameters["mapping.orderid"] == "orderId"
    assert "mapping.tick" in new.storage.serde_parameters


def test_the_view_has_one_name_for_both_engines(spec, tmp_path):
    files, metastore = FragmentFiles(tmp_path), MemoryMetastore()
    files.append("orders/part=0", LINES, postfix="date=2026-01-02")
    report = Registrar(files, metastore, StoreRoots(files.roots)).tick(spec, {})
    assert report.columns == {"order id", "a`b", "customer"}
    assert report.misfits == []
    with metastore.connect() as session:
        assert ensure_views(session, spec, report.definition, {})
        view = session.table("shop", "orders_exact")
        assert not ensure_views(session, spec, report.definition, {})
    assert view.view_expanded.startswith(
        "SELECT `order id` AS `orderId`, `a``b` AS `tick`, `customer`, `part`, `date` FROM"
    )
    assert spark_names(view) == ["orderId", "tick", "customer", "part", "date"]
    outputs = [view.parameters[f"view.query.out.col.{index}"] for index in range(5)]
    assert outputs == spark_names(view)


def test_data_is_looked_for_under_the_key(spec):
    check_sample(spec, LINES, "here")
    with pytest.raises(SchemaMismatch, match="no record of here has any of the columns"):
        check_sample(replace_columns(spec), LINES, "here")
    with pytest.raises(SchemaMismatch, match=r"column orderId is bigint.*'\"one\"'"):
        check_sample(spec, LINES.replace(b"1", b'"one"'), "here")


def replace_columns(spec):
    columns = spec.columns[:2]
    return parse_table_spec(
        f"name: {spec.name}\nselector: {spec.selector}\nformat: json\ncolumns:\n"
        + "".join(f"  - {{name: {c.name}, type: {c.type}}}\n" for c in columns)
    )


def test_trino_minds_the_case_of_keys_as_spark_does():
    spec = parse_table_spec(
        "{name: s.t, selector: name=x, format: json, columns: "
        "[{name: userName, type: string}, {name: a, type: 'array<struct<cityName:int,b:int>>'}]}"
    )
    assert key_mappings(spec) == {
        "case.insensitive": "false",
        "mapping.username": "userName",
        "mapping.cityname": "cityName",
    }


def test_trino_ignores_case_where_one_name_is_two_keys():
    # A mapping goes for every depth.
    spec = parse_table_spec(
        "{name: s.t, selector: name=x, format: json, columns: "
        "[{name: id, type: string}, {name: a, type: 'struct<ID:int>'}, "
        "{name: b, from: b b, type: int}]}"
    )
    assert key_mappings(spec) == {"mapping.b": "b b"}
