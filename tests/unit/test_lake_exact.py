"""What the exact view leaves out, and what checks say of what was not looked at."""

from dataclasses import replace

import pytest
from dagster import AssetCheckSeverity
from lake_bench import FragmentFiles, MemoryMetastore

from gazette_platform.assets.checks import check_evaluations
from gazette_platform.hive import HivePartition
from gazette_platform.lake import Auditor, Finding, Registrar, StoreRoots, excluded_files
from gazette_platform.lake.raw.reconcile import in_time, overlapping, walk_outward
from gazette_platform.lake.spec.table_spec import parse_table_spec
from gazette_platform.sensors import audits

SPEC = """
name: s.events
selector: name:prefix=events/
format: json
columns: [{name: id, type: bigint}]
partitions: [{name: hour, type: int}]
"""
JOURNAL = "events/part=a"


class Lake:
    """A journal of lines of 9 bytes."""

    def __init__(self, tmp_path):
        self.files = FragmentFiles(tmp_path / "fragments")
        self.metastore = MemoryMetastore()
        roots = StoreRoots(self.files.roots)
        self.registrar = Registrar(self.files, self.metastore, roots)
        self.auditor = Auditor(self.files, roots)
        self.spec = parse_table_spec(SPEC)

    def append(self, begin, end, hour=5):
        content = b'{"id":1}\n' * (end - begin)
        return self.files.append(JOURNAL, content, postfix=f"hour={hour:02}", begin=9 * begin)

    def register(self):
        self.registrar.tick(self.spec, {})

    def audit(self, **options):
        with self.metastore.connect() as session:
            table = session.table("s", "events")
            return self.auditor.audit(session, table, JOURNAL, **options)

    def excluded(self, **options):
        return [
            name
            for names in excluded_files(self.audit(**options).findings).values()
            for name in names
        ]

    def path(self, fragment):
        return self.files.root / fragment.content_path


@pytest.fixture
def lake(tmp_path):
    return Lake(tmp_path)


def test_nothing_is_left_out_in_favour_of_a_file_that_no_table_holds(lake):
    small = lake.append(0, 2)
    lake.register()
    # Brokers list the larger one now; its directory is not a Hive partition yet.
    lake.append(0, 4, hour=6)
    lake.files.forget(small)
    assert lake.excluded() == []
    lake.register()
    assert lake.excluded() == [small.content_name]


def test_nothing_is_left_out_in_favour_of_a_file_elsewhere(lake):
    """The store of the journal was changed within the hour: the Hive partition is at the former."""
    small = lake.append(0, 2)
    lake.append(0, 4, hour=6)
    lake.register()
    lake.files.forget(small)
    with lake.metastore.connect() as session:
        table = session.table("s", "events")
        _, second = session.partitions(table)
        assert second.values[1] == "6"
        session.alter_partitions(table, [replace(second, location="s3://former/events/hour=06")])
    assert lake.excluded() == []


def test_nothing_is_left_out_in_favour_of_a_file_that_is_gone(lake):
    small = lake.append(0, 2)
    large = lake.append(0, 4, hour=6)
    lake.register()
    lake.files.forget(small)
    assert lake.excluded() == [small.content_name]
    lake.path(large).unlink()
    assert lake.excluded() == []


def test_covered_files_of_many_hours_are_found_though_brokers_list_none_in_them(lake):
    small = [lake.append(n, n + 1, hour=n) for n in range(60)]
    lake.register()
    lake.append(0, 61, hour=60)
    lake.register()
    for fragment in small:
        lake.files.forget(fragment)
    assert sorted(lake.excluded()) == [f.content_name for f in small]


def test_files_outside_hive_partitions_are_not_looked_at(lake):
    lake.append(0, 4)
    lake.register()
    planted = lake.append(1, 2, hour=7)
    lake.files.forget(planted)
    assert lake.audit().findings == ()


def test_a_store_that_is_away_is_not_green(lake):
    small = lake.append(0, 2)
    lake.append(0, 4, hour=6)
    lake.register()
    lake.files.forget(small)
    before = lake.audit()
    lake.files.root.rename(lake.files.root.with_name("away"))
    audit = lake.audit()
    kinds = [(f.kind, f.is_error, f.is_checked) for f in audit.findings]
    # The accounts still say that bytes are duplicated.
    assert kinds == [
        ("overlap", True, True),
        ("overlap", True, True),
        ("count", False, False),
        ("overlap", False, False),
    ]
    assert "invalid file store directory" in audit.findings[-1].text
    # What was known is kept, so that the view still leaves the file out.
    (known,) = before.findings
    assert not audit.replaces(known)
    assert before.replaces(known)
    assert known in audits._merged([known], audit)


def test_not_checked_is_a_warning_and_never_green():
    unchecked = Finding(
        kind="count", journal="j", begin=0, end=9, text="not checked: x", is_error=False,
        is_checked=False,
    )  # fmt: skip
    by_name = {e.check_name: e for e in check_evaluations("s.t", [unchecked])}
    counts = by_name["counts_agree"]
    assert (counts.passed, counts.severity) == (False, AssetCheckSeverity.WARN)
    assert counts.description == "not checked: x"
    assert counts.metadata["not_checked"].value == 1
    assert counts.metadata["findings"].value == 0
    assert by_name["no_gap"].passed
    wrong = replace(unchecked, text="gone", is_error=True, is_checked=True)
    by_name = {e.check_name: e for e in check_evaluations("s.t", [unchecked, wrong])}
    assert by_name["counts_agree"].description == "gone\nnot checked: x"


def test_gaps_do_not_push_out_overlaps_nor_does_their_number():
    gaps = [
        Finding(kind="gap", journal="j", begin=n, end=n + 1, text="gap", is_error=False)
        for n in range(700)
    ]
    overlaps = [
        Finding(kind="overlap", journal="j", begin=n, end=n + 1, text="x", excluded=f"f{n}")
        for n in range(1000, 1700)
    ]
    kept = audits._kept([*gaps, *overlaps])
    assert sum(f.kind == "gap" for f in kept) == 500
    assert excluded_files(kept) == excluded_files(overlaps)
    assert [f.text for f in kept].count("x") == 500
    state = audits.AuditState(findings=kept)
    assert audits.AuditState.from_json(state.to_json()) == state


def test_overlapping_ranges_of_several_names():
    assert overlapping({}, 0, None) == {}
    ranges = {"a": [(0, 10), (20, 30)], "b": [(10, 20)], "c": [(5, 8), (25, 40)], "d": [(50, 60)]}
    assert overlapping(ranges, 0, None) == {"a": (5, 30), "c": (5, 30)}
    assert overlapping(ranges, 8, None) == {"a": (25, 30), "c": (25, 30)}
    assert overlapping(ranges, 8, 25) == {}


@pytest.mark.parametrize(
    ("touched", "interesting", "shown", "is_complete"),
    [
        ({"09"}, set(), {"06", "07", "08", "09", "10", "11", "12"}, True),
        ({"09", "11"}, {"08"}, {f"{n:02}" for n in range(3, 15)}, True),
        ({"50"}, set(), set(), True),
        ({"00", "40"}, set(), {f"{n:02}" for n in range(30)}, False),
        ({"00"}, {f"{n:02}" for n in range(41)}, {f"{n:02}" for n in range(31)}, False),
    ],
)
def test_walk_outward(touched, interesting, shown, is_complete):
    seen = []

    def meets(names):
        seen.extend(names)
        return not interesting.isdisjoint(names)

    names = [f"{n:02}" for n in range(41)]
    assert walk_outward(names, touched, meets, step=3, names_max=30) is is_complete
    assert set(seen) == shown
    assert len(seen) == len(shown)


def test_names_are_in_the_order_of_time():
    names = ["day=2026-01-02/hour=10", "day=2026-01-02/hour=9", "day=2026-01-01/hour=23"]
    assert sorted(names, key=in_time) == [names[2], names[1], names[0]]


def test_partitions_of_other_journals_are_left_alone(lake):
    lake.append(0, 2)
    lake.register()
    other = "events/part=b"
    lake.files.append(other, b'{"id":1}\n', postfix="hour=05", begin=0)
    lake.register()
    assert lake.audit().findings == ()
    with lake.metastore.connect() as session:
        table = session.table("s", "events")
        assert session.partition_names(table, ["b"]) == ["part=b/hour=5"]
        assert session.partition_names(table, ["", "5"]) == ["part=a/hour=5", "part=b/hour=5"]
        assert session.partition_names(table) == ["part=a/hour=5", "part=b/hour=5"]
        named = session.partitions_named(table, ["part=b/hour=5", "part=c/hour=5"])
        assert [isinstance(p, HivePartition) for p in named] == [True]
