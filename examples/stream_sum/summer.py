"""Sums streams, exactly once: `python -m examples.stream_sum.summer serve`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from typing_extensions import override

from examples.stream_sum.messages import SUMS, Chunk, Sum, add, id_of
from gazette_platform.app import Application, run
from gazette_platform.consumer.store.rocksdb import RocksDBStore
from gazette_platform.consumer.store.sqlite import SQLiteStore
from gazette_platform.errors import ValidationError
from gazette_platform.message import Flags

if TYPE_CHECKING:
    from gazette_platform.app import Shard, Transaction
    from gazette_platform.consumer.recoverylog import Recorder
    from gazette_platform.message import Envelope

__all__ = ["Store", "Summer"]

Store = SQLiteStore | RocksDBStore

_STORE_LABEL: Final = "store"
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS sums (id BLOB PRIMARY KEY NOT NULL, seq_no INTEGER NOT NULL, val BLOB NOT NULL)
"""
_UPSERT: Final = """
INSERT INTO sums VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET seq_no = excluded.seq_no, val = excluded.val
"""


class Summer(Application[Store, Chunk]):
    """Sums streams of chunks, and publishes each sum with the last chunk."""

    message_type = Chunk
    uuid_field = "UUID"

    def __init__(self) -> None:
        # Of each shard: sums of the transaction that is open.
        self._open: dict[str, dict[bytes, Sum]] = {}

    @override
    def new_store(self, shard: Shard, recorder: Recorder | None) -> Store:
        if recorder is None:
            raise ValidationError("needs a recovery log: give the shard a recovery_log_prefix")
        kind = shard.spec.labels.value_of(_STORE_LABEL)
        if kind == "rocksdb":
            return RocksDBStore(recorder)
        if kind == "sqlite":
            return SQLiteStore(recorder, schema=_SCHEMA)
        raise ValidationError(f"must be rocksdb or sqlite ({kind!r})", path=f"label {_STORE_LABEL}")

    @override
    def begin(self, txn: Transaction[Store]) -> None:
        # The next transaction must not see leftovers of one that was given up.
        self._open[txn.shard.id] = {}

    @override
    async def consume(self, txn: Transaction[Store], envelope: Envelope[Chunk]) -> None:
        if envelope.uuid.flags == Flags.ACK_TXN:
            return
        chunk = envelope.message
        sums, key = self._open[txn.shard.id], id_of(chunk)
        total = sums.get(key)
        if total is None:
            total = sums[key] = load(txn.store, key)
        if add(total, chunk):
            # A copy: it gets a UUID, and the next commit reads the other one.
            await txn.publisher.publish(SUMS, msgspec.structs.replace(total))

    @override
    def finalize(self, txn: Transaction[Store]) -> None:
        for key, total in self._open.pop(txn.shard.id, {}).items():
            keep(txn.store, key, total)


def load(store: Store, key: bytes) -> Sum:
    """The sum of a stream so far; of a new stream, nothing."""
    if isinstance(store, SQLiteStore):
        row = store.db.execute("SELECT seq_no, val FROM sums WHERE id = ?", (key,)).fetchone()
        if row is None:
            return Sum(ID=list(key))
        return Sum(ID=list(key), SeqNo=row[0], Value=int.from_bytes(row[1], "little"))
    raw = store.get(_rocksdb_key(key))
    return Sum(ID=list(key)) if raw is None else msgspec.json.decode(raw, type=Sum)


def keep(store: Store, key: bytes, total: Sum) -> None:
    """Have the next commit keep the sum of a stream."""
    if isinstance(store, SQLiteStore):
        store.db.execute(_UPSERT, (key, total.SeqNo, total.Value.to_bytes(8, "little")))
    else:
        store.put(_rocksdb_key(key), msgspec.json.encode(total))


def _rocksdb_key(key: bytes) -> bytes:
    """Keys that begin with a zero byte are the store's: IDs that do get one byte before it."""
    return key if key[0] else b"\x01" + key


if __name__ == "__main__":
    run(Summer())
