"""Queries of rollups against the columns of their sources, as far as these are known."""

import msgspec
import pytest
from dagster import AssetKey, build_sensor_context
from dagster_instances import new_instance
from rollup_bench import SUMS, Lake

from gazette_platform.errors import LakeError
from gazette_platform.lake import SpecFolder, parse_table_spec
from gazette_platform.lake.rollups import RollupSpec
from gazette_platform.lake.rollups.query_check import check_queries, made_by, source_columns
from gazette_platform.protocol import FragmentSpec, JournalSpec
from gazette_platform.resources import LakeResource
from gazette_platform.sensors import catalog_sensor

ORDERS = "shop.orders"


@pytest.fixture
def lake(tmp_path):
    return Lake(tmp_path)


def columns_of(lake, *rollups, journals=None):
    folder = SpecFolder({lake.spec.name: lake.spec})
    with lake.metastore.connect() as session:
        return source_columns(rollups, folder, session, journals)


def journal(name, postfix=""):
    return JournalSpec(
        name=name, replication=1, fragment=FragmentSpec(length=1024, path_postfix_template=postfix)
    )


def test_columns_come_from_the_table_once_it_exists(lake):
    assert columns_of(lake, SUMS) == {ORDERS: None}
    lake.publish(("a", 5))
    assert columns_of(lake, SUMS) == {ORDERS: ("n", "shop", "hour")}


def test_before_that_they_come_from_the_spec_and_the_journals(lake):
    def journals(spec):
        assert spec.name == ORDERS
        return [journal("orders/shop=a", 'hour={{ .Spool.FirstAppendTime.Format "15" }}')]

    assert columns_of(lake, SUMS, journals=journals) == {ORDERS: ("n", "shop", "hour")}
    assert columns_of(lake, SUMS, journals=lambda _: []) == {ORDERS: None}


def test_columns_of_a_typed_table_come_from_its_spec(lake):
    raw = parse_table_spec(
        "{name: s.raw, selector: name=a, format: json, columns: [{name: id, type: int}], typed: {uuid: none}}"
    )
    rollup = RollupSpec(name="r.a", engine="trino", sql="x", sources={"raw": raw.typed.name})
    with lake.metastore.connect() as session:
        found = source_columns([rollup], SpecFolder({raw.name: raw}), session)
    assert found[raw.typed.name][0] == "id"


def check(lake, *rollups, is_proven=lambda _: False):
    columns = columns_of(lake, *rollups)
    return check_queries({spec.name: spec for spec in rollups}, columns, is_proven)


def test_check_says_what_it_looked_at(lake):
    other = RollupSpec(
        name="rollups.more", engine="spark", sql="SELECT s.n FROM s, x", sources={"s": SUMS.name, "x": "other.table"}
    )  # fmt: skip
    lake.publish(("a", 5))
    sql = "SELECT shop, hour, sum(n) AS n FROM orders GROUP BY shop, hour"
    found = check(lake, other, msgspec.structs.replace(SUMS, sql=sql))
    assert found[SUMS.name].text == (
        "The query can be parsed. The query's columns exist in shop.orders (3 columns)."
    )
    assert found["rollups.more"].text == (
        "The query can be parsed. The query's columns exist in rollups.sums (3 columns). "
        "Columns of other.table are not known yet."
    )
    assert not any(one.faults for one in found.values())


def test_check_is_red_before_the_first_run(lake):
    lake.publish(("a", 5))
    sql = "SELECT shop, hour, sum(amount) AS n FROM orders GROUP BY shop, hour"
    found = check(lake, msgspec.structs.replace(SUMS, sql=sql))[SUMS.name]
    assert found.text == (
        "no source has a column `amount`; there are `n`, `shop`, `hour`. Correct the query, or the specs of its "
        "sources"
    )


def test_run_proves_a_query_that_the_parser_does_not_know(lake):
    lake.publish(("a", 5))
    odd = msgspec.structs.replace(
        SUMS, sql="SELECT shop, hour, JSON_ARRAY(n NULL ON NULL) FROM orders"
    )

    def checked():
        return check(lake, odd, is_proven=lambda spec: made_by(lambda: lake.tables, spec))[
            SUMS.name
        ]

    assert "cannot be parsed at `NULL` in line 1" in checked().text
    assert "a run proves its query" in checked().text
    lake.run(odd)
    assert not checked().faults
    assert not made_by(lambda: lake.tables, SUMS)  # of another query


def test_what_is_not_known_proves_nothing():
    def fail():
        raise LakeError("the metastore is away")

    assert not made_by(fail, SUMS)


ROLLUP = "-- name: rollups.sums\n-- sources: [shop.orders]\nSELECT {columns} FROM orders\n"


def test_sensor_checks_queries_when_they_or_columns_change(lake, tmp_path):
    """Dagster's sensor `catalog`."""
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "orders.yaml").write_text(
        "{name: shop.orders, selector: 'name:prefix=orders/', format: json, columns: [{name: n, type: int}]}"
    )
    (tmp_path / "rollups" / "trino").mkdir(parents=True)
    file = tmp_path / "rollups" / "trino" / "sums.sql"
    file.write_text(ROLLUP.format(columns="shop, m"))

    class Services:
        uri = "thrift://here"

        def client(self):
            return lake.metastore

    class Brokers:
        def source(self):
            raise LakeError("no broker answers")

    with new_instance() as instance:
        cursor = None

        def tick():
            nonlocal cursor
            context = build_sensor_context(
                instance=instance,
                cursor=cursor,
                resources={
                    "lake": LakeResource(
                        tables=str(tmp_path / "tables"), rollups=str(tmp_path / "rollups")
                    ),
                    "metastore": Services(),
                    "broker": Brokers(),
                },
            )
            result = catalog_sensor(context)
            cursor = result.cursor
            found = [e for e in result.asset_events if e.asset_key == AssetKey(["rollups", "sums"])]
            for event in found:
                instance.report_runless_asset_event(event)
            return [(e.check_name, e.passed, e.description) for e in found]

        assert tick() == []  # the table does not exist, and no broker says what it will have
        lake.publish(("a", 5))
        ((name, is_good, text),) = tick()
        assert (name, is_good) == ("query_fits", False)
        assert text.startswith("no source has a column `m`; there are `n`, `shop`, `hour`")
        assert tick() == []
        file.write_text(ROLLUP.format(columns="shop, n"))
        ((name, is_good, text),) = tick()
        assert is_good
        assert tick() == []
