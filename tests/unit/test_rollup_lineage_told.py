"""Which source columns runs of rollups report; and that nothing about it fails a run."""

import msgspec
import pytest
from dagster import AssetKey, TableColumnDep
from dagster_instances import new_instance
from rollup_bench import SUMS, Lake, told

from gazette_platform.assets.rollups import rollup_asset
from gazette_platform.errors import LakeError
from gazette_platform.lake.rollups import query_process, rollup, table

LINEAGE = "dagster/column_lineage"
WARNING = "its column lineage is not reported"
# The column `asked` is the engine's own; the query does not know it.
OF_ORDERS = {
    column: [TableColumnDep(AssetKey(["shop", "orders"]), column)] for column in ("shop", "hour")
}


@pytest.fixture
def lake(tmp_path):
    return Lake(tmp_path)


@pytest.fixture
def instance():
    with new_instance() as made:
        yield made


def test_run_reports_its_source_columns(lake, instance, capfd):
    lake.publish(("a", 5))
    for _ in range(2):  # the second one has nothing to make
        metadata, _ = told(lake, rollup_asset(SUMS), instance)
        assert metadata[LINEAGE].value.deps_by_column == OF_ORDERS
    of_sums = msgspec.structs.replace(
        SUMS,
        name="rollups.twice",
        engine="spark",
        sql="select S.shop, `hour`, S.asked + T.asked AS ASKED FROM s JOIN t USING (shop, hour)",
        sources={"s": "rollups.sums", "t": "rollups.sums"},
    )
    metadata, _ = told(lake, rollup_asset(of_sums), instance)
    assert metadata[LINEAGE].value.deps_by_column == {
        column: [TableColumnDep(AssetKey(["rollups", "sums"]), column)]
        for column in ("shop", "hour", "asked")
    }
    assert WARNING not in capfd.readouterr().err


def test_a_query_that_cannot_be_followed_is_made_and_warned_of(lake, instance, capfd):
    lake.publish(("a", 5))
    odd = msgspec.structs.replace(SUMS, sql="select * from orders match_recognize (((")
    metadata, is_complete = told(lake, rollup_asset(odd), instance)
    assert (metadata["rows_made"].value, is_complete, LINEAGE in metadata) == (1, True, False)
    assert WARNING in capfd.readouterr().err


@pytest.mark.parametrize("fault", [RecursionError("deep"), KeyError("x"), OSError("no process")])
def test_no_fault_in_lineage_fails_a_run(lake, instance, capfd, monkeypatch, fault):
    def fail(*_):
        raise fault

    monkeypatch.setattr(query_process, "column_lineage_apart", fail)
    lake.publish(("a", 5))
    metadata, _ = told(lake, rollup_asset(SUMS), instance)
    assert (metadata["rows_made"].value, LINEAGE in metadata) == (1, False)
    assert WARNING in capfd.readouterr().err


def test_a_run_is_reported_in_full_if_the_metastore_goes_once_it_is_committed(
    lake, instance, monkeypatch
):
    lake.publish(("a", 5))
    publish = table.publish_snapshot

    def go(*_):
        raise LakeError("the metastore is gone")

    def publish_and_go(*args, **options):
        published = publish(*args, **options)
        monkeypatch.setattr(lake.metastore, "connect", go)
        return published

    monkeypatch.setattr(table, "publish_snapshot", publish_and_go)
    metadata, _ = told(lake, rollup_asset(SUMS), instance)
    assert metadata["dagster/row_count"].value == 1
    assert metadata[LINEAGE].value.deps_by_column == OF_ORDERS
    with pytest.raises(LakeError, match="is gone"):
        lake.run()


def test_columns_of_a_function_are_not_reported(lake, instance, capfd):
    @rollup(name="rollups.made", sources=["shop.orders"], slices=["shop", "hour"])
    def made(orders):
        return orders

    lake.publish(("a", 5))
    metadata, _ = told(lake, rollup_asset(made), instance)
    assert (metadata["rows_made"].value, LINEAGE in metadata) == (1, False)
    assert WARNING not in capfd.readouterr().err
