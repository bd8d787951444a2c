"""Stores with local files, whose recovery log is a journal of a real broker."""

import asyncio

import pytest

from gazette_platform.client import AsyncClient, Change, ClientConfig
from gazette_platform.consumer.protocol import Checkpoint
from gazette_platform.consumer.recoverylog import CONTENT_TYPE, FsmHints, Player, Recorder
from gazette_platform.consumer.store.rocksdb import RocksDBStore
from gazette_platform.consumer.store.sqlite import SQLiteStore
from gazette_platform.errors import DataError, Fenced, GazetteError
from gazette_platform.message.sequencer import SequencerCheckpoint
from gazette_platform.ops.durations import SECOND_NS
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec, LabelSet

pytestmark = pytest.mark.etcd

LOG = "a/recovery-log"


@pytest.fixture
async def client(broker):
    """A client, and one log."""
    fragment = FragmentSpec(
        length=1 << 16,
        codec=CompressionCodec.SNAPPY,
        stores=("file:///",),
        refresh_interval_ns=SECOND_NS,
    )
    labels = LabelSet.of({"content-type": CONTENT_TYPE})
    async with AsyncClient(ClientConfig(address=broker.address)) as client:
        await client.apply(
            [Change(JournalSpec(name=LOG, replication=1, labels=labels, fragment=fragment))]
        )
        yield client


class Tables:
    """A `SQLiteStore` with numbers by word."""

    def __init__(self, recorder):
        schema = "CREATE TABLE IF NOT EXISTS counts (word TEXT PRIMARY KEY, n INT)"
        self.store = SQLiteStore(recorder, schema=schema, span_bytes_min=100_000)

    def set(self, numbers):
        self.store.db.executemany("REPLACE INTO counts VALUES (?, ?)", numbers.items())

    def all(self):
        return dict(self.store.db.execute("SELECT * FROM counts"))


class Keys:
    """A `RocksDBStore` with numbers by word."""

    def __init__(self, recorder):
        self.store = RocksDBStore(recorder, log_bytes_max=20_000)

    def set(self, numbers):
        for word, number in numbers.items():
            self.store.put(word.encode(), b"%d" % number)

    def all(self):
        return {word.decode(): int(number) for word, number in self.store.scan()}


@pytest.fixture(params=[Tables, Keys])
def kind(request):
    return request.param


def at(offset):
    return Checkpoint(SequencerCheckpoint(offsets={"a/journal": offset}))


async def taken_over(kind, client, directory, author, hints=None):
    """A state that goes on in a directory of its own, its recorder, and its checkpoint."""
    player = Player(client, hints or FsmHints(LOG), directory)
    player.inject_handoff(author)
    service = client.append_service()
    async with asyncio.timeout(30):
        recorder = await Recorder.start(client, service, await player.play(), author)
        state = kind(recorder)
        return state, recorder, await state.store.restore_checkpoint()


async def seen_now(kind, client, directory):
    """What whoever plays the log now has, and its checkpoint; the log is not taken over."""
    player = Player(client, FsmHints(LOG), directory)
    player.finish_at_write_head()
    async with asyncio.timeout(30):
        played = await player.play()
        recorder = await Recorder.start(client, client.append_service(), played, 99)
        state = kind(recorder)
        checkpoint = await state.store.restore_checkpoint()
    found = state.all(), checkpoint
    await state.store.destroy()
    return found


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
            async with asyncio.timeout(30):
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
    await asyncio.sleep(0.3)
    assert not commit.done()
    assert (await client.append(LOG, b"")).end == before
    assert await seen_now(kind, client, tmp_path / "early") == ({"a": 1}, at(1))
    gate.set_result(None)
    async with asyncio.timeout(30):
        await commit
    assert await seen_now(kind, client, tmp_path / "late") == ({"a": 2}, at(2))

    failed = asyncio.get_running_loop().create_future()
    commit = state.store.start_commit(at(3), [failed])
    failed.set_exception(DataError("it was not to be"))
    with pytest.raises(GazetteError, match="it was not to be"):
        await commit
    assert await seen_now(kind, client, tmp_path / "last") == ({"a": 2}, at(2))
    await state.store.destroy()
