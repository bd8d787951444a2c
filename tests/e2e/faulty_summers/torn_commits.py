"""A summer whose stores are not atomic: they keep the state of a commit with the checkpoint of the one before."""

from examples.stream_sum.summer import Summer
from gazette_platform.app import run
from gazette_platform.consumer.store.rocksdb import RocksDBStore
from gazette_platform.consumer.store.sqlite import SQLiteStore


def torn(start_commit):
    def start(self, checkpoint, after):
        former, self.former = getattr(self, "former", checkpoint), checkpoint
        return start_commit(self, former, after)

    return start


for kind in (RocksDBStore, SQLiteStore):
    kind.start_commit = torn(kind.start_commit)

run(Summer())
