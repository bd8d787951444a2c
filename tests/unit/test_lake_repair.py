"""Repair: covered files are moved aside, and never one whose bytes are not elsewhere right now."""

from pathlib import Path

import pytest
from lake_bench import FragmentFiles, MemoryMetastore

from gazette_platform.lake import Auditor, Registrar, Repairer, StoreRoots, parse_table_spec
from gazette_platform.lake.raw.partition_state import PartitionState
from gazette_platform.lake.raw.reconcile import Span, chain
from gazette_platform.lake.raw.repair import RepairLimits

SPEC = """
name: s.events
selector: name:prefix=events/
format: json
columns: [{name: id, type: bigint}]
partitions: [{name: hour, type: int}]
"""
JOURNAL = "events/part=a%3Db+c"


def lines(begin, end):
    return b"".join(b'{"id":%d}\n' % (n % 10) for n in range(begin, end))


class Lake:
    """A journal of lines of 9 bytes; `plant` writes a file that brokers do not list."""

    def __init__(self, tmp_path):
        self.files = FragmentFiles(tmp_path / "fragments")
        self.metastore = MemoryMetastore()
        self.roots = StoreRoots(self.files.roots)
        self.registrar = Registrar(self.files, self.metastore, self.roots)
        self.auditor = Auditor(self.files, self.roots)
        self.spec = parse_table_spec(SPEC)
        self.cursors = {}

    def append(self, begin, end, *, hour="hour=05", content=None):
        content = lines(begin, end) if content is None else content
        return self.files.append(JOURNAL, content, postfix=hour, begin=9 * begin)

    def plant(self, begin, end, **options):
        planted = self.append(begin, end, **options)
        self.files.forget(planted)
        return planted

    def register(self):
        self.cursors = self.registrar.tick(self.spec, self.cursors).cursors

    def find(self):
        with self.metastore.connect() as session:
            table = session.table("s", "events")
            return list(self.auditor.audit(session, table, JOURNAL).findings)

    def repair(self, findings=None, **limits):
        repairer = Repairer(self.files, self.roots, RepairLimits(**limits))
        findings = self.find() if findings is None else findings
        with self.metastore.connect() as session:
            table = session.table("s", "events")
            return repairer.repair(session, table, findings, self.cursors)

    def state(self, hour):
        with self.metastore.connect() as session:
            table = session.table("s", "events")
            (found,) = (p for p in session.partitions(table) if p.values[1] == str(hour))
            return PartitionState.from_parameters(found.parameters)

    def path(self, fragment):
        return self.files.root / fragment.content_path

    def covered(self, fragment):
        return self.files.root / ".covered" / fragment.content_path


@pytest.fixture
def lake(tmp_path):
    return Lake(tmp_path)


def test_chain():
    spans = [Span(b, e, "d", f"{b}", is_listed=True) for b, e in [(0, 4), (2, 6), (4, 5), (8, 9)]]
    assert [(s.begin, s.end) for s in chain(spans, 1, 6)] == [(0, 4), (2, 6)]
    assert chain(spans, 0, 7) == []
    assert chain(spans, 7, 9) == []


def test_files_that_others_cover_are_moved(lake):
    lake.append(0, 4)
    lake.append(4, 8, hour="hour=06")
    twin = lake.plant(0, 4, hour="hour=06")
    inside = lake.plant(1, 2)
    across = lake.plant(2, 6)
    lake.register()
    repair = lake.repair()
    assert sorted(m.finding.path for m in repair.moved) == sorted(
        f.content_path for f in (twin, inside, across)
    )
    assert (repair.waiting, repair.refused) == ({}, {})
    for fragment in (twin, inside, across):
        assert lake.covered(fragment).is_file()
        assert not lake.path(fragment).exists()
    assert lake.find() == []
    assert lake.repair().moved == []
    # They were never counted, so the accounts stay.
    assert (lake.state(5).rows, lake.state(6).rows) == (4, 4)


def test_accounts_keep_what_came_before_in_the_hour_of_a_twin(lake):
    """Two brokers stored the same bytes under two hours, and only ever the other one was listed."""
    lake.append(0, 5)
    lake.append(5, 9)
    lake.append(9, 12, hour="hour=06")
    twin = lake.plant(9, 12)
    lake.append(12, 15, hour="hour=07")
    second = lake.plant(12, 15)
    lake.register()
    before = lake.state(5)
    assert {m.finding.path for m in lake.repair().moved} == {twin.content_path, second.content_path}
    assert lake.state(5) == before
    assert (before.rows, before.content_bytes, before.ranges) == (9, 81, ((0, 81),))


@pytest.mark.parametrize("is_counted", [True, False])
def test_accounts_lose_just_what_they_counted_beside_earlier_fragments(lake, is_counted):
    lake.append(0, 5)
    small = lake.append(5, 7)
    if is_counted:
        lake.register()
    lake.append(5, 9)
    lake.files.forget(small)
    lake.register()
    assert lake.state(5).rows == (11 if is_counted else 9)
    (moved,) = lake.repair().moved
    assert moved.finding.path == small.content_path
    state = lake.state(5)
    assert (state.rows, state.content_bytes, state.fragments) == (9, 81, 2)


def test_a_file_that_accounts_do_not_hold_is_not_taken_for_another_of_its_length(lake):
    lake.append(0, 2, hour="hour=06")
    twin = lake.plant(0, 2)
    counted = lake.append(4, 6)
    lake.register()
    lake.append(2, 6, hour="hour=06")
    lake.files.forget(counted)
    lake.cursors = {}
    lake.register()
    before = lake.state(5)
    (moved,) = lake.repair(files_max=1).moved
    assert moved.finding.path == twin.content_path
    assert lake.state(5) == before
    (moved,) = lake.repair().moved
    assert moved.finding.path == counted.content_path
    assert lake.state(5).rows == 0


def test_accounts_lose_a_file_that_they_counted(lake):
    small = lake.append(0, 2)
    lake.append(2, 3)
    lake.register()
    lake.append(0, 3, hour="hour=06")
    lake.files.forget(small)
    lake.cursors = {}
    lake.register()
    assert lake.state(5).content_bytes == 27
    (moved,) = lake.repair().moved
    state = lake.state(5)
    assert (state.rows, state.fragments, state.content_bytes) == (1, 1, 9)
    assert state.ranges == ((18, 27),)
    assert moved.state == state
    assert moved.key == "part=a%253Db+c/hour=5"


def test_nothing_is_moved_when_the_covering_file_is_missing(lake):
    cover = lake.append(0, 4)
    planted = lake.plant(1, 2)
    lake.register()
    findings = lake.find()
    lake.path(cover).unlink()
    repair = lake.repair(findings)
    assert repair.moved == []
    assert lake.path(planted).is_file()


def test_nothing_is_moved_when_brokers_no_longer_list_the_covering_file(lake):
    cover = lake.append(0, 4)
    lake.append(4, 5)
    planted = lake.plant(1, 2)
    lake.register()
    findings = lake.find()
    lake.files.forget(cover)
    assert lake.repair(findings).moved == []
    assert lake.path(planted).is_file()


@pytest.mark.parametrize("moment", ["before", "after"])
def test_covering_file_that_goes_at_the_last_moment(lake, monkeypatch, moment):
    cover = lake.append(0, 4)
    planted = lake.plant(1, 2)
    lake.register()
    before = lake.state(5)
    rename = Path.rename

    def racing(self, target):
        if moment == "after":
            lake.path(cover).unlink(missing_ok=True)
        return rename(self, target)

    def vanishing(self, *args, **options):
        if moment == "before":
            lake.path(cover).unlink(missing_ok=True)
        return mkdir(self, *args, **options)

    mkdir = Path.mkdir
    monkeypatch.setattr(Path, "rename", racing)
    monkeypatch.setattr(Path, "mkdir", vanishing)
    repair = lake.repair()
    assert repair.moved == []
    assert "which covers it, has gone" in repair.waiting[planted.content_path]
    assert lake.path(planted).is_file()
    assert not lake.covered(planted).exists()
    assert lake.state(5) == before


def test_file_that_brokers_list_stays(lake):
    # Two chains cut differently: brokers serve reads from 0 to 4, which the others cover.
    listed = lake.append(0, 4)
    lake.plant(0, 3, hour="hour=06")
    lake.append(3, 6, hour="hour=06")
    lake.register()
    repair = lake.repair()
    assert repair.moved == []
    assert "brokers serve reads from this file" in repair.waiting[listed.content_path]


def test_file_with_other_bytes_stays(lake):
    lake.append(0, 4)
    planted = lake.plant(1, 2, content=b'{"id":7}\n')
    lake.register()
    repair = lake.repair()
    assert repair.moved == []
    assert "holds other bytes" in repair.refused[planted.content_path]
    assert lake.path(planted).is_file()


def test_damaged_covering_file_covers_nothing(lake):
    cover = lake.append(0, 400)
    planted = lake.plant(1, 2)
    lake.register()
    stored = lake.path(cover).read_bytes()
    lake.path(cover).write_bytes(stored[:-12])
    repair = lake.repair()
    assert repair.moved == []
    assert "is damaged" in repair.refused[planted.content_path]


def test_covering_file_that_is_not_registered_yet_covers_nothing(lake):
    lake.append(0, 2)
    lake.register()
    lake.append(2, 6, hour="hour=06")
    planted = lake.plant(3, 4)
    assert lake.repair().moved == []
    lake.register()
    assert [m.finding.excluded for m in lake.repair().moved] == [planted.content_name]


def test_file_that_covers_more_than_the_others_stays(lake):
    lake.append(0, 4)
    lake.plant(3, 6)
    lake.append(6, 7)
    lake.register()
    assert {f.kind for f in lake.find()} == {"overlap", "gap"}
    assert lake.repair().moved == []


def test_work_is_bounded(lake):
    lake.append(0, 8)
    for n in range(6):
        lake.plant(n, n + 1)
    lake.register()
    assert len(lake.repair(files_max=2).moved) == 2
    assert len(lake.repair(content_bytes_max=9 * 18).moved) == 2
    assert len(lake.repair().moved) == 2
    assert lake.find() == []


def test_file_restored_and_found_again_keeps_both(lake):
    lake.append(0, 4)
    planted = lake.plant(1, 2)
    lake.register()
    lake.repair()
    lake.path(planted).write_bytes(lake.covered(planted).read_bytes())
    (moved,) = lake.repair().moved
    assert moved.target == f"{lake.covered(planted)}~2"
    assert lake.covered(planted).is_file()


def test_folder_that_is_not_writable_is_named(lake, monkeypatch):
    lake.append(0, 4)
    planted = lake.plant(1, 2)
    lake.register()
    monkeypatch.setattr("gazette_platform.lake.reading.storage.os.access", lambda *_: False)
    reason = lake.repair().waiting[planted.content_path]
    assert f"{lake.path(planted).parent} is not writable" in reason


@pytest.mark.parametrize("before", [1, 3])
def test_a_file_that_was_never_counted_takes_nothing_from_what_came_before_it(lake, before):
    """What brokers list before it in its Hive partition is counted, too."""
    for n in range(before):
        lake.append(4 * n, 4 * n + 4)
    begin = 4 * before
    lake.append(begin, begin + 4)
    planted = lake.plant(begin + 1, begin + 2)
    lake.register()
    counted = lake.state(5)
    (moved,) = lake.repair().moved
    assert moved.finding.path == planted.content_path
    assert moved.state == lake.state(5) == counted


def test_a_move_that_ended_after_the_accounts_is_not_counted_twice(lake, monkeypatch):
    lake.append(0, 4)
    small = lake.append(4, 6)
    lake.append(6, 8)
    lake.register()
    lake.append(4, 8, hour="hour=06")
    lake.files.forget(small)
    lake.cursors = {}
    lake.register()
    rename = Path.rename

    def killed(self, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rename", killed)
    findings = lake.find()
    with pytest.raises(KeyboardInterrupt):
        lake.repair(findings)
    once = lake.state(5)
    assert (once.rows, once.fragments) == (6, 2)
    monkeypatch.setattr(Path, "rename", rename)
    lake.repair(findings)
    assert lake.state(5) == once


def test_of_two_files_the_one_that_was_counted_is_taken_out_of_the_accounts(lake):
    lake.append(0, 4)
    counted = lake.append(4, 6)
    lake.register()
    lake.append(4, 8, hour="hour=06")
    lake.files.forget(counted)
    lake.plant(7, 8)
    lake.cursors = {}
    lake.register()
    assert len(lake.repair().moved) == 2
    state = lake.state(5)
    assert (state.rows, state.fragments, state.ranges) == (4, 1, ((0, 36),))
