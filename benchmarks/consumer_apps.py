"""Applications that benchmarks of consumers run as processes: ``python -m benchmarks.consumer_apps NAME serve``."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING

from typing_extensions import override

from gazette_platform.app import Application, main
from gazette_platform.consumer.store import JSONFileStore, SQLiteStore
from gazette_platform.message import Flags

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gazette_platform.consumer.application import Shard, Transaction
    from gazette_platform.consumer.recoverylog import Recorder
    from gazette_platform.message import Envelope

__all__ = ["OUT"]

OUT = "bench/consumer-out"
_BLOB_BYTES = 64 << 10


class Counting(Application[SQLiteStore, dict]):
    """Counts messages by key, in SQLite, batch by batch."""

    @override
    def new_store(self, shard: Shard, recorder: Recorder | None) -> SQLiteStore:
        assert recorder is not None
        table = "CREATE TABLE IF NOT EXISTS counts (key INTEGER PRIMARY KEY, n INTEGER)"
        return SQLiteStore(recorder, schema=table)

    @override
    def consume_batch(
        self, txn: Transaction[SQLiteStore], envelopes: Sequence[Envelope[dict]]
    ) -> None:
        counts = Counter(
            each.message["key"] for each in envelopes if each.uuid.flags != Flags.ACK_TXN
        )
        txn.store.db.executemany(
            "INSERT INTO counts VALUES (?, ?) ON CONFLICT DO UPDATE SET n = n + excluded.n",
            counts.items(),
        )


class Hop(Application[JSONFileStore, dict]):
    """Publishes what it consumes, with the number of messages before."""

    @override
    def new_store(self, shard: Shard, recorder: Recorder | None) -> JSONFileStore:
        assert recorder is not None
        return JSONFileStore(recorder, {"n": 0})

    @override
    async def consume(self, txn: Transaction[JSONFileStore], envelope: Envelope[dict]) -> None:
        if envelope.uuid.flags != Flags.ACK_TXN:
            txn.store.state["n"] += 1
            await txn.publisher.publish(OUT, {"at": envelope.message["at"]})


class Large(Application[SQLiteStore, dict]):
    """Keeps a blob for each message that asks for it, and publishes what it consumes."""

    @override
    def new_store(self, shard: Shard, recorder: Recorder | None) -> SQLiteStore:
        assert recorder is not None
        table = "CREATE TABLE IF NOT EXISTS blobs (id INTEGER PRIMARY KEY, blob BLOB)"
        return SQLiteStore(recorder, schema=table)

    @override
    async def consume(self, txn: Transaction[SQLiteStore], envelope: Envelope[dict]) -> None:
        if envelope.uuid.flags == Flags.ACK_TXN:
            return
        blobs = envelope.message.get("blobs", 0)
        for _ in range(blobs):
            txn.store.db.execute("INSERT INTO blobs (blob) VALUES (randomblob(?))", (_BLOB_BYTES,))
        if not blobs:
            await txn.publisher.publish(OUT, {"at": envelope.message["at"]})


if __name__ == "__main__":
    applications = {"counting": Counting, "hop": Hop, "large": Large}
    sys.exit(main(applications[sys.argv[1]](), sys.argv[2:]))
