"""What a tick looks at: what is new, what is awaited, what is old; and no more than it has time for."""

import pytest
from lake_bench import FragmentFiles, MemoryMetastore

from gazette_platform.errors import NoJournalPrimaryBroker, TransportError, status_error
from gazette_platform.lake import JournalCursor, Limits, Registrar, StoreRoots, SweepPoint
from gazette_platform.lake.spec.table_spec import parse_table_spec
from gazette_platform.ops.clock import ManualClock, SystemClock

SPEC = """
name: s.events
selector: name:prefix=events/
format: json
columns: [{name: id, type: bigint}]
partitions: [{name: hour, type: int}]
"""
HOUR_5 = "date=2026-01-02/hour=05"
HOUR_6 = "date=2026-01-02/hour=06"


def lines(begin, count):
    return b"".join(b'{"id":%d}\n' % n for n in range(begin, begin + count))


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
def spec():
    return parse_table_spec(SPEC)


@pytest.mark.parametrize("follows", [True, False])
@pytest.mark.parametrize("count", [1, 40])
def test_fragment_that_spans_the_offset_is_found(registrar, files, spec, count, follows):
    """Also when nothing follows it, and when it took the place of many."""
    small = [
        files.append("events/part=0", lines(n % 10, 1), postfix=HOUR_5) for n in range(count + 40)
    ]
    cursors = registrar.tick(spec, {}).cursors
    for one in small[40:]:
        files.forget(one)
    content = b"".join(lines(n % 10, 1) for n in range(count))
    files.append("events/part=0", content + lines(0, 3), postfix=HOUR_6, begin=small[40].begin)
    if follows:
        files.append("events/part=0", lines(3, 1), postfix=HOUR_6)
    report = registrar.tick(spec, cursors)
    (update,) = report.updates
    assert update.fragments_added == 1 + follows
    assert update.state.rows == count + 3 + follows
    assert report.cursors["events/part=0"].holes == ()
    files.calls.clear()
    assert registrar.tick(spec, report.cursors).updates == []
    assert len(files.calls) == 2  # journals, and one list of fragments


def test_pruned_history_costs_an_idle_tick_nothing(registrar, files, spec):
    gone = [files.append("events/part=0", lines(n, 1), postfix=HOUR_5) for n in range(5)]
    cursors = registrar.tick(spec, {}).cursors
    for one in gone:
        files.forget(one)
    cursors = registrar.tick(spec, cursors).cursors
    files.calls.clear()
    assert registrar.tick(spec, cursors).cursors == cursors
    assert len(files.calls) == 2


def young():
    """The time of a fragment that was stored just now."""
    return int(SystemClock().unix_s())


def test_young_hole_is_awaited_and_nothing_after_it_is(registrar, files, spec):
    first = files.append("events/part=0", lines(0, 1), postfix=HOUR_5, mod_time=young())
    late = files.append("events/part=0", lines(1, 2), postfix=HOUR_5, mod_time=young())
    files.forget(late)
    files.append("events/part=0", lines(3, 1), postfix=HOUR_6, begin=late.end, mod_time=young())
    report = registrar.tick(spec, {})
    assert [u.key[-6:] for u in report.updates] == ["hour=5", "hour=6"]
    assert report.offsets == {"events/part=0": first.end}
    assert registrar.tick(spec, report.cursors).cursors == report.cursors
    files.append("events/part=0", lines(1, 2), postfix=HOUR_5, begin=late.begin)
    report = registrar.tick(spec, report.cursors)
    assert [(u.key[-6:], u.state.rows) for u in report.updates] == [("hour=5", 3)]
    assert report.cursors["events/part=0"].holes == ()


def test_a_hole_that_a_larger_fragment_fills(registrar, files, spec):
    first = files.append("events/part=0", lines(0, 1), postfix=HOUR_5, mod_time=young())
    late = files.append("events/part=0", lines(1, 2), postfix=HOUR_5, mod_time=young())
    files.forget(late)
    files.append("events/part=0", lines(3, 1), postfix=HOUR_6, begin=late.end, mod_time=young())
    cursors = registrar.tick(spec, {}).cursors
    files.forget(first)
    files.append("events/part=0", lines(0, 3), postfix=HOUR_5, begin=0)
    report = registrar.tick(spec, cursors)
    assert [(u.key[-6:], u.state.covered_bytes) for u in report.updates] == [("hour=5", late.end)]
    assert report.cursors["events/part=0"].holes == ()


def test_an_old_hole_is_given_up_and_what_comes_still_later_is_found_in_turn(
    registrar, files, spec
):
    files.append("events/part=0", lines(0, 1), postfix=HOUR_5)
    late = files.append("events/part=0", lines(1, 2), postfix=HOUR_5)
    files.forget(late)
    files.append("events/part=0", lines(3, 1), postfix=HOUR_6, begin=late.end)
    report = registrar.tick(spec, {})
    assert report.cursors["events/part=0"].holes == ()
    files.append("events/part=0", lines(1, 2), postfix=HOUR_5, begin=late.begin)
    assert registrar.tick(spec, report.cursors).updates == []
    report = registrar.tick(spec, report.cursors, sweep=SweepPoint())
    assert [(u.key[-6:], u.state.rows) for u in report.updates] == [("hour=5", 3)]
    assert report.swept is None


def test_a_round_goes_on_where_it_ended(registrar, files, spec):
    for part in range(2):
        for n in range(250):
            files.append(f"events/part={part}", lines(n, 1), postfix=HOUR_5)
    cursors = registrar.tick(spec, {}).cursors
    points, point = [], SweepPoint()
    while point is not None:
        points.append((point.journal, point.offset > 0))
        point = registrar.tick(spec, cursors, sweep=point).swept
        assert len(points) < 9
    assert points == [
        ("", False), ("events/part=0", True), ("events/part=1", False), ("events/part=1", True),
    ]  # fmt: skip


def test_a_tick_whose_time_is_up_keeps_what_it_has_counted(registrar, files, spec):
    for part in range(3):
        for _ in range(3):
            files.append(f"events/part={part}", lines(0, 2), postfix=HOUR_5)
    looks = iter(range(1000))
    report = registrar.tick(spec, {}, is_over=lambda: next(looks) > 8)
    first = sum(u.rows_added for u in report.updates)
    assert 0 < first < 18
    assert report.has_more
    report = registrar.tick(spec, report.cursors)
    assert first + sum(u.rows_added for u in report.updates) == 18
    assert registrar.tick(spec, {}, is_over=lambda: True).updates == []


def test_many_hive_partitions_are_added_by_the_clock(registrar, files, metastore, spec):
    for n in range(120):
        files.append("events/part=0", lines(0, 1), postfix=f"date=2026-01-02/hour={n}")
    ticks, report = [], registrar.tick(spec, {}, is_over=lambda: metastore.partitions_added > 0)
    assert metastore.partitions_added < 120
    while report.has_more:
        ticks.append(len(report.updates))
        report = registrar.tick(spec, report.cursors)
    ticks.append(len(report.updates))
    assert [ticks[0], sum(ticks)] == [1, 120]


def test_a_huge_backlog_holds_up_no_other_journal(files, metastore, spec):
    for n in range(50):
        files.append("events/part=0", lines(n, 1), postfix=HOUR_5)
    for part in range(1, 4):
        files.append(f"events/part={part}", lines(0, 1), postfix=HOUR_5)
    registrar = Registrar(files, metastore, StoreRoots(files.roots), Limits(fragments_max=20))
    report = registrar.tick(spec, {})
    assert {u.journal: u.fragments_added for u in report.updates} == {
        "events/part=0": 17, "events/part=1": 1, "events/part=2": 1, "events/part=3": 1,
    }  # fmt: skip


class Unlisted(FragmentFiles):
    """Brokers that cannot list some journals."""

    def __init__(self, root):
        super().__init__(root)
        self.failing = {}

    def fragments(self, journal, offset, limit):
        if journal in self.failing:
            raise self.failing[journal]
        return super().fragments(journal, offset, limit)


@pytest.mark.parametrize("bad", ["events/part=0", "events/part=1", "events/part=2"])
@pytest.mark.parametrize(
    "error", [TransportError("its stores are not listed yet"), NoJournalPrimaryBroker("no broker")]
)
def test_a_journal_that_cannot_be_listed_holds_up_no_other(tmp_path, metastore, spec, bad, error):
    files = Unlisted(tmp_path / "fragments")
    registrar = Registrar(files, metastore, StoreRoots(files.roots))
    names = [f"events/part={n}" for n in range(3)]
    for name in names:
        files.append(name, lines(0, 1), postfix=HOUR_5)
    cursors = registrar.tick(spec, {}).cursors
    for name in names:
        files.append(name, lines(1, 1), postfix=HOUR_6)
    files.failing[bad] = error
    report = registrar.tick(spec, cursors)
    assert [u.journal for u in report.updates] == [n for n in names if n != bad]
    assert [str(error) in text for text in report.errors] == [True]
    assert report.cursors[bad] == cursors[bad]
    point, seen = SweepPoint(), []
    while point is not None:
        seen.append(point.journal)
        point = registrar.tick(spec, report.cursors, sweep=point).swept
        assert len(seen) < 9
    assert len(seen) == 3
    files.failing.clear()
    report = registrar.tick(spec, report.cursors)
    assert [u.journal for u in report.updates] == [bad]
    assert report.errors == []


def test_journals_that_no_broker_serves_keep_no_table_from_being_made(tmp_path, metastore, spec):
    files = Unlisted(tmp_path / "fragments")
    registrar = Registrar(files, metastore, StoreRoots(files.roots))
    for part in range(3):
        files.append(f"events/part={part}", lines(0, 2), postfix=HOUR_5)
    for name in ("events/part=0", "events/part=2"):
        files.failing[name] = status_error("INSUFFICIENT_JOURNAL_BROKERS", journal=name)
    report = registrar.tick(spec, {}, sweep=SweepPoint())
    assert [u.values[0] for u in report.updates] == ["1"]
    told = [text.partition(":")[0] for text in dict.fromkeys(report.errors)]
    assert told == ["events/part=0", "events/part=2"]
    assert (report.has_more, report.swept) == (False, SweepPoint("events/part=1", 0))
    files.failing.clear()
    report = registrar.tick(spec, report.cursors)
    assert ([u.values[0] for u in report.updates], report.errors) == (["0", "2"], [])


def test_a_hole_that_cannot_be_looked_for_stays_awaited(tmp_path, metastore, spec):
    files = Unlisted(tmp_path / "fragments")
    registrar = Registrar(files, metastore, StoreRoots(files.roots))
    files.append("events/part=0", lines(0, 1), postfix=HOUR_5, mod_time=young())
    files.append("events/part=0", lines(3, 1), postfix=HOUR_6, begin=27, mod_time=young())
    cursors = registrar.tick(spec, {}).cursors
    assert cursors["events/part=0"].holes == ((9, 27),)
    files.failing["events/part=0"] = TransportError("cut")
    assert registrar.tick(spec, cursors).cursors == cursors


def test_a_spanning_fragment_that_could_not_be_read_is_tried_again(registrar, files, spec):
    small = files.append("events/part=0", lines(0, 1), postfix=HOUR_5)
    cursors = registrar.tick(spec, {}).cursors
    files.forget(small)
    large = files.append("events/part=0", lines(0, 3), postfix=HOUR_6, begin=0)
    path = files.root / large.content_path
    path.rename(path.with_name(".away"))
    for _ in range(3):
        report = registrar.tick(spec, cursors)
        assert report.updates == []
        assert len(report.errors) == 1
        cursors = report.cursors
    path.with_name(".away").rename(path)
    assert registrar.tick(spec, cursors).cursors["events/part=0"].offset == large.end


def test_fragment_across_an_unlisted_span_is_found(registrar, files, spec):
    """Whoever begins at an offset, such as a flush, does not know which fragment ended there."""
    files.append("events/part=0", lines(0, 1), postfix=HOUR_5)
    registrar.tick(spec, {})
    files.append("events/part=0", lines(0, 3), postfix=HOUR_6, begin=0)
    files.forget(files.fragments("events/part=0", 0, 1)[0])
    files.append("events/part=0", lines(3, 1), postfix=HOUR_6)  # old, so that a gap is given up
    report = registrar.tick(spec, {"events/part=0": JournalCursor(9)})
    assert sum(u.fragments_added for u in report.updates) == 2
    assert report.cursors["events/part=0"] == JournalCursor(36, 27, (), 1, 41)


@pytest.mark.parametrize("backlogs", [1, 6])
@pytest.mark.parametrize(
    "limits",
    [
        Limits(content_bytes_max=400),
        Limits(fragments_max=4),
        Limits(partitions_max=2),
    ],
)
def test_backlogs_that_take_all_of_every_tick_starve_no_other_journal(
    files, metastore, spec, backlogs, limits
):
    """They have a hundred fragments each, and every other journal one."""
    names = [f"events/part={n:03}" for n in range(2 * backlogs + 1)]
    large = names[::2][:backlogs]
    for name in names:
        for n in range(100 if name in large else 1):
            files.append(name, lines(0, 9), postfix=f"date=2026-01-02/hour={n % 24}")
    clock = ManualClock()
    registrar = Registrar(files, metastore, StoreRoots(files.roots), limits, clock)
    cursors, done = {}, set()
    for _ in range(30 * backlogs):
        report = registrar.tick(spec, cursors)
        cursors = report.cursors
        done |= {u.journal for u in report.updates}
        if done == set(names):
            break
        clock.advance(7.0)
    assert done == set(names)
    assert any(cursors[name].offset < 100 * 81 for name in large)  # while they have more


@pytest.mark.parametrize("is_known", [True, False])
def test_a_hole_before_all_that_is_left_of_a_journal_is_given_up(files, metastore, spec, is_known):
    """Where content is kept for an hour, nothing ever gets as old as holes are awaited."""
    clock = ManualClock()
    registrar = Registrar(files, metastore, StoreRoots(files.roots), clock=clock)
    made = []
    if is_known:
        files.append("events/part=0", lines(0, 1), postfix=HOUR_5, mod_time=int(clock.unix_s()))
        made += files.fragments("events/part=0", 0, 9)
    begin, cursors = 90, {}
    for n in range(12):
        made.append(
            files.append(
                "events/part=0",
                lines(n % 10, 1),
                postfix=HOUR_6,
                begin=begin + 9 * n,
                mod_time=int(clock.unix_s()),
            )
        )
        cursors = registrar.tick(spec, cursors).cursors
        if n == 2:
            assert cursors["events/part=0"].hole_bytes == (81 if is_known else 90)
        clock.advance(1200)
        if n > 3:
            files.forget(made.pop(0))
    assert cursors["events/part=0"].holes == ()


def test_a_backlog_over_many_hours_is_taken_in_order(files, metastore, spec):
    """What a tick has no time for is behind the cursor, not in dozens of holes before it."""
    for hour in range(12):
        for n in range(4):
            files.append("events/part=0", lines(n, 1), postfix=f"date=2026-01-02/hour={hour}")
    limits = Limits(content_bytes_max=5 * 9)
    registrar = Registrar(files, metastore, StoreRoots(files.roots), limits)
    cursors = {}
    for tick in range(1, 10):
        cursors = registrar.tick(spec, cursors).cursors
        assert cursors["events/part=0"].offset == tick * 5 * 9
        assert cursors["events/part=0"].holes == ()
