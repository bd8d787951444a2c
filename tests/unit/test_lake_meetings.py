"""Writers of accounts that meet: what is counted twice, dropped, taken or frozen between reading and writing."""

from contextlib import contextmanager, suppress

import pytest
from lake_bench import FragmentFiles, MemoryMetastore

from gazette_platform.errors import LakeError
from gazette_platform.hive import MetastoreSession
from gazette_platform.lake import Limits, Registrar, Shrinker, StoreRoots, parse_table_spec
from gazette_platform.lake.raw.partition_state import PartitionState
from gazette_platform.ops.clock import ManualClock, SystemClock

SPEC = (
    "{name: s.a, selector: 'name:prefix=a/', format: json, columns: [%s{name: id, type: bigint}]}"
)
NARROW, WIDE = parse_table_spec(SPEC % ""), parse_table_spec(SPEC % "{name: extra, type: int}, ")
JOURNAL = "a/part=0"
LINE = b'{"id":1}\n'
WRITES = (
    "add_partitions_req",
    "alter_partitions",
    "alter_table_with_environment_context",
    "drop_partitions_req",
)


class Metastore(MemoryMetastore):
    """Calls `met` when the accounts of the table are locked, and freezes the holder of one of the locks."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.clock = ManualClock()
        self.met = lambda: None
        self.locks, self.frozen_at, self.is_frozen = 0, None, False
        self.late_writes = []
        lock, unlock = self.thrift.lock, self.thrift.unlock

        def locking(request):
            met, self.met = self.met, lambda: None
            met()
            answer = lock(request)
            self.locks += 1
            if self.locks == self.frozen_at:
                self.is_frozen = True
                self.clock.advance(31)
            return answer

        def unlocking(request):
            self.is_frozen = False
            return unlock(request)

        def writing(name):
            write = getattr(self.thrift, name)

            def call(*arguments):
                if self.is_frozen:
                    self.late_writes.append(name)
                return write(*arguments)

            return call

        monkeypatch.setattr(self.thrift, "lock", locking, raising=False)
        monkeypatch.setattr(self.thrift, "unlock", unlocking, raising=False)
        for name in WRITES:
            monkeypatch.setattr(self.thrift, name, writing(name), raising=False)

    @contextmanager
    def connect(self):
        yield MetastoreSession(self.thrift, "thrift://m:1", clock=self.clock)

    def states(self):
        with self.connect() as session:
            found = session.partitions(session.table("s", "a"))
        return {"/".join(p.values): PartitionState.from_parameters(p.parameters) for p in found}


@pytest.fixture
def metastore(monkeypatch):
    return Metastore(monkeypatch)


@pytest.fixture
def files(tmp_path):
    return FragmentFiles(tmp_path / "fragments")


@pytest.fixture
def registrar(files, metastore):
    return Registrar(files, metastore, StoreRoots(files.roots))


def append(files, count=1, hour="05", journal=JOURNAL, **options):
    return files.append(journal, LINE * count, postfix=f"hour={hour}", **options)


def test_two_that_have_read_the_same_fragments_count_them_once(files, metastore, registrar):
    append(files)
    cursors = registrar.tick(NARROW, {}).cursors
    append(files, 2)
    metastore.met = lambda: registrar.tick(NARROW, cursors)
    append(files, 3)
    report = registrar.tick(NARROW, cursors)
    state = metastore.states()["0/05"]
    assert (state.rows, state.fragments, state.overlap_bytes) == (6, 3, 0)
    assert report.cursors[JOURNAL].offset == 54
    assert report.updates == []


def test_what_was_dropped_before_it_could_be_written_is_counted_by_the_next_tick(
    files, metastore, registrar
):
    append(files)
    cursors = registrar.tick(NARROW, {}).cursors
    append(files, 2)

    def drop():
        with metastore.connect() as session:
            session.drop_partition(session.table("s", "a"), ("0", "05"))

    metastore.met = drop
    cursors = registrar.tick(NARROW, cursors).cursors
    assert metastore.states() == {}
    assert cursors[JOURNAL].offset == 9
    registrar.tick(NARROW, cursors)
    assert metastore.states()["0/05"].rows == 2


def test_content_beyond_the_room_is_not_a_hole_though_what_follows_would_fit(files, metastore):
    for count in (1, 9, 1):
        append(files, count)
    append(files, 2, journal="a/part=1")
    limits = Limits(content_bytes_max=50)
    registrar = Registrar(files, metastore, StoreRoots(files.roots), limits)
    cursors, offsets = {}, []
    for _ in range(3):
        report = registrar.tick(NARROW, cursors)
        cursors = report.cursors
        assert cursors[JOURNAL].holes == ()
        offsets.append((cursors[JOURNAL].offset, report.has_more))
    assert offsets == [(9, True), (90, True), (99, False)]
    assert metastore.states()["1/05"].rows == 2


def test_a_tick_whose_time_is_up_once_brokers_answered_gets_on_too(files, metastore, registrar):
    for hour in range(120):
        append(files, hour=f"{hour:03}")
    cursors, rows, listed = {}, [], []
    fragments = files.fragments
    files.fragments = lambda *query: listed.append(query) or fragments(*query)
    for _ in range(3):
        listed.clear()
        report = registrar.tick(NARROW, cursors, is_over=lambda: bool(listed))
        cursors = report.cursors
        rows.append(sum(update.rows_added for update in report.updates))
        assert report.has_more
    assert rows == [1, 1, 1]
    assert cursors[JOURNAL].offset == 27


def pruned(files, metastore, registrar):
    """A journal whose first hour was pruned. Returns: a function that looks at it, or drops."""
    now = int(SystemClock().unix_s())
    made = [append(files, hour=hour, mod_time=now) for hour in ("05", "05", "06", "07")]
    cursor = registrar.tick(NARROW, {}).cursors[JOURNAL]
    shrinker = Shrinker(files, StoreRoots(files.roots))
    for fragment in made[:2]:
        files.prune(fragment)

    def step(accounts=None):
        with metastore.connect() as session:
            table = session.table("s", "a")
            if accounts is not None:
                return shrinker.drop(session, table, accounts)
            return shrinker.look(session, NARROW, table, shrinker.journal(JOURNAL), cursor)

    return step


def test_accounts_that_have_changed_since_they_were_judged_are_left_alone(
    files, metastore, registrar
):
    step = pruned(files, metastore, registrar)
    append(files, 3)
    metastore.met = lambda: registrar.tick(NARROW, {})
    assert step().shrunk == 0
    assert metastore.states()["0/05"].rows == 5
    assert step().shrunk == 1
    assert metastore.states()["0/05"].rows == 3


def test_a_hive_partition_that_was_filled_before_it_could_be_dropped_stays(
    files, metastore, registrar
):
    step = pruned(files, metastore, registrar)
    emptied = step().emptied
    assert [account.key for account in emptied] == ["part=0/hour=05"]
    append(files, 3)
    metastore.met = lambda: registrar.tick(NARROW, {})
    assert step(emptied) == []
    assert metastore.states()["0/05"].rows == 3


def evolve(files, metastore, registrar):
    append(files)
    registrar.tick(NARROW, {})
    yield
    registrar.tick(WIDE, {})


def register(files, metastore, registrar):
    append(files)
    cursors = registrar.tick(NARROW, {}).cursors
    append(files, 2)
    yield
    registrar.tick(NARROW, cursors)


def shrink(files, metastore, registrar):
    step = pruned(files, metastore, registrar)
    yield
    step()


def drop(files, metastore, registrar):
    step = pruned(files, metastore, registrar)
    emptied = step().emptied
    yield
    step(emptied)


@pytest.mark.parametrize(("write", "held_up"), [(register, 1), (evolve, 3), (shrink, 1), (drop, 1)])
def test_who_was_frozen_under_the_lock_writes_nothing(tmp_path, monkeypatch, write, held_up):
    """Another one may have the lock by then. `held_up` of the locks are for writing."""
    found = 0
    for at in range(1, 9):
        files, metastore = FragmentFiles(tmp_path / str(at)), Metastore(monkeypatch)
        steps = write(files, metastore, Registrar(files, metastore, StoreRoots(files.roots)))
        next(steps)
        metastore.frozen_at = metastore.locks + at
        before = metastore.locks
        with suppress(StopIteration):
            try:
                next(steps)
            except LakeError as err:
                found += "was held up while it changed the accounts" in str(err)
        assert metastore.late_writes == []
        if metastore.locks - before < at:
            break
    assert found == held_up
