"""Files that a person sets aside: no engine reads them, nothing counts them, brokers serve them, and they come back."""

import json
from dataclasses import replace

import pytest
from lake_bench import FragmentFiles, MemoryMetastore

from gazette_platform.errors import LakeError, StoreUnavailable, ValidationError
from gazette_platform.lake import (
    Auditor,
    Registrar,
    Shrinker,
    StoreRoots,
    SweepPoint,
    parse_table_spec,
)
from gazette_platform.lake.raw.audits.registration_status import overdue, table_standing
from gazette_platform.lake.raw.partition_state import PartitionState
from gazette_platform.lake.raw.set_aside import SetAside
from gazette_platform.lake.reading.fragment_source import all_fragments
from gazette_platform.lake.reading.storage import StoreFiles
from gazette_platform.ops.clock import SystemClock

SPEC = """
name: s.events
selector: name:prefix=events/
format: json
columns: [{name: id, type: bigint}]
partitions: [{name: hour, type: int}]
"""
JOURNAL = "events/part=a"
LINE = b'{"id":1}\n'


class Lake:
    """A journal of lines of 9 bytes."""

    def __init__(self, tmp_path, spec=SPEC, postfix="hour=05"):
        self.files = FragmentFiles(tmp_path / "fragments")
        self.metastore = MemoryMetastore()
        self.roots = StoreRoots(self.files.roots)
        self.registrar = Registrar(self.files, self.metastore, self.roots)
        self.aside_files = SetAside(self.files, self.roots, SystemClock())
        self.spec = parse_table_spec(spec)
        self.cursors = {}
        self.postfix = postfix

    def append(self, content=LINE, **options):
        options.setdefault("postfix", self.postfix)
        return self.files.append(JOURNAL, content, **options)

    def register(self, **options):
        report = self.registrar.tick(self.spec, self.cursors, **options)
        self.cursors = report.cursors
        return report

    def resweep(self):
        """A tick that looks at all old fragments again."""
        return self.register(sweep=SweepPoint())

    def set_aside(self, fragment, why="because"):
        with self.metastore.connect() as session:
            return self.aside_files.set_aside(session, self.spec, fragment, why)

    def restore(self, fragment):
        with self.metastore.connect() as session:
            return self.aside_files.restore(session, self.spec, fragment)

    def listed(self):
        self.files.relist(JOURNAL)
        return list(all_fragments(self.files, JOURNAL))

    def findings(self):
        with self.metastore.connect() as session:
            table = session.table("s", "events")
            auditor = Auditor(self.files, self.roots)
            return list(auditor.audit(session, table, JOURNAL).findings)

    def partition(self, hour=5):
        with self.metastore.connect() as session:
            table = session.table("s", "events")
            found = [p for p in session.partitions(table) if p.values[-1] == str(hour)]
            return found[0] if found else None

    def state(self, hour=5):
        return PartitionState.from_parameters(self.partition(hour).parameters)

    def path(self, fragment):
        return self.files.root / fragment.content_path

    def aside(self, fragment):
        path = fragment.content_path.removeprefix(JOURNAL)
        return self.files.root / f"{JOURNAL}/_aside{path}"


@pytest.fixture
def lake(tmp_path):
    return Lake(tmp_path)


def test_a_file_leaves_its_table_and_comes_back(lake):
    first, bad, last = (lake.append() for _ in range(3))
    lake.register()
    assert lake.state().rows == 3
    done = lake.set_aside(bad, "see ticket 17")
    assert (done.rows, done.key, done.path) == (1, "part=a/hour=5", bad.content_path)
    assert not lake.path(bad).exists()
    assert lake.aside(bad).is_file()
    state = lake.state()
    assert (state.rows, state.fragments, state.content_bytes) == (2, 2, 18)
    assert (state.ranges, state.aside) == (((0, 9), (18, 27)), ((9, 18),))

    for is_listed_anew in (False, True):
        if is_listed_anew:
            lake.files.relist(JOURNAL)
        report = lake.resweep()
        assert (report.errors, report.updates) == ([], [])
        assert [account.state for account in report.accounts] == [state]
        found = lake.findings()
        assert [(f.kind, f.begin, f.end, f.is_error) for f in found] == [("gap", 9, 18, False)]
        assert "are aside: a person took file" in found[0].text
        with lake.metastore.connect() as session:
            standing = table_standing(
                lake.spec, lake.files.journals(lake.spec.label_selector), {}, session, NOW
            )
        assert [journal.holes for journal in standing.journals] == [()]
        assert overdue(lake.files, standing, 10_000, from_begin=True) == []

    (listed,) = lake.aside_files.files_aside(lake.spec)
    assert (listed.why, listed.rows, listed.fragment.begin) == ("see ticket 17", 1, 9)
    assert lake.set_aside(listed.fragment).why == "see ticket 17"
    back = lake.restore(listed.fragment)
    assert back.path == bad.content_path
    assert lake.path(bad).is_file()
    assert list((lake.files.root / JOURNAL / "_aside").rglob("*.gz*")) == []
    lake.files.relist(JOURNAL)
    assert lake.resweep().errors == []
    assert (lake.state().rows, lake.state().ranges, lake.state().aside) == (3, ((0, 27),), ())
    assert lake.findings() == []
    assert lake.restore(first).fragment == first
    assert last.end == 27


NOW = SystemClock().now()


def test_rows_are_known_again_without_a_damaged_file(lake):
    lake.append()
    bad = lake.append()
    lake.path(bad).write_bytes(b"no gzip")
    lake.register()
    assert lake.state().rows is None
    assert lake.set_aside(bad).rows is None
    assert (lake.state().rows, lake.state().fragments) == (1, 1)


def test_what_a_repair_was_killed_at_is_named_on_when_accounts_are_counted_again(lake):
    lake.append()
    bad = lake.append()
    lake.path(bad).write_bytes(b"no gzip")
    lake.register()
    with lake.metastore.connect() as session:
        table, found = session.table("s", "events"), lake.partition()
        begun = replace(lake.state(), moving=("a.gz",))
        session.alter_partitions(table, [replace(found, parameters=begun.within(found.parameters))])
    lake.set_aside(bad)
    assert (lake.state().rows, lake.state().moving) == (1, ("a.gz",))


def test_hive_partition_without_countable_files_is_reported_and_may_be_dropped(lake):
    only = lake.append()
    lake.append(postfix="hour=06")
    lake.register()
    lake.set_aside(only)
    lake.files.relist(JOURNAL)
    (account,) = [a for a in lake.resweep().accounts if a.key.endswith("hour=5")]
    assert (account.state.rows, account.state.ranges) == (0, ())
    journal = lake.files.journals(lake.spec.label_selector)[0]
    shrinker = Shrinker(lake.files, lake.roots)
    with lake.metastore.connect() as session:
        table = session.table("s", "events")
        look = shrinker.look(session, lake.spec, table, journal, lake.cursors[JOURNAL])
        assert [each.key for each in look.emptied] == ["part=a/hour=5"]
        shrinker.drop(session, table, look.emptied)
    report = lake.resweep()
    assert (report.errors, lake.partition(5)) == ([], None)
    (aside,) = lake.aside_files.files_aside(lake.spec)
    lake.restore(aside.fragment)
    lake.files.relist(JOURNAL)
    lake.resweep()
    assert lake.state(5).rows == 1


def test_what_a_prune_leaves_is_counted_again_and_what_is_aside_or_being_moved_stays_known(lake):
    now = int(SystemClock().unix_s())
    first, bad, last, later = (
        lake.append(mod_time=now, postfix=f"hour={hour}") for hour in (5, 5, 5, 6)
    )
    lake.register()
    lake.set_aside(bad)
    lake.listed()
    moving = (f"{JOURNAL}/hour=05/some-file",)
    with lake.metastore.connect() as session:
        table = session.table("s", "events")
        found = lake.partition()
        named = replace(lake.state(), moving=moving).within(found.parameters)
        session.alter_partitions(table, [replace(found, parameters=named)])
        lake.files.prune(first)
        shrinker = Shrinker(lake.files, lake.roots)
        named = shrinker.journal(JOURNAL)
        look = shrinker.look(session, lake.spec, table, named, lake.cursors[JOURNAL])
    assert look.shrunk == 1
    state = lake.state()
    assert (state.rows, state.ranges) == (1, ((last.begin, last.end),))
    assert (state.aside, state.moving) == (((bad.begin, bad.end),), moving)
    assert lake.state(6).ranges == ((later.begin, later.end),)


def test_a_table_that_is_made_again_leaves_out_what_is_aside(lake):
    first = lake.append()
    lake.append()
    lake.register()
    lake.set_aside(first)
    lake.files.relist(JOURNAL)
    with lake.metastore.connect() as session:
        session.drop_table("s", "events")
    lake.cursors = {}
    report = lake.register()
    assert (report.errors, lake.state().rows) == ([], 1)
    assert lake.cursors[JOURNAL].holes == ()
    with lake.metastore.connect() as session:
        assert session.table("s", "events").parameters["gazette.layout"] == "events/{part}/{hour}"


def test_a_table_without_keys(tmp_path):
    spec = "{name: s.events, selector: name=events/log, format: json, columns: [{name: id, type: bigint}]}"
    lake = Lake(tmp_path, spec, postfix="")
    bad, _ = (lake.files.append("events/log", LINE) for _ in range(2))
    lake.register()
    lake.set_aside(bad)
    with lake.metastore.connect() as session:
        table = session.table("s", "events")
        state = PartitionState.from_parameters(table.parameters)
    assert (state.rows, state.aside) == (1, ((0, 9),))
    lake.files.relist("events/log")
    assert lake.resweep().errors == []
    (aside,) = lake.aside_files.files_aside(lake.spec)
    lake.restore(aside.fragment)
    lake.files.relist("events/log")
    lake.resweep()
    with lake.metastore.connect() as session:
        table = session.table("s", "events")
    assert PartitionState.from_parameters(table.parameters).rows == 2


def test_a_move_that_fails_leaves_all_as_it_was(lake, monkeypatch):
    bad = lake.append()
    lake.append()
    lake.register()
    before = lake.state()

    def refuse(*_):
        raise StoreUnavailable("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(StoreFiles, "move", refuse)
        with pytest.raises(StoreUnavailable, match="is away"):
            lake.set_aside(bad)
    assert lake.state() == before
    assert lake.path(bad).is_file()
    lake.set_aside(bad)
    assert lake.state().rows == 1


def test_what_others_write_to_the_accounts_meanwhile_is_kept(lake, monkeypatch):
    bad = lake.append()
    lake.append()
    lake.register()
    counted = lake.aside_files._without
    calls = []

    def late(*args):
        change = counted(*args)
        if not calls:
            lake.append()
            lake.register()
        calls.append(args)
        return change

    monkeypatch.setattr(lake.aside_files, "_without", late)
    lake.set_aside(bad)
    assert (len(calls), lake.state().rows) == (2, 2)
    assert lake.state().ranges == ((9, 27),)


def test_accounts_hold_only_so_many(lake):
    fragments = [lake.append() for _ in range(26)]
    lake.register()
    for fragment in fragments[:24]:
        lake.set_aside(fragment)
    with pytest.raises(LakeError, match="24 files of this Hive partition are aside"):
        lake.set_aside(fragments[24])
    assert lake.path(fragments[24]).is_file()
    parameters = lake.partition().parameters
    assert max(map(len, parameters.values())) < 4000


def test_nothing_is_overwritten_when_it_comes_back(lake):
    bad = lake.append()
    lake.append()
    lake.register()
    lake.set_aside(bad)
    aside = lake.listed()[0]
    lake.path(bad).write_bytes(b"another")
    with pytest.raises(LakeError, match="exists again: compare it with"):
        lake.restore(aside)
    assert lake.path(bad).read_bytes() == b"another"


def test_files_are_found_by_name_or_by_what_engines_call_them(lake):
    fragment = lake.append()
    lake.append()
    name = fragment.content_name
    for given in (name, f"file:///x/{fragment.content_path}", fragment.content_path):
        assert lake.aside_files.named(lake.spec, given) == fragment
    with pytest.raises(ValidationError, match="is not the name of a fragment's file"):
        lake.aside_files.named(lake.spec, "readme.txt")
    with pytest.raises(
        ValidationError, match=r"brokers list no file .* in the journals of s\.events"
    ):
        lake.aside_files.named(lake.spec, f"elsewhere/{name}")
    lake.files.append("events/part=b", LINE, postfix="hour=05")
    with pytest.raises(ValidationError, match=r"a fragment of events/part=a and of events/part=b"):
        lake.aside_files.named(lake.spec, name)


def test_a_note_that_cannot_be_read_is_reported_in_place_of_the_reason(lake):
    bad = lake.append()
    lake.append()
    lake.register()
    lake.set_aside(bad)
    lake.files.relist(JOURNAL)
    note = lake.aside(bad).with_name(f".{bad.content_name}.json")
    assert json.loads(note.read_text())["why"] == "because"
    note.write_text("[")
    (aside,) = lake.aside_files.files_aside(lake.spec)
    assert "cannot be read" in aside.why
    note.unlink()
    (aside,) = lake.aside_files.files_aside(lake.spec)
    assert (aside.why, replace(aside.fragment, path_postfix="hour=05")) == (
        "not known: there is no note beside it",
        bad,
    )
