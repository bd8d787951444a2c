"""Stores of shards on a real broker, and what is particular to each kind without a database."""

import pytest

from gazette_platform.consumer.store import JSONFileStore, Memories, MemoryStore
from gazette_platform.testing.shard_store_conformance import ShardStoreConformance, StoreKind

pytestmark = pytest.mark.etcd


class JSONFiles(StoreKind):
    async def open(self, shard, recorder):
        return JSONFileStore(recorder, {})

    async def put(self, store, key, value):
        store.state[key] = value

    async def get(self, store, key):
        return store.state.get(key)


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


class TestJSONFileStore(ShardStoreConformance):
    served_by = "JSONFileStore: its log on a broker"

    @pytest.fixture
    def broker(self, module_broker):
        return module_broker

    @pytest.fixture
    def kind(self):
        return JSONFiles()


class TestMemoryStore(ShardStoreConformance):
    served_by = "MemoryStore: memory"

    @pytest.fixture
    def broker(self, module_broker):
        return module_broker

    @pytest.fixture
    def kind(self):
        return InMemory()
