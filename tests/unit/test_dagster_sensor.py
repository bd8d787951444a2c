"""The fragment sensor: events, partitions, cursor, and problems that hold up no other table.

Long because every case is a few ticks of one platform.
"""

import json
from dataclasses import replace

import pytest
from dagster import (
    AssetCheckSeverity,
    AssetKey,
    AssetMaterialization,
)
from dagster_instances import new_instance
from sensor_platform import SPEC, SensorPlatform, line, numbers, parts_of, total

from gazette_platform.assets import raw_checks
from gazette_platform.assets.checks import Checked
from gazette_platform.errors import (
    JournalNotFound,
    LakeError,
    NoJournalPrimaryBroker,
    TransportError,
    ValidationError,
)
from gazette_platform.hive import MetastoreSession
from gazette_platform.lake import (
    Finding,
    JournalCursor,
    Registrar,
    RegistrationCursor,
    StoreRoots,
    SweepPoint,
    parse_table_spec,
)
from gazette_platform.lake.raw.account_book import partition_accounts
from gazette_platform.resources import LakeResource
from gazette_platform.sensors.audits import AuditState, _is_outgrown
from gazette_platform.sensors.cursor import SensorCursor, pack, problem_digest, unpacked
from gazette_platform.sensors.events import InstanceTold

pytestmark = pytest.mark.long


@pytest.fixture
def platform(tmp_path):
    with new_instance() as instance:
        yield SensorPlatform(tmp_path, instance)


def test_no_specs(platform):
    result = platform.tick()
    assert "No table specs" in result.skip_reason.skip_message
    assert result.asset_events == []


def test_each_partition_gives_one_event_with_its_accounts(platform):
    platform.write_spec("a")
    for n in range(4):
        platform.files.append("a/part=0", line(n), postfix="hour=05")
    platform.files.append("a/part=0", line(9), postfix="hour=06")
    result = platform.tick()
    first, second, journal = result.asset_events
    assert first.asset_key == second.asset_key == AssetKey(["s", "a"])
    assert (first.partition, second.partition) == ("05", "06")
    values = {key: value.value for key, value in first.metadata.items()}
    assert values["partition"] == "hour=05"
    assert values["dagster/partition_row_count"] == 4
    assert values["rows_added"] == values["dagster/row_count"] == 4
    assert second.metadata["dagster/row_count"].value == 5
    assert values["fragments"] == 4
    assert values["offsets"] == "a/part=0: [0, 36)"
    assert values["content_bytes"] == 36
    assert values["journals"] == 1
    assert values["location"].endswith("/a/part=0/hour=05")
    assert values["dagster/table_name"] == "hive.s.a"
    assert values["table"] == "http://sql/hive/s/a"
    query = """SELECT * FROM hive."s"."a"\nWHERE "hour" = '05'"""
    assert values["query"] == f"```sql\n{query}\n```"
    columns = {c.name: c.constraints.other for c in values["dagster/column_schema"].columns}
    assert columns == {"id": [], "part": ["partition column"], "hour": ["partition column"]}
    assert len(first.tags["dagster/data_version"]) == 32
    assert (journal.asset_key, journal.partition) == (AssetKey(["journals", "s", "a"]), "a/part=0")
    assert journal.metadata["write_head"].value == journal.metadata["registered"].value == 45
    requests = {r.partitions_def_name: r.partition_keys for r in result.dynamic_partitions_requests}
    assert requests == {
        "s.a": ["05", "06"],
        "journals.s.a": ["a/part=0"],
    }
    # Dagster logs what has a skip reason as skipped.
    assert result.skip_reason is None
    assert platform.text == "s.a: 5 fragments in 2 Hive partitions, 5 rows."
    cursor = parts_of(result.cursor)
    assert cursor.pop("folder")
    assert cursor.pop("audits")["s.a"].keys() == {
        *("journal", "offset", "told"),
        *("records", "told_at"),
    }
    assert cursor == {
        "version": 3,
        "tables": {"s.a": {"a/part=0": [45, 36, 1, 41]}},
        "sweep": ["s.a", "", 0],
        "audited": "s.a",
        "problems": {"s.a": "ok"},
    }


def test_quiet_tick_reports_nothing_and_keeps_the_cursor(platform):
    platform.write_spec("a")
    platform.files.append("a/part=0", line(1), postfix="hour=05")
    platform.tick()
    first = platform.tick()  # looks for prunes in what an earlier one registered
    again = platform.tick()
    assert again.asset_events == []
    assert again.dynamic_partitions_requests == []
    assert again.skip_reason.skip_message == "No new fragments."
    assert again.cursor == first.cursor


def test_replay_after_a_lost_cursor_reports_nothing_twice(platform):
    platform.write_spec("a")
    platform.files.append("a/part=0", line(1), postfix="hour=05")
    cursor = platform.tick().cursor
    platform.cursor = None
    again = platform.tick()
    assert again.asset_events == []

    def without_times(text):
        raw = unpacked(text)
        for audits in raw["audits"].values():
            audits.pop("told_at")
        return raw

    assert without_times(again.cursor) == without_times(cursor)


def test_events_of_a_killed_tick_are_reported_by_the_next_one(platform):
    platform.write_spec("a")
    for hour in ("05", "06", "07"):
        platform.files.append("a/part=0", line(1), postfix=f"hour={hour}")
    cursor = platform.cursor
    store = platform.store
    platform.store = lambda result: store(result, events=1, is_killed=True)
    platform.tick()
    assert numbers(platform.instance, "a") == {"05": [1]}
    assert (platform.cursor, platform.instance.get_dynamic_partitions("s.a")) == (cursor, [])
    platform.store = store
    platform.files.append("a/part=0", line(1), postfix="hour=05")  # arrived meanwhile
    platform.tick()
    told = {"05": [1, 1], "06": [1], "07": [1]}
    assert numbers(platform.instance, "a") == told
    assert total(platform.instance, "a") == 4
    assert sorted(platform.instance.get_dynamic_partitions("s.a")) == sorted(told)
    assert platform.instance.get_dynamic_partitions("journals.s.a") == ["a/part=0"]
    assert platform.tick().asset_events == []


def test_tick_reports_no_rows_that_the_metastore_refused(platform, monkeypatch):
    platform.write_spec("a")
    platform.files.append("a/part=0", line(1), postfix="hour=05")

    def refuse(*_):
        raise LakeError("the metastore is full")

    with monkeypatch.context() as patched:
        patched.setattr(MetastoreSession, "alter_partitions", refuse)
        result = platform.tick()
    assert [event.partition for event in result.asset_events] == []
    assert "the metastore is full" in platform.text
    platform.tick()
    assert numbers(platform.instance, "a") == {"05": [1]}


def test_lost_dagster_home_gets_everything_again(platform):
    platform.write_spec("a")
    for n in range(3):
        platform.files.append("a/part=0", line(n), postfix="hour=05")
        platform.tick()
    assert numbers(platform.instance, "a") == {"05": [1, 1, 1]}
    altered = platform.metastore.partitions_altered
    with new_instance() as anew:
        platform.instance, platform.cursor = anew, None
        platform.tick()
        assert numbers(anew, "a") == {"05": [3]}
        assert total(anew, "a") == 3
    assert platform.metastore.partitions_altered == altered


def test_a_tick_does_not_read_all_partitions_that_there_ever_were(platform, monkeypatch):
    platform.write_spec("a")
    platform.files.append("a/part=0", line(1), postfix="hour=05")
    platform.tick()

    def everything(*_):
        raise AssertionError("reads a million keys")

    with monkeypatch.context() as patch:
        patch.setattr(platform.instance, "get_dynamic_partitions", everything)
        platform.files.append("a/part=0", line(1), postfix="hour=05")
        platform.files.append("a/part=0", line(1), postfix="hour=06")
        (request,) = platform.tick().dynamic_partitions_requests
    assert request.partition_keys == ["06"]


def test_reports_in_the_ui_are_not_counted_from(platform):
    """An event without numbers says nothing of what was reported before."""
    platform.write_spec("a")
    platform.files.append("a/part=0", line(1), postfix="hour=05")
    platform.tick()
    foreign = AssetMaterialization(AssetKey(["s", "a"]), partition="05")
    platform.instance.report_runless_asset_event(foreign)
    platform.files.append("a/part=0", line(2), postfix="hour=05")
    (event, _) = platform.tick().asset_events
    values = {key: value.value for key, value in event.metadata.items()}
    assert (values["fragments"], values["fragments_added"], values["rows_added"]) == (2, 1, 1)


def test_events_repeat_the_columns_only_if_the_spec_lacks_some(platform):
    """Dagster shows the columns of the newest event, or of the definition, which follows from the spec."""

    def tell(spec):
        (platform.tables / "a.yaml").write_text(spec)
        found = []
        for hour in ("05", "06", "06"):
            platform.files.append("a/part=0", line(1), postfix=f"hour={hour}")
            found += [e for e in platform.tick().asset_events if e.asset_key.path[0] == "s"]
        return ["dagster/column_schema" in event.metadata for event in found]

    assert tell(SPEC.format(table="a")) == [True, True, True]
    platform.files.append("b/part=0", line(1), postfix="hour=05")
    described = f"{SPEC.format(table='b')}partitions: [{{name: part}}, {{name: hour, type: int}}]"
    (platform.tables / "b.yaml").write_text(described)
    (first,) = [e for e in platform.tick().asset_events if e.asset_key.path == ["s", "b"]]
    platform.files.append("b/part=0", line(1), postfix="hour=05")
    (second,) = [e for e in platform.tick().asset_events if e.asset_key.path == ["s", "b"]]
    assert "dagster/column_schema" in first.metadata
    assert "dagster/column_schema" not in second.metadata


def test_what_others_registered_is_reported(platform):
    """Such as `gazctl lake flush`, beside the sensor; also long ago, by a round over what is old."""
    platform.write_spec("a")
    platform.files.append("a/part=0", line(1), postfix="hour=05")
    platform.tick()
    platform.files.append("a/part=0", line(2), postfix="hour=05")
    other = Registrar(platform.files, platform.metastore, StoreRoots(platform.files.roots))
    report = other.tick(parse_table_spec(SPEC.format(table="a")), {})
    assert report.updates[0].fragments_added == 1
    platform.tick()
    assert numbers(platform.instance, "a") == {"05": [1, 1]}
    assert "reported 1 partition that was registered before" in platform.text
    platform.instance.wipe_assets([AssetKey(["s", "a"])])
    platform.tick()
    assert numbers(platform.instance, "a") == {"05": [2]}


def test_a_hive_partition_that_was_dropped_or_overwritten_is_made_again(platform):
    platform.write_spec("a")
    for hour in ("05", "06"):
        platform.files.append("a/part=0", line(1) + line(2), postfix=f"hour={hour}")
    platform.tick()
    with platform.metastore.connect() as session:
        table = session.table("s", "a")
        one, two = session.partitions(table)
        session.drop_partition(table, one.values)
        session.alter_partitions(table, [replace(two, parameters={})])
    platform.tick()
    with platform.metastore.connect() as session:
        found = [p.parameters["numRows"] for p in session.partitions(table)]
    assert found == ["2", "2"]
    assert passed(platform).get("counts_agree") in (None, True)


@pytest.mark.parametrize("journal", ["a/x", "a/part=0"])
def test_data_version_changes_with_the_covered_offsets(platform, journal):
    platform.write_spec("a")
    versions = []

    def tick():
        event = platform.tick().asset_events[0]
        versions.append(event.tags["dagster/data_version"])
        return event

    for n in range(3):
        platform.files.append(journal, line(n), postfix="hour=05")
        tick()
    platform.files.append(journal, line(3), postfix="hour=06")
    tick()
    platform.files.append(journal, line(4), postfix="hour=05")
    assert tick().metadata["gaps"].value == 1
    assert len(set(versions)) == 5
    if journal == "a/x":
        # No other journal can have anything at that time.
        assert versions == ["0-9", "0-18", "0-27", "27-36", "0-27_36-45"]


def test_spec_written_later_works_at_the_next_tick(platform):
    platform.write_spec("a")
    platform.files.append("a/part=0", line(1))
    platform.files.append("b/part=0", line(1))
    platform.tick()
    platform.write_spec("b")
    result = platform.tick()
    assert [e.asset_key.path[-1] for e in result.asset_events] == ["b", "b"]


def test_broken_spec_and_bad_data_hold_up_no_other_table(platform):
    (platform.tables / "broken.yaml").write_text("name: [")
    for table in ("bad", "good"):
        platform.write_spec(table)
    platform.files.append("bad/part=0", b"not json\n")
    platform.files.append("good/part=0", line(1))
    result = platform.tick()
    assert "broken.yaml: not valid YAML" in platform.text
    assert "bad.yaml: s.bad: fragment bad/part=0/" in platform.text
    assert "s.good: 1 fragment in 1 Hive partition, 1 row." in platform.text
    assert platform.levels == ["ERROR", "ERROR", "INFO"]
    assert result.skip_reason is None
    assert {table: e.passed for table, e in platform.kept_up.items()} == {
        "bad": False,
        "good": True,
    }
    red = platform.kept_up["bad"]
    assert red.severity is AssetCheckSeverity.ERROR
    assert red.description.startswith("s.bad: fragment bad/part=0/")
    assert red.metadata["spec_file"].value == "bad.yaml"
    assert not red.blocking
    again = platform.tick()
    assert again.asset_events == []
    assert not platform.kept_up
    assert "s.bad: fragment" in again.skip_reason.skip_message


def test_problem_that_has_gone_is_reported_once(platform):
    platform.write_spec("a")
    bad = platform.files.append("a/part=0", b"not json\n")
    platform.tick()
    platform.files.forget(bad)
    platform.files.append("a/part=0", line(1))
    assert not platform.kept_up["a"].passed
    platform.tick()
    assert platform.kept_up["a"].passed
    platform.tick()
    assert not platform.kept_up


def test_unreachable_broker_fails_the_tick(platform):
    platform.write_spec("a")
    platform.failure = TransportError("cannot reach http://x:1")
    with pytest.raises(TransportError, match="cannot reach"):
        platform.tick()
    assert platform.cursor is None


@pytest.mark.parametrize(
    "error", [TransportError("stores are not listed yet"), NoJournalPrimaryBroker("none")]
)
def test_a_journal_that_cannot_be_listed_holds_up_nothing_else(platform, error):
    """Not its table, not those that come after it, and no audit."""
    for table in ("a", "b"):
        platform.write_spec(table)
        platform.files.append(f"{table}/part=0", line(1), postfix="hour=05")
    platform.files.append("a/part=1", line(1), postfix="hour=05")
    platform.tick()
    platform.failing["a/part=0"] = error
    for table in ("a", "b"):
        for part in range(2):
            platform.files.append(f"{table}/part={part}", line(2), postfix="hour=06")
    result = platform.tick()
    told = {(e.asset_key.path[-1], e.partition) for e in result.asset_events if e.partition}
    assert {("a", "06"), ("b", "06")} <= told
    assert numbers(platform.instance, "a")["06"] == [1]
    assert str(error) in platform.text
    audited = set()
    for _ in range(4):
        platform.tick()
        assert "a" not in platform.kept_up
        audited.add(parts_of(platform.cursor)["audits"]["s.a"]["journal"])
    assert audited == {"a/part=0", "a/part=1"}
    platform.failing.clear()
    platform.tick()
    assert numbers(platform.instance, "a")["06"] == [1, 1]


def test_a_journal_that_is_gone_holds_up_no_audit_and_stays_exact(platform):
    """Its files are still in the table, and no one can look at them again."""
    platform.write_spec("a")
    platform.files.append("a/part=1", line(1), postfix="hour=05")
    platform.files.append("a/part=0", line(1) + line(2), postfix="hour=05")
    other = platform.files.append("a/part=0", line(7), postfix="hour=05", begin=0)
    platform.files.forget(other)
    platform.files.append("a/part=0", b'{"id":"no number"}\n', postfix="hour=06")
    for _ in range(3):
        platform.tick()
    with platform.metastore.connect() as session:
        before = session.table("s", "a_exact").view_expanded
    assert other.content_name in before
    platform.files.remove("a/part=0")
    platform.failing["a/part=0"] = JournalNotFound(journal="a/part=0")
    for _ in range(3):
        platform.files.append("a/part=1", line(1), postfix="hour=06")
        platform.tick()
        assert "JOURNAL_NOT_FOUND" not in platform.text
    with platform.metastore.connect() as session:
        assert session.table("s", "a_exact").view_expanded == before
    assert "fits" not in parts_of(platform.cursor)["audits"]["s.a"]


def test_spec_that_is_gone_is_forgotten(platform):
    platform.write_spec("a")
    platform.files.append("a/part=0", line(1))
    platform.write_spec("b")
    before = parts_of(platform.tick().cursor)["tables"]
    assert before == {"s.a": {"a/part=0": [9, 0, 1, 41]}, "s.b": {}}
    (platform.tables / "a.yaml").write_text("name: [")  # broken for one tick
    assert parts_of(platform.tick().cursor)["tables"] == before
    (platform.tables / "a.yaml").unlink()
    assert parts_of(platform.tick().cursor)["tables"] == {"s.b": {}}
    (platform.tables / "b.yaml").unlink()  # or the folder is not there
    assert parts_of(platform.tick().cursor)["tables"] == {"s.b": {}}


ALL_GREEN = {"no_gap": True, "no_overlap": True, "counts_agree": True, "fits_spec": True}


def passed(platform):
    return {e.check_name: e.passed for e in platform.checks}


def test_checks_are_green_and_reported_once(platform):
    platform.write_spec("a")
    for n in range(3):
        platform.files.append("a/part=0", line(n), postfix="hour=05")
    platform.tick()
    assert passed(platform) == ALL_GREEN
    assert all(e.blocking and e.asset_key == AssetKey(["s", "a"]) for e in platform.checks)
    platform.tick()
    assert platform.checks == []


def test_green_checks_say_how_much_was_checked(platform):
    platform.write_spec("a")
    for part in (0, 1):
        platform.files.append(f"a/part={part}", b"".join(map(line, range(600))), postfix="hour=05")
    platform.tick()
    assert {e.check_name: e.description for e in platform.checks} == {
        "no_gap": "2 journals, 0 gaps.",
        "no_overlap": "1,200 records, 0 of them twice.",
        "counts_agree": "1,200 records in 2 journals: files, fragments and Hive partitions agree.",
        "fits_spec": "1,200 records, 0 unfit.",
    }
    assert {e.metadata["records"].value for e in platform.checks} == {1200}
    assert platform.kept_up["a"].description == (
        "The spec is good, and all stored content of 2 journals is registered."
    )
    # Events are kept for ever: what is less than 1 % more is reported after ten minutes.
    platform.files.append("a/part=0", line(1), postfix="hour=06")
    platform.tick()
    assert platform.checks == []
    platform.files.append("a/part=0", b"".join(map(line, range(20))), postfix="hour=07")
    platform.tick()
    assert platform.checks[-1].description == "1,221 records, 0 unfit."


@pytest.mark.parametrize(
    ("records", "later_s", "is_told"),
    [(1000, 10_000, False), (1009, 599, False), (1010, 0, True), (1001, 600, True), (990, 0, True)],
)
def test_checks_are_reported_again_when_the_table_has_outgrown_them(records, later_s, is_told):
    state = AuditState(told="digest", records=1000, told_at=5000)
    assert AuditState.from_json(state.to_json()) == state
    checked = Checked(journals=1, records=records)
    assert _is_outgrown(state, checked, 5000 + later_s) is is_told


def test_overlap_turns_red_changes_the_view_and_turns_green_when_repaired(platform):
    platform.write_spec("a")
    platform.files.append("a/part=0", line(1) + line(2), postfix="hour=05")
    platform.tick()
    planted = platform.files.append("a/part=0", line(1), postfix="hour=05", begin=0)
    platform.files.forget(planted)
    platform.tick()
    assert passed(platform) == {**ALL_GREEN, "no_overlap": False}
    red = next(e for e in platform.checks if not e.passed)
    assert f"a/part=0/hour=05/{planted.content_name} holds bytes [0, 9)" in red.description
    assert "_exact" in red.description
    assert red.metadata["findings"].value == 1
    with platform.metastore.connect() as session:
        view = session.table("s", "a_exact")
    assert planted.content_name in view.view_expanded
    (event,) = platform.tick().asset_events
    assert not (platform.files.root / planted.content_path).exists()
    assert all(passed(platform).values())
    assert event.partition == "05"
    assert event.metadata["files_moved"].value == event.metadata["rows_moved"].value == 1
    # Its rows were in no account, so they are in no sum of events either.
    assert event.metadata["rows_added"].value == event.metadata["fragments_added"].value == 0
    assert event.description == "1 file that others cover was moved aside"
    assert sum(numbers(platform.instance, "a")["05"]) == 2
    assert event.metadata["dagster/partition_row_count"].value == 2
    assert event.metadata["dagster/row_count"].value == 2
    assert event.metadata["moved"].value == [
        {
            "file": planted.content_path,
            "to": str(platform.files.root / ".covered" / planted.content_path),
        }
    ]
    assert platform.tick().asset_events == platform.checks == []
    with platform.metastore.connect() as session:
        assert "WHERE" not in session.table("s", "a_exact").view_expanded


def test_all_journals_get_their_turn(platform):
    platform.write_spec("a")
    for part in range(3):
        platform.files.append(f"a/part={part}", line(part) * 2, postfix="hour=05")
    platform.tick()
    planted = platform.files.append("a/part=1", line(1), postfix="hour=05", begin=0)
    platform.files.forget(planted)
    seen = [platform.tick() and passed(platform).get("no_overlap") for _ in range(5)]
    assert [told for told in seen if told is not None] == [False, True]  # red, and repaired


def test_overlap_that_is_not_repaired_says_why(platform):
    platform.write_spec("a")
    platform.files.append("a/part=0", line(1) + line(2), postfix="hour=05")
    other = platform.files.append("a/part=0", line(7), postfix="hour=05", begin=0)
    platform.files.forget(other)
    for _ in range(3):
        platform.tick()
        if platform.checks:
            red = next(e for e in platform.checks if not e.passed)
    assert red.check_name == "no_overlap"
    assert "it is not moved, because it holds other bytes" in red.description
    assert (platform.files.root / other.content_path).is_file()
    assert parts_of(platform.cursor)["audits"]["s.a"]["refused"].keys() == {other.content_path}


def test_what_audits_know_outlives_a_tick_without_journals(platform):
    platform.write_spec("a")
    platform.files.append("a/part=0", line(1) + line(2), postfix="hour=05")
    other = platform.files.append("a/part=0", line(7), postfix="hour=05", begin=0)
    platform.files.forget(other)
    for _ in range(3):
        platform.tick()
    before = parts_of(platform.cursor)["audits"]
    assert other.content_name in json.dumps(before)
    journals = platform.journals
    platform.journals = lambda _selector: []
    platform.tick()
    platform.tick()
    assert parts_of(platform.cursor)["audits"] == before
    platform.journals = journals
    platform.tick()
    assert parts_of(platform.cursor)["audits"] == before


def test_gap_is_a_warning_that_says_what_to_do(platform):
    platform.write_spec("a")
    platform.files.append("a/part=0", line(1), postfix="hour=05")
    platform.files.append("a/part=0", line(1), postfix="hour=05", begin=90)
    platform.tick()
    assert passed(platform) == {**ALL_GREEN, "no_gap": False}
    warning = next(e for e in platform.checks if not e.passed)
    assert warning.severity is AssetCheckSeverity.WARN
    assert "given up by `reset-head`" in warning.description
    assert "else nothing is to be done" in warning.description


def test_damaged_fragment_stays_reported_until_it_is_restored(platform):
    platform.write_spec("a")
    platform.files.append("a/part=0", line(1), postfix="hour=05")
    bad = platform.files.append("a/part=0", line(2), postfix="hour=05")
    path = platform.files.root / bad.content_path
    good = path.read_bytes()
    path.write_bytes(good[:-4])
    platform.tick()
    assert "is damaged" in platform.text
    assert passed(platform) == {**ALL_GREEN, "fits_spec": False}
    for _ in range(2):
        assert platform.tick().asset_events == platform.checks == []
    path.write_bytes(good)
    platform.tick()
    assert passed(platform) == ALL_GREEN


def test_column_that_no_record_has_is_a_warning_until_one_has_it(platform):
    (platform.tables / "a.yaml").write_text(
        SPEC.format(table="a").replace("]", ", {name: naem, type: string}]")
    )
    platform.files.append("a/part=0", line(1))
    platform.tick()
    assert passed(platform) == {**ALL_GREEN, "fits_spec": False}
    warning = next(e for e in platform.checks if not e.passed)
    assert warning.severity is AssetCheckSeverity.WARN
    assert "no record so far has naem, so both engines give NULL" in warning.description
    platform.files.append("a/part=0", line(2))
    platform.tick()
    assert passed(platform) == {**ALL_GREEN, "fits_spec": False}
    platform.files.append("a/part=0", b'{"naem":"x"}\n')
    platform.tick()
    assert passed(platform) == ALL_GREEN


def test_view_name_that_is_taken_is_a_problem_of_that_table_only(platform):
    for table in ("a", "a_exact"):
        platform.write_spec(table)
        platform.files.append(f"{table}/part=0", line(1))
    platform.tick()
    message = platform.tick().skip_reason.skip_message
    assert "s.a_exact" in message
    assert "exists and was not made from a table spec" in message


def test_checks_can_be_executed(platform, tmp_path):
    from dagster import AssetSelection, ResourceDefinition, materialize

    platform.write_spec("a")
    platform.files.append("a/part=0", line(1), postfix="hour=05")
    platform.tick()
    platform.files.append("a/part=0", line(1), postfix="hour=06", begin=18)
    platform.tick()
    assert passed(platform)["no_gap"] is False
    damaged = platform.files.append("a/part=0", line(1), postfix="hour=06")
    (platform.files.root / damaged.content_path).write_bytes(b"\x1f\x8b\x08")
    spec = parse_table_spec(SPEC.format(table="a"))
    result = materialize(
        raw_checks([spec]),
        selection=AssetSelection.all_asset_checks(),
        instance=platform.instance,
        raise_on_error=False,
        resources={
            "broker": ResourceDefinition.hardcoded_resource(platform),
            "metastore": ResourceDefinition.hardcoded_resource(platform),
            "lake": LakeResource(tables=str(platform.tables), store_roots=platform.files.roots),
        },
    )
    assert not result.success  # so nothing downstream would run
    checks = {e.check_name: e for e in result.get_asset_check_evaluations()}
    assert {name: e.passed for name, e in checks.items()} == {
        "no_gap": False,
        "no_overlap": True,
        "counts_agree": True,
        "fits_spec": False,
        "keeps_up": False,
    }
    assert "a/part=0 stalls: a store has its bytes from 27 on" in checks["keeps_up"].description
    assert checks["fits_spec"].severity is AssetCheckSeverity.ERROR
    assert "is damaged" in checks["fits_spec"].description
    assert checks["no_gap"].severity is AssetCheckSeverity.WARN
    assert "bytes [9, 18) are in no fragment" in checks["no_gap"].description


def cursor_text(more):
    """A cursor with other keys than a sensor writes."""
    return json.dumps({"__class__": pack({**RegistrationCursor().to_json(), **more})})


def test_cursor_keeps_reported_problems():
    cursor = SensorCursor(
        RegistrationCursor({"s.a": {"a/part=0": JournalCursor(9, 3, ((1, 2),))}}),
        problems={"s.a": problem_digest(["x"])},
        turn="s.b",
        swept="s.a",
        sweep=SweepPoint("a/part=0", 7),
        audited="s.c",
    )
    assert SensorCursor.parse(cursor.dump()) == cursor
    assert problem_digest([]) == "ok"
    with pytest.raises(ValidationError, match="clear it in the Dagster UI"):
        SensorCursor.parse('{"version": 9}')
    assert SensorCursor.parse(cursor_text({"sweep": 3})) == SensorCursor()
    with pytest.raises(ValidationError, match="problems"):
        SensorCursor.parse(cursor_text({"problems": 3}))


def test_audits_of_another_release_restart():
    text = cursor_text({"audits": {"s.a": {"journal": "", "offset": 0, "findings": [[1]]}}})
    assert SensorCursor.parse(text).audits == {"s.a": AuditState()}
    state = AuditState(
        journal="j",
        offset=3,
        findings=(Finding(kind="overlap", journal="j", begin=0, end=9, text="x", values=("1",)),),
        fits=(Finding(kind="fit", journal="", begin=0, end=0, text="y", is_error=False),),
        refused={"a/b": "why"},
        told="0",
    )
    cursor = SensorCursor(audits={"s.a": state})
    assert SensorCursor.parse(cursor.dump()) == cursor


def test_the_text_of_a_cursor_does_not_depend_on_the_order_of_what_happened():
    """Dagster takes another text for progress."""
    one = SensorCursor(
        problems={"s.a": "1", "s.b": "2"}, audits={"x": AuditState(), "y": AuditState()}
    )
    two = SensorCursor(
        problems={"s.b": "2", "s.a": "1"}, audits={"y": AuditState(), "x": AuditState()}
    )
    assert one.dump() == two.dump()
    assert " " not in one.dump()


def test_digests_tell_problems_apart():
    problems = [["a"], ["b"], ["a", "b"], ["b", "a"], ["ab"], ["a", "a"]]
    digests = [problem_digest(texts) for texts in problems]
    assert len(set(digests)) == len(problems)
    assert all(len(digest) == 16 for digest in digests)
    assert digests[0] == problem_digest(["a"])


@pytest.mark.parametrize("is_cursor_lost", [False, True])
def test_a_partition_that_a_repair_emptied_is_reported_though_its_tick_ended(
    platform, is_cursor_lost
):
    platform.write_spec("a")
    small = platform.files.append("a/part=0", line(1), postfix="hour=05")
    platform.tick()
    platform.files.append("a/part=0", line(1) + line(2), postfix="hour=06", begin=0)
    platform.files.forget(small)
    platform.tick()
    cursor = platform.cursor
    result = platform.full_tick_untold()
    assert any("moved aside" in (e.description or "") for e in result.asset_events)
    platform.cursor = None if is_cursor_lost else cursor
    for _ in range(3):
        platform.tick()
    newest = InstanceTold(platform.instance).totals(AssetKey(["s", "a"]), ["05"])["05"]
    assert (newest.rows, newest.fragments) == (0, 0)
    assert platform.tick().asset_events == []


def test_events_in_dagster_are_looked_at_again_in_slices(platform, monkeypatch):
    slices = []

    def accounts(session, table, keys):
        slices.append(list(keys))
        return partition_accounts(session, table, keys)

    monkeypatch.setattr("gazette_platform.lake.raw.account_book.partition_accounts", accounts)
    monkeypatch.setattr("gazette_platform.sensors.reporting._LOOKED_MAX", 2)
    platform.write_spec("a")
    for hour in range(5):
        platform.files.append("a/part=0", line(1), postfix=f"hour={hour:02}")
    platform.tick()
    slices.clear()
    for _ in range(4):
        platform.tick()
    hours = [[key[-2:] for key in keys] for keys in slices]
    assert hours == [["00", "01"], ["02", "03"], ["04"], ["00", "01"]]


def test_a_round_over_fragments_and_partitions_of_a_table_ends(platform, monkeypatch):
    """Four slices of one and two of the other, which would never end in one tick."""
    monkeypatch.setattr("gazette_platform.lake.raw.listing._SWEEP_PAGE", 4)
    monkeypatch.setattr("gazette_platform.sensors.reporting._LOOKED_MAX", 6)
    for table in ("a", "b"):
        platform.write_spec(table)
        for hour in range(12):
            platform.files.append(f"{table}/part=0", line(1), postfix=f"hour={hour:02}")
    platform.tick()
    swept = []
    for _ in range(9):
        platform.tick()
        swept.append(SensorCursor.parse(platform.cursor).swept)
    assert {"s.a", "s.b"} == set(swept)
