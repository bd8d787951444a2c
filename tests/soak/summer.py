"""The consumer of the soak: the summer of the example on more kinds of stores, and a shard after it.

That one reads the sums that others publish, and passes them on with its count of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

from sqlalchemy import BigInteger, Column, LargeBinary, MetaData, Numeric, Table, Text, select
from sqlalchemy.dialects.postgresql import insert
from typing_extensions import override

from examples.stream_sum import summer
from examples.stream_sum.messages import SUMS, Chunk, Sum, id_of
from examples.stream_sum.summer import Summer
from gazette_platform.app import Option, run
from gazette_platform.consumer.store import JSONFileStore, SQLStore, create_tables, sql_engine
from gazette_platform.message import Flags, JsonFraming

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy.engine import Connection

    from gazette_platform.app import Shard, Transaction
    from gazette_platform.consumer.recoverylog import Recorder
    from gazette_platform.message import Envelope
    from gazette_platform.message.framing import Unframing
    from gazette_platform.protocol import JournalSpec

__all__ = ["STORE", "TALLIES", "SoakSummer", "Tally", "make_tables"]

TALLIES: Final = "examples/stream-sum/tallies"
"""The journal of the shard behind the sums."""
STORE: Final = "store"
"""The label that says on which kind of store a shard is."""

# A process that hangs lets go of its locks soon after its lease; a sum is late after 40 s.
_IDLE_S: Final = 8.0
_COUNT: Final = "sums"

Store: TypeAlias = summer.Store | JSONFileStore[Any] | SQLStore


class Tally(Sum):
    """A sum that was passed on."""

    Number: int = 0
    """How many the shard has counted, with this one."""


_SUMS = Table(
    "soak_sums",
    MetaData(),
    Column("shard", Text, primary_key=True),
    Column("id", LargeBinary, primary_key=True),
    Column("seq_no", BigInteger, nullable=False),
    Column("val", Numeric(20), nullable=False),
)


class SoakSummer(Summer):
    """Sums streams of chunks in stores of all kinds, and counts sums."""

    options: ClassVar[tuple[Option, ...]] = (
        Option("soak.database", str, None, "URL of the PostgreSQL of shards without a log."),
    )

    @override
    def configure(self, values: Mapping[str, Any]) -> None:
        url = values["soak.database"]
        self._engine = sql_engine(url, answer_s=_IDLE_S, idle_s=_IDLE_S) if url else None

    @override
    def framing(self, journal: JournalSpec) -> Unframing[Any]:
        return JsonFraming(message_type=Sum if journal.name == SUMS else Chunk)

    @override
    def new_store(self, shard: Shard, recorder: Recorder | None) -> Any:
        if recorder is None:
            assert self._engine is not None
            return SQLStore(self._engine, shard.fqn)
        if shard.spec.labels.value_of(STORE) == "json":
            is_behind = shard.spec.source_of(SUMS) is not None
            return JSONFileStore(recorder, {}, kind=dict[str, int] if is_behind else dict[str, Sum])
        return super().new_store(shard, recorder)

    @override
    async def consume(self, txn: Transaction[Any], envelope: Envelope[Any]) -> None:
        if envelope.uuid.flags == Flags.ACK_TXN:
            return
        if envelope.journal == SUMS:
            await self._pass_on(txn, envelope.message)
            return
        sums, key, store = self._open[txn.shard.id], id_of(envelope.message), txn.store
        if key not in sums and isinstance(store, JSONFileStore | SQLStore):
            sums[key] = await _load(store, txn.shard.id, key)
        await super().consume(txn, envelope)

    async def _pass_on(self, txn: Transaction[Any], total: Sum) -> None:
        counts = txn.store.state
        counts[_COUNT] = counts.get(_COUNT, 0) + 1
        tally = Tally(ID=total.ID, SeqNo=total.SeqNo, Value=total.Value, Number=counts[_COUNT])
        await txn.publisher.publish(TALLIES, tally)

    @override
    async def finalize(self, txn: Transaction[Any]) -> None:  # type: ignore[override]
        store, sums = txn.store, self._open[txn.shard.id]
        if isinstance(store, JSONFileStore):
            store.state.update({key.hex(): total for key, total in sums.items()})
        elif not isinstance(store, SQLStore):
            super().finalize(txn)
        elif sums:
            await store.run(_upsert, txn.shard.id, sums)


async def _load(store: JSONFileStore[Any] | SQLStore, shard: str, key: bytes) -> Sum:
    if isinstance(store, SQLStore):
        return await store.run(_select, shard, key)
    return store.state.get(key.hex()) or Sum(ID=list(key))


def _select(connection: Connection, shard: str, key: bytes) -> Sum:
    columns = _SUMS.c
    asked = select(columns.seq_no, columns.val).where(columns.shard == shard, columns.id == key)
    seq_no, value = connection.execute(asked).one_or_none() or (0, 0)
    return Sum(ID=list(key), SeqNo=seq_no, Value=int(value))


def _upsert(connection: Connection, shard: str, sums: Mapping[bytes, Sum]) -> None:
    rows = [
        {"shard": shard, "id": key, "seq_no": total.SeqNo, "val": total.Value}
        for key, total in sums.items()
    ]
    added = insert(_SUMS)
    columns = {"seq_no": added.excluded.seq_no, "val": added.excluded.val}
    connection.execute(
        added.on_conflict_do_update(index_elements=["shard", "id"], set_=columns), rows
    )


def make_tables(url: str) -> None:
    """Make what shards without a log need. Blocks. Raises: StoreError."""
    engine = sql_engine(url)
    create_tables(engine)
    _SUMS.create(engine)
    engine.dispose()


if __name__ == "__main__":
    run(SoakSummer())
