"""The client of `benchmarks.kafka`: a process that produces and fetches by librdkafka, as each line of its standard input says."""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from benchmarks.content import Payloads, load_content
from benchmarks.figures import percentile

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Order", "Report"]

_SEED = 2013
_DISTINCT_BYTES = 32 << 20
_HEAD = b'{"n":%d,"of":"'
_FIRST = 100_000_000  # so that all numbers have nine digits
_END = b'"}'
_CHUNK_BYTES = 1 << 20
# What waits in the producer: enough for the next batches of all partitions.
_QUEUED_BYTES = 32 << 20
_MESSAGE_BYTES_MAX = 8 << 20
_ANSWER_S = 60.0
_FIRST_RECORDS = 50


@dataclass(frozen=True, slots=True)
class Order:
    """What to do."""

    what: str
    """`produce`, `fetch`, `one_by_one` or `end_to_end`."""
    server: str
    topic: str
    partitions: int
    size: int
    """Of each record, in bytes."""
    count: int
    linger_ms: float = 0.0
    per_s: float = 0.0
    """Records a second, of `end_to_end`."""


@dataclass(frozen=True, slots=True)
class Report:
    """What it came to."""

    elapsed_s: float
    cpu_s: float
    """Of the client."""
    latencies_ms: dict[str, float] = field(default_factory=dict)


@cache
def _content() -> bytes:
    return load_content().translate(bytes.maketrans(b'"\\\n', b"'/ "))


@cache
def _values(size: int) -> list[bytes]:
    """Distinct JSON objects of one size, of flights as a text."""
    room = size - len(_HEAD % _FIRST) - len(_END)
    texts = Payloads(_content(), seed=_SEED).of(room)
    count = min(20_000, _DISTINCT_BYTES // size)
    return [
        _HEAD % number + text + _END for number, text in enumerate(islice(texts, count), _FIRST)
    ]


def _producer(order: Order, **more: Any) -> Producer:
    """A producer that knows the topic. Everything else is as librdkafka has it."""
    producer = Producer(
        {
            "bootstrap.servers": order.server,
            "acks": "all",
            "linger.ms": order.linger_ms,
            "message.max.bytes": _MESSAGE_BYTES_MAX,
            "queue.buffering.max.messages": 2_000_000,
            "queue.buffering.max.kbytes": 1 << 20,
            **more,
        }
    )
    producer.list_topics(order.topic, timeout=_ANSWER_S)
    return producer


def _consumer(order: Order) -> Consumer:
    """A consumer of a whole topic, from its begin."""
    consumer = Consumer(
        {
            "bootstrap.servers": order.server,
            "group.id": order.topic,
            "enable.auto.commit": False,
            "fetch.message.max.bytes": _MESSAGE_BYTES_MAX,
            "queued.max.messages.kbytes": 64 << 10,
        }
    )
    consumer.assign([TopicPartition(order.topic, n, 0) for n in range(order.partitions)])
    return consumer


def _raise(error: Any, _message: object) -> None:
    if error is not None:
        raise KafkaException(error)


def _produce(order: Order) -> Report:
    """As many records as possible at a time; the time ends when all are acknowledged."""
    values = _values(order.size)
    in_chunk, in_queue = (max(1, most // order.size) for most in (_CHUNK_BYTES, _QUEUED_BYTES))
    producer = _producer(order, **{"delivery.report.only.error": True})
    begun, cpu = time.perf_counter(), time.process_time()
    for at in range(0, order.count, in_chunk):
        while len(producer) > in_queue:
            producer.poll(0.002)
        numbers = range(at, min(order.count, at + in_chunk))
        chunk = [{"value": values[number % len(values)]} for number in numbers]
        if producer.produce_batch(order.topic, chunk, on_delivery=_raise) != len(chunk):
            raise SystemExit(f"a record was not taken: {chunk[-1]}")
    if left := producer.flush(_ANSWER_S):
        raise SystemExit(f"{left} records are not acknowledged")
    return Report(time.perf_counter() - begun, time.process_time() - cpu)


def _fetch(order: Order) -> Report:
    """All records of a topic; the time begins with the consumer."""
    begun, cpu = time.perf_counter(), time.process_time()
    consumer = _consumer(order)
    count = size = 0
    while count < order.count:
        found = consumer.consume(10_000, 0.05)
        for message in found:
            if message.error():
                raise KafkaException(message.error())
            size += len(message)
        count += len(found)
        if time.perf_counter() - begun > _ANSWER_S:
            raise SystemExit(f"{count} of {order.count} records of {order.topic}")
    report = Report(time.perf_counter() - begun, time.process_time() - cpu)
    consumer.close()
    if (count, size) != (order.count, order.count * order.size):
        raise SystemExit(f"{count} records of {size} bytes; {order.count} were produced")
    return report


def _one_by_one(order: Order) -> Report:
    """Each record when the one before it is acknowledged."""
    producer = _producer(order)
    acknowledged: list[float] = []

    def done(error: Any, message: object) -> None:
        _raise(error, message)
        acknowledged.append(time.perf_counter())

    latencies: list[float] = []
    cpu = time.process_time()
    for number, value in zip(range(order.count), _values(order.size), strict=False):
        begun = time.perf_counter()
        producer.produce(order.topic, value, on_delivery=done)
        while len(acknowledged) == number:
            if not producer.poll(_ANSWER_S):
                raise SystemExit("a record is not acknowledged")
        latencies.append(acknowledged[-1] - begun)
    return Report(sum(latencies), time.process_time() - cpu, _shares(latencies))


def _end_to_end(order: Order) -> Report:
    """From produce to a consumer that waits, at a rate."""
    sent: list[float] = []
    latencies: list[float] = []
    joined = threading.Event()

    def consume() -> None:
        consumer = _consumer(order)
        while len(latencies) < order.count:
            message = consumer.poll(0.2)
            now = time.perf_counter()
            joined.set()
            if message is not None:
                _raise(message.error(), message)
                number = int((message.value() or b"")[5:14]) - _FIRST
                latencies.append(now - sent[number])
        consumer.close()

    producer, values = _producer(order), _values(order.size)
    reader = threading.Thread(target=consume, daemon=True)
    reader.start()
    if not joined.wait(_ANSWER_S):
        raise SystemExit("the consumer does not answer")
    cpu = time.process_time()
    begun = due = time.perf_counter() + 1.0  # after which the consumer's first answers have come
    for number in range(order.count):
        while (left := due - time.perf_counter()) > 0:
            producer.poll(left)
        sent.append(time.perf_counter())
        producer.produce(order.topic, values[number], on_delivery=_raise)
        due += 1 / order.per_s
    producer.flush(_ANSWER_S)
    reader.join(_ANSWER_S)
    if len(latencies) < order.count:
        raise SystemExit(f"{len(latencies)} of {order.count} records came")
    shares = _shares(latencies[_FIRST_RECORDS:])
    return Report(time.perf_counter() - begun, time.process_time() - cpu, shares)


def _shares(latencies: Sequence[float]) -> dict[str, float]:
    return {f"p{n}": percentile(latencies, n / 100) * 1e3 for n in (50, 99)}


def main() -> None:
    """Carry out orders until there are no more."""
    kinds = {
        "produce": _produce,
        "fetch": _fetch,
        "one_by_one": _one_by_one,
        "end_to_end": _end_to_end,
    }
    for line in sys.stdin:
        order = Order(**json.loads(line))
        _values(order.size)
        print(json.dumps(asdict(kinds[order.what](order))), flush=True)


if __name__ == "__main__":
    main()
