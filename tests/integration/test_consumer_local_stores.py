"""Stores with local files, whose recovery log is a journal of a real broker."""

import asyncio
import itertools

import apsw
import pytest
from journal_specs import journal_spec
from rocksdict import Options, Rdict

from gazette_platform.client import AppendOptions, Change
from gazette_platform.consumer.protocol import Checkpoint
from gazette_platform.consumer.recoverylog import CONTENT_TYPE, FsmHints, Player, Recorder
from gazette_platform.consumer.store.base import JSONFileStore
from gazette_platform.consumer.store.rocksdb import RocksDBStore
from gazette_platform.consumer.store.sqlite import SQLiteStore
from gazette_platform.errors import (
    ApplicationFailed,
    DataError,
    Fenced,
    GazetteError,
    StoreError,
)
from gazette_platform.message.sequencer import SequencerCheckpoint
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.protocol import CompressionCodec
from gazette_platform.testing.waiting import eventually, patient, stays, turns

pytestmark = pytest.mark.etcd

LOG, OTHER_LOG = "a/recovery-log", "b/recovery-log"


@pytest.fixture
async def client(client, names, monkeypatch):
    """A client, and two logs of this test's own."""
    for name in ("LOG", "OTHER_LOG"):
        monkeypatch.setitem(globals(), name, names.journal(globals()[name]))
    labels = {"content-type": CONTENT_TYPE}
    for name in (LOG, OTHER_LOG):
        spec = journal_spec(name, length=1 << 16, codec=CompressionCodec.SNAPPY, labels=labels)
        await client.apply([Change(spec)])
    return client


class Tables:
    """A `SQLiteStore` with numbers by word."""

    def __init__(self, recorder):
        schema = "CREATE TABLE IF NOT EXISTS counts (word TEXT PRIMARY KEY, n INT)"
        self.store = SQLiteStore(recorder, schema=schema, span_bytes_min=100_000)

    def set(self, numbers):
        self.store.db.executemany("REPLACE INTO counts VALUES (?, ?)", numbers.items())

    def all(self):
        return dict(self.store.db.execute("SELECT * FROM counts"))

    async def read(self):
        return await self.store.read(lambda db: dict(db.execute("SELECT * FROM counts")))


class Keys:
    """A `RocksDBStore` with numbers by word."""

    def __init__(self, recorder):
        self.store = RocksDBStore(recorder, log_bytes_max=20_000)

    def set(self, numbers):
        for word, number in numbers.items():
            self.store.put(word.encode(), b"%d" % number)

    def all(self):
        return {word.decode(): int(number) for word, number in self.store.scan()}

    async def read(self):
        return await self.store.read(
            lambda db: {key.decode(): int(n) for key, n in db.items(from_key=b"\x01")}
        )


class Document:
    """A `JSONFileStore` with numbers by word."""

    def __init__(self, recorder):
        self.store = JSONFileStore(recorder, {})

    def set(self, numbers):
        self.store.state.update(numbers)

    def all(self):
        return dict(self.store.state)

    async def read(self):
        return await self.store.read(dict)


@pytest.fixture(params=[Tables, Keys])
def kind(request):
    return request.param


def at(offset):
    return Checkpoint(SequencerCheckpoint(offsets={"a/journal": offset}))


async def begun(kind, client, played, author, **options):
    """A state that goes on with files that were played, its recorder, and its checkpoint."""
    async with asyncio.timeout(patient(30)):
        service = client.append_service()
        recorder = await Recorder.start(client, service, played, author, **options)
        state = kind(recorder)
        return state, recorder, await state.store.restore_checkpoint()


async def taken_over(kind, client, directory, author, hints=None, **options):
    """A state that goes on in a directory of its own, its recorder, and its checkpoint."""
    player = Player(client, hints or FsmHints(LOG), directory)
    player.inject_handoff(author)
    async with asyncio.timeout(patient(30)):
        return await begun(kind, client, await player.play(), author, **options)


async def played_now(client, directory, hints=None):
    """The files as whoever plays the log now has them; it is not taken over."""
    player = Player(client, hints or FsmHints(LOG), directory)
    player.finish_at_write_head()
    async with asyncio.timeout(patient(30)):
        return await player.play()


async def seen_now(kind, client, directory, hints=None):
    """What whoever plays the log now has, and its checkpoint."""
    played = await played_now(client, directory, hints)
    state, _, checkpoint = await begun(kind, client, played, 99)
    found = state.all(), checkpoint
    await state.store.destroy()
    return found


async def committed(state, number, **changes):
    """Commit `changes`, and that all was read up to `number`."""
    state.set(changes)
    async with asyncio.timeout(patient(30)):
        await state.store.start_commit(at(number), ())


async def test_cl1_gb1_a_killed_process_is_followed_by_another(kind, client, tmp_path):
    hints, expected, number, killed = None, {}, 0, []
    for turn in range(1, 5):
        state, recorder, checkpoint = await taken_over(
            kind, client, tmp_path / f"{turn}", turn, hints
        )
        assert checkpoint == (at(number) if number else Checkpoint())
        assert state.all() == expected
        for _ in range(30):
            number += 1
            changes = {f"word {(number * 37 + each) % 1000:0100}": number for each in range(20)}
            state.set(changes)
            expected |= changes
            async with asyncio.timeout(patient(30)):
                await state.store.start_commit(at(number), ())
        # What is not committed is lost with the process, which is left as it is.
        state.set({"lost": 1})
        hints = await recorder.build_hints()
        killed.append(state)
    for state in killed:
        await state.store.destroy()
    assert list(tmp_path.glob("[1-4]")) == []


async def test_who_is_fenced_commits_nothing(kind, client, tmp_path):
    first, recorder, _ = await taken_over(kind, client, tmp_path / "one", 1)
    first.set({"a": 1})
    await first.store.start_commit(at(1), ())
    second, _, checkpoint = await taken_over(
        kind, client, tmp_path / "two", 2, await recorder.build_hints()
    )
    assert (checkpoint, second.all()) == (at(1), {"a": 1})
    first.set({"a": 100})
    with pytest.raises(Fenced, match="another process has taken the log over"):
        await first.store.start_commit(at(2), ())
    second.set({"a": 2})
    await second.store.start_commit(at(2), ())
    await first.store.destroy()
    third, _, checkpoint = await taken_over(kind, client, tmp_path / "three", 3)
    assert (checkpoint, third.all()) == (at(2), {"a": 2})
    await third.store.destroy()
    await second.store.destroy()


@pytest.mark.parametrize("kind", [Tables, Keys, Document])
async def test_read_sees_what_is_committed_alone(kind, client, tmp_path):
    state, _, _ = await taken_over(kind, client, tmp_path / "one", 1)
    async with asyncio.timeout(patient(30)), asyncio.TaskGroup() as tasks:
        assert await state.read() == {}  # the schema exists, though nothing was committed
        state.set({"a": 1})
        before = tasks.create_task(state.read())
        await turns(5)
        assert not before.done() or before.result() == {}
        await state.store.start_commit(at(1), ())
        assert await before in ({}, {"a": 1})
        state.set({"a": 2})
        assert [await state.read() for _ in range(2)] == [{"a": 1}] * 2
        gate = asyncio.get_running_loop().create_future()
        commit = state.store.start_commit(at(2), [gate])
        state.set({"a": 3, "b": 3})
        meanwhile = tasks.create_task(state.read())
        await turns(5)
        assert not meanwhile.done() or meanwhile.result() == {"a": 1}
        gate.set_result(None)
        await commit
        assert await meanwhile in ({"a": 1}, {"a": 2})
        assert await state.read() == {"a": 2}
        assert state.all() == {"a": 3, "b": 3}
        await state.store.roll_back()
        assert await state.read() == state.all() == {"a": 2}
    await state.store.destroy()


@pytest.mark.parametrize("kind", [Tables, Keys, Document])
async def test_read_sees_nothing_of_a_commit_that_failed(kind, client, tmp_path):
    state, _, _ = await taken_over(kind, client, tmp_path / "one", 1)
    await committed(state, 1, a=1)
    gate = asyncio.get_running_loop().create_future()
    state.set({"a": 2})
    commit = state.store.start_commit(at(2), [gate])
    gate.set_exception(StoreError("of the test"))
    with pytest.raises(GazetteError, match="of the test"):
        await commit
    await state.store.roll_back()
    if kind is Document:
        assert await state.read() == state.all() == {"a": 1}
    else:
        with pytest.raises(StoreError, match="its last commit has failed"):
            await state.read()
    await state.store.destroy()


async def test_read_that_waits_ends_with_its_store(client, tmp_path):
    tables, _, _ = await taken_over(Tables, client, tmp_path / "one", 1)
    tables.set({"a": 1})
    tasks = TaskGroup("test")
    reading = tasks.spawn(tables.read())
    await turns()
    assert not reading.done()
    await tables.store.destroy()
    async with asyncio.timeout(patient(5)):
        with pytest.raises(ApplicationFailed, match="given back"):
            await reading
    await tasks.close()


async def test_read_of_sqlite_writes_nothing(client, tmp_path):
    state, _, _ = await taken_over(Tables, client, tmp_path / "one", 1)
    for number in range(2):
        with pytest.raises(apsw.ReadOnlyError):
            await state.store.read(lambda db: db.execute("INSERT INTO counts VALUES ('b', 1)"))
        await committed(state, number + 1, a=number)
    # Spilled pages of the open transaction are in the write-ahead log, and are not read.
    state.store.db.execute("PRAGMA cache_size = 1").fetchall()
    state.set({f"word {each:0500}": each for each in range(1000)})
    assert await state.read() == {"a": 1}
    await state.store.destroy()


@pytest.mark.parametrize(
    ("first", "second"), list(itertools.permutations([Tables, Keys, Document], 2))
)
async def test_store_refuses_files_of_another_kind(first, second, client, tmp_path):
    """It began with empty state, without a word, and the shard published everything again."""
    names = {Tables: "SQLiteStore", Keys: "RocksDBStore", Document: "JSONFileStore"}
    state, recorder, _ = await taken_over(first, client, tmp_path / "one", 1)
    await committed(state, 7, a=1)
    hints = await recorder.build_hints()
    with pytest.raises(DataError, match=f"look like those of a {names[first]}"):
        await taken_over(second, client, tmp_path / "two", 2, hints)
    again, _, checkpoint = await taken_over(first, client, tmp_path / "three", 3, hints)
    assert (checkpoint, again.all()) == (at(7), {"a": 1})
    for each in (state, again):
        await each.store.destroy()


async def test_rocksdb_files_are_of_the_format_of_gazette(client, tmp_path):
    """RocksDB 7.8, which Gazette's consumers are built with, refuses "unsupported format_version: 6"."""
    state, _, _ = await taken_over(Keys, client, tmp_path / "one", 1)
    await committed(state, 1, a=1)
    state.store.db.flush()
    tables = list((tmp_path / "one").glob("*.sst"))
    assert tables
    for table in tables:
        footer = table.read_bytes()[-12:]  # the version, and eight bytes of magic
        assert int.from_bytes(footer[:4], "little") == 5
    await state.store.destroy()


async def test_cl2_nothing_of_a_commit_is_in_the_log_before_its_gate_has_opened(
    kind, client, tmp_path
):
    state, _, _ = await taken_over(kind, client, tmp_path / "one", 1)
    state.set({"a": 1})
    await state.store.start_commit(at(1), ())
    before = (await client.append(LOG, b"")).end
    gate = asyncio.get_running_loop().create_future()
    state.set({"a": 2})
    commit = state.store.start_commit(at(2), [gate])
    state.set({"b": 3})  # of the next one
    assert state.all() == {"a": 2, "b": 3}
    await stays(lambda: not commit.done(), for_s=0.3)
    assert (await client.append(LOG, b"")).end == before
    assert await seen_now(kind, client, tmp_path / "early") == ({"a": 1}, at(1))
    gate.set_result(None)
    async with asyncio.timeout(patient(30)):
        await commit
    assert await seen_now(kind, client, tmp_path / "late") == ({"a": 2}, at(2))

    failed = asyncio.get_running_loop().create_future()
    commit = state.store.start_commit(at(3), [failed])
    failed.set_exception(DataError("it was not to be"))
    with pytest.raises(GazetteError, match="it was not to be"):
        await commit
    assert await seen_now(kind, client, tmp_path / "last") == ({"a": 2}, at(2))
    await state.store.destroy()


async def test_gb2_standbys_take_over_from_each_other_while_all_write(kind, client, tmp_path):
    """Each has what the former one knew to be committed, and perhaps what it was about to commit."""
    state, recorder, _ = await taken_over(kind, client, tmp_path / "1", 1)
    states, expected, last = [state], [{}], 0
    for author in (2, 3, 4):
        known = []

        async def write(state=state, last=last, known=known):
            while True:
                last += 1
                expected.append(expected[last - 1] | {"all": last, f"word {last % 50}": last})
                await committed(state, last, **expected[last])
                known.append(last)

        player = Player(client, await recorder.build_hints(), tmp_path / f"{author}")
        async with asyncio.timeout(patient(60)), asyncio.TaskGroup() as tasks:
            playing = tasks.create_task(player.play())
            await player.tailing.wait()
            writing = tasks.create_task(fenced(write()))
            await eventually(lambda writing=writing, known=known: writing.done() or len(known) >= 5)
            assert not writing.done()
            player.inject_handoff(author)
            state, recorder, checkpoint = await begun(kind, client, await playing, author)
        states.append(state)
        last = checkpoint.read_through["a/journal"]
        assert last in (known[-1], known[-1] + 1)
        assert state.all() == expected[last]
        del expected[last + 1 :]
    assert await seen_now(kind, client, tmp_path / "seen") == (expected[last], at(last))
    for each in states:
        await each.store.destroy()


async def fenced(writing):
    with pytest.raises(Fenced):
        await writing


async def test_gb3_hints_choose_the_branch_of_one_of_two_writers(kind, client, tmp_path):
    """Of two that know nothing of each other, as if no broker checked registers."""
    first, recorder, _ = await taken_over(kind, client, tmp_path / "one", 1)
    await committed(first, 1, both=1)
    played = await played_now(client, tmp_path / "two", await recorder.build_hints())
    second, other, checkpoint = await begun(kind, client, played, 2)
    assert (second.all(), checkpoint) == ({"both": 1}, at(1))
    for each in (recorder, other):
        each._options = AppendOptions()
    for number in range(2, 6):
        await committed(first, number, first=number)
        await committed(second, 10 * number, second=number)
    branches = {
        1: (await recorder.build_hints(), {"both": 1, "first": 5}, at(5)),
        2: (await other.build_hints(), {"both": 1, "second": 5}, at(50)),
    }
    for author, (hints, expected, checkpoint) in branches.items():
        assert author in {each.author for each in hints.segments()}
        found = await seen_now(kind, client, tmp_path / f"branch-{author}", hints)
        assert found == (expected, checkpoint)
    # Of a log without hints nothing says which one it is: the one that was first in it.
    assert await seen_now(kind, client, tmp_path / "none") == branches[1][1:]
    await first.store.destroy()
    await second.store.destroy()


async def test_gb4_a_store_goes_on_in_another_log(kind, client, tmp_path):
    first, recorder, _ = await taken_over(kind, client, tmp_path / "one", 1)
    for number in range(1, 4):
        await committed(first, number, old=number)
    end = (await client.append(LOG, b"")).end
    hints = await recorder.build_hints()
    played = await played_now(client, tmp_path / "two", hints)
    second, recorder, checkpoint = await begun(kind, client, played, 2, log=OTHER_LOG)
    assert (second.all(), checkpoint) == ({"old": 3}, at(3))
    for number in range(4, 7):
        await committed(second, number, new=number)
        hints = await recorder.build_hints()
        assert hints.log == OTHER_LOG
        found = await seen_now(kind, client, tmp_path / f"{number}", hints)
        assert found == ({"old": 3, "new": number}, at(number))
    assert (await client.append(LOG, b"")).end == end
    third, _, checkpoint = await taken_over(kind, client, tmp_path / "three", 3, hints)
    assert (third.all(), checkpoint) == ({"old": 3, "new": 6}, at(6))
    for each in (first, second, third):
        await each.store.destroy()


async def test_gb2_the_checkpoint_is_where_gazettes_stores_of_rocksdb_have_it(client, tmp_path):
    state, _, _ = await taken_over(Keys, client, tmp_path / "one", 1)
    await committed(state, 7, a=1)
    played = await played_now(client, tmp_path / "two")
    db = Rdict(str(played.directory), Options(raw_mode=True))
    assert dict(db.items()) == {
        bytes.fromhex("0012636865636b706f696e740001"): at(7).encode(),
        b"a": b"1",
    }
    db.close()
    await state.store.destroy()
