"""The application: counts what its journals of deltas hold, in RocksDB."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Any, ClassVar, Final

from typing_extensions import override

from examples.word_count.n_grams import count_from_bytes, count_to_bytes, n_grams
from examples.word_count.pb import word_count_pb2 as pb, word_count_pb2_grpc as rpcs
from examples.word_count.service import NGramService
from gazette_platform.app import Application, Option, Shard, Transaction
from gazette_platform.client import JournalWatch
from gazette_platform.consumer.store.rocksdb import RocksDBStore
from gazette_platform.errors import ApplicationFailed, ValidationError
from gazette_platform.message import Envelope, Flags, ProtoFraming, Publisher, modulo_mapping
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.tasks import Turns

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from gazette_platform.app import ServingProcess
    from gazette_platform.client import AppendTicket
    from gazette_platform.consumer.recoverylog import Recorder
    from gazette_platform.message import Mapped

__all__ = ["WordCount"]

_COUNT_MAX: Final = (1 << 64) - 1  # they are added as uint64 are, whatever is published

# N-grams of a text that may be on their way to their journals.
_TICKETS_MAX: Final = 1024

_DELTAS: Final = "app.gazette.dev/message-type=word_count.NGramCount"


class WordCount(Application[RocksDBStore, pb.NGramCount]):
    """Counts the n-grams of texts.

    A text comes by the gRPC call `Publish` of any process, which publishes a count of one for each n-gram, to
    the journal that the n-gram maps to. The shard of that journal adds it up.
    """

    message_type = pb.NGramCount
    options: ClassVar[tuple[Option, ...]] = (Option("wordcount.N", int, 4, "Words of an n-gram."),)

    def __init__(self, n: int = 4) -> None:
        self._n = n
        # Of the transactions under way. What others may ask for is in the store, once one ends.
        self._added: dict[Transaction[RocksDBStore], Counter[bytes]] = {}

    @override
    def configure(self, values: Mapping[str, Any]) -> None:
        self._n = values["wordcount.N"]
        if not 1 <= self._n <= 16:
            raise ValidationError(f"expected 1 to 16 words ({self._n})", path="wordcount.N")

    @override
    async def init(self, process: ServingProcess) -> None:
        journals = JournalWatch(process.client, _DELTAS)
        await journals.start(process.tasks)
        self._mapping = modulo_mapping(_key_of, journals)
        self._publisher = Publisher(
            process.client.append_service(),
            self._mapping,
            SystemClock(),
            framing=ProtoFraming(message_type=pb.NGramCount),
        )
        process.add_servicer(rpcs.add_NGramServicer_to_server, NGramService(self, process))

    @override
    def new_store(self, shard: Shard, recorder: Recorder | None) -> RocksDBStore:
        if recorder is None:
            raise ApplicationFailed(f"{shard.id}: counts need a shard with a recovery log")
        return RocksDBStore(recorder)

    # ------------------------------------------------------------------ transactions

    @override
    def begin(self, txn: Transaction[RocksDBStore]) -> None:
        self._added[txn] = Counter()

    @override
    def consume(self, txn: Transaction[RocksDBStore], envelope: Envelope[pb.NGramCount]) -> None:
        if envelope.uuid.flags != Flags.ACK_TXN:
            delta = envelope.message
            self._added[txn][delta.n_gram.encode()] += delta.count

    @override
    def finalize(self, txn: Transaction[RocksDBStore]) -> None:
        for n_gram, count in self._added.pop(txn).items():
            before = txn.store.get(n_gram)
            total = count if before is None else count + count_from_bytes(before)
            txn.store.put(n_gram, count_to_bytes(total & _COUNT_MAX))

    @override
    def finished(self, txn: Transaction[RocksDBStore], commit: asyncio.Future[None]) -> None:
        self._added.pop(txn, None)  # it still exists if the transaction was given up

    # ------------------------------------------------------------------ for the service

    async def publish(self, text: str) -> None:
        """Publish the n-grams of a text. Returns once all are in their journals.

        Raises: GazetteError: one could not be published; others may be.
        Cancellation: some may be published.
        """
        turns = Turns()
        tickets: deque[AppendTicket] = deque()
        for n_gram in n_grams(text, self._n):
            await turns.take()
            message = pb.NGramCount(n_gram=n_gram, count=1)
            tickets.append(await self._publisher.publish_committed(message))
            if len(tickets) > _TICKETS_MAX:
                await tickets.popleft()
        for ticket in tickets:
            await ticket

    def journal_of(self, n_gram: str) -> Mapped:
        """Where an n-gram is counted. Raises: ValidationError: there are no journals."""
        return self._mapping(pb.NGramCount(n_gram=n_gram))


def _key_of(message: pb.NGramCount) -> bytes:
    return message.n_gram.encode()
