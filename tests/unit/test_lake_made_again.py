"""Journals that were deleted and made again from offset 0: never mixed with what they held before."""

import pytest
from lake_bench import FragmentFiles, MemoryMetastore

from gazette_platform.lake import (
    Registrar,
    RegistrationCursor,
    Shrinker,
    StoreRoots,
    SweepPoint,
    parse_table_spec,
)
from gazette_platform.lake.raw.account_book import AccountBook, adopt_journals
from gazette_platform.lake.raw.audits.registration_status import table_standing
from gazette_platform.lake.raw.partition_state import PartitionState
from gazette_platform.lake.raw.repair import catch_up
from gazette_platform.ops.clock import SystemClock
from gazette_platform.protocol import created_by

SPEC = """
name: s.events
selector: name:prefix=events/
format: json
columns: [{name: id, type: bigint}]
"""
HOURS = SPEC + "partitions: [{name: hour, type: int}]\n"
JOURNAL = "events/part=0"


class Lake:
    """A journal of lines of 9 bytes."""

    def __init__(self, tmp_path):
        self.files = FragmentFiles(tmp_path / "fragments")
        self.metastore = MemoryMetastore()
        self.roots = StoreRoots(self.files.roots)
        self.registrar = Registrar(self.files, self.metastore, self.roots)
        self.spec = parse_table_spec(HOURS)
        self.cursors = {}
        self.sweep = SweepPoint()

    def append(self, count, hour="hour=05", journal=JOURNAL):
        return self.files.append(journal, b'{"id":1}\n' * count, postfix=hour)

    def tick(self):
        report = self.registrar.tick(self.spec, self.cursors, sweep=self.sweep)
        self.cursors = report.cursors
        return report

    def make_again(self, *, keeps_files=False, journal=JOURNAL):
        fragments = self.files.fragments(journal, 0, 100)
        if not keeps_files:
            for fragment in fragments:
                self.files.delete_file(fragment)
        self.files.remove(journal)
        self.files.create(journal)

    def rows(self):
        with self.metastore.connect() as session:
            table = session.table("s", "events")
            found = session.partitions(table) if table.partition_columns else [table]
            states = [PartitionState.from_parameters(p.parameters) for p in found]
        return {s.ranges: s.rows for s in states if s.ranges}

    def forget(self):
        """As `gazctl lake repair --pruned` does."""
        shrinker = Shrinker(self.files, self.roots)
        with self.metastore.connect() as session:
            table = session.table("s", "events")
            look = shrinker.look(
                session,
                self.spec,
                table,
                shrinker.journal(JOURNAL),
                self.cursors[JOURNAL],
                is_confirmed=True,
            )
            shrinker.drop(session, table, look.emptied)


@pytest.fixture
def lake(tmp_path):
    return Lake(tmp_path)


@pytest.mark.parametrize("hour", ["hour=05", "hour=09"])
def test_it_is_reported_until_its_former_files_are_forgotten_and_then_registered(lake, hour):
    lake.append(50)
    lake.append(50, "hour=06")
    lake.append(7, journal="events/part=1")
    lake.tick()
    before = lake.rows()
    lake.make_again()
    lake.append(20, hour)
    lake.append(5, journal="events/part=1")
    for _ in range(3):
        report = lake.tick()
        (error,) = report.errors
        assert (
            f"{JOURNAL} was deleted and made again, and its Hive partitions hold the former one up to"
            in error
        )
        assert "`gazctl lake repair --pruned s.events` may forget them" in error
        assert report.cursors[JOURNAL].offset == 900
    # Nothing of it was mixed in, and the others went on.
    assert lake.rows() == {**{r: n for r, n in before.items() if r != ((0, 63),)}, ((0, 108),): 12}
    lake.forget()
    report = lake.tick()
    assert report.errors == []
    assert report.cursors[JOURNAL].offset == 180
    assert lake.rows() == {((0, 180),): 20, ((0, 108),): 12}
    lake.append(3, "hour=10")
    assert [u.rows_added for u in lake.tick().updates] == [3]


@pytest.mark.parametrize("keeps_cursor", [True, False])
@pytest.mark.parametrize("hour", ["hour=05", "hour=09"])
def test_it_is_reported_however_long_it_is(lake, hour, keeps_cursor):
    """When it has passed the cursor, its first bytes would be lost, and one offset would stand for two bytes."""
    lake.append(50)
    lake.tick()
    before = lake.rows()
    lake.make_again()
    lake.append(20, hour)
    lake.tick()
    lake.append(90, hour)
    for _ in range(3):
        if not keeps_cursor:
            lake.cursors = {}
        (error,) = lake.tick().errors
        assert (
            f"{JOURNAL} was deleted and made again, and its Hive partitions hold the former one up to 450"
            in error
        )
    assert lake.rows() == before
    with lake.metastore.connect() as session:
        table = session.table("s", "events")
        session.drop_partitions(table, ["part=0/hour=5"])
    assert lake.tick().errors == []
    assert lake.rows() == {((0, 990),): 110}


@pytest.mark.parametrize("spec", [HOURS, SPEC])
@pytest.mark.parametrize("keeps_cursor", [True, False])
@pytest.mark.parametrize("revision", [43, 143])
def test_it_goes_on_if_a_person_says_that_it_holds_what_it_held(lake, spec, keeps_cursor, revision):
    """Etcd was set up again from a listing: fragments are those that were registered."""
    lake.spec = parse_table_spec(spec)
    lake.append(50, "hour=05" if spec == HOURS else "")
    lake.files._created[JOURNAL] = created_by(43, 1)
    lake.tick()
    before = lake.rows()
    lake.files._created[JOURNAL] = created_by(revision, 2)
    lake.append(20, "hour=05" if spec == HOURS else "")
    if not keeps_cursor:
        lake.cursors = {}
    (error,) = lake.tick().errors
    assert "if it holds what it held, `gazctl lake repair --same s.events` keeps them" in error
    created = lake.files.created(lake.spec.label_selector)
    with lake.metastore.connect() as session:
        table = session.table("s", "events")
        assert adopt_journals(AccountBook(session, table), created, is_dry_run=True) == 1
        assert lake.rows() == before
        assert adopt_journals(AccountBook(session, table), created) == 1
        assert adopt_journals(AccountBook(session, session.table("s", "events")), created) == 0
    assert lake.tick().errors == []
    assert lake.rows() == {((0, 630),): 70}


def test_cursor_and_accounts_without_a_journal_learn_which_it_is(lake):
    lake.files.created = lambda selector: {JOURNAL: 0}
    lake.append(50)
    lake.tick()
    assert lake.cursors[JOURNAL].created == 0
    del lake.files.created
    lake.append(50)
    assert lake.tick().errors == []
    assert lake.cursors[JOURNAL].created
    assert lake.rows() == {((0, 900),): 100}
    raw = RegistrationCursor({"s.events": lake.cursors}).to_json()
    assert RegistrationCursor.from_json(raw).tables == {"s.events": lake.cursors}


@pytest.mark.parametrize("keeps_cursor", [True, False])
def test_accounts_learn_the_history_of_etcd(lake, keeps_cursor):
    known = created_by(43, 1)
    for created in (43, known, 43):  # a broker of Gazette does not send it
        lake.files._created[JOURNAL] = created
        lake.append(50)
        assert lake.tick().errors == []
        if not keeps_cursor:
            lake.cursors = {}
    assert lake.rows() == {((0, 1350),): 150}
    lake.files._created[JOURNAL] = created_by(43, 2)
    (error,) = lake.tick().errors
    assert "was deleted and made again" in error


def test_cursor_keeps_its_journal_though_a_broker_does_not_say_which_it_is(lake):
    """Brokers of two releases answer in turns, and accounts are of a former one."""

    def unsaid(_):
        return {JOURNAL: 0}

    lake.files.created = unsaid
    lake.append(50)
    lake.tick()
    del lake.files.created
    lake.tick()
    lake.files.created = unsaid
    lake.tick()
    del lake.files.created
    before = lake.rows()
    lake.make_again()
    lake.append(90, "hour=09")
    (error,) = lake.tick().errors
    assert "was deleted and made again" in error
    assert lake.rows() == before


def test_it_is_reported_while_its_former_files_are_still_there(lake):
    lake.append(50)
    lake.tick()
    lake.make_again(keeps_files=True)
    lake.append(20, "hour=09")
    lake.forget()
    (error,) = lake.tick().errors
    assert "drop these Hive partitions (which deletes no file" in error
    with lake.metastore.connect() as session:
        table = session.table("s", "events")
        session.drop_partitions(table, ["part=0/hour=5"])
    assert lake.tick().errors == []
    assert lake.rows() == {((0, 180),): 20}


def test_a_table_without_hive_partitions(lake):
    lake.spec = parse_table_spec(SPEC.replace("name:prefix=events/", "name=events/one"))
    lake.append(50, "", journal="events/one")
    lake.tick()
    lake.make_again(journal="events/one")
    lake.append(20, "", journal="events/one")
    report = lake.tick()
    assert "was deleted and made again" in report.errors[0]
    assert report.updates == []


def test_a_journal_whose_last_fragment_became_part_of_a_larger_one_is_not_one(lake):
    lake.append(50)
    last = lake.append(10)
    lake.tick()
    lake.files.forget(last)
    first = lake.files.fragments(JOURNAL, 0, 1)[0]
    lake.files.forget(first)
    lake.files.append(JOURNAL, b'{"id":1}\n' * 60, postfix="hour=06", begin=0)
    assert lake.tick().errors == []


def test_a_flush_says_so_too(lake):
    lake.append(50)
    lake.tick()
    lake.make_again()
    lake.append(20)
    journals = lake.files.journals(lake.spec.label_selector)
    clock = SystemClock()
    with lake.metastore.connect() as session:
        standing = table_standing(lake.spec, journals, {JOURNAL: 180}, session, clock.now())
    begins = {each.journal: each.cursor for each in standing.journals}
    done = catch_up(
        lake.registrar,
        lake.spec,
        begins,
        {JOURNAL: 180},
        deadline=clock.monotonic() + 60,
        clock=clock,
    )
    assert "was deleted and made again" in " ".join(done.told)
