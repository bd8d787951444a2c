"""State in SQLite, from a recovery log that is cut wherever it may be."""

import asyncio
import itertools
import random
import subprocess
import sys

import apsw
import pytest
from hypothesis import given, settings, strategies as st

from gazette_platform.consumer.protocol import Checkpoint
from gazette_platform.consumer.store import sqlite, sqlite_tape
from gazette_platform.consumer.store.sqlite import SQLiteStore
from gazette_platform.consumer.store.sqlite_tape import RecordedFile
from gazette_platform.errors import ApplicationFailed, DataError, StoreError
from gazette_platform.message.sequencer import SequencerCheckpoint
from gazette_platform.testing.waiting import turns
from tests.benches.kept_log import KeptRecorder

SCHEMA = "CREATE TABLE IF NOT EXISTS counts (word TEXT PRIMARY KEY, n INT NOT NULL) WITHOUT ROWID"
COUNT = "INSERT INTO counts VALUES (?, 1) ON CONFLICT DO UPDATE SET n = n + 1"


def at(offset):
    return Checkpoint(SequencerCheckpoint(offsets={"a/journal": offset}))


def rows(store):
    return list(store.db.execute("SELECT * FROM counts ORDER BY word"))


async def begun(recorder, **options):
    store = SQLiteStore(recorder, schema=SCHEMA, **options)
    return store, await store.restore_checkpoint()


@pytest.fixture
def small(monkeypatch):
    """Stores that checkpoint and renew their database all the time."""
    monkeypatch.setattr(sqlite, "_WAL_BYTES_MIN", 60_000)
    monkeypatch.setattr(sqlite, "_WAL_BYTES_MAX", 60_000)
    monkeypatch.setattr(sqlite, "_COPIED_BYTES_MIN", 9_000)
    monkeypatch.setattr(sqlite, "_COPIED_PER_BYTE", 0)
    monkeypatch.setattr(sqlite_tape, "BUFFER_BYTES_MAX", 9_000)


async def check_cuts(recorder, tmp_path, committed, every=1):
    """Restore from each cut of the log, compare its state, and go on.

    Args:
        committed: of each commit how many operations there were after it, and its rows.
    """
    bounds = [each[0] for each in committed]
    for cut in range(0, len(recorder.operations) + 1, every):
        other = recorder.cut(tmp_path / "cut", cut)
        store, checkpoint = await begun(other)
        assert [row[0] for row in store.db.execute("PRAGMA integrity_check")] == ["ok"]
        # What is recorded after the COMMIT itself makes no difference to the state.
        done = sum(bound <= cut for bound in bounds)
        offset = checkpoint.read_through.get("a/journal", 0)
        assert offset in (done, min(done + 1, len(committed)))
        assert rows(store) == (committed[offset - 1][1] if offset else [])
        store.db.execute(COUNT, ("more",))
        await store.start_commit(at(1000), ())
        expected = rows(store)
        await store.destroy()
        last = other.cut(tmp_path / "last", len(other.operations))
        store, checkpoint = await begun(last)
        assert (checkpoint, rows(store)) == (at(1000), expected)
        await store.destroy()


async def test_cl1_a_log_that_is_cut_anywhere_has_the_state_of_the_last_commit(tmp_path, small):
    dice = random.Random(7)
    (tmp_path / "one").mkdir()
    recorder = KeptRecorder(tmp_path / "one")
    store, checkpoint = await begun(recorder, span_bytes_min=0)
    assert checkpoint == Checkpoint()
    committed, renewed, wals = [], 0, 0
    for number in range(1, 25):
        if number % 8 == 0:
            store.db.execute("DELETE FROM counts WHERE n < 3")  # it gets shorter, too
        words = [(f"word {dice.randrange(500)} {'x' * 40}",) for _ in range(60)]
        store.db.executemany(COUNT, words)
        links = dict(recorder._recording.fsm.links)
        await store.start_commit(at(number), ())
        after = recorder._recording.fsm.links
        renewed += after["/primary.db"] != links["/primary.db"]
        wals += after["/primary.db-wal"] != links["/primary.db-wal"]
        committed.append((len(recorder.operations), rows(store)))
    assert renewed > 2
    assert wals > 2
    await store.destroy()
    assert not (tmp_path / "one").exists()
    await check_cuts(recorder, tmp_path, committed)


STATEMENTS = st.one_of(
    st.tuples(
        st.just("INSERT OR REPLACE INTO blobs VALUES (?, zeroblob(?))"),
        st.integers(1, 40),
        st.sampled_from([0, 10, 5000, 30_000]),
    ),
    st.tuples(
        st.just("DELETE FROM blobs WHERE key BETWEEN ? AND ?"),
        st.integers(1, 40),
        st.integers(1, 40),
    ),
    st.tuples(
        st.just("UPDATE blobs SET value = ? WHERE key < ?"),
        st.binary(max_size=9).map(lambda each: each * 1000),
        st.integers(1, 40),
    ),
    st.just(("SAVEPOINT one",)),
    st.just(("ROLLBACK TO one",)),
    st.just(("CREATE INDEX IF NOT EXISTS sizes ON blobs (length(value))",)),
    st.just(("DROP INDEX IF EXISTS sizes",)),
    st.just(("CREATE TABLE IF NOT EXISTS copies AS SELECT value, key FROM blobs",)),
    st.just(("INSERT INTO copies SELECT value, key + 7 FROM blobs WHERE key % 2",)),
    st.just(("DROP TABLE IF EXISTS copies",)),
    st.just(("PRAGMA incremental_vacuum",)),
)


def contents(db):
    """All tables but the store's, and how they were made."""
    select = "SELECT name, sql FROM sqlite_schema WHERE name NOT GLOB 'gazette_*' ORDER BY name"
    schema = list(db.execute(select))
    found = [schema, list(db.execute("SELECT key, hex(value) FROM blobs ORDER BY key"))]
    if any(name == "copies" for name, _ in schema):
        found.append(list(db.execute("SELECT key, hex(value) FROM copies ORDER BY key, value")))
    return found


def execute(db, sql, bindings):
    """Whether it was possible."""
    try:
        db.execute(sql, bindings).fetchall()
    except apsw.SQLError:
        return False
    return True


@settings(max_examples=8, deadline=None)
@given(st.lists(st.lists(STATEMENTS, max_size=6), min_size=1, max_size=8), st.randoms())
def test_cl3_random_statements_do_what_they_do_in_sqlite_and_are_played_as_they_were_committed(
    tmp_path_factory, commits, dice
):
    async def run():
        home = tmp_path_factory.mktemp("random")
        (home / "one").mkdir()
        recorder = KeptRecorder(home / "one")
        pragmas = "PRAGMA auto_vacuum = 2"
        schema = "CREATE TABLE IF NOT EXISTS blobs (key INTEGER PRIMARY KEY, value BLOB)"
        store = SQLiteStore(
            recorder, pragmas=pragmas, schema=schema, span_bytes_min=20_000, cache_bytes=40_000
        )
        await store.restore_checkpoint()
        plain = apsw.Connection(":memory:")
        plain.execute(f"{pragmas}; {schema}; BEGIN")
        states = {0: contents(plain)}
        for number, statements in enumerate(commits, 1):
            for sql, *bindings in statements:
                assert execute(store.db, sql, bindings) == execute(plain, sql, bindings), sql
            states[number] = contents(store.db)
            await store.start_commit(at(number), ())
            plain.execute("COMMIT; BEGIN")
            assert contents(plain) == states[number] == contents(store.db)
        await store.destroy()
        cuts = {
            len(recorder.operations),
            *(dice.randrange(len(recorder.operations)) for _ in range(6)),
        }
        for cut in cuts:
            store = SQLiteStore(recorder.cut(home / "cut", cut), schema=schema)
            checkpoint = await store.restore_checkpoint()
            assert store.db.execute("PRAGMA integrity_check").get == "ok"
            offset = checkpoint.read_through.get("a/journal", 0)
            assert contents(store.db) == states[offset]
            assert offset == len(commits) or cut < len(recorder.operations)
            await store.destroy()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite, "_WAL_BYTES_MIN", 60_000)
        patch.setattr(sqlite, "_COPIED_BYTES_MIN", 9_000)
        asyncio.run(run())


async def test_what_hints_need_of_the_log_stays_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite, "_WAL_BYTES_MIN", 200_000)
    (tmp_path / "one").mkdir()
    recorder = KeptRecorder(tmp_path / "one")
    store, _ = await begun(recorder, span_bytes_min=1_000_000)
    dice = random.Random(7)
    spans, size_max, commit_bytes_max = [], 0, 0
    for number in range(300):
        before = recorder.log_bytes
        store.db.executemany(COUNT, [(f"{dice.randrange(3000):08}",) for _ in range(30)])
        await store.start_commit(at(number + 1), ())
        commit_bytes_max = max(commit_bytes_max, recorder.log_bytes - before)
        size_max = max(size_max, (tmp_path / "one" / "primary.db").stat().st_size)
        if number % 20 == 19:
            first = min(each.first_offset for each in recorder.hints().segments())
            spans.append(recorder.log_bytes - first)
    expected = rows(store)
    bound = 1_000_000 + 6 * size_max + 400_000
    assert recorder.log_bytes > 8 * bound
    assert max(spans) < bound
    assert commit_bytes_max < 1_000_000  # no commit does the work of many
    _, read_bytes = recorder.play(tmp_path / "two", hints=recorder.hints())
    assert read_bytes < bound + 100_000
    await store.destroy()
    # A database that was renewed and played is one of SQLite's, for any program.
    with apsw.Connection(str(tmp_path / "two" / "primary.db")) as db:
        assert list(db.execute("SELECT * FROM counts ORDER BY word")) == expected


async def test_a_commit_is_one_operation_or_few(tmp_path):
    (tmp_path / "one").mkdir()
    recorder = KeptRecorder(tmp_path / "one")
    store, _ = await begun(recorder)
    await store.start_commit(at(1), ())
    before = len(recorder.operations), recorder.log_bytes
    store.db.executemany(COUNT, [(f"{number:08}",) for number in range(1000)])
    assert (len(recorder.operations), recorder.log_bytes) == before
    await store.start_commit(at(2), ())
    assert len(recorder.operations) - before[0] == 1
    assert 16_000 < recorder.log_bytes - before[1] < 48_000
    await store.destroy()


async def test_cl2_a_transaction_that_outgrows_the_cache_is_of_the_next_commit_all_the_same(
    tmp_path,
):
    (tmp_path / "one").mkdir()
    recorder = KeptRecorder(tmp_path / "one")
    store, _ = await begun(recorder, cache_bytes=40_000)
    store.db.execute(COUNT, ("a",))
    await store.start_commit(at(1), ())
    store.db.executemany(COUNT, [(f"{number:0900}",) for number in range(1000)])
    gate = asyncio.get_running_loop().create_future()
    commit = store.start_commit(at(2), [gate])
    ((behind, _),) = recorder.gates[-1:]
    assert len(recorder.operations) > behind
    assert len(rows(store)) == 1001  # it is seen here before it is durable
    other, checkpoint = await begun(recorder.cut(tmp_path / "two", behind))
    assert (checkpoint, rows(other)) == (at(1), [("a", 1)])
    await other.destroy()
    await turns()
    assert not commit.done()
    gate.set_result(None)
    await commit
    await store.destroy()


async def test_read_stays_with_what_is_committed_as_a_transaction_outgrows_the_cache(
    tmp_path, small
):
    """The log that it had been read from restarted below it: the database was malformed."""
    (tmp_path / "one").mkdir()
    store, _ = await begun(KeptRecorder(tmp_path / "one"), cache_bytes=40_000)
    store.db.executemany(COUNT, [(f"{number:0900}",) for number in range(1000)])
    await store.start_commit(at(1), ())

    def first(db):
        return db.execute("SELECT n FROM counts LIMIT 1").fetchall()

    def everything(db):
        return db.execute("SELECT count(*), sum(n) FROM counts").fetchall()

    assert await store.read(first) == [(1,)]
    for _ in range(3):
        store.db.execute("UPDATE counts SET n = n + 1")
        assert await store.read(everything) == [(1000, 1000)]
    await store.destroy()


@pytest.mark.parametrize(
    "sql",
    [
        "COMMIT",
        "END",
        "ROLLBACK",
        "BEGIN",
        "ATTACH ':memory:' AS other",
        "PRAGMA journal_mode = OFF",
        "PRAGMA Locking_Mode = NORMAL",
        "PRAGMA wal_checkpoint",
    ],
)
async def test_what_would_end_the_transaction_is_refused(tmp_path, sql):
    store, _ = await begun(KeptRecorder(tmp_path))
    for _ in "12":  # ours were prepared between
        store.db.execute(COUNT, ("a",))
        with pytest.raises(ApplicationFailed, match=r"is refused: .* by a savepoint"):
            store.db.execute(sql)
        with store.db:  # a savepoint
            store.db.execute(COUNT, ("b",))
        await store.start_commit(at(1), ())
    assert rows(store) == [("a", 2), ("b", 2)]
    await store.destroy()


async def test_a_store_is_not_to_be_vacuumed(tmp_path):
    store, _ = await begun(KeptRecorder(tmp_path))
    store.db.execute(COUNT, ("a",))
    for sql in ("VACUUM", f"VACUUM INTO '{tmp_path / 'other.db'}'"):
        with pytest.raises(apsw.SQLError, match="cannot VACUUM from within a transaction"):
            store.db.execute(sql)
    await store.start_commit(at(1), ())
    assert rows(store) == [("a", 1)]
    assert not (tmp_path / "other.db").exists()
    await store.destroy()


async def test_a_transaction_that_was_rolled_back_is_not_committed(tmp_path):
    (tmp_path / "one").mkdir()
    recorder = KeptRecorder(tmp_path / "one")
    store, _ = await begun(recorder)
    store.db.execute(COUNT, ("a",))
    await store.start_commit(at(1), ())
    store.db.execute(COUNT, ("b",))
    with pytest.raises(apsw.ConstraintError):
        store.db.execute("INSERT OR ROLLBACK INTO counts VALUES ('a', 7)")
    with pytest.raises(apsw.Error):
        store.db.execute(COUNT, ("c",))  # which would commit by itself
    with pytest.raises(ApplicationFailed, match="rolled the transaction back"):
        store.start_commit(at(2), ())
    # To restore takes back what was not committed.
    assert await store.restore_checkpoint() == at(1)
    store.db.execute(COUNT, ("d",))
    assert await store.restore_checkpoint() == at(1)
    assert rows(store) == [("a", 1)]
    await store.destroy()
    with pytest.raises(ApplicationFailed, match="given back"):
        _ = store.db


async def test_a_commit_that_breaks_a_constraint_fails(tmp_path):
    store = SQLiteStore(
        KeptRecorder(tmp_path),
        pragmas="PRAGMA foreign_keys = 1",
        schema="CREATE TABLE a (k INTEGER PRIMARY KEY, "
        "of INT REFERENCES a (k) DEFERRABLE INITIALLY DEFERRED)",
    )
    await store.restore_checkpoint()
    store.db.execute("INSERT INTO a VALUES (1, 2)")
    with pytest.raises(ApplicationFailed, match="FOREIGN KEY constraint failed"):
        store.start_commit(at(1), ())
    await store.destroy()


async def test_a_database_that_cannot_be_read_is_reported(tmp_path):
    recorder = KeptRecorder(tmp_path)
    recorder.write(recorder.create(str(tmp_path / "primary.db")), 0, b"no database" * 1000)
    (tmp_path / "primary.db").write_bytes(b"no database" * 1000)
    with pytest.raises(DataError, match=r"primary.db cannot be restored: NotADBError"):
        await SQLiteStore(recorder).restore_checkpoint()
    (tmp_path / "two").mkdir()
    with pytest.raises(DataError, match="SQLError"):
        await SQLiteStore(KeptRecorder(tmp_path / "two"), schema="CREATE x").restore_checkpoint()


def be_killed(home):
    """As a program that is killed within a transaction."""
    script = f"""
import os, sqlite3
db = sqlite3.connect({str(home / "primary.db")!r}, isolation_level=None)
db.execute("CREATE TABLE counts (word TEXT PRIMARY KEY, n INT NOT NULL) WITHOUT ROWID")
db.execute("INSERT INTO counts VALUES ('a', 1)")
db.execute("PRAGMA cache_size = 2")
db.execute("BEGIN")
db.executemany("INSERT INTO counts VALUES (?, 1)", [(str(n) * 200,) for n in range(1000)])
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", script], check=True)


async def test_a_hot_journal_of_another_program_is_rolled_back_and_recorded(tmp_path):
    """The rollback journal of a database whose writer was killed, as a player gives it."""
    home = tmp_path / "one"
    home.mkdir()
    be_killed(home)
    recorder = KeptRecorder(home)
    for path in sorted(home.iterdir()):
        recorder.write(recorder.create(str(path)), 0, path.read_bytes())
    assert {path.name for path in home.iterdir()} == {"primary.db", "primary.db-journal"}
    played = len(recorder.operations)
    store, checkpoint = await begun(recorder)
    assert (checkpoint, rows(store)) == (Checkpoint(), [("a", 1)])
    store.db.execute(COUNT, ("a",))
    await store.start_commit(at(1), ())
    await store.destroy()
    for cut in range(played, len(recorder.operations) + 1):
        store, checkpoint = await begun(recorder.cut(tmp_path / "cut", cut))
        assert rows(store) == [("a", 2 if checkpoint == at(1) else 1)]
        await store.destroy()
    assert checkpoint == at(1)


async def test_a_full_disk_fails_the_commit(tmp_path, monkeypatch):
    (tmp_path / "one").mkdir()
    recorder = KeptRecorder(tmp_path / "one")
    store, _ = await begun(recorder)
    store.db.execute(COUNT, ("a",))
    await store.start_commit(at(1), ())
    store.db.executemany(COUNT, [(f"{number:0900}",) for number in range(1000)])
    left, write = itertools.count(), RecordedFile.xWrite

    def full(file, data, offset):
        if next(left) > 20:
            raise apsw.FullError("disk")
        write(file, data, offset)

    monkeypatch.setattr(RecordedFile, "xWrite", full)
    with pytest.raises(StoreError, match="is the local disk full"):
        store.start_commit(at(2), ())
    monkeypatch.undo()
    await store.destroy()
    other, checkpoint = await begun(recorder.cut(tmp_path / "two", len(recorder.operations)))
    assert (checkpoint, rows(other)) == (at(1), [("a", 1)])
    await other.destroy()


async def test_rows_may_be_read_over_commits(tmp_path, small):
    (tmp_path / "one").mkdir()
    recorder = KeptRecorder(tmp_path / "one")
    store, _ = await begun(recorder, span_bytes_min=0)
    store.db.executemany(COUNT, [(f"{number:0900}",) for number in range(100)])
    await store.start_commit(at(1), ())
    reading = store.db.execute("SELECT * FROM counts")
    reading.fetchone()
    for number in range(2, 6):
        store.db.executemany(COUNT, [(f"{number:0900}",) for number in range(0, 100, 7)])
        await store.start_commit(at(number), ())
        other, checkpoint = await begun(recorder.cut(tmp_path / "two", len(recorder.operations)))
        assert (checkpoint, rows(other)) == (at(number), rows(store))
        await other.destroy()
    reading.close()
    await store.destroy()


async def test_to_close_the_database_records_nothing(tmp_path):
    recorder = KeptRecorder(tmp_path)
    store, _ = await begun(recorder)
    store.db.execute(COUNT, ("a",))
    await store.start_commit(at(1), ())
    before = len(recorder.operations)
    store.db.close()  # as when the store is forgotten
    store._tape.flush()
    assert len(recorder.operations) == before
