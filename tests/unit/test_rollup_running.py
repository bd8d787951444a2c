"""Runs of rollups over registered fragments: what is made again, and in which commits."""

from types import SimpleNamespace

import msgspec
import pytest
from dagster import (
    AssetCheckKey,
    AssetCheckSeverity,
    AssetMaterialization,
    AssetSelection,
    materialize,
)
from dagster_instances import new_instance
from rollup_bench import SUMS, Lake, told

from gazette_platform.assets.checks import SOURCES_KEY, noted_mark, sources_mark
from gazette_platform.assets.rollups import COMPLETE_CHECK, rollup_asset
from gazette_platform.errors import LakeError, TableFenced
from gazette_platform.lake.rollups import RollupSpec
from gazette_platform.lake.rollups.table import read_covers


@pytest.fixture
def lake(tmp_path):
    return Lake(tmp_path)


def test_only_what_changed_is_made_again(lake):
    lake.publish(("a", 5), ("a", 6), ("b", 5))
    report = lake.run()
    assert lake.engine.asked == [[("a", "5"), ("a", "6"), ("b", "5")]]
    assert (report.rows_made, report.rows_total, report.is_rebuild) == (3, 3, False)
    assert report.covers.offsets() == {"orders/shop=a": [(0, 18)], "orders/shop=b": [(0, 9)]}
    assert lake.staged() == []
    idle = lake.run()
    assert (lake.engine.asked, idle.rows_total, idle.covers) == ([], None, report.covers)
    lake.publish(("a", 6), ("c", 7))
    report = lake.run()
    assert report.made == [("a", "6"), ("c", "7")]
    assert lake.rows() == [("a", 5, 1), ("a", 6, 1), ("b", 5, 1), ("c", 7, 1)]
    assert report.rows_total == 4


def test_files_left_out_of_the_view_change_their_slice_alone(lake):
    lake.publish(("a", 5), ("b", 5))
    lake.run()
    lake.publish(excluded={("b", "5"): ["x.gz"]})
    assert lake.run().made == [("b", "5")]
    lake.publish(excluded={("b", "5"): ["x.gz"]})
    assert lake.run().made == []
    lake.publish()
    assert lake.run().made == [("b", "5")]


def test_other_code_is_one_commit_of_all(lake):
    lake.publish(("a", 5), ("a", 6), ("b", 5))
    lake.run(slices_max=2)
    assert lake.engine.asked == [[("a", "5"), ("a", "6")], [("b", "5")]]
    assert len(lake.tables.load("rollups", "sums").metadata.snapshots) == 2
    other = RollupSpec(**{f: getattr(SUMS, f) for f in SUMS.__struct_fields__} | {"version": "2"})
    report = lake.run(other, slices_max=2)
    assert report.is_rebuild
    assert len(lake.engine.asked) == 2
    assert len(lake.tables.load("rollups", "sums").metadata.snapshots) == 3
    assert [row[2] for row in lake.rows()] == [1, 1, 2]
    assert lake.run(other).made == []


def test_check_of_a_rollup_is_executed_without_a_run_of_it(lake):
    by_shop = msgspec.structs.replace(SUMS, slices=("shop",))
    asset = rollup_asset(by_shop)
    resources = {
        "metastore": SimpleNamespace(client=lambda: lake.metastore),
        "lake": SimpleNamespace(iceberg_tables=lambda _: lake.tables),
        "trino": None,  # which is not asked
    }

    def execute():
        with new_instance() as instance:
            result = materialize(
                [asset],
                instance=instance,
                selection=AssetSelection.checks(AssetCheckKey(asset.key, COMPLETE_CHECK)),
                resources=resources,
            )
        assert result.get_asset_materialization_events() == []
        (evaluation,) = result.get_asset_check_evaluations()
        return evaluation

    lake.publish(("a", 5), ("a", 6), ("b", 5))
    lake.run(by_shop)
    assert execute().passed
    lake.publish(("a", 7))
    assert execute().passed  # the next run makes it
    lake.prune("a", 5)
    told = execute()
    assert (told.passed, told.severity) == (False, AssetCheckSeverity.WARN)
    assert told.description.startswith("Raw content of shop=a was pruned")
    assert [s.values for s in lake.run(by_shop).behind] == [("a",)]


def follows():
    return msgspec.structs.replace(SUMS, retention="follow")


def test_a_slice_whose_files_went_before_its_accounts_is_left_as_it_is(lake):
    """As in the minutes between a prune and the brokers' next listing."""
    lake.publish(("a", 5), ("a", 6))
    lake.run()
    lake.delete_file("a", 5)
    lake.publish(("a", 5), ("a", 6))
    report = lake.run()
    assert report.made == [("a", "6")]
    assert [sealed.values for sealed in report.behind] == [("a", "5")]
    assert lake.rows() == [("a", 5, 1), ("a", 6, 1)]
    # With all slices at once, too, and by other code or columns.
    assert lake.run(msgspec.structs.replace(SUMS, version="2")).made == [("a", "6")]
    with pytest.raises(
        LakeError, match=r"orders shop=a/hour=5 was pruned, or .*, so rollups\.sums cannot"
    ):
        lake.run(msgspec.structs.replace(SUMS, slices=("hour",)))
    assert lake.run(follows()).made == [("a", "5"), ("a", "6")]


def test_a_slice_is_not_committed_if_its_files_went_while_it_was_read(lake):
    lake.publish(("a", 5), ("a", 6))
    lake.run()
    lake.publish(("a", 5))
    lake.engine.before_commit = lambda: lake.delete_file("a", 5)
    with pytest.raises(
        LakeError, match=r"was pruned while slice .* was made from it, so nothing was changed"
    ):
        lake.run()
    assert lake.rows() == [("a", 5, 1), ("a", 6, 1)]
    lake.engine.before_commit = lambda: None
    assert lake.run().made == []


@pytest.mark.parametrize("retention", ["keep", "follow"])
def test_a_slice_is_not_made_while_the_store_of_a_part_is_away(lake, retention):
    """Engines read it as empty; once made, nothing would rebuild the slice when it is back."""
    by_hour = msgspec.structs.replace(SUMS, slices=("hour",), retention=retention)
    lake.publish(("a", 5), ("b", 5), ("a", 6))
    lake.lose_store("orders/shop=b")
    report = lake.run(by_hour)
    assert report.made == [("6",)]
    assert [sealed.values for sealed in report.behind] == [("5",)]
    assert report.is_waiting
    lake.bring_store_back("orders/shop=b")
    report = lake.run(by_hour)
    assert (report.made, report.is_waiting) == ([("5",)], False)
    # And when it goes again, what comes meanwhile waits with the rest.
    lake.publish(("a", 5))
    lake.lose_store("orders/shop=b")
    report = lake.run(by_hour)
    assert (report.made, report.dropped, report.is_waiting) == ([], [], True)
    assert len(lake.rows()) == 2
    with pytest.raises(LakeError, match=r"or its store is away, so .* cannot be sliced by other"):
        lake.run(msgspec.structs.replace(by_hour, slices=("shop",)))
    lake.bring_store_back("orders/shop=b")
    assert lake.run(by_hour).made == [("5",)]


@pytest.mark.parametrize("retention", ["keep", "follow"])
def test_a_slice_is_not_committed_if_a_store_went_away_while_it_was_read(lake, retention):
    spec = msgspec.structs.replace(SUMS, retention=retention)
    lake.publish(("a", 5))
    lake.engine.before_commit = lambda: lake.lose_store("orders/shop=a")
    with pytest.raises(LakeError, match="was made from it, so nothing was changed"):
        lake.run(spec)
    lake.bring_store_back("orders/shop=a")
    lake.engine.before_commit = lambda: None
    assert lake.run(spec).made == [("a", "5")]


def test_other_slices_are_not_committed_if_files_went_while_they_were_read(lake):
    lake.publish(("a", 5), ("a", 5))
    lake.run()
    lake.engine.before_commit = lambda: lake.delete_file("a", 5)
    with pytest.raises(LakeError, match="was made from it, so nothing was changed"):
        lake.run(msgspec.structs.replace(SUMS, slices=("shop",)))
    assert lake.rows() == [("a", 5, 1)]


def test_a_rollup_whose_source_is_away_is_asked_for_again(lake):
    asset = rollup_asset(SUMS)
    lake.publish(("a", 5), ("b", 5))
    lake.lose_store("orders/shop=b")

    def noted(instance):
        metadata, is_complete = told(lake, asset, instance)
        return metadata[SOURCES_KEY].value, metadata["slices"].value, is_complete

    with new_instance() as instance:
        instance.report_runless_asset_event(AssetMaterialization(["shop", "orders"]))
        assert noted(instance) == ("", 1, False)
        assert sources_mark(instance, SUMS) != noted_mark(instance, asset.key)
        lake.bring_store_back("orders/shop=b")
        assert noted(instance) == (sources_mark(instance, SUMS), 2, True)


def test_account_that_a_prune_emptied_is_no_longer_a_part(lake):
    lake.publish(("a", 5), ("a", 6))
    lake.run()
    lake.empty("a", 5)
    assert lake.run().made == []
    report = lake.run(follows())
    assert (report.made, report.dropped) == ([], [("a", "5")])


def test_rollup_of_a_rollup_follows_slice_by_slice(lake):
    lake.publish(("a", 5), ("a", 6), ("b", 5))
    lake.run()
    by_shop = RollupSpec(
        name="rollups.by_shop",
        engine="spark",
        sql="select * from sums",
        sources={"sums": "rollups.sums"},
        slices=("shop",),
    )
    assert lake.run(by_shop).made == [("a",), ("b",)]
    assert lake.run(by_shop).made == []
    lake.publish(("b", 6))
    assert lake.run(by_shop).made == []
    lake.run()
    assert lake.run(by_shop).made == [("b",)]


def test_two_runs_at_once_commit_once(lake):
    """The second one begins, and ends, while the first has made its slices and not committed."""
    lake.publish(("a", 5))
    lake.run()
    lake.publish(("a", 5), ("b", 5))

    def other_run():
        lake.engine.before_commit = lambda: None
        lake.publish(("b", 5))
        lake.runner().run(SUMS)

    lake.engine.before_commit = other_run
    with pytest.raises(TableFenced):
        lake.run()
    covers = read_covers(lake.tables, lake.tables.load("rollups", "sums"))
    assert covers.offsets()["orders/shop=b"] == [(0, 18)]
    assert lake.staged() == []
    assert lake.run().made == []


def test_commit_between_two_batches_of_a_run_ends_it(lake):
    lake.publish(("a", 5), ("b", 5))

    def after_first_batch():
        def other_run():
            lake.engine.before_commit = lambda: None
            lake.publish(("a", 5))
            lake.runner().run(SUMS)

        lake.engine.before_commit = other_run

    lake.engine.before_commit = after_first_batch
    with pytest.raises(TableFenced):
        lake.run(slices_max=1)
    covers = read_covers(lake.tables, lake.tables.load("rollups", "sums"))
    assert covers.offsets() == {"orders/shop=a": [(0, 18)], "orders/shop=b": [(0, 9)]}
    assert lake.run().made == []


class _Died(BaseException):
    """The process was killed."""


class _Mortal:
    """A metastore at which a process is killed, at one of its changes: before it takes effect, or after."""

    def __init__(self, thrift, at, *, takes_effect):
        self._thrift, self._at, self._takes_effect = thrift, at, takes_effect
        self._changes = 0

    def __getattr__(self, name):
        called = getattr(self._thrift, name)

        def call(*arguments):
            # To die at a look is to die after the change before it.
            if name.startswith(("create_table", "alter_table", "drop_table", "lock")):
                self._changes += 1
                if self._changes == self._at and self._takes_effect:
                    called(*arguments)
            if self._changes >= self._at:
                raise _Died(name)
            return called(*arguments)

        return call


@pytest.mark.parametrize("takes_effect", [True, False])
@pytest.mark.parametrize("is_first", [True, False])
def test_run_that_dies_at_any_change_is_completed_by_the_next(tmp_path, is_first, takes_effect):
    deaths = 0
    for at in range(1, 100):
        lake = Lake(tmp_path / str(at))
        lake.publish(("a", 5), ("b", 5))
        if not is_first:
            lake.run()
            lake.publish(("a", 5), ("c", 7))
        thrift = lake.metastore.thrift
        lake.metastore.thrift = _Mortal(thrift, at, takes_effect=takes_effect)
        try:
            lake.run(slices_max=1)
        except _Died:
            deaths += 1
        else:
            break
        finally:
            thrift._locks.clear()  # which end by themselves
            lake.metastore.thrift = thrift
        report = lake.run()
        assert [row[:2] for row in lake.rows()] == [("a", 5), ("b", 5), ("c", 7)][: 3 - is_first]
        ends = {name: spans[-1][1] for name, spans in report.covers.offsets().items()}
        assert ends["orders/shop=a"] == (9 if is_first else 18)
        assert len(ends) == 3 - is_first
        assert lake.run().made == []
    assert deaths >= 8


def test_query_that_fails_leaves_no_staging_table_and_the_table_as_it_was(lake):
    lake.publish(("a", 5))
    lake.run()
    lake.publish(("a", 5))

    def fail():
        raise LakeError("Trino refused")

    lake.engine.before_commit = fail
    with pytest.raises(LakeError, match="Trino refused"):
        lake.run()
    assert lake.staged() == []
    assert lake.rows() == [("a", 5, 1)]


def test_staging_tables_of_runs_that_were_killed_are_forgotten_after_a_day(lake, monkeypatch):
    lake.publish(("a", 5))
    monkeypatch.setattr(lake.tables, "forget", lambda *_: None, raising=False)
    lake.run()
    monkeypatch.undo()
    (left,) = lake.staged()
    lake.publish(("a", 5))
    lake.run()
    assert lake.staged() == [left]
    lake.clock.advance(25 * 3600.0)
    lake.publish(("a", 5))
    lake.run()
    assert lake.staged() == []


def test_staging_table_that_cannot_be_forgotten_hides_nothing(lake, monkeypatch):
    lake.publish(("a", 5))

    def gone(*_):
        raise LakeError("the metastore is gone")

    with monkeypatch.context() as patch:
        patch.setattr(lake.tables, "forget", gone)
        assert lake.run().made == [("a", "5")]
        lake.engine.before_commit = lambda: pytest.fail("the query failed")
        lake.publish(("a", 5))
        with pytest.raises(pytest.fail.Exception, match="the query failed"):
            lake.run()


def test_source_that_is_not_there_is_waited_for(lake):
    with pytest.raises(LakeError, match=r"rollups\.sums waits for shop\.orders"):
        lake.run()
    lake.publish(("a", 5))
    with lake.metastore.connect() as session:
        session.drop_table("shop", "orders_exact")
    with pytest.raises(LakeError, match=r"orders_exact is not made yet"):
        lake.run()
