"""One look at Hive partitions where brokers list less than accounts hold."""

from dataclasses import replace

from lake_bench import FragmentFiles, MemoryMetastore
from lake_world import SPEC

from gazette_platform.lake import Registrar, Shrinker, StoreRoots, parse_table_spec
from gazette_platform.lake.raw.account_book import AccountBook, adopt_journals
from gazette_platform.lake.raw.partition_state import PartitionState
from gazette_platform.lake.raw.reconcile import is_emptied
from gazette_platform.lake.raw.shrinking import ShrinkLimits
from gazette_platform.ops.clock import SystemClock
from gazette_platform.protocol import created_by

JOURNAL = "a/part=0"


def look(files, metastore, spec, journal, *, limits=None, **options):
    shrinker = Shrinker(files, StoreRoots(files.roots), limits)
    registrar = Registrar(files, metastore, StoreRoots(files.roots))
    cursor = registrar.tick(spec, {}).cursors[journal]
    with metastore.connect() as session:
        table = session.table(spec.schema, spec.table)
        named = shrinker.journal(journal)
        return shrinker.look(session, spec, table, named, cursor, **options)


def test_a_table_without_partition_columns_shrinks(tmp_path):
    spec = parse_table_spec(
        "{name: s.b, selector: 'name:prefix=whole', format: json, columns: [{name: id, type: bigint}]}"
    )
    files, metastore = FragmentFiles(tmp_path), MemoryMetastore()
    now = int(SystemClock().unix_s())
    made = [files.append("whole", b'{"id":1}\n' * n, mod_time=now) for n in (1, 2, 3)]
    assert look(files, metastore, spec, "whole").shrunk == 0
    files.prune(made[0])
    found = look(files, metastore, spec, "whole")
    assert (found.shrunk, found.accounts[0].state.rows) == (1, 5)
    with metastore.connect() as session:
        parameters = session.table("s", "b").parameters
    assert (parameters["numRows"], parameters["numFiles"]) == ("5", "2")


def test_a_look_ends_where_it_has_no_room_and_the_next_goes_on(tmp_path):
    files, metastore = FragmentFiles(tmp_path), MemoryMetastore()
    now = int(SystemClock().unix_s())
    made = [
        files.append(JOURNAL, b'{"id":1}\n' * 2, postfix=f"hour={n // 2:02}", mod_time=now)
        for n in range(20)
    ]
    look(files, metastore, SPEC, JOURNAL)
    for fragment in made[:10]:
        files.prune(fragment)
    limits = ShrinkLimits(partitions_max=3)
    found = look(files, metastore, SPEC, JOURNAL, limits=limits)
    assert (found.shrunk, found.following) == (3, "part=0/hour=02")
    found = look(files, metastore, SPEC, JOURNAL, limits=limits, after=found.following)
    assert (found.shrunk, found.following) == (2, "part=0/hour=05")
    assert [a.key for a in found.emptied] == ["part=0/hour=03", "part=0/hour=04"]


def test_what_is_left_is_counted_within_a_budget(tmp_path):
    files, metastore = FragmentFiles(tmp_path), MemoryMetastore()
    now = int(SystemClock().unix_s())
    made = [
        files.append(JOURNAL, b'{"id":1}\n' * 2, postfix=f"hour={n // 2:02}", mod_time=now)
        for n in range(8)
    ]
    look(files, metastore, SPEC, JOURNAL)
    for fragment in made[:6:2]:
        files.prune(fragment)
    limits = ShrinkLimits(content_bytes_max=20)
    shrunk = []
    for _ in range(4):
        found = look(files, metastore, SPEC, JOURNAL, limits=limits)
        shrunk.append((found.shrunk, found.is_complete))
    assert shrunk == [(1, False), (1, False), (1, True), (0, True)]


def test_prune_keeps_the_former_identities_of_a_journal(tmp_path):
    """Rollups know its bytes by them, and would make all their slices again."""
    files, metastore = FragmentFiles(tmp_path), MemoryMetastore()
    now = int(SystemClock().unix_s())
    first, *_ = [
        files.append(JOURNAL, b'{"id":1}\n', postfix="hour=5", mod_time=now) for _ in range(3)
    ]
    files._created[JOURNAL] = created_by(43, 1)
    look(files, metastore, SPEC, JOURNAL)
    files._created[JOURNAL] = created_by(43, 2)
    with metastore.connect() as session:
        book = AccountBook(session, session.table("s", "a"))
        assert adopt_journals(book, files.created(SPEC.label_selector)) == 1
    files.prune(first)
    (left,) = look(files, metastore, SPEC, JOURNAL).accounts
    assert left.state.fragments == 2
    assert left.state.created == created_by(43, 2)
    assert left.state.formerly == (created_by(43, 1),)


def test_only_what_an_earlier_tick_registered_and_accounts_hold_proves_a_store(tmp_path):
    files, metastore = FragmentFiles(tmp_path), MemoryMetastore()
    now = int(SystemClock().unix_s())
    roots = StoreRoots(files.roots)
    registrar, shrinker = Registrar(files, metastore, roots), Shrinker(files, roots)
    first = files.append(JOURNAL, b'{"id":1}\n', postfix="hour=1", mod_time=now)
    earlier = registrar.tick(SPEC, {}).cursors[JOURNAL]
    files.append(JOURNAL, b'{"id":1}\n', postfix="hour=2", mod_time=now)
    later = registrar.tick(SPEC, {}).cursors[JOURNAL]
    files.prune(first)

    def shrunk(cursor):
        with metastore.connect() as session:
            table = session.table("s", "a")
            named = shrinker.journal(JOURNAL)
            found = shrinker.look(session, SPEC, table, named, cursor, is_dry_run=True)
            return found.shrunk

    assert shrunk(earlier) == 0
    assert shrunk(later) == 1
    with metastore.connect() as session:
        session.drop_partition(session.table("s", "a"), ("0", "2"))
    assert shrunk(later) == 0


def test_a_look_whose_time_is_up_passes_nothing_over(tmp_path):
    files, metastore = FragmentFiles(tmp_path), MemoryMetastore()
    now = int(SystemClock().unix_s())
    made = [
        files.append(JOURNAL, b'{"id":1}\n', postfix=f"hour={n // 2}", mod_time=now)
        for n in range(8)
    ]
    look(files, metastore, SPEC, JOURNAL)
    for fragment in made[:6:2]:
        files.prune(fragment)
    after, shrunk = "", []
    while after is not None:
        found = look(files, metastore, SPEC, JOURNAL, after=after, is_over=lambda: True)
        shrunk.append((after[-1:], found.shrunk))
        assert found.is_complete
        after = found.following
    assert shrunk == [("", 1), ("0", 1), ("1", 1), ("2", 0)]


def test_a_person_may_say_that_it_was_pruned(tmp_path):
    files, metastore = FragmentFiles(tmp_path), MemoryMetastore()
    now = int(SystemClock().unix_s())
    made = [files.append(JOURNAL, b'{"id":1}\n', postfix=f"hour={n}", mod_time=now) for n in (1, 2)]
    look(files, metastore, SPEC, JOURNAL)
    for fragment in made:
        files.prune(fragment)
    assert len(look(files, metastore, SPEC, JOURNAL).doubts) == 1
    found = look(files, metastore, SPEC, JOURNAL, is_confirmed=True)
    assert (found.shrunk, found.doubts) == (2, [])
    assert all(is_emptied(a.state) for a in found.emptied)


def test_what_is_left_of_a_large_hive_partition_is_counted_over_several_looks(tmp_path):
    """It may be more than a tick has time for: the promise is that no tick is over 30 s."""
    files, metastore = FragmentFiles(tmp_path), MemoryMetastore()
    now = int(SystemClock().unix_s())
    made = [
        files.append(JOURNAL, b'{"id":1}\n' * 2, postfix="hour=1", mod_time=now) for _ in range(9)
    ]
    look(files, metastore, SPEC, JOURNAL)
    files.prune(made[0])
    limits = ShrinkLimits(content_bytes_max=3 * 18)
    found = [look(files, metastore, SPEC, JOURNAL, limits=limits) for _ in range(4)]
    assert [(each.shrunk, each.is_complete) for each in found] == [
        (0, False),
        (0, False),
        (1, True),
        (0, True),
    ]
    (account,) = found[-1].accounts
    assert (account.state.rows, account.state.fragments) == (16, 8)


def test_a_look_whose_time_is_up_while_it_counts_ends_and_the_next_goes_on(tmp_path):
    files, metastore = FragmentFiles(tmp_path), MemoryMetastore()
    now = int(SystemClock().unix_s())
    made = [files.append(JOURNAL, b'{"id":1}\n', postfix="hour=1", mod_time=now) for _ in range(5)]
    look(files, metastore, SPEC, JOURNAL)
    files.prune(made[0])
    asked = iter(range(1000))
    # Over as soon as one fragment was counted: before that it is asked for the part, and for its change.
    found = [
        look(files, metastore, SPEC, JOURNAL, is_over=lambda: next(asked) % 3 == 2)
        for _ in range(5)
    ]
    shrunk = [each.shrunk for each in found]
    assert shrunk[0] == 0
    assert sum(shrunk) == 1


def test_a_table_of_very_many_fragments_shrinks(tmp_path, monkeypatch):
    spec = parse_table_spec(
        "{name: s.b, selector: 'name:prefix=whole', format: json, columns: [{name: id, type: bigint}]}"
    )
    files, metastore = FragmentFiles(tmp_path), MemoryMetastore()
    monkeypatch.setattr("gazette_platform.lake.raw.shrinking._PAGE", 1)
    now = int(SystemClock().unix_s())
    made = [files.append("whole", b'{"id":1}\n', mod_time=now) for _ in range(50)]
    look(files, metastore, spec, "whole")
    files.prune(made[0])
    assert look(files, metastore, spec, "whole").shrunk == 1
    monkeypatch.setattr("gazette_platform.lake.raw.shrinking._PAGES_OF_ONE_MAX", 30)
    files.prune(made[1])
    found = look(files, metastore, spec, "whole")
    assert found.shrunk == 0
    assert "too many fragments" in found.doubts[0]


def put_state(metastore, hour, state):
    """Have the accounts of a Hive partition say what a repair in an object store says before it moves a file."""
    with metastore.connect() as session:
        table = session.table("s", "a")
        (entry,) = AccountBook(session, table).at([("0", hour)]).values()
        found = replace(entry.partition, parameters=state.within(entry.partition.parameters))
        session.alter_partitions(table, [found])


def test_a_hive_partition_stays_until_the_last_file_is_moved_out_of_it(tmp_path):
    """Else a later fragment would bring its directory back, and queries would read that file, too."""
    files, metastore = FragmentFiles(tmp_path), MemoryMetastore()
    now = int(SystemClock().unix_s())
    twin = files.append(JOURNAL, b'{"id":1}\n', postfix="hour=1", mod_time=now)
    look(files, metastore, SPEC, JOURNAL)
    files.append(JOURNAL, b'{"id":1}\n', postfix="hour=2", begin=0, mod_time=now)
    files.forget(twin)
    look(files, metastore, SPEC, JOURNAL)
    put_state(metastore, "1", PartitionState(journal=JOURNAL, moving=(twin.content_name,)))
    found = look(files, metastore, SPEC, JOURNAL)
    assert (found.emptied, found.shrunk) == ([], 0)
    # The repair went on, and was killed again before it could say so.
    (tmp_path / twin.content_path).unlink()
    found = look(files, metastore, SPEC, JOURNAL)
    assert ([a.key for a in found.emptied], found.shrunk) == (["part=0/hour=1"], 1)


def test_a_prune_of_all_that_is_counted_keeps_in_mind_what_is_being_moved(tmp_path):
    files, metastore = FragmentFiles(tmp_path), MemoryMetastore()
    now = int(SystemClock().unix_s())
    first, twin = (
        files.append(JOURNAL, b'{"id":1}\n', postfix="hour=1", mod_time=now) for _ in range(2)
    )
    look(files, metastore, SPEC, JOURNAL)
    files.append(JOURNAL, b'{"id":1}\n', postfix="hour=2", begin=twin.begin, mod_time=now)
    files.forget(twin)
    look(files, metastore, SPEC, JOURNAL)
    begun = PartitionState(moving=(twin.content_name,))
    held = begun.adding(JOURNAL, first.begin, first.end, rows=1, stored_bytes=None)
    put_state(metastore, "1", held)
    files.prune(first)
    found = look(files, metastore, SPEC, JOURNAL)
    (left,) = [a for a in found.accounts if a.key == "part=0/hour=1"]
    assert (found.emptied, left.state.ranges, left.state.moving) == ([], (), (twin.content_name,))
