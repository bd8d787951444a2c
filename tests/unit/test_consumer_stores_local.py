"""What stores of shards do without any server."""

import asyncio
import subprocess
import sys

import pytest
from sqlalchemy import text

from gazette_platform.consumer import store as stores
from gazette_platform.consumer.protocol import Checkpoint
from gazette_platform.consumer.store import (
    Memories,
    MemoryStore,
    SQLStore,
    create_tables,
    sql_engine,
)
from gazette_platform.errors import DependencyFailed, Fenced, StoreError, ValidationError
from gazette_platform.message.sequencer import SequencerCheckpoint
from gazette_platform.testing.waiting import turns

CHECKPOINT = Checkpoint(SequencerCheckpoint(offsets={"a/journal": 7}))


async def test_memory_of_its_own_is_restored_by_the_same_store():
    store = MemoryStore({"a": [1]})
    assert await store.restore_checkpoint() == Checkpoint()
    store.state["a"].append(2)
    await store.start_commit(CHECKPOINT, [])
    store.state["a"].append(3)
    assert await store.restore_checkpoint() == CHECKPOINT
    assert store.state == {"a": [1, 2]}
    assert await MemoryStore({"a": [1]}).restore_checkpoint() == Checkpoint()


async def test_memories_are_of_one_shard_each():
    memories = Memories()
    one, other = (MemoryStore([], shard=name, kept=memories) for name in ("one", "other"))
    for store in (one, other):
        await store.restore_checkpoint()
    one.state.append(1)
    await one.start_commit(CHECKPOINT, [])
    await other.start_commit(Checkpoint(), [])  # no other store has fenced it
    again = MemoryStore([], shard="one", kept=memories)
    assert await again.restore_checkpoint() == CHECKPOINT
    assert again.state == [1]
    with pytest.raises(Fenced, match="one: another store of this process"):
        await one.start_commit(CHECKPOINT, [])


async def test_initial_state_is_not_shared():
    initial = {"a": []}
    store = MemoryStore(initial)
    await store.restore_checkpoint()
    store.state["a"].append(1)
    assert initial == {"a": []}


async def test_memory_needs_a_name_and_a_restore():
    with pytest.raises(ValidationError, match="expected the name of a shard"):
        MemoryStore(None, kept=Memories())
    with pytest.raises(ValidationError, match="before it was restored"):
        MemoryStore(None, shard="a").start_commit(CHECKPOINT, [])


async def test_commit_goes_on_if_no_caller_waits_for_it():
    store = MemoryStore(None)
    await store.restore_checkpoint()
    need = asyncio.get_running_loop().create_future()
    commit = store.start_commit(CHECKPOINT, [need])
    commit.cancel()
    need.set_result(None)
    await turns(5)
    assert await store.restore_checkpoint() == CHECKPOINT


async def test_commit_names_the_need_that_failed():
    store = MemoryStore(None)
    await store.restore_checkpoint()
    need = asyncio.get_running_loop().create_future()
    need.set_exception(OSError("of the disk"))
    with pytest.raises(DependencyFailed, match="of the disk") as caught:
        await store.start_commit(CHECKPOINT, [need])
    assert isinstance(caught.value.__cause__, OSError)


async def test_destroy_ends_a_commit_that_has_not_begun():
    store = MemoryStore(None)
    await store.restore_checkpoint()
    commit = store.start_commit(CHECKPOINT, [])
    await store.destroy()
    with pytest.raises(StoreError, match="destroyed before its commit was done"):
        await commit


async def test_fenced_sql_store_keeps_neither_state_nor_checkpoint(tmp_path):
    engine = sql_engine(f"sqlite:///{tmp_path}/state.db")
    create_tables(engine)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE state (number INTEGER)"))
    fenced, owner = SQLStore(engine, "a"), SQLStore(engine, "a")
    try:
        await fenced.restore_checkpoint()
        await owner.restore_checkpoint()
        await fenced.run(
            lambda connection: connection.execute(text("INSERT INTO state VALUES (1)"))
        )
        with pytest.raises(Fenced):
            await fenced.start_commit(CHECKPOINT, [])
        count = text("SELECT count(*) FROM state")
        assert await owner.run(lambda connection: connection.scalar(count)) == 0
        assert await owner.restore_checkpoint() == Checkpoint()
    finally:
        await fenced.destroy()
        await owner.destroy()
        engine.dispose()


def test_stores_of_extras_are_found_when_they_are_asked_for():
    for name in stores.__all__:
        assert getattr(stores, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'RedisStore'"):
        _ = stores.RedisStore


def test_a_package_that_is_missing_is_named():
    program = """
import sys
sys.modules["sqlalchemy"] = None
from gazette_platform.consumer import store
try:
    store.SQLStore
except Exception as err:
    print(type(err).__name__, err)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == (
        "SetupError such stores of shards need sqlalchemy: pip install 'gazette-platform[sql-store]'\n"
    )
