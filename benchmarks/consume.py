"""``python -m benchmarks.consume``: how many messages a shard consumes in a second of one core.

The hot path of a primary without any server: content in pieces as brokers give it is cut into JSON
lines, decoded, sequenced, and counted by key in memory, by an application that takes messages one by one or in
batches. What stores and appends cost comes on top, with each transaction and not with each message.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import uvloop
from typing_extensions import override

from gazette_platform.client import AsyncClient
from gazette_platform.consumer.application import (
    Application,
    Shard,
    Transaction,
    TransactionPublisher,
)
from gazette_platform.consumer.assignments import ShardAssignment
from gazette_platform.consumer.protocol import Checkpoint, ReplicaStatus, ShardSpec
from gazette_platform.consumer.runtime.run import Run
from gazette_platform.consumer.runtime.status import Readiness
from gazette_platform.consumer.store import ShardStore
from gazette_platform.consumer.transaction import BATCH_SIZE
from gazette_platform.message import (
    Flags,
    JsonFraming,
    MessageClock,
    UncommittedReader,
    build_uuid,
    new_producer_id,
)
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.protocol import ProcessId

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from gazette_platform.consumer.recoverylog import Recorder
    from gazette_platform.message import Envelope

JOURNAL = "in/one"
PIECE_BYTES = 128 << 10
KEYS = 1000


class Memory(ShardStore):
    """Counts, which are committed at once."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    @override
    async def restore_checkpoint(self) -> Checkpoint:
        return Checkpoint()

    @override
    def start_commit(self, checkpoint: Checkpoint, after: Collection[Any]) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        loop.call_soon(ended.set_result, None)
        return ended

    @override
    async def destroy(self) -> None:
        pass


class Pieces:
    """Content as a reader gives it."""

    def __init__(self, content: bytes) -> None:
        self.journal, self.offset, self.content = JOURNAL, 0, content

    async def __anext__(self) -> bytes:
        piece = self.content[self.offset : self.offset + PIECE_BYTES]
        if not piece:
            raise StopAsyncIteration
        self.offset += len(piece)
        await asyncio.sleep(0)
        return piece

    async def aclose(self) -> None:
        pass


class OneByOne(Application[Memory, dict]):
    """Counts messages by key."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    @override
    def new_store(self, shard: Shard, recorder: Recorder | None) -> Memory:
        return Memory()

    @override
    def read(self, shard: Shard, store: Memory, checkpoint: Checkpoint) -> UncommittedReader[dict]:
        return UncommittedReader(Pieces(self.content), JsonFraming())

    @override
    def consume(self, txn: Transaction[Memory], envelope: Envelope[dict]) -> None:
        if envelope.uuid.flags != Flags.ACK_TXN:
            txn.store.counts[envelope.message["key"]] += 1


class Batches(OneByOne):
    """The same, in batches."""

    @override
    def consume_batch(self, txn: Transaction[Memory], envelopes: Sequence[Envelope[dict]]) -> None:
        txn.store.counts.update(
            [each.message["key"] for each in envelopes if each.uuid.flags != Flags.ACK_TXN]
        )


def content_of(messages: int, span: int) -> bytes:
    """Messages that count by themselves, or each `span` of them by an ACK."""
    producer, clock, lines = new_producer_id(), MessageClock(1 << 60), []
    for number in range(messages):
        flags = Flags.OUTSIDE_TXN
        if span:
            flags = Flags.CONTINUE_TXN if (number + 1) % span else Flags.ACK_TXN
        uuid = build_uuid(producer, clock.tick(), flags)
        text = "what else is in it, and not looked at"
        lines.append(f'{{"UUID":"{uuid}","key":"{number % KEYS}","text":"{text}"}}\n')
    return "".join(lines).encode()


async def consume(kind: type[OneByOne], content: bytes) -> float:
    """Consume all of it. Returns: seconds of CPU."""
    spec = ShardSpec("bench-000", max_txn_duration_ns=SECOND_NS)
    assignment = ShardAssignment(
        spec.id, ProcessId("local", "bench"), 0, ReplicaStatus(), 1, 1, "/assign", b"", 0
    )
    async with AsyncClient() as client:  # which is asked for nothing
        shard = Shard(
            spec.id, "/items/bench-000", spec, assignment, client, client.append_service()
        )
        clock, store = SystemClock(), Memory()

        async def between() -> None:
            pass

        run = Run(
            shard,
            kind(content),
            store,
            publisher=TransactionPublisher(client, shard.appends, clock),
            checkpoint=Checkpoint(),
            readiness=Readiness(shard),
            between=between,
            clock=clock,
            batch_size=BATCH_SIZE,
        )
        began_s = time.process_time()
        await run.run()
        took_s = time.process_time() - began_s
    assert sum(store.counts.values())
    return took_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    for span in (0, 50):
        content = content_of(arguments.messages, span)
        for kind in (OneByOne, Batches):
            best_s = min(uvloop.run(consume(kind, content)) for _ in range(arguments.rounds))
            what = f"in transactions of {span}" if span else "by themselves"
            rate = arguments.messages / best_s
            print(f"{kind.__name__}, {what}: {rate:,.0f} messages/s of a core")


if __name__ == "__main__":
    main()
