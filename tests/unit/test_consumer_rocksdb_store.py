"""State in RocksDB, from a recovery log that is cut wherever it may be."""

import asyncio
import itertools
import random

import pytest
from rocksdict import Options

from gazette_platform.consumer.protocol import Checkpoint
from gazette_platform.consumer.store import rocksdb
from gazette_platform.consumer.store.rocksdb import RecordedFiles, RocksDBStore
from gazette_platform.errors import ApplicationFailed, DataError, StoreError
from gazette_platform.message.sequencer import SequencerCheckpoint
from gazette_platform.testing.waiting import eventually, turns
from tests.benches.kept_log import KeptRecorder


def at(offset):
    return Checkpoint(SequencerCheckpoint(offsets={"a/journal": offset}))


def offset_of(checkpoint):
    return checkpoint.read_through.get("a/journal", 0)


async def begun(recorder, **options):
    store = RocksDBStore(recorder, **options)
    return store, await store.restore_checkpoint()


def new_recorder(tmp_path):
    (tmp_path / "one").mkdir()
    return KeptRecorder(tmp_path / "one")


def small():
    """Options that make many files of rows, which are compacted all the time."""
    options = Options(raw_mode=True)
    options.set_write_buffer_size(64 << 10)
    options.set_target_file_size_base(16 << 10)
    options.set_max_bytes_for_level_base(64 << 10)
    options.set_level_zero_file_num_compaction_trigger(2)
    options.set_max_background_jobs(2)
    return options


async def check_cut(recorder, directory, cut, states, dice):
    """Restore from a cut of the log, go on, and restore again."""
    other = recorder.cut(directory / "cut", cut)
    store, checkpoint = await begun(other, options=small(), log_bytes_max=10_000)
    offset = offset_of(checkpoint)
    assert dict(store.scan()) == states[offset]
    expected = dict(states[offset])
    for number in range(3):
        changes = {b"%d" % dice.randrange(2000): dice.randbytes(90) for _ in range(50)}
        for key, value in changes.items():
            store.put(key, value)
        expected |= changes
        await store.start_commit(at(1000 + number), ())
    await store.destroy()
    last = other.cut(directory / "last", len(other.operations))
    store, checkpoint = await begun(last)
    assert checkpoint == at(1002)
    assert dict(store.scan()) == expected
    await store.destroy()
    return offset


async def test_cl1_a_log_that_is_cut_anywhere_has_the_state_of_a_commit(tmp_path):
    dice = random.Random(7)
    recorder = new_recorder(tmp_path)
    store, checkpoint = await begun(recorder, options=small(), log_bytes_max=40_000)
    assert checkpoint == Checkpoint()
    state, states, bounds = {}, {0: {}}, [0]
    for number in range(1, 61):
        for _ in range(60):
            key = b"%d" % dice.randrange(2000)
            if dice.random() < 0.2:
                store.delete(key)
                state.pop(key, None)
            else:
                state[key] = dice.randbytes(dice.randrange(200))
                store.put(key, state[key])
        await store.start_commit(at(number), ())
        if number % 7 == 0:
            store.db.compact_range(None, None)
        assert dict(store.scan()) == state
        states[number] = dict(state)
        bounds.append(len(recorder.operations))
    names = {link.rsplit(".")[-1] for link in recorder._recording.fsm.links}
    assert names >= {"sst", "log"}
    await store.destroy()
    assert not (tmp_path / "one").exists()
    snapshots = sum(after - before > 3 for before, after in itertools.pairwise(bounds))
    assert snapshots > 3
    cuts = {*range(0, len(recorder.operations), 7), len(recorder.operations), *range(bounds[1] + 1)}
    for cut in sorted(cuts):
        offset = await check_cut(recorder, tmp_path, cut, states, dice)
        done = sum(bound <= cut for bound in bounds) - 1
        assert offset in (done, done + 1)
    assert done == 60


async def test_a_commit_records_what_it_writes(tmp_path):
    recorder = new_recorder(tmp_path)
    store, _ = await begun(recorder)
    for number in range(20_000):
        store.put(b"%08d" % number, b"x" * 100)
    await store.start_commit(at(1), ())
    for number in range(2, 12):
        before = len(recorder.operations), recorder.log_bytes
        for key in range(1000):
            store.put(b"%08d" % (key * 17), b"%d" % number)
        await store.start_commit(at(number), ())
        assert len(recorder.operations) - before[0] == 1
        assert recorder.log_bytes - before[1] < 20_000
    await store.destroy()


async def test_what_hints_need_of_the_log_is_bounded(tmp_path):
    """Rows that are written again and again, among few that are not."""
    recorder = new_recorder(tmp_path)
    store, _ = await begun(recorder, options=small(), log_bytes_max=50_000)
    dice = random.Random(7)
    for number in range(200):
        for _ in range(50):
            store.put(b"%04d" % dice.randrange(100), dice.randbytes(100))
        await store.start_commit(at(number + 1), ())
    expected = dict(store.scan())
    await store.destroy()
    hints = recorder.hints()
    fsm, read_bytes = recorder.play(tmp_path / "two", hints=hints)
    assert recorder.log_bytes > 1_000_000
    assert read_bytes < 400_000
    other = KeptRecorder(tmp_path / "two", fsm=fsm, operations=recorder.operations, author=2)
    store, checkpoint = await begun(other)
    assert checkpoint == at(200)
    assert dict(store.scan()) == expected
    await store.destroy()


async def test_changes_are_seen_before_they_are_committed(tmp_path):
    store, _ = await begun(new_recorder(tmp_path))
    assert list(store.scan()) == []
    for key in (b"a", b"b", b"c", b"d"):
        store.put(key, key.upper())
    await store.start_commit(at(1), ())
    store.delete(b"b")
    store.put(b"c", b"changed")
    store.put(b"bb", b"new")
    store.delete(b"e")
    assert (store.get(b"a"), store.get(b"b"), store.get(b"c"), store.get(b"z")) == (
        b"A",
        None,
        b"changed",
        None,
    )
    assert store.db.get(b"b") == b"B"
    everything = [(b"a", b"A"), (b"bb", b"new"), (b"c", b"changed"), (b"d", b"D")]
    assert list(store.scan()) == everything
    assert list(store.scan(b"bb", b"d")) == everything[1:3]
    assert list(store.scan(b"b", b"bb")) == []
    assert await store.restore_checkpoint() == at(1)
    assert [key for key, _ in store.scan()] == [b"a", b"b", b"c", b"d"]
    await store.destroy()


async def test_keys_of_the_store_are_refused(tmp_path):
    store, _ = await begun(new_recorder(tmp_path))
    for key in (b"", b"\x00", b"\x00\x12checkpoint\x00\x01"):
        with pytest.raises(ApplicationFailed, match="is not the application's"):
            store.put(key, b"x")
        with pytest.raises(ApplicationFailed, match="is not the application's"):
            store.delete(key)
    await store.destroy()
    with pytest.raises(ApplicationFailed, match="given back"):
        store.get(b"a")


async def test_a_commit_waits_for_its_gate(tmp_path):
    recorder = new_recorder(tmp_path)
    store, _ = await begun(recorder)
    store.put(b"a", b"1")
    await store.start_commit(at(1), ())
    before = len(recorder.operations)
    gate = asyncio.get_running_loop().create_future()
    store.put(b"a", b"2")
    commit = store.start_commit(at(2), [gate])
    assert store.get(b"a") == b"2"
    assert recorder.gates[-1] == (before, (gate,))
    await turns(20)
    assert not commit.done()
    gate.set_exception(DataError("it was not to be"))
    with pytest.raises(DataError, match="it was not to be"):
        await commit
    await store.destroy()


async def test_a_database_that_cannot_be_read_is_reported(tmp_path):
    recorder = KeptRecorder(tmp_path)
    recorder.write(recorder.create(str(tmp_path / "CURRENT")), 0, b"nonsense")
    (tmp_path / "CURRENT").write_bytes(b"nonsense")
    with pytest.raises(DataError, match="cannot be restored: Corruption"):
        await begun(recorder)


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_commit_that_the_disk_refuses_fails(tmp_path, is_first):
    recorder = new_recorder(tmp_path)
    store, _ = await begun(recorder)
    if not is_first:
        await store.start_commit(at(1), ())
    store.put(b"a", b"1")
    store.db.close()
    with pytest.raises(StoreError, match="is the local disk full"):
        await store.start_commit(at(2), ())
    await store.destroy()


async def test_a_snapshot_that_fails_fails_the_commit(tmp_path):
    recorder = new_recorder(tmp_path)
    store, _ = await begun(recorder)
    (tmp_path / "one" / ".snapshot").touch()  # in its place
    with pytest.raises(StoreError, match="is the local disk full"):
        await store.start_commit(at(1), ())
    await store.destroy()


def new_files(tmp_path):
    """A recorder, and a snapshot without rows as RocksDB makes it."""
    recorder = new_recorder(tmp_path)
    place = tmp_path / "snapshot"
    place.mkdir()
    (place / "MANIFEST-000005").write_bytes(b"manifest")
    (place / "CURRENT").write_bytes(b"MANIFEST-000005\n")
    return recorder, place


def played(recorder, directory):
    recorder.play(directory)
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_a_file_of_rows_that_has_the_name_of_an_orphan_is_recorded(tmp_path):
    """A player that stops before the manifest has rows which RocksDB deletes, and numbers again."""
    recorder, place = new_files(tmp_path)
    home = tmp_path / "one"
    (home / "000009.sst").write_bytes(b"orphan")
    recorder.write(recorder.create(str(home / "000009.sst")), 0, b"orphan")
    files = RecordedFiles(recorder)
    (place / "000009.sst").write_bytes(b"newer!")
    files.record_snapshot(place)
    assert played(recorder, tmp_path / "two")["000009.sst"] == b"newer!"
    before = len(recorder.operations)
    files.record_snapshot(place)
    assert len(recorder.operations) == before
    (place / "000009.sst").unlink()
    files.record_snapshot(place)
    assert set(played(recorder, tmp_path / "two")) == {"CURRENT", "MANIFEST-000005"}


def test_logs_are_recorded_as_they_grow(tmp_path):
    recorder, place = new_files(tmp_path)
    files = RecordedFiles(recorder)
    log, next_log = tmp_path / "one" / "000004.log", tmp_path / "one" / "000008.log"
    log.write_bytes(b"abc")
    assert not files.record_growth()  # there is nothing yet that it would be of
    (place / "000004.log").write_bytes(b"abc")
    files.record_snapshot(place)
    assert files.log_bytes == 0
    log.write_bytes(b"abcdef")
    next_log.write_bytes(b"gh")
    assert files.record_growth()
    assert files.log_bytes == 5
    assert not files.are_logs_flushed()
    log.unlink()
    assert files.are_logs_flushed()
    next_log.write_bytes(b"ghi")
    assert files.record_growth()
    found = played(recorder, tmp_path / "two")
    assert (found["000004.log"], found["000008.log"]) == (b"abcdef", b"ghi")
    # One of these may have had a follower that is gone already.
    for name in ("000010.log", "000012.log"):
        (tmp_path / "one" / name).write_bytes(b"x")
    assert not files.record_growth()


def test_a_log_that_a_flush_deletes_meanwhile_is_left_to_a_snapshot(tmp_path, monkeypatch):
    recorder, place = new_files(tmp_path)
    files = RecordedFiles(recorder)
    log, next_log = tmp_path / "one" / "000004.log", tmp_path / "one" / "000008.log"
    for folder in (log.parent, place):
        (folder / "000004.log").write_bytes(b"abc")
    files.record_snapshot(place)
    next_log.write_bytes(b"gh")
    listed = rocksdb._names

    def names(directory):
        found = listed(directory)
        log.unlink(missing_ok=True)  # behind the look at the directory
        return found

    monkeypatch.setattr(rocksdb, "_names", names)
    assert not files.record_growth()
    (place / "000004.log").unlink()
    (place / "000008.log").write_bytes(b"gh")
    files.record_snapshot(place)
    assert played(recorder, tmp_path / "two")["000008.log"] == b"gh"
    assert files.record_growth()


async def test_a_snapshot_is_taken_once_the_log_was_flushed_behind_the_commits(tmp_path):
    recorder = new_recorder(tmp_path)
    store, _ = await begun(recorder, log_bytes_max=100_000)
    await store.start_commit(at(1), ())
    dice = random.Random(7)
    snapshots, longest, before = 0, 0, 0
    async with asyncio.timeout(60):
        for number in range(2, 60):
            store.put(b"%d" % number, dice.randbytes(10_000))
            await store.start_commit(at(number), ())
            log_bytes = store._files.log_bytes
            longest, snapshots = max(longest, log_bytes), snapshots + (log_bytes < before)
            before = log_bytes
            former = sorted(store._files._logs)[:-1]
            # RocksDB reports nothing.
            await eventually(lambda: not any((tmp_path / "one" / each).exists() for each in former))  # noqa: B023  called at once
    assert snapshots >= 4
    assert longest < 120_000
    await store.destroy()
