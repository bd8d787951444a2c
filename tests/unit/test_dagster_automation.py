"""When rollups are asked for: by Dagster's own evaluation of their conditions, over its own event log."""

import functools
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from dagster import (
    AssetCheckEvaluation,
    AssetCheckKey,
    AssetCheckResult,
    AssetCheckSeverity,
    AssetMaterialization,
    AssetSelection,
    AssetSpec,
    DagsterInstance,
    DagsterRunStatus,
    Definitions,
    asset_check,
    build_sensor_context,
    define_asset_job,
    evaluate_automation_conditions,
)
from dagster_instances import new_instance

from gazette_platform.assets import (
    SOURCES_KEY,
    automation,
    raw_asset_specs,
    raw_checks,
    rollup_definitions,
    rollup_key,
    table_key,
)
from gazette_platform.assets.automation import red_checks
from gazette_platform.assets.checks import (
    check_evaluations,
    keeps_up_evaluation,
    new_evaluations,
    sources_mark,
)
from gazette_platform.lake import Finding, LakeSettings, parse_table_spec
from gazette_platform.lake.rollups import RollupSpec
from gazette_platform.lake.rollups.query_check import QueryCheck
from gazette_platform.resources import platform_resources

pytestmark = pytest.mark.long

TABLE = "{name: s.raw, selector: name=a, format: json, columns: [{name: id, type: int}]}"
RAW = table_key("s.raw")
FIRST = RollupSpec(name="r.first", engine="trino", sql="x", sources={"raw": "s.raw"})
SECOND = RollupSpec(name="r.second", engine="trino", sql="x", sources={"first": "r.first"})
NIGHTLY = RollupSpec(
    name="r.nightly", engine="trino", sql="z", sources={"raw": "s.raw"}, cron="0 3 * * *"
)
SPECS = (FIRST, SECOND, NIGHTLY)
ALSO_FIRST = RollupSpec(name="r.also_first", engine="trino", sql="v", sources={"raw": "s.raw"})
OTHER_FIRST = RollupSpec(name="r.first", engine="trino", sql="y", sources={"raw": "s.raw"})
NOON = datetime(2026, 1, 2, 12, 0, 30, tzinfo=UTC)


@asset_check(asset=rollup_key("r.first"), name="adds_up", blocking=True)
def adds_up() -> AssetCheckResult:
    return AssetCheckResult(passed=True)


@pytest.fixture
def instance():
    with new_instance() as made:
        yield made


@functools.cache
def definitions_of(names, *, has_raw=True):
    rollups = [spec for spec in (*SPECS, OTHER_FIRST, ALSO_FIRST) if spec.code_version in names]
    raw = [parse_table_spec(TABLE)] if has_raw else []
    return Definitions.merge(
        Definitions(
            assets=raw_asset_specs(raw),
            asset_checks=[*raw_checks(raw), *([adds_up] if SECOND in rollups else [])],
            resources=platform_resources(LakeSettings()),
        ),
        rollup_definitions(rollups),
    )


@dataclass
class Daemon:
    """Evaluates all conditions, tick after tick."""

    instance: DagsterInstance
    rollups: tuple[RollupSpec, ...] = (FIRST, SECOND)
    has_raw: bool = True
    cursor: Any = None
    at: datetime = field(default=NOON)

    def definitions(self) -> Definitions:
        return definitions_of(
            tuple(spec.code_version for spec in self.rollups), has_raw=self.has_raw
        )

    def asked(self, *, after_s: float = 60) -> set[str]:
        """Names of rollups that a tick asks for, some time after the last one."""
        self.at += timedelta(seconds=after_s)
        result = evaluate_automation_conditions(
            self.definitions(),
            self.instance,
            AssetSelection.assets(*(rollup_key(spec.name) for spec in self.rollups)),
            evaluation_time=self.at,
            cursor=self.cursor,
        )
        self.cursor = result.cursor
        return {
            spec.name for spec in self.rollups if result.get_num_requested(rollup_key(spec.name))
        }

    def register(self, partition: str = "000/5") -> None:
        """What the sensor reports for a Hive partition of the raw table."""
        self.instance.report_runless_asset_event(AssetMaterialization(RAW, partition=partition))

    def make(self, spec: RollupSpec, version: str = "1") -> None:
        """What a run of a rollup reports."""
        self.instance.report_runless_asset_event(
            AssetMaterialization(
                rollup_key(spec.name),
                metadata={SOURCES_KEY: sources_mark(self.instance, spec)},
                tags={"dagster/data_version": version},
            )
        )

    def check(self, kind: str | None, *, is_error: bool = True) -> None:
        """What the sensor reports for all checks of the raw table; one finds something."""
        found = [Finding(kind=kind, journal="a", begin=0, end=9, text="?", is_error=is_error)]
        for evaluation in check_evaluations("s.raw", found if kind else []):
            self.instance.report_runless_asset_event(evaluation)


@pytest.fixture
def daemon(instance):
    return Daemon(instance)


def test_a_rollup_is_asked_for_when_raw_partitions_changed_and_then_what_is_made_of_it(daemon):
    assert daemon.asked() == set()
    daemon.register()
    assert daemon.asked() == {"r.first"}
    daemon.make(FIRST)
    assert daemon.asked() == {"r.second"}
    daemon.make(SECOND)
    assert daemon.asked() == set()
    daemon.register("000/6")
    assert daemon.asked() == {"r.first"}
    daemon.make(FIRST, version="2")
    assert daemon.asked() == {"r.second"}
    daemon.make(SECOND)
    # A run that changed nothing sets nothing after it going.
    daemon.register("000/6")
    assert daemon.asked() == {"r.first"}
    daemon.make(FIRST, version="2")
    assert daemon.asked() == set()


def test_what_changed_before_the_first_tick_is_not_lost(daemon):
    """Nor what changed while the cursor was: Dagster's own conditions forget it."""
    daemon.register()
    assert daemon.asked() == {"r.first"}
    daemon.make(FIRST)
    daemon.register("000/6")
    daemon.cursor = None
    assert "r.first" in daemon.asked()


def test_changed_code_rebuilds_a_rollup(daemon):
    daemon.register()
    daemon.make(FIRST)
    daemon.make(SECOND)
    assert daemon.asked() == set()
    daemon.rollups = (OTHER_FIRST, SECOND)
    assert daemon.asked() == {"r.first"}


def test_a_rollup_that_fails_is_asked_for_once_a_minute(daemon):
    daemon.register()
    assert daemon.asked() == {"r.first"}
    asked = [daemon.asked(after_s=20) for _ in range(9)]
    assert [sum("r.first" in a for a in asked[n : n + 3]) for n in (0, 3, 6)] == [1, 1, 1]


def test_a_rollup_with_a_schedule_waits_for_it_and_then_for_what_is_in_its_way(instance):
    daemon = Daemon(instance, rollups=(NIGHTLY,))
    assert daemon.asked() == set()
    daemon.register()
    assert daemon.asked() == set()
    daemon.check("gap")
    assert daemon.asked(after_s=15 * 3600) == set()  # 3:00 is past, but a check is red
    daemon.check(None)
    assert daemon.asked() == {"r.nightly"}
    daemon.make(NIGHTLY)
    assert daemon.asked() == set()
    # Nothing was new at 3:00, so that what comes later waits until the next day.
    assert daemon.asked(after_s=24 * 3600) == set()
    daemon.register()
    assert daemon.asked() == set()
    assert daemon.asked(after_s=24 * 3600) == {"r.nightly"}


@pytest.mark.parametrize("has_raw", [True, False])
@pytest.mark.parametrize("kind", ["gap", "count", "fit"])
def test_a_red_blocking_check_of_a_raw_table_stops_what_is_behind_it(instance, kind, has_raw):
    """Also if another code location has the raw table, and when more was registered since."""
    daemon = Daemon(instance, has_raw=has_raw)
    daemon.register()
    daemon.check(kind)
    assert daemon.asked() == set()
    daemon.register("000/6")
    assert daemon.asked() == set()
    daemon.check(None)
    assert daemon.asked() == {"r.first"}


def test_a_red_blocking_check_of_a_rollup_stops_what_is_behind_it(daemon):
    def tell(*, passed):
        daemon.instance.report_runless_asset_event(
            AssetCheckEvaluation(
                asset_key=rollup_key("r.first"), check_name="adds_up", passed=passed, blocking=True
            )
        )

    daemon.register()
    daemon.make(FIRST)
    tell(passed=False)
    assert daemon.asked() == set()
    tell(passed=True)
    assert daemon.asked() == {"r.second"}


def test_neither_a_warning_nor_a_check_that_blocks_nothing_stops_anything(daemon):
    daemon.register()
    daemon.check("gap", is_error=False)
    daemon.instance.report_runless_asset_event(keeps_up_evaluation("s.raw", ["a journal stalls"]))
    assert daemon.asked() == {"r.first"}


def test_overlaps_rebuild_a_rollup_that_reads_the_exact_view(daemon):
    daemon.register()
    daemon.make(FIRST)
    daemon.make(SECOND)
    assert daemon.asked() == set()
    daemon.check("overlap")
    assert daemon.asked() == {"r.first"}


def test_while_a_run_is_to_make_it_a_rollup_is_not_asked_for(tmp_path):
    with DagsterInstance.local_temp(str(tmp_path)) as instance:
        daemon = Daemon(instance)
        daemon.register()
        job = daemon.definitions().resolve_job_def("r__first_job")
        run = instance.create_run_for_job(job, status=DagsterRunStatus.STARTED)
        assert daemon.asked() == set()
        instance.report_run_canceled(run)
        assert daemon.asked() == {"r.first"}


def test_an_evaluation_without_an_answer_leaves_the_one_before_it_in_force(tmp_path):
    key = AssetCheckKey(rollup_key("r.first"), "adds_up")
    with DagsterInstance.local_temp(str(tmp_path)) as instance:
        assert red_checks(instance, [key]) == {}
        instance.report_runless_asset_event(
            AssetCheckEvaluation(asset_key=key.asset_key, check_name=key.name, passed=False)
        )
        assert list(red_checks(instance, [key])) == [key]
        definitions = Definitions(
            assets=[AssetSpec(key.asset_key)],
            asset_checks=[adds_up],
            jobs=[define_asset_job("only_check", AssetSelection.checks(key))],
        )
        instance.create_run_for_job(definitions.resolve_job_def("only_check"))
        newest = instance.event_log_storage.get_latest_asset_check_execution_by_key([key])
        assert not isinstance(
            newest[key].evaluation, AssetCheckEvaluation
        )  # else this shows nothing
        assert list(red_checks(instance, [key])) == [key]
        instance.report_runless_asset_event(
            AssetCheckEvaluation(
                asset_key=key.asset_key,
                check_name=key.name,
                passed=False,
                severity=AssetCheckSeverity.WARN,
            )
        )
        assert red_checks(instance, [key]) == {}


def test_one_running_sensor_asks_for_a_run_of_each_rollup_with_its_checks(tmp_path):
    with DagsterInstance.local_temp(str(tmp_path)) as instance:
        daemon = Daemon(instance, rollups=(FIRST, ALSO_FIRST))
        repository = daemon.definitions().get_repository_def()
        (sensor,) = repository.sensor_defs
        assert (sensor.name, sensor.default_status.value) == ("rollup_automation", "RUNNING")
        daemon.register()
        context = build_sensor_context(instance=instance, repository_def=repository)
        asked = sensor.evaluate_tick(context)
        assert [(r.asset_selection, {c.name for c in r.asset_check_keys}) for r in asked.run_requests] == [
            ([rollup_key(name)], {"slices_complete", "query_fits"})
            for name in ("r.also_first", "r.first")
        ]  # fmt: skip
        assert len(asked.automation_condition_evaluations) == 2  # which the UI shows
        again = build_sensor_context(
            instance=instance, repository_def=repository, cursor=asked.cursor
        )
        assert not sensor.evaluate_tick(again).run_requests


def test_sensor_of_many_rollups_is_several(monkeypatch):
    monkeypatch.setattr(automation, "_ASSETS_MAX", 2)
    sensors = automation.automation_sensors("asks", "rollups", [f"r.t{n}" for n in range(5)])
    assert [s.name for s in sensors] == ["asks", "asks_2", "asks_3"]
    copied = sensors[2].with_attributes(metadata={"a": 1})
    assert (type(copied), copied.name) == (type(sensors[2]), "asks_3")


def reasons(daemon, spec=FIRST, **options):
    """What the evaluation of a rollup says of each condition, as the UI shows it: whether it is met, and its text."""
    daemon.at += timedelta(seconds=options.pop("after_s", 60))
    result = evaluate_automation_conditions(
        daemon.definitions(),
        daemon.instance,
        AssetSelection.assets(rollup_key(spec.name)),
        evaluation_time=daemon.at,
        cursor=daemon.cursor,
    )
    daemon.cursor = result.cursor
    (root,) = [r.serializable_evaluation for r in result.results]
    return [
        (e.true_subset.size > 0, e.condition_snapshot.label or e.condition_snapshot.name)
        for e in root.child_evaluations
    ]


def test_evaluation_says_why_a_rollup_is_not_asked_for(daemon):
    assert reasons(daemon)[0] == (False, "waiting for the first data of s.raw")
    daemon.register()
    assert reasons(daemon) == [
        (True, "it was never built, or its last run must be repeated"),
        (True, "no blocking check of a source is red"),
        (True, "the query fits its sources"),
        (True, "no run is in progress"),
        (True, "not requested in this minute yet"),
    ]
    assert reasons(daemon, after_s=5)[-1] == (False, "not requested in this minute yet")
    daemon.make(FIRST)
    assert reasons(daemon)[0] == (False, "nothing new in s.raw since the last run")
    daemon.register("000/6")
    daemon.check("fit")
    found = reasons(daemon)
    assert found[0] == (True, "s.raw or its code changed since the last run")
    assert found[1] == (False, "blocked by a red check: s.raw fits_spec: ?")


def test_rollup_whose_query_is_wrong_is_not_asked_for_until_a_run_proves_it(daemon):
    def check(*faults):
        told = new_evaluations(
            daemon.instance, [QueryCheck(rollup="r.first", faults=faults, known={})]
        )
        for evaluation in told:
            daemon.instance.report_runless_asset_event(evaluation)
        return len(told)

    daemon.register()
    assert check("no source has a column `x`") == 1
    assert check("no source has a column `x`") == 0  # Dagster has it
    assert reasons(daemon)[2] == (
        False,
        "the query is wrong: r.first query_fits: no source has a column `x`",
    )
    assert daemon.asked() == set()
    assert check() == 1
    assert daemon.asked() == {"r.first"}


def test_new_reason_makes_a_new_evaluation(daemon):
    daemon.register()
    daemon.make(FIRST)
    daemon.asked()

    def hashes():
        daemon.at += timedelta(seconds=1)
        result = evaluate_automation_conditions(
            daemon.definitions(),
            daemon.instance,
            AssetSelection.assets(rollup_key("r.first")),
            evaluation_time=daemon.at,
            cursor=daemon.cursor,
        )
        return [r.value_hash for r in result.results]

    daemon.register("000/6")
    daemon.check("fit")
    first = hashes()
    assert hashes() == first
    found = [Finding(kind="fit", journal="a", begin=0, end=9, text="more", is_error=True)]
    for evaluation in check_evaluations("s.raw", found):
        daemon.instance.report_runless_asset_event(evaluation)
    assert hashes() != first
