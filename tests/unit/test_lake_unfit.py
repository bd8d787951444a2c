"""Unfit records: counted in accounts, compared with the spec's threshold, and counted again when the spec changes."""

import pytest
from lake_bench import FragmentFiles, MemoryMetastore

from gazette_platform.cli.gazctl.lake.list import prometheus_text
from gazette_platform.errors import ValidationError
from gazette_platform.lake import Registrar, StoreRoots, SweepPoint, parse_table_spec
from gazette_platform.lake.raw import partition_state
from gazette_platform.lake.raw.audits.fit import (
    PartitionFit,
    audit_content,
    partition_fit,
    table_finding,
    value_scanner,
)
from gazette_platform.lake.raw.audits.registration_status import table_standing
from gazette_platform.lake.raw.partition_state import PartitionState
from gazette_platform.lake.raw.recount import Recount
from gazette_platform.lake.raw.set_aside import SetAside
from gazette_platform.lake.reading.fragment_content import FragmentContent
from gazette_platform.lake.spec.rules import Threshold, UnfitFragment, verdict
from gazette_platform.ops.clock import SystemClock

JOURNAL, HOUR_5, HOUR_6 = "events/part=0", "hour=05", "hour=06"
GOOD, BAD = b'{"id":1,"public":true}\n', b'{"id":2,"public":"yes"}\n'


def spec_of(block="1%", *, public="boolean", price=""):
    return parse_table_spec(
        "{name: s.events, selector: 'name:prefix=events/', format: json, "
        f"columns: [{{name: id, type: bigint}}, {{name: public, type: {public}}}{price}], "
        f"unfit: {{block: {block}}}}}"
    )


@pytest.fixture
def files(tmp_path):
    return FragmentFiles(tmp_path / "fragments")


@pytest.fixture
def metastore():
    return MemoryMetastore()


@pytest.fixture
def registrar(files, metastore):
    return Registrar(files, metastore, StoreRoots(files.roots))


@pytest.fixture
def standing(files, metastore):
    def look(spec):
        with metastore.connect() as session:
            journals = files.journals(spec.label_selector)
            return table_standing(spec, journals, {}, session, SystemClock().now())

    return look


# --------------------------------------------------------------------------- deciding


@pytest.mark.parametrize(
    ("block", "unfit", "rows", "expected"),
    [
        ("1%", 0, 0, "ok"),
        ("1%", 1, 20_001, "warn"),
        ("1%", 1, 100, "warn"),
        ("1%", 2, 100, "blocked"),
        ("0.5%", 1, 200, "warn"),
        ("0.5%", 1, 199, "blocked"),
        ("100%", 9, 9, "warn"),
        (0, 1, 10**9, "blocked"),
        ("0%", 1, 10**9, "blocked"),
        (0, 0, 10, "ok"),
        (100, 100, 100, "warn"),
        (100, 101, 10**9, "blocked"),
        ("never", 10, 10, "warn"),
        # Records of fragments that are not counted yet cannot make a share smaller.
        ("1%", 1, 0, "blocked"),
        ("100%", 2, 1, "warn"),
    ],
)
def test_verdict_compares_counts_with_threshold(block, unfit, rows, expected):
    assert verdict(Threshold.parse(block), unfit, rows) == expected


@pytest.mark.parametrize(
    "block",
    [
        "0.01",
        "true",
        "[1]",
        "-1",
        "1e3%",
        "101%",
        "some",
        "''",
        f"'{'0' * 5000}'",
        f"'{'0' * 20}9'",
    ],
)
def test_threshold_of_another_form_names_key_and_forms(block):
    with pytest.raises(ValidationError, match=r"unfit\.block: .*`\{block: 1%\}` for a share"):
        spec_of(block)


def test_threshold_alone_changes_no_table():
    assert spec_of("1%").digest == spec_of("never").digest == spec_of(7).digest


def test_default_threshold_is_one_percent():
    text = "{name: s.t, selector: name=a, format: json, columns: [{name: a, type: int}]}"
    assert str(parse_table_spec(text).unfit.threshold) == "1 %"


# --------------------------------------------------------------------------- scanning


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_scanner_counts_records_and_returns_offset_of_first(step):
    content = GOOD * 3 + b'{"id":"x","public":"yes"}\n' + GOOD + BAD + b"nope"
    scanner = value_scanner(spec_of())
    for at in range(0, len(content), step):
        scanner.feed(content[at : at + step])
    report = scanner.report()
    assert report.count == 4
    assert report.records == 3
    assert report.columns["public"].count == 2
    assert report.columns["public"].offset == report.columns["id"].offset == 3 * len(GOOD)
    assert report.lines["not JSON"].offset == content.index(b"nope")


# --------------------------------------------------------------------------- accounts


def test_accounts_keep_counts_examples_and_offsets(files, registrar, metastore, standing):
    files.append(JOURNAL, GOOD * 300, postfix=HOUR_5)
    bad = files.append(JOURNAL, GOOD * 100 + BAD, postfix=HOUR_5, mod_time=1_790_000_000)
    spec = spec_of()
    report = registrar.tick(spec, {})
    found = standing(spec)
    assert (found.unfit_records, found.rows, found.is_blocked) == (1, 401, False)
    (update,) = report.updates
    (noted,) = update.state.unfit
    assert (noted.begin, noted.end, noted.records) == (bad.begin, bad.end, 1)
    finding = found.findings
    assert (finding.is_error, finding.unfit) == (False, 1)
    assert finding.text.startswith(
        "1 of 401 records (0.25 %) in part=0/hour=05 since 2026-09-21 14:13:20 UTC does not fit the "
        "spec; rollups go on, up to 1 % of a Hive partition. `gazctl lake check s.events` shows all"
    )
    place = f"bytes [{bad.begin}, {bad.end}) of {JOURNAL} hold 1"
    example = f"public (boolean): 1, such as '\"yes\"' at offset {bad.begin + 100 * len(GOOD)}"
    assert f"{place}: {example}" in finding.text
    assert found.problems == []


def test_too_many_unfit_records_block_and_say_which_way_on(files, registrar, standing):
    files.append(JOURNAL, GOOD * 98 + BAD * 2, postfix=HOUR_5)
    files.append(JOURNAL, GOOD * 300 + BAD, postfix=HOUR_6)
    spec = spec_of()
    registrar.tick(spec, {})
    found = standing(spec)
    assert found.is_blocked
    assert found.unfit_records == 3
    (problem,) = found.problems
    assert problem == found.findings.text
    assert problem.startswith(
        "rollups wait: 2 of 100 records (2.00 %) in part=0/hour=05 since 1970-01-01 00:00:01 UTC do not fit "
        "the spec, and only 1 % may. To go on: `unfit: {block: 3%}` in the spec and `gazctl lake apply`; or "
    )
    assert "`gazctl lake set-aside s.events --unfit`" in problem
    assert "`gazctl lake check s.events`" in problem
    assert HOUR_6 not in problem
    # As it says.
    assert not standing(spec_of("3%")).is_blocked
    assert not standing(spec_of(2)).is_blocked
    assert "`unfit: {block: 2}`" in standing(spec_of(1)).findings.text
    assert (
        "spec, and none may (1 more Hive partition has too many)."
        in standing(spec_of(0)).findings.text
    )
    assert not standing(spec_of("never")).is_blocked


def test_list_gives_metrics(files, registrar, standing):
    files.append(JOURNAL, GOOD * 9 + BAD, postfix=HOUR_5)
    registrar.tick(spec_of(), {})
    text = prometheus_text([standing(spec_of()).summary(), {"table": "typed.t", "rows": None}])
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    assert samples == [
        'gazette_lake_rows{table="s.events"} 10.0',
        'gazette_lake_unfit_records{table="s.events"} 1.0',
        'gazette_lake_blocked{table="s.events"} 1.0',
        'gazette_lake_lag_bytes{table="s.events"} 0.0',
        'gazette_lake_problems{table="s.events"} 1.0',
    ]


def test_column_that_trino_reads_as_text_blocks_by_its_share_alone(files, registrar, standing):
    price = ", {name: price, type: 'decimal(10,2)'}"
    files.append(JOURNAL, GOOD * 9999 + b'{"id":1,"price":{}}\n', postfix=HOUR_5)
    spec = spec_of("1%", price=price)
    registrar.tick(spec, {})
    assert not standing(spec).is_blocked
    assert standing(spec).unfit_records == 1
    assert standing(spec_of("0", price=price)).is_blocked


def test_records_without_any_column_are_unfit(files, registrar, standing):
    files.append(JOURNAL, GOOD, postfix=HOUR_5)
    files.append(JOURNAL, b'{"other":1}\n' * 3, postfix=HOUR_5)
    registrar.tick(spec_of(), {})
    assert standing(spec_of()).unfit_records == 3


def test_registering_again_counts_nothing_twice(files, registrar, standing):
    files.append(JOURNAL, GOOD * 10 + BAD, postfix=HOUR_5)
    spec = spec_of()
    for _ in range(3):
        registrar.tick(spec, {}, sweep=SweepPoint())
    assert standing(spec).unfit_records == 1


def test_table_without_hive_partitions_counts_too(files, registrar, standing):
    files.append("events/log", GOOD * 49 + BAD)
    registrar.tick(spec_of(), {})
    found = standing(spec_of())
    assert found.is_blocked
    assert "1 of 50 records (2.00 %) in the table" in found.problems[0]


def test_changed_column_has_unfit_fragments_counted_again(files, registrar, standing):
    files.append(JOURNAL, GOOD * 10, postfix=HOUR_5)
    bad = files.append(JOURNAL, GOOD * 10 + BAD, postfix=HOUR_5)
    cursors = registrar.tick(spec_of(), {}).cursors
    wider = spec_of(public="string")
    # What fits it is not looked at by new fragments alone.
    registrar.tick(wider, cursors)
    assert standing(wider).unfit_records == 1
    report = registrar.tick(wider, cursors, again=[(JOURNAL, bad.begin)])
    assert standing(wider).unfit_records == 0
    assert standing(wider).rows == 21
    assert report.updates == []
    assert [account.state.unfit_records for account in report.accounts] == [0]


def test_changed_column_forgets_the_sum_of_fragments_that_are_not_noted(
    files, registrar, standing, monkeypatch
):
    """They are too many to be counted again, and a corrected type must not leave rollups blocked for ever."""
    monkeypatch.setattr(partition_state, "_UNFIT_MAX", 2)
    for _ in range(5):
        files.append(JOURNAL, BAD + GOOD, postfix=HOUR_5)
    cursors = registrar.tick(spec_of(), {}).cursors
    assert standing(spec_of()).unfit_records == 5
    wider = spec_of(public="string")
    for begin in (0, len(BAD + GOOD)):
        registrar.tick(wider, cursors, again=[(JOURNAL, begin)])
    assert standing(wider).unfit_records == 0


def test_replaced_file_is_counted_again_by_the_round(files, registrar, standing):
    bad = files.append(JOURNAL, GOOD * 10 + BAD, postfix=HOUR_5)
    cursors = registrar.tick(spec_of(), {}).cursors
    other = files.root / "other"
    good = FragmentFiles(other).append(
        JOURNAL, GOOD * 10 + GOOD.replace(b"1", b"22"), postfix=HOUR_5
    )
    (other / good.content_path).replace(files.root / bad.content_path)
    registrar.tick(spec_of(), cursors, sweep=SweepPoint())
    assert standing(spec_of()).unfit_records == 0


def test_file_set_aside_takes_its_unfit_records_with_it(files, registrar, metastore, standing):
    files.append(JOURNAL, GOOD * 10, postfix=HOUR_5)
    bad = files.append(JOURNAL, BAD * 2, postfix=HOUR_5)
    spec = spec_of()
    registrar.tick(spec, {})
    assert standing(spec).is_blocked
    work = SetAside(files, StoreRoots(files.roots), SystemClock())
    with metastore.connect() as session:
        work.set_aside(session, spec, bad, "test")
    found = standing(spec)
    assert (found.rows, found.unfit_records, found.is_blocked) == (10, 0, False)


def test_prune_leaves_what_is_noted_of_the_other_files(files, registrar, standing):
    for content in (BAD, GOOD * 10 + BAD * 2, GOOD):
        files.append(JOURNAL, content, postfix=HOUR_5)
    spec = spec_of()
    registrar.tick(spec, {})
    (partition,) = standing(spec).partitions
    kept = files.fragments(JOURNAL, 0, 10)[1:]
    recount = Recount(FragmentContent(files), {}, 1 << 30, lambda: False)
    left = recount.state(partition.state, kept, partition.location, 0)
    assert (left.rows, left.unfit_records) == (13, 2)
    assert left.unfit == partition.state.unfit[1:]


def test_full_audit_counts_what_accounts_do(files, registrar, standing):
    files.append(JOURNAL, GOOD * 98 + BAD * 2, postfix=HOUR_5)
    files.append(JOURNAL, GOOD * 300 + BAD, postfix=HOUR_6)
    spec = spec_of()
    registrar.tick(spec, {})
    *fragments, table = audit_content(spec, files, StoreRoots(files.roots))
    assert table == standing(spec).findings
    assert [f.unfit for f in fragments] == [2, 1]
    assert not any(f.is_error for f in fragments)


# --------------------------------------------------------------------------- the account itself


def state_of(*unfit, rows=1000):
    state = PartitionState()
    for index, records in enumerate(unfit):
        begin, end = 10 * index, 10 * index + 10
        noted = (
            UnfitFragment(begin, end, records, 1, f"what {index}", mark="m") if records else None
        )
        state = state.adding("j", begin, end, rows=rows, stored_bytes=1, unfit=noted)
    return state


def test_account_survives_the_metastore():
    state = state_of(1, 0, 2, 3, 4)
    assert PartitionState.from_parameters(state.to_parameters()) == state
    assert [f.what for f in state.unfit] == ["what 0", "what 2", "what 3", ""]


def test_account_of_many_unfit_fragments_is_bounded_and_exact():
    state = state_of(*[1] * 900)
    assert state.unfit_records == 900
    assert len(state.unfit) == 500
    assert max(map(len, state.to_parameters().values())) < 4000
    assert PartitionState.from_parameters(state.to_parameters()) == state
    left = state.without(8990, 9000, rows=1000, stored_bytes=1, left=[(0, 8990)], unfit=1)
    assert left.unfit_records == 899
    left = left.without(0, 10, rows=1000, stored_bytes=1, left=[(10, 8990)], unfit=1)
    assert (left.unfit_records, len(left.unfit)) == (898, 499)


def test_data_version_changes_with_unfit_records():
    versions = [state_of(n).data_version for n in range(3)]
    assert len(set(versions)) == 3


def test_share_is_of_the_records_that_are_counted():
    """A damaged file, whose rows are not known, must not stop rollups."""
    state = state_of(1, 0).adding("j", 20, 30, rows=None, stored_bytes=1)
    fit = partition_fit("hour=5", state)
    assert (state.rows, fit.rows) == (None, 2000)
    assert fit.verdict(Threshold.parse("1%")) == "warn"


def test_partition_is_unfit_since_its_first_fragment_whose_time_is_known():
    state = PartitionState()
    for begin, since in ((0, 0), (10, 1_790_000_000), (20, 1_780_000_000)):
        noted = UnfitFragment(begin, begin + 10, 1, since=since)
        state = state.adding("j", begin, begin + 10, rows=1, stored_bytes=1, unfit=noted)
    assert partition_fit("hour=5", state).since == 1_780_000_000


def test_partition_fit_survives_a_cursor():
    fit = partition_fit("part=0/hour=5", state_of(1, 0, 2))
    again = PartitionFit.from_json(fit.to_json())
    assert table_finding(spec_of(), [again]) == table_finding(spec_of(), [fit])
    assert (again.unfit, again.rows, again.percent) == (3, 3000, 0.1)


def test_finding_names_the_worst_partitions_first():
    fits = [
        PartitionFit(key=f"hour={n}", journal="j", rows=1000, unfit=10 * n) for n in range(1, 9)
    ]
    text = table_finding(spec_of(), fits).text
    assert "rollups wait: 80 of 1,000 records (8.00 %) in hour=8 do not fit the spec" in text
    assert "(6 more Hive partitions have too many)" in text
    assert "`unfit: {block: 9%}`" in text
