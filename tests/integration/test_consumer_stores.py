"""Stores of shards on a real broker, and what is particular to each kind without a database."""

import pytest

from gazette_platform.consumer.store import JSONFileStore, Memories, MemoryStore
from gazette_platform.consumer.store.rocksdb import RocksDBStore
from gazette_platform.consumer.store.sqlite import SQLiteStore
from gazette_platform.testing.shard_store_conformance import ShardStoreConformance, StoreKind

pytestmark = pytest.mark.etcd


class JSONFiles(StoreKind):
    async def open(self, shard, recorder):
        return JSONFileStore(recorder, {})

    async def put(self, store, key, value):
        store.state[key] = value

    async def get(self, store, key):
        return store.state.get(key)


class Tables(StoreKind):
    """Of a log that is short for what the tests keep, so that databases are recorded again."""

    async def open(self, shard, recorder):
        schema = "CREATE TABLE IF NOT EXISTS kept (key TEXT PRIMARY KEY, value TEXT)"
        return SQLiteStore(recorder, schema=schema, span_bytes_min=100_000)

    async def put(self, store, key, value):
        store.db.execute("REPLACE INTO kept VALUES (?, ?)", (key, value))

    async def get(self, store, key):
        return store.db.execute("SELECT value FROM kept WHERE key = ?", (key,)).get


class Keys(StoreKind):
    """As `Tables`."""

    async def open(self, shard, recorder):
        return RocksDBStore(recorder, log_bytes_max=20_000)

    async def put(self, store, key, value):
        store.put(key.encode(), value.encode())

    async def get(self, store, key):
        found = store.get(key.encode())
        return None if found is None else found.decode()


class InMemory(StoreKind):
    has_log = False

    def __init__(self):
        self.memories = Memories()

    async def open(self, shard, recorder):
        return MemoryStore({}, shard=shard, kept=self.memories)

    async def put(self, store, key, value):
        store.state[key] = value

    async def get(self, store, key):
        return store.state.get(key)


class OnSharedBrokers(ShardStoreConformance):
    @pytest.fixture
    def broker(self, shared):
        return shared

    @pytest.fixture
    def journal_prefix(self, names):
        return names.prefix


class TestJSONFileStore(OnSharedBrokers):
    served_by = "JSONFileStore: its log on a broker"

    @pytest.fixture
    def kind(self):
        return JSONFiles()


class TestSQLiteStore(OnSharedBrokers):
    served_by = "SQLiteStore: its log on a broker"

    @pytest.fixture
    def kind(self):
        return Tables()


class TestRocksDBStore(OnSharedBrokers):
    served_by = "RocksDBStore: its log on a broker"

    @pytest.fixture
    def kind(self):
        return Keys()


class TestMemoryStore(OnSharedBrokers):
    served_by = "MemoryStore: memory"

    @pytest.fixture
    def kind(self):
        return InMemory()
