"""Fragments whose rows a tick cannot count: they are registered, and counted later, or known not to be."""

from dataclasses import replace

import pytest
from lake_bench import FragmentFiles, MemoryMetastore

from gazette_platform.lake import (
    FitChecker,
    Registrar,
    Repairer,
    Shrinker,
    StoreRoots,
    SweepPoint,
    parse_table_spec,
)
from gazette_platform.lake.raw import partition_updates as counting_module, repair as repair_module
from gazette_platform.lake.raw.audits import fit as fit_module
from gazette_platform.lake.raw.audits.consistency import Auditor
from gazette_platform.lake.raw.audits.fit import value_scanner
from gazette_platform.lake.raw.partition_state import TRIES_MAX, PartitionState, Uncounted
from gazette_platform.lake.reading import fragment_content as content_module
from gazette_platform.lake.reading.fragment_content import FragmentContent
from gazette_platform.protocol import CompressionCodec
from gazette_platform.sensors.events import data_version

SPEC = """
name: s.events
selector: name:prefix=events/
format: json
columns: [{name: id, type: bigint}]
partitions: [{name: hour, type: int}]
"""
JOURNAL = "events/part=0"
HOUR = "hour=05"
MIB = 1 << 20
LINE = b'{"id":1}\n'
LARGE = 8 * MIB // len(LINE)


class Lake:
    """A journal of lines of 9 bytes, stored as they are; reads of stored bytes are counted."""

    def __init__(self, tmp_path, monkeypatch):
        for module in (content_module, counting_module, repair_module):
            monkeypatch.setattr(module, "COUNTED_BYTES_MIN", MIB)
        content_module.unfinished.clear()
        self.files = FragmentFiles(tmp_path / "fragments")
        self.metastore = MemoryMetastore()
        self.roots = StoreRoots(self.files.roots)
        self.registrar = Registrar(self.files, self.metastore, self.roots)
        self.spec = parse_table_spec(SPEC)
        self.cursors = {}
        self.read_bytes = 0
        read = content_module._read_file

        def counting(fragment, path):
            for block in read(fragment, path):
                self.read_bytes += len(block)
                yield block

        monkeypatch.setattr(content_module, "_read_file", counting)

    def append(self, count, *, hour=HOUR, **options):
        codec = CompressionCodec.NONE
        return self.files.append(JOURNAL, LINE * count, postfix=hour, codec=codec, **options)

    def tick(self, *, is_over=lambda: False, is_sweeping=False):
        sweep = SweepPoint() if is_sweeping else None
        report = self.registrar.tick(self.spec, self.cursors, sweep=sweep, is_over=is_over)
        self.cursors = report.cursors
        return report

    def state(self, values=("0", "5")):
        with self.metastore.connect() as session:
            table = session.table("s", "events")
            found = session.partitions_of(table, [values])[values]
        return PartitionState.from_parameters(found.parameters)

    def change(self, state):
        with self.metastore.connect() as session:
            table = session.table("s", "events")
            (found,) = session.partitions(table)
            changed = replace(found, parameters=state.within(found.parameters))
            session.alter_partitions(table, [changed])


@pytest.fixture
def lake(tmp_path, monkeypatch):
    return Lake(tmp_path, monkeypatch)


class Over:
    """Time is up once `read` bytes more were read."""

    def __init__(self, lake, read=0):
        self.lake, self.at = lake, lake.read_bytes + read

    def __call__(self):
        return self.lake.read_bytes > self.at


def test_a_fragment_that_no_tick_has_time_for_is_registered_and_counted_later(lake):
    lake.append(10)
    lake.tick()
    large = lake.append(LARGE)
    report = lake.tick(is_over=Over(lake, 2 * MIB))
    assert lake.read_bytes < 5 * MIB
    (update,) = report.updates
    assert (update.fragments_added, update.rows_added, update.state.rows) == (1, None, None)
    assert update.state.stored_bytes == 9 * (10 + LARGE)
    # Queries see it, and the journal goes on.
    assert report.offsets == {JOURNAL: large.end}
    (found,) = report.misfits
    assert (found.kind, found.is_error, found.is_checked) == ("fit", False, False)
    assert "its rows are not known until" in found.text
    version = data_version(update.state)
    lake.append(5)
    (update,) = lake.tick().updates
    assert (update.rows_added, update.state.rows, update.state.rows_known) == (5, None, 15)

    (update,) = lake.tick(is_sweeping=True).updates
    assert (update.fragments_added, update.rows_added) == (0, LARGE)
    assert lake.state().rows == LARGE + 15
    assert lake.state().uncounted == ()
    # So Dagster gets an event.
    assert data_version(lake.state()) != version
    before = lake.read_bytes
    assert lake.tick(is_sweeping=True).updates == []
    assert lake.read_bytes == before


def test_only_the_first_of_a_tick_is_registered_without_its_rows(lake):
    lake.append(LARGE // 4)
    second = lake.append(LARGE)
    report = lake.tick(is_over=Over(lake, 3 * MIB))
    assert [u.rows_added for u in report.updates] == [LARGE // 4]
    assert report.has_more
    assert report.offsets == {JOURNAL: second.begin}
    assert report.misfits == []
    (update,) = lake.tick().updates
    assert update.state.rows == LARGE // 4 + LARGE


def test_a_count_goes_on_where_the_one_before_ended(lake):
    large = lake.append(LARGE)
    lake.tick(is_over=Over(lake, MIB))
    ticks = 1
    while lake.state().rows is None:
        report = lake.tick(is_over=Over(lake, MIB), is_sweeping=True)
        ticks += 1
        assert ticks < 12
    assert ticks > TRIES_MAX
    # Read once, except the sample that the table was made with.
    assert lake.read_bytes < large.content_length + 2 * MIB
    assert [(u.fragments_added, u.rows_added) for u in report.updates] == [(0, LARGE)]
    assert lake.state().rows == LARGE


def test_a_count_does_not_go_on_in_another_file(lake):
    large = lake.append(LARGE)
    lake.tick(is_over=Over(lake, MIB))
    path = lake.files.root / large.content_path
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[:9] + content[9:].replace(b'"id"', b"'id'"))
    report = lake.tick(is_sweeping=True)
    assert lake.state().rows == LARGE
    assert f"{LARGE - 1}, such as" in report.misfits[0].text


def test_what_is_too_large_for_every_tick_is_not_begun_for_ever(lake):
    """Where each tick is a process of its own, none can go on."""
    lake.append(LARGE)
    lake.tick(is_over=Over(lake, MIB))
    for tries in range(2, TRIES_MAX + 1):
        content_module.unfinished.clear()
        report = lake.tick(is_over=Over(lake, MIB), is_sweeping=True)
        assert report.updates == []
        (noted,) = lake.state().uncounted
        assert noted.tries == tries
    content_module.unfinished.clear()
    before = lake.read_bytes
    for _ in range(3):
        lake.tick(is_over=Over(lake, MIB), is_sweeping=True)
    assert lake.read_bytes == before
    assert lake.state().rows is None


def test_damaged_files_that_are_restored_are_counted(lake):
    lake.append(10)
    bad = lake.append(20)
    path = lake.files.root / bad.content_path
    content = path.read_bytes()
    path.write_bytes(content[:-9])
    lake.tick()
    assert lake.state().rows is None
    for _ in range(2 * TRIES_MAX):
        lake.tick(is_sweeping=True)
    before = lake.read_bytes
    lake.tick(is_sweeping=True)
    assert (lake.read_bytes, lake.state().rows) == (before, None)
    path.write_bytes(content)
    (update,) = lake.tick(is_sweeping=True).updates
    assert (update.rows_added, update.state.rows, update.state.fragments) == (20, 30, 2)


def test_new_fragments_come_before_those_that_were_registered(lake):
    lake.append(LARGE)
    lake.tick(is_over=Over(lake, MIB))
    lake.append(10)
    before = lake.read_bytes
    (update,) = lake.tick(is_sweeping=True).updates
    assert (update.rows_added, lake.read_bytes - before) == (10, 90)


def test_a_look_at_a_large_fragment_ends_by_its_own_clock(lake, monkeypatch):
    lake.append(LARGE)
    (found,) = lake.tick(is_over=Over(lake, MIB)).misfits
    checker = FitChecker(lake.files, lake.roots)
    monkeypatch.setattr(fit_module, "_LOOK_S", 0.0)
    before = lake.read_bytes
    again = checker.look_again(lake.spec, found)
    assert again.text == found.text
    assert MIB <= lake.read_bytes - before < 3 * MIB
    # It is not read a third time, until its file changes.
    before = lake.read_bytes
    assert checker.look_again(lake.spec, again) == again
    assert lake.read_bytes == before
    monkeypatch.undo()
    assert checker.look_again(lake.spec, found) is None


def test_a_comparison_without_time_is_left_to_a_person(lake):
    lake.append(LARGE)
    twin = lake.append(LARGE - 1, begin=0, hour="hour=06")
    lake.files.forget(twin)
    lake.append(1, hour="hour=06", begin=9 * LARGE)
    lake.tick()
    with lake.metastore.connect() as session:
        table = session.table("s", "events")
        auditor = Auditor(lake.files, lake.roots)
        findings = auditor.audit(session, table, JOURNAL).findings
        repairer = Repairer(lake.files, lake.roots)
        over = Over(lake, MIB)
        called = []

        def is_over():
            called.append(1)
            return len(called) > 2 and over()

        before = lake.read_bytes
        repair = repairer.repair(session, table, findings, lake.cursors, is_over=is_over)
    assert lake.read_bytes - before < 5 * MIB
    assert "`gazctl lake repair` does" in repair.refused[twin.content_path]
    assert repair.moved == []


def test_bad_lines_hold_up_a_tick_that_is_late_for_little(tmp_path):
    """Each is looked at and told apart, which takes a thousand times as long as reading it."""
    files, spec = FragmentFiles(tmp_path), parse_table_spec(SPEC)
    fragment = files.append(JOURNAL, b"x\n" * (8 * MIB), postfix=HOUR)
    location = f"file://{(tmp_path / fragment.content_path).parent}"
    seen = []

    class Scanner:
        def feed(self, block):
            seen.append(len(block))

        def report(self, **options):
            return value_scanner(spec).report(**options)

    found = FragmentContent(files).count(
        fragment, location, scanner=Scanner(), is_over=lambda: True
    )
    assert found.rows is None
    assert sum(seen) <= 8 * MIB


def test_what_is_left_of_a_prune_is_counted_on_where_the_look_before_ended(lake):
    first = lake.append(10)
    lake.append(LARGE)
    last = lake.append(10, hour="hour=06")
    lake.tick()
    lake.files.prune(first)
    shrinker = Shrinker(lake.files, lake.roots)
    looks = []
    with lake.metastore.connect() as session:
        table = session.table("s", "events")
        journal = shrinker.journal(JOURNAL)
        while not looks or not looks[-1].is_complete:
            assert len(looks) < 10
            over = Over(lake, MIB)
            looks.append(
                shrinker.look(
                    session, lake.spec, table, journal, lake.cursors[JOURNAL], is_over=over
                )
            )
    assert [look.shrunk for look in looks] == [*[0] * (len(looks) - 1), 1]
    assert len(looks) > 1
    state = lake.state()
    assert (state.rows, state.fragments, state.uncounted) == (LARGE, 1, ())
    assert state.ranges == ((first.end, last.begin),)


def test_what_is_left_of_a_prune_and_is_damaged_is_noted(lake):
    first, damaged = lake.append(10), lake.append(20)
    last = lake.append(10, hour="hour=06")
    lake.tick()
    lake.files.prune(first)
    path = lake.files.root / damaged.content_path
    path.write_bytes(path.read_bytes()[:-1])
    shrinker = Shrinker(lake.files, lake.roots)
    with lake.metastore.connect() as session:
        table, journal = session.table("s", "events"), shrinker.journal(JOURNAL)
        look = shrinker.look(session, lake.spec, table, journal, lake.cursors[JOURNAL])
    assert look.shrunk == 1
    state = lake.state()
    assert (state.rows, state.fragments, len(state.uncounted)) == (None, 1, 1)
    assert state.ranges == ((first.end, last.begin),)


def test_the_state_keeps_what_is_uncounted():
    state = PartitionState().adding("j/one", 0, 9, rows=1, stored_bytes=9)
    state = state.adding("j/one", 9, 27, rows=None, stored_bytes=18, stamp="18 5")
    state = state.adding("j/one", 27, 36, rows=1, stored_bytes=9)
    assert (state.rows, state.rows_known, state.stored_bytes) == (None, 2, 36)
    assert state.uncounted == (Uncounted(9, 27, "18 5", 1),)
    assert PartitionState.from_parameters(state.to_parameters()) == state
    assert state.tried(9, 27, "18 5").uncounted[0].tries == 2
    assert state.tried(9, 27, "18 6").uncounted[0].tries == 1
    assert state.counted(9, 27, 2).rows == 4
    assert state.counted(27, 36, 1) == state
    spans = [(0, 9), (27, 36)]
    left = state.without(9, 27, rows=2, stored_bytes=18, left=spans)
    assert (left.rows, left.uncounted, left.fragments) == (2, (), 2)
    left = state.without(0, 9, rows=1, stored_bytes=9, left=[(9, 27), (27, 36)])
    assert (left.rows, left.rows_known, len(left.uncounted)) == (None, 1, 1)
