"""`gazctl lake drop` as far as the folder of specs goes: what leaves it, and what is refused."""

import doctest
from dataclasses import replace

import pytest
from lake_bench import MemoryMetastore
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from gazette_platform.cli.gazctl import main
from gazette_platform.cli.gazctl.lake import apply
from gazette_platform.cli.gazctl.lake.apply import drop_raw, without_typed
from gazette_platform.errors import LakeError, ValidationError
from gazette_platform.lake.raw.tables import table_definition
from gazette_platform.lake.raw.views import ensure_views
from gazette_platform.lake.spec.layout import Layout
from gazette_platform.lake.spec.table_spec import parse_table_spec

RAW = "name: shop.orders\nselector: name:prefix=orders/\nformat: json\ncolumns:\n  - {name: id, type: bigint}\n"
TYPED = "# of typed tables\ntyped:\n  # none has one\n  uuid: none\n  columns:\n    - {name: id, type: int}\n"
ROLLUP = "-- name: rollups.by_day\n-- sources: [{}]\n--\nSELECT count(*) AS n FROM orders\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in ("GAZETTE_ENDPOINTS", "GAZETTE_METASTORE_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("GAZETTE_TABLES", str(tmp_path / "tables"))
    monkeypatch.setenv("GAZETTE_ROLLUPS", str(tmp_path / "rollups"))
    # Named, so that no platform of this machine is looked for.
    monkeypatch.setenv("BROKER_ADDRESS", "http://127.0.0.1:9")
    (tmp_path / "tables").mkdir()
    (tmp_path / "rollups/trino").mkdir(parents=True)
    return tmp_path


@pytest.fixture
def drop(capsys):
    def run(*args):
        code = main(["lake", "drop", *args])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_dropped_spec_goes_to_stdout_and_can_be_applied(folder, drop):
    file = folder / "tables/orders.yaml"
    file.write_text(RAW)
    assert drop("shop.orders") == (
        0,
        RAW,
        "shop.orders: dropped; its journals and files stay\n",
    )
    assert not file.exists()
    assert drop("shop.orders")[0] == 1


def test_typed_table_alone_leaves_the_raw_one(folder, drop):
    file = folder / "tables/orders.yaml"
    file.write_text(RAW + TYPED)
    code, out, err = drop("typed.orders")
    assert (code, out) == (0, RAW + TYPED)
    assert err == "typed.orders: dropped; its journals and files stay\n"
    assert file.read_text() == RAW + "# of typed tables\n"
    assert drop("shop.orders")[2].startswith("shop.orders: dropped")


@pytest.mark.parametrize("other", ["typed.orders", "typed.orders_quarantine"])
def test_iceberg_table_of_others_stays(folder, drop, monkeypatch, other):
    uri = f"sqlite:///{folder}/catalog.db"
    monkeypatch.setenv("GAZETTE_ICEBERG_CATALOG", uri)
    monkeypatch.setenv("GAZETTE_WAREHOUSE", f"file://{folder}/warehouse")
    catalog = SqlCatalog("lakehouse", uri=uri, warehouse=f"file://{folder}/warehouse")
    catalog.create_namespace("typed")
    catalog.create_table(other, Schema(NestedField(1, "id", LongType())))
    file = folder / "tables/orders.yaml"
    file.write_text(RAW + TYPED)
    code, _, err = drop("shop.orders", "--yes")
    still_there = catalog.table_exists(other)
    catalog.close()
    assert (code, file.exists(), still_there) == (1, True, True)
    assert f"{other} exists and is not" in err


def test_refused_spec_can_be_dropped(folder, drop):
    (folder / "tables/orders.yaml").write_text(RAW.replace("bigint", "bigit"))
    assert drop("shop.orders")[0] == 0
    assert [*(folder / "tables").iterdir()] == []


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("shop.order", "there is no table shop.order to drop (`gazctl lake list` shows all); did you mean shop.orders?"),
        ("rollups.by_day", "rollups.by_day is a rollup: remove its file from "),
        ("shop.orders", "rollups.by_day reads shop.orders: remove the file of that rollup from "),
    ],
)  # fmt: skip
def test_refusal_says_what_to_do_first(folder, drop, name, says):
    (folder / "tables/orders.yaml").write_text(RAW)
    (folder / "rollups/trino/by_day.sql").write_text(ROLLUP.format("shop.orders"))
    code, out, err = drop(name)
    assert (code, out) == (1, "")
    assert says in err
    assert (folder / "tables/orders.yaml").read_text() == RAW


def test_raw_table_stays_while_a_rollup_reads_its_typed_table(folder, drop):
    (folder / "tables/orders.yaml").write_text(RAW + TYPED)
    (folder / "rollups/trino/by_day.sql").write_text(ROLLUP.format("typed.orders"))
    for name in ("shop.orders", "typed.orders"):
        assert f"rollups.by_day reads {name}" in drop(name)[2]


@pytest.mark.parametrize(
    "section",
    [
        "typed: {uuid: none}\n",
        "typed: {uuid: none,\n  cron: '* * * * *'}\n",
        "typed:\n  uuid: none\n\n# a remark of its own\n\n",
        TYPED,
    ],
)
@pytest.mark.parametrize("is_last", [True, False])
def test_section_goes_and_all_else_stays(section, is_last):
    head, tail = RAW.split("columns:")
    text = RAW + section if is_last else head + section + "columns:" + tail
    left = without_typed(text.encode())
    assert parse_table_spec(left) == parse_table_spec(RAW)
    assert left.count(b"# a remark") == section.count("# a remark")
    assert left.count(b"# of typed") == section.count("# of typed")


def test_section_within_braces_is_left_to_the_editor():
    with pytest.raises(ValidationError, match="remove it in an editor"):
        without_typed(b"{name: a.b, typed: {uuid: none}}\n")


@pytest.mark.parametrize(
    "text", [RAW, RAW.replace("json", "csv\nheader: true").replace("bigint", "string")]
)
def test_raw_table_leaves_the_metastore_with_its_views(text):
    spec = parse_table_spec(text)
    table = table_definition(spec, Layout.parse("orders/{region}"), "file:///f/orders")
    other = replace(table, name="others", parameters={})
    with MemoryMetastore().connect() as session:
        session.ensure_database("shop")
        for each in (table, other):
            session.create_table(each)
        assert ensure_views(session, spec, table, {})
        drop_raw(session, "shop.orders")
        assert [*session.tables("shop")] == ["others"]
        drop_raw(session, "shop.orders")  # gone already


def test_table_of_others_stays_in_the_metastore():
    table = table_definition(parse_table_spec(RAW), Layout.parse("orders"), "file:///f/orders")
    with MemoryMetastore().connect() as session:
        session.ensure_database("shop")
        session.create_table(replace(table, parameters={}))
        with pytest.raises(LakeError, match="exists and is not a raw table, so it was not dropped"):
            drop_raw(session, "shop.orders")
        assert [*session.tables("shop")] == ["orders"]


def test_examples():
    assert doctest.testmod(apply).failed == 0
