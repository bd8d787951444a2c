"""Consume, transform, produce, exactly once, as a program that tests kill: for each record of one topic it writes one to another.

    kafka_transform.py SERVERS GROUP SOURCE TARGET ID FILE [BATCH]

Its transactions have the transactional id ID, and up to BATCH records; now and then it aborts one, as programs do after an error.
"""

from __future__ import annotations

import json
import signal
import sys

import confluent_kafka as ck
from kafka_member import Log

WAIT_S = 15.0
STUCK_S = 20  # then SIGALRM ends it
ABORTED = 7  # each of so many transactions


def main(servers, group, source, target, transactional_id, file, batch="20"):
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    note = Log(file).write
    note("started")
    try:
        return transform(
            servers, group, source, target, transactional_id, int(batch), note, stopped
        )
    except ck.KafkaException as err:
        note("failed", text=str(err.args[0]))
        return 1  # fenced, or worse: a supervisor starts it again


def transform(servers, group, source, target, transactional_id, batch, note, stopped):
    consumer = ck.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 500,
        }
    )
    producer = ck.Producer(
        {
            "bootstrap.servers": servers,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 20000,
            "linger.ms": 5,
        }
    )
    producer.init_transactions(WAIT_S)
    consumer.subscribe([source])
    number = 0
    while not stopped:
        messages = [one for one in consumer.consume(batch, 0.5) if not one.error()]
        if not messages:
            continue
        number += 1
        try:
            producer.begin_transaction()
            for one in messages:
                value = json.loads(one.value())
                producer.produce(
                    target,
                    json.dumps({"n": value["n"], "twice": 2 * value["n"]}),
                    partition=one.partition(),
                )
            # librdkafka may wait for ever when the group's coordinator leaves (its issues 5456 and 5511).
            signal.alarm(STUCK_S)
            producer.send_offsets_to_transaction(
                consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), WAIT_S
            )
            signal.alarm(0)
            if number % ABORTED == 0:
                producer.abort_transaction(WAIT_S)
                note("aborted")
                rewind(consumer)
            else:
                producer.commit_transaction(WAIT_S)
                note("committed", records=len(messages))
        except ck.KafkaException as err:
            signal.alarm(0)
            error = err.args[0]
            if not error.txn_requires_abort():
                raise
            note("trouble", text=str(error))
            producer.abort_transaction(WAIT_S)
            rewind(consumer)
    consumer.close()
    note("left")
    return 0


def rewind(consumer):
    """Read again what the aborted transaction had read."""
    for place in consumer.committed(consumer.assignment(), WAIT_S):
        offset = place.offset if place.offset >= 0 else ck.OFFSET_BEGINNING
        consumer.seek(ck.TopicPartition(place.topic, place.partition, offset))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
