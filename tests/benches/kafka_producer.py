"""A producer, as a program that tests kill: it writes what it does to a file, one JSON line each.

    kafka_producer.py SERVERS TOPIC PARTITIONS FIRST FILE [ID]

Its records are numbers from FIRST on, in bursts over all partitions. With ID it is transactional, and aborts about one
transaction in five; without, it is idempotent. SIGTERM lets it finish what it began.
"""

from __future__ import annotations

import itertools
import json
import random
import signal
import sys
import time

import confluent_kafka as ck
from kafka_member import Log

WAIT_S = 30.0
PAUSE_S = 0.25
BURST = 10
ABORTED = 0.2
TRANSACTION_MS = 12_000
# Of records that are not in a transaction: an error before would have to be the broker's.
DELIVERY_MS = 240_000


def idempotent(servers, bursts, topic, log, stopped):
    producer = ck.Producer(
        {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "message.timeout.ms": DELIVERY_MS,
            "linger.ms": 5,
        }
    )

    def noted(number):
        def note(err, message):
            if err is None:
                place = {"partition": message.partition(), "offset": message.offset()}
                log.write("acked", n=number, **place)
            else:
                log.write("refused", n=number, text=str(err))

        return note

    while not stopped:
        for number, partition in next(bursts):
            log.write("sent", n=number, partition=partition)
            value = json.dumps({"n": number})
            producer.produce(topic, value, partition=partition, on_delivery=noted(number))
        rest(producer)
    producer.flush()


def transactional(servers, bursts, topic, log, stopped, transactional_id):
    producer = ck.Producer(
        {
            "bootstrap.servers": servers,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": TRANSACTION_MS,
            "linger.ms": 5,
        }
    )
    settle(log, producer.init_transactions)
    while not stopped:
        records = next(bursts)
        is_unwanted = random.Random(str(records)).random() < ABORTED
        log.write("begun", records=records, is_unwanted=is_unwanted)
        try:
            producer.begin_transaction()
            for number, partition in records:
                producer.produce(topic, json.dumps({"n": number}), partition=partition)
                producer.poll(0)
            if is_unwanted:
                producer.flush(PAUSE_S)
                settle(log, producer.abort_transaction)
            else:
                settle(log, producer.commit_transaction)
        except ck.KafkaException as err:
            if not err.args[0].txn_requires_abort():
                raise
            settle(log, producer.abort_transaction)
            is_unwanted = True
        log.write("aborted" if is_unwanted else "committed", records=len(records))
        rest(producer)


def rest(producer):
    """Serve callbacks for a while."""
    until = time.monotonic() + PAUSE_S
    while (left_s := until - time.monotonic()) > 0:
        producer.poll(left_s)


def settle(log, call):
    """Make a call of transactions until it is done. Raises: KafkaException: no repetition helps."""
    while True:
        try:
            return call(WAIT_S)
        except ck.KafkaException as err:
            log.write("trouble", text=str(err.args[0]))
            if not err.args[0].retriable():
                raise


def bursts_from(first, partitions):
    numbers = itertools.count(first)
    dice = random.Random(first)
    while True:
        count = dice.randint(1, BURST)
        yield [(next(numbers), dice.randrange(partitions)) for _ in range(count)]


def main(servers, topic, partitions, first, file, transactional_id=""):
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    log = Log(file)
    log.write("started")
    bursts = bursts_from(int(first), int(partitions))
    try:
        if transactional_id:
            transactional(servers, bursts, topic, log, stopped, transactional_id)
        else:
            idempotent(servers, bursts, topic, log, stopped)
    except ck.KafkaException as err:
        log.write("failed", text=str(err.args[0]))  # fenced, or worse: a supervisor starts it again
        return 1
    log.write("left")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
