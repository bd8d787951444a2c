"""A member of a consumer group, as a program that tests kill: it writes what it does to a file, one JSON line each.

    kafka_member.py CLIENT SERVERS GROUP TOPIC FILE [INSTANCE]

CLIENT is `confluent` (librdkafka) or `aiokafka`. It commits after each record that it has written down, so a record that
comes again was read by a member that was killed before its commit.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from pathlib import Path

SESSION_MS = 6000
BEAT_MS = 500


class Log:
    """What a member does, on its way to a test."""

    def __init__(self, file):
        self._file = Path(file).open("a")  # noqa: SIM115  until the process ends

    def write(self, what, **more):
        at = round(time.monotonic(), 6)
        self._file.write(json.dumps({"what": what, "at": at, **more}) + "\n")
        self._file.flush()


def confluent(servers, group, topic, log, instance, stopped):
    import confluent_kafka as ck

    settings = {
        "bootstrap.servers": servers,
        "group.id": group,
        "session.timeout.ms": SESSION_MS,
        "heartbeat.interval.ms": BEAT_MS,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
    }
    if instance:
        settings["group.instance.id"] = instance
    consumer = ck.Consumer(settings)

    def note(what):
        return lambda _, parts: log.write(what, partitions=sorted(one.partition for one in parts))

    consumer.subscribe(
        [topic], on_assign=note("assigned"), on_revoke=note("revoked"), on_lost=note("lost")
    )
    while not stopped:
        message = consumer.poll(0.2)
        if message is None:
            continue
        if message.error():
            log.write("error", text=str(message.error()))
            continue
        log.write(
            "record",
            value=json.loads(message.value()),
            partition=message.partition(),
            offset=message.offset(),
        )
        try:
            consumer.commit(message, asynchronous=False)
        except ck.KafkaException as err:  # it belongs to another member by now
            log.write("refused", text=str(err))
        else:
            log.write("committed", partition=message.partition(), offset=message.offset() + 1)
    consumer.close()


async def aio(servers, group, topic, log, instance, stopped):
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
    from aiokafka.errors import KafkaError

    class Listener(ConsumerRebalanceListener):
        async def on_partitions_assigned(self, assigned):
            log.write("assigned", partitions=sorted(one.partition for one in assigned))

        async def on_partitions_revoked(self, revoked):
            log.write("revoked", partitions=sorted(one.partition for one in revoked))

    consumer = AIOKafkaConsumer(
        bootstrap_servers=servers,
        group_id=group,
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=BEAT_MS,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
        metadata_max_age_ms=2000,
        group_instance_id=instance or None,
    )
    consumer.subscribe([topic], listener=Listener())
    await consumer.start()
    while not stopped:
        found = await consumer.getmany(timeout_ms=200, max_records=10)
        for place, messages in found.items():
            for message in messages:
                log.write("record", value=json.loads(message.value), partition=place.partition)
            offset = messages[-1].offset + 1
            try:
                await consumer.commit({place: offset})
            except KafkaError as err:
                log.write("refused", text=str(err))
            else:
                log.write("committed", partition=place.partition, offset=offset)
    await consumer.stop()


def main(client, servers, group, topic, file, instance=""):
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    log = Log(file)
    log.write("started", client=client)
    if client == "confluent":
        confluent(servers, group, topic, log, instance, stopped)
    else:
        asyncio.run(aio(servers, group, topic, log, instance, stopped))
    log.write("left")


if __name__ == "__main__":
    main(*sys.argv[1:])
