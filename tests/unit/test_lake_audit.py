"""Audits: what overlaps, what is missing, and which files the exact view leaves out."""

import random
from itertools import pairwise

import pytest
from lake_bench import FragmentFiles, MemoryMetastore

from gazette_platform.errors import SchemaMismatch
from gazette_platform.lake import (
    Auditor,
    JournalCursor,
    Registrar,
    StoreRoots,
    ensure_views,
    excluded_files,
)
from gazette_platform.lake.raw.reconcile import Span, choose, clusters, uncovered
from gazette_platform.lake.spec.table_spec import parse_table_spec
from gazette_platform.protocol.offsets import gaps_between

SPEC = """
name: s.events
selector: name:prefix=events/
format: json
columns: [{name: id, type: bigint}, {name: at, type: "struct<x:int>"}]
partitions: [{name: hour, type: int}, {name: date, type: date}]
"""
JOURNAL = "events/part=a%3Db+c"
HOUR_5 = "date=2026-01-02/hour=05"
HOUR_6 = "date=2026-01-02/hour=06"


def span(begin, end, *, is_listed=True):
    return Span(begin, end, "d", f"{begin}-{end}", is_listed)


def offsets(spans):
    return [(s.begin, s.end) for s in spans]


@pytest.mark.parametrize(
    ("files", "kept", "lost"),
    [
        # A file inside a larger one.
        ([(0, 100), (20, 50)], [(0, 100)], []),
        # Two brokers' chains of the same bytes, cut differently.
        ([(0, 100), (0, 80), (80, 150)], [(0, 80), (80, 150)], []),
        # No set of whole files is exact: the larger one stays.
        ([(0, 100), (90, 200)], [(90, 200)], [(0, 90)]),
        ([(0, 10), (5, 15), (10, 20)], [(0, 10), (10, 20)], []),
    ],
)
def test_choice(files, kept, lost):
    (cluster,) = clusters([span(*file) for file in files])
    chosen = choose(cluster)
    assert offsets(chosen) == kept
    assert uncovered(cluster, chosen) == lost


def test_choice_prefers_listed_files_and_is_stable():
    twins = [
        Span(0, 9, "d", "b", is_listed=False),
        Span(0, 9, "d", "a", is_listed=False),
        Span(0, 9, "d", "c", is_listed=True),
    ]
    for _ in range(3):
        assert [s.name for s in choose(twins)] == ["c"]
        twins = twins[1:] + twins[:1]


def test_choice_prefers_several_listed_files_to_one_that_is_not():
    listed = [span(0, 5), span(5, 10)]
    whole = span(0, 10, is_listed=False)
    assert choose([*listed, whole]) == listed
    assert choose([*listed, span(0, 11, is_listed=False)]) == [span(0, 11, is_listed=False)]


def test_choice_is_best_among_all_subsets():
    rng = random.Random(7)
    for _ in range(50):
        spans = []
        for n in range(7):
            begin = rng.randrange(20)
            spans.append(Span(begin, begin + rng.randrange(1, 10), "d", str(n), is_listed=True))
        best = 0
        for mask in range(1 << len(spans)):
            some = sorted(s for i, s in enumerate(spans) if mask >> i & 1)
            if all(a.end <= b.begin for a, b in pairwise(some)):
                best = max(best, sum(s.end - s.begin for s in some))
        chosen = [s for cluster in clusters(spans) for s in choose(cluster)]
        assert all(a.end <= b.begin for a, b in pairwise(chosen))
        assert sum(s.end - s.begin for s in chosen) == best


def test_gaps():
    assert gaps_between([]) == []
    assert gaps_between([(20, 30), (0, 10), (5, 12)]) == [(12, 20)]


class Lake:
    def __init__(self, tmp_path):
        self.files = FragmentFiles(tmp_path / "fragments")
        self.metastore = MemoryMetastore()
        roots = StoreRoots(self.files.roots)
        self.registrar = Registrar(self.files, self.metastore, roots)
        self.auditor = Auditor(self.files, roots)
        self.spec = parse_table_spec(SPEC)

    def append(self, size, **options):
        return self.files.append(JOURNAL, b'{"id":1}\n' * size, **{"postfix": HOUR_5, **options})

    def register(self):
        self.offsets = self.registrar.tick(self.spec, {}).offsets

    def audit(self, **options):
        with self.metastore.connect() as session:
            table = session.table("s", "events")
            return self.auditor.audit(session, table, JOURNAL, **options)

    def findings(self, **options):
        found = self.audit(**options).findings
        return [(f.kind, f.begin, f.end, bool(f.excluded)) for f in found]


@pytest.fixture
def lake(tmp_path):
    return Lake(tmp_path)


def test_all_well(lake):
    for hour in (HOUR_5, HOUR_5, HOUR_6):
        lake.append(1, postfix=hour)
    lake.append(1, is_persisted=False)
    lake.register()
    assert lake.findings() == []


def test_covered_file_that_brokers_no_longer_list(lake):
    lake.append(4)
    lake.append(2, postfix=HOUR_6)
    lake.files.forget(lake.append(2, begin=9, postfix=HOUR_6))
    lake.register()
    assert lake.findings() == [("overlap", 9, 27, True)]


def test_chain_replaces_a_file_that_overlaps_in_part(lake):
    lake.append(4)
    lake.files.forget(lake.append(3, begin=0, postfix=HOUR_6))
    lake.append(3, begin=27, postfix=HOUR_6)
    lake.register()
    assert lake.findings() == [("overlap", 0, 36, True)]


def test_partial_overlap_without_chain_says_what_the_view_lacks(lake):
    lake.append(4)
    lake.append(4, begin=18)
    lake.register()
    assert lake.findings() == [("overlap", 18, 54, True), ("overlap", 36, 54, False)]


def test_gap(lake):
    lake.append(1)
    lake.append(1, begin=90)
    lake.register()
    assert lake.findings() == [("gap", 9, 90, False)]


def test_lost_file_foreign_file_and_unlisted_file(lake):
    lost = lake.append(1)
    lake.append(1)
    alien = lake.append(1)
    lake.append(1)
    lake.register()
    folder = lake.files.root / JOURNAL / HOUR_5
    (folder / lost.content_name).unlink()
    (folder / "notes.txt").touch()
    (folder / ".hidden").touch()
    lake.files.forget(alien)
    assert sorted(lake.findings()) == [
        ("count", 0, 0, False),
        ("count", 0, 9, False),
        ("count", 18, 27, False),
        ("gap", 18, 27, False),
    ]


@pytest.mark.parametrize(
    ("gone", "errors"),
    [
        ((0, 1), [False, False]),  # a prune that brokers did not hear of yet
        ((0, 2), [False, True]),
        ((1,), [True]),
        ((0, 1, 2, 3), [True] * 4),  # another folder than that of the brokers
    ],
)
def test_files_that_are_gone_at_the_front_were_pruned(lake, gone, errors):
    made = [lake.append(1) for _ in range(4)]
    lake.register()
    for number in gone:
        lake.files.delete_file(made[number])
    found = [f for f in lake.audit().findings if f.kind == "count"]
    assert [(f.begin, f.is_error) for f in found] == [
        (made[n].begin, e) for n, e in zip(gone, errors, strict=True)
    ]
    assert ["it seems to have been pruned" in f.text for f in found] == [not e for e in errors]


def test_file_persisted_meanwhile_is_not_a_finding(lake):
    lake.append(1)
    later = lake.append(1)
    lake.register()
    lake.files.forget(later)
    assert lake.findings() == []


def test_dropped_partition(lake):
    lake.append(1)
    lake.append(1, postfix=HOUR_6)
    lake.register()
    with lake.metastore.connect() as session:
        table = session.table("s", "events")
        session.drop_partition(table, session.partitions(table)[1].values)
    assert lake.findings(cursor=JournalCursor(18)) == [("count", 9, 18, False)]
    assert lake.findings(cursor=JournalCursor(9)) == []


def test_slices_begin_where_no_file_spans(lake):
    for _ in range(4):
        lake.append(2)
    lake.files.forget(lake.append(2, begin=27))
    lake.register()
    first = lake.audit(limit=3)
    assert (first.begin, first.end, first.findings) == (0, 18, ())
    second = lake.audit(begin=36, limit=3)
    assert (second.begin, second.end) == (18, 54)
    assert [f.begin for f in second.findings] == [27]


def test_exact_view_names_the_files_by_partition(lake):
    lake.append(2)
    covered = lake.append(1, begin=0)
    lake.register()
    lake.files.forget(covered)
    with lake.metastore.connect() as session:
        table = session.table("s", "events")
        excluded = excluded_files(lake.audit().findings)
        assert ensure_views(session, lake.spec, table, excluded)
        assert not ensure_views(session, lake.spec, table, excluded)
        view = session.table("s", "events_exact")
        assert "EXTERNAL" not in view.parameters
        assert view.view_expanded == (
            "SELECT `id`, `at`, `part`, `date`, `hour` FROM `s`.`events` WHERE NOT "
            "(`part` = 'a%3Db+c' AND `date` = DATE '2026-01-02' AND `hour` = 5 AND "
            f"_metadata.file_name IN ('{covered.content_name}'))"
        )
        assert ensure_views(session, lake.spec, table, {})
        assert "WHERE" not in session.table("s", "events_exact").view_expanded


def test_exact_view_never_replaces_what_is_not_one(lake):
    lake.append(1)
    lake.register()
    with lake.metastore.connect() as session:
        table = session.table("s", "events")
        from dataclasses import replace

        session.create_table(replace(table, name="events_exact"))
        with pytest.raises(SchemaMismatch, match="is not a view of"):
            ensure_views(session, lake.spec, table, {})


@pytest.mark.parametrize("limit", range(2, 8))
@pytest.mark.parametrize("gap", range(1, 6))
def test_a_gap_is_found_wherever_audits_of_slices_meet(lake, limit, gap):
    begin = 0
    for n in range(6):
        begin += 9 * (n == gap)
        lake.append(1, begin=begin)
        begin += 9
    lake.register()
    at, found = 0, []
    while at is not None:
        audit = lake.audit(begin=at, limit=limit)
        assert all(audit.replaces(f) for f in audit.findings)
        found += [(f.kind, f.begin, f.end) for f in audit.findings]
        at = audit.end
    assert found == [("gap", 9 * gap, 9 * gap + 9)]
