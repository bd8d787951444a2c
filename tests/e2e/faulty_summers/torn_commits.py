"""A summer whose stores are not atomic: they keep the state of a commit with the checkpoint of the one before."""

from gazette_platform.app import run
from gazette_platform.consumer.store import JSONFileStore, RocksDBStore, SQLiteStore, SQLStore
from tests.soak.summer import SoakSummer


def torn(start_commit):
    def start(self, checkpoint, after):
        former, self.former = getattr(self, "former", checkpoint), checkpoint
        return start_commit(self, former, after)

    return start


for kind in (JSONFileStore, RocksDBStore, SQLiteStore, SQLStore):
    kind.start_commit = torn(kind.start_commit)

run(SoakSummer())
